"""Lookups of rows: newest rows of nodes in appended parts, edges between two nodes, and local ids.

[Algorithm] Newest rows: a bitmap has one bit per node, set if the node has a newer row. Each word of 64 bits is stored
    beside the number of set bits before it. So one access gives the rank of a marked node, and the entry of this rank
    in a list is the id of its newest row. Words are prefetched ``AHEAD`` nodes ahead.
[Cost] Two bits per node, and eight bytes per node with a newer row. One cache miss per node, and a second one per node
    with a newer row.
[Not chosen] A binary search in the rows of each overlay: batches took 1.5 times as long with one delta and three times
    with four deltas, against 1.1 and 1.5 times with the bitmap. A table of the newest row of every node: 8 bytes each.

[Algorithm] Edges: a scan of the node's row for the first edge to the neighbour, ``SCANNED`` edges at once by vector
    instructions. The start of every row is prefetched ``RANGE_AHEAD`` pairs ahead. Long rows can have an index, a table
    with open addressing. An entry holds the position of an edge in its row and, in the remaining bits, a tag of the
    neighbour's hash. The tag keeps most entries of other neighbours from being compared with the row.
[Cost] O(position of the edge), or O(degree) without an edge; rows stream at the speed of memory. With an index, two
    cache misses per edge that exists and one per edge that does not; 6 bytes per edge of an indexed row.
[Not chosen] Rows sorted by neighbour: stored order is the order of time. An index of all rows: it would be larger than
    the graph, and scans of short rows cost no more than the misses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import RANGE_AHEAD, AddressTables, Nodes, prefetch_row, view
from hopstream.kernels.hashing import GOLDEN
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
    """Return the number of set bits; Source: Warren, Hacker's Delight, 5-1."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def mark_nodes(ids: np.ndarray, marks: np.ndarray) -> None:
    """Mark nodes, and count the marked nodes before each word.

    Args:
        ids: int64[n], ids of nodes, distinct.
        marks: uint64[num_words, 2], zeros, out: bits of 64 nodes, and the number of marked nodes before them.
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
    """Write the id of each node's newest row: the node's own id, or the id of an overlay's row.

    Args:
        ids: int64[n], ids of nodes.
        marks: uint64[num_words, 2] of ``mark_nodes``.
        newest: int64[number of marked nodes], the id of each marked node's newest row, in the order of ids.
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
    """Return the position of the first id that no present part owns, or -1.

    Args:
        ids: int64[n], any values.
        offsets: int64[num_parts + 1], id ranges.
        is_present: bool[num_parts].
    """
    num_present, highest = 0, np.uint64(0)
    for part in range(len(is_present)):
        num_present += is_present[part]
    if num_present == len(is_present):
        for i in range(len(ids)):  # no early exit, so that the loop is vectorised
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
    """Return the position of the first item at an address that equals ``wanted[0]``; -1 if none does."""
    for first in range(np.int64(0), length, SCANNED):
        block = array_at(address + first * wanted.itemsize, min(np.int64(SCANNED), length - first), wanted.dtype)
        num_equal = np.uint32(0)
        for k in range(len(block)):  # no early exit, so that the loop is vectorised
            num_equal += np.uint32(block[k] == wanted[0])
        if num_equal > 0:
            for k in range(len(block)):
                if block[k] == wanted[0]:
                    return np.int64(first + k)
    return np.int64(-1)


class RowIndex(NamedTuple):
    """Index of the neighbours of long rows; ``LongRows`` owns its memory.

    Attributes:
        min_degree: Least number of edges of an indexed row.
        nodes: Address of int64[num_nodes, 2], a hash table: the id of a node, and the position of the first entry of
            its row. An empty place has the id -1.
        num_nodes: Places of the hash table, a power of two.
        entries: Address of the uint32 entries of all rows; 0 is an empty entry.
    """

    min_degree: int
    nodes: int
    num_nodes: int
    entries: int


NO_INDEX = RowIndex(np.iinfo(np.int64).max, 0, 0, 0)
HALF = np.uint64(32)
LOW_HALF = np.uint64(0xFFFFFFFF)
ENTRY_ITEM_BYTES = 4


@inlined
def _num_entries(degree: int) -> int:
    return degree + (degree >> 1) + 1


@inlined
def _first_entry(neighbor: int, num_entries: int) -> np.int64:
    return np.int64((((np.uint64(neighbor) * GOLDEN) >> HALF) * np.uint64(num_entries)) >> HALF)


@inlined
def _find_entry(entries: int, row: int, degree: int, neighbor: int, item: Any) -> tuple[np.int64, np.uint64, np.uint64]:
    """Find the entry of the first edge to a neighbour, or the empty entry that ends the search.

    Args:
        entries: Address of the row's entries.
        row: Address of the row.
        degree: Number of edges of the row.
        neighbor: The neighbour.
        item: Type of the row's items.

    Returns:
        The position of the entry; the entry without its tag, which is 0 if there is no edge; and the neighbour's tag.
    """
    num_entries = _num_entries(degree)
    table = array_at(entries, num_entries, np.uint32)
    neighbors = array_at(row, degree, item)
    mask = np.uint64(degree)
    for shift in (1, 2, 4, 8, 16):
        mask |= mask >> np.uint64(shift)
    tag = (np.uint64(neighbor) * GOLDEN) & LOW_HALF & ~mask
    place = _first_entry(neighbor, num_entries)
    while True:
        entry = np.uint64(table[np.uint64(place)])
        if entry == 0 or (entry & ~mask == tag and np.int64(neighbors[(entry & mask) - ONE]) == neighbor):
            return place, entry & mask, tag
        place = place + 1 if place + 1 < num_entries else 0


