"""Checks that progress written by one process is reported by another, and leaves no file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hopstream.preparation import prepare as prepare_module
from hopstream.preparation.prepare import progress_from_file, progress_to_file


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prepare_module, "INTERVAL_S", 0.01)
    return tmp_path / "told.json"


def test_stages_are_reported_with_a_prefix(path: Path):
    heard, seen = threading.Event(), []

    def progress(stage: str, done: int, total: int) -> None:
        seen.append((stage, done, total))
        heard.set()

    with progress_from_file(path, progress, "assign"):
        tell = progress_to_file(path)
        for stage in ("edges", "ldg"):
            heard.clear()
            tell(stage, 3, 9)
            assert heard.wait(20)
    assert seen == [("assign edges", 3, 9), ("assign ldg", 3, 9)]
    assert list(path.parent.iterdir()) == []


def test_progress_files_are_written_at_intervals(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module, "INTERVAL_S", 1000)
    tell = progress_to_file(path)
    for done in range(5):
        tell("edges", done, 5)
    assert path.read_text() == '["edges", 0, 5]'
    tell("group", 1, 1)
    assert path.read_text() == '["group", 1, 1]'


def test_errors_of_progress_are_raised_at_the_end(path: Path):
    called = threading.Event()

    def progress(stage: str, done: int, total: int) -> None:
        called.set()
        raise KeyError(stage)

    with pytest.raises(KeyError, match="assign edges"), progress_from_file(path, progress, "assign"):
        progress_to_file(path)("edges", 1, 2)
        assert called.wait(20)


def test_stale_and_invalid_progress_is_ignored(path: Path):
    path.write_text('["edges", 1, 2]')
    seen: list[str] = []
    with progress_from_file(path, lambda stage, done, total: seen.append(stage), "assign"):
        path.write_text('{"edges": 1}')
    assert seen == []
