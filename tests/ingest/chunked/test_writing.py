"""Checks that every graph reads back as written, and that unwritable graphs are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream import graph_from_arrays, read_graph
from hopstream.arrays import RaggedArray
from hopstream.engine.atomic_folder import open_work
from hopstream.errors import SchemaError, SettingsError, StateError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked import chunked_of_graph, open_chunked, write_chunked
from hopstream.schema import NUMERIC_DTYPES

LABEL = ("author", "likes", "paper")
WRITES = ("author", "writes", "paper")
REAL_DTYPES = [name for name in NUMERIC_DTYPES if not name.startswith("complex")]


def graph_of(rng: np.random.Generator, sizes: tuple[int, int], num_edges: int, dtypes: list[str]) -> Graph:
    """Authors and papers, with a feature of each dtype of 1 to 4 dimensions."""
    authors, papers = sizes
    num_edges = num_edges if authors and papers else 0
    shapes = [(), (2,), (1, 3), (2, 1, 2)]

    def features(num_rows: int) -> dict[str, np.ndarray]:
        made = {}
        for number, dtype in enumerate(dtypes):
            shape = (num_rows, *shapes[number % len(shapes)])
            made[f"f{number}"] = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
        return made

    keys = np.flatnonzero(rng.random(papers) < 0.5)
    return Graph(
        nodes={
            "author": NodeTable(num_nodes=authors, features=features(authors)),
            "paper": NodeTable(num_nodes=papers),
            "place": NodeTable(num_nodes=0, features=features(0)),
        },
        edges={
            WRITES: EdgeTable(
                src_keys=rng.integers(0, max(authors, 1), num_edges),
                dst_keys=rng.integers(0, max(papers, 1), num_edges),
                features=features(num_edges),
            ),
            ("paper", "cites", "paper"): EdgeTable(src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64)),
        },
        splits={"paper": {"test": keys, "train": keys[:0]}},
    ).check()


FORMATS = [
    ("csv", "numpy", False, 1), ("parquet", "parquet", False, 4), ("numpy", "parquet", True, 1),
    ("csv", "parquet", True, 4), ("numpy", "numpy", False, 4),
]  # fmt: skip


@pytest.mark.parametrize(("edges_format", "data_format", "vector_rows", "num_chunks"), FORMATS)
def test_a_written_graph_is_read_back(tmp_path, rng, edges_format, data_format, vector_rows, num_chunks):
    graph = graph_of(rng, (7, 40), 200, list(NUMERIC_DTYPES) if data_format == "numpy" else REAL_DTYPES)
    written = ChunkSettings(
        num_chunks=num_chunks, edges_format=edges_format, data_format=data_format, vector_rows=vector_rows
    )
    path = write_chunked(graph, tmp_path / "g", name="mine", settings=written)
    assert path == tmp_path / "g" / "metadata.json"
    metadata = json.loads(path.read_text())
    assert metadata["graph_name"] == open_chunked(path).name == "mine"
    assert metadata["num_nodes_per_type"] == [sum(rows) for rows in metadata["num_nodes_per_chunk"]] == [7, 40, 0]
    assert metadata["num_edges_per_type"] == [sum(rows) for rows in metadata["num_edges_per_chunk"]] == [200, 0]
    assert all(len(rows) == num_chunks for rows in metadata["num_edges_per_chunk"])
    found = read_graph(tmp_path / "g")
    assert found.schema == graph.schema and found.fingerprint() == graph.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    num_edges=st.integers(0, 50),
    num_chunks=st.integers(1, 6),
    chosen=st.sampled_from(FORMATS),
    dtypes=st.lists(st.sampled_from(REAL_DTYPES), max_size=3),
    cuts=st.lists(st.integers(1, 60), min_size=2, max_size=2),
)
def test_any_graph_in_any_chunks(seed, sizes, num_edges, num_chunks, chosen, dtypes, cuts):
    graph = graph_of(np.random.default_rng(seed), sizes, num_edges, dtypes)
    names, chosen = ("edges_format", "data_format", "vector_rows"), chosen[:3]
    with TemporaryDirectory() as folder:
        write_chunked(graph, Path(folder) / "g", num_chunks=num_chunks, **dict(zip(names, chosen, strict=True)))
        opened = open_chunked(Path(folder) / "g")
        assert opened.schema == graph.schema
        assert opened.load().fingerprint() == graph.fingerprint()
        check_sources_agree(opened, chunked_of_graph(graph), max_rows=cuts[0], step=cuts[1])


def check_sources_agree(one, other, *, max_rows: int, step: int) -> None:
    """Check that files and memory give the same pieces."""
    assert {t: {n: k.tolist() for n, k in of.items()} for t, of in one.splits.items()} == {
        t: {n: k.tolist() for n, k in of.items()} for t, of in other.splits.items()
    }
    for edge_type, edges in one.edges.items():
        for source in (edges.ends, other.edges[edge_type].ends):
            stops = [0, *(piece.stop for piece in source.pieces(max_rows))]
            assert stops[-1] == edges.num_edges and all(0 < b - a <= max_rows for a, b in pairwise(stops))
        found, wanted = (
            [
                pair
                for piece in source.pieces(max_rows)
                for _, *ends in source.read(piece)
                for pair in zip(*ends, strict=True)
            ]
            for source in (edges.ends, other.edges[edge_type].ends)
        )
        assert found == wanted
    for owner, table in (*one.nodes.items(), *one.edges.items()):
        twin = (*other.nodes.items(), *other.edges.items())
        for name, column in table.features.items():
            same = dict(twin)[owner].features[name]
            assert column.schema == same.schema
            for start in range(0, column.num_rows, step):
                stop = min(start + step, column.num_rows)
                np.testing.assert_array_equal(column.read(start, stop), same.read(start, stop))


def test_names_unfit_for_files_are_stored(tmp_path):
    graph = Graph(
        nodes={
            "a/b": NodeTable(num_nodes=2, features={"../x": np.arange(2), "~feature0": np.ones(2)}),
            "~type0": NodeTable(num_nodes=1),
        },
        edges={("a/b", "é" * 150, "~type0"): EdgeTable(src_keys=np.array([1]), dst_keys=np.array([0]))},
    )
    write_chunked(graph, tmp_path / "g", num_chunks=2)
    assert read_graph(tmp_path / "g").fingerprint() == graph.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.fixture
def graph(rng) -> Graph:
    return graph_of(rng, (5, 6), 10, ["float32"])


def with_feature(graph: Graph, name: str, column) -> Graph:
    nodes = dict(graph.nodes)
    nodes["author"] = replace(nodes["author"], features={**nodes["author"].features, name: column})
    return replace(graph, nodes=nodes)


def test_unstorable_features_and_splits_are_refused(graph, tmp_path):
    complex_rows = RaggedArray.from_rows([np.zeros(n, np.complex64) for n in range(5)])
    ragged = with_feature(graph, "tags", complex_rows)
    no_text = RaggedArray(np.full(5, 0xFF, np.uint8), np.arange(6), is_string=True)
    mask = with_feature(graph, "val_mask", np.ones(5, np.bool_))
    cases = [
        (
            ragged,
            r"author.tags is complex64\[rows, ragged\], which parquet cannot hold; add 'author.tags' to leave_out",
        ),
        (with_feature(graph, "name", no_text), "name-0.parquet would have a string that is not UTF-8"),
        (mask, "author.val_mask would be read back as split 'val'"),
        (replace(graph, splits={"paper": {"holdout": np.arange(2)}}), "'holdout' of paper has no mask"),
        (replace(graph, edge_splits={WRITES: {"train": np.arange(2)}}), "has splits of edges"),
        (
            replace(graph, edges={**graph.edges, LABEL: graph.edges[WRITES]}, label_types={LABEL: (WRITES,)}),
            "label types",
        ),
        (graph_from_arrays({("a:b", "r", "c"): np.zeros((2, 1), int)}), "type 'a:b' has a colon"),
    ]
    for bad, message in cases:
        with pytest.raises(SchemaError, match=message):
            write_chunked(bad, tmp_path / "g")
        assert not list(tmp_path.iterdir())
    write_chunked(ragged, tmp_path / "g", leave_out=("author.tags",))
    assert read_graph(tmp_path / "g").fingerprint() == graph.fingerprint()
    with pytest.raises(
        SchemaError, match=r"leave_out names 'author.x'; the graph has \['author.f0', 'place.f0', 'auth"
    ):
        write_chunked(graph, tmp_path / "h", leave_out=("author.x",))


@pytest.mark.parametrize("column", [np.zeros(5, np.complex64), np.zeros((5, 0), np.int8)], ids=["complex", "empty"])
def test_columns_unstorable_in_parquet_are_refused(graph, tmp_path, column):
    bad = with_feature(graph, "x", column)
    with pytest.raises(SchemaError, match=r"author.x is .*, which parquet cannot hold; use numpy"):
        write_chunked(bad, tmp_path / "g", data_format="parquet")
    write_chunked(bad, tmp_path / "g")
    assert read_graph(tmp_path / "g").fingerprint() == bad.fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_chunks": 0}, "num_chunks is 0; wanted 1 to"),
        ({"edges_format": "orc"}, "edges_format is 'orc'; wanted one of csv, parquet, numpy"),
        ({"data_format": "csv"}, "data_format is 'csv'; wanted one of numpy, parquet"),
        ({"vector_rows": True}, "vector_rows is only for parquet, and data_format is numpy"),
        ({"delimiter": "::"}, "delimiter is '::'"),
        ({"chunks": 3}, "unknown setting 'chunks'; known"),
        ({"settings": ChunkSettings(), "num_chunks": 3}, "both given"),
    ],
)
def test_settings_are_checked(graph, tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        write_chunked(graph, tmp_path / "g", **changes)
    assert not list(tmp_path.iterdir())


def test_existing_files_are_not_overwritten(graph, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="full is not empty; give a new or empty folder"):
        write_chunked(graph, tmp_path / "full")
    with pytest.raises(SettingsError, match="x is a file"):
        write_chunked(graph, tmp_path / "full" / "x")
    write_chunked(graph, tmp_path / "empty")
    assert read_graph(tmp_path / "empty").fingerprint() == graph.fingerprint()


def test_a_failed_write_leaves_nothing(graph, tmp_path, monkeypatch):
    def fail(stage, done, total):
        if done == total // 2:
            raise OSError(28, "no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_chunked(graph, tmp_path / "g", progress=fail)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_process_are_removed(graph, tmp_path):
    (tmp_path / ".g.work" / "new").mkdir(parents=True)
    (tmp_path / ".g.work" / "lock").touch()
    write_chunked(graph, tmp_path / "g")
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


def test_concurrent_writers_are_refused(graph, tmp_path):
    with open_work(tmp_path / "g"), pytest.raises(StateError, match="by another process"):
        write_chunked(graph, tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_writing_reports_progress_per_file(graph, tmp_path):
    seen = []
    write_chunked(graph, tmp_path / "g", num_chunks=3, progress=lambda *told: seen.append(told))
    assert seen[-1][1] == seen[-1][2] == len(seen) == 3 * 7
    assert {told[0] for told in seen} == {"write"}
