"""Checks that a written unigraph reads back as its graph, from every kind of source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import ChecksumError, FormatError, SchemaError, SettingsError, UnknownNameError
from hopstream.export.unigraph import write_unigraph
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest import read_graph
from hopstream.ingest.chunked.writing import write_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from hopstream.tfgnn.graph_schema import read_schema

FORMATS = ["tfrecord", "csv", "parquet"]
NUM_AUTHORS, NUM_PAPERS, NUM_EDGES = 40, 23, 150


def in_order(graph):
    """The same graph with types, features and splits in the order of their names, as a schema has them."""
    return Graph(
        nodes={
            t: NodeTable(num_nodes=of.num_nodes, features=dict(sorted(of.features.items())))
            for t, of in sorted(graph.nodes.items())
        },
        edges={t: replace(of, features=dict(sorted(of.features.items()))) for t, of in sorted(graph.edges.items())},
        splits={t: dict(sorted(of.items())) for t, of in graph.splits.items()},
        edge_splits={t: dict(sorted(of.items())) for t, of in graph.edge_splits.items()},
    )


def assert_same(graph, other):
    graph, other = in_order(graph), in_order(other)
    assert graph.schema == other.schema
    assert graph.fingerprint() == other.fingerprint()


def make_graph(rng, *, has_vectors=True, has_doubles=True):
    """Graph with raw ids of papers, every dtype, repeated relations, isolated nodes and splits.

    Authors have keys only.
    """
    reals = rng.standard_normal(NUM_PAPERS)
    papers = {
        "#id": [f"doi/{i}" for i in rng.permutation(NUM_PAPERS)],
        "flag": reals > 0,
        "half": reals.astype(np.float16),
        "title": [f'título "{i}",\r\n \n' * (i % 3) for i in range(NUM_PAPERS)],
        "big": rng.integers(0, 2**63, NUM_PAPERS).astype(np.uint64) * 2 + 1,
        **{f"int{n}": rng.integers(-(2 ** (n - 1)), 2 ** (n - 1), NUM_PAPERS).astype(f"int{n}") for n in (8, 16, 32)},
        **{f"uint{n}": rng.integers(0, 2**n, NUM_PAPERS).astype(f"uint{n}") for n in (8, 16, 32)},
        "odd": np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42] * 5, np.float32)[:NUM_PAPERS],
    }
    lengths = rng.integers(0, 4, NUM_EDGES)
    ragged = RaggedArray(rng.random((int(lengths.sum()), 2)).astype(np.float32), np.append(0, np.cumsum(lengths)))
    writes = {"weight": rng.random(NUM_EDGES).astype(np.float32), "at": rng.integers(0, 9, NUM_EDGES)}
    if has_vectors:
        papers |= {
            "vector": rng.random((NUM_PAPERS, 2, 3)).astype(np.float32),
            "one": rng.random((NUM_PAPERS, 1)) > 0.5,
        }
        writes["notes"] = ragged
    if has_doubles:
        papers["double"] = reals
    keys = [rng.integers(0, n, NUM_EDGES) for n in (NUM_AUTHORS, NUM_PAPERS, NUM_PAPERS, NUM_PAPERS)]
    return graph_from_arrays(
        {
            ("author", "writes", "paper"): np.stack(keys[:2]),
            ("paper", "writes", "author"): np.stack(keys[1::-1]),
            ("paper", "cites", "paper"): np.stack(keys[2:]),
            ("paper", "none", "author"): np.empty((2, 0), np.int64),
        },
        num_nodes={"author": NUM_AUTHORS, "paper": NUM_PAPERS, "lonely place": 3},
        node_features={"paper": papers},
        edge_features={("author", "writes", "paper"): writes},
        splits={"paper": {"train": np.arange(0, NUM_PAPERS, 3), "val": np.arange(1, NUM_PAPERS, 3)}},
    )


def of_format(rng, table_format):
    return make_graph(rng, has_vectors=table_format != "csv", has_doubles=table_format != "tfrecord")


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_graph_survives_a_round_trip(rng, tmp_path, table_format):
    graph = of_format(rng, table_format)
    path = write_unigraph(graph, tmp_path / "u", format=table_format, num_shards=4)
    assert_same(read_graph(path), graph)
    chunked = chunk_tables(tmp_path / "u", tmp_path / "c", num_workers=0, data_format="parquet", vector_rows=True)
    assert_same(read_graph(chunked.metadata), graph)


def test_a_dataset_survives_a_round_trip(rng, tmp_path):
    graph = make_graph(rng, has_doubles=False)
    write_parts(graph, tmp_path / "d", num_parts=3, method="hash")
    write_unigraph(tmp_path / "d", tmp_path / "u", num_shards=2)
    assert_same(read_graph(tmp_path / "u"), graph)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "u"]


def test_a_chunked_graph_survives_a_round_trip(rng, tmp_path):
    graph = make_graph(rng, has_doubles=False)
    write_chunked(graph, tmp_path / "c")
    write_unigraph(tmp_path / "c", tmp_path / "u")
    assert_same(read_graph(tmp_path / "u"), graph)


@pytest.mark.parametrize("options", [{}, {"keep_edge_keys": False}, {"keep_edge_keys": False, "time_attr": "at"}])
def test_edge_splits_survive_a_round_trip(rng, tmp_path, options):
    graph = graph_from_arrays(
        rng.integers(0, 9, (2, 30)), num_nodes=9, edge_features={"at": rng.permutation(30)},
        edge_splits={"seen": np.arange(0, 30, 2), "hidden": [1, 3]},
    )  # fmt: skip
    write_unigraph(graph, tmp_path / "u")
    assert_same(read_graph(tmp_path / "u"), graph)
    write_parts(graph, tmp_path / "d", num_parts=2, method="hash", **options)
    write_unigraph(tmp_path / "d", tmp_path / "v", format="csv")
    assert_same(read_graph(tmp_path / "v"), graph)


def test_the_context_survives_a_round_trip(tmp_path):
    text = 'context { features { key: "g" value { dtype: DT_FLOAT } } metadata { filename: "c.csv" } }'
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "g.pbtxt").write_text(text + ' node_sets { key: "n" value { metadata { filename: "n.csv" } } }')
    (tmp_path / "g" / "c.csv").write_text("g\n9.5\n")
    (tmp_path / "g" / "n.csv").write_text("#id\na\nb\n")
    graph = read_graph(tmp_path / "g")
    path = write_unigraph(graph, tmp_path / "u")
    schema = read_schema(path)
    assert schema.context.metadata.filename == "context.tfrecord" and list(schema.node_sets) == ["n"]
    assert_same(read_graph(path), graph)


def test_raw_ids_of_any_feature(rng, tmp_path):
    graph = graph_from_arrays(
        {("n", "to", "n"): np.array([[0, 1], [2, 2]])}, node_features={"n": {"code": np.array([70, -5, 900])}}
    )
    write_unigraph(graph, tmp_path / "u", format="csv", ids=("n.code",))
    assert (tmp_path / "u" / "nodes-n.csv").read_text() == '"#id","code"\n"70",70\n"-5",-5\n"900",900\n'
    assert (tmp_path / "u" / "edges-to.csv").read_text() == '"#source","#target"\n"70","900"\n"-5","900"\n'
    assert_same(read_graph(tmp_path / "u", keep_raw_ids=False), graph)
    read = read_graph(tmp_path / "u")
    assert read.nodes["n"].features["#id"].tolist() == ["70", "-5", "900"]


def test_compressed_unigraphs_are_read_back(rng, tmp_path):
    graph = make_graph(rng, has_doubles=False)
    write_unigraph(graph, tmp_path / "u", compress=True)
    assert (tmp_path / "u" / "nodes-paper.tfrecord").read_bytes()[:2] == b"\x1f\x8b"
    assert_same(read_graph(tmp_path / "u"), graph)


def tiny(**features):
    return Graph(
        nodes={"n": NodeTable(num_nodes=2, features=features)},
        edges={("n", "to", "n"): EdgeTable(src_keys=np.array([0, 1]), dst_keys=np.array([1, 1]))},
    )


LISTS = RaggedArray(np.arange(3), np.array([0, 1, 3]))


@pytest.mark.parametrize(
    ("graph", "settings", "message"),
    [
        (tiny(z=np.zeros(2, np.complex64)), {}, "n.z is complex64.* TF-GNN stores"),
        (tiny(z=LISTS), {"format": "csv"}, "n.z is int64.* a cell of a CSV file holds one value"),
        (tiny(z=np.zeros((2, 3))), {"format": "csv"}, "a cell of a CSV file holds one value"),
        (tiny(z=np.zeros((2, 0))), {}, "has no values"),
        (tiny(z=np.array([0.5, 0.1])), {}, "n.z has 0.1, which float32 cannot hold"),
        (tiny(**{"#id": RaggedArray.from_strings(["a", "a"])}), {}, "n.#id is 'a' of nodes 0 and 1"),
        (tiny(**{"#id": RaggedArray.from_strings(["a", ""])}), {}, "n.#id of node 1 is empty"),
        (tiny(**{"#weight": np.zeros(2)}), {}, "n.#weight begins with #"),
        (tiny(z=np.zeros(2)), {"ids": ("n.z",)}, "n.z is float64.* raw ids are one string or integer"),
        (replace(tiny(), nodes={"_n": NodeTable(num_nodes=1)}, edges={}), {}, "type '_n' begins with a character that"),
        (replace(tiny(), splits={"n": {"a": np.array([0, 1]), "b": np.array([1])}}), {}, "row 1 of n is in splits"),
        (
            replace(
                tiny(), edges={t: tiny().edges["n", "to", "n"] for t in (("n", "to", "n"), ("n", "held", "n"))},
                label_types={("n", "held", "n"): (("n", "to", "n"),)},
            ), {}, "label types",
        ),
    ],
)  # fmt: skip
def test_unwritable_graphs_are_refused_and_leave_nothing(tmp_path, graph, settings, message):
    with pytest.raises(SchemaError, match=message):
        write_unigraph(graph, tmp_path / "u", **settings)
    assert list(tmp_path.iterdir()) == []


def test_doubles_that_float32_holds_are_written(tmp_path):
    graph = tiny(z=np.array([0.5, np.nan]))
    write_unigraph(graph, tmp_path / "u")
    assert_same(read_graph(tmp_path / "u"), graph)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "json"}, "format is 'json'"),
        ({"num_shards": 0}, "num_shards is 0"),
        ({"format": "csv", "compress": True}, "compress is only for tfrecord"),
        ({"ids": ("code",)}, "wanted names of features"),
        ({"shards": 2}, "unknown setting 'shards'"),
    ],
)
def test_settings_are_checked(tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        write_unigraph(tiny(), tmp_path / "u", **settings)


def test_places_and_sources_are_checked(rng, tmp_path):
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "x").write_text("")
    with pytest.raises(SettingsError, match=r"is not empty"):
        write_unigraph(tiny(), tmp_path / "u")
    with pytest.raises(SettingsError, match=r"neither a dataset nor a chunked graph"):
        write_unigraph(tmp_path / "u", tmp_path / "v")
    with pytest.raises(UnknownNameError, match=r"ids name 'n.code'; features of nodes are \['n.z'\]"):
        write_unigraph(tiny(z=np.zeros(2)), tmp_path / "v", ids=("n.code",))
    write_parts(make_graph(rng), tmp_path / "d", num_parts=2, method="hash")
    with pytest.raises(SettingsError, match=r"give a folder apart from the input"):
        write_unigraph(tmp_path / "d", tmp_path / "d" / "u")
    path = next((tmp_path / "d").rglob("double.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ChecksumError):
        write_unigraph(tmp_path / "d", tmp_path / "v")


def test_damage_in_parquet_is_reported(tmp_path, rng):
    write_unigraph(make_graph(rng), tmp_path / "u", format="parquet")
    path = next(path for path in sorted((tmp_path / "u").iterdir()) if path.read_bytes()[:4] == b"PAR1")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    hurt = bytearray(path.read_bytes())
    hurt[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(hurt)
    with pytest.raises(FormatError, match=rf"{path.name}.*CRC"):
        read_graph(tmp_path / "u")
