"""Checks that ``Graph.check`` accepts exactly the graphs that later rooms may trust."""

import dataclasses

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SchemaError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import FeatureSchema
from tests.conftest import make_typed_graph

WRITES = ("author", "writes", "paper")


def keys(*values):
    return np.array(values, dtype=np.int64)


def make_graph(**changes):
    parts = {
        "nodes": {
            "author": NodeTable(num_nodes=2, features={"name": RaggedArray.from_strings(["Ada", "Bo"])}),
            "paper": NodeTable(num_nodes=3, features={"x": np.zeros((3, 4), np.float32)}),
        },
        "edges": {WRITES: EdgeTable(src_keys=keys(0, 1, 1, 1), dst_keys=keys(2, 0, 0, 2), features={"w": np.ones(4)})},
        "splits": {"paper": {"train": keys(0, 2), "test": keys()}},
    }
    return Graph(**{**parts, **changes})


def with_edges(**changes):
    return make_graph(edges={WRITES: dataclasses.replace(make_graph().edges[WRITES], **changes)})


def test_a_valid_graph_passes_and_has_a_schema():
    graph = make_graph()
    assert graph.check() is graph
    schema = graph.schema
    assert list(schema.nodes) == ["author", "paper"]
    assert schema.feature("author", "name") == FeatureSchema(dtype="string")
    assert schema.feature("paper", "x") == FeatureSchema(dtype="float32", shape=(4,))
    assert schema.feature(WRITES, "w") == FeatureSchema(dtype="float64")
    assert schema.splits == {"paper": ("train", "test")}
    assert graph.edges[WRITES].num_edges == 4


def test_edge_splits_are_in_the_schema_and_the_fingerprint():
    plain, split = make_graph(), make_graph(edge_splits={WRITES: {"train": keys(0, 3), "val": keys(1)}}).check()
    assert split.schema.edge_splits == {WRITES: ("train", "val")}
    assert make_graph(edge_splits={WRITES: {}}).schema == plain.schema
    assert make_graph(edge_splits={WRITES: {}}).fingerprint() == plain.fingerprint()
    other = make_graph(edge_splits={WRITES: {"train": keys(0, 2), "val": keys(1)}})
    assert len({graph.fingerprint() for graph in (plain, split, other)}) == 3


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_graph().nodes = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_graph().edges[WRITES].src_keys = keys()


def test_graphs_without_edges_or_without_nodes_of_a_type():
    Graph(nodes={"a": NodeTable(num_nodes=0)}).check()
    empty = EdgeTable(src_keys=keys(), dst_keys=keys())
    Graph(nodes={"a": NodeTable(num_nodes=0)}, edges={("a", "to", "a"): empty}).check()
    with pytest.raises(SchemaError, match="at least one node type"):
        Graph(nodes={}).check()


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (make_graph(nodes={"author": NodeTable(num_nodes=2)}), SchemaError, "joins node type 'paper'"),
        (with_edges(src_keys=keys(0, 1, 2, 1)), IdRangeError, r"src_keys\[2\] is 2; keys are 0\.\.1"),
        (with_edges(dst_keys=keys(0, -1, 2, 1)), IdRangeError, r"dst_keys\[1\] is -1; keys are 0\.\.2"),
        (with_edges(dst_keys=keys(0, 1, 2)), SchemaError, "has 4 sources and 3 destinations"),
        (with_edges(src_keys=np.zeros(4, np.int32)), SchemaError, r"src_keys must be int64\[n\], got int32\[4\]"),
        (with_edges(src_keys=np.zeros((4, 1), np.int64)), SchemaError, r"must be int64\[n\], got int64\[4, 1\]"),
        (with_edges(features={"w": np.ones(3)}), SchemaError, "feature 'w' has 3 rows; the type has 4"),
        (with_edges(features={"w": np.ones(())}), SchemaError, "row dimension"),
        (with_edges(features={"w": np.array(list("abcd"))}), SchemaError, "cannot be stored"),
        (with_edges(features={"w": np.array([None] * 4)}), SchemaError, "dtype object cannot be stored"),
        (
            make_graph(nodes={**make_graph().nodes, "author": NodeTable(num_nodes=-1)}),
            SchemaError,
            "'author' has -1 nodes",
        ),
        (
            make_graph(nodes={**make_graph().nodes, "author": NodeTable(num_nodes=0)}),
            IdRangeError,
            "has no nodes",
        ),
        (
            with_edges(features={"w": RaggedArray(np.arange(3), keys(0, 1, 2, 2, 9))}),
            SchemaError,
            "offsets must ascend from 0 to 3",
        ),
        (make_graph(splits={"venue": {"train": keys()}}), UnknownNameError, "venue"),
        (make_graph(splits={"paper": {"train": keys(0, 3)}}), IdRangeError, r"'train' of 'paper'\[1\] is 3"),
        (make_graph(splits={"paper": {"train": keys(1, 1)}}), SchemaError, "ascending and distinct"),
        (make_graph(splits={"paper": {"train": keys(2, 0)}}), SchemaError, "ascending and distinct"),
        (make_graph(splits={"paper": {"train": np.array([True, False, True])}}), SchemaError, "int64"),
        (make_graph(edge_splits={("a", "b", "c"): {"val": keys()}}), UnknownNameError, r"\('a', 'b', 'c'\); known"),
        (
            make_graph(edge_splits={WRITES: {"val": keys(1, 4)}}),
            IdRangeError,
            r"'val' of author__writes__paper\[1\] is 4; keys are 0\.\.3",
        ),
        (
            make_graph(
                edges={WRITES: EdgeTable(src_keys=keys(), dst_keys=keys())}, edge_splits={WRITES: {"a": keys(0)}}
            ),
            IdRangeError,
            "the edge type has no edges",
        ),
        (make_graph(edge_splits={WRITES: {"val": keys(2, 0)}}), SchemaError, "ascending and distinct"),
        (make_graph(edge_splits={WRITES: {"val": np.zeros(1)}}), SchemaError, "int64"),
        (make_graph(edge_splits={WRITES: {"": keys()}}), SchemaError, "printable"),
    ],
)
def test_check_refuses_graphs_that_contradict_themselves(graph, error, message):
    with pytest.raises(error, match=message):
        graph.check()


def test_a_fingerprint_names_the_content(rng: np.random.Generator) -> None:
    graph = make_typed_graph(rng)
    found = graph.fingerprint()
    assert len(found) == 32
    assert dataclasses.replace(graph).fingerprint() == found
    features = dict(graph.nodes["paper"].features)
    for name, column in features.items():
        changed = column.take(np.arange(len(column))[::-1]) if isinstance(column, RaggedArray) else column[::-1]
        paper = NodeTable(num_nodes=graph.nodes["paper"].num_nodes, features={**features, name: changed})
        assert dataclasses.replace(graph, nodes={**graph.nodes, "paper": paper}).fingerprint() != found, name
    swapped = {t: EdgeTable(src_keys=e.src_keys[::-1], dst_keys=e.dst_keys[::-1]) for t, e in graph.edges.items()}
    assert dataclasses.replace(graph, edges=swapped).fingerprint() != found


def test_a_graph_is_shown_in_a_few_lines():
    lines = repr(make_graph()).splitlines()
    assert lines == [
        "Graph(",
        "  nodes 'author': 2, name string",
        "  nodes 'paper': 3, x float32[rows, 4]",
        "  edges ('author', 'writes', 'paper'): 4, w float64[rows]",
        "  splits of 'paper': train 2, test 0",
        ")",
    ]
    assert str(make_graph()) == repr(make_graph())