@kernel
def index_rows(tables: AddressTables, nodes: Nodes, places: np.ndarray, entries: np.ndarray) -> None:
    """Fill an index.

    Args:
        tables: The parts.
        nodes: The nodes of the rows, with ranges of ``edge_ranges``; rows are shorter than 2**31.
        places: int64[power of two, 2], in: -1 everywhere; out: ``nodes`` of ``RowIndex``. At least one place stays
            empty.
        entries: uint32[entries of all rows], in: 0 everywhere; out: ``entries`` of ``RowIndex``.
    """
    mask = np.uint64(len(places) - 1)
    written = np.int64(0)
    for i in range(len(nodes.ids)):
        place = (np.uint64(nodes.ids[i]) * GOLDEN) >> HALF & mask
        while places[place, 0] >= 0:
            place = (place + ONE) & mask
        places[place, 0] = nodes.ids[i]
        places[place, 1] = written
        part, degree = np.int64(nodes.parts[i]), nodes.degrees[i]
        row = tables.indices[part, 0] + nodes.starts[i] * tables.item.itemsize
        neighbors = array_at(row, degree, tables.item.dtype)
        table = np.int64(entries.ctypes.data) + written * ENTRY_ITEM_BYTES
        for k in range(degree):
            at, number, tag = _find_entry(table, row, degree, np.int64(neighbors[k]), tables.item.dtype)
            if number == 0:
                entries[np.uint64(written + at)] = np.uint32(tag | np.uint64(k + 1))
        written += _num_entries(degree)


@inlined
def entries_of_row(index: RowIndex, node: int, degree: int) -> np.int64:
    """Return the address of the entries of a node's row; 0 if the row is not indexed."""
    if degree < index.min_degree:
        return np.int64(0)
    nodes = array_at(index.nodes, 2 * index.num_nodes, np.int64)
    mask = np.uint64(index.num_nodes - 1)
    place = (np.uint64(node) * GOLDEN) >> HALF & mask
    while nodes[place << ONE] != node:
        if nodes[place << ONE] < 0:
            return np.int64(0)
        place = (place + ONE) & mask
    return np.int64(index.entries + nodes[(place << ONE) | ONE] * ENTRY_ITEM_BYTES)


@inlined
def prefetch_pair(entries: int, row: int, degree: int, item_bytes: int, neighbor: int) -> None:
    """Prefetch the data that ``find_in_row`` reads first."""
    if entries == 0:
        prefetch_row(row, degree * item_bytes)
    else:
        prefetch_address(entries + _first_entry(neighbor, _num_entries(degree)) * ENTRY_ITEM_BYTES)


@inlined
def find_in_row(entries: int, row: int, degree: int, wanted: np.ndarray) -> np.int64:
    """Return the position in a row of the first edge to a neighbour; -1 if there is none.

    Args:
        entries: Address from ``entries_of_row``.
        row: Address of the row.
        degree: Number of edges of the row.
        wanted: uint32[1] or int64[1], the neighbour, in the dtype of the row.
    """
    if entries == 0:
        return _find_first(row, degree, wanted)
    return np.int64(_find_entry(entries, row, degree, np.int64(wanted[0]), wanted.dtype)[1]) - 1


@kernel
def find_edges(
    tables: AddressTables, index: RowIndex, nodes: Nodes, neighbor_ids: np.ndarray, edge_ids: np.ndarray
) -> None:
    """Find the first edge in stored order between each node and its neighbour.

    Args:
        tables: The parts.
        index: Index of the parts' long rows.
        nodes: The nodes, with ranges of ``edge_ranges``.
        neighbor_ids: int64[n].
        edge_ids: int64[n], out: the edge's id, or -1 if there is none.
    """
    indices, edge_offsets = tables.indices, tables.edge_offsets
    parts, starts, degrees = nodes.parts, nodes.starts, nodes.degrees
    item_bytes = tables.item.itemsize
    num_ids = len(neighbor_ids)
    memory = np.empty(1, tables.item.dtype)
    wanted = view(memory, tables.item.dtype)
    for i in range(num_ids + RANGE_AHEAD):
        if i < num_ids:
            row = indices[np.int64(parts[i]), 0] + starts[i] * item_bytes
            entries = entries_of_row(index, nodes.ids[i], degrees[i])
            prefetch_pair(entries, row, degrees[i], item_bytes, neighbor_ids[i])
        j = i - RANGE_AHEAD
        if j >= 0:
            part = np.int64(parts[j])
            wanted[0] = neighbor_ids[j]
            position = starts[j]
            if position < 0 or position + degrees[j] > indices[part, 1]:
                raise IndexError("a row lies outside its part")
            entries = entries_of_row(index, nodes.ids[j], degrees[j])
            found = find_in_row(entries, indices[part, 0] + position * item_bytes, degrees[j], wanted)
            edge_ids[j] = -1 if found < 0 else position + found + edge_offsets[part]
