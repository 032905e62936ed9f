"""Checks links between two node sets as seeds, over all kinds of sources and workers.

The wanted graphs are those of TF-GNN 1.0.3: ``link_samplers.sample_link_prediction_featureless_subgraph`` made them of
the same graph, by a spec for sources (``bought``, then ``bought_by``) and one for targets (``bought_by``, then
``bought``).
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

from hopstream import prepare
from hopstream.cli import main
from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SchemaError, SettingsError
from hopstream.export.on_beam import SampleSubgraphs
from hopstream.export.plan import plan_of_spec
from hopstream.export.run import ExportReport, export_subgraphs
from hopstream.export.samples import SeedSampling, schema_of_samples
from hopstream.export.seed_sampler import SeedSampler
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.load.examples import ExampleLoader
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SeedNodes
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.tfgnn.graph_schema import read_schema, schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces, decode_graph
from hopstream.tfgnn.readout import structured_readout
from hopstream.tfgnn.sampling_spec import RANDOM_UNIFORM
from hopstream.tfgnn.spec import GraphSpec
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder
from hopstream.tfgnn.tfrecord import read_records
from tests.conftest import make_typed_graph
from tests.export.test_on_beam import HERE, run_within, samples_are
from tests.export.worlds import digests, named_graph
from tests.naive_plans import Raw, run_plan

SCHEMA = """
node_sets { key: "user" value {} }
node_sets { key: "item" value {} }
edge_sets { key: "bought" value { source: "user" target: "item" metadata { filename: "bought.csv" } } }
edge_sets { key: "bought_by" value { source: "item" target: "user" metadata { filename: "bought.csv"
  extra { key: "edge_type" value: "reversed" } } } }
"""
READOUT = """
node_sets { key: "_readout" value { features { key: "label" value { dtype: DT_INT64 } } } }
edge_sets { key: "_readout/source" value { source: "user" target: "_readout" } }
edge_sets { key: "_readout/target" value { source: "item" target: "_readout" } }
"""
SPEC = 'symmetric_link_seed_op < op_name: "link" >' + "".join(
    f'sampling_ops < op_name: "{name}" input_op_names: "{of}" edge_set_name: "{edges}" sample_size: 9 '
    "strategy: RANDOM_UNIFORM >"
    for name, of, edges in (
        ("s1", "link", "bought"), ("s2", "s1", "bought_by"), ("t1", "link", "bought_by"), ("t2", "t1", "bought"),
    )
)  # fmt: skip
LINKS = [("a", "z"), ("b", "y"), ("b", "x")]
A_TO_Z = (
    {"user": {"a", "b", "c"}, "item": {"x", "y", "z"}},
    {
        "bought": [("a", "x"), ("a", "y"), ("c", "z")],
        "bought_by": [("x", "a"), ("y", "a"), ("y", "b"), ("z", "c")],
    },
)
B_TO_Y = (
    {"user": {"a", "b"}, "item": {"x", "y"}},
    {"bought": [("a", "x"), ("a", "y"), ("b", "y")], "bought_by": [("y", "a"), ("y", "b")]},
)
B_TO_X = (B_TO_Y[0], {**B_TO_Y[1], "bought_by": [("x", "a"), ("y", "a"), ("y", "b")]})
WANTED = [A_TO_Z, B_TO_Y, B_TO_X]
"""Ids of nodes and of the ends of edges, for each link. An edge that both ends find is there once, in TF-GNN twice."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unigraph whose schema names no links, a spec, a table of labelled links, and dataset ``parts2``."""
    tmp_path = tmp_path_factory.mktemp("links")
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "bought.csv").write_text("#source,#target\na,x\na,y\nb,y\nc,z\n")
    (folder / "schema.pbtxt").write_text(SCHEMA)
    (tmp_path / "spec.pbtxt").write_text(SPEC)
    rows = [f"{source},{target},{number}" for number, (source, target) in enumerate(LINKS)]
    (tmp_path / "links.csv").write_text("\n".join(["#source,#target,label", *rows]))
    prepare(folder, tmp_path / "parts2", num_parts=2, method="hash", direction="out")
    return folder


