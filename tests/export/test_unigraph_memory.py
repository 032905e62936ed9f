"""Checks that a dataset becomes a unigraph, and parts again, in far less memory than it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts

MIB = 1 << 20
GIVEN = 160 * MIB
WRITING = """
import resource, sys
from hopstream.export.unigraph import write_unigraph
write_unigraph(sys.argv[2], sys.argv[3] + "-warm", num_shards=2)
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmData:"))
limit = int(line.split()[1]) * 1024 + int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
write_unigraph(sys.argv[1], sys.argv[3], num_shards=2)
"""
READING = """
import sys
from hopstream.ingest.chunking.run import chunk_tables
chunk_tables(*sys.argv[1:3], memory="420MiB", num_workers=0, data_format="parquet", vector_rows=True)
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(line.split()[1]) * 1024)
"""


def make(rng, folder, num_nodes, num_edges):
    graph = graph_from_arrays(
        rng.integers(0, num_nodes, (2, num_edges)),
        num_nodes=num_nodes,
        node_features={"x": rng.random((num_nodes, 256), np.float32)},
        edge_features={"w": rng.random(num_edges, np.float32)},
    )
    write_parts(graph, folder, num_parts=3, method="hash")
    return folder


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.scale
def test_memory_is_bounded(rng, tmp_path):
    """300 MB of features and 70 MB of edges with their places."""
    large, small = make(rng, tmp_path / "large", 300_000, 2_000_000), make(rng, tmp_path / "small", 20, 50)
    run(WRITING, large, small, tmp_path / "u", GIVEN)
    written = sum(path.stat().st_size for path in (tmp_path / "u").iterdir())
    assert written > 2 * GIVEN
    run(READING, tmp_path / "u-warm", tmp_path / "c-warm")  # compiles
    assert int(run(READING, tmp_path / "u", tmp_path / "c")) < 420 * MIB
