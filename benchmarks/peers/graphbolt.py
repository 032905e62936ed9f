"""Measures GraphBolt, DGL's sampler, on the work of ``benchmarks/sampling.py``, and LABOR sampling.

Run it with an interpreter that has dgl and torch, on the dataset of ``benchmarks/prepare.py``, whose arrays are plain
``.npy`` files. It does not need Hopstream; it prints results as JSON.
"""

import argparse
import json
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")
warnings.simplefilter("ignore")

import dgl.graphbolt as gb  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

FANOUT = (15, 10, 5)
BATCH_SIZE = 1024
RNG_SEED = 1
LABOR_BATCHES = 5


def main() -> None:
    """Sample and compact the same seeds, hop by hop, on one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("scale", int), ("data", Path), ("batches", int), ("repeats", int), ("threads", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    part = options.data / f"rmat-{options.scale}-1" / "part-00000"
    edges = part / "edge" / "node__to__node" / "in"
    indptr = torch.from_numpy(np.load(edges / "indptr.npy"))
    indices = torch.from_numpy(np.load(edges / "indices.npy").view(np.int32))
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    train = np.load(part / "node" / "node" / "splits" / "train.npy")
    rng = np.random.default_rng(RNG_SEED)
    size = min(BATCH_SIZE, len(train))
    batches = [
        torch.from_numpy(rng.choice(train, size, replace=False).astype(np.int32)) for _ in range(options.batches)
    ]
    fanouts = [torch.tensor([count]) for count in FANOUT]

    def sample(seeds: torch.Tensor, draw: Callable[..., gb.SampledSubgraph]) -> int:
        num_edges = 0
        for fanout in fanouts:
            drawn = draw(seeds, fanout)
            num_edges += len(drawn.sampled_csc.indices)
            seeds, _ = gb.unique_and_compact_csc_formats(drawn.sampled_csc, seeds)
        return num_edges

    def measure(batches: list[torch.Tensor], draw: Callable[..., gb.SampledSubgraph]) -> tuple[float, int]:
        """Median seconds of all batches, and their edges."""
        num_edges = sum(sample(seeds, draw) for seeds in batches)
        seconds = []
        for _ in range(options.repeats):
            started = time.perf_counter()
            for seeds in batches:
                sample(seeds, draw)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds), num_edges

    median_s, num_edges = measure(batches, graph.sample_neighbors)
    labor_s, num_labor_edges = measure(batches[:LABOR_BATCHES], graph.sample_layer_neighbors)
    figures = {
        "sampling_ms_per_batch": median_s / len(batches) * 1e3,
        "edges_per_batch": num_edges / len(batches),
        "edges_per_s": num_edges / median_s,
        "labor_edges_per_s": num_labor_edges / labor_s,
    }
    versions = {"dgl": __import__("dgl").__version__, "torch": torch.__version__}
    settings = {"scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "threads": 1, **versions}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"case": "peer-graphbolt", "settings": settings, "figures": figures, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
