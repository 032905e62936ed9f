"""Which neighbours does a node draw?

[Algorithm] All edges where count >= degree. Without replacement: Floyd's sampling (draw from ``[0, j]``, j included)
    while ``count**2 <= 8 * degree`` or ``count <= 64``, else Knuth's selection sampling (Algorithm S), which keeps
    stored order. With replacement: independent draws. Draws are a pure function of (rng_seed, key, turn).
    Source: Bentley, Floyd, "A sample of brilliance", CACM 1987; Knuth, TAOCP 2, 3.4.2.
[Cost] O(min(count**2, degree)) per node, two cache misses for the node's range and one per neighbour; both are
    prefetched: the range ``RANGE_AHEAD`` nodes ahead, the neighbours ``READ_BEHIND`` nodes before they are read.
[Not chosen] A permutation of all edges of a node: O(degree) memory. Sampling with replacement in disguise: a published
    sampler does it and calls it random.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import draw_below, node_stream, tree_stream
from hopstream.kernels.memory import array_at, find_part, prefetch_address

RANGE_AHEAD = 16
READ_BEHIND = 8
FLOYD_ALWAYS = 64
INT64_BYTES = 8
MAX_TAKEN = 0x7FFFFFFF
TOO_MANY = -(1 << 62)


@kernel
def edge_ranges(
    ids: np.ndarray, offsets: np.ndarray, indptrs: np.ndarray, indices: np.ndarray, count: int, is_replacing: bool,
    parts: np.ndarray, starts: np.ndarray, degrees: np.ndarray, counts: np.ndarray,
) -> int:  # fmt: skip
    """Find each node's part and edge range, and how many neighbours it will draw.

    Args:
        ids: int64[n], ids of nodes to expand.
        offsets: int64[num_parts + 1], id ranges of the nodes' type.
        indptrs: int64[num_parts, 2], address table of int64 ``indptr`` arrays.
        indices: int64[num_parts, 2], address table of ``indices``; only the lengths are used.
        count: Neighbours per node; -1 means all.
        is_replacing: Draw with replacement.
        parts: int32[n], out: the part of each node.
        starts: int64[n], out: position of its first edge in the part's ``indices``.
        degrees: int64[n], out: its number of edges.
        counts: int32[n], out: neighbours it will draw.

    Returns:
        The sum of ``counts``; or ``-1 - i`` where the range of ``ids[i]`` lies outside its part's ``indices``, as it
        does in a damaged file; or ``TOO_MANY`` where a node would draw more than an int32 counts.
    """
    num_ids = len(ids)
    total = 0
    for i in range(num_ids + RANGE_AHEAD):
        if i < num_ids:
            part = find_part(offsets, ids[i])
            parts[i] = part
            prefetch_address(indptrs[part, 0] + (ids[i] - offsets[part]) * INT64_BYTES)
        j = i - RANGE_AHEAD
        if j >= 0:
            part = np.int64(parts[j])
            indptr = array_at(indptrs[part, 0], indptrs[part, 1], np.int64)
            row = np.uint64(ids[j] - offsets[part])
            start = indptr[row]
            degree = indptr[row + np.uint64(1)] - start
            if start < 0 or degree < 0 or start + degree > indices[part, 1]:
                return -1 - j
            taken = degree
            if count >= 0 and (degree > count or (is_replacing and degree > 0)):
                taken = np.int64(count)
            if taken > MAX_TAKEN:
                return TOO_MANY
            starts[j] = start
            degrees[j] = degree
            counts[j] = taken
            total += taken
    return total


@njit(inline="always")
def draw_positions(
    stream: np.uint64, start: int, degree: int, count: int, is_replacing: bool, positions: np.ndarray, first: int
) -> None:
    """Write the edge positions that one node draws to ``positions[first:first + count]``."""
    if is_replacing:
        for turn in range(count):
            positions[np.uint64(first + turn)] = start + np.int64(draw_below(stream, turn, degree))
    elif count >= degree:
        for turn in range(count):
            positions[np.uint64(first + turn)] = start + turn
    elif count <= FLOYD_ALWAYS or count * count <= 8 * degree:
        for turn in range(count):
            last = degree - count + turn
            position = start + np.int64(draw_below(stream, turn, last + 1))
            for earlier in range(first, first + turn):
                if positions[np.uint64(earlier)] == position:
                    position = start + last
                    break
            positions[np.uint64(first + turn)] = position
    else:
        taken = 0
        for turn in range(degree):
            if np.int64(draw_below(stream, turn, degree - turn)) < count - taken:
                positions[np.uint64(first + taken)] = start + turn
                taken += 1
                if taken == count:
                    break


# Inlined functions that are called under a condition take addresses, not arrays: numba counts references to an array at
# every such call, which made drawing 1.5 times as slow.


@njit(inline="always")
def prefetch_key(row: int, keys: int, num_keys: int) -> None:
    """Ask for the key of a row of the part whose keys are at an address; with 0 keys, ids are keys."""
    if num_keys > 0:
        prefetch_address(keys + row * INT64_BYTES)


@njit(inline="always")
def stream_of(identifier: int, row: int, keys: int, num_keys: int, rng_seed: np.uint64) -> np.uint64:
    """The stream of draws of a node, which follows from its key; arguments as for ``prefetch_key``."""
    key = identifier
    if num_keys > 0:
        key = array_at(keys, num_keys, np.int64)[np.uint64(row)]
    return node_stream(rng_seed, key)


@kernel
def draw_neighbors(
    ids: np.ndarray, trees: np.ndarray, offsets: np.ndarray, keys: np.ndarray, indices: np.ndarray,
    rng_seed: np.uint64, replaces: bool, is_drawn: bool, parts: np.ndarray, starts: np.ndarray, degrees: np.ndarray,
    counts: np.ndarray, edge_offsets: np.ndarray, neighbor_ids: np.ndarray, edge_ids: np.ndarray,
) -> None:  # fmt: skip
    """Draw each node's neighbours, or only read those drawn; the ranges come from ``edge_ranges``.

    Args:
        ids: int64[n], ids of nodes to expand.
        trees: int64[n], the tree in which each is expanded; or int64[0] for one tree.
        offsets: int64[num_parts + 1], id ranges of the nodes' type.
        keys: int64[num_parts, 2], address table of int64 key arrays; a length of 0 means that id equals key.
        indices: int64[num_parts, 2], address table of ``indices`` in the dtype of ``neighbor_ids``.
        rng_seed: uint64, the seed of this batch and op.
        replaces: Draw with replacement; never where all edges are wanted.
        is_drawn: Nothing is drawn any more: ``edge_ids`` holds the positions that ``draw_chosen`` drew.
        parts: int32[n] of ``edge_ranges``.
        starts: int64[n] of ``edge_ranges``.
        degrees: int64[n] of ``edge_ranges``.
        counts: int32[n] of ``edge_ranges``.
        edge_offsets: int64[num_parts + 1], id ranges of the edges.
        neighbor_ids: uint32 or int64[sum(counts)], out.
        edge_ids: int64[sum(counts)], out, and in where they are drawn: ids of the edges drawn.
    """
    num_ids = len(ids)
    drawn = 0
    read = 0
    item_bytes = neighbor_ids.itemsize
    has_trees = len(trees) > 0
    for i in range(num_ids + READ_BEHIND):
        if i + RANGE_AHEAD < num_ids:
            ahead = i + RANGE_AHEAD
            part = np.int64(parts[ahead])
            prefetch_key(ids[ahead] - offsets[part], keys[part, 0], keys[part, 1])
        if i < num_ids:
            part = np.int64(parts[i])
            count = np.int64(counts[i])
            if not is_drawn:
                stream = stream_of(ids[i], ids[i] - offsets[part], keys[part, 0], keys[part, 1], rng_seed)
                if has_trees:
                    stream = tree_stream(stream, trees[i])
                draw_positions(stream, starts[i], degrees[i], count, replaces, edge_ids, drawn)
            for k in range(drawn, drawn + count):
                prefetch_address(indices[part, 0] + edge_ids[np.uint64(k)] * item_bytes)
            drawn += count
        j = i - READ_BEHIND
        if j >= 0:
            part = np.int64(parts[j])
            part_indices = array_at(indices[part, 0], indices[part, 1], neighbor_ids.dtype)
            for k in range(read, read + np.int64(counts[j])):
                position = edge_ids[np.uint64(k)]
                neighbor_ids[np.uint64(k)] = part_indices[np.uint64(position)]
                edge_ids[np.uint64(k)] = position + edge_offsets[part]
            read += np.int64(counts[j])
