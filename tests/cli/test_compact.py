"""Checks that ``hopstream compact`` merges appended data and reports it."""

from __future__ import annotations

import json

import numpy as np

import hopstream
from hopstream.cli import main


def test_compact_replaces_the_dataset_in_place(tmp_path, capsys):
    hopstream.write_parts(hopstream.rmat_graph(6), tmp_path / "d", num_parts=2, method="hash")
    ends = (np.array([64, 1]), np.array([2, 65]))
    manifest = hopstream.append(tmp_path / "d", nodes={"node": 2}, edges={"node__to__node": ends})
    assert main(["compact", str(tmp_path / "d"), "--workers", "0", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["stage"] for record in records] == ["plan", "measure", "write", "done"]
    found = hopstream.open_dataset(tmp_path / "d", verify=True).manifest
    assert (found.book.num_parts, found.graph_id) == (2, manifest.graph_id)
    assert main(["compact", str(tmp_path / "d")]) == 0
    assert "there are no deltas left to compact" in capsys.readouterr().out
