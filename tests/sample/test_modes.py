"""Examples of each way to sample, on graphs of a few edges.

Every test is one small example: the graph as a list of edges, what is asked, and exactly what comes out, in keys. All
neighbours are asked for unless the example is about choosing, so no result hangs on chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes
from hopstream.schema import EDGE, Direction, EdgeType
from hopstream.store.contract import LaborSeeds
from hopstream.store.local import LocalStore
from tests.naive_plans import in_keys, seeds_in_ids
from tests.plan_modes import plan_with

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
FOLLOWS, WANTS = ("user", "follows", "user"), ("user", "wants", "item")


@dataclass(frozen=True)
class Example:
    """Result: (tree, key) or key per node, and (source key, destination key, edge key) per edge."""

    nodes: Any
    edges: Any


class Asker:
    """Writes graphs in two parts and samples from them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(
        self,
        edges: Mapping[EdgeType, Sequence[Sequence[float]]] | Sequence[Sequence[float]],
        seeds: Mapping[str, Sequence[int]] | Sequence[int],
        num_neighbors: Any = (-1,),
        *,
        columns: Sequence[str] = (),
        node_times: Mapping[str, Sequence[int]] | None = None,
        excluded: Mapping[EdgeType, Sequence[Sequence[int]]] | None = None,
        times: Sequence[int] | None = None,
        labor: LaborSeeds | None = None,
        label_types: Mapping[EdgeType, tuple[EdgeType, ...]] | None = None,
        written: Direction = "in",
        **options: Any,
    ) -> Example:
        """Sample; edges are (source, destination, *columns).

        Seeds of disjoint plans have the trees 0, 1, … in turn.
        """
        is_plain = not isinstance(edges, Mapping)
        by_type = {EDGE: edges} if is_plain else edges
        by_node_type = {"node": seeds} if not isinstance(seeds, Mapping) else seeds
        graph = replace(_graph(by_type, columns, node_times or {}), label_types=label_types or {})
        names = {"time_attr": "time" if node_times or "time" in columns else None}
        names["weight_attr"] = "weight" if "weight" in columns else None
        write_parts(
            graph,
            self._folder,
            num_parts=2,
            method="hash",
            neighbor_keys=True,
            overwrite=True,
            direction=written,
            **names,
        )
        counts = list(num_neighbors) if not isinstance(num_neighbors, Mapping) else num_neighbors
        plan = plan_with(graph.schema, counts, tuple(by_node_type), **options)
        ids = {t: np.array(keys, np.int64) for t, keys in by_node_type.items()}
        with LocalStore(open_dataset(self._folder)) as store:
            given = SeedNodes(
                ids=ids,
                rng_seed=11,
                trees=_trees(ids) if plan.settings.is_disjoint else None,
                times=None if times is None else np.array(times),
                excluded={t: np.array(pairs).T for t, pairs in (excluded or {}).items()},
                labor=labor,
            )
            found = in_keys(store, PlanRunner(store, plan).run(seeds_in_ids(store, given)))
        nodes = {
            t: keys if found.trees is None else list(zip(found.trees[t], keys, strict=True))
            for t, keys in found.node_keys.items()
        }
        drawn = {
            t: [(found.node_keys[t[0]][src], found.node_keys[t[2]][dst], key) for src, dst, key in of]
            for t, of in found.edges.items()
        }
        return Example(nodes["node"], drawn[EDGE]) if is_plain else Example(nodes, drawn)


def _graph(
    edges: Mapping[EdgeType, Sequence[Sequence[float]]], columns: Sequence[str], node_times: Mapping[str, Sequence[int]]
) -> Graph:
    num_nodes: dict[str, int] = {}
    for (src_type, _, dst_type), rows in edges.items():
        for src, dst, *_ in rows:
            num_nodes[src_type] = max(num_nodes.get(src_type, 0), int(src) + 1)
            num_nodes[dst_type] = max(num_nodes.get(dst_type, 0), int(dst) + 1)
    return Graph(
        nodes={
            t: NodeTable(num_nodes=n, features={"time": np.array(node_times[t])} if t in node_times else {})
            for t, n in num_nodes.items()
        },
        edges={
            t: EdgeTable(
                src_keys=np.array([row[0] for row in rows], np.int64),
                dst_keys=np.array([row[1] for row in rows], np.int64),
                features={
                    name: np.array([row[2 + place] for row in rows])
                    for place, name in enumerate(columns)
                    if all(len(row) > 2 + place for row in rows)
                },
            )
            for t, rows in edges.items()
        },
    )


