"""Checks that ``partition`` reads what ``hopstream assign`` writes, from datasets and from chunks."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from hopstream.cli import assign, main
from hopstream.dataset.layout import open_dataset
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.write import write_parts

ASKED = [
    "--method", "ldg", "--parts", "3", "--balance-splits", "--balance-ntypes", "node=y", "--balance-edges",
    "--rng-seed", "1",
]  # fmt: skip


@pytest.fixture
def sources(tmp_path):
    graph = rmat_graph(8, edges_per_node=8, num_classes=3)
    write_parts(graph, tmp_path / "set")
    write_chunked(graph, tmp_path / "chunks", num_chunks=3)
    return graph, tmp_path


def test_a_dataset_and_chunks_are_assigned_alike_and_partition_reads_it(sources, capsys):
    _, folder = sources
    for source in ("set", "chunks"):
        out = ["--out", str(folder / f"owners-{source}"), "--memory", "300MB", "--part-weights", "1"]
        assert main(["assign", str(folder / source), *ASKED, *out, "--part-weights", "2", "--part-weights", "1"]) == 0
    text = capsys.readouterr().out
    assert "of adjacent pairs cut" in text and "edges node 0 1.0" in text
    first, second = ((folder / f"owners-{source}" / "node.txt").read_bytes() for source in ("set", "chunks"))
    assert first == second and len(first) == 2 * 256
    owners = ["--method", "file", "--owners", str(folder / "owners-set")]
    assert main(["partition", str(folder / "set"), "--out", str(folder / "cut"), "--parts", "3", *owners]) == 0
    assert sorted(open_dataset(folder / "cut").manifest.report.nodes)[2] > 256 / 3


def test_stages_are_shown_while_they_run(sources, monkeypatch):
    _, folder = sources
    told: list[str] = []

    @contextmanager
    def bars():
        yield lambda stage, done, total: told.append(stage)

    monkeypatch.setattr(assign, "progress_bars", bars)
    for source in ("set", "chunks"):
        told.clear()
        assert main(["assign", str(folder / source), *ASKED, "--out", str(folder / f"shown-{source}")]) == 0
        assert list(dict.fromkeys(told)) == ["edges", "group", "ldg", "balance"]


def test_facts_are_json(sources, capsys):
    _, folder = sources
    assert main(["assign", str(folder / "chunks"), *ASKED, "--out", str(folder / "out"), "--json"]) == 0
    assigned, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert assigned["stage"] == "assign" and assigned["nodes"] == 256 and 0 < assigned["pairs_cut"] < 1
    assert list(assigned["largest_over_share"])[:2] == ["bytes", "edges node 0"]
    assert done["meta"] == str(folder / "out" / "partition_meta.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "much"], "--memory is 'much'"),
        (
            ["--memory", "1KB"],
            "on 256 nodes and 2048 edges needs at least 256.0 MB: give more memory, or use ldg or fennel",
        ),
        (["--method", "file"], "assigns nothing"),
        (["--method", "hash", "--balance-edges"], "method 'hash' assigns nodes by their keys"),
        (["--part-weights", "1"], "--part-weights is 1 numbers"),
        (
            ["--balance-ntypes", "user"],
            "--balance-ntypes is 'user', neither a node type (known: ['node']) nor a feature (known: ['y']) nor",
        ),
    ],
)
def test_bad_options_are_usage_errors(sources, capsys, options, message):
    _, folder = sources
    assert main(["assign", str(folder / "chunks"), "--out", str(folder / "out"), "--parts", "2", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_the_number_of_parts_is_required(sources, capsys):
    _, folder = sources
    assert main(["assign", str(folder / "chunks"), "--out", str(folder / "out"), "--method", "hash"]) == 2
    assert capsys.readouterr().err == "error: Missing option '--parts'; see hopstream assign --help\n"
    assert not (folder / "out").exists()


@pytest.mark.parametrize("source", ["set", "chunks", "chunks/metadata.json"])
def test_parts_are_not_written_into_the_source(sources, capsys, source):
    _, folder = sources
    inside = folder / source.split("/")[0] / "owners"
    assert main(["assign", str(folder / source), *ASKED, "--out", str(inside)]) == 2
    assert f"--out is {inside}, which lies in {inside.parent}, the source" in capsys.readouterr().err
    assert not inside.exists()
