"""Checks the guide's figures of time and memory for graphs of two sizes that are written as parts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.scale

MAX_BYTES = 2 << 30
MAX_SECONDS = {"parquet": 60.0, "csv": 90.0}
MIN_RATIO = 0.7
"""Edges per second of a graph eight times as large, over those of the smaller one."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """67 M edges and 0.84 GB of features, from Parquet and from CSV."""
    return figures(tmp_path_factory.mktemp("small"), 21, "parquet", "csv")


def figures(folder: Path, scale: int, *formats: str) -> dict[str, dict[str, Any]]:
    words = ["-m", "benchmarks.preparation", "--scale", str(scale), "--memory", "2GiB", "--folder", str(folder)]
    done = subprocess.run(
        [sys.executable, *words, "--formats", *formats], stdout=subprocess.PIPE, text=True, timeout=1200, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["name"]: one for one in found}


@pytest.mark.parametrize("name", sorted(MAX_SECONDS))
def test_sixty_seven_million_edges(small, name):
    assert small[name]["seconds"] <= MAX_SECONDS[name], small[name]
    assert small[name]["peak_rss_bytes"] <= MAX_BYTES, small[name]


def test_half_a_billion_edges_in_the_same_memory(small, tmp_path):
    large = figures(tmp_path, 24, "parquet")["parquet"]
    assert large["num_edges"] == 8 * small["parquet"]["num_edges"]
    assert large["peak_rss_bytes"] <= MAX_BYTES, large
    assert large["edges_per_s"] >= MIN_RATIO * small["parquet"]["edges_per_s"], (large, small["parquet"])
