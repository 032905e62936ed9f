"""Checks that verbs for tables read a unigraph and that ``hopstream unigraph`` writes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopstream.dataset.read_back import read_dataset
from hopstream.ingest import read_graph


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


def test_unigraphs_are_read_in_chunks(run_command, unigraph, tmp_path):
    flags = ("--on-dangling", "drop", "--workers", 0)
    assert run_command("chunk", unigraph / "g.pbtxt", "--out", tmp_path / "c", *flags).status == 0
    result = run_command(
        "partition", unigraph, "--out", tmp_path / "d", "--parts", 2, "--method", "hash", "--memory", "2GiB", *flags
    )
    assert result.status == 0
    assert read_dataset(tmp_path / "d").fingerprint() == read_graph(tmp_path / "c").fingerprint()
    written = run_command("unigraph", tmp_path / "c", "--out", tmp_path / "u", "--format", "csv")
    assert written.status == 0 and (tmp_path / "u" / "nodes-n.csv").read_text().startswith('"#id","x"\n"a",1\n')


def test_names_that_loaders_attach_are_named_once(run_command, unigraph, tmp_path, caplog):
    for name in ("g.pbtxt", "n.csv"):
        text = (unigraph / name).read_text()
        (unigraph / name).write_text(text.replace('key: "x"', 'key: "n_id"').replace("#id,x", "#id,n_id"))
    (unigraph / "e.csv").write_text("#source,#target\na,b\n")
    assert run_command("chunk", unigraph / "g.pbtxt", "--out", tmp_path / "c", "--workers", 0).status == 0
    for folder in (unigraph, tmp_path / "c"):
        caplog.clear()
        read_graph(folder)
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("features n.n_id have the names of attributes of PyG batches")


def test_records_by_way_of_partition(run_command, unigraph, tmp_path):
    """TFRecord shards become parts in bounded memory; the graph equals that of CSV files of its rows."""
    drop = ("--on-dangling", "drop")
    make = ("--format", "tfrecord", "--shards", 2, "--compress")
    assert run_command("unigraph", unigraph, "--out", tmp_path / "u", *make, *drop).status == 0
    parts = ("--parts", 2, "--method", "hash", "--memory", "2GiB", "--workers", 0)
    result = run_command("partition", tmp_path / "u", "--out", tmp_path / "d", *parts)
    assert result.status == 0, result.err
    graph = read_dataset(tmp_path / "d")
    assert graph.nodes["n"].features["x"].tolist() == [1, 2, 3]
    assert graph.fingerprint() == read_graph(unigraph, on_dangling="drop").fingerprint()


@pytest.mark.parametrize("verb", ["ingest", "partition --memory"])
def test_a_folder_of_data(run_command, unigraph, tmp_path, verb):
    (tmp_path / "schemas").mkdir()
    schema = (unigraph / "g.pbtxt").rename(tmp_path / "schemas" / "g.pbtxt")
    schema.write_text(schema.read_text().replace("n.csv", f"{unigraph}/n.csv"))
    memory = ("--memory", "2GiB", "--workers", 0) if verb.endswith("--memory") else ()
    command = (verb.split()[0], schema, "--out", tmp_path / "o", "--on-dangling", "drop", *memory)
    result = run_command(*command)
    assert result.status == 2 and "give --data-path, a folder that contains all files" in result.err
    result = run_command(*command, "--data-path", unigraph)
    assert result.status == 0, result.err
    assert (
        read_dataset(tmp_path / "o").fingerprint()
        == read_graph(schema, data_path=unigraph, on_dangling="drop").fingerprint()
    )


def test_a_folder_of_data_is_for_unigraphs(run_command, unigraph, tmp_path):
    assert run_command("chunk", unigraph, "--out", tmp_path / "c", "--on-dangling", "drop").status == 0
    for memory in ((), ("--memory", "2GiB")):
        flags = ("--out", tmp_path / "d", *memory, "--data-path")
        result = run_command("partition", tmp_path / "c", *flags, unigraph)
        assert result.status == 2 and "--data-path is only for unigraphs; " in result.err
        result = run_command("partition", unigraph, *flags, tmp_path / "none")
        assert result.status == 2 and "; wanted an existing folder" in result.err


def test_sources_read_whole_are_read_before_writing(run_command, unigraph, tmp_path):
    result = run_command("unigraph", unigraph, "--out", tmp_path / "u", "--format", "parquet", "--on-dangling", "drop")
    assert result.status == 0
    assert [line.split()[:2] for line in result.out.splitlines()[:2]] == [["read", "unigraph"], ["write", "parquet"]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "json"], "--format is 'json'"),
        (["--shards", 0], "--shards is 0"),
        (["--format", "csv", "--compress"], "--compress is only for tfrecord"),
        (["--ids", "n.doi"], "--ids name 'n.doi'"),
        ([], "read with --on-dangling drop to leave such edges out"),
    ],
)
def test_unigraph_refuses_bad_usage_before_anything_is_written(run_command, unigraph, tmp_path, flags, message):
    drop = ["--on-dangling", "drop"] if flags else []
    result = run_command("unigraph", unigraph, "--out", tmp_path / "u", *flags, *drop)
    assert result.status == 2 and message in result.err
    assert not (tmp_path / "u").exists()
