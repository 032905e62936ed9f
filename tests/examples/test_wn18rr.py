"""Checks that the example of word meanings learns what relations join, from files in WN18RR's form."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.examples.real_data import functions_of, real_data, run_here, run_script

pytestmark = pytest.mark.slow

NUM_MEANINGS, NUM_GROUPS, NUM_TRIPLES = 300, 15, 2400


def write_wn18rr(folder: Path, rng: np.random.Generator) -> None:
    """Write files in that form: one relation stays inside a group, the other leads to the next group."""
    heads, relation = rng.integers(0, NUM_MEANINGS, NUM_TRIPLES), rng.integers(0, 2, NUM_TRIPLES)
    members = rng.integers(0, NUM_MEANINGS // NUM_GROUPS, NUM_TRIPLES) * NUM_GROUPS
    tails = (heads + relation) % NUM_GROUPS + members
    columns = np.stack([heads, relation, tails]).T.tolist()
    numbers = [[f"{head:08}", f"_step_{step}", f"{tail:08}"] for head, step, tail in columns]
    words = [[f"word.n.{int(head):02}", step, f"word.n.{int(tail):02}"] for head, step, tail in numbers]
    for name, lines in (("original", numbers), ("text", words)):
        (folder / name).mkdir()
        text = [
            "".join("\t".join(line) + "\n" for line in some) for some in (lines[:2200], lines[2200:2300], lines[2300:])
        ]
        (folder / name / "train.txt").write_text(text[0])
        (folder / name / "valid.txt").write_text(text[1])
        (folder / name / "test.txt.gz").write_bytes(gzip.compress(text[2].encode(), mtime=0))


def assert_shown(shown: str, *, num_epochs: int) -> None:
    stages = [line.split()[0] for line in shown.splitlines() if not line.startswith("up: ")]
    assert stages == ["read", *["train"] * num_epochs, "test", "example", *["result"] * 4], shown
    assert "300 meanings, 2 relations; triples: 2,200 train, 100 val, 100 test" in shown
    assert "example    word.n." in shown


def test_the_model_is_better_than_the_baselines_once_it_is_trained(tmp_path: Path):
    write_wn18rr(tmp_path, np.random.default_rng(0))
    status, shown = run_script("wn18rr.py", tmp_path, "--epochs", 10)
    assert_shown(shown, num_epochs=10)
    assert status == 0, shown


def test_exit_status_shows_that_an_untrained_model_is_not_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_wn18rr(tmp_path, np.random.default_rng(0))
    status, shown = run_here("wn18rr.py", monkeypatch, capsys, tmp_path, "--epochs", 0)
    assert_shown(shown, num_epochs=0)
    assert status == 1, shown


def test_the_model_is_better_than_the_baselines_on_wn18rr():
    status, shown = run_script("wn18rr.py", real_data("wn18rr"), "--epochs", 2)
    assert "40,943 meanings, 11 relations; triples: 86,835 train, 3,034 val, 3,134 test" in shown
    assert status == 0, shown


def test_error_for_missing_data_points_to_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match=r"^error: .*original has no train\.txt and no train\.txt\.gz; see --help"):
        functions_of("wn18rr.py", monkeypatch)["read_triples"](tmp_path)