def _trees(ids: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    first, trees = 0, {}
    for node_type, keys in ids.items():
        trees[node_type] = np.arange(first, first + len(keys))
        first += len(keys)
    return trees


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    return Asker(tmp_path / "parts")


STAR = [(2, 0), (3, 0), (2, 1), (4, 2)]
"""0 and 1 share the neighbour 2, and 4 leads to it."""


def test_directional_subgraphs_hold_each_node_once_in_order_of_hops(asker: Asker) -> None:
    """Seeds come first, then the nodes of each hop; a node comes once, however often it is found."""
    found = asker.ask(STAR, [0, 1], [-1, -1])
    assert found.nodes == [0, 1, 2, 3, 4]
    assert found.edges == [(2, 0, 0), (3, 0, 1), (2, 1, 2), (4, 2, 3)]


def test_disjoint_subgraphs_grow_a_tree_per_seed(asker: Asker) -> None:
    """Every seed grows a tree of its own, so 2 and 4 occur twice, and so does the edge between them."""
    found = asker.ask(STAR, [0, 1], [-1, -1], disjoint=True)
    assert found.nodes == [(0, 0), (1, 1), (0, 2), (0, 3), (1, 2), (0, 4), (1, 4)]
    assert found.edges == [(2, 0, 0), (3, 0, 1), (2, 1, 2), (4, 2, 3), (4, 2, 3)]


def test_disjoint_seeds_of_several_types(asker: Asker) -> None:
    """User 0 (tree 0), item 1 (tree 1) and item 1 once more (tree 2)."""
    edges = {BUYS: [(0, 1), (1, 1)], BOUGHT: [(1, 0), (0, 0)]}
    found = asker.ask(edges, {"user": [0], "item": [1, 1]}, disjoint=True)
    assert found.nodes == {"user": [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)], "item": [(1, 1), (2, 1), (0, 1), (0, 0)]}
    assert found.edges == {BUYS: [(0, 1, 0), (1, 1, 1), (0, 1, 0), (1, 1, 1)], BOUGHT: [(1, 0, 0), (0, 0, 1)]}


TIMED = [(1, 0, 30), (2, 0, 10), (3, 0, 20), (4, 3, 25), (5, 3, 20)]
"""Sources, destinations and times; they need not be sorted."""


def test_temporal_subgraphs_hold_no_edge_after_the_trees_time(asker: Asker) -> None:
    """Node 0 at the times 20 and 30: edges come in order of time, none later than the time of its tree."""
    found = asker.ask(TIMED, [0, 0], [-1, -1], columns=["time"], times=[20, 30], time_attr="time")
    assert found.nodes == [(0, 0), (1, 0), (0, 2), (0, 3), (1, 2), (1, 3), (1, 1), (0, 5), (1, 5), (1, 4)]
    assert found.edges == [
        *[(2, 0, 1), (3, 0, 2)],
        *[(2, 0, 1), (3, 0, 2), (1, 0, 0)],
        *[(5, 3, 4)],
        *[(5, 3, 4), (4, 3, 3)],
    ]


def test_exclusive_time_leaves_out_edges_at_the_trees_time(asker: Asker) -> None:
    """An event at exactly the tree's time is not seen either."""
    options = {"time_attr": "time", "time_inclusive": False}
    found = asker.ask(TIMED, [0, 0], [-1, -1], columns=["time"], times=[20, 30], **options)
    assert found.nodes == [(0, 0), (1, 0), (0, 2), (1, 2), (1, 3), (1, 5), (1, 4)]
    assert found.edges == [(2, 0, 1), (2, 0, 1), (3, 0, 2), (5, 3, 4), (4, 3, 3)]


def test_temporal_by_the_neighbours_time(asker: Asker) -> None:
    """Where edges have no time of their own, an edge is as old as the node it leads to."""
    edges, node_times = [(1, 0), (2, 0), (3, 2)], {"node": [40, 30, 10, 20]}
    options = {"node_times": node_times, "time_attr": "time"}
    assert asker.ask(edges, [0], [-1, -1], times=[15], **options).nodes == [(0, 0), (0, 2)]
    assert asker.ask(edges, [0], [-1, -1], times=[20], **options).nodes == [(0, 0), (0, 2), (0, 3)]
    assert asker.ask(edges, [0], [-1, -1], times=[30], **options).nodes == [(0, 0), (0, 2), (0, 1), (0, 3)]


