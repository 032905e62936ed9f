"""Checks the graphs of ``graph_from_arrays``, and that each error names its cause."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.errors import IdRangeError, SchemaError, UnknownNameError
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.schema import EDGE, NODE

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline, as a busy machine is no failure."""
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def test_arrays_become_a_graph_without_types():
    x = np.ones((4, 3), np.float32)
    graph = graph_from_arrays(
        np.array([[0, 1, 1], [2, 0, 1]]),
        node_features={"x": x, "name": ["a", "b", "c", "ü"]},
        edge_features={"weight": torch.tensor([0.5, 1, 2])},
        splits={"train": [True, False, False, True], "val": np.array([2, 1])},
    )
    assert graph.schema.is_homogeneous
    assert graph.nodes[NODE].num_nodes == 4
    assert graph.nodes[NODE].features["x"] is x
    assert list(graph.nodes[NODE].features["name"]) == ["a", "b", "c", "ü"]
    assert graph.edges[EDGE].src_keys.tolist() == [0, 1, 1]
    assert graph.edges[EDGE].dst_keys.tolist() == [2, 0, 1]
    assert graph.edges[EDGE].features["weight"].tolist() == [0.5, 1, 2]
    assert {name: keys.tolist() for name, keys in graph.splits[NODE].items()} == {"train": [0, 3], "val": [1, 2]}


@pytest.mark.parametrize(
    "edges",
    [
        np.array([[0, 1], [2, 0]], np.int32),
        np.array([[0, 2], [1, 0]]).T,
        torch.tensor([[0, 1], [2, 0]]),
        [[0, 1], [2, 0]],
        (np.array([0, 1]), torch.tensor([2, 0])),
    ],
)
def test_edges_in_every_form(edges):
    table = graph_from_arrays(edges).edges[EDGE]
    assert table.src_keys.tolist() == [0, 1]
    assert table.dst_keys.tolist() == [2, 0]
    assert table.src_keys.flags.c_contiguous


def test_arrays_by_type_become_a_typed_graph():
    graph = graph_from_arrays(
        {WRITES: np.array([[0, 1], [1, 1]]), CITES: np.empty((2, 0), np.int64)},
        num_nodes={"venue": 2},
        node_features={"paper": {"year": [2001, 2002, 2003]}},
        edge_features={WRITES: {"order": np.array([0, 1], np.int8)}},
        splits={"paper": {"train": [2, 0]}},
        edge_splits={WRITES: {"val": [1, 0], "test": np.array([False, True])}},
    )
    assert {n: k.tolist() for n, k in graph.edge_splits[WRITES].items()} == {"val": [0, 1], "test": [1]}
    assert list(graph.nodes) == ["venue", "paper", "author"]
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {"venue": 2, "paper": 3, "author": 2}
    assert graph.edges[CITES].num_edges == 0
    assert graph.splits["paper"]["train"].tolist() == [0, 2]