@pytest.fixture(scope="module")
def made(shop: Path) -> ExportReport:
    return exported(shop, shop, "wanted")


def exported(source: object, shop: Path, name: str, link_set: str | None = "user,item", **options: Any) -> ExportReport:
    options = {"seeds": shop.parent / "links.csv", **options}
    return export_subgraphs(
        source, shop.parent / "spec.pbtxt", shop.parent / name / "x@2", link_set=link_set, seed_ids=True,
        num_workers=0, memory="1GiB", **options,
    )  # fmt: skip


def in_ids(graph: GraphPieces) -> tuple[dict[str, set[str]], dict[str, list[tuple[str, str]]]]:
    ids = {t: [one.decode() for one in graph.node_sets[t].features["#id"].tolist()] for t in ("user", "item")}
    edges = {
        name: sorted((ids[of.source_set][s], ids[of.target_set][t]) for s, t in zip(of.source, of.target, strict=True))
        for name, of in graph.edge_sets.items()
        if not name.startswith("_")
    }
    return {t: set(of) for t, of in ids.items()}, edges


def test_samples_are_those_of_tfgnn(made: ExportReport):
    spec = GraphSpec.of_schema(read_schema(made.schema_path))
    graphs = [decode_graph(record, spec) for path in made.paths for record in read_records(path)]
    assert [in_ids(graph) for graph in graphs] == WANTED
    for number, (source, target) in enumerate(LINKS):
        graph = graphs[number]
        assert structured_readout(graph, "source", "#id").tolist() == [source.encode()]
        assert structured_readout(graph, "target", "#id").tolist() == [target.encode()]
        ends = [graph.edge_sets[f"_readout/{end}"] for end in ("source", "target")]
        assert [(of.source_set, of.source.tolist()) for of in ends] == [("user", [0]), ("item", [0])]
        assert graph.node_sets["_readout"].features["label"].tolist() == [number]
        assert graph.context["seed_id"].tolist() == [f"{source}->{target}".encode()]


def test_the_same_bytes_from_folders_servers_the_verb_and_a_schema_that_names_the_ends(
    shop: Path, made: ExportReport, tmp_path: Path
):
    declared = shutil.copytree(shop, tmp_path / "shop")
    (declared / "schema.pbtxt").write_text(SCHEMA + READOUT)
    exported(declared, shop, "declared", link_set=None)
    with ExitStack() as stack:
        dataset = open_dataset(shop.parent / "parts2")
        stores = [stack.enter_context(LocalStore(dataset, [part])) for part in range(2)]
        servers = [stack.enter_context(StoreServer(store, "tcp://127.0.0.1:0")) for store in stores]
        exported(",".join(server.location for server in servers), shop, "servers")
    words = [
        "tfgnn-sample", "--graph_schema", shop.parent / "parts2", "--sampling_spec", shop.parent / "spec.pbtxt",
        "--output_samples", f"{shop.parent}/verb/x@2", "--seeds", shop.parent / "links.csv", "--workers", 0,
        "--seed_ids", "--link_set", "user,item",
    ]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    for name in ("declared", "servers", "verb"):
        assert digests(shop.parent / name) == digests(made.schema_path.parent), name


def test_exported_links_are_loaded(made: ExportReport):
    with ExampleLoader(f"{made.schema_path.parent}/x@2", batch_size=3) as loader:
        (batch,) = loader
    read = batch.readout_edges
    assert {key: list(of) for key, of in read.items()} == {"source": ["user"], "target": ["item"]}
    assert batch.readout["label"].tolist() == [0, 1, 2]
    assert read["source"]["user"][1].tolist() == read["target"]["item"][1].tolist() == [0, 1, 2]