def test_temporal_by_the_later_of_two_times(asker: Asker) -> None:
    """An edge of time 10 to a node of time 30 is seen from 30 on."""
    edges, node_times = [(1, 0, 10), (2, 0, 20)], {"node": [0, 30, 0]}
    options = {"columns": ["time"], "node_times": node_times, "time_attr": "time"}
    assert asker.ask(edges, [0], times=[29], **options).edges == [(2, 0, 1)]
    assert asker.ask(edges, [0], times=[30], **options).edges == [(2, 0, 1), (1, 0, 0)]


def test_edge_types_without_times_are_seen_at_any_time(asker: Asker) -> None:
    """Only purchases have times; other edges are seen at any time."""
    like = ("item", "like", "item")
    edges = {BUYS: [(0, 0, 10), (1, 0, 20)], like: [(1, 0)]}
    options = {"columns": ["time"], "time_attr": "time"}
    found = asker.ask(edges, {"item": [0]}, times=[10], **options)
    assert found.edges == {BUYS: [(0, 0, 0)], like: [(1, 0, 0)]}


def test_last_takes_the_latest_edges_oldest_first(asker: Asker) -> None:
    """The latest edges that a tree may see, oldest first."""
    edges = [(1, 0, 30), (2, 0, 10), (3, 0, 20), (4, 0, 40)]
    options = {"columns": ["time"], "time_attr": "time", "strategies": {EDGE: "last"}}
    assert asker.ask(edges, [0], [2], times=[30], **options).edges == [(3, 0, 2), (1, 0, 0)]
    assert asker.ask(edges, [0], [2], times=[99], **options).edges == [(1, 0, 0), (4, 0, 3)]


WEIGHTED = [(1, 0, 0.5), (2, 0, 0.0), (3, 0, 2.0), (4, 0, 0.5), (5, 0, 1.0)]


def test_weighted_draws_never_take_weight_zero(asker: Asker) -> None:
    """No more than four have weight, so four come, in stored order; weight 0 is never drawn."""
    options = {"columns": ["weight"], "strategies": {EDGE: "weighted"}}
    assert asker.ask(WEIGHTED, [0], [5], **options).edges == [(1, 0, 0), (3, 0, 2), (4, 0, 3), (5, 0, 4)]
    assert asker.ask([(1, 0, 0.0), (2, 0, 7.0)], [0], [3], replace=True, **options).edges == [(2, 0, 1)] * 3


def test_top_k_takes_the_heaviest_edges_first(asker: Asker) -> None:
    """The heaviest edges come first, equal weights in stored order."""
    options = {"columns": ["weight"], "strategies": {EDGE: "top_k"}}
    assert asker.ask(WEIGHTED, [0], [3], **options).edges == [(3, 0, 2), (5, 0, 4), (1, 0, 0)]
    assert len(asker.ask(WEIGHTED, [0], [9], **options).edges) == 4


def test_labor_chooses_common_neighbours_alike(asker: Asker) -> None:
    """Nodes with common neighbours choose the same ones, so a batch holds fewer nodes."""
    edges = [(neighbor, node) for node in (0, 1) for neighbor in range(2, 12)]
    found = asker.ask(edges, [0, 1], [3], strategies={EDGE: "labor"}, labor=LaborSeeds(first=5))
    assert len(found.nodes) == 2 + 3
    assert [src for src, dst, _ in found.edges if dst == 0] == [src for src, dst, _ in found.edges if dst == 1]


def test_labor_with_one_variate_for_all_hops(asker: Asker) -> None:
    """Now hops agree as well: 0, 1 and then 12 choose among the same ten."""
    edges = [*[(neighbor, node) for node in (0, 1, 12) for neighbor in range(2, 12)], (12, 0)]
    options = {
        "strategies": {EDGE: "labor"},
        "labor": LaborSeeds(first=5),
        "sampling": "labor",
        "layer_dependency": True,
    }
    found = asker.ask(edges, [1, 12], [4, 4], **options)
    assert len(found.nodes) == 2 + 4
    hops = asker.ask([*edges, (12, 1)], [1], [11, 4], **options)
    assert [src for src, dst, _ in hops.edges if dst == 12] == [src for src, dst, _ in found.edges if dst == 12]


