"""Checks that scripts that train in one process run, and that their exit status tells the result."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """Run a script in this process, which has loaded torch already; return its exit status."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    status = ended.value.code
    assert isinstance(status, int)
    return status


@pytest.mark.parametrize(("wanted", "status"), [("0", 0), ("1.01", 1)], ids=["as wanted", "not as wanted"])
def test_cora_local_exit_status_shows_if_the_target_is_reached(
    wanted: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run_example(monkeypatch, "cora_local.py", "--runs", "1", "--epochs", "1", "--wanted", wanted) == status
    shown = capsys.readouterr().out
    assert "rng_seed 0: test accuracy 0." in shown
    assert f"wanted {float(wanted):.2f} or more" in shown


def test_rmat_train_learns_on_a_small_graph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run_example(monkeypatch, "rmat_train.py", "--scale", "10") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["make", "partition", "train"]
