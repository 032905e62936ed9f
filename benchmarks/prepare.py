"""How long does it take to make the graph of the benchmarks, and to write it as datasets?

The datasets stay in the data folder for the other cases: one part, and two parts assigned at random, which is the
hardest assignment for two trainers.
"""

from __future__ import annotations

import time

from benchmarks.harness import (
    EDGES_PER_NODE,
    NUM_CLASSES,
    NUM_FEATURES,
    RNG_SEED,
    Figures,
    Options,
    read_options,
    report,
)
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest.synthetic import rmat_graph
from hopstream.partition.layout import open_dataset, write_parts

PARTS = (1, 2)


def make_graph(scale: int) -> Graph:
    """The graph of every benchmark."""
    return rmat_graph(
        scale, edges_per_node=EDGES_PER_NODE, num_features=NUM_FEATURES, num_classes=NUM_CLASSES, rng_seed=RNG_SEED
    )


def is_prepared(options: Options) -> bool:
    """The datasets are there and whole."""
    try:
        for num_parts in PARTS:
            open_dataset(options.parts_path(num_parts))
    except FormatError:
        return False
    return True


def prepare(options: Options) -> Figures:
    """Make the graph and write the datasets; seconds of each step."""
    make_graph(4)  # compiles the kernels
    started = time.perf_counter()
    graph = make_graph(options.scale)
    figures = {"make_s": time.perf_counter() - started, "num_edges": float(EDGES_PER_NODE << options.scale)}
    figures["edges_per_s"] = figures["num_edges"] / figures["make_s"]
    for num_parts in PARTS:
        started = time.perf_counter()
        write_parts(graph, options.parts_path(num_parts), num_parts=num_parts, method="random", overwrite=True)
        figures[f"write_{num_parts}_parts_s"] = time.perf_counter() - started
    return figures


def main() -> None:
    """Prepare the data folder."""
    options = read_options(__doc__ or "")
    settings = {"scale": options.scale, "edges_per_node": EDGES_PER_NODE, "num_features": NUM_FEATURES}
    report("prepare", settings, prepare(options))


if __name__ == "__main__":
    main()
