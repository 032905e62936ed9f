"""Is a unigraph read by the verbs that read tables, and written by its own?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopstream.ingest import read_graph
from hopstream.partition.read_back import read_dataset


@pytest.fixture
def unigraph(tmp_path: Path) -> Path:
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "n.csv").write_text("#id,x\na,1\nb,2\nc,3\n")
    (folder / "e.csv").write_text("#source,#target\na,b\nb,zoe\nc,a\n")
    (folder / "g.pbtxt").write_text(
        'node_sets { key: "n" value { '
        'features { key: "x" value { dtype: DT_INT64 } } metadata { filename: "n.csv" } } }'
        'edge_sets { key: "to" value { source: "n" target: "n" metadata { filename: "e.csv" } } }'
    )
    return folder


def test_ingest_and_back(run_command, unigraph, tmp_path):
    result = run_command("ingest", unigraph, "--out", tmp_path / "d", "--on-dangling", "drop")
    assert result.status == 0
    assert result.out.startswith("read    unigraph 1 node type, 1 edge type, 2 edges, 1 dropped ")
    result = run_command("unigraph", tmp_path / "d", "--out", tmp_path / "u", "--shards", 2, "--json")
    assert result.status == 0
    facts = [json.loads(line) for line in result.out.splitlines()]
    assert facts[0]["files"] == 5 and facts[0]["format"] == "tfrecord"
    assert facts[1]["schema"] == str(tmp_path / "u" / "graph_schema.pbtxt")
    assert read_graph(tmp_path / "u").fingerprint() == read_dataset(tmp_path / "d").fingerprint()


def test_piece_by_piece(run_command, unigraph, tmp_path):
    flags = ("--on-dangling", "drop", "--workers", 0)
    assert run_command("chunk", unigraph / "g.pbtxt", "--out", tmp_path / "c", *flags).status == 0
    result = run_command(
        "partition", unigraph, "--out", tmp_path / "d", "--parts", 2, "--method", "hash", "--memory", "2GiB", *flags
    )
    assert result.status == 0
    assert read_dataset(tmp_path / "d").fingerprint() == read_graph(tmp_path / "c").fingerprint()
    written = run_command("unigraph", tmp_path / "c", "--out", tmp_path / "u", "--format", "csv")
    assert written.status == 0 and (tmp_path / "u" / "nodes-n.csv").read_text().startswith('"#id","x"\n"a",1\n')


def test_what_is_held_is_read_first(run_command, unigraph, tmp_path):
    result = run_command("unigraph", unigraph, "--out", tmp_path / "u", "--format", "parquet", "--on-dangling", "drop")
    assert result.status == 0
    assert [line.split()[:2] for line in result.out.splitlines()[:2]] == [["read", "unigraph"], ["write", "parquet"]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "json"], "--format is 'json'"),
        (["--shards", 0], "--shards is 0"),
        (["--format", "csv", "--compress"], "--compress is for tfrecord"),
        (["--ids", "n.doi"], "--ids name 'n.doi'"),
        ([], "read with --on-dangling drop to leave such edges out"),
    ],
)
def test_the_users_fault(run_command, unigraph, tmp_path, flags, message):
    drop = ["--on-dangling", "drop"] if flags else []
    result = run_command("unigraph", unigraph, "--out", tmp_path / "u", *flags, *drop)
    assert result.status == 2 and message in result.err
    assert not (tmp_path / "u").exists()
