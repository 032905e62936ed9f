"""Checks that schemas and specs agree, and that every difference between two of them is named."""

from __future__ import annotations

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.errors import FormatError, SchemaError
from tests.compat.tfgnn.graphs import LINKS, links_spec, students, two_components


def test_a_spec_matches_its_schema():
    spec = links_spec()
    assert spec.node_sets_spec["users"]["tags"] == tfgnn.TensorSpec((None, None, None), "string")
    assert spec.context_spec["label"] == tfgnn.TensorSpec((1, 2), "string")
    assert spec.node_sets_spec["latent"].features_spec == {}
    ends = spec.edge_sets_spec["buys"].adjacency_spec
    assert (ends.source_name, ends.node_set_name(tfgnn.TARGET)) == ("users", "items")
    assert spec.node_sets_spec["users"]["tags"].is_ragged and not spec.node_sets_spec["users"]["h"].is_ragged
    assert (spec.rank, spec.num_components, spec.indices_dtype) == (0, 1, np.int32)
    assert links_spec(indices_dtype=np.int64).indices_dtype == np.int64
    with pytest.raises(SchemaError, match=r"indices_dtype is float32; use int32 or int64"):
        links_spec(indices_dtype=np.float32)


def test_a_schema_survives_a_round_trip_through_a_spec(tmp_path):
    schema = tfgnn.parse_schema(LINKS.encode())
    assert tfgnn.create_schema_pb_from_graph_spec(links_spec()) == schema
    tfgnn.write_schema(schema, str(tmp_path / "schema.pbtxt"))
    assert tfgnn.read_schema(tmp_path) == schema and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FormatError, match=r"not UTF-8 at byte 0"):
        tfgnn.parse_schema(b"\xff")


def test_a_graph_returns_its_schema():
    graph = two_components()
    schema = tfgnn.create_schema_pb_from_graph_spec(graph)
    assert schema.edge_sets["knows"].source == "users" and len(schema.context.features) == 1
    assert [dim.size for dim in schema.node_sets["users"].features["h"].shape.dim] == [2]
    strange = graph.replace_features(node_sets={"users": {"c": np.zeros(4, np.complex64)}})
    with pytest.raises(SchemaError, match=r"nodes/users.c is complex64; use one of float32"):
        tfgnn.create_schema_pb_from_graph_spec(strange)


def test_pieces_of_a_spec_are_put_together():
    sizes = tfgnn.TensorSpec((1,), "int32")
    users = tfgnn.NodeSetSpec.from_field_specs(
        features_spec={"h": tfgnn.TensorSpec((None, 2), "float32")}, sizes_spec=sizes
    )
    ends = tfgnn.AdjacencySpec.from_incident_node_sets("users", "users")
    knows = tfgnn.EdgeSetSpec.from_field_specs(sizes_spec=sizes, adjacency_spec=ends)
    context = tfgnn.ContextSpec.from_field_specs(features_spec={"c": tfgnn.TensorSpec((1,), "string")})
    spec = tfgnn.GraphTensorSpec.from_piece_specs(context, {"users": users}, {"knows": knows})
    made = tfgnn.random_graph_tensor(spec, rng_seed=0)
    assert spec.is_compatible_with(made)
    assert tfgnn.GraphTensorSpec.from_piece_specs(node_sets_spec={"users": users}).num_components == 1
    assert tfgnn.GraphTensorSpec.from_piece_specs().node_sets_spec == {}
    with pytest.raises(SchemaError, match=r"edge set 'knows' connects node set 'users'; known: "):
        tfgnn.GraphTensorSpec.from_piece_specs(edge_sets_spec={"knows": knows})
    two = tfgnn.NodeSetSpec.from_field_specs(sizes_spec=tfgnn.TensorSpec((2,), "int32"))
    with pytest.raises(SchemaError, match=r"pieces have sizes of different shapes: \['\(1,\)', '\(2,\)'\]"):
        tfgnn.GraphTensorSpec.from_piece_specs(context, {"users": two})


