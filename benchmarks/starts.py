"""Measures how long first starts take, with no compiled kernels and with all of them.

    git worktree add ../before REVISION
    python -m benchmarks.starts --beside ../before

A start is a process of its own, from its first instruction to the first batch of a ``NeighborLoader``, or from
``hopstream up`` on four parts to its message that all servers are ready. "Cold" starts with an empty
``NUMBA_CACHE_DIR``, "warm" is the same start again. Both revisions open the same dataset.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT
from hopstream import Graph, write_parts
from hopstream.ingest.from_arrays import graph_from_arrays

NUM_PARTS = 4
TIMEOUT_S = 600.0
LOADERS = {"plain": "", "temporal weighted": ", time_attr='time', weight_attr='weight'"}
FIRST_BATCH = """
from hopstream import NeighborLoader
with NeighborLoader({source!r}, [10, 5], batch_size=64, node_features=["x"]{options}) as loader:
    next(iter(loader))
"""


def make_graph(num_nodes: int = 20_000, num_edges: int = 200_000) -> Graph:
    """A random graph whose edges have times and weights."""
    draws = np.random.default_rng(1)
    return graph_from_arrays(
        draws.integers(num_nodes, size=(2, num_edges)),
        num_nodes=num_nodes,
        node_features={"x": draws.random((num_nodes, 16), np.float32), "time": np.full(num_nodes, 9)},
        edge_features={"time": draws.integers(9, size=num_edges), "weight": draws.random(num_edges, np.float32)},
    )


def first_batch_s(source: Path, options: str, environment: dict[str, str]) -> float:
    """Seconds until a new process has its first batch."""
    started = time.perf_counter()
    code = FIRST_BATCH.format(source=str(source), options=options)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - started


def up_s(source: Path, environment: dict[str, str]) -> float:
    """Seconds until ``hopstream up`` says that all servers are ready."""
    command = [sys.executable, "-m", "hopstream", "up", str(source), "--cluster-file", str(source.parent / "c.json")]
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            if not any("ready" in line for line in process.stdout or ()):
                raise RuntimeError(f"hopstream up ended with {process.wait()} before it was ready")
            return time.perf_counter() - started
        finally:
            process.terminate()


def starts(root: Path, source: Path) -> dict[str, tuple[float, float]]:
    """Seconds of the cold and of the warm start, by name, with the code of ``root``."""
    found = {}
    for name, options in (*LOADERS.items(), ("up", None)):
        with tempfile.TemporaryDirectory() as kernels:
            environment = {**os.environ, "PYTHONPATH": str(root / "src"), "NUMBA_CACHE_DIR": kernels}
            run = [
                up_s(source, environment) if options is None else first_batch_s(source, options, environment)
                for _ in range(2)
            ]
            found[name] = (run[0], run[1])
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="the folder of another revision")
    values = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "parts")
        write_parts(make_graph(), source, num_parts=NUM_PARTS, time_attr="time", weight_attr="weight")
        for root in [*([values.beside.resolve()] if values.beside else []), ROOT]:
            for name, (cold, warm) in starts(root, source).items():
                print(f"{root.name:<20} {name:<20} cold {cold:6.1f} s   warm {warm:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
