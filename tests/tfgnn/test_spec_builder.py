"""Checks that built specs equal handwritten ones."""

from __future__ import annotations

import pytest

from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.schema import GraphSchema
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.sampling_spec import LATEST_K, RANDOM_UNIFORM, TOP_K, check_spec, parse_spec
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder, make_sampling_spec_tree
from tests.tfgnn.test_sampling_spec import SCHEMA

WEIGHTED = SCHEMA.replace(
    'key: "writes" value { ', 'key: "writes" value { features { key: "#weight" value { dtype: DT_FLOAT } } '
)


def ops(spec):
    return [
        (op.op_name, tuple(op.input_op_names), op.edge_set_name, op.sample_size, op.strategy)
        for op in spec.sampling_ops
    ]


def test_a_line_of_steps():
    schema = parse_schema(SCHEMA)
    spec = SamplingSpecBuilder(schema).seed("paper").sample(8, "cites").sample(4, "written", RANDOM_UNIFORM).build()
    assert (spec.seed_op.op_name, spec.seed_op.node_set_name) == ("SEED->paper", "paper")
    assert ops(spec) == [
        ("paper->paper", ("SEED->paper",), "cites", 8, TOP_K),
        ("paper->author", ("paper->paper",), "written", 4, RANDOM_UNIFORM),
    ]
    check_spec(spec, schema)


def test_steps_that_branch_and_join():
    start = SamplingSpecBuilder(parse_schema(WEIGHTED), RANDOM_UNIFORM).seed("author", "me").sample(10, "writes")
    cited = start.sample(5, "cites", TOP_K)
    others = start.sample(3, "written").sample(2, "writes", op_name="theirs")
    spec = cited.join([others]).sample(10, "cites", LATEST_K).build()
    assert ops(spec) == [
        ("author->paper", ("me",), "writes", 10, RANDOM_UNIFORM),
        ("paper->author", ("author->paper",), "written", 3, RANDOM_UNIFORM),
        ("theirs", ("paper->author",), "writes", 2, RANDOM_UNIFORM),
        ("paper->paper", ("author->paper",), "cites", 5, TOP_K),  # the strategy that has number 0 is kept
        ("(paper->paper|theirs)->paper", ("paper->paper", "theirs"), "cites", 10, LATEST_K),
    ]
    check_spec(spec, parse_schema(WEIGHTED))
    with pytest.raises(SettingsError, match=r"the steps reach different node sets: author, paper"):
        SamplingSpecBuilder.join([start, start.sample(1, "written")])


def test_one_set_need_not_be_named_and_sizes_may_be_several():
    schema = parse_schema('node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" } }')
    spec = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed().sample([10, 5]).sample(2, op_name="x").build()
    assert [op[:2] for op in ops(spec)] == [("n->n", ("SEED->n",)), ("n->n.2", ("n->n",)), ("x", ("n->n.2",))]
    named = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed().sample([3, 2], op_name="y").build()
    assert [op[0] for op in ops(named)] == ["y", "y.2"]


def test_a_tree_follows_every_edge_set():
    schema = parse_schema(SCHEMA + 'edge_sets { key: "_x" value { source: "paper" target: "paper" } }')
    spec = make_sampling_spec_tree(schema, "paper", sample_sizes=[5, 2])
    assert [op[1:4] for op in ops(spec)] == [
        (("SEED->paper",), "written", 5), (("paper->author",), "writes", 2), (("SEED->paper",), "cites", 5),
        (("paper->paper",), "written", 2), (("paper->paper",), "cites", 2),
    ]  # fmt: skip
    check_spec(spec, schema)
    assert not make_sampling_spec_tree(schema, "paper", sample_sizes=[]).sampling_ops


def test_links_are_seeds_of_both_their_ends():
    spec = SamplingSpecBuilder(parse_schema(SCHEMA)).seed_links("paper", "link").sample(8, "cites").build()
    assert spec.WhichOneof("seed_type") == "symmetric_link_seed_op" and spec.symmetric_link_seed_op.op_name == "link"
    assert [op[1] for op in ops(spec)] == [("link",)]
    builder = SamplingSpecBuilder(parse_schema(SCHEMA))
    builder.seed("author")
    with pytest.raises(SettingsError, match=r"starts from 'author' already"):
        builder.seed_links("paper")


