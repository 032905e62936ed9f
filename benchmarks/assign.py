"""Measures time, memory and edge cut of every method that assigns nodes to parts.

``python -m benchmarks.assign --graph communities --scale 18`` runs every method in a process of its own, so that peaks
of memory are separate, and prints one JSON object per method. METIS has one thread, so ``--threads 2`` affects only
KaMinPar. Compare ``cpu_s`` on shared processors, and ``seconds`` on idle ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.processes import peak_rss_bytes
from hopstream.assign.run import assign_nodes
from hopstream.dataset.settings import PartitionSettings
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import ChunkedGraph, open_chunked, write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.schema import EDGE, NODE

METHODS = ("metis", "kaminpar", "ldg", "fennel", "random")
EDGES_PER_NODE = 16
COMMUNITY_NODES = 500
SHARE_INSIDE = 0.7
DEGREE_EXPONENT = 2.5


def power_communities(scale: int, rng_seed: int = 1) -> Graph:
    """Make a graph of 2**scale nodes with power-law degrees, in communities with 70 % of edges inside.

    Source: the degree-corrected stochastic block model; Karrer, Newman, Physical Review E 83, 2011.
    """
    rng = np.random.default_rng(rng_seed)
    num_nodes, num_edges = 1 << scale, EDGES_PER_NODE << scale
    community = rng.integers(0, max(1, num_nodes // COMMUNITY_NODES), num_nodes)
    order = np.argsort(community, kind="stable")
    weights = np.minimum((1 - rng.random(num_nodes)) ** (-1 / (DEGREE_EXPONENT - 1)), num_nodes**0.5)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    starts = np.searchsorted(community[order], np.arange(community.max() + 2))

    def draw(low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
        places = np.searchsorted(sums, low + rng.random(num_edges) * (high - low), side="right") - 1
        return order[np.minimum(places, num_nodes - 1)]

    src = draw(0.0, sums[-1])
    inside = draw(sums[starts[community[src]]], sums[starts[community[src] + 1]])
    dst = np.where(rng.random(num_edges) < SHARE_INSIDE, inside, draw(0.0, sums[-1]))
    return Graph(nodes={NODE: NodeTable(num_nodes=num_nodes)}, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)})


def measure(chunks: Path, options: argparse.Namespace) -> dict[str, float | str]:
    """Measure one assignment, after a small one that compiles the kernels."""
    settings = PartitionSettings(
        num_parts=options.parts, method=options.method, num_threads=options.threads, passes=options.passes
    )
    assign_nodes(rmat_graph(6, edges_per_node=4), settings)
    graph: ChunkedGraph = open_chunked(chunks)
    before = peak_rss_bytes()
    started, cpu_started = time.perf_counter(), time.process_time()
    found = assign_nodes(graph, settings, memory_bytes=options.memory_mb << 20)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    peak = peak_rss_bytes()
    return {
        "method": options.method, "seconds": round(seconds, 2), "cpu_s": round(cpu_s, 2),
        "cut": round(-1.0 if found.cut is None else found.cut, 4),
        "largest": round(found.largest.get("bytes", -1.0), 3), "peak_mb": peak >> 20, "grown_mb": (peak - before) >> 20,
    }  # fmt: skip


def main() -> None:
    """Make the graph, and assign it by every method or by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", choices=["communities", "rmat"], default="communities")
    parser.add_argument("--scale", type=int, default=17)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--memory-mb", type=int, default=1024)
    parser.add_argument("--method", default="")
    parser.add_argument("--chunks", type=Path)
    options = parser.parse_args()
    if options.chunks:
        sys.stdout.write(json.dumps(measure(options.chunks, options)) + "\n")
        return
    with TemporaryDirectory() as folder:
        is_rmat = options.graph == "rmat"
        graph = rmat_graph(options.scale, edges_per_node=32) if is_rmat else power_communities(options.scale)
        write_chunked(graph, Path(folder) / "chunks", num_chunks=4, edges_format="numpy")
        del graph
        for method in options.method.split(",") if options.method else METHODS:
            arguments = [
                f"--{n.replace('_', '-')}={v}" for n, v in vars(options).items() if n not in ("method", "chunks")
            ]
            command = [sys.executable, "-m", "benchmarks.assign", *arguments, f"--method={method}"]
            subprocess.run([*command, f"--chunks={Path(folder) / 'chunks'}"], check=True)


if __name__ == "__main__":
    main()
