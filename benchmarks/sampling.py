"""Measures sampling and relabelling without features, on one thread, with the whole graph mapped."""

from __future__ import annotations

from benchmarks.harness import BATCH_SIZE, FANOUT, read_options, repeat, report
from benchmarks.seeds import draw_seeds
from hopstream.dataset.layout import open_dataset
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes, plan_from_num_neighbors
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore


def main() -> None:
    """Sample the same batches in every repetition; the warm-up maps their pages."""
    options = read_options(__doc__ or "")
    with LocalStore(open_dataset(options.parts_path(1))) as store:
        runner = PlanRunner(store, plan_from_num_neighbors(store.schema, FANOUT, (NODE,)))
        batches = draw_seeds(store.split(NODE, "train"), options.num_batches)
        num_edges = sum(
            sum(runner.run(SeedNodes(ids={NODE: seeds}, rng_seed=i)).num_sampled_edges[EDGE])
            for i, seeds in enumerate(batches)
        )
        timing = repeat(
            lambda: [runner.run(SeedNodes(ids={NODE: seeds}, rng_seed=i)) for i, seeds in enumerate(batches)],
            options.num_repeats,
        )
    settings = {"scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "threads": 1}
    figures = {
        "ms_per_batch": timing.median_s / options.num_batches * 1e3,
        "min_ms_per_batch": timing.min_s / options.num_batches * 1e3,
        "edges_per_batch": num_edges / options.num_batches,
        "edges_per_s": num_edges / timing.median_s,
    }
    report("sampling", settings, figures)


if __name__ == "__main__":
    main()
