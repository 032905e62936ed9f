"""Checks that each seed's graph tensor holds what the naive run of its plan finds, with features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.export.plan import plan_of_spec
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SEEDS, SeedNodes
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM, RANDOM_WEIGHTED, TOP_K, parse_spec
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from tests.conftest import make_typed_graph
from tests.naive_plans import Raw, run_plan

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
RNG_SEED = 11


@pytest.fixture
def graph(rng):
    """Papers and authors, with the keys of all as a feature, so that one sees which they are."""
    made = make_typed_graph(rng)
    with_keys = {
        t: replace(table, features={**table.features, "key": np.arange(table.num_nodes)})
        for t, table in made.nodes.items()
    }
    edges = {
        t: replace(table, features={**table.features, "key": np.arange(len(table.src_keys))})
        for t, table in made.edges.items()
    }
    return replace(made, nodes=with_keys, edges=edges).check()


def spec_of(graph, strategy=RANDOM_UNIFORM):
    """From authors to papers, to what these cite, and from both on again: one edge set in three ops."""
    seed = SamplingSpecBuilder(schema_message(graph.schema), RANDOM_UNIFORM).seed("author")
    papers = seed.sample(4, "writes", strategy)
    cited = papers.sample(3, "cites")
    return papers.join([cited]).sample(2, "cites").sample(2, "cites").build()


def made_of(graph, folder, seeds, *, num_parts=3, first_tree=0, spec=None):
    if not folder.exists():
        write_parts(graph, folder, num_parts=num_parts, method="random", direction="out", weight_attr="weight")
    store = LocalStore(open_dataset(folder))
    plan = plan_of_spec(spec or spec_of(graph), store.schema)
    features = {**store.schema.nodes, **store.schema.edges}
    maker = SubgraphMaker(store, plan, {owner: tuple(of) for owner, of in features.items()})
    return plan, maker.make(seeds, RNG_SEED, np.arange(first_tree, first_tree + len(seeds)))


def rows_of(column, rows):
    return [column[row] if isinstance(column, RaggedArray) else column[row].tolist() for row in rows]


@pytest.mark.parametrize("strategy", [RANDOM_UNIFORM, TOP_K, RANDOM_WEIGHTED])
def test_each_graph_equals_the_naive_result(graph, tmp_path, rng, strategy):
    seeds = rng.integers(0, 25, 9)
    plan, pieces = made_of(graph, tmp_path / "parts", seeds, spec=spec_of(graph, strategy))
    trees = np.arange(len(seeds))
    nodes = SeedNodes(ids={"author": seeds}, rng_seed=RNG_SEED, trees={"author": trees})
    naive = run_plan(Raw(graph, weight_attr="weight"), plan, nodes)
    spec = GraphSpec.of_schema(schema_message(graph.schema))
    encoded = encode_graphs(pieces)
    for tree in trees.tolist():
        got = decode_graph(encoded[tree], spec)
        keys = {
            t: [k for k, of in zip(naive.node_keys[t], naive.trees[t], strict=True) if of == tree] for t in naive.trees
        }
        assert keys["author"][0] == seeds[tree]
        for node_type in ("paper", "author"):
            assert got.node_sets[node_type].sizes.tolist() == [len(keys[node_type])]
        assert got.node_sets["paper"].features["key"].tolist() == keys["paper"]
        papers = graph.nodes["paper"].features
        assert got.node_sets["paper"].features["feat"].tolist() == rows_of(papers["feat"], keys["paper"])
        titles = [title.encode() for title in rows_of(papers["title"], keys["paper"])]
        assert got.node_sets["paper"].features["title"].tolist() == titles
        assert got.node_sets["paper"].features["tags"].tolist() == [
            t.tolist() for t in rows_of(papers["tags"], keys["paper"])
        ]
        for edge_type in (CITES, WRITES):
            check_edges(graph, got, naive, tree, keys, edge_type)


def check_edges(graph, got, naive, tree, keys, edge_type):
    source, name, target = edge_type
    drawn = [edge for edge in naive.edges[edge_type] if naive.trees[source][edge[0]] == tree]
    wanted = list(dict.fromkeys(edge_key for _, _, edge_key in drawn))
    edges = got.edge_sets[name]
    assert edges.features["key"].tolist() == wanted
    table = graph.edges[edge_type]
    assert [keys[source][i] for i in edges.source] == table.src_keys[wanted].tolist()
    assert [keys[target][i] for i in edges.target] == table.dst_keys[wanted].tolist()


def test_edges_drawn_by_two_ops_occur_once_and_parallel_edges_stay(graph, tmp_path):
    plan, pieces = made_of(graph, tmp_path / "parts", np.arange(25))
    edges = pieces.edge_sets["cites"]
    trees = np.repeat(np.arange(25), edges.sizes)
    keys = edges.features["key"].flat
    pairs = list(zip(trees.tolist(), keys.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    nodes = SeedNodes(ids={"author": np.arange(25)}, rng_seed=RNG_SEED, trees={"author": np.arange(25)})
    drawn = run_plan(Raw(graph, weight_attr="weight"), plan, nodes).edges[CITES]
    assert len(drawn) > len(pairs)


def test_a_graph_does_not_depend_on_its_batch_nor_on_the_cut(graph, tmp_path):
    busiest = int(np.bincount(graph.edges[WRITES].src_keys).argmax())  # others may have too few edges to draw from
    seeds = np.array([busiest, 8, busiest, 20, 0])
    whole = encode_graphs(made_of(graph, tmp_path / "parts", seeds)[1])
    assert whole[0] != whole[2]  # the same seed twice, with different draws
    for num_parts in (1, 4):
        for first, last in ((0, 2), (2, 5)):
            folder = tmp_path / f"parts{num_parts}"
            part = encode_graphs(made_of(graph, folder, seeds[first:last], num_parts=num_parts, first_tree=first)[1])
            assert [part[i] for i in range(last - first)] == [whole[i] for i in range(first, last)]


def test_a_seed_without_edges_is_a_graph_of_one_node(graph, tmp_path):
    schema = schema_message(graph.schema)
    spec = SamplingSpecBuilder(schema, RANDOM_UNIFORM).seed("institute").build()
    _, pieces = made_of(graph, tmp_path / "parts", np.array([1, 1]), spec=spec)
    assert pieces.node_sets["institute"].sizes.tolist() == [1, 1]
    assert pieces.node_sets["paper"].sizes.tolist() == [0, 0]
    got = decode_graph(encode_graphs(pieces)[1], GraphSpec.of_schema(schema))
    assert got.node_sets["paper"].features["feat"].num_items == 0


def test_plans_are_those_of_the_spec(graph):
    plan = plan_of_spec(spec_of(graph, TOP_K), graph.schema)
    assert [(op.inputs, op.edge_type, op.count, op.strategy) for op in plan.ops] == [
        ((SEEDS,), WRITES, 4, "top_k"), (("0/author->paper",), CITES, 3, "uniform"),
        (("0/author->paper", "1/paper->paper"), CITES, 2, "uniform"), ((plan.ops[2].name,), CITES, 2, "uniform"),
    ]  # fmt: skip
    assert plan.settings.is_disjoint and {op.expands for op in plan.ops} == {"reached"}
    with pytest.raises(SchemaError, match=r"op 'x': TOP_K needs weights; edge set 'cites' has no feature"):
        text = 'sampling_ops < op_name: "x" input_op_names: "s" edge_set_name: "cites" sample_size: 1 strategy: TOP_K >'
        plan_of_spec(parse_spec(f'seed_op < op_name: "s" node_set_name: "paper" > {text}'), graph.schema)


def test_error_names_missing_directions_features_and_weights(graph, tmp_path):
    write_parts(graph, tmp_path / "in", num_parts=1, direction="in")
    store = LocalStore(open_dataset(tmp_path / "in"))
    with pytest.raises(SettingsError, match=r"follows direction 'out'; the dataset holds in"):
        SubgraphMaker(store, plan_of_spec(spec_of(graph), graph.schema), {})
    write_parts(graph, tmp_path / "out", num_parts=1, direction="out")
    store = LocalStore(open_dataset(tmp_path / "out"))
    with pytest.raises(UnknownNameError, match=r"paper has no feature 'x'"):
        SubgraphMaker(store, plan_of_spec(spec_of(graph), graph.schema), {"paper": ["x"]})
    with pytest.raises(SettingsError, match=r"weight"):
        SubgraphMaker(store, plan_of_spec(spec_of(graph, TOP_K), graph.schema), {})
