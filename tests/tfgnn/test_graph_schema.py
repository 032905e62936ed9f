"""Checks that schemas are read, refused if contradictory, and converted to ours and back."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from hopstream.errors import FormatError, SchemaError
from hopstream.schema import FeatureSchema, GraphSchema
from hopstream.tfgnn.graph_schema import (
    check_schema,
    columns_of,
    message_text,
    parse_schema,
    read_schema,
    schema_message,
    schema_remarks,
)
from hopstream.tfgnn.messages import GRAPH_SCHEMA, message_class

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tfgnn"
NODES = 'node_sets { key: "a" value { } }\n'
LOOP = NODES + 'edge_sets { key: "e" value { source: "a" target: "a" } }'


def feature(words, name="f"):
    return f'features {{ key: "{name}" value {{ {words} }} }}'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f'node_sets {{ key: "a" value {{ {feature("")} }} }}', "node set 'a': feature 'f' has no dtype"),
        (f"context {{ {feature('dtype: DT_INVALID')} }}", "context: feature 'f' has no dtype"),
        (f"context {{ {feature('dtype: DT_COMPLEX64')} }}", "feature 'f' has dtype DT_COMPLEX64; use one of DT_FLOAT"),
        (
            f"context {{ {feature('dtype: DT_FLOAT shape { unknown_rank: true }')} }}",
            "context: feature 'f' has a shape of unknown rank",
        ),
        (
            "context { " + feature('dtype: DT_FLOAT shape { dim { size: 3 name: "how it came" } }') + " }",
            "has a dimension with the name 'how it came'; a description belongs to the feature",
        ),
        (
            f'node_sets {{ key: "a" value {{ {feature("dtype: DT_INT64", "#size")} }} }}',
            "node set 'a': feature '#size' has a reserved name",
        ),
        (
            LOOP.replace("target:", feature("dtype: DT_INT64", "#source") + " target:"),
            "edge set 'e': feature '#source' has a reserved name",
        ),
        (
            f'node_sets {{ key: "a" value {{ {feature("dtype: DT_INT64 shape { dim { size: -1 } }")} '
            f'{feature("dtype: DT_INT64", "f.d1")} }} }}',
            "its row lengths are called f.d1, like another feature",
        ),
        ('node_sets { key: "a" value { context: "c" } }', "set 'a' names context feature 'c', which does not exist"),
        (NODES + 'edge_sets { key: "e" value { source: "a" } }', "edge set 'e' has no target"),
        (
            NODES + 'edge_sets { key: "e" value { source: "a" target: "b" } }',
            "edge set 'e' has target 'b', which is not a node set; known: a",
        ),
        (NODES + 'edge_sets { key: "" value { source: "a" target: "a" } }', "an edge set has no name"),
        (NODES + 'info { root_set: "b" }', "info.root_set names 'b', which is not a node set"),
        ('node_sets { key: "_readout-1" value { } }', "node set '_readout-1' is called neither _readout nor"),
        ('node_sets { key: "_shadow/e" value { } }', "'_shadow/e' stands for edge set 'e', which does not exist"),
        (
            NODES + 'edge_sets { key: "_readout" value { source: "a" target: "a" } }',
            "edge set '_readout' is called neither _readout/<key> nor",
        ),
        (
            NODES + 'edge_sets { key: "_readout/s" value { source: "a" target: "a" } }',
            "edge set '_readout/s' goes to 'a'; its target is '_readout'",
        ),
        (
            NODES + 'node_sets { key: "_readout" value { } }'
            'edge_sets { key: "_readout/s/1" value { source: "a" target: "_readout" } }'
            'edge_sets { key: "_readout/s/2" value { source: "a" target: "_readout" } }',
            "edge sets '_readout/s/1' and '_readout/s/2' both read key 's' from node set 'a'",
        ),
    ],
)  # fmt: skip
def test_each_rule_has_its_error(text, match):
    with pytest.raises(SchemaError, match=re.escape(match)):
        check_schema(parse_schema(text))


def test_all_errors_are_listed_at_once():
    text = NODES + 'edge_sets { key: "e" value { } }'
    with pytest.raises(SchemaError, match=r"here:\n  edge set 'e' has no source\n  edge set 'e' has no target"):
        check_schema(parse_schema(text), "here")


def test_error_names_the_line_of_an_invalid_schema(tmp_path):
    path = tmp_path / "g.pbtxt"
    path.write_text("node_sets {\n  kay: 3\n}")
    with pytest.raises(FormatError, match=r"g.pbtxt: not a GraphSchema: 2:3 .*kay"):
        read_schema(path)
    path.write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"g.pbtxt: not a GraphSchema: not UTF-8 at byte 0"):
        read_schema(path)
    path.write_text("context { features { key: 'x' value { shape {" * 2000)
    with pytest.raises(FormatError, match=r"not a GraphSchema"):
        read_schema(path)


def test_a_folder_holds_one_schema(tmp_path):
    with pytest.raises(FormatError, match=r"has 0 files \*.pbtxt; give the one"):
        read_schema(tmp_path)
    (tmp_path / "g.pbtxt").write_text(NODES)
    assert list(read_schema(tmp_path).node_sets) == ["a"]
    (tmp_path / "spec.pbtxt").write_text("")
    with pytest.raises(FormatError, match=r"has 2 files \*.pbtxt: g.pbtxt, spec.pbtxt; give the one"):
        read_schema(tmp_path)
    with pytest.raises(FormatError, match=r"none.pbtxt does not exist"):
        read_schema(tmp_path / "none.pbtxt")


def test_the_binary_form_keeps_unknown_fields(tmp_path):
    schema = parse_schema(
        NODES + 'edge_sets { key: "e" value { source: "a" target: "a" metadata { cardinality: 3 } } }'
    )
    data = schema.SerializeToString() + b"\x98\x06\x01"
    (tmp_path / "g.pb").write_bytes(data)
    again = read_schema(tmp_path / "g.pb")
    assert again.edge_sets["e"].metadata.cardinality == 3 and again.SerializeToString().endswith(b"\x98\x06\x01")
    assert b"\x22" in again.edge_sets["e"].SerializeToString()  # field 4, the target
    (tmp_path / "g.pb").write_bytes(b"\x0a\xff")
    with pytest.raises(FormatError, match=r"g.pb: not a GraphSchema"):
        read_schema(tmp_path / "g.pb")


def test_schemas_survive_a_round_trip_through_tfgnn():
    ours = GraphSchema(
        nodes={
            "a": {"x": FeatureSchema(dtype="float32", shape=(3, 2)), "name": FeatureSchema(dtype="string")},
            "b": {"r": FeatureSchema(dtype="int16", shape=(2,), is_ragged=True)},
        },
        edges={
            ("a", "to", "b"): {"w": FeatureSchema(dtype="float64")}, ("a", "is", "a"): {}, ("b", "is", "a"): {},
        },
    )  # fmt: skip
    message = schema_message(ours)
    check_schema(message)
    assert sorted(message.edge_sets) == ["a__is__a", "b__is__a", "to"]
    assert parse_schema(message_text(message)) == message
    assert {name: columns_of(of.features, name) for name, of in message.node_sets.items()} == ours.nodes
    assert columns_of(message.edge_sets["to"].features, "to") == ours.edges[("a", "to", "b")]
    with pytest.raises(SchemaError, match=r"a.c is complex64"):
        schema_message(GraphSchema(nodes={"a": {"c": FeatureSchema(dtype="complex64")}}, edges={}))


def test_features_that_no_column_holds_are_named():
    words = "dtype: DT_FLOAT shape { dim { size: 2 } dim { size: -1 } }"
    nodes = parse_schema(f'node_sets {{ key: "a" value {{ {feature(words)} }} }}').node_sets["a"]
    with pytest.raises(SchemaError, match=r"a: feature 'f' is float32\[2, None\]; a column holds"):
        columns_of(nodes.features, "a")


def test_unusual_features_get_remarks():
    words = feature("dtype: DT_INT64 shape { dim { size: 1 } }") + feature("dtype: DT_DOUBLE", "d")
    remarks = list(schema_remarks(parse_schema(f'node_sets {{ key: "a" value {{ {words} }} }}')))
    assert remarks == [
        "node set 'a': feature 'd' is DT_DOUBLE, which is stored as DT_FLOAT",
        "node set 'a': feature 'f' has shape [1]; leave the shape out for one value per item",
    ]


def test_compiled_messages_are_those_that_are_declared():
    """Every name with a number in ``protos/*.proto`` is in ``messages.binpb`` with that number."""
    protos = resources.files("hopstream.tfgnn") / "protos"
    for file in FileDescriptorSet.FromString((protos / "messages.binpb").read_bytes()).file:
        declared = re.findall(r"(\w+) = (\d+)[ ;]", (protos / file.name).read_text())
        assert sorted(numbered_names(file)) == sorted((name, int(number)) for name, number in declared), file.name


def numbered_names(holder):
    """Names and numbers of all fields and of all values of enumerations; maps count as one field."""
    for message in [*getattr(holder, "message_type", ()), *getattr(holder, "nested_type", ())]:
        if not message.options.map_entry:
            yield from ((field.name, field.number) for field in message.field)
            yield from numbered_names(message)
    for enum in holder.enum_type:
        yield from ((value.name, value.number) for value in enum.value)


def test_messages_have_the_numbers_of_tensorflow_gnn():
    """The numbers are those of its published definitions."""
    fields = {
        name: {field.name: field.number for field in message_class(name).DESCRIPTOR.fields}
        for name in (
            GRAPH_SCHEMA,
            "tensorflow_gnn.Feature",
            "tensorflow_gnn.Metadata",
            "tensorflow_gnn.sampler.SamplingOp",
        )
    }
    assert fields == {
        GRAPH_SCHEMA: {"context": 1, "node_sets": 2, "edge_sets": 3, "info": 4},
        "tensorflow_gnn.Feature": {"description": 1, "dtype": 2, "shape": 3, "source": 4},
        "tensorflow_gnn.Metadata": {"extra": 1, "filename": 2, "cardinality": 3, "bigquery": 4},
        "tensorflow_gnn.sampler.SamplingOp": {
            "op_name": 1, "input_op_names": 2, "edge_set_name": 3, "sample_size": 4, "strategy": 5,
        },
    }  # fmt: skip


@pytest.mark.skipif(not DATA.is_dir(), reason="the data of others is not part of the project")
def test_schemas_from_other_projects_are_accepted():
    paths = [p for p in sorted(DATA.glob("*/*.pbtxt")) if "sampling_spec" not in p.name]
    assert len(paths) == 8
    for path in paths:
        check_schema(read_schema(path), str(path))
    papers = read_schema(DATA / "mag/graph_schema.pbtxt").node_sets["paper"]
    assert columns_of(papers.features, "paper")["feat"].shape == (128,)
