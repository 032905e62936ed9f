"""Checks that ``hopstream append`` reports what it added and that ``inspect`` shows it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import hopstream
from hopstream.cli import main


@pytest.fixture
def places(tmp_path):
    graph = hopstream.rmat_graph(6, num_features=3)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    for folder in ("edges", "node_data"):
        (tmp_path / "delta" / folder).mkdir(parents=True)
    np.save(tmp_path / "delta/node_data/x.npy", np.ones((2, 3), np.float32))
    (tmp_path / "delta/edges/to.csv").write_text("64 0\n1 65\n1 65\n")
    metadata = {
        "graph_name": "more",
        "node_type": ["node"],
        "num_nodes_per_type": [2],
        "edge_type": ["node:to:node"],
        "num_edges_per_type": [3],
        "edges": {"node:to:node": {"format": {"name": "csv", "delimiter": " "}, "data": ["edges/to.csv"]}},
        "node_data": {"node": {"x": {"format": {"name": "numpy"}, "data": ["node_data/x.npy"]}}},
        "edge_data": {},
    }
    (tmp_path / "delta/metadata.json").write_text(json.dumps(metadata))
    return tmp_path / "d", tmp_path / "delta", graph.edges["node", "to", "node"].num_edges


def test_append_prints_the_new_part_and_inspect_shows_it(places, capsys):
    dataset, delta, num_edges = places
    assert main(["append", str(dataset), str(delta)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["append", "rows", "done"]
    assert "part 2, 2 nodes, 3 edges" in lines[0]
    assert hopstream.open_dataset(dataset, verify=True).manifest.book.num_edges(("node", "to", "node")) == num_edges + 3
    assert main(["inspect", str(dataset)]) == 0
    assert "1 delta: 3 edges appended, 1 rows of older nodes" in capsys.readouterr().out
    assert main(["verify", str(dataset)]) == 0


def test_the_same_rows_are_not_added_twice_by_mistake(places, tmp_path, capsys):
    dataset, delta, num_edges = places
    assert main(["append", str(dataset), str(delta), "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    wanted = {"stage": "append", "delta": 1, "part": 2, "nodes": 2, "edges": 3, "rows": 1}
    assert {name: first[name] for name in wanted} == wanted
    before = (dataset / "manifest.json").read_bytes()
    shutil.copytree(delta, tmp_path / "copy")
    capsys.readouterr()
    for folder in (delta, tmp_path / "copy"):
        assert main(["append", str(dataset), str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"the rows of {folder} were already added to {dataset} as delta 1; give again=True (--again)" in error
    assert (dataset / "manifest.json").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    assert main(["append", str(dataset), str(delta), "--again"]) == 0
    manifest = hopstream.open_dataset(dataset, verify=True).manifest
    assert manifest.book.num_ids("node") == 68
    assert manifest.book.num_edges(("node", "to", "node")) == num_edges + 6
    first, second = manifest.book.deltas
    assert first.digest == second.digest
    (delta / "edges/to.csv").write_text("64 0\n1 65\n1 64\n")
    assert main(["append", str(dataset), str(delta)]) == 0  # other edges


def test_bad_input_is_refused(places, capsys):
    dataset, delta, _ = places
    (delta / "edges/to.csv").write_text("64 0\n1 66\n1 65\n")
    assert main(["append", str(dataset), str(delta)]) == 2
    assert "edges/to.csv line 2 has destination 66; keys of node are 0..65" in capsys.readouterr().err
    assert main(["append", str(delta), str(dataset)]) == 2
    assert "is not a dataset" in capsys.readouterr().err


def test_edges_by_raw_id(places, tmp_path, capsys):
    _, delta, _ = places
    raw_ids = np.arange(64) * 7 - 9
    graph = hopstream.graph_from_arrays(
        [[0, 1], [1, 2]], node_features={"x": np.zeros((64, 3), np.float32), "raw": raw_ids}
    )
    for name in ("by_key", "by_id"):
        hopstream.write_parts(graph, tmp_path / name, num_parts=3, method="hash")
    metadata = json.loads((delta / "metadata.json").read_text())
    metadata["node_data"]["node"]["raw"] = {"format": {"name": "numpy"}, "data": ["node_data/raw.npy"]}
    (delta / "metadata.json").write_text(json.dumps(metadata))
    np.save(delta / "node_data/raw.npy", [5000, -5000])
    assert main(["append", str(tmp_path / "by_key"), str(delta)]) == 0
    (delta / "edges/to.csv").write_text("5000 -9\n-2 -5000\n-2 -5000\n")
    assert main(["append", str(tmp_path / "by_id"), str(delta), "--ids", "node=raw"]) == 0
    by_key, by_id = (hopstream.dataset.read_manifest(tmp_path / name) for name in ("by_key", "by_id"))
    assert by_id.dataset_id == by_key.dataset_id
    capsys.readouterr()
    (delta / "edges/to.csv").write_text("5000 -9\n-2 -5000\n-2 3\n")
    np.save(delta / "node_data/raw.npy", [5001, -5001])
    assert main(["append", str(tmp_path / "by_id"), str(delta), "--ids", "node=raw"]) == 2
    assert "dst_keys[2] is 3; no node of type 'node' has it in feature 'raw'" in capsys.readouterr().err
    for wrong in ("raw", "node=", "=raw"):
        assert main(["append", str(tmp_path / "by_id"), str(delta), "--ids", wrong]) == 2
        assert f"--ids is {wrong!r}, no TYPE=VALUE" in capsys.readouterr().err