def test_node_count_comes_from_the_best_source():
    edges = [[0, 1], [2, 0]]
    assert graph_from_arrays(edges).nodes[NODE].num_nodes == 3
    assert graph_from_arrays(edges, num_nodes=torch.tensor(7)).nodes[NODE].num_nodes == 7
    assert graph_from_arrays(edges, node_features={"x": np.ones(5)}).nodes[NODE].num_nodes == 5
    assert graph_from_arrays(edges, splits={"train": np.ones(6, bool)}).nodes[NODE].num_nodes == 6
    assert graph_from_arrays([[], []], num_nodes=0).nodes[NODE].num_nodes == 0
    assert graph_from_arrays({}, num_nodes={"a": 3}).edges == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"edges": np.ones((2, 3))}, SchemaError, r"edges of node__to__node\[0\] is float64\[3\]; keys are integers"),
        ({"edges": np.full((2, 3), np.nan)}, SchemaError, "keys are integers"),
        ({"edges": np.ones((2, 3), bool)}, SchemaError, r"is bool\[3\], a mask; give keys, such as np.flatnonzero"),
        ({"edges": np.zeros((5, 2), int)}, SchemaError, r"int64\[5, 2\]; wanted integers \[2, num_edges\]: transpose"),
        ({"edges": np.zeros(4, int)}, SchemaError, r"wanted integers \[2, num_edges\]"),
        ({"edges": [[0], [1], [2]]}, SchemaError, "are a list of 3"),
        ({"edges": [[0], [1, 2]]}, SchemaError, "has 1 sources and 2 destinations"),
        ({"edges": [[0, -1], [0, 0]]}, IdRangeError, "source 1 is -1; keys are 0 or more"),
        ({"edges": [[0, 5], [0, 0]], "num_nodes": 5}, IdRangeError, r"src_keys\[1\] is 5; keys are 0\.\.4"),
        ({"edges": [[0], [3]], "node_features": {"x": np.ones(3)}}, IdRangeError, r"dst_keys\[0\] is 3"),
        ({"edges": [[], []]}, SchemaError, "give num_nodes"),
        ({"edges": [[0], [0]], "num_nodes": -1}, SchemaError, "num_nodes of 'node' is -1"),
        ({"edges": [[0], [0]], "num_nodes": 2.0}, SchemaError, "wanted an integer"),
        ({"edges": [[0], [0]], "num_nodes": True}, SchemaError, "wanted an integer"),
        (
            {"edges": [[0], [0]], "node_features": {"x": np.ones(3), "y": np.ones(4)}},
            SchemaError,
            "disagree on its number of nodes: {'x': 3, 'y': 4}",
        ),
        (
            {"edges": [[0], [0]], "node_features": {"x": np.ones(3)}, "splits": {"train": np.ones(4, bool)}},
            SchemaError,
            "'mask train': 4",
        ),
        ({"edges": [[0], [0]], "num_nodes": 2, "node_features": {"x": np.ones(3)}}, SchemaError, "'x' has 3 rows"),
        ({"edges": [[0], [0]], "num_nodes": 2, "splits": {"a": np.ones(3, bool)}}, SchemaError, "mask of 3 rows"),
        ({"edges": [[0], [0]], "edge_features": {"w": np.ones(2)}}, SchemaError, "'w' has 2 rows; the type has 1"),
        ({"edges": [[0], [2]], "splits": {"train": [1, 0, 1]}}, SchemaError, "names node 1 twice"),
        (
            {"edges": [[0], [2]], "edge_splits": {"a": [0, 0]}},
            SchemaError,
            "split 'a' of node__to__node names edge 0 twi",
        ),
        ({"edges": [[0], [2]], "edge_splits": {"a": [1]}}, IdRangeError, r"node__to__node\[0\] is 1; keys are 0\.\.0"),
        (
            {"edges": [[0], [2]], "edge_splits": {"a": np.ones(2, bool)}},
            SchemaError,
            "a mask of 2 rows; the type has 1",
        ),
        ({"edges": {CITES: [[0], [0]]}, "edge_splits": {WRITES: {"a": [0]}}}, UnknownNameError, "writes"),
        ({"edges": [[0], [2]], "splits": {"train": [0, 3]}}, IdRangeError, r"\[1\] is 3"),
        ({"edges": [[0], [2]], "splits": {"train": [-1]}}, IdRangeError, r"\[0\] is -1"),
        ({"edges": [[0], [2]], "splits": {"train": [0.5]}}, SchemaError, "keys are integers"),
        ({"edges": [[0], [2]], "splits": {"train": np.ones((3, 2), bool)}}, SchemaError, "choose one of its columns"),
        ({"edges": [[0], [0]], "node_features": {NODE: {"x": [1]}}}, SchemaError, "edges are not; give edges by type"),
        ({"edges": [[0], [0]], "num_nodes": {NODE: 1}}, SchemaError, "edges are not"),
        ({"edges": {CITES: [[0], [0]]}, "num_nodes": 1}, SchemaError, "edges are given by type"),
        ({"edges": {CITES: [[0], [0]]}, "node_features": {"x": [1]}}, SchemaError, "edges are given by type"),
        ({"edges": {CITES: [[0], [0]]}, "splits": {"venue": {"train": [0]}}}, UnknownNameError, "venue"),
        ({"edges": {CITES: [[0], [0]]}, "edge_features": {WRITES: {}}}, UnknownNameError, "writes"),
        ({"edges": {("a", "b"): [[0], [0]]}}, SchemaError, "must be a"),
        ({"edges": {"a__b__c": [[0], [0]]}}, SchemaError, "must be a"),
        ({"edges": {}}, SchemaError, "at least one node type"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        graph_from_arrays(**arguments)


@patient
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1), st.sets(st.integers(0, 6)))
def test_edges_and_splits_are_returned_unchanged(pairs, split):
    mask = np.isin(np.arange(7), list(split))
    by_keys = graph_from_arrays(np.array(pairs).T, num_nodes=7, splits={"train": list(split)})
    by_mask = graph_from_arrays(np.array(pairs).T, num_nodes=7, splits={"train": mask})
    table = by_keys.edges[EDGE]
    assert list(zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True)) == pairs
    for graph in (by_keys, by_mask):
        assert graph.splits[NODE]["train"].tolist() == sorted(split)
        assert graph.splits[NODE]["train"].dtype == np.int64
