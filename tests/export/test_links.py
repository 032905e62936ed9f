"""Checks that a link's graph tensor grows from both of its ends, and is read out at them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SchemaError, SettingsError
from hopstream.export.plan import declare_link_readout, plan_of_spec, starts_from_links, with_readout_values
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SEEDS, SeedNodes
from hopstream.schema import GraphSchema
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.readout import check_readout, structured_readout
from hopstream.tfgnn.sampling_spec import parse_spec
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.values import FeatureValues
from tests.conftest import make_typed_graph
from tests.naive_plans import Raw, run_plan

RNG_SEED = 12
LINKS = np.array([[3, 8], [8, 3], [5, 5], [3, 8], [0, 59]])


def op(name, inputs, edge_set="cites", size=3):
    named = " ".join(f'input_op_names: "{i}"' for i in inputs)
    return (
        f'sampling_ops < op_name: "{name}" {named} edge_set_name: "{edge_set}" sample_size: {size} '
        "strategy: RANDOM_UNIFORM >"
    )


SPEC = parse_spec('symmetric_link_seed_op < op_name: "link" >' + op("a", ["link"]) + op("b", ["link", "a"], size=2))


@pytest.fixture
def graph(rng):
    made = make_typed_graph(rng)
    papers = made.nodes["paper"]
    with_key = replace(papers, features={**papers.features, "key": np.arange(papers.num_nodes)})
    return replace(made, nodes={**made.nodes, "paper": with_key}).check()


def maker_of(graph, folder, num_parts=3, **options):
    if not folder.exists():
        write_parts(graph, folder, num_parts=num_parts, method="random", direction="out")
    store = LocalStore(open_dataset(folder))
    plan = plan_of_spec(SPEC, store.schema, **options)
    return plan, SubgraphMaker(store, plan, {"paper": ("key", "title")})


def test_each_graph_equals_the_naive_result_from_both_ends(graph, tmp_path):
    plan, maker = maker_of(graph, tmp_path / "parts")
    pieces = maker.make(LINKS, RNG_SEED)
    trees = [tree for tree, (source, target) in enumerate(LINKS.tolist()) for _ in {source, target}]
    ends = [key for source, target in LINKS.tolist() for key in dict.fromkeys((source, target))]
    seeds = SeedNodes(ids={"paper": np.array(ends)}, rng_seed=RNG_SEED, trees={"paper": np.array(trees)})
    naive = run_plan(Raw(graph), plan, seeds)
    sizes = np.cumsum(pieces.node_sets["paper"].sizes)[:-1]
    found = np.split(pieces.node_sets["paper"].features["key"].flat, sizes)
    for tree, (source, target) in enumerate(LINKS.tolist()):
        keys = [k for k, of in zip(naive.node_keys["paper"], naive.trees["paper"], strict=True) if of == tree]
        assert found[tree].tolist() == keys
        assert keys[: len({source, target})] == list(dict.fromkeys((source, target)))
    assert int(pieces.edge_sets["cites"].sizes.sum()) > 20


def test_links_are_read_out_at_source_and_target(graph, tmp_path):
    _, maker = maker_of(graph, tmp_path / "parts")
    pieces = maker.make(LINKS, RNG_SEED)
    check_readout(pieces)
    assert structured_readout(pieces, "source", "key").tolist() == LINKS[:, 0].tolist()
    assert structured_readout(pieces, "target", "key").tolist() == LINKS[:, 1].tolist()
    assert pieces.edge_sets["_readout/target"].source.tolist() == [1, 1, 0, 1, 1]
    labeled = with_readout_values(pieces, {"label": FeatureValues.of(np.arange(5) % 2)})
    schema = schema_message(replace(graph.schema, nodes={"paper": {}, "author": {}, "institute": {}}))
    declare_link_readout(schema, "paper", "paper")
    schema.node_sets["_readout"].features["label"].dtype = 9  # DT_INT64
    read = decode_graph(encode_graphs(labeled)[3], GraphSpec.of_schema(schema), num_components=1)
    assert read.node_sets["_readout"].sizes.tolist() == [1]
    assert read.node_sets["_readout"].features["label"].tolist() == [1]
    assert [read.edge_sets[f"_readout/{end}"].source.tolist() for end in ("source", "target")] == [[0], [1]]
    assert [read.edge_sets[f"_readout/{end}"].source_set for end in ("source", "target")] == ["paper", "paper"]


def test_values_of_a_readout_fit_it(graph, tmp_path):
    _, maker = maker_of(graph, tmp_path / "parts")
    pieces = maker.make(LINKS, RNG_SEED)
    label = FeatureValues.of(np.arange(5))
    with pytest.raises(SchemaError, match=r"_readout.label has values of 4 items for 5 predictions"):
        with_readout_values(pieces, {"label": FeatureValues.of(np.arange(4))})
    with pytest.raises(SchemaError, match="_readout has a feature 'label' already"):
        with_readout_values(with_readout_values(pieces, {"label": label}), {"label": label})
    bare = replace(pieces, node_sets={"paper": pieces.node_sets["paper"]})
    with pytest.raises(SchemaError, match="node set '_readout' does not exist; known: paper"):
        with_readout_values(bare, {"label": label})


def test_a_graph_does_not_depend_on_its_batch_nor_on_the_cut(graph, tmp_path):
    whole = encode_graphs(maker_of(graph, tmp_path / "parts")[1].make(LINKS, RNG_SEED))
    assert whole[0] != whole[3]  # the same link twice, with different draws
    for num_parts in (1, 4):
        _, maker = maker_of(graph, tmp_path / f"parts{num_parts}", num_parts)
        for rows in ([0, 1], [4, 2, 3], [3]):
            part = encode_graphs(maker.make(LINKS[rows], RNG_SEED, np.array(rows)))
            assert [part[i] for i in range(len(rows))] == [whole[row] for row in rows]


def test_plans_of_links_start_from_both_ends(graph):
    plan = plan_of_spec(SPEC, graph.schema)
    assert plan.seed_types == ("paper", "paper") and starts_from_links(plan)
    assert [one.inputs for one in plan.ops] == [(SEEDS,), (SEEDS, "0/a")]
    alone = parse_spec('symmetric_link_seed_op < op_name: "link" >')
    assert plan_of_spec(alone, graph.schema, link_set="author").seed_types == ("author", "author")
    with pytest.raises(SchemaError, match=r"symmetric_link_seed_op 'link': no op follows it, .*; give link_set, one"):
        plan_of_spec(alone, graph.schema)
    with pytest.raises(SchemaError, match="seed op 'link': unknown node set 'topic'"):
        plan_of_spec(alone, graph.schema, link_set="topic")
    only = GraphSchema(nodes={"paper": {}, "#context": {}}, edges={})
    assert plan_of_spec(alone, only).seed_types == ("paper", "paper")
    mixed = parse_spec(
        'symmetric_link_seed_op < op_name: "link" >' + op("a", ["link"]) + op("b", ["link"], "writes", 2)
    )
    with pytest.raises(SchemaError, match="op 'b': input op 'link' reaches node set 'paper'; edge set 'writes' starts"):
        plan_of_spec(mixed, graph.schema, link_set="paper")
    with pytest.raises(SchemaError, match=r"start from author and paper, .*; give link_set, such as 'author,paper'"):
        plan_of_spec(mixed, graph.schema)
    with pytest.raises(SettingsError, match="link_set is 'a,b,c'; give one name, or two as 'source,target'"):
        plan_of_spec(mixed, graph.schema, link_set="a,b,c")
    apart = plan_of_spec(mixed, graph.schema, link_set="paper,author")
    assert apart.seed_types == ("paper", "author") and starts_from_links(apart)


def test_seeds_have_the_shape_that_the_plan_wants(graph, tmp_path):
    _, maker = maker_of(graph, tmp_path / "parts")
    with pytest.raises(SettingsError, match=r"seed_keys are int64\[5\]; the plan starts from links, .*int64\[5, 2\]"):
        maker.make(LINKS[:, 0], RNG_SEED)
    none = maker.make(np.empty((0, 2), np.int64), RNG_SEED)
    assert none.num_graphs == 0 and none.node_sets["_readout"].sizes.tolist() == []
