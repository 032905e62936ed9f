"""Maps ids to slots of a subgraph, and packs a tree and an id into one number.

[Algorithm] One open-addressing hash table per node type and batch: a power of two of (id, generation and slot) pairs
    in one array, linear probing. A new batch only raises the generation, so the table is never cleared. The caller
    grows the table when the kernel reports that it is full; it starts from the size of earlier batches, not from the
    worst case. A table is full when a quarter of its entries are in use: with a half, longer probes and mispredicted
    branches made relabelling trees 1.2 times as slow.
[Cost] One cache miss per id, prefetched ``PROBE_AHEAD`` ids ahead.
[Not chosen] A dense map over the global id space: one access, but memory is then sized by the whole graph, per thread.

[Algorithm] A node of a tree is ``tree << tree_shift | id``, one int64, so that the same kernels relabel ids and pairs.
[Cost] One pass over the data, at the speed of memory.
[Not chosen] A table keyed by two columns: every probe would compare twice as much, and each relabelling kernel would
    need two versions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import prefetch_address


@kernel
def pack_neighbors(
    neighbor_ids: np.ndarray, counts: np.ndarray, trees: np.ndarray, tree_shift: int, pairs: np.ndarray
) -> None:
    """Write the pair of each neighbour; a neighbour has the tree of its expanded node.

    Args:
        neighbor_ids: uint32 or int64[sum(counts)], grouped by expanded node.
        counts: int32[n], neighbours of each node.
        trees: int64[n], the tree of each node.
        tree_shift: Bits of an id.
        pairs: int64[sum(counts)], out.
    """
    written = 0
    for i in range(len(counts)):
        tree = trees[i] << tree_shift
        for _ in range(counts[i]):
            pairs[np.uint64(written)] = tree | np.int64(neighbor_ids[np.uint64(written)])
            written += 1


@kernel
def unpack_pairs(pairs: np.ndarray, tree_shift: int, ids: np.ndarray, trees: np.ndarray) -> None:
    """Write the id and the tree of each pair.

    Args:
        pairs: int64[n].
        tree_shift: Bits of an id.
        ids: int64[n], out.
        trees: int64[n], out.
    """
    mask = (np.int64(1) << tree_shift) - 1
    for i in range(len(pairs)):
        ids[i] = pairs[i] & mask
        trees[i] = pairs[i] >> tree_shift


@kernel
def group_by_tree(trees: np.ndarray, offsets: np.ndarray, order: np.ndarray, places: np.ndarray) -> None:
    """Group items by their tree, in original order inside a tree.

    [Algorithm] A counting sort.

    Args:
        trees: int64[n], in ``[0, num_trees)``.
        offsets: int64[num_trees + 1], out: tree ``t`` has ``order[offsets[t]:offsets[t + 1]]``.
        order: int64[n], out: items.
        places: int64[n], out: the place of each item inside its tree.
    """
    offsets[:] = 0
    for i in range(len(trees)):
        tree = trees[i]
        places[i] = offsets[tree + 1]
        offsets[tree + 1] += 1
    for tree in range(len(offsets) - 1):
        offsets[tree + 1] += offsets[tree]
    for i in range(len(trees)):
        order[offsets[trees[i]] + places[i]] = i


PROBE_AHEAD = 16
ENTRY_BYTES = 16
ENTRIES_PER_SLOT_SHIFT = 2
"""A table has four entries per slot."""
SLOT_BITS = np.int64(32)
SLOT_MASK = np.int64(0xFFFFFFFF)


class SlotTable(NamedTuple):
    """Hash table of the slots of a batch's nodes of one type.

    Attributes:
        table: int64[capacity, 2], capacity a power of two: id, and generation << 32 | slot.
        shift: uint64, 64 minus log2 of the capacity.
        generation: Entries of any other generation are empty.
        node_ids: int64[>= capacity / 4], in and out: the id of each slot.
        num_nodes: Slots in use at the start.
        slots: int64[n], out.
    """

    table: np.ndarray
    shift: np.uint64
    generation: int
    node_ids: np.ndarray
    num_nodes: int
    slots: np.ndarray


@inlined
def _home(identifier: np.int64, shift: np.uint64) -> np.uint64:
    """Return the first entry to probe: the upper bits of a Fibonacci hash."""
    return (np.uint64(identifier) * GOLDEN) >> shift


@inlined
def prefetch_slot(identifier: np.int64, base: np.int64, shift: np.uint64) -> None:
    """Prefetch the first entry of an id's probe, in a table at address ``base``."""
    prefetch_address(base + np.int64(_home(identifier, shift)) * ENTRY_BYTES)


