"""Which memory does a running plan fill, batch after batch?"""

from __future__ import annotations

import numpy as np

from hopstream.arrays import IntArray
from hopstream.kernels.relabel import assign_slots

FIRST_CAPACITY = 1 << 12
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

    def assign(self, ids: IntArray, slots: IntArray, done: int = 0) -> None:
        """Write the slot of each id from position ``done`` on."""
        while True:
            done, self.num_nodes = assign_slots(
                ids, done, self.table, self.shift, self.generation, self.node_ids, self.num_nodes, slots
            )
            if done == len(ids):
                return
            self._grow()

    def _allocate(self, capacity: int) -> None:
        self.table = np.zeros((capacity, 2), np.int64)
        self.shift = np.uint64(64 - (capacity.bit_length() - 1))
        self.generation = 1
        self.node_ids: IntArray = np.empty(capacity // 2, np.int64)

    def _grow(self) -> None:
        known = self.node_ids[: self.num_nodes]
        self._allocate(2 * len(self.table))
        scratch = np.empty(len(known), np.int64)
        assign_slots(known, 0, self.table, self.shift, self.generation, self.node_ids, 0, scratch)


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
