"""The memory that a running plan fills, batch after batch."""

from __future__ import annotations

import numpy as np

from hopstream.arrays import IntArray
from hopstream.kernels.relabel import ENTRIES_PER_SLOT_SHIFT, SlotTable, assign_slots, look_up_slots
from hopstream.kernels.trees import unpack_pairs
from hopstream.store.contract import TREE_SHIFT

FIRST_CAPACITY = 1 << 13
SlotRange = tuple[int, int]


class SlotMap:
    """Ids to slots of one node type, reused from batch to batch.

    Attributes:
        node_ids: int64[>= num_nodes], the id of each slot.
        num_nodes: Slots in use.
        table: int64[capacity, 2], the hash table of ``kernels/relabel.py``.
        shift: 64 minus log2 of the capacity.
        generation: Mark of the entries of this batch.
    """

    def __init__(self) -> None:
        """Start small; the table grows with the batches it serves."""
        self._allocate(FIRST_CAPACITY)
        self.num_nodes = 0

    def reset(self) -> None:
        """Forget all ids, at no cost."""
        self.generation += 1
        self.num_nodes = 0

    def slot_table(self, slots: IntArray) -> SlotTable:
        """What kernels are given that write slots."""
        return SlotTable(self.table, self.shift, self.generation, self.node_ids, self.num_nodes, slots)

    def assign(self, ids: IntArray, slots: IntArray, done: int = 0) -> None:
        """Write the slot of each id from position ``done`` on."""
        while True:
            done, self.num_nodes = assign_slots(ids, done, self.slot_table(slots))
            if done == len(ids):
                return
            self._grow()

    def number(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Distinct ids in the order in which they first occur, and int64[n], the slot of each id among them.

        Both are new arrays. What the map held before is forgotten.
        """
        self.reset()
        slots = np.empty(len(ids), np.int64)
        self.assign(ids, slots)
        return self.ids().copy(), slots

    def find(self, ids: IntArray) -> IntArray:
        """int64[n], the slot of each id, -1 where it has none."""
        slots = np.empty(len(ids), np.int64)
        look_up_slots(ids, self.table, self.shift, self.generation, slots)
        return slots

    def ids(self) -> IntArray:
        """int64[num_nodes], the id of each slot; valid until the next reset."""
        return self.node_ids[: self.num_nodes]

    def trees(self) -> IntArray | None:
        """int64[num_nodes], the tree of each slot; None where nodes are of no tree."""
        return None

    def _allocate(self, capacity: int) -> None:
        self.table = np.zeros((capacity, 2), np.int64)
        self.shift = np.uint64(64 - (capacity.bit_length() - 1))
        self.generation = 1
        self.node_ids: IntArray = np.empty(capacity >> ENTRIES_PER_SLOT_SHIFT, np.int64)

    def _grow(self) -> None:
        known = self.node_ids[: self.num_nodes]
        self._allocate(2 * len(self.table))
        scratch = np.empty(len(known), np.int64)
        assign_slots(known, 0, self.slot_table(scratch)._replace(num_nodes=0))


class TreeSlotMap(SlotMap):
    """Nodes of trees to slots of one node type: ``node_ids`` are pairs, ``tree << TREE_SHIFT | id``."""

    def __init__(self) -> None:
        """Start small."""
        super().__init__()
        self._unpacked: IntArray = np.empty((2, 0), np.int64)
        self._num_unpacked = 0

    def reset(self) -> None:
        """Forget all pairs, at no cost."""
        super().reset()
        self._num_unpacked = 0

    def ids(self) -> IntArray:
        """int64[num_nodes], the id of each slot, without its tree."""
        ids: IntArray = self._up_to_date()[0]
        return ids

    def trees(self) -> IntArray:
        """int64[num_nodes], the tree of each slot."""
        trees: IntArray = self._up_to_date()[1]
        return trees

    def _up_to_date(self) -> IntArray:
        """int64[2, num_nodes], ids and trees; every pair is unpacked once."""
        first, last = self._num_unpacked, self.num_nodes
        if last > self._unpacked.shape[1]:
            unpacked = np.empty((2, len(self.node_ids)), np.int64)
            unpacked[:, :first] = self._unpacked[:, :first]
            self._unpacked = unpacked
        ids, trees = self._unpacked
        unpack_pairs(self.node_ids[first:last], TREE_SHIFT, ids[first:last], trees[first:last])
        self._num_unpacked = last
        return self._unpacked[:, :last]


class EdgeBuffer:
    """Edges of one type while a plan runs, reused from batch to batch.

    Attributes:
        slots: int64[2, >= num_edges], source slots and destination slots.
        edge_ids: int64[>= num_edges].
        num_edges: Edges drawn so far.
    """

    def __init__(self) -> None:
        """Start empty; the buffer grows with the batches it serves."""
        self.slots: IntArray = np.empty((2, 0), np.int64)
        self.edge_ids: IntArray = np.empty(0, np.int64)
        self.num_edges = 0

    def reserve(self, num_edges: int) -> None:
        """Make room for more edges."""
        wanted = self.num_edges + num_edges
        if wanted > self.slots.shape[1]:
            slots = np.empty((2, max(wanted, 2 * self.slots.shape[1])), np.int64)
            slots[:, : self.num_edges] = self.slots[:, : self.num_edges]
            edge_ids = np.empty(slots.shape[1], np.int64)
            edge_ids[: self.num_edges] = self.edge_ids[: self.num_edges]
            self.slots, self.edge_ids = slots, edge_ids

    def append(self, src_slots: IntArray, dst_slots: IntArray, edge_ids: IntArray | None) -> None:
        """Add edges that are in arrays already; edge ids are left open where they are None."""
        self.reserve(len(src_slots))
        first, last = self.num_edges, self.num_edges + len(src_slots)
        self.slots[0, first:last], self.slots[1, first:last] = src_slots, dst_slots
        if edge_ids is not None:
            self.edge_ids[first:last] = edge_ids
        self.num_edges = last
