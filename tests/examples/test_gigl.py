"""Checks that scripts for GiGL's graph-store mode reach the wanted figures and leave no process."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.examples.real_data import LONG_RUN_S, run_script
from tests.examples.test_movielens import write_movielens

pytestmark = pytest.mark.timeout(300)
MARK = "TMPDIR"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    """Run a script; return its status and output.

    All processes that it starts inherit a variable; none of them, nor a temporary folder, may be left.
    """
    monkeypatch.setenv(MARK, str(folder))
    try:
        status, shown = run_script(name, *arguments, limit_s=LONG_RUN_S)
    finally:
        left = processes_of(folder)
    assert not left, f"{name} left {left}"
    assert not list(folder.glob("hopstream-*")), "temporary folders"
    return status, shown


def processes_of(folder: Path) -> list[int]:
    """Ids of the processes that inherited the variable."""
    wanted, found = f"{MARK}={folder}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return found


def figures_of(shown: str, pattern: str) -> list[float]:
    found = re.search(pattern, shown)
    assert found, shown
    return [float(figure) for figure in found.groups()]


@pytest.mark.slow
def test_the_example_of_nodes_reaches_its_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status, shown = run("gigl_nodes.py", tmp_path, monkeypatch, "--epochs", 10)
    accuracy, num_steps = figures_of(shown, r"^result +test accuracy (\S+) after (\d+) steps")
    assert status == 0 and accuracy >= 0.76 and num_steps == 30, shown


@pytest.mark.soak
def test_pagerank_and_a_figure_that_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status, shown = run("gigl_ppr.py", tmp_path, monkeypatch, "--epochs", 10, "--wanted", 0.95)
    (accuracy,) = figures_of(shown, r"^result +test accuracy (\S+) after 30 steps; wanted 0.95")
    assert 0.76 <= accuracy < 0.95, shown
    assert status == 1 and re.search(r"^error: rank \d ended with status 1$", shown, re.M), shown


@pytest.mark.soak
def test_the_example_of_inference_writes_embeddings_of_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status, shown = run("gigl_inference.py", tmp_path, monkeypatch, "--out", tmp_path / "out.npy")
    assert status == 0, shown
    assert "2,708 embeddings by id" in shown
    found = np.load(tmp_path / "out.npy")
    assert found.shape == (2708, 16) and np.isfinite(found).all() and found.std(axis=0).all()


@pytest.mark.slow
def test_the_example_of_links_beats_popularity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_movielens(tmp_path, np.random.default_rng(0))
    status, shown = run("gigl_links.py", tmp_path, monkeypatch, tmp_path, "--epochs", 20)
    found, known = figures_of(shown, r"result +AUC (\S+) after 40 steps; popularity (\S+); chance 0.500")
    assert found > max(known, 0.5), shown
    assert status == 0, shown
