"""Slow answer for every field of a plan, one node and one edge at a time, in keys.

``tests/naive_sampling.py`` decides which edges an op draws. This module decides which nodes are expanded, in which
trees, and which edges a subgraph has in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray
from hopstream.graph.graph import Graph, Subgraph
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan, SeedNodes
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import KEY, FetchRequest, LaborSeeds, SampleRequest, Store
from tests import naive_sampling
from tests.naive_sampling import Edge

Node = tuple[int, int]
"""A tree and a key; the tree is 0 where a plan is not disjoint."""
SlotEdge = tuple[int, int, int]
"""Source slot, destination slot, edge key."""


@dataclass
class Found:
    """A subgraph in keys; ``Subgraph`` documents the fields."""

    node_keys: dict[str, list[int]]
    trees: dict[str, list[int]] | None
    edges: dict[EdgeType, list[SlotEdge]]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]] | None


@dataclass(frozen=True)
class Raw:
    """A graph, and the features that its dataset was written with."""

    graph: Graph
    time_attr: str | None = None
    weight_attr: str | None = None

    def rows(self, edge_type: EdgeType, direction: Direction) -> list[list[Edge]]:
        """Every node's edges in stored order."""
        return naive_sampling.stored_rows(self.graph, edge_type, direction, self.time_attr, self.weight_attr)


def in_keys(store: Store, subgraph: Subgraph) -> Found:
    """A subgraph with ids replaced by keys, in one call of the store."""
    requests = [FetchRequest(entity=t, names=(KEY,), ids=ids) for t, ids in subgraph.node_ids.items()]
    for edge_type, found in subgraph.edges.items():
        assert found.edge_ids is not None
        requests.append(FetchRequest(entity=(edge_type, found.direction), names=(KEY,), ids=found.edge_ids))
    keys = [columns[KEY].tolist() for columns in store.fetch(requests)]
    edges = {}
    for (edge_type, found), edge_keys in zip(subgraph.edges.items(), keys[len(subgraph.node_ids) :], strict=True):
        edges[edge_type] = list(zip(found.src_slots.tolist(), found.dst_slots.tolist(), edge_keys, strict=True))
    return Found(
        node_keys=dict(zip(subgraph.node_ids, keys, strict=False)),
        trees=None if subgraph.trees is None else {t: trees.tolist() for t, trees in subgraph.trees.items()},
        edges=edges,
        num_sampled_nodes=dict(subgraph.num_sampled_nodes),
        num_sampled_edges=None if subgraph.num_sampled_edges is None else dict(subgraph.num_sampled_edges),
    )


def seeds_in_ids(store: Store, seeds: SeedNodes) -> SeedNodes:
    """Seeds whose ids and excluded pairs are keys, with the store's ids in their place."""
    return SeedNodes(
        ids={t: store.lookup(t, keys) for t, keys in seeds.ids.items()},
        rng_seed=seeds.rng_seed,
        trees=seeds.trees,
        times=seeds.times,
        excluded={
            t: np.stack([store.lookup(t[0], pairs[0]), store.lookup(t[2], pairs[1])])
            for t, pairs in seeds.excluded.items()
        },
        labor=seeds.labor,
    )


def run_plan(raw: Raw, plan: SamplePlan, seeds: SeedNodes) -> Found:
    """Run a plan over a whole graph in memory; ``seeds`` has keys wherever a runner is given ids."""
    run = _Run(raw, plan, seeds)
    run.sample()
    if plan.settings.subgraph_type == "bidirectional":
        run.add_reverses()
    if plan.settings.subgraph_type == "induced":
        run.induce()
    is_directional = plan.settings.subgraph_type == "directional"
    return Found(
        node_keys={t: [key for _, key in slots] for t, slots in run.slot_of.items()},
        trees={t: [tree for tree, _ in slots] for t, slots in run.slot_of.items()}
        if plan.settings.is_disjoint
        else None,
        edges=run.edges,
        num_sampled_nodes=run.num_nodes,
        num_sampled_edges=run.num_edges if is_directional else None,
    )


