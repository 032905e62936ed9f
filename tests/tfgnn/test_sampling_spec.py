"""Checks that specs are read, and that contradictions with the schema name the op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.graph_schema import parse_schema, read_schema
from hopstream.tfgnn.sampling_spec import (
    RANDOM_UNIFORM,
    TOP_K,
    check_spec,
    parse_spec,
    read_spec,
    seed_of,
    strategy_of,
    uniform_by_default,
)

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tfgnn"
SCHEMA = """
node_sets { key: "paper" value {} } node_sets { key: "author" value {} }
edge_sets { key: "cites" value { source: "paper" target: "paper"
  features { key: "weight" value { dtype: DT_FLOAT } } } }
edge_sets { key: "writes" value { source: "author" target: "paper" } }
edge_sets { key: "written" value { source: "paper" target: "author" } }
"""
SEED = 'seed_op < op_name: "seed" node_set_name: "paper" > '


def op(name="a", edge_set="cites", inputs=("seed",), size=3, strategy="RANDOM_UNIFORM"):
    named = " ".join(f'input_op_names: "{i}"' for i in inputs)
    rest = f'edge_set_name: "{edge_set}" sample_size: {size} strategy: {strategy}'
    return f'sampling_ops < op_name: "{name}" {named} {rest} >'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (op(), "the spec has no seed_op"),
        (SEED.replace("paper", "topic"), "seed op 'seed': unknown node set 'topic'; known: author, paper"),
        (SEED + op(edge_set="likes"), "op 'a': unknown edge set 'likes'; known: cites, writes, written"),
        (SEED + op(size=0), "op 'a': sample_size is 0; give 1 or more"),
        (SEED + op(inputs=()), "op 'a' has no input_op_names"),
        (SEED + op(inputs=("b",)), "op 'a': input op 'b' does not exist; known: seed"),
        (SEED + op(inputs=("b",)) + op("b"), "op 'a': input op 'b' comes later; put ops behind their inputs"),
        (SEED + op() + op(), "op 'a' occurs twice"),
        (SEED + op("seed"), "op 'seed' occurs twice"),
        (SEED + op(""), "sampling_ops[0] has no op_name"),
        (
            SEED + op(edge_set="writes"),
            "input op 'seed' reaches node set 'paper'; edge set 'writes' starts from 'author'",
        ),
        (
            SEED + op(edge_set="written", strategy="TOP_K"),
            "op 'a': TOP_K needs weights; edge set 'written' has no feature #weight or weight; write RANDOM_UNIFORM, "
            "or call the feature of weights 'weight'",
        ),
        ('symmetric_link_seed_op < op_name: "seed" >', "needs edge set '_readout/source' in the schema"),
    ],
)
def test_each_rule_has_its_error(text, match):
    with pytest.raises(SchemaError, match=re.escape(match)):
        check_spec(parse_spec(text), parse_schema(SCHEMA))


LONG = "x" * 200_000


@pytest.mark.parametrize(
    "text",
    [
        SEED.replace("paper", LONG),
        SEED.replace('"seed"', f'"{LONG}"') + op(),
        SEED + op(LONG, edge_set=LONG, inputs=(LONG,), size=0),
        SEED + op(LONG) + op(LONG),
        SEED + op(LONG, "writes") + op("b", inputs=("b",)) + op("c", inputs=("d",)) + op("d", inputs=(LONG, "e")),
    ],
)
def test_long_names_are_cut(text: str):
    with pytest.raises(SchemaError, match=r"x'… \(200,000 characters\)") as caught:
        check_spec(parse_spec(text), parse_schema(SCHEMA))
    assert len(str(caught.value)) < 5000


def test_right_specs_are_accepted():
    schema = parse_schema(SCHEMA)
    check_spec(parse_spec(SEED), schema)
    check_spec(parse_spec(SEED + op(strategy="TOP_K") + op("b", "written", ("seed", "a"), 9, "LATEST_K")), schema)


def test_links_start_from_the_node_sets_of_their_ends():
    readout = """
    node_sets { key: "_readout" value {} }
    edge_sets { key: "_readout/source" value { source: "paper" target: "_readout" } }
    edge_sets { key: "_readout/target" value { source: "paper" target: "_readout" } }
    """
    spec = parse_spec('symmetric_link_seed_op < op_name: "seed" >' + op())
    schema = parse_schema(SCHEMA + readout)
    check_spec(spec, schema)
    assert seed_of(spec, schema) == ("seed", ("paper", "paper"))
    both = parse_spec('symmetric_link_seed_op < op_name: "seed" >' + op() + op("b", "writes", ("seed",)))
    with pytest.raises(SchemaError, match="op 'b': input op 'seed' reaches node set 'paper'; edge set 'writes' starts"):
        check_spec(both, schema)
    schema.edge_sets["_readout/target"].source = "author"
    assert seed_of(spec, schema) == ("seed", ("paper", "author"))
    check_spec(both, schema)
    schema.edge_sets["_readout/source"].source = "topic"
    with pytest.raises(SchemaError, match="seed op 'seed': unknown node set 'topic'; known: _readout, author, paper"):
        check_spec(both, schema)


def test_the_context_is_not_listed_among_node_sets():
    schema = parse_schema(SCHEMA + 'node_sets { key: "#context" value {} }')
    with pytest.raises(SchemaError, match=r"unknown node set 'topic'; known: author, paper$"):
        check_spec(parse_spec(SEED.replace("paper", "topic")), schema)


def test_all_errors_are_listed_at_once():
    with pytest.raises(SchemaError, match=r"f:\n  op 'a': sample_size is 0.*\n  op 'b': unknown edge set 'x'"):
        check_spec(parse_spec(SEED + op(size=0) + op("b", "x")), parse_schema(SCHEMA), "f")


def test_error_names_an_invalid_spec_file(tmp_path):
    (tmp_path / "s.pbtxt").write_text(SEED + "\nsampling_ops { sample_size: many }")
    with pytest.raises(FormatError, match=r"s.pbtxt: not a SamplingSpec: 2:29"):
        read_spec(tmp_path / "s.pbtxt")
    with pytest.raises(FormatError, match=r"t.pbtxt does not exist"):
        read_spec(tmp_path / "t.pbtxt")


@pytest.mark.skipif(not DATA.is_dir(), reason="the data of others is not part of the project")
@pytest.mark.parametrize("name", ["mag", "creditcard"])
def test_specs_from_other_projects_are_accepted(name):
    spec = read_spec(DATA / name / "sampling_spec.pbtxt")
    check_spec(spec, read_schema(DATA / name / "graph_schema.pbtxt"))
    assert len(spec.sampling_ops) == {"mag": 5, "creditcard": 1}[name]


@pytest.mark.parametrize(("weight", "wanted"), [("", RANDOM_UNIFORM), ("#weight", TOP_K), ("weight", TOP_K)])
def test_an_op_without_strategy_draws_by_weight_if_present(weight, wanted):
    feature = f'features {{ key: "{weight}" value {{ dtype: DT_FLOAT }} }}' if weight else ""
    text = SCHEMA.replace('key: "writes" value { ', f'key: "writes" value {{ {feature} ')
    spec, schema = parse_spec(SEED + op().replace("strategy: RANDOM_UNIFORM", "")), parse_schema(text)
    spec.sampling_ops[0].edge_set_name, spec.seed_op.node_set_name = "writes", "author"
    check_spec(spec, schema)
    assert strategy_of(spec.sampling_ops[0], schema.edge_sets["writes"]) == wanted
    assert uniform_by_default(spec, schema) == (["a"] if wanted == RANDOM_UNIFORM else [])
