"""Checks that the guide's spec, over a graph of the guide's schema, gives what its rules say.

The graph called MAG is made up; its schema and its spec are those of TF-GNN's data preparation guide.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hopstream import graph_from_arrays
from hopstream.dataset.layout import open_dataset
from hopstream.export.plan import plan_of_spec
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SeedNodes
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import message_text, parse_schema
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.sampling_spec import parse_spec, read_spec
from hopstream.tfgnn.spec import GraphSpec
from tests.naive_plans import Raw, run_plan

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tfgnn"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data of others is not part of the project")
RNG_SEED = 3
NUM_NODES = {"author": 150, "field_of_study": 40, "institution": 12, "paper": 200}
ENDS = {
    "affiliated_with": ("author", "institution"), "cites": ("paper", "paper"), "has_topic": ("paper", "field_of_study"),
    "writes": ("author", "paper"), "written": ("paper", "author"),
}  # fmt: skip
MAG_SCHEMA = """
node_sets { key: "author" value {} } node_sets { key: "field_of_study" value {} }
node_sets { key: "institution" value {} }
node_sets { key: "paper" value {
  features { key: "feat" value { dtype: DT_FLOAT shape { dim { size: 128 } } } }
  features { key: "labels" value { dtype: DT_INT64 shape { dim { size: 1 } } } }
  features { key: "year" value { dtype: DT_INT64 shape { dim { size: 1 } } } } } }
