"""Checks that mutants are found in moved code, applied and removed, and that killers are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.run import GONE, KILLED, LIST, ROOT, SURVIVED, find, judge

MUTANT = {"file": "room/one.py", "old": "return a + b", "new": "return a - b"}


def _project(root: Path, value: int) -> Path:
    room = root / "src" / "hopstream" / "other"
    room.mkdir(parents=True)
    (root / "tests" / "other").mkdir(parents=True)
    for name in ("pinned", "equality"):
        (root / "tests" / name).mkdir()
        (root / "tests" / name / f"test_{name}.py").write_text("def test_none():\n    pass\n")
    for package in (room.parent, room):
        (package / "__init__.py").write_text("")
    (room / "two.py").write_text("def add(a, b):\n    return a + b\n")
    (root / "tests" / "other" / "test_two.py").write_text(
        f"from hopstream.other.two import add\n\n\ndef test_add():\n    assert add(2, {value}) == {2 + value}\n"
    )
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("value", "wanted"), [(3, KILLED), (0, SURVIVED)])
def test_a_mutant_of_a_moved_line_is_found_and_killed(tmp_path: Path, value: int, wanted: str) -> None:
    root = _project(tmp_path, value)
    state, test = judge(root, MUTANT, workers=1, is_whole=False)
    assert state == wanted
    assert test == ("tests/other/test_two.py::test_add" if wanted == KILLED else "")
    assert "a + b" in (root / "src/hopstream/other/two.py").read_text()
    assert judge(root, {**MUTANT, "old": "return a * b"}, workers=1, is_whole=False) == (GONE, "")


def test_every_mutant_changes_its_line() -> None:
    mutants = json.loads(LIST.read_text())
    assert 140 <= len(mutants) <= 160
    assert all(one["old"] != one["new"] for one in mutants)
    assert len({(one["file"], one["old"], one["new"]) for one in mutants}) == len(mutants)


def test_the_line_of_every_mutant_is_found() -> None:
    """If a line is gone, replace its mutant by one of the new code."""
    mutants = json.loads(LIST.read_text())
    assert [f"{one['file']}: {one['old']}" for one in mutants if find(ROOT, one) is None] == []
