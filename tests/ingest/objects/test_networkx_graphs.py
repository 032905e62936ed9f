"""Checks that graphs pass to NetworkX and back without loss."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from hopstream.errors import SchemaError, UnknownNameError
from hopstream.ingest.objects.networkx_graphs import graph_from_networkx, graph_to_networkx
from hopstream.schema import EDGE, NODE


def ends(graph, edge_type=EDGE):
    edges = graph.edges[edge_type]
    return list(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))


def test_a_directed_graph():
    source = nx.DiGraph()
    source.add_node("b", x=1, vec=[1.0, 2.0], tags=np.array([1, 2]), name="B", ok=True)
    source.add_node("a", x=0.5, vec=[3.0, 4.0], tags=np.array([], np.int64), name="ä", ok=False)
    source.add_edge("a", "b", weight=2)
    source.add_edge("b", "b", weight=3)
    graph = graph_from_networkx(source)
    features = graph.nodes[NODE].features
    assert features["raw_id"].tolist() == ["b", "a"] and features["name"].tolist() == ["B", "ä"]
    assert features["x"].tolist() == [1.0, 0.5] and features["ok"].dtype == bool
    assert features["vec"].tolist() == [[1, 2], [3, 4]] and features["tags"].tolist() == [[1, 2], []]
    assert sorted(zip(ends(graph), graph.edges[EDGE].features["weight"].tolist(), strict=True)) == [
        ((0, 0), 3), ((1, 0), 2)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph])
def test_undirected_edges_are_stored_in_both_directions(kind):
    source = kind([(5, 7), (7, 7), (7, 9)])
    if kind is nx.MultiGraph:
        source.add_edge(5, 7)
    graph = graph_from_networkx(source)
    assert graph.nodes[NODE].features["raw_id"].tolist() == [5, 7, 9]
    once = [(0, 1), (0, 1), (1, 1), (1, 2)] if kind is nx.MultiGraph else [(0, 1), (1, 1), (1, 2)]
    assert ends(graph)[: len(once)] == once
    assert sorted(ends(graph)) == sorted(once + [(v, u) for u, v in once if u != v])
    assert ends(graph_from_networkx(source, both_directions=False)) == once


def test_parallel_edges_are_kept():
    source = nx.MultiDiGraph([(0, 1, {"w": 1}), (0, 1, {"w": 2}), (1, 0, {"w": 3})])
    graph = graph_from_networkx(source, raw_ids=None)
    assert ends(graph) == [(0, 1), (0, 1), (1, 0)] and graph.edges[EDGE].features["w"].tolist() == [1, 2, 3]
    assert not graph.nodes[NODE].features


def typed():
    source = nx.MultiDiGraph()
    source.add_node("p1", type="paper", year=2001)
    source.add_node("ann", type="author")
    source.add_node("p2", type="paper", year=2002)
    source.add_edge("ann", "p1", type="writes", key=4)
    source.add_edge("ann", "p1", type="writes")
    source.add_edge("p2", "p1", type="cites", weight=0.5)
    return source


def test_typed_graphs_survive_a_round_trip():
    graph = graph_from_networkx(typed(), node_type="type", edge_type="type", raw_ids="id")
    assert list(graph.nodes) == ["paper", "author"]
    assert graph.nodes["paper"].features["year"].tolist() == [2001, 2002]
    assert set(graph.nodes["author"].features) == {"id"}
    assert ends(graph, ("author", "writes", "paper")) == [(0, 0), (0, 0)]
    assert ends(graph, ("paper", "cites", "paper")) == [(1, 0)]
    back = graph_to_networkx(graph, names="id")
    assert dict(back.nodes(data=True)) == dict(typed().nodes(data=True))
    assert sorted((u, v, str(d)) for u, v, d in back.edges(data=True)) == sorted(
        (u, v, str(d)) for u, v, d in typed().edges(data=True)
    )
    again = graph_from_networkx(back, node_type="type", edge_type="type", raw_ids="id")
    assert {t: ends(again, t) for t in again.edges} == {t: ends(graph, t) for t in graph.edges}
    assert set(graph_to_networkx(graph).nodes) == {("paper", 0), ("paper", 1), ("author", 0)}


def test_an_untyped_graph_survives_a_round_trip(rng):
    source = nx.gnp_random_graph(12, 0.3, seed=3, directed=True)
    for node in source:
        source.nodes[node]["key"] = int(rng.integers(9))
    for _, _, attributes in source.edges(data=True):
        attributes["key"] = float(rng.random())
    back = graph_to_networkx(graph_from_networkx(source, raw_ids=None))
    assert dict(back.nodes(data=True)) == dict(source.nodes(data=True))
    assert list(back.edges(data=True)) == list(source.edges(data=True))


def test_networkx_graphs_without_nodes_or_edges_are_read():
    assert graph_from_networkx(nx.DiGraph()).nodes[NODE].num_nodes == 0
    lone = nx.Graph()
    lone.add_node("x")
    assert ends(graph_from_networkx(lone)) == []


def with_nodes(*nodes, edges=()):
    source = nx.DiGraph()
    source.add_nodes_from(nodes)
    source.add_edges_from(edges)
    return source


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (with_nodes((0, 1)), {}, r"node \(0, 1\) \(tuple\); raw ids are strings or 64-bit integers"),
        (with_nodes(1 << 70), {}, "raw ids are strings or 64-bit integers"),
        (with_nodes(1, "a"), {}, "named by strings and nodes named by integers"),
        (with_nodes((1, {"x": 1}), 2), {}, r"2 of node has no 'x', which others have; give missing="),
        (with_nodes((1, {"x": 1}), (2, {"x": "1"})), {}, "node.x has values of several kinds: integer, string, from 2"),
        (with_nodes((1, {"x": True}), (2, {"x": 2})), {}, "several kinds: bool, integer"),
        (with_nodes((1, {"x": {}})), {}, "node.x"),
        (with_nodes(1, 2), {"node_type": "t"}, "node 1 has t=None; its type is a string"),
        (with_nodes(1, 2, edges=[(1, 2)]), {"edge_type": "t"}, "edge 1 -> 2 has t=None"),
        (with_nodes((1, {"raw_id": 1})), {}, "an attribute 'raw_id', which is the name for raw ids"),
        (with_nodes((1, {3: 1})), {}, "an attribute 3; names of features are strings"),
        ([1, 2], {}, "source is list"),
        (nx.DiGraph, {}, "source is type; wanted a NetworkX graph"),
        (
            with_nodes((1, {"x": 2**53 + 1}), (2, {"x": 0.5})),
            {},
            r"node.x has integers and reals, and float64 cannot hold 9007199254740993 of 1",
        ),
    ],
)
def test_unstorable_graphs_are_refused(source, options, message):
    with pytest.raises(SchemaError, match=message):
        graph_from_networkx(source, **options)


def test_missing_attributes_are_filled():
    graph = graph_from_networkx(with_nodes((1, {"x": 1}), 2, (3, {"x": None})), missing={"x": -1})
    assert graph.nodes[NODE].features["x"].tolist() == [1, -1, -1]


def test_numbers_are_not_rounded():
    def features(*values):
        return graph_from_networkx(with_nodes(*((i, {"x": v}) for i, v in enumerate(values)))).nodes[NODE].features["x"]

    assert features(1 << 63, 2).tolist() == [1 << 63, 2] and features(np.array(1), np.array(2)).tolist() == [1, 2]
    assert features([1, 2], [0.5, 2]).tolist() == [[1, 2], [0.5, 2]]
    assert features([1, 2], [0.5]).tolist() == [[1, 2], [0.5]]


def test_names_that_do_not_fit_are_refused():
    graph = graph_from_networkx(with_nodes((1, {"x": 1}), (2, {"x": 1})))
    with pytest.raises(UnknownNameError, match="node has no feature 'y'"):
        graph_to_networkx(graph, names="y")
    with pytest.raises(SchemaError, match="node has two nodes named 1"):
        graph_to_networkx(graph, names="x")
    typed_graph = graph_from_networkx(typed(), node_type="type", raw_ids="type")
    with pytest.raises(SchemaError, match="has a feature 'type', which is the name for types"):
        graph_to_networkx(typed_graph)
