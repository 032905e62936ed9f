"""Executor of sampling plans: samples hop by hop over a store, and relabels ids as slots.

Each level of a plan is one call of the store. Its replies are relabelled in plan order, so the result does not depend
on the parts' locations or on the order of replies. If all parts are local, each op is one fused kernel instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.errors import SettingsError
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.kernels.neighbors import draw_neighbors
from hopstream.kernels.relabel import pack_neighbors, repeat_slots
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan, SeedNodes
from hopstream.sample.slots import EdgeBuffer, OpRequests, SlotMap, SlotRange, TreeSlotMap
from hopstream.sample.subgraph_types import Inducer, Mirror
from hopstream.schema import EdgeType
from hopstream.store.contract import MAX_COUNT, MAX_TREES, TREE_SHIFT, LaborSeeds, SampleReply, SampleRequest, Store
from hopstream.store.drawing import DrawBuffers, draws_of, is_plain
from hopstream.store.local import LocalStore
from hopstream.store.requests import check_strategy


def check_plan(plan: SamplePlan, store: Store) -> None:
    """Refuse a plan that a store cannot run.

    Raises:
        UnknownNameError: The store's graph has no such node type or edge type.
        SettingsError: The dataset does not hold a direction, times, weights or keys that the plan needs.
    """
    for seed_type in plan.seed_types:
        store.schema.check_node_type(seed_type)
    for op in plan.ops:
        _check_op(op, plan, store)
    for edge_type in (*plan.reverse_types.keys(), *plan.reverse_types.values()):
        store.schema.check_edge_type(edge_type)
    if plan.settings.is_temporal and store.time_attr is None:
        raise SettingsError(
            "the plan is temporal, and the dataset was written without times; write the parts again with time_attr='…'"
        )


def _check_op(op: SampleOp, plan: SamplePlan, store: Store) -> None:
    store.schema.check_edge_type(op.edge_type)
    if op.direction not in store.directions:
        raise SettingsError(
            f"op {op.name!r} follows direction {op.direction!r}; the dataset holds "
            f"{'|'.join(store.directions)}; write the parts with direction {op.direction!r} or 'both'"
        )
    nothing = np.empty(0, np.int64)
    request = SampleRequest(
        edge_type=op.edge_type,
        direction=op.direction,
        ids=nothing,
        count=op.count,
        is_replacing=plan.settings.replace,
        strategy=op.strategy,
        trees=nothing if plan.settings.is_disjoint else None,
        labor=LaborSeeds(first=0) if op.strategy == "labor" else None,
    )
    check_strategy(store, request)


def check_seeds(plan: SamplePlan, seeds: SeedNodes) -> None:
    """Refuse seeds that do not fit a plan.

    Raises:
        SettingsError: Seeds have another type, or trees or times are missing, not expected, or invalid.
    """
    if not seeds.ids.keys() <= set(plan.seed_types):
        unknown = [t for t in seeds.ids if t not in plan.seed_types]
        raise SettingsError(f"seeds are of type {'|'.join(unknown)}; the plan's are {'|'.join(plan.seed_types)}")
    for name, given, is_wanted in (
        ("trees", seeds.trees, plan.settings.is_disjoint),
        ("times", seeds.times, plan.settings.is_temporal),
    ):
        if (given is not None) != is_wanted:
            kind = "disjoint" if name == "trees" else "temporal"
            raise SettingsError(
                f"the plan is {kind}, but the seeds have no {name}; give {name}"
                if is_wanted
                else f"the seeds have {name}, but the plan is not {kind}; leave {name} out, or make the plan {kind}"
            )
    if seeds.trees is not None:
        _check_trees(seeds.ids, seeds.trees, seeds.times)


def _check_trees(ids: Mapping[str, IntArray], trees: Mapping[str, IntArray], times: IntArray | None) -> None:
    for node_type, of_type in ids.items():
        given = trees.get(node_type)
        if given is None or given.dtype != np.int64 or given.shape != of_type.shape:
            got = "none" if given is None else f"{given.dtype}{list(given.shape)}"
            raise SettingsError(
                f"trees of {len(of_type)} seeds of type {node_type!r} are {got}; give int64[{len(of_type)}]"
            )
    every = [trees[node_type] for node_type in ids if len(trees[node_type])]
    if not every:
        return
    first, last = min(int(of.min()) for of in every), max(int(of.max()) for of in every)
    if first < 0 or last >= MAX_TREES:
        raise SettingsError(f"trees are {first}..{last}; number them from 0 to {MAX_TREES - 1}")
    if times is not None and (times.dtype != np.int64 or times.ndim != 1 or len(times) <= last):
        raise SettingsError(
            f"times are {times.dtype}{list(times.shape)}; give int64[num_trees], one for each tree up to {last}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class RangeFrontier:
    """Frontier of a few ranges of slots.

    Attributes:
        ranges: Sorted, disjoint and not empty; adjacent ranges are merged.
    """

    ranges: list[SlotRange]

    @classmethod
    def of(cls, ranges: list[SlotRange]) -> RangeFrontier:
        """Merge ranges, so that each slot is expanded once."""
        merged: list[SlotRange] = []
        for start, end in sorted(set(ranges)):
            if start == end:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return cls(merged)

    def __len__(self) -> int:
        """Return the number of slots."""
        return sum(end - start for start, end in self.ranges)

    def take(self, column: IntArray) -> IntArray:
        """Return the column's values at the slots; a view if there is only one range."""
        pieces = [column[start:end] for start, end in self.ranges]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def repeat(self, counts: NDArray[np.int32], out: IntArray, written: int) -> None:
        """Write each slot ``counts`` times to ``out``, from position ``written`` on."""
        done = 0
        for start, end in self.ranges:
            written = repeat_slots(start, counts[done : done + end - start], out, written)
            done += end - start


