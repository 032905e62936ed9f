"""Checks that graph tensors hold their pieces, and that wrong pieces are refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.arrays import RaggedArray
from hopstream.errors import SchemaError, UnknownNameError
from tests.compat.tfgnn.graphs import SCORES, as_lists, students, two_components


def test_pieces_return_their_inputs():
    graph = two_components()
    users, knows = graph.node_sets["users"], graph.edge_sets["knows"]
    assert (graph.rank, graph.shape, graph.num_components, graph.total_num_components) == (0, (), 2, 2)
    assert (users.total_size, knows.total_size, users.num_components) == (4, 3, 2)
    assert users["h"].shape == (4, 2) and users["h"].dtype == np.float64  # an array keeps its dtype
    assert knows["w"].dtype == np.int32  # a list gets TensorFlow's dtype
    assert graph.context["name"].tolist() == [b"a", b"b"]
    assert graph.context.sizes.tolist() == [1, 1]
    ends = knows.adjacency
    assert ends.source.tolist() == ends[tfgnn.SOURCE].tolist() == [0, 2, 3]
    assert ends.get_indices_dict()[tfgnn.TARGET][0] == ends.node_set_name(tfgnn.TARGET) == "users"
    assert list(users.features) == ["h"] and list(users.get_features_dict()) == ["h"]
    assert "'h': [4, 2]" in repr(users.features)
    with pytest.raises(UnknownNameError, match=r"node set has no feature 'x'; known: h"):
        users["x"]
    with pytest.raises(UnknownNameError, match=r"edges have no end 2; use SOURCE, 0, or TARGET, 1"):
        ends[2]


def test_lists_have_the_dtypes_that_tensorflow_gives_them():
    graph = students([[1], [2]], real=[0.5, 1.5], large=[1 << 40, 0], flag=[True, False], text=["a", "ß"])
    found = {name: field.dtype for name, field in graph.node_sets["students"].features.items()}
    assert found == {
        "scores": np.int32, "real": np.float32, "large": np.int64, "flag": np.bool_, "text": np.object_,
    }  # fmt: skip
    assert graph.node_sets["students"]["text"].tolist() == [b"a", "ß".encode()]
    assert graph.indices_dtype == np.int32
    sizes = tfgnn.NodeSet.from_fields(sizes=np.array([2]))
    both = tfgnn.GraphTensor.from_pieces(node_sets={**graph.node_sets, "more": sizes})
    assert both.indices_dtype == both.node_sets["students"].sizes.dtype == np.int64


def test_values_that_vary_in_size_stay_ragged():
    rows = RaggedArray.from_rows([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    graph = students([[1, 2], [3, 4]], rows=rows, constant=tfgnn.ragged_constant([[[1], [2]], [[3], [4]]], 1))
    spec = graph.node_sets["students"].spec
    assert {name: of.shape for name, of in spec.features_spec.items()} == {
        "scores": (2, 2), "rows": (2, None), "constant": (2, None, 1),
    }  # fmt: skip
    assert isinstance(graph.node_sets["students"]["rows"], tfgnn.FeatureValues)
    assert graph.node_sets["students"]["constant"].tolist() == [[[1], [2]], [[3], [4]]]
    assert tfgnn.ragged_constant(SCORES).dims[0].tolist() == [3, 1, 4]
    with pytest.raises(SchemaError, match=r"ragged_rank is 2; lists this deep have 0 to 1"):
        tfgnn.ragged_constant(SCORES, 2)


def test_empty_features_keep_their_dtype_and_shape():
    text = 'node_sets { key: "a" value { features { key: "s" value { dtype: DT_STRING shape { dim { size: 2 } } } } } }'
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(text))
    graph = tfgnn.parse_single_example(spec, b"")
    again = graph.replace_features(node_sets={"a": {**graph.node_sets["a"].features, "t": np.array([], "U3")}})
    assert again.node_sets["a"].spec["s"] == tfgnn.TensorSpec((0, 2), "string")
    assert again.node_sets["a"]["s"].shape == (0, 2) and again.node_sets["a"].spec["t"].dtype == "string"
    rows = np.empty(2, object)
    rows[:] = [[1], [2, 3]]
    assert students(rows).node_sets["students"]["scores"].tolist() == [[1], [2, 3]]


def test_features_are_replaced_and_removed():
    graph = two_components()
    other = graph.replace_features(
        context={},
        node_sets={"users": {**graph.node_sets["users"].features, "n": [1, 2, 3, 4]}},
        edge_sets={"knows": {}},
    )
    assert list(other.node_sets["users"].features) == ["h", "n"] and not other.edge_sets["knows"].features
    assert not other.context.features and list(graph.context.features) == ["name"]  # the first one is as it was
    assert other.context.sizes.tolist() == [1, 1]
    removed = other.remove_features(node_sets={"users": ["h"]})
    assert list(removed.node_sets["users"].features) == ["n"]
    assert list(graph.remove_features(context=["name"], edge_sets={"knows": ["w"]}).edge_sets["knows"].features) == []
    for wrong, match in (
        ({"node_sets": {"items": {}}}, r"node set 'items' does not exist; known: users"),
        ({"edge_sets": {"knows": {"w": [1]}}}, r"edge set.w has values of 1 items; sizes are \[2, 1\]"),
    ):
        with pytest.raises(SchemaError, match=match):
            graph.replace_features(**wrong)
    with pytest.raises(SchemaError, match=r"node set 'users': feature 'x' does not exist; known: h"):
        graph.remove_features(node_sets={"users": ["x"]})


def edges(source, target, sizes, source_set="users", target_set="users"):
    adjacency = tfgnn.Adjacency.from_indices((source_set, source), (target_set, target))
    return tfgnn.EdgeSet.from_fields(sizes=sizes, adjacency=adjacency)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: edges([0], [0, 1], [2]), r"there are 1 sources and 2 targets"),
        (lambda: edges([0.5], [0], [1]), r"source is float32|source is float64"),
        (lambda: edges(["a"], [0], [1]), r"source is strings\[1\]; indices are integers"),
        (lambda: edges([0], [1], [2]), r"the adjacency has 1 edges; sizes \[2\] have 2"),
        (lambda: tfgnn.NodeSet.from_fields(sizes=[-1]), r"sizes of a node set hold -1"),
        (lambda: tfgnn.NodeSet.from_fields(sizes=3), r"sizes of a node set have shape \[\]"),
        (lambda: tfgnn.NodeSet.from_fields(sizes=[1.5]), r"sizes of a node set is float64"),
        (lambda: students([[1], [2]], n=[1]), r"node set.n has values of 1 items; sizes are \[2\]"),
        (lambda: students([[1], 2]), r"lists are not equally deep|lists hold"),
    ],
)
def test_wrong_pieces_are_named(make, match):
    with pytest.raises(SchemaError, match=match):
        make()


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        ({"knows": edges([0], [4], [1])}, r"edge set 'knows': target 4 of edge 0 is not a node; 'users' has 4"),
        ({"knows": edges([-1], [0], [1])}, r"edge set 'knows': source -1 of edge 0 is not a node"),
        (
            {"buys": edges([0], [0], [1], target_set="items")},
            r"'buys' has target 'items', which is not a node set",
        ),
        (
            {"knows": edges([0], [0], [1, 0])},
            r"'knows' has sizes of shape \[2\]; those of the context are \[1\]",
        ),
    ],
)
def test_pieces_that_do_not_fit_together_are_named(pieces, match):
    with pytest.raises(SchemaError, match=match):
        tfgnn.GraphTensor.from_pieces(node_sets={"users": tfgnn.NodeSet.from_fields(sizes=[4])}, edge_sets=pieces)


def batch_of_two():
    """Two graphs of one component: two users, and one."""
    adjacency = tfgnn.Adjacency.from_indices(("users", [[0, 1], [0]]), ("users", [[1, 1], [0]]))
    return tfgnn.GraphTensor.from_pieces(
        tfgnn.Context.from_fields(features={"name": [["a"], ["b"]]}, shape=[2]),
        {"users": tfgnn.NodeSet.from_fields(sizes=[[2], [1]], features={"h": [[[1.0], [2.0]], [[3.0]]]})},
        {"knows": tfgnn.EdgeSet.from_fields(sizes=[[2], [1]], adjacency=adjacency)},
    )


def test_a_batch_has_a_row_per_graph():
    batch = batch_of_two()
    assert (batch.rank, batch.shape, batch.total_num_components) == (1, (2,), 2)
    assert batch.num_components.tolist() == [1, 1]
    assert batch.context["name"].tolist() == [[b"a"], [b"b"]]
    assert batch.node_sets["users"]["h"].tolist() == [[[1.0], [2.0]], [[3.0]]]
    assert batch.edge_sets["knows"].adjacency.source.tolist() == [[0, 1], [0]]
    shapes = [of.shape for of in (batch.node_sets["users"].spec["h"], batch.context.spec["name"])]
    assert shapes == [(2, None, 1), (2, 1)] and batch.spec.rank == 1
    with pytest.raises(SchemaError, match=r"node set.h has 1 rows; a batch has one per graph: \[2, 1\] items"):
        batch.replace_features(node_sets={"users": {"h": [[1.0, 2.0, 3.0]]}})
    with pytest.raises(SchemaError, match=r"target 1 of edge 2 is not a node; 'users' has 1"):
        wrong = tfgnn.Adjacency.from_indices(("users", [[0, 1], [0]]), ("users", [[1, 1], [1]]))
        edge_set = tfgnn.EdgeSet.from_fields(sizes=[[2], [1]], adjacency=wrong)
        tfgnn.GraphTensor.from_pieces(node_sets=batch.node_sets, edge_sets={"knows": edge_set})


def test_a_batch_becomes_the_components_of_one_graph():
    merged = batch_of_two().merge_batch_to_components()
    assert merged.merge_batch_to_components() is merged
    assert (merged.rank, merged.num_components) == (0, 2)
    assert as_lists(merged) == {
        "context": {"name": [b"a", b"b"]},
        "nodes/users": {"h": [[1.0], [2.0], [3.0]], "#size": [2, 1]},
        "edges/knows": {"#size": [2, 1], "#source": [0, 1, 2], "#target": [1, 1, 2], "ends": ("users", "users")},
    }
    for what in ("write_example", "structured_readout"):
        with pytest.raises(SchemaError, match=rf"{what} takes one graph, got a batch; call merge_batch_to_components"):
            getattr(tfgnn, what)(batch_of_two(), **({"key": "seed", "feature_name": "h"} if "readout" in what else {}))


def test_a_batch_of_no_edges_keeps_its_rows():
    empty = tfgnn.Adjacency.from_indices(("users", [[], []]), ("users", [[], []]))
    edge_set = tfgnn.EdgeSet.from_fields(sizes=[[0], [0]], adjacency=empty)
    assert edge_set.adjacency.source.tolist() == [[], []] and edge_set.total_size == 0
    none = tfgnn.Adjacency.from_indices(("users", []), ("users", []))
    assert tfgnn.EdgeSet.from_fields(sizes=[0], adjacency=none).adjacency.source.dtype == np.int32


def test_components_are_written_and_read():
    graph = two_components()
    spec = graph.spec.relax(num_components=True, num_nodes=True, num_edges=True)
    assert spec.num_components is None and spec.is_compatible_with(graph)
    assert as_lists(tfgnn.parse_single_example(spec, tfgnn.write_example(graph))) == as_lists(graph)
    assert as_lists(tfgnn.parse_single_example(graph.spec, tfgnn.write_example(graph))) == as_lists(graph)


def test_graphs_of_a_batch_have_equally_many_components():
    graph = two_components()
    one = graph.replace_features(context={}, node_sets={"users": {}}, edge_sets={"knows": {}})
    none = tfgnn.Adjacency.from_indices(("users", []), ("users", []))
    single = tfgnn.GraphTensor.from_pieces(
        node_sets={"users": tfgnn.NodeSet.from_fields(sizes=[1])},
        edge_sets={"knows": tfgnn.EdgeSet.from_fields(sizes=[0], adjacency=none)},
    )
    spec = one.spec.relax(num_components=True)
    with pytest.raises(
        SchemaError, match=r"graphs have \[2, 1\] components; those of a batch must have the same number"
    ):
        tfgnn.parse_example(spec, [tfgnn.write_example(one), tfgnn.write_example(single)])
    assert tfgnn.parse_example(spec, [tfgnn.write_example(one)] * 2).num_components.tolist() == [2, 2]


def test_a_graph_of_one_node_set_and_one_edge_set():
    graph = tfgnn.homogeneous([0, 1], [1, 2], node_features=np.zeros((3, 4)), edge_features={"w": [1.0, 2.0]})
    assert graph.node_sets["nodes"][tfgnn.HIDDEN_STATE].shape == (3, 4)
    assert graph.edge_sets["edges"]["w"].tolist() == [1.0, 2.0]
    assert tfgnn.get_homogeneous_node_and_edge_set_name(graph) == ("nodes", "edges")
    seeded = tfgnn.add_readout_from_first_node(graph, "seed", node_set_name="nodes")
    assert tfgnn.get_homogeneous_node_and_edge_set_name(seeded) == ("nodes", "edges")
    two = tfgnn.homogeneous(
        [0, 2], [0, 2], node_set_sizes=[2, 1], edge_set_sizes=[1, 1], node_set_name="a", context_features={"c": [1, 2]}
    )
    assert two.num_components == 2 and two.context["c"].tolist() == [1, 2]
    with pytest.raises(SchemaError, match=r"neither node_features nor node_set_sizes gives the number of nodes"):
        tfgnn.homogeneous([0], [0])
    with pytest.raises(SchemaError, match=r"node sets \['a', 'b'\] and edge sets \[\]; wanted one of each"):
        nodes = tfgnn.NodeSet.from_fields(sizes=[1])
        tfgnn.get_homogeneous_node_and_edge_set_name(tfgnn.GraphTensor.from_pieces(node_sets={"a": nodes, "b": nodes}))


def test_a_graph_tensor_is_shown_in_a_few_lines():
    lines = repr(two_components()).splitlines()
    assert lines[:2] == ["GraphTensor(shape=()", "  context: 2 components, name string[2]"]
    assert "  node set 'users': 4 nodes, h float64[4, 2]" in lines
    assert "  edge set 'knows', 'users' -> 'users': 3 edges, w int32[3]" in lines
    assert lines[-1] == ")" and len(lines) < 8


def test_error_for_an_unknown_set_lists_known_sets():
    graph = tfgnn.GraphTensor.from_pieces(node_sets={"songs": tfgnn.NodeSet.from_fields(sizes=[2], features={})})
    with pytest.raises(UnknownNameError, match="node set 'song' does not exist; known: songs"):
        graph.node_sets["song"]
    with pytest.raises(KeyError, match="edge set 'by' does not exist; known: none"):
        graph.edge_sets["by"]
    assert graph.node_sets.get("song") is None and list(copy.deepcopy(graph).node_sets) == ["songs"]
