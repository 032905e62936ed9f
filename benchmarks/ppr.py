"""Measures neighbourhoods by personalised PageRank per second, on one thread, with the graph mapped."""

from __future__ import annotations

from benchmarks.harness import BATCH_SIZE, read_options, repeat, report
from benchmarks.seeds import draw_seeds
from hopstream.dataset.layout import open_dataset
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr import PPRRunner
from hopstream.sample.ppr_settings import PPR, PPRSettings, plan_ppr
from hopstream.schema import NODE
from hopstream.store.local import LocalStore

SETTINGS = {
    "default": PPRSettings(),
    "wide": PPRSettings(alpha=0.25),
    "sampled_edges": PPRSettings(include_sampled_edges=True),
    "three_rounds": PPRSettings(max_fetch_iterations=3),
}
"""Measured variants; figures have their names."""
MAX_BATCHES = 10
"""A batch of neighbourhoods takes as long as some tens of batches of sampled neighbours."""


def main() -> None:
    """Compute the same neighbourhoods in every repetition; the warm-up maps their pages."""
    options = read_options(__doc__ or "")
    num_batches = min(options.num_batches, MAX_BATCHES)
    figures: dict[str, float] = {}
    with LocalStore(open_dataset(options.parts_path(1))) as store:
        batches = draw_seeds(store.split(NODE, "train"), num_batches)
        num_seeds = sum(map(len, batches))
        for name, settings in SETTINGS.items():
            runner = PPRRunner(store, plan_ppr(store, settings, NODE))
            starts = [SeedNodes(ids={NODE: seeds}, rng_seed=i) for i, seeds in enumerate(batches)]
            num_rows = sum(runner.run(one).edge_index[NODE, PPR, NODE].shape[1] for one in starts)
            timing = repeat(
                lambda runner=runner, starts=starts: [runner.run(one) for one in starts],  # type: ignore[misc]
                options.num_repeats, num_warmups=0,
            )  # fmt: skip
            figures |= {
                f"{name}_seeds_per_s": num_seeds / timing.median_s,
                f"{name}_ms_per_batch": timing.median_s / num_batches * 1e3,
                f"{name}_min_ms_per_batch": timing.min_s / num_batches * 1e3,
                f"{name}_nodes_per_seed": num_rows / num_seeds,
            }
    report("ppr", {"scale": options.scale, "batch_size": BATCH_SIZE, "threads": 1, "batches": num_batches}, figures)


if __name__ == "__main__":
    main()