def test_links_between_two_node_sets_have_a_step_at_each_end():
    builder = SamplingSpecBuilder(parse_schema(SCHEMA))
    with pytest.raises(UnknownNameError, match=r"unknown node set 'topic'; known: author, paper"):
        builder.seed_links_between("paper", "topic")
    sources, targets = builder.seed_links_between("paper", "author", "link")
    sources.sample(8, "cites")
    spec = targets.sample(4, "writes").build()
    assert spec.symmetric_link_seed_op.op_name == "link"
    assert [op[1:4] for op in ops(spec)] == [(("link",), "writes", 4), (("link",), "cites", 8)]


def test_wrong_steps_are_refused():
    schema = parse_schema(SCHEMA)
    with pytest.raises(SchemaError, match=r"has no seed"):
        SamplingSpecBuilder(schema).build()
    with pytest.raises(SettingsError, match=r"which node set\? There are 2: author, paper"):
        SamplingSpecBuilder(schema).seed()
    with pytest.raises(UnknownNameError, match=r"unknown node set 'topic'; known: author, paper"):
        SamplingSpecBuilder(schema).seed("topic")
    builder = SamplingSpecBuilder(schema)
    seed = builder.seed("paper")
    with pytest.raises(SettingsError, match=r"starts from 'paper' already"):
        builder.seed("author")
    with pytest.raises(UnknownNameError, match=r"unknown edge set 'likes'"):
        seed.sample(3, "likes")
    with pytest.raises(SettingsError, match=r"edge set 'writes' starts from 'author'; the step reaches 'paper'"):
        seed.sample(3, "writes")
    with pytest.raises(SettingsError, match=r"sample_size is 0"):
        seed.sample(0, "cites")
    with pytest.raises(SettingsError, match=r"one step or more of one builder"):
        seed.join([SamplingSpecBuilder(schema).seed("paper")])


@pytest.mark.parametrize("size", [2**40, 2.5, "3", True, [], [3, 0], None])
def test_invalid_sizes_are_refused(size):
    seed = SamplingSpecBuilder(parse_schema(SCHEMA)).seed("paper")
    with pytest.raises(SettingsError, match=r"sample_size is .*; give"):
        seed.sample(size, "cites")
    assert not seed.build().sampling_ops


def test_invalid_strategies_schemas_steps_and_names_are_refused():
    schema = parse_schema(SCHEMA)
    with pytest.raises(SettingsError, match=r"strategy is 99; known: TOP_K \(0\), RANDOM_UNIFORM \(1\)"):
        SamplingSpecBuilder(schema).seed("paper").sample(1, "cites", 99)
    with pytest.raises(SettingsError, match=r"strategy is 'TOP_K'; known"):
        SamplingSpecBuilder(schema, "TOP_K")
    for wrong in ("schema.pbtxt", GraphSchema(nodes={"a": {}}, edges={})):
        with pytest.raises(SettingsError, match=r"give a GraphSchema message: read_schema\(path\) reads one"):
            SamplingSpecBuilder(wrong)
    seed = SamplingSpecBuilder(schema).seed("paper", "start")
    with pytest.raises(SettingsError, match=r"join got no other steps"):
        seed.join([])
    with pytest.raises(SettingsError, match=r"join takes steps, .*; got str"):
        seed.join(["start"])
    with pytest.raises(SettingsError, match=r"op_name is 'start', which is used by another op"):
        seed.sample(1, "cites", op_name="start")


def test_built_specs_survive_a_round_trip():
    from hopstream.tfgnn.graph_schema import message_text

    spec = SamplingSpecBuilder(parse_schema(SCHEMA)).seed("paper").sample(8, "cites").build()
    assert parse_spec(message_text(spec)) == spec
