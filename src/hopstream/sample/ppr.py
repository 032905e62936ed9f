"""Samples the neighbourhoods of seeds by personalised PageRank.

All seeds of a batch are processed together, in rounds. A round pushes every node whose residual is large enough for its
degree. It fetches the neighbour lists that the batch lacks in one round trip of the store, each list once per batch.

Nodes of all types are numbered together, as slots, in the order of discovery. Orders and sums depend on that order
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.kernels import ppr as kernels
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.ppr import NOT_FETCHED, number_nodes, select_nodes
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr_settings import PPR, PPRPlan
from hopstream.sample.slots import ExcludedPairs, SlotMap
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import KEY, TREE_SHIFT, FetchRequest, SampleReply, SampleRequest, Store

ID_MASK = (1 << TREE_SHIFT) - 1
FIRST_CAPACITY = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchedLists:
    """Neighbour lists of one edge type that were fetched together.

    Attributes:
        slots: int64[n], the nodes of the lists.
        counts: int32[n], lengths of the lists.
        first: Position of the first list in ``KnownGraph.neighbors``.
        edge_ids: int64[counts.sum()], or None if they were not requested.
    """

    slots: IntArray
    counts: IntArray
    first: int
    edge_ids: IntArray | None


class KnownGraph:
    """Nodes and neighbour lists fetched for one batch; reused from batch to batch.

    Attributes:
        types: int32[>= num_slots], number of the node type of each slot.
        degrees: int64[>= num_slots], edges of each slot, over all followed edge types.
        lists: int64[>= num_slots, num_columns, 2], position of the first neighbour and number of neighbours, per
            followed edge type.
        neighbors: int64[>= all lists], slots of neighbours.
        fetched: Edge type to its lists, in the order in which they were fetched.
    """

    def __init__(self, store: Store, plan: PPRPlan, wants_edge_ids: bool) -> None:
        """Start empty, for a plan over ``store``."""
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
        """Number of known nodes."""
        return self._map.num_nodes

    def ids_of(self, slots: IntArray) -> IntArray:
        """Return int64[n], the ids of slots, each in its node type."""
        ids: IntArray = self._map.node_ids[slots] & ID_MASK
        return ids

    def begin(self, seeds: SeedNodes) -> dict[str, IntArray]:
        """Begin a batch with its seeds; return their slots by type: 0, 1, … by first occurrence."""
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
        """Fetch neighbour lists, then the degrees of the new nodes in them.

        Args:
            slots: int64[n], nodes.
            columns: int64[n], column of a followed edge type for each node; pairs are distinct.
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
        """Set type and degree of all nodes after the first ``num_known``, and mark their lists as not fetched."""
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
    """Copy the used part of an array to a new one of at least twice the length."""
    larger = np.empty((max(num_wanted, 2 * len(array), FIRST_CAPACITY), *array.shape[1:]), array.dtype)
    larger[:num_used] = array[:num_used]
    return larger


FloatArray = NDArray[np.float64]
NO_IDS: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPRNeighborhoods(Subgraph):
    """Neighbourhoods of some seeds.

    Nodes are the seeds, then their neighbours in order of first occurrence. On request there are edges: the fetched
    ones with both ends among the nodes.

    Attributes:
        edge_index: ``(seed type, "ppr", node type)`` to int64[2, n], slots of seeds and of their neighbours, by falling
            score for each seed.
        edge_attr: ``(seed type, "ppr", node type)`` to float64[n, 2 or 2 + 3 * channels]: score, proximity, and for
            each channel score, proximity and presence. Proximity is ``1 / (1 + hop)``.
    """

    edge_index: Mapping[EdgeType, IntArray]
    edge_attr: Mapping[EdgeType, FloatArray]


