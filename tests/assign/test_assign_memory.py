"""Checks that assignment stays below its stated least memory, with any option and many threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.ingest.chunked import write_chunked

PROGRAM = """
import json, sys
from hopstream.engine.settings import rounded_up
from hopstream.engine.machine import peak_bytes, watched
from hopstream.ingest.chunked import open_chunked
from hopstream.assign.run import assign_folder
from hopstream.assign.libraries import assign_needs
from hopstream.dataset.settings import PartitionSettings
settings = PartitionSettings(num_parts=2, **json.loads(sys.argv[5]))
least = rounded_up(assign_needs(*map(int, sys.argv[3:5]), settings).alone_bytes)
with watched():
    assign_folder(open_chunked(sys.argv[1]), sys.argv[2], settings, memory=str(least))
    print(least, peak_bytes())
"""


EVEN: tuple[dict[str, Any], ...] = (
    {"balance_ntypes": ["node"]},
    {"balance_splits": True},
    {"balance_edges": True},
    {"balance_ntypes": ["node"], "balance_splits": True, "balance_edges": True},
)
WEIGHTS: dict[str, Any] = {"part_weights": [1, 3]}
ASKED = [
    {"method": method, **even}
    for method in ("random", "ldg", "fennel", "kaminpar", "metis")
    for even in ({}, WEIGHTS, *EVEN)
] + [{"method": "hash"}, {"method": "hash", **WEIGHTS}]


def least_and_peak(graph: Path, out: Path, num_nodes: int, num_edges: int, asked: dict[str, Any]) -> tuple[int, int]:
    """The least memory and the peak, measured in a child process with no other allocations."""
    words = [sys.executable, "-c", PROGRAM, str(graph), str(out), str(num_nodes), str(num_edges), json.dumps(asked)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    least, peak = map(int, done.stdout.split())
    return least, peak


def sparse_graph(folder: Path, num_nodes: int) -> Path:
    """A chunked graph of many nodes, nearly all of them isolated; each is in one split."""
    keys = np.arange(num_nodes)
    splits = {name: keys[turn::3] for turn, name in enumerate(("train", "val", "test"))}
    graph = hopstream.graph_from_arrays(np.arange(20).reshape(2, 10), num_nodes=num_nodes, splits=splits)
    write_chunked(graph, folder, num_chunks=1)
    return folder


@pytest.mark.parametrize("asked", [{"method": "ldg", **EVEN[-1]}], ids=str)
def test_many_nodes_stay_below_the_least_memory(tmp_path: Path, asked):
    num_nodes = 6_000_000
    graph = sparse_graph(tmp_path / "chunks", num_nodes)
    least, peak = least_and_peak(graph, tmp_path / "owners", num_nodes, 10, asked)
    assert peak <= least


@pytest.fixture(scope="module")
def twenty_million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sparse_graph(tmp_path_factory.mktemp("sparse") / "chunks", 20_000_000)


@pytest.mark.scale
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_least_memory_is_enough_for_every_method_and_little_more(tmp_path: Path, twenty_million: Path, asked):
    least, peak = least_and_peak(twenty_million, tmp_path / "owners", 20_000_000, 10, asked)
    assert 0.5 * least - 60e6 <= peak <= least  # ten edges use little of the memory for edges


@pytest.mark.slow
def test_twelve_threads_stay_below_the_least_memory(tmp_path: Path, rng: np.random.Generator):
    num_nodes, num_edges = 1000, 12 << 20  # a block of a million edges for each thread
    graph = hopstream.graph_from_arrays(rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)
    write_chunked(graph, tmp_path / "chunks", num_chunks=1)
    least, peak = least_and_peak(
        tmp_path / "chunks", tmp_path / "owners", num_nodes, num_edges, {"method": "ldg", "num_threads": 12}
    )
    assert peak <= least