""" + "".join(
    f'edge_sets {{ key: "{name}" value {{ source: "{source}" target: "{target}" }} }}\n'
    for name, (source, target) in ENDS.items()
)


def op(name, inputs, edge_set, size, strategy="RANDOM_UNIFORM"):
    named = " ".join(f'input_op_names: "{i}"' for i in inputs)
    return (
        f'sampling_ops < op_name: "{name}" {named} edge_set_name: "{edge_set}" sample_size: {size} '
        f"strategy: {strategy} >\n"
    )


MAG_SPEC = (
    'seed_op < op_name: "seed" node_set_name: "paper" >\n'
    + op("seed->paper", ["seed"], "cites", 32)
    + op("paper->author", ["seed", "seed->paper"], "written", 8)
    + op("author->paper", ["paper->author"], "writes", 16)
    + op("author->institution", ["paper->author"], "affiliated_with", 16)
    + op("paper->field_of_study", ["seed", "seed->paper", "author->paper"], "has_topic", 16)
)


def mag_graph():
    """Few nodes with many edges, parallel ones among them, so that every sample size leaves some out."""
    rng = np.random.default_rng(RNG_SEED)
    degrees = {"affiliated_with": 3, "cites": 40, "has_topic": 20, "writes": 18}
    edges = {}
    for name, degree in degrees.items():
        source, target = ENDS[name]
        num_edges = degree * NUM_NODES[source]
        edges[source, name, target] = np.stack(
            [rng.integers(0, NUM_NODES[source], num_edges), rng.integers(0, NUM_NODES[target], num_edges)]
        )
    edges["paper", "written", "author"] = edges["author", "writes", "paper"][::-1].copy()
    papers = NUM_NODES["paper"]
    features = {
        "feat": rng.normal(size=(papers, 128)).astype(np.float32), "labels": np.arange(papers).reshape(-1, 1),
        "year": rng.integers(1990, 2020, (papers, 1)),
    }  # fmt: skip
    return graph_from_arrays(edges, num_nodes=NUM_NODES, node_features={"paper": features})


@pytest.fixture(scope="module")
def mag(tmp_path_factory):
    graph = mag_graph()
    folder = tmp_path_factory.mktemp("mag") / "parts"
    write_parts(graph, folder, num_parts=3, method="random", direction="out")
    with LocalStore(open_dataset(folder)) as store:
        yield graph, store


@needs_data
def test_the_guide_has_this_spec():
    assert message_text(parse_spec(MAG_SPEC)) == message_text(read_spec(DATA / "mag" / "sampling_spec.pbtxt"))


def test_mag_is_sampled_by_the_spec_of_the_guide(mag):
    graph, store = mag
    plan = plan_of_spec(parse_spec(MAG_SPEC), store.schema)
    features = {"paper": ("feat", "labels", "year")}
    seeds = np.arange(0, 200, 9)
    pieces = SubgraphMaker(store, plan, features).make(seeds, RNG_SEED)
    trees = np.arange(len(seeds))
    naive = run_plan(Raw(graph), plan, SeedNodes(ids={"paper": seeds}, rng_seed=RNG_SEED, trees={"paper": trees}))
    spec = GraphSpec.of_schema(parse_schema(MAG_SCHEMA))
    papers = graph.nodes["paper"].features
    for tree, message in enumerate(encode_graphs(pieces)):
        got = decode_graph(message, spec)
        keys = keys_of_tree(naive, tree)
        assert {t: of.sizes.tolist() for t, of in got.node_sets.items()} == {t: [len(of)] for t, of in keys.items()}
        assert keys["paper"][0] == seeds[tree]
        for name, column in papers.items():
            assert got.node_sets["paper"].features[name].tolist() == column[keys["paper"]].tolist()
        for name, (source, target) in ENDS.items():
            edges = got.edge_sets[name]
            pairs = [(keys[source][i], keys[target][j]) for i, j in zip(edges.source, edges.target, strict=True)]
            assert Counter(pairs) == pairs_of_tree(naive, tree, (source, name, target), keys)


def keys_of_tree(naive, tree):
    return {
        t: [key for key, of in zip(keys, naive.trees[t], strict=True) if of == tree]
        for t, keys in naive.node_keys.items()
    }


def pairs_of_tree(naive, tree, edge_type, keys):
    """Pairs of keys, each as often as it has edges; an edge counts once, however many ops drew it."""
    places = {
        (t, slot): place for t in keys for place, slot in enumerate(np.flatnonzero(np.array(naive.trees[t]) == tree))
    }
    source, _, target = edge_type
    of_tree = {edge for edge in naive.edges[edge_type] if naive.trees[source][edge[0]] == tree}
    return Counter((keys[source][places[source, s]], keys[target][places[target, t]]) for s, t, _ in of_tree)


def test_sample_sizes_bound_edges_per_node(mag):
    """Three ops that reach papers lead to topics, and each paper gets 16 topics all the same."""
    graph, store = mag
    plan = plan_of_spec(parse_spec(MAG_SPEC), store.schema)
    pieces = SubgraphMaker(store, plan, {"paper": ("labels",)}).make(np.arange(20), RNG_SEED)
    for name, size in (("cites", 32), ("written", 8), ("writes", 16), ("affiliated_with", 16), ("has_topic", 16)):
        edges, (source, target) = pieces.edge_sets[name], ENDS[name]
        ends = np.repeat(np.arange(20) << 20, edges.sizes) | edges.source
        drawn = np.unique(ends, return_counts=True)[1]
        assert drawn.max() <= size
        degrees = np.bincount(graph.edges[source, name, target].src_keys)
        assert (drawn.max() == size) == bool(degrees.max() >= size)
    topics = pieces.edge_sets["has_topic"]
    keys = pieces.node_sets["paper"].features["labels"].flat
    firsts = pieces.item_offsets(pieces.node_sets["paper"].sizes)[:-1]
    sources = keys[np.repeat(firsts, topics.sizes) + topics.source]
    degrees = np.bincount(graph.edges["paper", "has_topic", "field_of_study"].src_keys, minlength=200)
    places, counts = np.unique(np.repeat(firsts, topics.sizes) + topics.source, return_counts=True)
    assert counts.tolist() == np.minimum(16, degrees[keys[places]]).tolist()
    assert len(places) == len(keys) - np.count_nonzero(degrees[keys] == 0) and len(sources) == counts.sum()


def napkin(tmp_path, spec, edges, num_nodes):
    graph = graph_from_arrays({(s, n, t): np.array(pairs).T for (s, n, t), pairs in edges.items()}, num_nodes=num_nodes)
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="out")
    store = LocalStore(open_dataset(tmp_path / "parts"))
    return SubgraphMaker(store, plan_of_spec(parse_spec(spec), store.schema), {}).make(np.array([0]), RNG_SEED)


def test_parallel_edges_and_loops_are_kept(tmp_path):
    cites = {("p", "cites", "p"): [(0, 1), (0, 1), (0, 0), (0, 1), (0, 2)]}
    spec = 'seed_op < op_name: "s" node_set_name: "p" >' + op("a", ["s"], "cites", 9)
    edges = napkin(tmp_path, spec, cites, {"p": 3}).edge_sets["cites"]
    assert edges.source.tolist() == [0] * 5 and edges.target.tolist() == [1, 1, 0, 1, 2]


def test_a_node_found_by_two_ops_is_expanded_once_per_follower(tmp_path):
    """Paper 1 is cited and liked by paper 0; it has eight topics and eight venues."""
    graph = {
        ("p", "cites", "p"): [(0, 1)], ("p", "likes", "p"): [(0, 1)], ("p", "topic", "t"): [(1, t) for t in range(8)],
        ("p", "venue", "v"): [(1, v) for v in range(8)], ("p", "place", "v"): [(1, v) for v in range(8)],
    }  # fmt: skip
    spec = (
        'seed_op < op_name: "s" node_set_name: "p" >' + op("a", ["s"], "cites", 3) + op("b", ["s"], "likes", 3)
        + op("after a", ["a"], "topic", 3) + op("after b", ["b"], "venue", 3) + op("after both", ["a", "b"], "place", 3)
    )  # fmt: skip
    found = napkin(tmp_path, spec, graph, {"p": 2, "t": 8, "v": 8})
    assert {name: edges.sizes.tolist() for name, edges in found.edge_sets.items()} == {
        "cites": [1], "likes": [1], "topic": [3], "venue": [3], "place": [3],
    }  # fmt: skip