class _Run:
    def __init__(self, raw: Raw, plan: SamplePlan, seeds: SeedNodes) -> None:
        self.raw, self.plan, self.seeds = raw, plan, seeds
        graph = raw.graph
        self.slot_of: dict[str, dict[Node, int]] = {node_type: {} for node_type in graph.nodes}
        for node_type, keys in seeds.ids.items():
            trees = [0] * len(keys) if seeds.trees is None else seeds.trees[node_type].tolist()
            for node in zip(trees, keys.tolist(), strict=True):
                self.slot_of[node_type][node] = len(self.slot_of[node_type])
        self.edges: dict[EdgeType, list[SlotEdge]] = {edge_type: [] for edge_type in graph.edges}
        self.num_nodes = {t: [len(slots)] for t, slots in self.slot_of.items()}
        self.num_edges: dict[EdgeType, list[int]] = {t: [] for t in graph.edges}
        self.directions = {op.edge_type: op.direction for op in plan.ops}

    def sample(self) -> None:
        """Run the ops, level by level."""
        discovered = {SEEDS: {t: list(slots) for t, slots in self.slot_of.items()}}
        reached = dict(discovered)
        levels = self.plan.levels()
        for hop in range(self.plan.num_hops):
            num_edges = {t: len(edges) for t, edges in self.edges.items()}
            num_nodes = {t: len(slots) for t, slots in self.slot_of.items()}
            for op in levels[hop] if hop < len(levels) else []:
                before = len(self.slot_of[op.found_type])
                of = discovered if op.expands == "new" else reached
                frontier = {node for name in op.inputs for node in of[name].get(op.expanded_type, [])}
                first_edge = len(self.edges[op.edge_type])
                self.expand(op, sorted(frontier, key=self.slot_of[op.expanded_type].__getitem__))
                nodes, row = list(self.slot_of[op.found_type]), 0 if op.direction == "in" else 1
                discovered[op.name] = {op.found_type: nodes[before:]}
                reached[op.name] = {op.found_type: [nodes[e[row]] for e in self.edges[op.edge_type][first_edge:]]}
            for edge_type, edges in self.edges.items():
                self.num_edges[edge_type].append(len(edges) - num_edges[edge_type])
            for node_type, slots in self.slot_of.items():
                self.num_nodes[node_type].append(len(slots) - num_nodes[node_type])

    def expand(self, op: SampleOp, frontier: list[Node]) -> None:
        """Draw neighbours of some nodes."""
        if not frontier:
            return
        request = self.request(op, frontier)
        drawn = naive_sampling.answer(
            self.raw.graph, request, time_attr=self.raw.time_attr, weight_attr=self.raw.weight_attr
        )
        found = self.slot_of[op.found_type]
        for node, neighbors in zip(frontier, drawn, strict=True):
            for neighbor, edge_key in neighbors:
                ends = (
                    found.setdefault((node[0], neighbor), len(found)),
                    self.slot_of[op.expanded_type][node],
                )
                self.edges[op.edge_type].append((*(ends if op.direction == "in" else ends[::-1]), edge_key))

    def request(self, op: SampleOp, frontier: list[Node]) -> SampleRequest:
        """An op's request, in keys."""
        trees = np.array([tree for tree, _ in frontier], np.int64)
        pairs = self.seeds.excluded.get(op.edge_type)
        labor, salt = self.seeds.labor, op.rng_salt
        if self.plan.settings.layer_dependency:
            salt = derive_seed("labor", op.found_type)
        return SampleRequest(
            edge_type=op.edge_type,
            direction=op.direction,
            ids=np.array([key for _, key in frontier], np.int64),
            count=op.count,
            is_replacing=self.plan.settings.replace,
            rng_seed=self.seeds.rng_seed ^ op.rng_salt,
            strategy=op.strategy,
            trees=trees if self.plan.settings.is_disjoint else None,
            times=self.seeds.times[trees] if self.seeds.times is not None else None,
            is_inclusive=self.plan.settings.time_inclusive,
            excluded=None if pairs is None else pairs[::-1] if op.direction == "in" else pairs,
            labor=None
            if op.strategy != "labor" or labor is None
            else LaborSeeds(first=labor.first ^ salt, second=labor.second ^ salt, share=labor.share),
        )

    def add_reverses(self) -> None:
        """Add the reverse of each edge drawn: mirrored, or the first true edge of the reverse type."""
        drawn = {edge_type: list(edges) for edge_type, edges in self.edges.items()}
        for edge_type in self.directions:
            if self.plan.reverse_of(edge_type) != edge_type:
                continue
            pairs = {edge[:2] for edge in drawn[edge_type]}
            for src, dst, edge_key in drawn[edge_type]:
                if (dst, src) not in pairs and not self.is_excluded(edge_type, dst, src):
                    self.edges[edge_type].append((dst, src, edge_key))
        for edge_type in self.directions:
            reverse = self.plan.reverse_of(edge_type)
            if reverse in (None, edge_type):
                continue
            for src, dst, _ in drawn[edge_type]:
                edge_key = self.first_edge(reverse, dst, src)
                is_there = any(edge[:2] == (dst, src) for edge in self.edges[reverse])
                if edge_key is not None and not is_there:
                    self.edges[reverse].append((dst, src, edge_key))

    def first_edge(self, edge_type: EdgeType, src: int, dst: int) -> int | None:
        """The edge key of the first edge from one slot to another that may be seen."""
        direction = self.directions.get(edge_type, self.plan.settings.direction)
        src_node, dst_node = list(self.slot_of[edge_type[0]])[src], list(self.slot_of[edge_type[2]])[dst]
        node, neighbor = (dst_node, src_node) if direction == "in" else (src_node, dst_node)
        between = [e for e in self.visible(edge_type, direction, node) if e.neighbor == neighbor[1]]
        return between[0].edge_key if between else None

    def induce(self) -> None:
        """Put all edges between the nodes found in place of those drawn."""
        for edge_type in self.raw.graph.edges:
            is_label = edge_type in self.raw.graph.label_types or edge_type in self.plan.hidden_types
            if is_label and edge_type not in self.directions:
                continue
            direction = self.directions.get(edge_type, self.plan.settings.direction)
            ends = (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])
            self.edges[edge_type] = []
            for node, slot in self.slot_of[ends[0]].items():
                for edge in self.visible(edge_type, direction, node):
                    other = self.slot_of[ends[1]].get((node[0], edge.neighbor))
                    if other is not None:
                        pair = (other, slot) if direction == "in" else (slot, other)
                        self.edges[edge_type].append((*pair, edge.edge_key))

    def visible(self, edge_type: EdgeType, direction: Direction, node: Node) -> Iterator[Edge]:
        """A node's edges that are not excluded and not after its tree's time, in stored order."""
        tree, key = node
        excluded = self.excluded_pairs(edge_type)
        for edge in self.raw.rows(edge_type, direction)[key]:
            if ((edge.neighbor, key) if direction == "in" else (key, edge.neighbor)) in excluded:
                continue
            if self.seeds.times is not None and edge.time is not None:
                limit = int(self.seeds.times[tree])
                if edge.time > limit or (edge.time == limit and not self.plan.settings.time_inclusive):
                    continue
            yield edge

    def is_excluded(self, edge_type: EdgeType, src: int, dst: int) -> bool:
        """Whether two slots are of an excluded pair."""
        keys = list(self.slot_of[edge_type[0]])[src][1], list(self.slot_of[edge_type[2]])[dst][1]
        return keys in self.excluded_pairs(edge_type)

    def excluded_pairs(self, edge_type: EdgeType) -> set[tuple[int, ...]]:
        """Source and destination of each excluded pair."""
        pairs = self.seeds.excluded.get(edge_type)
        return set() if pairs is None else {tuple(pair) for pair in pairs.T.tolist()}


def spread_trees(ids: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """A tree for each seed, dealt to the types in turn, so that no type's trees are a range."""
    owners = np.concatenate([np.full(len(keys), number) for number, keys in enumerate(ids.values())])
    dealt = np.argsort(np.argsort(np.concatenate([np.arange(len(keys)) for keys in ids.values()]), kind="stable"))
    return {t: dealt[owners == number].astype(np.int64) for number, t in enumerate(ids)}
