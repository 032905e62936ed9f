"""Checks graphs that are made of OGB's arrays."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import IdRangeError, SchemaError
from hopstream.ingest.ogb_folder import graph_from_ogb
from hopstream.schema import EDGE, NODE

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def plain(rng):
    return {
        "edge_index": rng.integers(0, 6, (2, 9)), "edge_feat": None, "node_feat": rng.random((6, 4), np.float32),
        "num_nodes": 6, "node_year": rng.integers(2000, 2020, (6, 1)),
    }  # fmt: skip


@pytest.fixture
def typed(rng):
    return {
        "edge_index_dict": {WRITES: np.array([[0, 1, 1], [0, 2, 3]]), CITES: np.array([[0], [3]])},
        "edge_feat_dict": {},
        "edge_reltype": {WRITES: np.zeros((3, 1), np.int64), CITES: np.ones((1, 1), np.int64)},
        "node_feat_dict": {"paper": rng.random((4, 2), np.float32)},
        "node_year": {"paper": np.arange(4).reshape(4, 1)},
        "num_nodes_dict": {"author": 2, "paper": 4},
    }


def test_a_graph_without_types(plain):
    labels = np.array([[0.0], [1], [np.nan], [2], [0], [1]])
    split_idx = {"train": np.array([4, 0]), "valid": np.array([1]), "test": np.array([2, 3, 5])}
    for graph in (graph_from_ogb(plain, labels, split_idx), graph_from_ogb((plain, labels), split_idx=split_idx)):
        nodes = graph.nodes[NODE]
        assert nodes.num_nodes == 6 and set(nodes.features) == {"feat", "year", "y"}
        assert nodes.features["feat"] is plain["node_feat"]
        assert nodes.features["year"].tolist() == plain["node_year"][:, 0].tolist()
        assert np.array_equal(nodes.features["y"], labels[:, 0], equal_nan=True)
        assert np.array_equal([graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys], plain["edge_index"])
        assert {name: keys.tolist() for name, keys in graph.splits[NODE].items()} == {
            "train": [0, 4], "val": [1], "test": [2, 3, 5]
        }  # fmt: skip


def test_a_graph_of_several_types(typed):
    graph = graph_from_ogb(
        typed, {"paper": np.array([[1], [0], [2], [1]])}, {"train": {"paper": np.array([0, 1])}}, label_name="venue"
    )
    assert {t: of.num_nodes for t, of in graph.nodes.items()} == {"author": 2, "paper": 4}
    assert set(graph.nodes["paper"].features) == {"feat", "year", "venue"} and not graph.nodes["author"].features
    assert graph.nodes["paper"].features["venue"].tolist() == [1, 0, 2, 1]
    assert graph.edges[WRITES].dst_keys.tolist() == [0, 2, 3]
    assert graph.edges[CITES].features["reltype"].tolist() == [1]
    assert graph.splits["paper"]["train"].tolist() == [0, 1]


def test_several_labels_and_features_of_one_column_keep_their_shape(plain):
    plain["node_feat"] = plain["node_feat"][:, :1]
    graph = graph_from_ogb(plain, np.zeros((6, 112), np.int64))
    assert graph.nodes[NODE].features["y"].shape == (6, 112)
    assert graph.nodes[NODE].features["feat"].shape == (6, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"edge_index": None}, SchemaError, "neither edge_index nor edge_index_dict"),
        ({"num_nodes": 3}, SchemaError, "feat"),
        ({"edge_index": np.array([[7], [0]])}, IdRangeError, "src_keys"),
        ({"graph_feat": np.zeros(3)}, SchemaError, "'graph_feat', which is for neither nodes"),
        ({"node_y": np.zeros(6)}, SchemaError, "two features named 'y'"),
        ({"node_year": {"paper": np.zeros(6)}}, SchemaError, "node_year is dict; wanted one array"),
    ],
)
def test_graphs_that_differ_from_the_ogb_format_are_refused(plain, change, error, message):
    graph = {**plain, **change}
    graph = {name: value for name, value in graph.items() if value is not None}
    with pytest.raises(error, match=message):
        graph_from_ogb(graph, np.zeros((6, 1)))


def test_splits_of_links_are_refused(plain, typed):
    with pytest.raises(SchemaError, match=r"split_idx\['train'\] is dict; wanted one array"):
        graph_from_ogb(plain, split_idx={"train": {"edge": np.zeros((3, 2))}})
    with pytest.raises(SchemaError, match="labels is ndarray; wanted a dict by type"):
        graph_from_ogb(typed, np.zeros(4))
    with pytest.raises(SchemaError, match="wanted a dict with edge_index"):
        graph_from_ogb(3)
