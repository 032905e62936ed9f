"""Measures each way to draw neighbours, as a ratio to plain uniform sampling in the same run.

One thread with the whole graph mapped, sampling and relabelling only. Ratios are of seconds per edge of the subgraph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import BATCH_SIZE, FANOUT, Figures, Options, Work, read_options, report, take_turns
from benchmarks.prepare import TIME_RANGE
from benchmarks.seeds import draw_seeds
from hopstream.arrays import IntArray
from hopstream.dataset.layout import open_dataset
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import LaborSeeds
from hopstream.store.local import LocalStore

SEED_TIME = TIME_RANGE * 3 // 4
"""Time of the seeds: three quarters of the edges are earlier."""
MAX_BATCHES = {"labor": 5, "induced": 5}
"""Fewer batches for variants that read all edges of every node: hubs make a batch tens of times as slow."""


def node_modes(store: LocalStore, batches: list[IntArray]) -> dict[str, Work]:
    """Work of each variant: runs of a plan from the same seed nodes."""
    schema, num_seeds = store.schema, len(batches[0])
    trees = {NODE: np.arange(num_seeds)}
    times = np.full(num_seeds, SEED_TIME)

    def mode(strategy: str = "uniform", **options: Any) -> Work:
        settings = SamplingSettings(**options)
        plan = plan_from_num_neighbors(schema, FANOUT, (NODE,), settings, strategies={EDGE: strategy})
        runner = PlanRunner(store, plan)

        def work(i: int) -> tuple[int, int]:
            seeds = SeedNodes(
                ids={NODE: batches[i]},
                rng_seed=i,
                trees=trees if settings.is_disjoint else None,
                times=times if settings.is_temporal else None,
                labor=LaborSeeds(first=i) if strategy == "labor" else None,
            )
            num_edges = len(runner.run(seeds).edges[EDGE].src_slots)
            return num_edges, num_edges

        return work

    return {
        "uniform": mode(),
        "with_replacement": mode(replace=True),
        "disjoint": mode(disjoint=True),
        "temporal_uniform": mode(time_attr="time"),
        "temporal_last": mode("last", time_attr="time"),
        "weighted": mode("weighted"),
        "weighted_with_replacement": mode("weighted", replace=True),
        "weighted_disjoint": mode("weighted", disjoint=True),
        "weighted_temporal": mode("weighted", time_attr="time"),
        "top_k": mode("top_k"),
        "labor": mode("labor"),
        "bidirectional": mode(subgraph_type="bidirectional"),
        "induced": mode(subgraph_type="induced"),
    }


def measure(options: Options) -> Figures:
    """Measure the speed of every variant, and its ratio to ``uniform``."""
    figures: Figures = {}
    with LocalStore(open_dataset(options.modes_path)) as store:
        batches = draw_seeds(store.split(NODE, "train"), options.num_batches)
        found = take_turns(node_modes(store, batches), options, MAX_BATCHES)
    for name, turns in found.items():
        figures[f"{name}_edges_per_s"] = turns.edges_per_s
        figures[f"{name}_edges_per_batch"] = turns.num_edges / turns.num_batches
        figures[f"{name}_ratio"] = turns.ratio_to(found["uniform"])
    return figures


def main() -> None:
    """Measure all variants."""
    options = read_options(__doc__ or "")
    settings = {"scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "threads": 1}
    report("modes", settings, measure(options))


if __name__ == "__main__":
    main()
