"""Groups edges by one of their ends, sorts the edges of a row, and builds undirected graphs.

[Algorithm] Undirected graphs: nodes are cut into cells of equal size, and edge ends are counted per cell while edges
    are read. Adjacent cells make a bucket that fits into a processor's cache. Both directions of every edge are written
    to buckets. A radix sort of few passes sorts each bucket by node and neighbour, and duplicates are removed.
[Cost] Per edge 8 bytes read and 16 written for the buckets; the rest runs in the cache. 8.4 M edges of 0.5 M nodes on
    one thread: 0.25 s. The order of edges in a bucket does not matter, so threads share blocks and buckets.
[Not chosen] Two counting sorts over all nodes, first by node, then by transposing: every write misses the cache, 0.6 s.
    Sorting 64-bit pairs of both ends by comparing: 1.8 s.

[Algorithm] Grouping: counting sort by the grouping end; one pass counts, one pass places. Edges of one node keep their
    original order.
[Cost] Two sequential reads of the ends and one random write per edge.
[Not chosen] ``numpy.argsort(kind="stable")``: 3 to 6 times slower on 64 M edges, and it needs an int64 copy of the
    order.

[Algorithm] Sorting rows: a stable bottom-up merge sort of positions, over runs of 16 sorted by insertion; a sorted row
    is skipped after one pass. Running sums are added one by one, in stored order.
[Cost] Sorting takes two comparisons per level and edge, reads values at random inside a row, and needs four bytes per
    edge of the largest row beside the result; sums take one sequential pass.
[Not chosen] ``numpy.lexsort`` over (row, value): three int64 arrays as long as the edges, and one sort of all edges,
    though rows are short. ``numpy.cumsum`` over all edges minus its value at each row's start: rounding errors of other
    rows would enter a row, so sums would depend on the part of the row.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.weighted import add_weight

RUN = 16


@inlined
def _is_after(left: float, right: float, is_descending: bool) -> bool:
    """Return whether ``left`` must come after ``right``; equal values keep their order."""
    return right > left if is_descending else right < left


@kernel
def sort_rows(
    offsets: np.ndarray, values: np.ndarray, is_descending: bool, order: np.ndarray, scratch: np.ndarray
) -> None:
    """Write the positions inside each row in the order of their values; equal values keep their order.

    Args:
        offsets: int64[num_rows + 1], row ``r`` is ``[offsets[r], offsets[r + 1])``; from 0.
        values: int64[num_edges] or float64[num_edges], none of them NaN.
        is_descending: Largest value first.
        order: uint32[num_edges], out: for each row, its positions 0..degree-1.
        scratch: uint32[largest degree].
    """
    for row in range(len(offsets) - 1):
        start, degree = offsets[row], offsets[row + 1] - offsets[row]
        is_sorted = True
        for i in range(degree):
            order[start + i] = i
            if i and _is_after(values[start + i - 1], values[start + i], is_descending):
                is_sorted = False
        if is_sorted:
            continue
        for first in range(0, degree, RUN):
            for i in range(first + 1, min(first + RUN, degree)):
                value = values[start + i]
                place = i
                while place > first and _is_after(values[start + order[start + place - 1]], value, is_descending):
                    order[start + place] = order[start + place - 1]
                    place -= 1
                order[start + place] = i
        width = RUN
        while width < degree:
            for first in range(0, degree - width, 2 * width):
                middle, stop = first + width, min(first + 2 * width, degree)
                for i in range(first, middle):
                    scratch[i] = order[start + i]
                left, right, out = first, middle, first
                while left < middle and right < stop:
                    left_value, right_value = values[start + scratch[left]], values[start + order[start + right]]
                    if _is_after(left_value, right_value, is_descending):
                        order[start + out] = order[start + right]
                        right += 1
                    else:
                        order[start + out] = scratch[left]
                        left += 1
                    out += 1
                while left < middle:
                    order[start + out] = scratch[left]
                    left += 1
                    out += 1
            width *= 2


@kernel
def sum_rows(offsets: np.ndarray, weights: np.ndarray, sums: np.ndarray) -> None:
    """Write the running sum of the weights inside each row.

    Args:
        offsets: int64[num_rows + 1], row ``r`` is ``[offsets[r], offsets[r + 1])``; from 0.
        weights: float64[num_edges].
        sums: float64[num_edges], out: sum of the weights of an edge and of earlier edges in its row; see
            ``add_weight``.
    """
    for row in range(len(offsets) - 1):
        total = 0.0
        for i in range(offsets[row], offsets[row + 1]):
            total = add_weight(total, weights[i])
            sums[i] = total


@kernel
def count_mapped(own_keys: np.ndarray, own_ids: np.ndarray, indptr: np.ndarray) -> None:
    """Write the running count of edges per id of the owning end.

    Args:
        own_keys: int64[num_edges], keys of the owning end.
        own_ids: integer[num_nodes], the id of each key.
        indptr: int64[num_nodes + 1], out.
    """
    indptr[:] = 0
    for i in range(len(own_keys)):
        indptr[np.uint64(own_ids[np.uint64(own_keys[i])]) + np.uint64(1)] += 1
    for row in range(1, len(indptr)):
        indptr[row] += indptr[row - 1]


@kernel
def group_mapped(
    own_keys: np.ndarray, other_keys: np.ndarray, own_ids: np.ndarray, other_ids: np.ndarray,
    cursor: np.ndarray, order: np.ndarray, indices: np.ndarray,
) -> None:  # fmt: skip
    """Renumber edges and group them by the id of the owning end, in original order inside an id.

    One pass for both reads the keys sequentially. On 65 M edges of a graph with hubs it takes 1.5 s; grouping first and
    then numpy's ``ids[keys[order]]`` take 3.6 s and 0.8 GB more.

    Args:
        own_keys: int64[num_edges], keys of the owning end.
        other_keys: int64[num_edges], keys of the other end.
        own_ids: integer[num_own_nodes], the id of each key of the owning end's type.
        other_ids: integer[num_other_nodes], the id of each key of the other end's type.
        cursor: int64[num_own_nodes], in: the first position of each id, as ``count_mapped`` wrote it; overwritten.
        order: integer[num_edges], out: the edges' original positions, grouped.
        indices: integer[num_edges], out: ids of the other ends, grouped.
    """
    for i in range(len(own_keys)):
        row = np.uint64(own_ids[np.uint64(own_keys[i])])
        position = np.uint64(cursor[row])
        cursor[row] += 1
        order[position] = i
        indices[position] = other_ids[np.uint64(other_keys[i])]


DIGIT_BITS = 11
"""Most bits that one pass sorts by."""


@kernel
def take_ends(src: np.ndarray, dst: np.ndarray, src_first: np.int64, dst_first: np.int64, shift: np.int64,
              ends: np.ndarray, counts: np.ndarray) -> np.int64:  # fmt: skip
    """Convert the ends of edges to positions without self-loops, and count ends per cell.

    Args:
        src: int64[n], the keys of sources.
        dst: int64[n], the keys of destinations.
        src_first: The position of the first node of the sources' type.
        dst_first: The position of the first node of the destinations' type.
        shift: The cell of a position is ``position >> shift``.
        ends: uint32[2, n], out; columns after the kept edges are not written.
        counts: int64[num_cells], added to.

    Returns:
        Number of kept edges.
    """
    cells_shift, src_base, dst_base = np.uint64(shift), np.uint64(src_first), np.uint64(dst_first)
    kept = np.uint64(0)
    for i in range(len(src)):
        left, right = np.uint64(src[i]) + src_base, np.uint64(dst[i]) + dst_base
        if left != right:
            ends[0, kept], ends[1, kept] = left, right
            counts[left >> cells_shift] += 1
            counts[right >> cells_shift] += 1
            kept += np.uint64(1)
    return np.int64(kept)


@kernel
def count_buckets(ends: np.ndarray, shift: np.int64, bucket_of: np.ndarray, counts: np.ndarray) -> None:
    """Count the ends of each bucket.

    Args:
        ends: uint32[2, n].
        shift: As for ``take_ends``.
        bucket_of: uint32[num_cells], the bucket of each cell.
        counts: int64[num_buckets], added to.
    """
    cells_shift = np.uint64(shift)
    for i in range(ends.shape[1]):
        counts[bucket_of[np.uint64(ends[0, i]) >> cells_shift]] += 1
        counts[bucket_of[np.uint64(ends[1, i]) >> cells_shift]] += 1


@kernel
def deal_ends(ends: np.ndarray, shift: np.int64, bucket_of: np.ndarray, cursor: np.ndarray, pairs: np.ndarray) -> None:
    """Append both directions of every edge, ``position << 32 | neighbour``, to their buckets.

    Args:
        ends: uint32[2, n].
        shift: As for ``take_ends``.
        bucket_of: uint32[num_cells], the bucket of each cell.
        cursor: int64[num_buckets], in and out: the next free position of each bucket.
        pairs: uint64[num_ends], out.
    """
    cells_shift, half = np.uint64(shift), np.uint64(32)
    for i in range(ends.shape[1]):
        left, right = np.uint64(ends[0, i]), np.uint64(ends[1, i])
        bucket = np.uint64(bucket_of[left >> cells_shift])
        pairs[np.uint64(cursor[bucket])] = left << half | right
        cursor[bucket] += 1
        bucket = np.uint64(bucket_of[right >> cells_shift])
        pairs[np.uint64(cursor[bucket])] = right << half | left
        cursor[bucket] += 1


@kernel
def group_rows(pairs: np.ndarray, first: np.int64, low_bits: np.int64, digit_bits: np.int64, counts: np.ndarray,
               scratch: np.ndarray, degrees: np.ndarray, neighbors: np.ndarray) -> np.int64:  # fmt: skip
    """Write the distinct neighbours of each node of a bucket, ascending.

    Args:
        pairs: uint64[n], ``position << 32 | neighbour`` in any order; overwritten.
        first: The first position of the bucket.
        low_bits: Bits of the largest neighbour.
        digit_bits: Bits that a pass sorts by.
        counts: int64[num_passes, 2**digit_bits], overwritten; the passes together must sort by all bits of
            ``position - first`` and of neighbours.
        scratch: uint64[n], overwritten.
        degrees: int64[num_nodes], in and out: zeros, then the number of neighbours of each node of the bucket.
        neighbors: uint32[n], out.

    Returns:
        Number of neighbours of all nodes.
    """
    num_passes, low, half, base = counts.shape[0], np.uint64(low_bits), np.uint64(32), np.uint64(first)
    low_mask, digit_mask = (np.uint64(1) << low) - np.uint64(1), (np.uint64(1) << np.uint64(digit_bits)) - np.uint64(1)
    counts[:] = 0
    for i in range(len(pairs)):
        packed = ((pairs[i] >> half) - base) << low | (pairs[i] & low_mask)
        pairs[i] = packed
        for turn in range(num_passes):
            counts[turn, (packed >> np.uint64(turn * digit_bits)) & digit_mask] += 1
    now, other = pairs, scratch
    for turn in range(num_passes):
        start = np.int64(0)
        for digit in range(counts.shape[1]):
            start, counts[turn, digit] = start + counts[turn, digit], start
        shift = np.uint64(turn * digit_bits)
        for i in range(len(now)):
            digit_here = (now[i] >> shift) & digit_mask
            other[np.uint64(counts[turn, digit_here])] = now[i]
            counts[turn, digit_here] += 1
        now, other = other, now
    num_kept = np.uint64(0)
    for i in range(len(now)):
        if i == 0 or now[i] != now[i - 1]:
            neighbors[num_kept] = now[i] & low_mask
            degrees[now[i] >> low] += 1
            num_kept += np.uint64(1)
    return np.int64(num_kept)
