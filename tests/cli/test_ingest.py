"""Checks that raw graphs become datasets of one part and that bad input stops before any write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.dataset.read_back import graph_of_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.npz import write_npz
from hopstream.schema import EDGE, NODE


@pytest.fixture
def npz(rng: np.random.Generator, tmp_path: Path) -> Path:
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=9, features={"x": rng.random((9, 2)).astype(np.float32)})},
        edges={EDGE: EdgeTable(src_keys=rng.integers(0, 9, 20), dst_keys=rng.integers(0, 9, 20))},
        splits={NODE: {"train": np.arange(0, 9, 2)}},
    )
    write_npz(graph, tmp_path / "g.npz")
    return tmp_path / "g.npz"


def test_ingest_of_tables_prints_what_it_read_and_wrote(run_command, tables: Path, tmp_path: Path):
    result = run_command("ingest", tables, "--out", tmp_path / "d", "--on-dangling", "drop")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("read    tables   2 node types, 2 edge types, 6 edges, 1 dropped ")
    assert lines[0].endswith(" peak")
    assert lines[1].startswith("write   1 part ") and lines[2].endswith("manifest.json   format 1")
    assert [line.split() for line in lines if line.startswith("paper cites")] == [["paper", "cites", "paper", "3", "1"]]
    manifest = open_dataset(tmp_path / "d", verify=True).manifest
    assert manifest.book.num_parts == 1 and manifest.book.num_ids("paper") == 4
    assert manifest.schema.splits == {"paper": ("train", "val")}


def test_ingest_prints_json_records_of_its_stages(run_command, tables: Path, tmp_path: Path):
    arguments = (tables / "metadata.json", "--out", tmp_path / "d", "--on-dangling", "drop", "--no-keep-raw-ids")
    result = run_command("ingest", *arguments, "--json")
    read = result.fact("stage", "read")
    assert (read["nodes"], read["edges"], read["dropped_edges"]) == (6, 6, 1)
    assert read["seconds"] >= 0 and read["peak_bytes"] > 0
    assert result.fact("stage", "done")["format"] == 1
    assert result.fact("node_type", "paper") == {
        "node_type": "paper",
        "nodes": 4,
        "splits": {"train": 2, "val": 1},
        "features": {"year": {"dtype": "int64", "shape": [], "ragged": False}},
    }
    assert result.fact("edge_type", ["paper", "cites", "paper"])["dropped"] == 1


def test_ingest_of_npz_writes_the_same_graph(run_command, npz: Path, tmp_path: Path):
    result = run_command("ingest", npz, "--out", tmp_path / "d")
    assert result.status == 0 and result.out.startswith("read    npz      1 node type, 1 edge type, 20 edges ")
    graph = graph_of_dataset(open_dataset(tmp_path / "d"))
    with np.load(npz) as arrays:
        np.testing.assert_array_equal(graph.edges[EDGE].src_keys, arrays["node__to__node/edge_index"][0])
        np.testing.assert_array_equal(graph.nodes[NODE].features["x"], arrays["node/x"])


def test_names_are_not_markup(run_command, odd_graph: Graph, tmp_path: Path):
    write_npz(odd_graph, tmp_path / "g.npz")
    result = run_command("ingest", tmp_path / "g.npz", "--out", tmp_path / "d")
    assert result.status == 0 and "[red]x float32[rows, 2]" in result.out


def test_ingest_replaces_a_dataset_only_with_overwrite(run_command, npz: Path, tmp_path: Path):
    assert run_command("ingest", npz, "--out", tmp_path / "d").status == 0
    again = run_command("ingest", npz, "--out", tmp_path / "d")
    assert again.status == 2 and "holds a dataset" in again.err
    assert run_command("ingest", npz, "--out", tmp_path / "d", "--overwrite").status == 0


def bad_sources(folder: Path) -> list[tuple[Path, str]]:
    """Paths that make no graph, and the error of each."""
    (folder / "empty").mkdir()
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 this is no archive")
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    (folder / "graph.dat").write_text("0 1\n")
    return [
        (folder / "nothing.npz", "nothing.npz is missing; give"),
        (folder / "empty", "has no metadata.json"),
        (folder / "broken.npz", "broken.npz cannot be read as .npz"),
        (folder / "broken.json", "broken.json cannot be read as JSON"),
        (folder / "list.json", "list.json is list; wanted a JSON object"),
        (folder / "graph.dat", "graph.dat is not a known source"),
    ]


@pytest.mark.parametrize("verb", ["ingest", "partition"])
def test_bad_sources_are_refused_before_anything_is_written(run_command, tmp_path: Path, verb: str):
    for source, message in bad_sources(tmp_path):
        result = run_command(verb, source, "--out", tmp_path / "d")
        assert result.status == 2 and result.out == "" and message in result.err, result.err
        assert not (tmp_path / "d").exists()


def test_a_dangling_edge_is_named(run_command, tables: Path, tmp_path: Path):
    result = run_command("ingest", tables, "--out", tmp_path / "d")
    assert result.status == 2 and "p9" in result.err and "cites.csv" in result.err
    assert not (tmp_path / "d").exists()
    assert run_command("ingest", tables, "--out", tmp_path / "d", "--on-dangling", "hide").status == 2


def test_a_table_without_a_declared_column_is_refused(run_command, tables: Path, tmp_path: Path):
    metadata = json.loads((tables / "metadata.json").read_text())
    metadata["nodes"]["paper"]["features"] = ["height"]
    (tables / "metadata.json").write_text(json.dumps(metadata))
    result = run_command("ingest", tables, "--out", tmp_path / "d")
    assert result.status == 2 and "height" in result.err


@pytest.mark.parametrize("out", ["tables", "tables/parts", "."])
def test_nothing_is_written_over_the_source(run_command, tables: Path, tmp_path: Path, out: str):
    result = run_command("ingest", tables, "--out", tmp_path / out, "--overwrite")
    assert result.status == 2 and "; give a folder apart from the input" in result.err
    assert (tables / "papers.csv").exists()


def test_a_file_where_the_folder_should_be(run_command, npz: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    result = run_command("ingest", npz, "--out", tmp_path / "file", "--overwrite")
    assert result.status == 2 and (tmp_path / "file").read_text() == "mine"


def test_arrays_that_fit_nothing(run_command, npz: Path, tables: Path, tmp_path: Path):
    np.savez(tmp_path / "a.npz", edge_index=np.array([[0], [1]]), x=np.ones(2), w=np.ones(3))
    result = run_command("ingest", tmp_path / "a.npz", "--out", tmp_path / "d")
    assert result.status == 2 and result.err.endswith("or leave them out with --ignore NAME,NAME or --ignore all\n")
    for number, words in enumerate(("w", "all", "w,x")):
        result = run_command("ingest", tmp_path / "a.npz", "--out", tmp_path / str(number), "--ignore", words)
        assert result.status == 0, result.err
    result = run_command("ingest", tables, "--out", tmp_path / "d", "--ignore", "w")
    assert result.status == 2 and "--ignore is only for .npz files" in result.err
