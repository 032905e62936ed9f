"""Slot maps and edge buffers of a running plan, and the requests of its ops to the store."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.relabel import ENTRIES_PER_SLOT_SHIFT, SlotTable, assign_slots, look_up_slots, unpack_pairs
from hopstream.sample.plan import SampleOp, SamplePlan, SeedNodes
from hopstream.schema import Direction, EdgeType, timed_edge_types
from hopstream.store.contract import TREE_SHIFT, LaborSeeds, SampleRequest, Store

FIRST_CAPACITY = 1 << 13
SlotRange = tuple[int, int]


class SlotMap:
    """Map from ids to slots of one node type; reused from batch to batch.

    Attributes:
        node_ids: int64[>= num_nodes], the id of each slot.
        num_nodes: Slots in use.
        table: int64[capacity, 2], the hash table of ``kernels/relabel.py``.
        shift: 64 minus log2 of the capacity.
        generation: Number that marks the table's entries of this batch; other entries are free.
    """

    def __init__(self) -> None:
        """Start small; the table grows with the batches it serves."""
        self._allocate(FIRST_CAPACITY)
        self.num_nodes = 0

    def reset(self) -> None:
        """Remove all ids in constant time."""
        self.generation += 1
        self.num_nodes = 0

    def slot_table(self, slots: IntArray) -> SlotTable:
        """Make the argument of kernels that write slots."""
        return SlotTable(self.table, self.shift, self.generation, self.node_ids, self.num_nodes, slots)

    def assign(self, ids: IntArray, slots: IntArray, done: int = 0) -> None:
        """Write the slot of each id from position ``done`` on; new ids get new slots."""
        while True:
            done, self.num_nodes = assign_slots(ids, done, self.slot_table(slots))
            if done == len(ids):
                return
            self._grow()

    def number(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return the distinct ids in order of first occurrence, and int64[n], the slot of each id.

        Both are new arrays. The map is reset first.
        """
        self.reset()
        slots = np.empty(len(ids), np.int64)
        self.assign(ids, slots)
        return self.ids().copy(), slots

    def find(self, ids: IntArray) -> IntArray:
        """Return int64[n], the slot of each id; -1 if it has none."""
        slots = np.empty(len(ids), np.int64)
        look_up_slots(ids, self.table, self.shift, self.generation, slots)
        return slots

    def ids(self) -> IntArray:
        """Return int64[num_nodes], the id of each slot; valid until the next reset."""
        return self.node_ids[: self.num_nodes]

    def trees(self) -> IntArray | None:
        """Return int64[num_nodes], the tree of each slot; None without trees."""
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
    """Slot map of nodes in trees: ``node_ids`` holds pairs, ``tree << TREE_SHIFT | id``."""

    def __init__(self) -> None:
        """Start small."""
        super().__init__()
        self._unpacked: IntArray = np.empty((2, 0), np.int64)
        self._num_unpacked = 0

    def reset(self) -> None:
        """Remove all pairs in constant time."""
        super().reset()
        self._num_unpacked = 0

    def ids(self) -> IntArray:
        """Return int64[num_nodes], the id of each slot, without its tree."""
        ids: IntArray = self._up_to_date()[0]
        return ids

    def trees(self) -> IntArray:
        """Return int64[num_nodes], the tree of each slot."""
        trees: IntArray = self._up_to_date()[1]
        return trees

    def _up_to_date(self) -> IntArray:
        """Return int64[2, num_nodes], the ids and trees; unpacks each pair once."""
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
        edge_ids: int64[>= num_edges]; keys instead of ids if the plan wants keys.
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
        """Add edges; with None, their edge ids stay undefined."""
        self.reserve(len(src_slots))
        first, last = self.num_edges, self.num_edges + len(src_slots)
        self.slots[0, first:last], self.slots[1, first:last] = src_slots, dst_slots
        if edge_ids is not None:
            self.edge_ids[first:last] = edge_ids
        self.num_edges = last


SLOT_BITS = 32
"""Bits per slot in an int64 that holds two slots."""


class ExcludedPairs:
    """Pairs of nodes of one batch between which no edge of one type is followed."""

    def __init__(self, pairs: IntArray) -> None:
        """Take int64[2, m] ids of sources and destinations, in any order; they may repeat."""
        self._ids = np.ascontiguousarray(pairs, np.int64)
        self._ends = SlotMap(), SlotMap()
        self._slots = np.empty_like(self._ids)
        for row, end in enumerate(self._ends):
            end.assign(self._ids[row], self._slots[row])

    def of_frontier(self, direction: Direction, ids: IntArray) -> IntArray | None:
        """Return int64[2, n], expanded node and neighbour of pairs that expand nodes of ``ids``, or None."""
        expanded = 1 if direction == "in" else 0
        found = self._ends[expanded].find(ids)
        is_asked = np.zeros(self._ends[expanded].num_nodes, np.bool_)
        is_asked[found[found >= 0]] = True
        pairs = self._ids[[expanded, 1 - expanded]][:, is_asked[self._slots[expanded]]]
        return pairs if pairs.size else None

    def join(self, src_ids: IntArray, dst_ids: IntArray) -> NDArray[np.bool_]:
        """Return bool[n], whether pairs of source and destination are excluded."""
        src_slots, dst_slots = self._ends[0].find(src_ids), self._ends[1].find(dst_ids)
        is_known = (src_slots >= 0) & (dst_slots >= 0)
        return is_known & np.isin(pairs_of_slots(src_slots, dst_slots), pairs_of_slots(*self._slots))


