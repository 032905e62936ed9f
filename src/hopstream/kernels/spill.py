"""External sorting: numbers nodes, groups edges and raw ids by bucket, and places edges in rows.

[Algorithm] Stable counting sorts. A piece of edges is grouped by the bucket (a range of ids) of the owning end. Later
    the pieces' edges of a bucket are placed row by row, in the order of the pieces, so edges of one row keep their
    original order. The bucket of an id comes from a table by its high bits, corrected by a few steps.
[Cost] One random read of each end's id, sequential passes, and one write stream per bucket.
[Not chosen] Sorting a piece by row at once: its writes are random, and merging pieces needs a heap. Binary search for
    the bucket: 3 times slower than the table with 64 buckets.

[Algorithm] Strings: FNV-1a over the bytes, then SplitMix64's finalizer, because FNV's high bits are poor for short
    strings. A binary search among the separating strings finds the range of a string. Rows are grouped by a stable
    counting sort.
    Source: Fowler, Noll, Vo, "The FNV non-cryptographic hash algorithm", draft-eastlake-fnv.
[Cost] A multiplication per byte: 45 million strings of 12 bytes per second.
[Not chosen] Eight bytes at a time: tails need a loop of their own, and reading the file takes twenty times as long as
    hashing.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import mix64

FNV_START = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)


@kernel
def hash_strings(values: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Hash strings.

    Args:
        values: uint8[num_bytes], their bytes.
        offsets: int64[n + 1], string ``i`` has the bytes ``values[offsets[i]:offsets[i + 1]]``.
        out: uint64[n], out.
    """
    for i in range(len(out)):
        value = FNV_START
        for place in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(values[np.uint64(place)])) * FNV_PRIME
        out[i] = mix64(value)


@kernel
def find_ranges(
    values: np.ndarray, offsets: np.ndarray, bound_values: np.ndarray, bound_offsets: np.ndarray, out: np.ndarray
) -> None:
    """Write the number of bounds that are not above each string, in byte order.

    Args:
        values: uint8[num_bytes], bytes of the strings.
        offsets: int64[n + 1].
        bound_values: uint8[num_bound_bytes], bytes of the bounds, which ascend.
        bound_offsets: int64[m + 1].
        out: uint32[n], out.
    """
    for i in range(len(out)):
        low, high = 0, len(bound_offsets) - 1
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        while low < high:
            middle = (low + high) // 2
            first, other_length = bound_offsets[middle], bound_offsets[middle + 1] - bound_offsets[middle]
            shorter = min(length, other_length)
            place = 0
            while place < shorter and values[start + place] == bound_values[first + place]:
                place += 1
            is_above = other_length > length
            if place < shorter:
                is_above = bound_values[first + place] > values[start + place]
            if is_above:
                high = middle
            else:
                low = middle + 1
        out[i] = low


@kernel
def group_rows(buckets: np.ndarray, next_places: np.ndarray, order: np.ndarray) -> None:
    """Write row numbers grouped by bucket, in original order inside a bucket.

    Args:
        buckets: uint32[n], the bucket of each row.
        next_places: int64[num_buckets], the first position of each bucket; overwritten.
        order: uint32[n], out.
    """
    for i in range(len(buckets)):
        bucket = np.uint64(buckets[i])
        order[np.uint64(next_places[bucket])] = i
        next_places[bucket] += 1


@kernel
def number_nodes(owners: np.ndarray, next_ids: np.ndarray, ids: np.ndarray) -> None:
    """Give each node the next id of its part.

    Args:
        owners: integer[n], the part of each node, in ``[0, num_parts)``.
        next_ids: int64[num_parts], in and out: the next free id of each part.
        ids: integer[n], out.
    """
    for i in range(len(owners)):
        part = np.uint64(owners[i])
        ids[i] = next_ids[part]
        next_ids[part] += 1


@kernel
def take_ids(keys: np.ndarray, ids_of_keys: np.ndarray, ids: np.ndarray) -> None:
    """Write the id of each key; keys are in range.

    Args:
        keys: int64[n].
        ids_of_keys: integer[num_nodes].
        ids: integer[n], out.
    """
    for i in range(len(keys)):
        ids[i] = ids_of_keys[np.uint64(keys[i])]