def test_a_beam_pipeline_makes_the_same_samples(tmp_path: Path):
    """Authors are named by strings, and papers by integers, such as ``01003``."""
    write_parts(named_graph(np.random.default_rng(3)), tmp_path / "parts", num_parts=2, method="hash", direction="out")
    links = [("author 3", "1003"), ("author 4", "01003"), ("author 3", "1003")]
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        builder = SamplingSpecBuilder(schema_message(store.schema), RANDOM_UNIFORM)
        sources, targets = builder.seed_links_between("author", "paper")
        sources.sample(3, "writes")
        spec = targets.sample(2, "cites").build()
        sampling = SeedSampling(spec=spec, link_set="author,paper", seed_ids=True, id_feature="#id,id")
        wanted = SeedSampler(store, sampling).sample(links, [0, 0, 1])
        schema = schema_of_samples(sampling, store.schema)
    names = [b"author 3->1003", b"author 4->1003", b"author 3->1003:1"]
    assert [sample_id for sample_id, _ in wanted] == names
    graphs = [decode_graph(example, GraphSpec.of_schema(schema)) for _, example in wanted]
    assert [structured_readout(graph, "target", "id").tolist() for graph in graphs] == [[1003]] * 3
    pipeline = beam.Pipeline(options=PipelineOptions(HERE))
    made = pipeline | beam.Create(links) | SampleSubgraphs(tmp_path / "parts", sampling, is_keyed=True)
    assert_that(made, samples_are(wanted))
    run_within(pipeline)


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_each_graph_equals_the_naive_result_from_both_ends(rng, tmp_path: Path, subgraph_type: str):
    """One key is that of an author and of a paper; no op follows all of the edge types."""
    made = make_typed_graph(rng)
    nodes = {t: replace(of, features={"key": np.arange(of.num_nodes)}) for t, of in made.nodes.items()}
    graph = replace(made, nodes=nodes, splits={}).check()
    write_parts(graph, tmp_path / "parts", num_parts=3, method="random", direction="out")
    builder = SamplingSpecBuilder(schema_message(graph.schema), RANDOM_UNIFORM)
    sources, targets = builder.seed_links_between("author", "paper")
    spec = sources.sample(3, "writes").join([targets]).sample(2, "cites").build()
    plan = plan_of_spec(spec, graph.schema, link_set="author,paper", subgraph_type=subgraph_type)
    links = np.array([[4, 7], [7, 7], [4, 7], [0, 59], [24, 1]])
    trees = np.arange(len(links))
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        pieces = SubgraphMaker(store, plan, dict.fromkeys(graph.nodes, ("key",))).make(links, 12)
    seeds = SeedNodes(
        ids={"author": links[:, 0], "paper": links[:, 1]}, rng_seed=12, trees={"author": trees, "paper": trees}
    )
    naive = run_plan(Raw(graph), plan, seeds)
    assert naive.trees is not None
    for node_type in graph.nodes:
        found = np.split(pieces.node_sets[node_type].features["key"].flat, pieces.node_sets[node_type].sizes.cumsum())
        keys = list(zip(naive.trees[node_type], naive.node_keys[node_type], strict=True))
        assert [of.tolist() for of in found[:-1]] == [[key for tree, key in keys if tree == one] for one in trees]
    for edge_type, edges in naive.edges.items():
        trees_of_edges = [naive.trees[edge_type[0]][edge[0]] for edge in edges]
        assert pieces.edge_sets[edge_type[1]].sizes.tolist() == np.bincount(trees_of_edges, minlength=5).tolist()
    assert structured_readout(pieces, "source", "key").tolist() == links[:, 0].tolist()
    assert structured_readout(pieces, "target", "key").tolist() == links[:, 1].tolist()


def test_bad_link_settings_are_refused(shop: Path, tmp_path: Path):
    parts, links = shop.parent / "parts2", tmp_path / "links.csv"
    with pytest.raises(SchemaError, match=r"start from item and user, .*; give link_set, such as 'item,user'"):
        exported(parts, shop, "x", link_set=None)
    with pytest.raises(SchemaError, match="op 's1': input op 'link' reaches node set 'item'; edge set 'bought' starts"):
        exported(parts, shop, "x", link_set="item")
    for row, wanted in (("x,a", "seed 'x' is not a node of type user"), ("a,a", "seed 'a' is not a node of type item")):
        links.write_text(f"#source,#target\n{row}\n")
        with pytest.raises(IdRangeError, match=rf"links\.csv line 2: {wanted}"):
            exported(parts, shop, "x", seeds=links)
    with pytest.raises(SettingsError, match="id_feature is '#id,#id,id'; give one name, or two as 'source,target'"):
        exported(parts, shop, "x", id_feature="#id,#id,id")
