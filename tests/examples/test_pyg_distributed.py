"""Checks that two processes with separate partition folders learn together, with and without types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports

SCRIPT = Path(__file__).parents[2] / "examples" / "pyg_distributed.py"


@pytest.mark.slow
@pytest.mark.parametrize("typed", [[], ["--typed"]], ids=["one type", "typed"])
def test_two_machines_train_together(typed: list[str]) -> None:
    command = [sys.executable, SCRIPT, "--ports", *map(str, free_ports(3)), *typed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}" for number in range(8)]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[-1] < losses[0]
    assert float(lines[-1].split("accuracy ")[1]) >= 0.65  # over the test nodes of both ranks, with one model