def pairs_of_slots(first: IntArray, second: IntArray) -> IntArray:
    """Return int64[n], one number for each pair of slots."""
    return (first << SLOT_BITS) | second


def slots_of_pairs(pairs: IntArray) -> tuple[IntArray, IntArray]:
    """Split the numbers of ``pairs_of_slots`` into two slots, int64[n] each."""
    return pairs >> SLOT_BITS, pairs & ((1 << SLOT_BITS) - 1)


class OpRequests:
    """Maker of the requests of one plan over one store, batch by batch. Not thread-safe."""

    def __init__(self, store: Store, plan: SamplePlan) -> None:
        """Compute what is the same for all batches."""
        self._plan = plan
        self._salts = {op.name: op.rng_salt for op in plan.ops}
        self._labor_salts = {
            op.name: derive_seed("labor", op.found_type) if plan.settings.layer_dependency else op.rng_salt
            for op in plan.ops
            if op.strategy == "labor"
        }
        self._timed = {
            edge_type
            for edge_type, direction in plan.directions_over(store).items()
            if edge_type in timed_edge_types(store.schema, store.time_attr, direction)
        }
        self.excluded: dict[EdgeType, ExcludedPairs] = {}
        """Edge type to the excluded pairs of this batch."""

    def begin(self, seeds: SeedNodes) -> None:
        """Begin another batch."""
        self._seeds = seeds
        self.excluded = {t: ExcludedPairs(pairs) for t, pairs in seeds.excluded.items() if pairs.size}

    def of_op(self, op: SampleOp, ids: IntArray, trees: IntArray | None) -> SampleRequest:
        """Make the request of an op.

        Args:
            op: The op.
            ids: int64[n], the nodes to expand.
            trees: int64[n], their trees, or None if the plan is not disjoint.
        """
        return SampleRequest(
            edge_type=op.edge_type,
            direction=op.direction,
            ids=ids,
            count=op.count,
            is_replacing=self._plan.settings.replace,
            rng_seed=self._seeds.rng_seed ^ self._salts[op.name],
            wants_edge_ids=self._plan.wants_edge_ids,
            wants_edge_keys=self._plan.wants_edge_keys,
            strategy=op.strategy,
            trees=trees,
            times=None if trees is None else self._times(op.edge_type, trees),
            is_inclusive=self._plan.settings.time_inclusive,
            excluded=self._excluded(op.edge_type, op.direction, ids) if self.excluded else None,
            labor=self._labor(op) if op.strategy == "labor" else None,
        )

    def between(
        self, edge_type: EdgeType, direction: Direction, ids: IntArray, trees: IntArray | None, candidates: IntArray
    ) -> SampleRequest:
        """Make a request for all edges between given nodes and candidates.

        Args:
            edge_type: The edge type.
            direction: The direction in which it is read; see ``SamplePlan.directions_over``.
            ids: int64[n], the nodes to expand.
            trees: int64[n], their trees, or None if the plan is not disjoint.
            candidates: int64[m], possible neighbours, ascending and distinct: ids, or pairs of tree and id.
        """
        return SampleRequest(
            edge_type=edge_type,
            direction=direction,
            ids=ids,
            count=-1,
            wants_edge_ids=self._plan.wants_edge_ids,
            trees=trees,
            times=None if trees is None else self._times(edge_type, trees),
            is_inclusive=self._plan.settings.time_inclusive,
            excluded=self._excluded(edge_type, direction, ids) if self.excluded else None,
            candidates=candidates,
        )

    def _times(self, edge_type: EdgeType, trees: IntArray) -> IntArray | None:
        times = self._seeds.times
        return None if times is None or edge_type not in self._timed else times[trees]

    def _excluded(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray | None:
        pairs = self.excluded.get(edge_type)
        return None if pairs is None else pairs.of_frontier(direction, ids)

    def _labor(self, op: SampleOp) -> LaborSeeds:
        """Return seeds of an op's variates; with ``layer_dependency``, ops that find one node type share them."""
        labor, salt = self._seeds.labor, self._labor_salts[op.name]
        if labor is None:
            raise SettingsError(f"op {op.name!r} uses strategy 'labor' and has no random seeds; give them as labor=")
        return LaborSeeds(first=labor.first ^ salt, second=labor.second ^ salt, share=labor.share)
