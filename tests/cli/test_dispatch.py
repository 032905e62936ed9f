"""Checks that ``hopstream dispatch`` prints its plan, writes the dataset and refuses contradictions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.ingest.chunked import write_chunked


@pytest.fixture
def words(tmp_path):
    graph = hopstream.rmat_graph(7, num_features=3, num_classes=2)
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    (tmp_path / "owners").mkdir()
    np.save(tmp_path / "owners" / "node.npy", np.arange(128) % 3)
    flags = {"--in-dir": "in", "--partitions-dir": "owners", "--out-dir": "out"}
    return [
        "dispatch",
        "--workers",
        "0",
        *(word for flag, name in flags.items() for word in (flag, str(tmp_path / name))),
    ]


def test_dispatch_prints_plan_progress_and_result(tmp_path, words, capsys):
    assert main([*words, "--memory", "1GiB", "--save-orig-nids", "--save-orig-eids", "--direction", "both"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "plan", "read", "disk", "memory", "measure", "balance", "write", "done", "speed",
    ]  # fmt: skip
    assert lines[0] == "plan    parts    3" and " while it runs, " in lines[2]
    assert lines[3].startswith("        memory   1GiB (1.1 GB) for all processes, ")
    manifest = hopstream.open_dataset(tmp_path / "out", verify=True).manifest
    assert (manifest.book.num_parts, manifest.directions, manifest.has_edge_keys) == (3, ("in", "out"), True)


def test_dispatch_prints_json_records_of_its_stages(tmp_path, words, capsys):
    assert main([*words, "--json", "--no-keep-edge-keys"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["stage"] for record in records] == ["plan", "measure", "write", "done"]
    assert records[0]["disk_bytes"] > records[0]["dataset_bytes"] >= 0.9 * records[2]["bytes"]
    assert not hopstream.open_dataset(tmp_path / "out").manifest.has_edge_keys


def test_resume_reports_tasks_done_before(tmp_path, words, capsys, monkeypatch):
    def stop(*_: object) -> None:
        raise OSError(28, "no space left on device", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr("hopstream.preparation.dispatch.dispatch_job.DispatchJob._spill", stop)
        assert main(words) == 1
    assert "resume" not in capsys.readouterr().out
    assert main(words) == 0
    assert "resume  dispatch 4 tasks done before" in capsys.readouterr().out


def test_bad_options_are_refused(tmp_path, words, capsys):
    for more, message in [
        (["--memory", "10MB"], "one process needs at least 240.0 MB: give more memory"),
        (["--memory", "much"], "--memory is 'much'"),
        (["--save-orig-eids", "--no-keep-edge-keys"], "contradict each other"),
        (["--parts", "2"], "is 2; parts are numbered 0..1"),
        (["--time-attr", "when"], "no node or edge type has such a feature"),
        (["--engine", "abacus"], "--engine is 'abacus'"),
    ]:
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
