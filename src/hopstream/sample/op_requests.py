"""The requests of a plan's ops to the store, and the pairs of nodes between which no edge is followed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.plan import SampleOp, SamplePlan, SeedNodes
from hopstream.sample.slots import SlotMap
from hopstream.schema import Direction, EdgeType, timed_edge_types
from hopstream.store.contract import LaborSeeds, SampleRequest, Store

SLOT_BITS = 32
"""Bits that a slot has where two are one int64."""


class ExcludedPairs:
    """Pairs of nodes that no edge of one type may join, in the batch that they were given for."""

    def __init__(self, pairs: IntArray) -> None:
        """Take int64[2, m] ids of sources and of destinations, in any order and with repetitions."""
        self._ids = np.ascontiguousarray(pairs, np.int64)
        self._ends = SlotMap(), SlotMap()
        self._slots = np.empty_like(self._ids)
        for row, end in enumerate(self._ends):
            end.assign(self._ids[row], self._slots[row])

    def of_frontier(self, direction: Direction, ids: IntArray) -> IntArray | None:
        """int64[2, n], the pairs whose expanded node is among ``ids``: expanded node and neighbour; None for none."""
        expanded = 1 if direction == "in" else 0
        found = self._ends[expanded].find(ids)
        is_asked = np.zeros(self._ends[expanded].num_nodes, np.bool_)
        is_asked[found[found >= 0]] = True
        pairs = self._ids[[expanded, 1 - expanded]][:, is_asked[self._slots[expanded]]]
        return pairs if pairs.size else None

    def join(self, src_ids: IntArray, dst_ids: IntArray) -> NDArray[np.bool_]:
        """bool[n], whether the pair of a source and a destination is excluded."""
        src_slots, dst_slots = self._ends[0].find(src_ids), self._ends[1].find(dst_ids)
        is_known = (src_slots >= 0) & (dst_slots >= 0)
        return is_known & np.isin(pairs_of_slots(src_slots, dst_slots), pairs_of_slots(*self._slots))


def pairs_of_slots(first: IntArray, second: IntArray) -> IntArray:
    """int64[n], one number for each pair of slots."""
    return (first << SLOT_BITS) | second


def slots_of_pairs(pairs: IntArray) -> tuple[IntArray, IntArray]:
    """The slots, int64[n] and int64[n], that ``pairs_of_slots`` made one number of."""
    return pairs >> SLOT_BITS, pairs & ((1 << SLOT_BITS) - 1)


class OpRequests:
    """Requests of one plan over one store, for one batch of seeds after the other. One thread uses one."""

    def __init__(self, store: Store, plan: SamplePlan) -> None:
        """Work out what does not change from batch to batch."""
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
        """Edge type to the pairs of this batch."""

    def begin(self, seeds: SeedNodes) -> None:
        """Turn to another batch."""
        self._seeds = seeds
        self.excluded = {t: ExcludedPairs(pairs) for t, pairs in seeds.excluded.items() if pairs.size}

    def of_op(self, op: SampleOp, ids: IntArray, trees: IntArray | None) -> SampleRequest:
        """The request of an op.

        Args:
            op: The op.
            ids: int64[n], the nodes to expand.
            trees: int64[n], their trees, or None where the plan is not disjoint.
        """
        return SampleRequest(
            edge_type=op.edge_type,
            direction=op.direction,
            ids=ids,
            count=op.count,
            is_replacing=self._plan.settings.replace,
            rng_seed=self._seeds.rng_seed ^ self._salts[op.name],
            wants_edge_ids=self._plan.wants_edge_ids,
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
        """A request for all edges that some nodes have to some others.

        Args:
            edge_type: The edge type.
            direction: The direction in which it is read; see ``SamplePlan.directions_over``.
            ids: As for ``of_op``.
            trees: As there.
            candidates: int64[m], the other nodes, ascending and distinct: ids, or pairs where there are trees.
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
        """The batch's variates for one op; where hops depend on each other, for all that find the same node type."""
        labor, salt = self._seeds.labor, self._labor_salts[op.name]
        if labor is None:
            raise SettingsError(f"op {op.name!r} draws with strategy 'labor'; give the seeds of its variates as labor")
        return LaborSeeds(first=labor.first ^ salt, second=labor.second ^ salt, share=labor.share)
