"""Measures gathering the features of a batch's nodes from a mapped part, on one thread."""

from __future__ import annotations

import numpy as np

from benchmarks.harness import FANOUT, NUM_FEATURES, read_options, repeat, report
from benchmarks.seeds import draw_seeds
from hopstream.dataset.layout import open_dataset
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes, plan_from_num_neighbors
from hopstream.schema import NODE
from hopstream.store.contract import FetchRequest
from hopstream.store.local import LocalStore

NUM_BATCHES = 8


def main() -> None:
    """Gather the rows of sampled batches into a reused buffer, and compare with numpy's ``take``."""
    options = read_options(__doc__ or "")
    dataset = open_dataset(options.parts_path(1))
    with LocalStore(dataset) as store:
        runner = PlanRunner(store, plan_from_num_neighbors(store.schema, FANOUT, (NODE,)))
        seeds = draw_seeds(store.split(NODE, "train"), NUM_BATCHES)
        batches = [
            runner.run(SeedNodes(ids={NODE: keys}, rng_seed=i)).node_ids[NODE].copy() for i, keys in enumerate(seeds)
        ]
        num_rows = sum(map(len, batches))
        buffer = np.zeros((max(map(len, batches)), NUM_FEATURES), np.float32)

        def gather() -> None:
            for ids in batches:
                store.fetch([FetchRequest(entity=NODE, names=("x",), ids=ids, out={"x": buffer[: len(ids)]})])

        column = np.asarray(dataset.open_part(0).node_features[NODE]["x"])
        timing = repeat(gather, options.num_repeats)
        numpy_timing = repeat(
            lambda: [np.take(column, ids, axis=0, out=buffer[: len(ids)], mode="clip") for ids in batches],
            options.num_repeats,
        )
    num_bytes = num_rows * NUM_FEATURES * 4
    figures = {
        "gb_per_s": num_bytes / timing.median_s / 1e9,
        "rows_per_s": num_rows / timing.median_s,
        "ms_per_batch": timing.median_s / NUM_BATCHES * 1e3,
        "rows_per_batch": num_rows / NUM_BATCHES,
        "numpy_take_gb_per_s": num_bytes / numpy_timing.median_s / 1e9,
    }
    report("gather", {"scale": options.scale, "row_bytes": NUM_FEATURES * 4, "threads": 1}, figures)


if __name__ == "__main__":
    main()
