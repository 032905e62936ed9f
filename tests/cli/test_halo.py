"""Checks that ``hopstream halo`` adds a halo, reports what it saves and refuses bad arguments."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import write_chunked


@pytest.fixture(scope="module")
def graph():
    return hopstream.rmat_graph(7, num_features=3, num_classes=2)


@pytest.fixture
def root(graph, tmp_path):
    hopstream.write_parts(graph, tmp_path / "d", num_parts=3, method="hash")
    return tmp_path / "d"


def test_halo_prints_its_size_and_savings_and_inspect_shows_it(root, capsys):
    assert main(["halo", str(root), "--hops", "2", "--budget", "1kB", "--fanouts", "4,3", "--batch-size", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["plan", "halo", "expected", "part", "0", "1", "2", "all"]
    halo = hopstream.open_dataset(root, verify=True).manifest.halo
    assert (halo.hops, halo.budget_bytes, halo.fanouts, halo.batch_size) == (2, 1000, (4, 3), 9)
    assert main(["inspect", str(root)]) == 0
    assert "halo of 2 hops" in capsys.readouterr().out
    assert main(["halo", str(root / "manifest.json"), "--hops", "0"]) == 0
    assert "none: the old halo is removed" in capsys.readouterr().out
    assert hopstream.open_dataset(root).manifest.halo is None


def test_halo_prints_json_records_of_its_size_and_savings(root, capsys):
    assert main(["halo", str(root), "--features", "node:x", "--json"]) == 0
    plan, stage, *parts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert plan["halo_bytes"] >= sum(stage["bytes"])
    halo = hopstream.open_dataset(root).manifest.halo
    assert (stage["halo_id"], stage["bytes"], stage["hops"]) == (halo.halo_id, list(halo.bytes), 1)
    assert [part["part"] for part in parts] == ["0", "1", "2", "all"]
    assert all(0 < part["rows_saved"] <= 1 and 0 < part["expanded_saved"] <= 1 for part in parts)
    assert parts[-1]["remote_rows"] == pytest.approx(sum(part["remote_rows"] for part in parts[:-1]), abs=0.01)


def test_no_savings_skips_the_estimate(root, capsys):
    words = ["halo", str(root), "--features", "node:x", "--memory", "500MB", "--no-savings"]
    assert main(words) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["plan", "halo"]
    assert main([*words, "--memory", "1MB"]) == 2
    assert "memory is" in capsys.readouterr().err


def test_features_that_are_never_reached(tmp_path, capsys):
    """Edges lead from a to b and are stored with b, so no node of b is next to another part."""
    nodes = {t: NodeTable(num_nodes=8, features={"x": np.ones((8, 2), np.float32)}) for t in "ab"}
    edges = {("a", "to", "b"): EdgeTable(src_keys=np.arange(8), dst_keys=np.arange(8)[::-1].copy())}
    hopstream.write_parts(Graph(nodes=nodes, edges=edges).check(), tmp_path / "d", num_parts=2, method="random")
    words = ["halo", str(tmp_path / "d"), "--features", "a:x,b:x"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "warning: no features of 'b' were copied; no node of it lies within 1 hop" in out
    assert "features of 'a'" not in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["unreached"] == ["b"]
    assert hopstream.open_dataset(tmp_path / "d").manifest.halo.unreached == ("b",)
    assert main(["halo", str(tmp_path / "d"), "--hops", "0", "--budget", "1"]) == 0
    assert "or none fits the budget" in capsys.readouterr().out


def test_with_partition_and_dispatch(graph, root, tmp_path, capsys):
    words = ["--halo-hops", "1", "--halo-features", "node:x"]
    assert main(["partition", str(root), "--out", str(tmp_path / "p"), "--parts", "2", "--method", "hash", *words]) == 0
    assert "\nhalo " in capsys.readouterr().out
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    (tmp_path / "owners").mkdir()
    book = hopstream.dataset.read_key_book(tmp_path / "p")
    np.save(tmp_path / "owners" / "node.npy", book.part_of("node", np.arange(128)))
    folders = ["--in-dir", "in", "--partitions-dir", "owners", "--out-dir", "out"]
    places = [word if word.startswith("--") else str(tmp_path / word) for word in folders]
    assert main(["dispatch", "--workers", "0", *places, *words]) == 0
    out = capsys.readouterr().out
    assert "\nhalo " in out and " of copies\n" in out and "up to" in out
    ours, theirs = (hopstream.open_dataset(tmp_path / name, verify=True).manifest for name in ("p", "out"))
    assert ours.halo.halo_id == theirs.halo.halo_id
    only_budget = ["--halo-budget", "1kB", "--halo-edge-budget", "2kB", "--overwrite", "--parts", "2"]
    assert main(["partition", str(root), "--out", str(tmp_path / "p"), *only_budget]) == 0
    halo = hopstream.open_dataset(tmp_path / "p").manifest.halo
    assert (halo.hops, halo.budget_bytes, dict(halo.features)) == (0, 1000, {"node": ("x", "y")})
    assert halo.edge_budget_bytes == 2000 and all(halo.parts[0].nodes.values())


def test_bad_options_are_refused(root, tmp_path, capsys):
    for more, message in [
        (["--hops", "-1"], "--hops is -1"),
        (["--fanouts", "many"], "--fanouts is 'many'"),
        (["--budget", "much"], "--budget is 'much'"),
        (["--features", "x"], "--features is 'x'"),
        (["--features", "node:z"], "has no feature 'z'"),
    ]:
        assert main(["halo", str(root), *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["halo", str(tmp_path)]) == 2
    assert "is not a dataset" in capsys.readouterr().err
    words = ["partition", str(root), "--out", str(tmp_path / "new")]
    assert main([*words, "--halo-hops", "-1"]) == 2
    assert "--halo-hops is -1" in capsys.readouterr().err
    assert main([*words, "--halo-features", "node:z"]) == 2
    assert not (tmp_path / "new").exists()