def test_excluded_edges_and_their_parallels_are_not_followed(asker: Asker) -> None:
    """A predicted edge and its parallels are not followed, and the count is filled from other edges."""
    edges = [(1, 0), (2, 0), (1, 0), (3, 0), (0, 1)]
    assert asker.ask(edges, [0], excluded={EDGE: [(1, 0)]}).edges == [(2, 0, 1), (3, 0, 3)]
    assert asker.ask(edges, [0], [2], excluded={EDGE: [(1, 0)]}).edges == [(2, 0, 1), (3, 0, 3)]
    assert asker.ask(edges, [0, 1], excluded={EDGE: [(1, 0)]}).edges == [(2, 0, 1), (3, 0, 3), (0, 1, 4)]


def test_bidirectional_subgraphs_hold_each_edge_both_ways(asker: Asker) -> None:
    """Each edge also the other way, under its own id; 0 and 3 are joined both ways already."""
    edges = [(1, 0), (2, 0), (2, 0), (3, 0), (0, 3), (0, 0)]
    found = asker.ask(edges, [0, 3], subgraph_type="bidirectional")
    assert found.edges == [
        *[(1, 0, 0), (2, 0, 1), (2, 0, 2), (3, 0, 3), (0, 0, 5), (0, 3, 4)],
        *[(0, 1, 0), (0, 2, 1), (0, 2, 2)],
    ]


def test_bidirectional_does_not_mirror_excluded_edges(asker: Asker) -> None:
    """The edge from 0 to 1 is to be predicted, so 1 to 0 must not reveal it."""
    found = asker.ask([(1, 0), (2, 0), (0, 1)], [0], subgraph_type="bidirectional", excluded={EDGE: [(0, 1)]})
    assert found.edges == [(1, 0, 0), (2, 0, 1), (0, 2, 1)]


def test_bidirectional_by_a_reverse_type(asker: Asker) -> None:
    """The reverse type's own edges are looked up: item 0 to user 0 is number 1 there, and user 1 has none."""
    edges = {BUYS: [(0, 0), (1, 0), (0, 0)], BOUGHT: [(1, 1), (0, 0), (0, 0)]}
    options = {"subgraph_type": "bidirectional", "reverse_types": {BUYS: BOUGHT}}
    found = asker.ask(edges, {"item": [0]}, **options)
    assert found.nodes == {"user": [0, 1], "item": [0]}
    assert found.edges == {BUYS: [(0, 0, 0), (1, 0, 1), (0, 0, 2)], BOUGHT: [(0, 0, 1)]}
    drawn = asker.ask(edges, {"item": [0], "user": [0]}, **options)
    assert drawn.edges[BOUGHT] == [(0, 0, 1), (0, 0, 2)]


def test_bidirectional_looks_up_no_edge_of_the_future(asker: Asker) -> None:
    """The purchase of time 10 is seen at 15; its reverse, of time 20, is not."""
    edges = {BUYS: [(0, 0, 10)], BOUGHT: [(0, 0, 20)]}
    options = {"subgraph_type": "bidirectional", "reverse_types": {BUYS: BOUGHT}, "columns": ["time"]}
    options |= {"time_attr": "time"}
    assert asker.ask(edges, {"item": [0]}, times=[15], **options).edges == {BUYS: [(0, 0, 0)], BOUGHT: []}
    assert asker.ask(edges, {"item": [0]}, times=[20], **options).edges == {BUYS: [(0, 0, 0)], BOUGHT: [(0, 0, 0)]}


TRIANGLE = [(1, 0), (2, 0), (1, 2), (3, 2), (0, 1), (2, 1)]


def test_induced_subgraphs_hold_all_edges_among_their_nodes(asker: Asker) -> None:
    """0 finds 1 and 2; all edges among the three come, by destination; 3 was not found."""
    found = asker.ask(TRIANGLE, [0], subgraph_type="induced")
    assert found.nodes == [0, 1, 2]
    assert found.edges == [(1, 0, 0), (2, 0, 1), (0, 1, 4), (2, 1, 5), (1, 2, 2)]


def test_induced_trees_hold_only_their_own_edges(asker: Asker) -> None:
    """Edges join nodes of one tree: tree 1 found 1 and 3 from 2, and has none of 0's."""
    found = asker.ask(TRIANGLE, [0, 2], subgraph_type="induced", disjoint=True)
    assert found.nodes == [(0, 0), (1, 2), (0, 1), (0, 2), (1, 1), (1, 3)]
    assert found.edges == [
        *[(1, 0, 0), (2, 0, 1)],
        *[(1, 2, 2), (3, 2, 3)],
        *[(0, 1, 4), (2, 1, 5)],
        *[(1, 2, 2)],
        *[(2, 1, 5)],
    ]


