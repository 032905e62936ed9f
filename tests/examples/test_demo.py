"""Checks that the demo fails where it should, and ends what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import MARK, DemoError, check_nothing_left, processes_of, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def start_marked(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process marked as one of the demo in ``folder``; it ends when killed or its stdin closes."""
    return subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, MARK: str(folder)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_demo_fails_below_the_target_and_ends_its_processes():
    words = [sys.executable, "examples/demo.py", "--runs", "1", "--epochs", "1", "--wanted", "1.01"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ingest", "partition", "up", "train", "result"]
    assert "error: exit status 1 of: " in done.stderr
    assert "cora_ddp.py" in done.stderr
    assert "left running" not in done.stderr


def test_processes_of_a_demo_are_found_and_a_wait_has_a_deadline(tmp_path: Path):
    process = start_marked(tmp_path)
    try:
        wait_for(lambda: processes_of(tmp_path) == [process.pid], 10.0, "the mark")
        assert processes_of(tmp_path / "other") == []
        with pytest.raises(DemoError, match=r"the end took more than 0\.1 s"):
            wait_for(lambda: processes_of(tmp_path) == [], 0.1, "the end")
    finally:
        process.communicate(timeout=10.0)
    check_nothing_left(tmp_path)


def test_leftover_processes_are_ended_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("examples.demo.EXIT_S", 0.0)
    process = start_marked(tmp_path)
    wait_for(lambda: processes_of(tmp_path) == [process.pid], 10.0, "the mark")
    with pytest.raises(DemoError, match=rf"processes \[{process.pid}\] were left running"):
        check_nothing_left(tmp_path)
    process.communicate(timeout=10.0)
    assert process.returncode < 0