@kernel
def find_buckets(
    ids: np.ndarray, starts: np.ndarray, guesses: np.ndarray, shift: int, counts: np.ndarray, buckets: np.ndarray
) -> None:
    """Write the bucket of each id, and count the ids of each bucket.

    Args:
        ids: integer[n], in ``[0, starts[-1])``.
        starts: int64[num_buckets + 1], bucket ``b`` has the ids ``[starts[b], starts[b + 1])``.
        guesses: int64[m], lower bound of the bucket for ids with ``id >> shift`` equal to the index.
        shift: See ``guesses``.
        counts: int64[num_buckets], added to.
        buckets: integer[n], out.
    """
    for i in range(len(ids)):
        node = np.int64(ids[i])
        bucket = np.uint64(guesses[np.uint64(node >> shift)])
        while node >= starts[bucket + np.uint64(1)]:
            bucket += np.uint64(1)
        counts[bucket] += 1
        buckets[i] = bucket


@kernel
def group_buckets(
    own_ids: np.ndarray, other_ids: np.ndarray, buckets: np.ndarray, next_places: np.ndarray,
    rows: np.ndarray, others: np.ndarray, offsets: np.ndarray,
) -> None:  # fmt: skip
    """Group a piece's edges by bucket, in original order inside a bucket.

    Args:
        own_ids: integer[n], ids of the owning ends.
        other_ids: integer[n], ids of the other ends.
        buckets: integer[n], the bucket of each edge.
        next_places: int64[num_buckets], the first position of each bucket; overwritten.
        rows: integer[n], out: ``own_ids``, grouped.
        others: integer[n], out: ``other_ids``, grouped.
        offsets: uint32[n], out: the position of each edge in the piece.
    """
    for i in range(len(own_ids)):
        bucket = np.uint64(buckets[i])
        place = np.uint64(next_places[bucket])
        next_places[bucket] += 1
        rows[place] = own_ids[i]
        others[place] = other_ids[i]
        offsets[place] = i


@kernel
def count_between(
    src_buckets: np.ndarray, src_parts: np.ndarray, dst_buckets: np.ndarray, dst_parts: np.ndarray, between: np.ndarray
) -> int:
    """Count the edges between each pair of parts.

    Args:
        src_buckets: integer[n], the bucket of each source.
        src_parts: int64[num_src_buckets], the part of each bucket.
        dst_buckets: integer[n], the bucket of each destination.
        dst_parts: int64[num_dst_buckets], the part of each bucket.
        between: int64[num_parts, num_parts], added to; without rows, pairs are not counted.

    Returns:
        Number of edges with ends in different parts.
    """
    num_cut = 0
    for i in range(len(src_buckets)):
        src = np.uint64(src_parts[np.uint64(src_buckets[i])])
        dst = np.uint64(dst_parts[np.uint64(dst_buckets[i])])
        num_cut += src != dst
        if len(between):
            between[src, dst] += 1
    return num_cut


@kernel
def count_ids(ids: np.ndarray, first_id: int, counts: np.ndarray) -> None:
    """Count edges per row.

    Args:
        ids: integer[n], ids of owning ends, in ``[first_id, first_id + len(counts))``.
        first_id: The id of row 0.
        counts: int64[num_rows], added to.
    """
    for i in range(len(ids)):
        counts[np.uint64(np.int64(ids[i]) - first_id)] += 1


@kernel
def place_edges(
    ids: np.ndarray, others: np.ndarray, offsets: np.ndarray, first_id: int, first_key: int, first_place: int,
    next_places: np.ndarray, indices: np.ndarray, keys: np.ndarray, places: np.ndarray,
) -> int:  # fmt: skip
    """Append a piece's edges to the rows that own them.

    Args:
        ids: integer[n], ids of owning ends; edges of rows out of range are skipped.
        others: integer[n], ids of the other ends.
        offsets: uint32[n], positions in the piece; empty if keys are not wanted.
        first_id: The id of row 0.
        first_key: The edge key of position 0 in the piece.
        first_place: Number of edges of these rows in earlier pieces.
        next_places: int64[num_rows], in and out: next free position of each row.
        indices: integer[num_edges], out.
        keys: integer[num_edges], out: edge keys; empty if not wanted.
        places: integer[num_edges], out: number of each edge in the order of placement; empty if not wanted.

    Returns:
        Number of placed edges.
    """
    num_rows = len(next_places)
    has_keys, has_places = len(keys) > 0, len(places) > 0
    num_placed = 0
    for i in range(len(ids)):
        row = np.int64(ids[i]) - first_id
        if row < 0 or row >= num_rows:
            continue
        place = np.uint64(next_places[np.uint64(row)])
        next_places[np.uint64(row)] += 1
        indices[place] = others[i]
        if has_keys:
            keys[place] = first_key + np.int64(offsets[i])
        if has_places:
            places[place] = first_place + num_placed
        num_placed += 1
    return num_placed
