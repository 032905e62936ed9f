"""Checks that every script of the course holds its claims, draws, and leaves nothing behind."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from matplotlib.image import imread

from tests.examples.real_data import EXAMPLES, LONG_RUN_S, run_script

COURSE = EXAMPLES / "course"
SCRIPTS = sorted(COURSE.glob("[0-9][0-9]_*.py"))
HELPERS = [path for path in sorted(COURSE.glob("*.py")) if path not in SCRIPTS]
SLOW = ("04_servers", "05_links", "08_all")
"""Scripts that start processes or train for long; they run as a user runs them."""
DOCUMENT = EXAMPLES.parent / "docs" / "examples.md"
PICTURES = DOCUMENT.parent / "images" / "course"
MAX_PICTURE_BYTES = 60_000


def assert_drawn(path: Path) -> None:
    """Check that a picture is coloured on white, and has the size of the one in the documents."""
    picture = imread(path)
    shown = imread(PICTURES / path.name)
    # Versions of matplotlib and its fonts move single pixels.
    assert np.allclose(picture.shape, shown.shape, atol=2)
    assert (picture[[0, -1]] == 1).all()
    assert len(np.unique(picture.reshape(-1, picture.shape[2]).round(1), axis=0)) > 10
    assert (picture[..., :3] < 1).any(axis=2).mean() > 0.01


@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.stem not in SLOW], ids=lambda path: path.stem)
def test_a_short_script_holds_its_claims_and_draws(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The script runs in this process, which has loaded torch already."""
    monkeypatch.syspath_prepend(str(COURSE))
    monkeypatch.setattr(sys, "argv", [path.name, str(tmp_path / "pictures")])
    num_threads = torch.get_num_threads()
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_num_threads(num_threads)
        for helper in HELPERS:
            sys.modules.pop(helper.stem, None)
    drawn = tmp_path / "pictures" / f"{path.stem}.png"
    assert capsys.readouterr().out.endswith(f"picture    {drawn}\n")
    assert_drawn(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_long_script_holds_its_claims_draws_and_ends_its_processes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    status, shown = run_script(f"course/{name}.py", tmp_path, limit_s=LONG_RUN_S)
    assert status == 0, shown
    assert_drawn(tmp_path / f"{name}.png")
    assert [file.name for file in temporary.iterdir() if "hopstream" in file.name or file.name.startswith("tmp")] == []
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [words for words in commands if any(str(tmp_path) in word for word in words)] == []


def test_without_an_argument_the_picture_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["any.py"])
    plots = runpy.run_path(str(COURSE / "plots.py"))
    figure, _ = plots["panels"]("a title")
    plots["save"](figure, "any.py")
    assert (tmp_path / "any.png").exists()


def test_the_document_shows_every_script_and_every_picture_of_the_course():
    text = DOCUMENT.read_text(encoding="utf-8")
    names = [path.stem for path in SCRIPTS]
    assert re.findall(r"\]\(\.\./examples/course/(\d\d_\w+)\.py\)", text) == names
    assert re.findall(r"^python examples/course/(\w+)\.py$", text, re.MULTILINE) == names
    assert re.findall(r"!\[[^\]]{40,}\]\(images/course/(\w+)\.png\)", text) == names
    assert sorted(path.name for path in PICTURES.iterdir()) == [f"{name}.png" for name in names]
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < MAX_PICTURE_BYTES