@dataclass(frozen=True, slots=True, eq=False)
class SlotFrontier:
    """Frontier of any slots.

    Attributes:
        slots: int64[n], ascending.
    """

    slots: IntArray

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.slots)

    def take(self, column: IntArray) -> IntArray:
        """Return the column's values at the slots."""
        return column[self.slots]

    def repeat(self, counts: NDArray[np.int32], out: IntArray, written: int) -> None:
        """Write each slot ``counts`` times to ``out``, from position ``written`` on."""
        repeated = np.repeat(self.slots, counts)
        out[written : written + len(repeated)] = repeated


Frontier = RangeFrontier | SlotFrontier
"""Distinct slots of one node type, ascending."""
INT64 = np.dtype(np.int64)


class FusedSampler:
    """Sampler that also relabels, in one pass over a local store; equals ``store.sample`` and relabelling."""

    def __init__(self, store: LocalStore) -> None:
        """Use a store that holds all parts. Not thread-safe."""
        self._store = store
        self._buffers = DrawBuffers()
        self._neighbors: IntArray = np.empty(0, np.int64)

    def sample(self, request: SampleRequest, neighbors: SlotMap, edges: EdgeBuffer, row: int) -> NDArray[np.int32]:
        """Draw neighbours; add them to a slot map, and their slots and edge ids to an edge buffer.

        Args:
            request: The request; its ids are checked.
            neighbors: Slots of the neighbours' type; with trees, of pairs ``tree << TREE_SHIFT | id``.
            edges: Buffer of the edge type; the caller must write the frontier's own slots.
            row: Row of ``edges.slots`` for the neighbours: 0 for sources, 1 for destinations.

        Returns:
            int32[n], number of neighbours drawn for each id, valid until the next call.
        """
        tables = self._store.tables(request.edge_type, request.direction)
        check_strategy(self._store, request)
        ids = tables.newest(self._store.check_ids(tables.node_type, request.ids))
        ranges = self._buffers.find_ranges(tables, request, ids)
        draws, positions = draws_of(request) if is_plain(request) else None, None
        if draws is None:
            ranges, positions = self._buffers.choose(tables, request, ranges)
        edges.reserve(ranges.total)
        first, last = edges.num_edges, edges.num_edges + ranges.total
        if positions is not None:
            edges.edge_ids[first:last] = positions
        item = tables.addresses.item
        neighbor_ids = self._reserve_neighbors(ranges.total, item.dtype if request.trees is None else INT64)
        slots = edges.slots[row, first:last]
        done, neighbors.num_nodes = draw_neighbors(
            tables.addresses, draws, ranges.nodes, neighbors.slot_table(slots), neighbor_ids, edges.edge_ids[first:last]
        )
        if done < ranges.total:
            neighbors.assign(neighbor_ids, slots, done)
        edges.num_edges = last
        return ranges.nodes.counts

    def _reserve_neighbors(self, num_edges: int, dtype: np.dtype[np.generic]) -> Array:
        if num_edges > len(self._neighbors):
            self._neighbors = np.empty(max(num_edges, 2 * len(self._neighbors)), np.int64)
        return self._neighbors.view(dtype)[:num_edges]


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Results of one op.

    Attributes:
        new: Range of the slots of the nodes that it discovered.
        edges: Range of its edges in the buffer of their type.
    """

    new: SlotRange
    edges: SlotRange


_Steps = Generator[list[SampleRequest], list[SampleReply], Subgraph]
"""Generator that samples one batch: yields the requests of a hop, and receives their replies."""


def _run_together(store: Store, group: list[_Steps]) -> list[Subgraph]:
    """Sample several batches, with one call of the store per hop for all of them.

    A ``MemoryError`` of the store is raised inside the batches that made the requests, so that they can describe them.
    """
    subgraphs: dict[int, Subgraph] = {}
    asked: dict[int, list[SampleRequest]] = {}

    def go_on(number: int, go: Callable[[], list[SampleRequest]]) -> None:
        try:
            asked[number] = go()
        except StopIteration as stop:
            subgraphs[number] = stop.value

    for number, steps in enumerate(group):
        go_on(number, partial(next, steps))
    while asked:
        requests, asked = asked, {}
        try:
            replies = iter(store.sample([request for of_batch in requests.values() for request in of_batch]))
        except MemoryError as error:
            for number in requests:
                group[number].throw(error)
            raise
        for number, of_batch in requests.items():
            go_on(number, partial(group[number].send, list(islice(replies, len(of_batch)))))
    return [subgraphs[number] for number in range(len(group))]


class PlanRunner:
    """Runner of one plan over one store for many batches, in reused memory. Not thread-safe."""

    def __init__(self, store: Store, plan: SamplePlan) -> None:
        """Check the plan against the store.

        Raises:
            UnknownNameError: The store's graph has no such node type or edge type.
            SettingsError: The dataset does not hold a direction, times, weights or keys that the plan needs.
        """
        check_plan(plan, store)
        self._store = store
        self._plan = plan
        self._levels = plan.levels()
        self._ops = {op.name: op for op in plan.ops}
        self._directions = plan.directions
        self._requests = OpRequests(store, plan)
        self._fused = FusedSampler(store) if isinstance(store, LocalStore) and store.is_whole else None
        new_map = TreeSlotMap if plan.settings.is_disjoint else SlotMap
        self._slots = {node_type: new_map() for node_type in store.schema.nodes}
        self._edges = {edge_type: EdgeBuffer() for edge_type in store.schema.edges}
        self._mirror = Mirror(store, plan, self._requests)
        self._inducer = Inducer(store, plan, self._requests)
        self._others: list[PlanRunner] = []

    def run(self, seeds: SeedNodes) -> Subgraph:
        """Sample the subgraph of some seeds.

        Returns:
            A subgraph whose arrays are valid until the next call; copy them to keep them.

        Raises:
            SettingsError: A seed is given twice (in one tree) or has another type than the plan's; trees, times or
                variates are missing or not expected; or the neighbours of an op do not fit in memory.
        """
        return self.run_group([seeds])[0]

    def run_group(self, group: Sequence[SeedNodes]) -> list[Subgraph]:
        """Sample several batches together, with one call of the store per hop for all; see ``run``."""
        while len(self._others) + 1 < len(group):
            self._others.append(type(self)(self._store, self._plan))
        runners = [self, *self._others][: len(group)]
        return _run_together(self._store, [runner._steps(seeds) for runner, seeds in zip(runners, group, strict=True)])

    def _steps(self, seeds: SeedNodes) -> _Steps:
        """Sample one batch: yield the requests of each hop, and receive their replies."""
        check_seeds(self._plan, seeds)
        for slot_map in self._slots.values():
            slot_map.reset()
        for buffer in self._edges.values():
            buffer.num_edges = 0
        self._requests.begin(seeds)
        self._seed_slots = {
            t: self._place_seeds(t, ids if seeds.trees is None else (seeds.trees[t] << TREE_SHIFT) | ids)
            for t, ids in seeds.ids.items()
        }
        num_nodes = {t: [m.num_nodes] for t, m in self._slots.items()}
        num_edges: dict[EdgeType, list[int]] = {t: [] for t in self._edges}
        yield from self._hops(seeds, partial(self._count, num_nodes, num_edges))
        if self._plan.settings.subgraph_type == "bidirectional":
            self._mirror.complete(self._slots, self._edges, seeds.times)
        elif self._plan.settings.subgraph_type == "induced":
            self._inducer.complete(self._slots, self._edges)
        return self._subgraph(num_nodes, num_edges if self._plan.settings.subgraph_type == "directional" else None)

    def _hops(
        self, seeds: SeedNodes, end_hop: Callable[[], None]
    ) -> Generator[list[SampleRequest], list[SampleReply], None]:
        """Run every hop from the placed seeds, and call ``end_hop`` after each; see ``_steps``."""
        found: dict[str, _Found] = {}
        for level in self._levels:
            yield from self._run_level(level, found)
            end_hop()
        for _ in range(self._plan.num_hops - len(self._levels)):
            end_hop()

    def _place_seeds(self, node_type: str, ids: IntArray) -> SlotRange:
        slot_map = self._slots[node_type]
        slot_map.assign(ids, np.empty(len(ids), np.int64))
        if slot_map.num_nodes != len(ids):
            once = "once in each tree" if self._plan.settings.is_disjoint else "once"
            raise SettingsError(f"{len(ids)} seeds have {slot_map.num_nodes} distinct nodes; give each node {once}")
        return 0, slot_map.num_nodes

    def _frontier(self, op: SampleOp, found: dict[str, _Found]) -> Frontier:
        """Return the nodes that an op expands."""
        seeds = self._seed_slots.get(op.expanded_type, (0, 0))
        if op.expands == "new":
            return RangeFrontier.of([seeds if name == SEEDS else found[name].new for name in op.inputs])
        is_reached = np.zeros(self._slots[op.expanded_type].num_nodes, np.bool_)
        for name in op.inputs:
            if name == SEEDS:
                is_reached[slice(*seeds)] = True
            else:
                is_reached[self._reached(self._ops[name], found[name])] = True
        return SlotFrontier(np.flatnonzero(is_reached))

    def _reached(self, op: SampleOp, found: _Found) -> IntArray:
        """Return int64[num_edges], the slots that an op's edges lead to, with repetitions."""
        first, last = found.edges
        return self._edges[op.edge_type].slots[_found_row(op), first:last]

    def _run_level(
        self, level: list[SampleOp], found: dict[str, _Found]
    ) -> Generator[list[SampleRequest], list[SampleReply], None]:
        frontiers = [self._frontier(op, found) for op in level]
        active = [(op, frontier) for op, frontier in zip(level, frontiers, strict=True) if len(frontier)]
        requests = [self._request(op, frontier) for op, frontier in active]
        try:
            replies = (yield requests) if requests and self._fused is None else []
            self._draw_level(level, active, requests, replies, found)
        except MemoryError as error:
            raise _too_many([op for op, _ in active], requests) from error

    def _draw_level(
        self,
        level: list[SampleOp],
        active: list[tuple[SampleOp, Frontier]],
        requests: list[SampleRequest],
        replies: list[SampleReply],
        found: dict[str, _Found],
    ) -> None:
        for op in level:
            end, num_edges = self._slots[op.found_type].num_nodes, self._edges[op.edge_type].num_edges
            found[op.name] = _Found((end, end), (num_edges, num_edges))
        for index, (op, frontier) in enumerate(active):
            neighbors, edges = self._slots[op.found_type], self._edges[op.edge_type]
            first_new, first_edge = neighbors.num_nodes, edges.num_edges
            found_row = _found_row(op)
            if self._fused is not None:
                counts = self._fused.sample(requests[index], neighbors, edges, found_row)
            else:
                counts = _add_reply(replies[index], requests[index].trees, neighbors, edges, found_row)
            frontier.repeat(counts, edges.slots[1 - found_row], first_edge)
            found[op.name] = _Found((first_new, neighbors.num_nodes), (first_edge, edges.num_edges))

    def _request(self, op: SampleOp, frontier: Frontier) -> SampleRequest:
        nodes = self._slots[op.expanded_type]
        trees = nodes.trees()
        return self._requests.of_op(op, frontier.take(nodes.ids()), None if trees is None else frontier.take(trees))

    def _count(self, num_nodes: dict[str, list[int]], num_edges: dict[EdgeType, list[int]]) -> None:
        for node_type, slot_map in self._slots.items():
            num_nodes[node_type].append(slot_map.num_nodes - sum(num_nodes[node_type]))
        for edge_type, buffer in self._edges.items():
            num_edges[edge_type].append(buffer.num_edges - sum(num_edges[edge_type]))

    def _subgraph(self, num_nodes: dict[str, list[int]], num_edges: dict[EdgeType, list[int]] | None) -> Subgraph:
        default = self._plan.direction_over(self._store)
        edges = {
            edge_type: SampledEdges(
                src_slots=buffer.slots[0, : buffer.num_edges],
                dst_slots=buffer.slots[1, : buffer.num_edges],
                edge_ids=buffer.edge_ids[: buffer.num_edges] if self._plan.wants_edge_ids else None,
                direction=self._directions.get(edge_type, default),
                edge_keys=buffer.edge_ids[: buffer.num_edges] if self._plan.wants_edge_keys else None,
            )
            for edge_type, buffer in self._edges.items()
        }
        return Subgraph(
            node_ids={t: m.ids() for t, m in self._slots.items()},
            edges=edges,
            num_sampled_nodes=num_nodes,
            num_sampled_edges=num_edges,
            trees={t: trees for t, m in self._slots.items() if (trees := m.trees()) is not None} or None,
        )


