"""Checks ``hopstream prepare`` and ``partition --memory``: plan, phases, bars and resumed runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

import hopstream
from hopstream.cli import prepare
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation import prepare as prepare_module
from tests.cli.test_chunk import write_tables

BOUNDED = ("--parts", 2, "--method", "ldg", "--memory", "2GiB", "--workers", 0)


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    write_chunked(hopstream.rmat_graph(7, num_features=3), tmp_path / "chunks", num_chunks=2)
    return tmp_path / "chunks"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the bars that were drawn."""
    drawn: list[str] = []

    @contextmanager
    def bars():
        yield lambda stage, done, total: drawn.append(stage)

    monkeypatch.setattr(prepare, "progress_bars", bars)
    monkeypatch.setattr(prepare_module, "INTERVAL_S", 0.01)
    return drawn


@pytest.mark.parametrize("verb", ["prepare", "partition"])
def test_a_chunked_graph(run_command: Callable, chunks: Path, tmp_path: Path, stages: list[str], verb: str):
    result = run_command(verb, chunks, "--out", tmp_path / "p", *BOUNDED, "--halo-hops", 1)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "plan    memory   2GiB (2.1 GB) for all processes, 1 worker"
    assert [line.split()[:2] for line in lines[1:4]] == [["1/3", "assign:"], ["2/3", "dispatch:"], ["3/3", "halo:"]]
    assert " to read, " in lines[1] and lines[1].endswith("1 task") and lines[2].endswith("about 5 tasks")
    assert lines[4].startswith("assign  ldg      2 parts, ") and lines[5].startswith("measure cut")
    assert list(dict.fromkeys(" ".join(stage.split()[:2]) for stage in stages)) == [
        "1/3 assign", "2/3 dispatch", "3/3 halo",
    ]  # fmt: skip


def test_prepare_of_tables_prints_its_phases(run_command: Callable, tmp_path: Path, stages: list[str]):
    drop = ("--on-duplicate", "drop", "--on-dangling", "drop")
    result = run_command("prepare", write_tables(tmp_path / "t"), "--out", tmp_path / "p", *BOUNDED, *drop)
    assert result.status == 0, result.err
    words = [line.split()[:3] for line in result.out.splitlines()]
    assert [w[0] for w in words[:4]] == ["plan", "1/3", "2/3", "3/3"] and words[2][1:] == ["assign:", "not"]
    assert [w[0] for w in words[4:7]] == ["key", "drop", "drop"]
    assert [w[:2] for w in words[7:11]] == [
        ["plan", "memory"], ["1/3", "chunk:"], ["2/3", "assign:"], ["3/3", "dispatch:"],
    ]  # fmt: skip
    assert list(dict.fromkeys(" ".join(stage.split()[:2]) for stage in stages)) == [
        "1/3 chunk", "2/3 assign", "3/3 dispatch",
    ]  # fmt: skip


def test_memory_has_a_default_and_an_interrupted_run_resumes(
    run_command: Callable, chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flags = ("--out", tmp_path / "p", "--parts", 2, "--method", "hash", "--workers", 0)

    def fail(*_: object) -> None:
        raise OSError(28, "no space left", "f")

    with monkeypatch.context() as patch:
        patch.setattr("hopstream.preparation.prepare.dispatch_job", fail)
        first = run_command("prepare", chunks, *flags)
    assert first.status == 1
    assert re.match(r"plan    memory   \S+ .B \(60 % of \S+ .B free\) for all processes", first.out)
    second = run_command("prepare", chunks, *flags)
    assert second.status == 0 and second.out.splitlines()[1].strip() == "1/2      assign: already done"
    wanted = hopstream.write_parts(hopstream.read_graph(chunks), tmp_path / "q", num_parts=2, method="hash")
    assert hopstream.open_dataset(tmp_path / "p").manifest.dataset_id == wanted.dataset_id


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--method", "file"],
            "--method is 'file', but prepare assigns nodes itself; to use parts of your own, chunk the tables",
        ),
        (["--on-dangling", "drop"], "--on-dangling is only for tables; "),
        (["--memory", "1MB"], "--memory is 1MB; method 'kaminpar' on "),
        (["--raw-ids"], "No such option: --raw-ids"),
    ],
)
def test_unusable_input_is_a_usage_error(
    run_command: Callable, chunks: Path, tmp_path: Path, flags: list[str], message: str
):
    result = run_command("prepare", chunks, "--out", tmp_path / "p", *flags)
    assert result.status == 2 and result.err.startswith(f"error: {message}"), result.err


def test_prepare_prints_json_records_of_its_stages(run_command: Callable, chunks: Path, tmp_path: Path):
    result = run_command("prepare", chunks, "--out", tmp_path / "p", *BOUNDED, "--json")
    assert [fact["stage"] for fact in result.facts] == ["plan", "assign", "measure", "write", "done"]
    plan = result.fact("stage", "plan")
    assert plan["memory_bytes"] == 2 << 30 and [phase["phase"] for phase in plan["phases"]] == ["assign", "dispatch"]
    assert result.fact("stage", "write")["bytes"] <= plan["phases"][1]["disk_bytes"] * 1.1
    assert result.err == ""