class _Walks:
    """Arrays of ``kernels/ppr.py`` that hold the nodes that walks reached; reused from batch to batch."""

    def __init__(self) -> None:
        self.walks: IntArray = np.empty((0, 4), np.int64)
        self.queue_counts: IntArray = np.empty(0, np.int64)
        self.next_counts: IntArray = np.empty(0, np.int64)
        self.queue: NDArray[np.int32] = np.empty(0, np.int32)
        self.next_queue: NDArray[np.int32] = np.empty(0, np.int32)
        self.used = 0
        self._allocate(1 << 12)

    def begin(self, num_seeds: int, num_channels: int, alpha: float) -> None:
        """Begin a batch with one walk per seed and channel."""
        num_walks = num_seeds * num_channels
        if num_walks * kernels.FIRST_CAPACITY > len(self.slots):
            self._allocate(num_walks * kernels.FIRST_CAPACITY)
        self.walks = np.empty((num_walks, 4), np.int64)
        self.queue_counts = np.zeros(num_walks, np.int64)
        self.next_counts = np.zeros(num_walks, np.int64)
        self.used = kernels.begin_walks(
            num_seeds, num_channels, alpha, self.walks, self.table, self.slots, self.masses, self.hops, self.marks,
            self.queue, self.queue_counts,
        )  # fmt: skip

    def end_round(self) -> None:
        """Make the next round's queue the current one."""
        self.queue, self.next_queue = self.next_queue, self.queue
        self.queue_counts, self.next_counts = self.next_counts, self.queue_counts
        self.next_counts[:] = 0

    def grow(self) -> None:
        """Double the arrays, and keep their content."""
        old = self._arrays()
        self._allocate(2 * len(self.slots))
        for smaller, larger in zip(old, self._arrays(), strict=True):
            larger[: len(smaller)] = smaller

    def _arrays(self) -> list[NDArray[Any]]:
        return [self.table, self.slots, self.masses, self.hops, self.marks, self.queue, self.next_queue]

    def _allocate(self, room: int) -> None:
        self.table = np.empty(2 * room, np.int32)
        self.slots = np.empty(room, np.int32)
        self.masses: FloatArray = np.empty((room, 2), np.float64)
        self.hops = np.empty(room, np.int32)
        self.marks = np.empty(room, np.uint8)
        self.queue = np.empty(room, np.int32)
        self.next_queue = np.empty(room, np.int32)


