"""Checks that assigning nodes stays below the least memory that it names, with many threads too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.ingest.chunked import write_chunked

PROGRAM = """
import sys
from hopstream.engine.allotment import rounded_up
from hopstream.engine.peak import peak_bytes, watched
from hopstream.ingest.chunked import open_chunked
from hopstream.partition.assign import assign_folder
from hopstream.partition.assign_costs import assign_needs
from hopstream.partition.settings import PartitionSettings
settings = PartitionSettings(num_parts=2, method="ldg", num_threads=12)
least = rounded_up(assign_needs(*map(int, sys.argv[3:]), settings).alone_bytes)
with watched():
    assign_folder(open_chunked(sys.argv[1]), sys.argv[2], settings, memory=str(least))
    print(least, peak_bytes())
"""


@pytest.mark.slow
def test_twelve_threads_stay_below_the_least_memory(tmp_path: Path, rng: np.random.Generator):
    num_nodes, num_edges = 1000, 12 << 20  # a block of a million edges for each thread
    graph = hopstream.graph_from_arrays(rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)
    write_chunked(graph, tmp_path / "chunks", num_chunks=1)
    words = [tmp_path / "chunks", tmp_path / "owners", num_nodes, num_edges]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], check=True, capture_output=True, text=True, timeout=300
    )
    least, peak = map(int, done.stdout.split())
    assert peak <= least
