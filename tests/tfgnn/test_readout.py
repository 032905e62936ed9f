"""Checks that values are read out of the right nodes, and that a wrong readout is refused."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SchemaError
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces
from hopstream.tfgnn.readout import add_readout, add_readout_from_first_node, check_readout, structured_readout
from hopstream.tfgnn.values import FeatureValues


def edges(pairs, source_set, target_set="_readout", features=None):
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return EdgePieces(
        sizes=np.array([len(ends)]), source=ends[:, 0].copy(), target=ends[:, 1].copy(), source_set=source_set,
        target_set=target_set, features=features or {},
    )  # fmt: skip


def graph(node_sizes, edge_sets, features=None):
    node_sets = {
        name: NodePieces(
            sizes=np.array([size]), features={"h": FeatureValues.of(features[name])} if name in (features or {}) else {}
        )
        for name, size in node_sizes.items()
    }
    return GraphPieces(component_offsets=np.array([0, 1]), node_sets=node_sets, edge_sets=edge_sets)


def test_predictions_are_read_from_several_node_sets_in_their_order():
    """Undergraduate and graduate students, one readout."""
    one = graph(
        {"under": 2, "grad": 3, "_readout": 3},
        {"_readout/seed/1": edges([(1, 1)], "under"), "_readout/seed/2": edges([(2, 0), (0, 2)], "grad")},
        {"under": np.array([1, 2]), "grad": np.array([10, 20, 30])},
    )
    assert structured_readout(one, "seed", "h").tolist() == [30, 2, 10]
    text = graph(
        {"under": 2, "_readout": 2}, {"_readout/seed": edges([(1, 0), (0, 1)], "under")}, {"under": ["a", "b"]}
    )
    assert structured_readout(text, "seed", "h").tolist() == [b"b", b"a"]


def test_edges_are_read_out_through_their_shadow():
    rates = {"rate": FeatureValues.of(np.array([5, 6, 7]))}
    node_sizes = {"a": 2, "_shadow/e": 3, "_readout": 1}
    edge_sets = {"e": edges([(0, 1)] * 3, "a", "a", rates), "_readout/edge": edges([(2, 0)], "_shadow/e")}
    assert structured_readout(graph(node_sizes, edge_sets), "edge", "rate").tolist() == [7]
    with pytest.raises(SchemaError, match=r"'_shadow/e' has other sizes than edge set 'e'"):
        structured_readout(graph({**node_sizes, "_shadow/e": 4}, edge_sets), "edge", "rate")


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        ({"_readout/s": [(0, 1), (1, 0)]}, r"edge set '_readout/s': target 0 at edge 1 does not ascend"),
        ({"_readout/s": [(0, 0), (1, 0)]}, r"edge set '_readout/s': target 0 at edge 1 does not ascend"),
        ({"_readout/s": [(0, 0)]}, r"key 's' of _readout: 1 edges of _readout/s do not read out each of 2 predictions"),
        ({"_readout/s/1": [(0, 0), (1, 1)], "_readout/s/2": [(0, 1)]}, r"3 edges of _readout/s/1, _readout/s/2 do not"),
    ],
)
def test_wrong_indices_are_named(sets, match):
    made = {name: edges(pairs, "a" if name != "_readout/s/2" else "b") for name, pairs in sets.items()}
    with pytest.raises(SchemaError, match=match):
        check_readout(graph({"a": 2, "b": 1, "_readout": 2}, made))


def test_missing_readouts_are_named():
    one = graph({"a": 1, "_readout": 0}, {})
    check_readout(one)
    with pytest.raises(SchemaError, match=r"_readout has no key 's'; known: none"):
        check_readout(one, keys=["s"])
    with pytest.raises(SchemaError, match=r"node set '_readout:x' does not exist; known: _readout, a"):
        check_readout(one, "_readout:x")


def test_the_first_node_of_each_component_is_added_as_a_readout():
    two = GraphPieces(
        component_offsets=np.array([0, 2, 3]),
        node_sets={"a": NodePieces(sizes=np.array([2, 1, 3]), features={"h": FeatureValues.of(np.arange(6))})},
    )
    with_seed = add_readout_from_first_node(two, "seed", "a")
    assert with_seed.edge_sets["_readout/seed"].source.tolist() == [0, 2, 0]
    assert with_seed.edge_sets["_readout/seed"].target.tolist() == [0, 1, 0]
    assert structured_readout(with_seed, "seed", "h").tolist() == [0, 2, 3]
    both = add_readout(with_seed, {"other": ("a", np.array([1, 2, 2]))})
    assert structured_readout(both, "other", "h").tolist() == [1, 2, 5]
    with pytest.raises(SchemaError, match=r"_readout has key 'seed' already, in _readout/seed"):
        add_readout_from_first_node(both, "seed", "a")
    with pytest.raises(SchemaError, match=r"node set 'b' does not exist; known: a"):
        add_readout_from_first_node(two, "seed", "b")
    empty = GraphPieces(component_offsets=np.array([0, 2]), node_sets={"a": NodePieces(sizes=np.array([1, 0]))})
    with pytest.raises(SchemaError, match=r"component 1 has no node in 'a' to read out"):
        add_readout_from_first_node(empty, "seed", "a")


def test_labels_lie_with_the_predictions():
    one = graph({"a": 2}, {})
    labels = {"label": FeatureValues.of(np.array([7]))}
    with_label = add_readout(one, {"seed": ("a", np.array([1]))}, node_set="_readout:x", features=labels)
    assert with_label.node_sets["_readout:x"].features["label"].tolist() == [7]
    check_readout(with_label, "_readout:x", ["seed"])
    with pytest.raises(SchemaError, match=r"'_readout:x' exists already, with other predictions or values"):
        add_readout(with_label, {"t": ("a", np.array([1]))}, node_set="_readout:x", features=labels)
    with pytest.raises(SchemaError, match=r"'seeds' is called neither _readout nor"):
        add_readout(one, {}, node_set="seeds")
