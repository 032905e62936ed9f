"""Checks that transforms of tables of any size are fitted and applied within the memory given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.ingest.chunked import open_chunked
from hopstream.ingest.chunking.plan import NEEDS
from hopstream.ingest.transforms.saved import Transforms
from tests.memory import peak_private_bytes

GIVEN = NEEDS[0].alone_bytes + (32 << 20)
PROGRAM = """
import sys
from hopstream.ingest.chunking.run import chunk_tables
chunk_tables(*sys.argv[1:3], memory=sys.argv[3], num_workers=0)
"""
CITIES = np.array([f"city number {i}" for i in range(300)])
FEATURES = {
    "scaled": {"columns": ["x", "y"], "transform": "standard"},
    "part": {"column": "x", "transform": "min-max"},
    "rank": {"column": "y", "transform": "rank"},
    "bucket": {"column": "y", "transform": {"name": "buckets", "strategy": "quantile", "buckets": 32}},
    "city": {"column": "city", "transform": "categories"},
    "top": {"column": "city", "transform": {"name": "categories", "most": 8, "encode": "one-hot"}},
    "hour": {"column": "at", "transform": {"name": "datetime", "parts": "hour"}},
}


@pytest.mark.parametrize(
    "num_rows",
    [pytest.param(2_000_000, marks=pytest.mark.slow), pytest.param(64_000_000, marks=pytest.mark.scale)],
)
def test_transforms_are_fitted_and_applied_within_the_memory_given(
    tmp_path: Path, rng: np.random.Generator, num_rows: int
):
    sums, squares, ends, cities = np.zeros(2), np.zeros(2), [], set()
    rows_per_group = 250_000
    described = {"nodes": {"user": {"files": "users.parquet", "features": FEATURES}}}
    (tmp_path / "metadata.json").write_text(json.dumps(described))
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *compile_kernels(tmp_path / "small"), "1GiB"], check=True, timeout=600
    )
    schema = pa.schema({"x": pa.float64(), "y": pa.float64(), "city": pa.string(), "at": pa.timestamp("s")})
    with pq.ParquetWriter(tmp_path / "users.parquet", schema) as writer:
        for _ in range(num_rows // rows_per_group):
            values = np.stack([rng.normal(1e3, 5, rows_per_group), np.exp(rng.normal(size=rows_per_group))])
            chosen = rng.integers(0, len(CITIES), rows_per_group)
            at = rng.integers(0, 2**31, rows_per_group)
            columns = [*map(pa.array, values), pa.array(CITIES[chosen]), pa.array(at, pa.timestamp("s"))]
            writer.write_table(pa.table(columns, schema=schema))
            sums, squares = sums + values.sum(1), squares + (values**2).sum(1)
            ends.append((values[0].min(), values[0].max()))
            cities.update(np.unique(chosen).tolist())
            last = {"x": values[0][-1:], "y": values[1][-1:], "city": [CITIES[chosen[-1]]], "at": at[-1:]}
    out = tmp_path / "out"
    peak = peak_private_bytes(PROGRAM, str(tmp_path / "metadata.json"), str(out), f"{GIVEN}")
    assert peak < GIVEN
    graph = open_chunked(out)
    (steps,) = graph.transforms["user"]["scaled"]["steps"]
    mean = sums / num_rows
    np.testing.assert_allclose(steps["shift"], mean, 1e-11)
    np.testing.assert_allclose(steps["scale"], np.sqrt(squares / num_rows - mean**2), 1e-6)
    (steps,) = graph.transforms["user"]["part"]["steps"]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    assert steps["shift"] == [low] and steps["scale"] == [high - low]
    assert len(graph.transforms["user"]["city"]["steps"][0]["values"]) == len(cities)
    features, made = graph.nodes["user"].features, Transforms(graph.transforms)["user"].apply(last)
    for name, column in features.items():
        assert np.array_equal(column.read(num_rows - 1, num_rows), made[name]), name
    assert abs(features["rank"].read(0, 100_000).mean()) < 0.05  # of a normal distribution; the error is 0.003
    counts = np.bincount(features["bucket"].read(0, num_rows))
    assert np.abs(counts / num_rows - 1 / 32).max() < 0.01


def compile_kernels(folder: Path) -> list[str]:
    """Describe a small table for a process that compiles kernels, which takes more memory than the work."""
    folder.mkdir()
    table = {"x": [1.0, 2], "y": [3.0, 4], "city": ["a", "b"], "at": pa.array([0, 1], pa.timestamp("s"))}
    pq.write_table(pa.table(table), folder / "users.parquet")
    described = {"nodes": {"user": {"files": "users.parquet", "features": FEATURES}}}
    (folder / "metadata.json").write_text(json.dumps(described))
    return [str(folder / "metadata.json"), str(folder / "out")]
