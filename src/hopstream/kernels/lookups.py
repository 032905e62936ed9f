"""Lookups of rows: newest rows of nodes in appended parts, edges between two nodes, and local ids.

[Algorithm] A bit for each node says whether it has a newer row, and beside each word of 64 bits stands how many nodes
    have one before it. So the rank of the node among these is known from one place, and its newest row is the entry of
    that rank in a list. Words are asked for ``AHEAD`` nodes ahead.
[Cost] Two bits per node, eight bytes per node with a newer row; one cache miss per node, and one more where it has one.
[Not chosen] A binary search in the rows of each overlay: batches over one delta took 1.5 times as long, and over four
    three times, against 1.1 and 1.5 times. A table of the newest row of every node: 8 bytes for each.

[Algorithm] A scan of the node's row for the first edge to the neighbour, ``SCANNED`` edges at once by vector
    instructions. The start of every row is asked for ``RANGE_AHEAD`` pairs ahead.
[Cost] O(position of the edge), O(degree) if there is none; rows stream at the speed of memory.
[Not chosen] Rows sorted by neighbour, or a hash table of all edges: stored order is the order of time, and the table
    would be as large as the graph.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import RANGE_AHEAD, AddressTables, Nodes
from hopstream.kernels.memory import array_at, find_part, prefetch_address

AHEAD = 16
SCANNED = 256
WORD_BITS = 64
ENTRY_BYTES = 16
ONE = np.uint64(1)
LAST_BITS = np.uint64(63)
WORD_SHIFT = np.uint64(6)


@inlined
def _count_bits(word: np.uint64) -> np.uint64:
    """How many bits are set; Source: Warren, Hacker's Delight, 5-1."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def mark_nodes(ids: np.ndarray, marks: np.ndarray) -> None:
    """Mark nodes, and count those before each word.

    Args:
        ids: int64[n], ids of nodes, distinct.
        marks: uint64[num_words, 2], zeros, out: bits of 64 nodes, and how many nodes are marked before them.
    """
    for i in range(len(ids)):
        node = np.uint64(ids[i])
        marks[node >> WORD_SHIFT, 0] |= ONE << (node & LAST_BITS)
    total = np.uint64(0)
    for word in range(len(marks)):
        marks[word, 1] = total
        total += _count_bits(marks[word, 0])


@kernel
def find_newest(ids: np.ndarray, marks: np.ndarray, newest: np.ndarray, found: np.ndarray) -> None:
    """Write the id of each node's newest row: its own, or that of a row of an overlay.

    Args:
        ids: int64[n], ids of nodes.
        marks: uint64[num_words, 2] of ``mark_nodes``.
        newest: int64[number of marked nodes], the id of the newest row of each, in the order of the nodes.
        found: int64[n], out.
    """
    base = np.int64(marks.ctypes.data)
    num_ids = len(ids)
    for i in range(num_ids + AHEAD):
        if i < num_ids:
            prefetch_address(base + (ids[i] >> 6) * ENTRY_BYTES)
        j = i - AHEAD
        if j >= 0:
            node = np.uint64(ids[j])
            bits = marks[node >> WORD_SHIFT, 0]
            bit = ONE << (node & LAST_BITS)
            found[j] = ids[j]
            if bits & bit:
                found[j] = newest[marks[node >> WORD_SHIFT, 1] + _count_bits(bits & (bit - ONE))]


@kernel
def first_unowned(ids: np.ndarray, offsets: np.ndarray, is_present: np.ndarray) -> int:
    """The position of the first id that no present part owns, or -1.

    Args:
        ids: int64[n], any values.
        offsets: int64[num_parts + 1], id ranges.
        is_present: bool[num_parts].
    """
    num_present, highest = 0, np.uint64(0)
    for part in range(len(is_present)):
        num_present += is_present[part]
    if num_present == len(is_present):
        for i in range(len(ids)):  # without a way out, so that several are compared at once
            identifier = np.uint64(ids[i])  # a negative id is a high one
            highest = identifier if identifier > highest else highest
        if highest < np.uint64(offsets[-1]):
            return -1
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= offsets[-1] or not is_present[find_part(offsets, ids[i])]:
            return i
    return -1


@inlined
def _find_first(address: np.int64, length: np.int64, wanted: np.ndarray) -> np.int64:
    """The place of the first item at an address that equals ``wanted[0]``; -1 where none does."""
    for first in range(np.int64(0), length, SCANNED):
        block = array_at(address + first * wanted.itemsize, min(np.int64(SCANNED), length - first), wanted.dtype)
        num_equal = np.uint32(0)
        for k in range(len(block)):  # without a way out, so that several are compared at once
            num_equal += np.uint32(block[k] == wanted[0])
        if num_equal > 0:
            for k in range(len(block)):
                if block[k] == wanted[0]:
                    return np.int64(first + k)
    return np.int64(-1)


@kernel
def find_edges(tables: AddressTables, nodes: Nodes, neighbor_ids: np.ndarray, edge_ids: np.ndarray) -> None:
    """Find the first edge in stored order between each node and its neighbour.

    Args:
        tables: The parts.
        nodes: The nodes, with ranges of ``edge_ranges``.
        neighbor_ids: int64[n].
        edge_ids: int64[n], out: the edge's id, or -1 if there is none.
    """
    indices, edge_offsets = tables.indices, tables.edge_offsets
    parts, starts, degrees = nodes.parts, nodes.starts, nodes.degrees
    item_bytes = tables.item.itemsize
    num_ids = len(neighbor_ids)
    wanted = np.empty(1, tables.item.dtype)
    for i in range(num_ids + RANGE_AHEAD):
        if i < num_ids:
            prefetch_address(indices[np.int64(parts[i]), 0] + starts[i] * item_bytes)
        j = i - RANGE_AHEAD
        if j >= 0:
            part = np.int64(parts[j])
            wanted[0] = neighbor_ids[j]
            position = starts[j]
            if position < 0 or position + degrees[j] > indices[part, 1]:
                raise IndexError("a row lies outside its part")
            found = _find_first(indices[part, 0] + position * item_bytes, degrees[j], wanted)
            edge_ids[j] = -1 if found < 0 else position + found + edge_offsets[part]
