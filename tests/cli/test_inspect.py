"""Checks that ``hopstream inspect`` shows a dataset as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.cli import inspect as inspect_module
from hopstream.dataset.layout import read_manifest
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph
from tests.processes import ServerPool

WRITES = ["author", "writes", "paper"]


def test_inspect_prints_sizes_features_and_balance(run_command, parts: Path):
    result = run_command("inspect", parts)
    assert result.status == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[0].startswith("inspect          2 parts, 88 nodes, 435 edges, ")
    assert any(line.startswith("paper ") and "feat float32[rows, 5]" in line and "train 30" in line for line in lines)
    assert any(line.split()[:4] == [*WRITES, "in"] for line in lines)
    assert any(line.startswith("max/mean") and line.endswith("x") for line in lines)
    assert sum(line.startswith("from part") for line in lines) == 1
    assert all(line == line.rstrip() for line in lines)


def test_json_agrees_with_the_graph(run_command, typed_graph: Graph, parts: Path):
    result = run_command("inspect", parts, "--json")
    manifest = read_manifest(parts)
    head = result.fact("stage", "inspect")
    assert (head["parts"], head["nodes"], head["edges"]) == (2, 88, 435)
    assert (head["dataset_id"], head["graph_id"]) == (manifest.dataset_id, typed_graph.fingerprint())
    assert head["directions"] == ["in", "out"] and head["is_verified"] is False
    edges = typed_graph.edges[tuple(WRITES)]
    degrees = np.bincount(edges.dst_keys, minlength=60)
    shown = next(f for f in result.facts if f.get("degrees_of") == WRITES and f["direction"] == "in")
    assert (shown["min"], shown["max"], shown["isolated"]) == (degrees.min(), degrees.max(), np.sum(degrees == 0))
    assert shown["mean"] == pytest.approx(75 / 60) and sum(shown["log2_histogram"]) == 60
    part = result.fact("part", 1)
    assert part["edges"] == manifest.report.edges[1] and set(part["seeds"]) == {"paper/train", "paper/val"}
    balance = result.fact("balance")["balance"]
    assert balance["nodes"] == manifest.report.balance["nodes"]
    between = np.array(result.fact("edges_between")["edges_between"])
    assert between.sum() == 435 and between.sum() - np.trace(between) == manifest.report.cut.num_cut


@pytest.mark.parametrize("num_parts", [1, inspect_module.MAX_MATRIX_COLUMNS + 1])
def test_one_part_and_many(run_command, typed_graph: Graph, tmp_path: Path, num_parts: int):
    write_parts(typed_graph, tmp_path / "d", num_parts=num_parts, method="random")
    result = run_command("inspect", tmp_path / "d", "--html", tmp_path / "page.html")
    assert result.status == 0 and "from part" not in result.out
    assert ("edges between 17 parts: see" in result.out) == (num_parts > 1)
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_odd_names_and_empty_types(run_command, odd_graph: Graph, tmp_path: Path):
    write_parts(odd_graph, tmp_path / "d", num_parts=2, method="random")
    result = run_command("inspect", tmp_path / "d")
    assert result.status == 0 and "<b>&\"'é <i> <b>&\"'é" in result.out and "[red]x float32[rows, 2]" in result.out


def test_a_page_is_written_whole(run_command, parts: Path, tmp_path: Path):
    result = run_command("inspect", parts, "--html", tmp_path / "page.html", "--json")
    assert result.facts[-1] == {"stage": "done", "html": str(tmp_path / "page.html")}
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


@pytest.mark.parametrize("name", ["parts", "no/such/page.html"])
def test_a_page_that_cannot_be_written(run_command, parts: Path, tmp_path: Path, name: str):
    result = run_command("inspect", parts, "--html", tmp_path / name)
    assert result.status == 2 and result.out == "" and "--html" in result.err


def test_the_manifest_names_its_dataset(run_command, parts: Path):
    assert run_command("inspect", parts / "manifest.json").status == 0


def test_inspect_with_verify_finds_a_changed_byte(run_command, parts: Path):
    result = run_command("inspect", parts, "--verify")
    assert result.status == 0 and "verified: every file" in result.out
    path = parts / "part-00001/node/paper/features/feat.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run_command("inspect", parts).status == 0
    result = run_command("inspect", parts, "--verify")
    assert result.status == 2 and "feat.npy has crc32c" in result.err


def test_an_invalid_cluster_file_is_refused(run_command, parts: Path, tmp_path: Path):
    (tmp_path / "cluster.json").write_text('{"format": 1}')
    result = run_command("inspect", tmp_path / "cluster.json")
    assert result.status == 2 and "is not a cluster file" in result.err
    assert run_command("inspect", tmp_path / "missing.json").status == 2


def test_a_dead_server_is_not_the_users_fault(run_command, parts: Path, tmp_path: Path):
    dataset_id = read_manifest(parts).dataset_id
    (tmp_path / "cluster.json").write_text(
        f'{{"format": 1, "dataset_id": "{dataset_id}", '
        f'"servers": [{{"location": "tcp://127.0.0.1:9", "parts": [0, 1], "path": "{parts}"}}]}}'
    )
    result = run_command("inspect", tmp_path / "cluster.json")
    assert result.status == 1 and "127.0.0.1:9 cannot be reached" in result.err


def test_verify_needs_files(run_command, tmp_path: Path):
    (tmp_path / "cluster.json").write_text("{}")
    result = run_command("inspect", tmp_path / "cluster.json", "--verify")
    assert result.status == 2 and "--verify reads the files of a dataset" in result.err


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://host:1", "unix:///run/s", "grpc+tls://host:1"])
def test_an_address_is_no_path(run_command, address: str):
    result = run_command("inspect", address)
    assert result.status == 2 and result.err.startswith(f"error: {address} is an address; inspect")


TIMED = {"time_attr": "time", "weight_attr": "rating", "neighbor_keys": True, "links": [KNOWS]}


def test_times_weights_and_links_are_shown(run_command, rng, tmp_path: Path):
    write_parts(timed_graph(rng, timed=("user", RATES)), tmp_path / "d", num_parts=2, direction="both", **TIMED)
    result = run_command("inspect", tmp_path / "d", "--verify", "--html", tmp_path / "page.html")
    assert result.status == 0
    assert 'with times "time", weights "rating", keys of neighbours' in result.out
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "edge type edges cut times weights links features" in lines
    types = [line for line in lines if "%" in line and line.startswith(("user rates", "user knows", "movie like"))]
    starts = {line.split()[1]: line for line in types}
    assert "% in and out yes train" in starts["rates"] and ", all 150 " in starts["rates"]
    assert "% in and out yes kept " in starts["knows"]
    assert "% none 0 number" in starts["like"]
    page = (tmp_path / "page.html").read_text()
    assert (
        ">weights</th>" in page
        and "with times &quot;time&quot;, weights" in page
        and "all 150" in page
        and "kept" in page
    )


def test_json_of_times_weights_and_links(run_command, rng, tmp_path: Path):
    graph = timed_graph(rng, timed=("user",))
    write_parts(graph, tmp_path / "d", direction="both", **TIMED)
    result = run_command("inspect", tmp_path / "d", "--json")
    head = result.fact("stage", "inspect")
    assert (head["time_attr"], head["weight_attr"], head["has_neighbor_keys"]) == ("time", "rating", True)
    rates, knows, likes = (result.fact("edge_type", list(t)) for t in (RATES, KNOWS, LIKES))
    assert [fact["times"] for fact in (rates, knows, likes)] == [["in"], ["in", "out"], []]
    assert [fact["weights"] for fact in (rates, knows, likes)] == [True, True, False]
    assert [fact["links"] for fact in (rates, knows, likes)] == [True, True, True]
    assert rates["splits"] == {name: len(keys) for name, keys in graph.edge_splits[RATES].items()}
    assert knows["splits"] == {} and likes["splits"] == {"none": 0}


def test_servers_and_files_report_the_same_edge_splits(run_command, rng, tmp_path: Path, server_pool: ServerPool):
    manifest = write_parts(timed_graph(rng), tmp_path / "d", num_parts=2, **TIMED)
    with server_pool.serve_cluster(tmp_path / "d", manifest.dataset_id, [[0], [1]]) as cluster:
        served = run_command("inspect", cluster, "--json")
    on_disk = run_command("inspect", tmp_path / "d", "--json")
    for edge_type in (RATES, KNOWS, LIKES):
        told, wanted = served.fact("edge_type", list(edge_type)), on_disk.fact("edge_type", list(edge_type))
        assert told == {**wanted, "cut": None}
