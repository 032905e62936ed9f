"""Checks that values are read out into features, and that wrong readouts are refused."""

from __future__ import annotations

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.errors import SchemaError, UnknownNameError
from tests.compat.tfgnn.graphs import links_spec, students, two_components


def seeded():
    return tfgnn.add_readout_from_first_node(two_components(), "seed", node_set_name="users")


def test_first_nodes_are_read_out_of_each_component():
    graph = seeded()
    assert tfgnn.structured_readout(graph, "seed", feature_name="h").tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert tfgnn.gather_first_node(graph, "users", feature_name="h").tolist() == [[0.0, 1.0], [6.0, 7.0]]
    tagged = tfgnn.add_readout_from_first_node(graph, "me", node_set_name="users", readout_node_set="_readout:x")
    assert tagged.edge_sets["_readout:x/me"].adjacency.source.tolist() == [0, 3]
    for wrong, error, match in (
        ({"node_set_name": "items"}, UnknownNameError, r"node set 'items' does not exist; known: users"),
        ({"feature_name": "x"}, UnknownNameError, r"node set 'users' has no feature 'x'; known: h"),
    ):
        with pytest.raises(error, match=match):
            tfgnn.gather_first_node(two_components(), **{"node_set_name": "users", "feature_name": "h", **wrong})
    empty = tfgnn.GraphTensor.from_pieces(node_sets={"a": tfgnn.NodeSet.from_fields(sizes=[1, 0], features={"f": [1]})})
    with pytest.raises(SchemaError, match=r"component 1 has no node in 'a'"):
        tfgnn.gather_first_node(empty, "a", feature_name="f")


def test_values_become_features_of_predictions():
    graph = tfgnn.structured_readout_into_feature(seeded(), "seed", feature_name="h", new_feature_name="seed_h")
    assert graph.node_sets["_readout"]["seed_h"].tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert list(graph.node_sets["users"].features) == ["h"]
    with pytest.raises(SchemaError, match=r"_readout has feature 'seed_h' already; pass overwrite=True"):
        tfgnn.structured_readout_into_feature(graph, "seed", feature_name="h", new_feature_name="seed_h")
    moved = tfgnn.structured_readout_into_feature(
        graph.replace_features(node_sets={"users": {"h": [1, 2, 3, 4]}, "_readout": {"h": [0, 0], "other": [5, 6]}}),
        "seed", feature_name="h", remove_input_feature=True, overwrite=True,
    )  # fmt: skip
    assert moved.node_sets["_readout"]["h"].tolist() == [1, 4]
    assert moved.node_sets["_readout"]["other"].tolist() == [5, 6]
    assert not moved.node_sets["users"].features


def test_values_of_edges_are_moved_too():
    graph = tfgnn.random_graph_tensor(links_spec(), rng_seed=4)
    wanted = tfgnn.structured_readout(graph, "edge", feature_name="h")
    assert len(wanted)
    moved = tfgnn.structured_readout_into_feature(graph, "edge", feature_name="h", remove_input_feature=True)
    assert np.array_equal(moved.node_sets["_readout"]["h"], wanted)
    assert list(moved.edge_sets["buys"].features) == ["when"] and "h" in moved.node_sets["users"].features


def test_context_becomes_a_feature_of_predictions():
    graph = tfgnn.context_readout_into_feature(two_components(), feature_name="name", remove_input_feature=True)
    assert graph.node_sets["_readout"]["name"].tolist() == [b"a", b"b"] and not graph.context.features
    again = tfgnn.context_readout_into_feature(seeded(), feature_name="name", new_feature_name="label")
    assert again.node_sets["_readout"]["label"].tolist() == [b"a", b"b"] and again.context.features
    with pytest.raises(SchemaError, match=r"_readout has feature 'label' already"):
        tfgnn.context_readout_into_feature(again, feature_name="name", new_feature_name="label")
    with pytest.raises(UnknownNameError, match=r"context has no feature 'x'; known: name"):
        tfgnn.context_readout_into_feature(two_components(), feature_name="x")
    two = tfgnn.GraphTensor.from_pieces(
        tfgnn.Context.from_fields(features={"c": [1]}), {"_readout": tfgnn.NodeSet.from_fields(sizes=[2])}
    )
    with pytest.raises(SchemaError, match=r"'_readout' has sizes \[2\]; wanted one prediction per component"):
        tfgnn.context_readout_into_feature(two, feature_name="c")
    with pytest.raises(SchemaError, match=r"'seeds' is called neither _readout nor"):
        tfgnn.context_readout_into_feature(two, feature_name="c", readout_node_set="seeds")


def test_readouts_are_checked():
    graph = seeded()
    assert tfgnn.validate_graph_tensor_for_readout(graph, ["seed"]) is graph
    tfgnn.validate_graph_tensor_spec_for_readout(graph.spec)
    with pytest.raises(UnknownNameError, match=r"_readout has no key 'target'; known: seed"):
        tfgnn.validate_graph_tensor_for_readout(graph, ["seed", "target"])
    with pytest.raises(SchemaError, match=r"node set '_readout' does not exist; known: students"):
        tfgnn.validate_graph_tensor_spec_for_readout(students().spec)
    lonely = tfgnn.GraphTensor.from_pieces(node_sets={"_readout": tfgnn.NodeSet.from_fields(sizes=[0])})
    with pytest.raises(UnknownNameError, match=r"_readout has no key at all; known: none"):
        tfgnn.validate_graph_tensor_spec_for_readout(lonely.spec)
    wrong = tfgnn.Adjacency.from_indices(("users", [0, 1]), ("_readout", [1, 0]))
    edge_sets = {**graph.edge_sets, "_readout/seed": tfgnn.EdgeSet.from_fields(sizes=[1, 1], adjacency=wrong)}
    with pytest.raises(SchemaError, match=r"edge set '_readout/seed': target 0 at edge 1 does not ascend"):
        tfgnn.validate_graph_tensor_for_readout(
            tfgnn.GraphTensor.from_pieces(graph.context, graph.node_sets, edge_sets)
        )
    away = tfgnn.Adjacency.from_indices(("users", [0, 3]), ("users", [0, 3]))
    edge_sets = {"_readout/seed": tfgnn.EdgeSet.from_fields(sizes=[1, 1], adjacency=away)}
    with pytest.raises(SchemaError, match=r"edge set '_readout/seed' goes to 'users'; its target is '_readout'"):
        tfgnn.validate_graph_tensor_spec_for_readout(
            tfgnn.GraphTensor.from_pieces(graph.context, graph.node_sets, edge_sets).spec
        )