@inlined
def find_slot(
    identifier: np.int64, table: np.ndarray, shift: np.uint64, generation: int, node_ids: np.ndarray, num_nodes: int
) -> np.int64:
    """Find the slot of an id; a new id is added with slot ``num_nodes``.

    Returns -1, and adds nothing, if the id is new and the table is full. Arguments as in ``SlotTable``.
    """
    mask = np.uint64(len(table) - 1)
    probe = _home(identifier, shift)
    while True:
        mark = table[probe, 1]
        if (mark >> SLOT_BITS) != generation:
            if num_nodes >= len(table) >> ENTRIES_PER_SLOT_SHIFT:
                return np.int64(-1)
            table[probe, 0] = identifier
            table[probe, 1] = (np.int64(generation) << SLOT_BITS) | np.int64(num_nodes)
            node_ids[np.uint64(num_nodes)] = identifier
            return np.int64(num_nodes)
        if table[probe, 0] == identifier:
            return mark & SLOT_MASK
        probe = (probe + np.uint64(1)) & mask


@kernel
def assign_slots(ids: np.ndarray, first: int, slot_table: SlotTable) -> tuple[int, int]:
    """Write the slot of each id; new ids get the next free slots.

    Args:
        ids: uint32 or int64[n].
        first: Position to begin at in ``ids``; earlier ids are finished.
        slot_table: The table, with the output array.

    Returns:
        done: Number of ``ids`` with slots; fewer than n if the table became full.
        num_nodes: Slots in use at the end.
    """
    table, shift, generation = slot_table.table, slot_table.shift, slot_table.generation
    node_ids, slots, num_nodes = slot_table.node_ids, slot_table.slots, slot_table.num_nodes
    num_ids = len(ids)
    base = np.int64(table.ctypes.data)
    for i in range(first, num_ids + PROBE_AHEAD):
        if i < num_ids:
            prefetch_slot(np.int64(ids[np.uint64(i)]), base, shift)
        j = i - PROBE_AHEAD
        if j >= first:
            slot = find_slot(np.int64(ids[np.uint64(j)]), table, shift, generation, node_ids, num_nodes)
            if slot < 0:
                return j, num_nodes
            num_nodes += np.int64(slot == num_nodes)
            slots[np.uint64(j)] = slot
    return num_ids, num_nodes


@kernel
def look_up_slots(ids: np.ndarray, table: np.ndarray, shift: np.uint64, generation: int, slots: np.ndarray) -> None:
    """Write the slot of each id, or -1 for ids without a slot; no id is added.

    Args:
        ids: int64[n].
        table: As in ``SlotTable``.
        shift: As in ``SlotTable``.
        generation: As in ``SlotTable``.
        slots: int64[n], out.
    """
    num_ids = len(ids)
    base = np.int64(table.ctypes.data)
    mask = np.uint64(len(table) - 1)
    for i in range(num_ids + PROBE_AHEAD):
        if i < num_ids:
            prefetch_slot(np.int64(ids[np.uint64(i)]), base, shift)
        j = i - PROBE_AHEAD
        if j >= 0:
            identifier = np.int64(ids[np.uint64(j)])
            probe = _home(identifier, shift)
            slot = np.int64(-1)
            while (table[probe, 1] >> SLOT_BITS) == generation:
                if table[probe, 0] == identifier:
                    slot = table[probe, 1] & SLOT_MASK
                    break
                probe = (probe + np.uint64(1)) & mask
            slots[np.uint64(j)] = slot


@kernel
def repeat_slots(first_slot: int, counts: np.ndarray, out: np.ndarray, written: int) -> int:
    """Write each slot ``first_slot + i`` ``counts[i]`` times to ``out``, from ``written`` on.

    Args:
        first_slot: The slot of the first count.
        counts: int32[n].
        out: int64[>= written + sum(counts)], out.
        written: Position to begin at in ``out``.

    Returns:
        Position after the last written slot.
    """
    for i in range(len(counts)):
        for _ in range(counts[i]):
            out[np.uint64(written)] = first_slot + i
            written += 1
    return written
