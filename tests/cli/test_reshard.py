"""Checks that ``hopstream reshard`` prints its plan, writes the dataset and refuses contradictions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main


@pytest.fixture
def words(tmp_path):
    graph = hopstream.rmat_graph(7, num_features=3, num_classes=2)
    hopstream.write_parts(graph, tmp_path / "old", num_parts=4, method="random")
    return ["reshard", str(tmp_path / "old"), "--out", str(tmp_path / "out"), "--workers", "0"]


def test_reshard_prints_plan_progress_and_result(tmp_path, words, capsys):
    assert main([*words, "--parts", "3", "--method", "ldg", "--memory", "1GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "plan", "read", "disk", "memory", "measure", "balance", "write", "done", "speed",
    ]  # fmt: skip
    assert lines[0] == "plan    parts    3" and " while it runs, " in lines[2]
    assert hopstream.open_dataset(tmp_path / "out", verify=True).manifest.book.num_parts == 3


def test_json_and_a_folder_of_owners(tmp_path, words, capsys):
    (tmp_path / "owners").mkdir()
    np.save(tmp_path / "owners" / "node.npy", np.arange(128) % 5)
    assert main([*words, "--json", "--partitions-dir", str(tmp_path / "owners")]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["stage"] for record in records] == ["plan", "measure", "write", "done"]
    assert records[0]["parts"] == 5 and records[0]["dataset_bytes"] >= 0.9 * records[2]["bytes"]


def test_bad_options_are_refused(tmp_path, words, capsys):
    for more, message in [
        ([], "neither --parts nor --partitions-dir is given; give one of them"),
        (["--parts", "2", "--memory", "10MB"], "needs at least 256.0 MB: give more memory, or use ldg or fennel"),
        (["--parts", "2", "--memory", "much"], "--memory is 'much'"),
        (["--parts", "2", "--method", "file"], "give --partitions-dir"),
        (["--parts", "2", "--engine", "abacus"], "--engine is 'abacus'"),
        (
            ["--parts", "2", "--out", str(tmp_path / "old" / "in")],
            f"lies in {tmp_path}/old, the dataset; give a",
        ),
    ]:
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