class PPRRunner:
    """Sampler of neighbourhoods over one store for many batches, in reused memory. Not thread-safe."""

    def __init__(self, store: Store, plan: PPRPlan, wants_edge_ids: bool = False) -> None:
        """Run a plan made for ``store``; find ids of sampled edges if ``wants_edge_ids``."""
        self._store = store
        self.plan = plan
        self._graph = KnownGraph(store, plan, wants_edge_ids and plan.settings.include_sampled_edges)
        self._walks = _Walks()

    def run(self, seeds: SeedNodes) -> PPRNeighborhoods:
        """Sample the neighbourhoods of some seeds.

        Args:
            seeds: Ids of the plan's seed types. A repeated seed gets a slot of its own; edges from other seeds lead to
                its first slot. ``rng_seed`` affects only lists that are cut to ``num_neighbors_per_hop``. Pairs in
                ``excluded`` are in no list, but they count in degrees.

        Raises:
            SettingsError: A walk exceeded ``max_rounds`` or ``max_nodes_touched``.
        """
        settings, graph, walks = self.plan.settings, self._graph, self._walks
        seed_slots = graph.begin(seeds)
        num_distinct = graph.num_slots
        walks.begin(num_distinct, self.plan.num_channels, settings.alpha)
        num_rounds = 0
        while walks.queue_counts.any():
            num_rounds += 1
            if num_rounds > settings.max_rounds:
                raise SettingsError(self._describe_endless(num_distinct))
            opens = settings.max_fetch_iterations is None or num_rounds <= settings.max_fetch_iterations
            if opens:
                graph.fetch(*self._wanted())
            self._push(opens)
            walks.end_round()
        kernels.settle_hops(
            self.plan.num_channels, self.plan.follows, graph.types, graph.lists, graph.neighbors, walks.walks,
            walks.table, walks.slots, walks.hops, walks.marks, walks.queue,
        )  # fmt: skip
        slots, attributes, counts = self._select(num_distinct)
        return self._assemble(slots, attributes, counts, seed_slots)

    def run_group(self, group: Iterable[SeedNodes]) -> Iterator[PPRNeighborhoods]:
        """Sample several batches one after the other; see ``run``."""
        return map(self.run, group)

    def _wanted(self) -> tuple[IntArray, IntArray]:
        """Return the slots and columns of the lists that this round needs and that are not fetched."""
        walks, graph, follows = self._walks, self._graph, self.plan.follows
        wanted = np.empty((2, int(walks.queue_counts.sum()) * follows.shape[2]), np.int64)
        num_wanted = kernels.collect_wanted(
            self.plan.num_channels, follows, graph.types, graph.lists, walks.walks, walks.slots, walks.queue,
            walks.queue_counts, wanted,
        )  # fmt: skip
        return wanted[0, :num_wanted], wanted[1, :num_wanted]

    def _push(self, opens: bool) -> None:
        """Run one round; grow the arrays when they are full."""
        settings, graph, walks = self.plan.settings, self._graph, self._walks
        walk = turn = 0
        while True:
            walk, turn, walks.used, reason = kernels.push_round(
                walk, turn, walks.used, self.plan.num_channels, graph.num_slots, settings.alpha,
                settings.alpha * settings.eps, opens, settings.max_nodes_touched, self.plan.follows, graph.types,
                graph.degrees, graph.lists, graph.neighbors, walks.walks, walks.table, walks.slots, walks.masses,
                walks.hops, walks.marks, walks.queue, walks.next_queue, walks.queue_counts, walks.next_counts,
            )  # fmt: skip
            if reason == kernels.DONE:
                return
            if reason == kernels.TOO_MANY:
                raise SettingsError(
                    f"the walk from {self._describe_seed(walk)} reached more than "
                    f"max_nodes_touched={settings.max_nodes_touched} nodes; use a larger eps (it is {settings.eps:g}) "
                    f"or alpha, fewer num_neighbors_per_hop (it is {settings.num_neighbors_per_hop}), or a larger "
                    "max_nodes_touched"
                )
            walks.grow()

    def _describe_endless(self, num_distinct: int) -> str:
        settings = self.plan.settings
        unfinished = np.flatnonzero(self._walks.queue_counts)
        num_seeds = len(set((unfinished // self.plan.num_channels).tolist()))
        return (
            f"walks of {num_seeds} of {num_distinct} seeds did not end in max_rounds={settings.max_rounds} (for "
            f"example from {self._describe_seed(int(unfinished[0]))}); use a larger eps (it is "
            f"{settings.eps:g}) or alpha (it is {settings.alpha:g}), or a larger max_rounds"
        )

    def _describe_seed(self, walk: int) -> str:
        """Return the type and key of a walk's seed, for messages."""
        slot = np.array([walk // self.plan.num_channels])
        seed_type = self.plan.node_types[self._graph.types[slot[0]]]
        request = FetchRequest(entity=seed_type, names=(KEY,), ids=self._graph.ids_of(slot))
        (answer,) = self._store.fetch([request])
        return f"{seed_type} {int(np.asarray(answer[KEY])[0])}"

    def _select(self, num_seeds: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Choose nodes: return their slots and attributes, seed by seed, and their number per seed."""
        plan, graph, walks = self.plan, self._graph, self._walks
        num_types = len(plan.node_types)
        is_per_type = plan.settings.limit_per_type
        num_groups = num_types if is_per_type else 1
        group_of_type = np.arange(num_types) if is_per_type else np.zeros(num_types, np.int64)
        reached = walks.walks[:, kernels.COUNT].reshape(num_seeds, -1).sum(axis=1)
        num_rows = int(np.minimum(reached, plan.settings.max_ppr_nodes * num_groups).sum())
        room = int(reached.max(initial=0))
        num_columns = 2 if plan.settings.typed_channel_ratios is None else 2 + 3 * plan.num_channels
        slots, attributes = np.empty(num_rows, np.int64), np.empty((num_rows, num_columns), np.float64)
        counts = np.empty(num_seeds, np.int64)
        nodes, groups, channels, hops, heap = np.empty((5, room), np.int64)
        is_pushed, is_chosen = np.empty((2, room), np.bool_)
        num_rows = select_nodes(
            plan.num_channels, plan.targets, plan.settings.max_ppr_nodes, plan.settings.enable_residual_topup,
            group_of_type, num_groups, graph.types, walks.walks, walks.slots, walks.masses, walks.hops,
            np.full(graph.num_slots, -1, np.int64), nodes, groups, channels, hops, np.empty(room), is_pushed,
            is_chosen, heap, slots, attributes, counts,
        )  # fmt: skip
        if num_columns > 2:
            kernels.describe_channels(
                plan.num_channels, plan.settings.enable_residual_topup, walks.walks, walks.table, walks.slots,
                walks.masses, walks.hops, slots[:num_rows], counts, attributes,
            )  # fmt: skip
        return slots[:num_rows], attributes[:num_rows], counts

    def _assemble(
        self, slots: IntArray, attributes: FloatArray, counts: IntArray, seed_slots: Mapping[str, IntArray]
    ) -> PPRNeighborhoods:
        """Number the chosen nodes per type, and repeat the rows of repeated seeds.

        Args:
            slots: int64[rows], chosen nodes of each distinct seed.
            attributes: float64[rows, …], their attributes.
            counts: int64[num_distinct], rows of each distinct seed.
            seed_slots: Seed type to int64[n], the slot of each seed.
        """
        plan, graph = self.plan, self._graph
        occurrences = np.concatenate(list(seed_slots.values()))
        places = np.concatenate([np.arange(len(own), dtype=np.int64) for own in seed_slots.values()])
        rows = _ranges_of(counts, occurrences)
        slots, attributes = slots[rows], attributes[rows]
        row_slots, seeds = (np.repeat(of, counts[occurrences]) for of in (occurrences, places))
        numbers = np.full(graph.num_slots, -1, np.int64)
        numbers[occurrences[::-1]] = places[::-1]  # the first occurrence is written last
        type_counts = np.array([len(seed_slots.get(t, ())) for t in plan.node_types], np.int64)
        new_slots = np.empty(len(slots), np.int64)
        new_slots = new_slots[: number_nodes(slots, graph.types, numbers, type_counts, new_slots)]
        neighbors = np.where(slots == row_slots, seeds, numbers[slots])
        seed_numbers, found_numbers = graph.types[row_slots], graph.types[slots]
        edge_index, edge_attr = {}, {}
        for own_type in plan.own_types:
            seed_number, found_number = (plan.node_types.index(own_type[end]) for end in (0, 2))
            is_own = (seed_numbers == seed_number) & (found_numbers == found_number)
            edge_index[own_type] = np.stack([seeds[is_own], neighbors[is_own]])
            edge_attr[own_type] = attributes[is_own]
        subgraph = self._subgraph(seed_slots, new_slots, numbers)
        # Without the prefix, the names would hide those of the graph's own edges.
        prefix = "ppr_" if plan.is_homogeneous and plan.settings.include_sampled_edges else ""
        return PPRNeighborhoods(
            node_ids=subgraph.node_ids, edges=subgraph.edges, num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges, edge_index=edge_index, edge_attr=edge_attr,
            attributes={
                t: {f"{prefix}edge_index": pairs, f"{prefix}edge_attr": edge_attr[t].astype(np.float32)}
                for t, pairs in edge_index.items()
            },
        )  # fmt: skip

    def _subgraph(self, seed_slots: Mapping[str, IntArray], new_slots: IntArray, numbers: IntArray) -> Subgraph:
        plan, graph = self.plan, self._graph
        new_types, new_ids = graph.types[new_slots], graph.ids_of(new_slots)
        node_ids = {t: new_ids[new_types == number] for number, t in enumerate(plan.node_types)}
        num_nodes = {t: [0, len(ids)] for t, ids in node_ids.items()}
        for seed_type, own in seed_slots.items():
            num_nodes[seed_type][0] = len(own)
            node_ids[seed_type] = np.concatenate([graph.ids_of(own), node_ids[seed_type]])
        edges = {t: self._sampled_edges(t, numbers) for t in self._store.schema.edges}
        return Subgraph(node_ids=node_ids, edges=edges, num_sampled_nodes=num_nodes, num_sampled_edges=None)

    def _sampled_edges(self, edge_type: EdgeType, numbers: IntArray) -> SampledEdges:
        """Return the fetched edges of one type with two numbered ends, in the order of fetching."""
        direction = self.plan.settings.direction
        ends, edge_ids = [np.empty((2, 0), np.int64)], [NO_IDS]
        for lists in self._graph.fetched.get(edge_type, ()):
            last = lists.first + int(lists.counts.sum())
            found = numbers[self._graph.neighbors[lists.first : last]]
            expanded = np.repeat(numbers[lists.slots], lists.counts)
            is_kept = (found >= 0) & (expanded >= 0)
            ends.append(np.stack([found[is_kept], expanded[is_kept]]))
            if lists.edge_ids is not None:
                edge_ids.append(lists.edge_ids[is_kept])
        found, expanded = np.concatenate(ends, axis=1)
        all_ids = np.concatenate(edge_ids)
        return SampledEdges(
            src_slots=found if direction == "in" else expanded, dst_slots=expanded if direction == "in" else found,
            edge_ids=all_ids if len(all_ids) == len(found) else None, direction=direction,
        )  # fmt: skip


def _ranges_of(counts: IntArray, groups: IntArray) -> IntArray:
    """Return the row numbers of the groups, concatenated; group ``i`` has ``counts[i]`` consecutive rows."""
    starts = offsets_of(counts)[groups]
    lengths: NDArray[Any] = counts[groups]
    shifts = starts - offsets_of(lengths)[:-1]
    rows: IntArray = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(shifts, lengths)
    return rows
