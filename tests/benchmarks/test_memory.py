"""Checks that no verb exceeds its given memory, on data that would take more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

VERBS = ("chunk", "assign", "dispatch", "partition", "verify", "reshard", "halo", "compact", "export")


def check(folder, *words: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--folder", str(folder), *words],
        stdout=subprocess.PIPE, text=True, timeout=3600, check=True,
    )  # fmt: skip
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for run in runs:
        assert 0 < run["own_bytes"] <= run["bound_bytes"], run
        # Verbs sample their memory, and so does this test.
        assert 0.8 * run["own_bytes"] < run["told_bytes"] < 1.2 * run["own_bytes"], run
    return runs


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_the_least_memory_that_each_verb_names_is_enough(tmp_path):
    runs = check(tmp_path / "m", "--scale", "14", "--memory", "least", "--workers", "1")
    assert [run["verb"] for run in runs] == [*VERBS]


@pytest.mark.scale
@pytest.mark.timeout(3600)
def test_sixteen_million_edges(tmp_path):
    assert len(check(tmp_path / "m")) == 5 * len(VERBS)
