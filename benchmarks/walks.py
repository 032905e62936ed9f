"""Measures steps of random walks per second, on one thread, with the whole graph mapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Options, Work, read_options, report, take_turns
from benchmarks.seeds import draw_seeds
from hopstream.dataset.layout import open_dataset
from hopstream.sample.walks import random_walks
from hopstream.schema import NODE
from hopstream.store.local import LocalStore

LENGTH = 20
MAX_BATCHES = 10
WALKS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "weighted": {"weight_attr": "weight"},
    "node2vec": {"p": 0.5, "q": 2.0},
}


def walk_works(store: LocalStore, options: Options) -> dict[str, Work]:
    """Walks from the same nodes, one call per batch; units are steps, and each step is an edge."""
    batches = draw_seeds(store.split(NODE, "train"), options.num_batches)

    def work(how: dict[str, Any]) -> Work:
        def walk(i: int) -> tuple[int, int]:
            direction = store.directions[0]
            walks = random_walks(store, batches[i], walk_length=LENGTH, direction=direction, rng_seed=i, **how)
            num_steps = int(np.count_nonzero(walks[:, 1:] >= 0))
            return num_steps, num_steps

        return walk

    return {name: work(how) for name, how in WALKS.items()}


def main() -> None:
    """Measure first-order and second-order walks."""
    options = read_options(__doc__ or "")
    with LocalStore(open_dataset(options.modes_path)) as store:
        found = take_turns(walk_works(store, options), options, dict.fromkeys(WALKS, MAX_BATCHES))
    figures = {f"{name}_steps_per_s": turns.units_per_s for name, turns in found.items()}
    report("walks", {"scale": options.scale, "length": LENGTH, "threads": 1}, figures)


if __name__ == "__main__":
    main()
