"""Checks that ``hopstream chunk`` writes a chunked graph that other verbs read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopstream import graph_from_arrays, read_dataset, read_graph
from hopstream.graph.graph import Graph
from hopstream.ingest.npz import write_npz


@pytest.fixture
def graph(rng: np.random.Generator) -> Graph:
    return graph_from_arrays(
        rng.integers(0, 30, (2, 200)),
        num_nodes=30,
        node_features={"x": rng.random((30, 4)).astype(np.float32)},
        edge_features={"t": np.arange(200)},
        splits={"train": np.arange(5)},
    )


@pytest.fixture
def npz(graph: Graph, tmp_path: Path) -> Path:
    write_npz(graph, tmp_path / "g.npz")
    return tmp_path / "g.npz"


def test_chunk_then_partition(run_command, graph: Graph, npz: Path, tmp_path: Path):
    flags = ("--num-chunks", "3", "--edges-format", "parquet", "--data-format", "parquet", "--vector-rows")
    result = run_command("chunk", npz, "--out", tmp_path / "c", *flags)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("read    npz      1 node type, 1 edge type, 200 edges ")
    assert lines[1].startswith("write   3 chunks ") and " in 13 files" in lines[1]
    assert lines[2] == f"done    {tmp_path / 'c' / 'metadata.json'}"
    assert json.loads((tmp_path / "c" / "metadata.json").read_text())["graph_name"] == "c"
    assert read_graph(tmp_path / "c").fingerprint() == graph.fingerprint()
    result = run_command("partition", tmp_path / "c", "--parts", "2", "--method", "hash", "--out", tmp_path / "parts")
    assert result.status == 0 and result.out.startswith("read    chunked  1 node type, 1 edge type, 200 edges ")
    assert read_dataset(tmp_path / "parts").fingerprint() == graph.fingerprint()
    result = run_command("ingest", tmp_path / "c" / "metadata.json", "--out", tmp_path / "one")
    assert result.status == 0 and read_dataset(tmp_path / "one").fingerprint() == graph.fingerprint()


def test_a_dataset_in_csv(run_command, graph: Graph, npz: Path, tmp_path: Path):
    run_command("ingest", npz, "--out", tmp_path / "d")
    flags = ("--chunks", "2", "--delimiter", ",", "--name", "mine", "--json")
    result = run_command("chunk", tmp_path / "d", "--out", tmp_path / "c", *flags)
    assert result.fact("stage", "write")["files"] == 9
    assert result.fact("stage", "done")["metadata"] == str(tmp_path / "c" / "metadata.json")
    first = next((tmp_path / "c" / "edges").iterdir()).read_text().splitlines()[0]
    assert first.count(",") == 1 and " " not in first
    assert read_graph(tmp_path / "c").fingerprint() == graph.fingerprint()


def test_strings_are_written(run_command, tables: Path, tmp_path: Path):
    result = run_command("chunk", tables, "--out", tmp_path / "c", "--on-dangling", "drop")
    assert result.status == 0
    wanted = read_graph(tables, on_dangling="drop")
    assert read_graph(tmp_path / "c").fingerprint() == wanted.fingerprint()


BOUNDED = ("partition", "--parts", "2", "--memory", "1G")


@pytest.mark.parametrize(
    ("verb", "flags", "kind"),
    [
        (("chunk",), ("--raw-ids",), "edge lists"),
        (BOUNDED, ("--columns", "a,b"), "edge lists"),
        (("ingest",), ("--edge-delimiter", ","), "edge lists"),
        (("chunk",), ("--header", "yes"), "edge lists"),
        (BOUNDED, ("--nodes", "9"), "edge lists"),
        (("ingest",), ("--split", "time"), "OGB folders"),
        (("chunk",), ("--inverse-edges", "no"), "OGB folders"),
        (BOUNDED, ("--ignore", "all"), ".npz files"),
    ],
)
def test_flags_of_other_sources_are_refused_for_tables(run_command, tables: Path, tmp_path: Path, verb, flags, kind):
    result = run_command(*verb, tables, "--out", tmp_path / "c", "--on-dangling", "drop", *flags)
    assert result.status == 2 and f"error: {flags[0]} is only for {kind};" in result.err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--chunks", "0"), "--chunks is 0; wanted 1 to"),
        (("--edges-format", "orc"), "--edges-format is 'orc'; wanted one of csv, parquet, numpy"),
        (("--vector-rows",), "--vector-rows is only for parquet"),
        (("--delimiter", "ab"), "--delimiter is 'ab'; wanted one ASCII character"),
        (("--leave-out", "node.z"), "--leave-out names 'node.z'; the graph has ['node.x', 'node__to__node.t']"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_written(run_command, npz: Path, tmp_path: Path, flags, message):
    result = run_command("chunk", npz, "--out", tmp_path / "c", *flags)
    assert result.status == 2 and message in result.err
    assert not (tmp_path / "c").exists()


def test_the_source_is_not_overwritten(run_command, npz: Path, tmp_path: Path):
    result = run_command("chunk", npz, "--out", tmp_path)
    assert result.status == 2 and f"--out is {tmp_path}, which holds {npz}, the source" in result.err
    run_command("ingest", npz, "--out", tmp_path / "d")
    result = run_command("chunk", tmp_path / "d", "--out", tmp_path / "d" / "c")
    assert result.status == 2 and f"--out is {tmp_path}/d/c, which lies in {tmp_path}/d, the source;" in result.err


def test_damaged_chunks_are_named_and_nothing_is_written(run_command, npz: Path, tmp_path: Path):
    run_command("chunk", npz, "--out", tmp_path / "c")
    path = sorted((tmp_path / "c" / "edges").iterdir())[1]
    path.write_text(path.read_text().replace("\n", "999\n", 1))
    result = run_command("partition", tmp_path / "c", "--parts", "2", "--out", tmp_path / "parts")
    assert result.status == 2 and f"edges/{path.name} line 1 has destination" in result.err
    assert not (tmp_path / "parts").exists()


def write_tables(folder: Path) -> Path:
    """Tables of two users, one with two rows, and of edges with one dangling edge."""
    folder.mkdir()
    (folder / "users.csv").write_text("id,age\n7,30\n9,41\n7,50\n")
    (folder / "knows.csv").write_text("a,b\n7,9\n9,9\n9,8\n")
    nodes = {"user": {"files": "users.csv", "id": "id", "features": ["age"]}}
    edges = [{"type": ["user", "knows", "user"], "files": "knows.csv", "src": "a", "dst": "b"}]
    (folder / "metadata.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return folder


def test_tables_are_streamed(run_command, tmp_path: Path):
    source = write_tables(tmp_path / "t")
    flags = ("--workers", "0", "--memory", "500MB", "--on-duplicate", "drop", "--on-dangling", "drop")
    result = run_command("chunk", source, "--out", tmp_path / "c", "--num-chunks", "2", *flags)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines.pop(0) == "plan    read     38 B of tables" and lines.pop(0).split()[0] == "disk"
    assert lines[0].startswith("        memory   500MB for all processes, ")
    assert lines[1].startswith("key     tables   2 nodes, 2 edges ")
    assert lines[2] == "drop    repeated 1 row of user whose raw id an earlier row has"
    assert lines[3] == "drop    dangling 1 edge of user__knows__user: 0 sources and 1 destinations are not nodes"
    assert lines[4].startswith("write   2 chunks ") and " in 7 files" in lines[4]
    assert lines[5] == f"done    {tmp_path / 'c' / 'metadata.json'}"
    graph = read_graph(tmp_path / "c")
    assert graph.nodes["user"].features["age"].tolist() == [30, 41]
    result = run_command("chunk", source, "--out", tmp_path / "d", "--json", *flags)
    assert result.fact("stage", "key")["dropped_nodes"] == result.fact("stage", "key")["dropped_edges"] == 1
    assert result.fact("type", "user__knows__user") == {
        "stage": "drop", "type": "user__knows__user", "edges": 1, "src": 0, "dst": 1,
    }  # fmt: skip
    result = run_command("ingest", source, "--out", tmp_path / "one", *flags[4:])
    assert result.status == 0 and "1 repeated node dropped" in result.out


def test_flaws_of_tables(run_command, tmp_path: Path):
    source = write_tables(tmp_path / "t")
    result = run_command("chunk", source, "--out", tmp_path / "c", "--workers", "0")
    assert result.status == 2
    assert "error: user has raw id 7 twice: users.csv line 2 and users.csv line 4" in result.err
    result = run_command("chunk", source, "--out", tmp_path / "c", "--memory", "1MB")
    assert result.status == 2 and "--memory is 1MB; one process needs at least 376.0 MB: give more memory" in result.err
    result = run_command("chunk", source, "--out", tmp_path / "c", "--on-duplicate", "keep")
    assert result.status == 2 and "--on-duplicate is 'keep'" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]
