"""Measures graphlearn-torch, in its collocated mode, on the work of ``benchmarks/two_trainers.py``.

Run it with an interpreter that has graphlearn_torch, torch and torch_geometric, on the dataset of two parts of
``benchmarks/prepare.py``, whose arrays are plain ``.npy`` files. It does not need Hopstream; it prints results as JSON.
The library uses ``torch_sparse`` only to convert lists of edges to CSC, and these arrays are CSC already. So an empty
module replaces ``torch_sparse`` if it is not installed. The library draws with replacement, so a batch has about a
tenth fewer edges.
"""

import argparse
import importlib.util
import json
import multiprocessing
import resource
import socket
import statistics
import sys
import time
import types
import warnings
from collections.abc import Iterator
from importlib import metadata
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
if importlib.util.find_spec("torch_sparse") is None:
    sys.modules["torch_sparse"] = types.ModuleType("torch_sparse")

import graphlearn_torch as glt  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

FANOUT = (15, 10, 5)
BATCH_SIZE = 1024
NUM_TRAINERS = 2
NUM_WARMUPS = 5
WAIT_S = 600.0


def load(folder: Path, rank: int) -> tuple[glt.distributed.DistDataset, torch.Tensor]:
    """Load one part, with global ids and empty rows for other parts, and its seeds."""
    offsets = json.loads((folder / "manifest.json").read_text())["node_offsets"]["node"]
    first, stop, num_nodes = offsets[rank], offsets[rank + 1], offsets[-1]
    part = folder / f"part-{rank:05d}"
    edges = part / "edge" / "node__to__node" / "in"
    own = np.load(edges / "indptr.npy").astype(np.int64)
    indptr = np.concatenate([np.zeros(first, np.int64), own, np.full(num_nodes - stop, own[-1])])
    indices = np.load(edges / "indices.npy").astype(np.int64)
    topology = glt.data.Topology((indices, indptr), input_layout="CSC", layout="CSC")
    index_of_id = torch.arange(num_nodes) - first
    dataset = glt.distributed.DistDataset(
        num_partitions=NUM_TRAINERS,
        partition_idx=rank,
        graph_partition=glt.data.Graph(topology, "CPU"),
        node_feature_partition=glt.data.Feature(
            np.load(part / "node" / "node" / "features" / "x.npy"), index_of_id, with_gpu=False
        ),
        node_pb=torch.repeat_interleave(torch.arange(NUM_TRAINERS, dtype=torch.uint8), torch.tensor(np.diff(offsets))),
        edge_dir="in",
    )
    return dataset, torch.from_numpy(np.load(part / "node" / "node" / "splits" / "train.npy").astype(np.int64))


def endless(loader: glt.distributed.DistNeighborLoader) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def train(options: argparse.Namespace, rank: int, port: int, barrier: Barrier, pipe: Connection) -> None:
    """Take batches of one rank; send the begin and end times of each repetition."""
    torch.set_num_threads(options.threads)
    glt.distributed.init_worker_group(NUM_TRAINERS, rank, "trainers")
    dataset, seeds = load(options.data / f"rmat-{options.scale}-{NUM_TRAINERS}", rank)
    loader = glt.distributed.DistNeighborLoader(
        dataset, list(FANOUT), seeds, batch_size=BATCH_SIZE, shuffle=True, edge_dir="in", collect_features=True,
        to_device=torch.device("cpu"),
        worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr="localhost", master_port=port, num_rpc_threads=options.rpc_threads
        ),
    )  # fmt: skip
    batches = endless(loader)
    for _ in range(NUM_WARMUPS):
        next(batches)
    spans = []
    num_edges = num_rows = 0
    for _ in range(options.repeats):
        barrier.wait(WAIT_S)
        started = time.monotonic()
        for _ in range(options.batches):
            batch = next(batches)
            num_edges += batch.edge_index.shape[1]
            num_rows += batch.x.shape[0]
        spans.append((started, time.monotonic()))
    barrier.wait(WAIT_S)
    pipe.send((spans, num_edges, num_rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    glt.distributed.shutdown_rpc(graceful=True)


def main() -> None:
    """Start both trainers and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("scale", int), ("data", Path), ("batches", int), ("repeats", int), ("threads", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--rpc-threads", type=int, default=2)
    options = parser.parse_args()
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(NUM_TRAINERS)
    pipes = []
    for rank in range(NUM_TRAINERS):
        here, there = context.Pipe()
        context.Process(target=train, args=(options, rank, port, barrier, there), daemon=True).start()
        there.close()  # so that the end of the process is the end of the pipe
        pipes.append(here)
    answers = [pipe.recv() for pipe in pipes]
    for process in multiprocessing.active_children():
        process.join(WAIT_S)
    spans = zip(*(spans for spans, *_ in answers), strict=True)
    seconds = [max(end for _, end in span) - min(start for start, _ in span) for span in spans]
    num_batches = NUM_TRAINERS * options.batches
    figures = {
        "ms_per_batch": statistics.median(seconds) / num_batches * 1e3,
        "min_ms_per_batch": min(seconds) / num_batches * 1e3,
        "edges_per_batch": sum(num_edges for _, num_edges, *_ in answers) / num_batches / options.repeats,
        "rows_per_batch": sum(num_rows for _, _, num_rows, _ in answers) / num_batches / options.repeats,
    }
    settings = {
        "scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT),
        "threads_per_trainer": options.threads, "rpc_threads": options.rpc_threads, "torch": torch.__version__,
        "graphlearn_torch": metadata.version("graphlearn_torch"),
    }  # fmt: skip
    peak = max(peak for *_, peak in answers)
    print(json.dumps({"case": "peer-graphlearn", "settings": settings, "figures": figures, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
