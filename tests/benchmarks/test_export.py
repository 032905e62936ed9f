"""Checks that an export reaches its required rate on one core."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.export import FULL_SCALE
from benchmarks.harness import Options, run_case

LEAST_PER_S = {"five_ops": 300, "two_ops": 5000}
STAGES = ("sample", "gather", "encode", "write")


@pytest.mark.bench
def test_subgraphs_per_second_of_a_core(tmp_path: Path):
    options = Options(data=tmp_path, scale=FULL_SCALE, num_batches=30, num_repeats=3, num_threads=1)
    figures = run_case(["-m", "benchmarks.export", *options.to_arguments()], timeout_s=300)["figures"]
    print(figures)  # noqa: T201
    for name, least in LEAST_PER_S.items():
        assert figures[f"{name}_subgraphs_per_s"] >= least, name
        assert sum(figures[f"{name}_{stage}_share"] for stage in STAGES) == pytest.approx(1)
        assert all(figures[f"{name}_{stage}_wall_s"] > 0 for stage in STAGES)
    assert 400 <= figures["five_ops_kb_per_subgraph"] <= 600
