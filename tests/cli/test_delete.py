"""Checks the verbs ``delete`` and ``upsert``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.dataset.read_back import read_dataset

LABEL = "person__knows__person"


@pytest.fixture
def people(tmp_path):
    graph = hopstream.graph_from_arrays(
        {("person", "knows", "person"): [[0, 1, 2, 3], [1, 2, 0, 3]]},
        node_features={"person": {"name": ["ann", "0 7", "cid", "dee"], "x": np.arange(4.0)}},
    )
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    return tmp_path / "d"


def test_delete_by_raw_id(people, tmp_path, capsys):
    (tmp_path / "nodes.txt").write_text("dee\n")
    (tmp_path / "edges.csv").write_text('"0 7",cid\nann,0 7\n')
    given = ["--nodes", f"person={tmp_path / 'nodes.txt'}", "--edges", f"{LABEL}={tmp_path / 'edges.csv'}"]
    assert main(["delete", str(people), *given, "--ids", "person=name"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["delete", "done"]
    assert "3 nodes, 1 edge; before: 4 nodes, 4 edges" in lines[0]
    edges = read_dataset(people).edges["person", "knows", "person"]
    assert (edges.src_keys.tolist(), edges.dst_keys.tolist()) == ([2], [0])
    assert main(["verify", str(people)]) == 0


def test_delete_by_key(people, tmp_path, capsys):
    np.save(tmp_path / "nodes.npy", np.array([1]))
    np.save(tmp_path / "edges.npy", np.array([[3, 3], [2, 0]]))
    given = ["--nodes", f"person={tmp_path / 'nodes.npy'}", "--edges", f"{LABEL}={tmp_path / 'edges.npy'}"]
    assert main(["delete", str(people), *given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[0])
    wanted = {"stage": "delete", "nodes": 3, "edges": 0, "nodes_before": 4, "edges_before": 4}
    assert {name: said[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\nx\n", "nodes.txt line 2 has 'x'; keys are integers"),
        ("1,2\n", "nodes.txt line 1 has 2 cells; wanted 1"),
        ("9\n", "person: keys[0] is 9; keys are 0..3"),
        ("", "nothing to delete"),
    ],
)
def test_flaws_are_named(people, tmp_path, capsys, text, message):
    (tmp_path / "nodes.txt").write_text(text)
    assert main(["delete", str(people), "--nodes", f"person={tmp_path / 'nodes.txt'}"]) == 2
    assert message in capsys.readouterr().err
    assert read_dataset(people).nodes["person"].num_nodes == 4


def test_upsert(tmp_path, capsys):
    knows = ("person", "knows", "person")
    for name, raw, x in (("old", [10, 20, 30], [0.0, 1.0, 2.0]), ("new", [30, 50], [22.0, 55.0])):
        graph = hopstream.graph_from_arrays(
            {knows: [[0], [1]]}, node_features={"person": {"raw": np.array(raw), "x": np.array(x)}}
        )
        if name == "old":
            hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    hopstream.dataset.write_chunked(graph, tmp_path / "delta", num_chunks=1, edges_format="numpy")
    (name,) = json.loads((tmp_path / "delta/metadata.json").read_text())["edges"]["person:knows:person"]["data"]
    np.save(tmp_path / "delta" / name, np.array([[20, 50]]))
    given = ["upsert", str(tmp_path / "d"), str(tmp_path / "delta")]
    assert main([*given, "--ids", "person=rew"]) == 2
    assert "'rew'" in capsys.readouterr().err
    assert main([*given, "--ids", "person=raw"]) == 0
    assert "4 nodes, 2 edges; before: 3 nodes, 1 edge" in capsys.readouterr().out
    grown = read_dataset(tmp_path / "d")
    assert grown.nodes["person"].features["x"].tolist() == [0.0, 1.0, 22.0, 55.0]
    assert (grown.edges[knows].src_keys.tolist(), grown.edges[knows].dst_keys.tolist()) == ([0, 1], [1, 3])
    assert main(["verify", str(tmp_path / "d")]) == 0
