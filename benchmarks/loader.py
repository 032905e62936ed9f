"""Measures how long a training script waits for a batch with features, as a PyG ``Data``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import BATCH_SIZE, FANOUT, NUM_FEATURES, Figures, Options, Timing, read_options, report
from hopstream.load.loader import NeighborLoader
from hopstream.schema import NODE

NUM_WARMUPS = 10


def endless(loader: NeighborLoader) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def measure(options: Options, *, edge_keys: bool) -> Figures:
    """Take batches as fast as they come, and do nothing with them."""
    loader = NeighborLoader(
        options.parts_path(1), FANOUT, seeds="train", batch_size=BATCH_SIZE, shuffle=True, node_features={NODE: ["x"]},
        edge_keys=edge_keys, num_threads=options.num_threads,
    )  # fmt: skip
    seconds = []
    num_edges = num_nodes = 0
    with loader:
        batches = endless(loader)
        for _ in range(NUM_WARMUPS):
            next(batches)
        for _ in range(options.num_repeats):
            started = time.perf_counter()
            for _ in range(options.num_batches):
                batch = next(batches)
                num_edges += batch.edge_index.shape[1]
                num_nodes += batch.x.shape[0]
            seconds.append(time.perf_counter() - started)
    timing = Timing(tuple(seconds))
    total = options.num_batches * options.num_repeats
    batches_per_s = options.num_batches / timing.median_s
    return {
        "ms_per_batch": 1e3 / batches_per_s,
        "min_ms_per_batch": timing.min_s / options.num_batches * 1e3,
        "edges_per_batch": num_edges / total,
        "rows_per_batch": num_nodes / total,
        "edges_per_s": num_edges / total * batches_per_s,
        "rows_per_s": num_nodes / total * batches_per_s,
        "seeds_per_s": BATCH_SIZE * batches_per_s,
    }


def main() -> None:
    """Measure without original edge keys, then with them, as ``e_id``."""
    options = read_options(__doc__ or "")
    settings = {
        "scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "num_features": NUM_FEATURES,
        "threads": options.num_threads,
    }  # fmt: skip
    figures = dict(measure(options, edge_keys=False))
    figures["with_e_id_ms_per_batch"] = measure(options, edge_keys=True)["ms_per_batch"]
    report("loader", settings, figures)


if __name__ == "__main__":
    main()
