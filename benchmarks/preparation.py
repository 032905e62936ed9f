"""Measures time and memory of ``hopstream dispatch`` for a chunked graph, over all its processes.

    python -m benchmarks.preparation --scale 18 --formats parquet csv --memory 2GiB

The R-MAT graph of the other benchmarks is written as chunked folders once. Each run starts ``hopstream dispatch`` as a
process and samples the resident memory of it and its children. Shared pages count once in PSS and once per process in
RSS.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.processes import watch
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.kernels.rmat import draw_edges

NUM_PARTS, NUM_FEATURES, NUM_CHUNKS = 4, 100, 8
LARGEST_IN_MEMORY = 21
"""Largest scale that is made in memory; larger ones are made chunk by chunk, as Parquet only."""

GROUP_ROWS = 1 << 20
EDGES = pa.schema([("src", pa.int64()), ("dst", pa.int64())])
FORMATS = {
    "parquet": {"edges_format": "parquet", "data_format": "numpy"},
    "csv": {"edges_format": "csv", "data_format": "numpy"},
    "numpy": {"edges_format": "numpy", "data_format": "numpy"},
    "parquet-all": {"edges_format": "parquet", "data_format": "parquet", "vector_rows": True},
}


@dataclass(frozen=True)
class Figures:
    """Costs of one run."""

    name: str
    num_edges: int
    seconds: float
    cpu_s: float
    edges_per_s: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    stages: dict[str, float]


def write_streamed(folder: Path, scale: int) -> None:
    """Write a graph that does not fit in memory chunk by chunk, as Parquet edges and npy features."""
    num_nodes, num_edges, num_chunks = 1 << scale, 32 << scale, NUM_CHUNKS << max(0, scale - 21)
    key_of = np.empty(num_nodes, np.int64)
    permute_range(0, num_nodes, np.uint64(derive_seed(0, "keys")), key_of)
    for name in ("edges", "nodes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    rows, nodes = num_edges // num_chunks, num_nodes // num_chunks
    for chunk in range(num_chunks):
        with pq.ParquetWriter(
            folder / f"edges/{chunk}.parquet", EDGES, use_dictionary=False, compression="none"
        ) as file:
            for first in range(chunk * rows, (chunk + 1) * rows, GROUP_ROWS):
                src, dst = np.empty((2, min(GROUP_ROWS, rows)), np.int64)
                draw_edges(first, scale, np.uint64(derive_seed(0, "edges")), key_of, src, dst)
                file.write_table(pa.table([src, dst], schema=EDGES))
        values = np.random.default_rng(chunk).random((nodes, NUM_FEATURES), np.float32)
        np.save(folder / f"nodes/x-{chunk}.npy", values)
    metadata = {
        "graph_name": "rmat", "node_type": ["node"], "num_nodes_per_type": [num_nodes],
        "edge_type": ["node:to:node"], "num_edges_per_type": [num_edges],
        "edges": {
            "node:to:node": {
                "format": {"name": "parquet"}, "data": [f"edges/{chunk}.parquet" for chunk in range(num_chunks)]
            }
        },
        "node_data": {
            "node": {
                "x": {"format": {"name": "numpy"}, "data": [f"nodes/x-{chunk}.npy" for chunk in range(num_chunks)]}
            }
        },
        "edge_data": {},
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))


def prepare(folder: Path, scale: int, formats: list[str]) -> int:
    """Write the graph in each format, and random owners; return the number of edges."""
    missing = [name for name in formats if not (folder / name / "metadata.json").exists()]
    num_edges = 32 << scale
    if scale > LARGEST_IN_MEMORY:
        for name in missing:
            write_streamed(folder / name, scale)
    elif missing:
        graph = rmat_graph(scale, num_features=NUM_FEATURES, num_classes=16)
        for name in missing:
            write_chunked(graph, folder / name, num_chunks=NUM_CHUNKS, **FORMATS[name])
    owners = folder / "owners"
    owners.mkdir(parents=True, exist_ok=True)
    np.save(owners / "node.npy", np.random.default_rng(0).integers(0, NUM_PARTS, 1 << scale).astype(np.int32))
    return num_edges


def measure(name: str, words: list[str], num_edges: int, out: Path) -> Figures:
    """Run a command and watch its memory."""
    took = watch(words)
    report = json.loads((out / "manifest.json").read_text())["report"]
    stages = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return Figures(
        name, num_edges, took.seconds, took.cpu_s, num_edges / took.seconds, took.rss_bytes, took.pss_bytes, stages
    )


def main() -> None:
    """Measure each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=18)
    parser.add_argument("--folder", type=Path, default=Path(".benchmarks/preparation"))
    parser.add_argument("--formats", nargs="+", default=["parquet", "csv"], choices=list(FORMATS))
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--keep", action="store_true", help="keep the chunked folders for the next run")
    options = parser.parse_args()
    folder = options.folder / str(options.scale)
    num_edges = prepare(folder, options.scale, options.formats)
    for name in options.formats:
        out = folder / "out"
        words = [
            sys.executable, "-m", "hopstream.cli", "dispatch", "--in-dir", str(folder / name), "--partitions-dir",
            str(folder / "owners"), "--out-dir", str(out), "--memory", options.memory, "--workers", options.workers,
            "--parts", str(NUM_PARTS), "--overwrite",
        ]  # fmt: skip
        print(json.dumps(asdict(measure(name, words, num_edges, out))))
        shutil.rmtree(out)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
