"""Checks that tests draw the same in every run, or as a printed base determines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TINY = """
import json, random
import numpy as np, pytest
from hypothesis import given, strategies as st

DRAWN = {}

@pytest.mark.parametrize("case", ["a", "b"])
def test_generator(rng, case):
    DRAWN[case] = rng.integers(0, 2**62, 3).tolist() + [random.random(), np.random.rand()]

@given(st.lists(st.integers()))
def test_examples(values):
    DRAWN.setdefault("examples", []).append(values)

def test_that_fails():
    with open(FILE, "w") as file:
        json.dump(DRAWN, file)
    assert False
"""


def run_tiny(folder: Path, *options: str) -> tuple[dict[str, dict[str, object]], str]:
    """Draws of the tests of two small files, run in child processes, and pytest's output."""
    for name in ("test_one", "test_two"):
        (folder / f"{name}.py").write_text(TINY.replace("FILE", repr(str(folder / f"{name}.json"))))
    plugins = ["-p", "_hypothesis_pytestplugin", "-p", "xdist", "-p", "tests.seeds"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-c", "/dev/null", "--rootdir", folder, *options, folder]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # all others take twice as long to start
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=120)
    assert "2 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}, done.stdout


def test_seeds_are_fixed_or_follow_from_the_printed_base(tmp_path: Path) -> None:
    fixed, told = run_tiny(tmp_path)
    assert "--seed-base" not in told
    assert len({str(of_file[case]) for of_file in fixed.values() for case in ("a", "b")}) == 4
    (tmp_path / "conftest.py").write_text(f"CONSTANTS = {[*range(10**6, 10**6 + 500)]}")  # of another module
    assert run_tiny(tmp_path, "-n", "2", "--dist", "loadfile")[0] == fixed

    drawn, told = run_tiny(tmp_path, "--new-seeds", "-n", "2", "--dist", "loadfile")
    bases = re.findall(r"--seed-base (\d+)", told)
    assert len(bases) == 3  # once, and with each failure
    assert run_tiny(tmp_path, "--seed-base", bases[0])[0] == drawn
    for file in ("test_one", "test_two"):
        assert all(drawn[file][name] != fixed[file][name] for name in ("a", "b", "examples"))