STUDENTS = """
  node_sets { key: "students" value {
    features { key: "scores" value { dtype: DT_INT32 shape { dim { size: -1 } } } } } }
"""
FIRST = 'node_sets { key: "a" value { features { key: "f" value { dtype: DT_FLOAT shape { dim { size: 2 } } } } } }'
EDGE = 'edge_sets { key: "e" value { source: "a" target: "a" } }'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (FIRST, None),
        (FIRST.replace("DT_FLOAT", "DT_INT64"), r"nodes/a.f is float32\[2, 2\]; wanted int64\[None, 2\]"),
        (FIRST.replace("2", "3"), r"nodes/a.f is float32\[2, 2\]; wanted float32\[None, 3\]"),
        (FIRST.replace('"f"', '"g"'), r"nodes/a.f is in one of them only; nodes/a.g is in one of them only"),
        (FIRST + EDGE, r"edges/e is in one of them only"),
        ('context { features { key: "c" value { dtype: DT_BOOL } } }' + FIRST, r"context.c is in one of them only"),
    ],
)
def test_graphs_are_compared_with_schemas(text, match):
    graph = tfgnn.GraphTensor.from_pieces(
        node_sets={"a": tfgnn.NodeSet.from_fields(sizes=[2], features={"f": [[0.5, 1.5]] * 2})}
    )
    if match is None:
        tfgnn.check_compatible_with_schema_pb(graph, tfgnn.parse_schema(text))
        return
    with pytest.raises(SchemaError, match=match):
        tfgnn.check_compatible_with_schema_pb(graph, tfgnn.parse_schema(text))


def test_uniform_lists_are_refused_for_ragged_features():
    schema = tfgnn.parse_schema(STUDENTS)
    tfgnn.check_compatible_with_schema_pb(students([[1, 2], [3]]), schema)
    tfgnn.check_compatible_with_schema_pb(students(tfgnn.ragged_constant([[1, 2], [3, 4]])), schema)
    wanted = r"scores is int32\[2, 2\]; wanted int32\[None, None\], from ragged_constant"
    with pytest.raises(SchemaError, match=wanted):
        tfgnn.check_compatible_with_schema_pb(students([[1, 2], [3, 4]]), schema)
    halves = schema.node_sets["students"].features["scores"]
    halves.CopyFrom(tfgnn.parse_schema(FIRST.replace("DT_FLOAT", "DT_BFLOAT16")).node_sets["a"].features["f"])
    tfgnn.check_compatible_with_schema_pb(students([[0.5, 1.5]]), schema)  # held as float32


def test_edges_that_connect_other_sets_are_named():
    graph = tfgnn.homogeneous([0], [0], node_set_sizes=[1], node_set_name="a", edge_set_name="e")
    sets = "".join(f'node_sets {{ key: "{name}" value {{ }} }}' for name in "ab")
    text = sets + EDGE.replace('target: "a"', 'target: "b"')
    with pytest.raises(SchemaError, match=r"edges/e connects other node sets; nodes/b is in one of them only"):
        tfgnn.check_compatible_with_schema_pb(graph, tfgnn.parse_schema(text))


@pytest.mark.parametrize(
    ("required", "match"),
    [
        (FIRST, None),
        (FIRST.replace("size: 2", "size: 0"), None),
        ('node_sets { key: "a" value { features { key: "f" value { } } } }', None),
        (FIRST.replace("DT_FLOAT", "DT_INT64"), r"nodes/a.f is float32; wanted int64"),
        (FIRST.replace("size: 2", "size: 3"), r"nodes/a.f has shape \[2\]; wanted \[3\]"),
        (FIRST.replace("dim { size: 2 }", "dim { size: 2 } dim { size: 2 }"), r"has shape \[2\]; wanted \[2, 2\]"),
        (FIRST.replace('"f"', '"g"'), r"nodes/a.g is missing"),
        (EDGE, r"edges/e is missing"),
        ('context { features { key: "c" value { dtype: DT_BOOL } } }', r"context/c is missing"),
    ],
)
def test_missing_required_features_are_named(required, match):
    actual = tfgnn.parse_schema(FIRST + ' node_sets { key: "other" value { } }')
    if match is None:
        tfgnn.check_required_features(tfgnn.parse_schema(required), actual)
        return
    with pytest.raises(tfgnn.ValidationError, match=match):
        tfgnn.check_required_features(tfgnn.parse_schema(required), actual)


def test_sets_and_features_are_listed():
    schema = tfgnn.parse_schema(LINKS)
    kinds = [(kind, name) for kind, name, _ in tfgnn.iter_sets(schema)]
    assert kinds[0] == ("context", "") and ("nodes", "latent") in kinds and len(kinds) == 12
    assert ("edges", "buys", "when") in [key[:3] for key in tfgnn.iter_features(schema)]
    graph = two_components()
    assert [key[:3] for key in tfgnn.iter_features(graph)] == [
        ("context", "", "name"), ("nodes", "users", "h"), ("edges", "knows", "w"),
    ]  # fmt: skip


def test_schemas_are_checked():
    with pytest.raises(tfgnn.ValidationError, match=r"node set 'a': feature 'f' has no dtype"):
        tfgnn.validate_schema(tfgnn.parse_schema('node_sets { key: "a" value { features { key: "f" value { } } } }'))
    (remark,) = tfgnn.validate_schema(tfgnn.parse_schema(FIRST.replace("size: 2", "size: 1")))
    assert "shape [1]" in str(remark)
