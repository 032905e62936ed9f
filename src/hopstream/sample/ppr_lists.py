"""Nodes, degrees and neighbour lists that a batch of walks has fetched so far.

Nodes of all types are numbered together, as slots, in the order in which they are found. A list is asked for once per
batch, and all lists that a round needs are asked for in one round trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.dataset.book import ends_of
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.ppr import NOT_FETCHED
from hopstream.sample.op_requests import ExcludedPairs
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr_settings import PPR, PPRPlan
from hopstream.sample.slots import SlotMap
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import TREE_SHIFT, SampleReply, SampleRequest, Store

ID_MASK = (1 << TREE_SHIFT) - 1
FIRST_CAPACITY = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchedLists:
    """Neighbour lists of one edge type that were fetched together.

    Attributes:
        slots: int64[n], the nodes whose lists they are.
        counts: int32[n], their lengths.
        first: Where they begin in ``KnownGraph.neighbors``.
        edge_ids: int64[counts.sum()], or None where they were not asked for.
    """

    slots: IntArray
    counts: IntArray
    first: int
    edge_ids: IntArray | None


class KnownGraph:
    """What walks of one batch can see; reused from batch to batch.

    Attributes:
        types: int32[>= num_slots], number of the node type of each slot.
        degrees: int64[>= num_slots], edges of all types followed from it.
        lists: int64[>= num_slots, num_columns, 2], first neighbour and their number, per edge type followed.
        neighbors: int64[>= all lists], slots of neighbours.
        fetched: Edge type to the lists in the order in which they came.
    """

    def __init__(self, store: Store, plan: PPRPlan, wants_edge_ids: bool) -> None:
        """Know nothing of ``store`` yet."""
        self._store = store
        self._plan = plan
        self._wants_edge_ids = wants_edge_ids
        self._numbers = {node_type: number for number, node_type in enumerate(plan.node_types)}
        self._salts = {t: derive_seed(PPR, type_label(t), plan.settings.direction) for t in plan.edge_types}
        self._map = SlotMap()
        self._num_neighbors = 0
        self._rng_seed = 0
        self._excluded: dict[EdgeType, ExcludedPairs] = {}
        self.types = np.empty(0, np.int32)
        self.degrees: IntArray = np.empty(0, np.int64)
        self.lists: IntArray = np.empty((0, plan.follows.shape[2], 2), np.int64)
        self.neighbors: IntArray = np.empty(FIRST_CAPACITY, np.int64)
        self.fetched: dict[EdgeType, list[FetchedLists]] = {}

    @property
    def num_slots(self) -> int:
        """Nodes known."""
        return self._map.num_nodes

    def ids_of(self, slots: IntArray) -> IntArray:
        """int64[n] ids, in the types of the slots."""
        ids: IntArray = self._map.node_ids[slots] & ID_MASK
        return ids

    def begin(self, seeds: SeedNodes) -> dict[str, IntArray]:
        """Forget everything but the seeds, and return their slots by type: 0, 1, … by first occurrence."""
        self._map.reset()
        self._num_neighbors = 0
        self._rng_seed = seeds.rng_seed
        self._excluded = {t: ExcludedPairs(pairs) for t, pairs in seeds.excluded.items() if pairs.size}
        self.fetched = {edge_type: [] for edge_type in self._plan.edge_types}
        slots = {t: np.empty(len(seeds.ids[t]), np.int64) for t in self._plan.seed_types if t in seeds.ids}
        for node_type, own in slots.items():
            self._assign(node_type, seeds.ids[node_type], own)
        self._describe(0)
        return slots

    def fetch(self, slots: IntArray, columns: IntArray) -> None:
        """Fetch neighbour lists, then the degrees of the nodes that they bring.

        Args:
            slots: int64[n], nodes.
            columns: int64[n], which of the edge types followed from each; no pair twice.
        """
        types = self.types[slots]
        asked: list[tuple[EdgeType, int, IntArray]] = []
        for number, edge_types in enumerate(self._plan.followed):
            for column, edge_type in enumerate(edge_types):
                chosen = slots[(types == number) & (columns == column)]
                if len(chosen):
                    asked.append((edge_type, column, chosen))
        if not asked:
            return
        num_known = self.num_slots
        replies = self._store.sample([self._request(t, chosen) for t, _, chosen in asked])
        for (edge_type, column, chosen), reply in zip(asked, replies, strict=True):
            self._add_lists(edge_type, column, chosen, reply)
        self._describe(num_known)

    def _request(self, edge_type: EdgeType, slots: IntArray) -> SampleRequest:
        settings, ids, pairs = self._plan.settings, self.ids_of(slots), self._excluded.get(edge_type)
        return SampleRequest(
            edge_type=edge_type, direction=settings.direction, ids=ids, count=settings.num_neighbors_per_hop,
            rng_seed=self._rng_seed ^ self._salts[edge_type], wants_edge_ids=self._wants_edge_ids,
            excluded=None if pairs is None else pairs.of_frontier(settings.direction, ids),
        )  # fmt: skip

    def _add_lists(self, edge_type: EdgeType, column: int, slots: IntArray, reply: SampleReply) -> None:
        first, last = self._num_neighbors, self._num_neighbors + len(reply.neighbor_ids)
        if last > len(self.neighbors):
            self.neighbors = _grown(self.neighbors, first, last)
        found_type = ends_of(edge_type, self._plan.settings.direction)[1]
        self._assign(found_type, reply.neighbor_ids, self.neighbors[first:last])
        self.lists[slots, column, 0] = first + offsets_of(reply.counts)[:-1]
        self.lists[slots, column, 1] = reply.counts
        self._num_neighbors = last
        if self._plan.settings.include_sampled_edges:
            edge_ids = None if reply.edge_ids is None else np.array(reply.edge_ids)
            lists = FetchedLists(slots=slots, counts=np.array(reply.counts), first=first, edge_ids=edge_ids)
            self.fetched[edge_type].append(lists)

    def _assign(self, node_type: str, ids: IntArray, slots: IntArray) -> None:
        pairs = np.asarray(ids, np.int64) | np.int64(self._numbers[node_type] << TREE_SHIFT)
        self._map.assign(pairs, slots)

    def _describe(self, num_known: int) -> None:
        """Find type and degree of all nodes after the first ``num_known``; they have no lists yet."""
        num_slots = self.num_slots
        if num_slots > len(self.types):
            self.types, self.degrees, self.lists = (
                _grown(array, num_known, num_slots) for array in (self.types, self.degrees, self.lists)
            )
        pairs = self._map.node_ids[num_known:num_slots]
        types = self.types[num_known:num_slots]
        types[:] = pairs >> TREE_SHIFT
        self.lists[num_known:num_slots] = NOT_FETCHED, 0
        degrees = self.degrees[num_known:num_slots]
        degrees[:] = 0
        for number, edge_types in enumerate(self._plan.followed):
            is_of_type = types == number
            ids = pairs[is_of_type] & ID_MASK
            for edge_type in edge_types if len(ids) else ():
                degrees[is_of_type] += self._store.degrees(edge_type, self._plan.settings.direction, ids)


def _grown(array: NDArray[Any], num_used: int, num_wanted: int) -> NDArray[Any]:
    """An array of at least twice the length, with what is used of the old one."""
    larger = np.empty((max(num_wanted, 2 * len(array), FIRST_CAPACITY), *array.shape[1:]), array.dtype)
    larger[:num_used] = array[:num_used]
    return larger