def _found_row(op: SampleOp) -> int:
    """Return the row of ``EdgeBuffer.slots`` that holds an op's neighbours."""
    return 0 if op.direction == "in" else 1


def _too_many(active: list[SampleOp], requests: list[SampleRequest]) -> SettingsError:
    """Make the error for a level that does not fit in memory; it names the op with the largest request."""
    request, op = max(
        zip(requests, active, strict=True),
        key=lambda pair: len(pair[0].ids) * (MAX_COUNT + 1 if pair[1].count < 0 else pair[1].count),
    )
    count = "all" if op.count < 0 else f"{op.count:,}"
    return SettingsError(
        f"num_neighbors asks op {op.name!r} for {count} neighbours of each of {len(request.ids):,} nodes"
        f"{', with replacement' if request.is_replacing else ''}, which is more than memory holds; give a smaller "
        "num_neighbors or batch_size"
    )


def _add_reply(
    reply: SampleReply, trees: IntArray | None, neighbors: SlotMap, edges: EdgeBuffer, found_row: int
) -> NDArray[np.int32]:
    num_edges = len(reply.neighbor_ids)
    edges.reserve(num_edges)
    first, last = edges.num_edges, edges.num_edges + num_edges
    identifiers = reply.neighbor_ids
    if trees is not None:
        identifiers = np.empty(num_edges, np.int64)
        pack_neighbors(reply.neighbor_ids, reply.counts, trees, TREE_SHIFT, identifiers)
    neighbors.assign(identifiers, edges.slots[found_row, first:last])
    numbers = reply.edge_ids if reply.edge_keys is None else reply.edge_keys
    if numbers is not None:
        edges.edge_ids[first:last] = numbers
    edges.num_edges = last
    return reply.counts