def test_induced_typed_subgraphs_hold_edges_that_no_op_follows(asker: Asker) -> None:
    """No op follows the buyers of item 1, yet its edges from both found users are there."""
    edges = {BUYS: [(0, 0), (1, 0), (1, 1), (0, 1), (2, 1)], BOUGHT: [(0, 0), (1, 1)]}
    found = asker.ask(edges, {"item": [0]}, {BUYS: [-1, 0], BOUGHT: [0, -1]}, subgraph_type="induced")
    assert found.nodes == {"user": [0, 1], "item": [0, 1]}
    assert found.edges == {BUYS: [(0, 0, 0), (1, 0, 1), (1, 1, 2), (0, 1, 3)], BOUGHT: [(0, 0, 0), (1, 1, 1)]}


def test_induced_has_edge_types_that_no_op_follows(asker: Asker) -> None:
    """No op follows ``follows``, and the one that user 2 follows is not found."""
    edges = {BUYS: [(0, 0), (1, 0), (2, 1)], FOLLOWS: [(0, 1), (1, 1), (2, 0), (1, 0)]}
    counts = {BUYS: [-1], FOLLOWS: [0]}
    found = asker.ask(edges, {"item": [0]}, counts, subgraph_type="induced")
    assert found.edges == {BUYS: [(0, 0, 0), (1, 0, 1)], FOLLOWS: [(1, 0, 3), (0, 1, 0), (1, 1, 1)]}
    options = {"subgraph_type": "induced", "excluded": {FOLLOWS: [(1, 1)]}}
    assert asker.ask(edges, {"item": [0]}, counts, **options).edges[FOLLOWS] == [(1, 0, 3), (0, 1, 0)]


def test_induced_of_types_that_are_not_followed_sees_no_edge_of_the_future(asker: Asker) -> None:
    """User 1 followed user 0 at 20, which the tree of time 15 does not know."""
    edges = {BUYS: [(0, 0, 10), (1, 0, 10)], FOLLOWS: [(0, 1, 15), (1, 0, 20)]}
    options = {"subgraph_type": "induced", "columns": ["time"], "time_attr": "time"}
    found = asker.ask(edges, {"item": [0]}, {BUYS: [-1], FOLLOWS: [0]}, times=[15], **options)
    assert found.edges == {BUYS: [(0, 0, 0), (1, 0, 1)], FOLLOWS: [(0, 1, 0)]}


@pytest.mark.parametrize("written", ["out", "both"])
@pytest.mark.parametrize("count", [0, 1])
def test_induced_unfollowed_types_use_the_direction_of_followed_types(
    asker: Asker, written: Direction, count: int
) -> None:
    """The edge back to user 0 has the time of user 0, 40, which the tree of time 10 does not know."""
    edges = {BUYS: [(0, 0)], BOUGHT: [(0, 0)]}
    options = {"subgraph_type": "induced", "time_attr": "time", "direction": "out"}
    counts = {BUYS: [1, 1], BOUGHT: [0, count]}
    found = asker.ask(edges, {"user": [0]}, counts, node_times={"user": [40]}, times=[10], written=written, **options)
    assert found.edges == {BUYS: [(0, 0, 0)], BOUGHT: []}


def test_induced_without_any_neighbours(asker: Asker) -> None:
    """The edges between seeds, where no neighbours are asked for."""
    assert asker.ask(TRIANGLE, [0, 2], [0], subgraph_type="induced").edges == [(2, 0, 1)]


def test_induced_has_label_types_only_where_they_are_followed(asker: Asker) -> None:
    """Links to predict are no messages, unless the counts name them."""
    edges = {BUYS: [(0, 0), (1, 0)], WANTS: [(0, 0)]}
    options = {"subgraph_type": "induced", "label_types": {WANTS: (BUYS,)}}
    assert asker.ask(edges, {"item": [0]}, [-1], **options).edges == {BUYS: [(0, 0, 0), (1, 0, 1)], WANTS: []}
    named = asker.ask(edges, {"item": [0]}, {BUYS: [-1], WANTS: [-1]}, **options)
    assert named.edges == {BUYS: [(0, 0, 0), (1, 0, 1)], WANTS: [(0, 0, 0)]}
    hidden = {**options, "hidden_types": frozenset({FOLLOWS})}
    more = {**edges, FOLLOWS: [(0, 1)]}
    assert asker.ask(more, {"item": [0]}, {BUYS: [-1], FOLLOWS: [0]}, **hidden).edges[FOLLOWS] == []
