"""Makes the graph of the benchmarks, writes it as datasets, and measures the time.

The datasets stay in the data folder for the other cases: one part; two parts assigned at random, the worst assignment
for two trainers; and one part with a time and a weight for every edge, for the ways to sample.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

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
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE

PARTS = (1, 2)
TIME_RANGE = 1_000_000


def make_graph(scale: int) -> Graph:
    """Make the graph of all benchmarks."""
    return rmat_graph(
        scale, edges_per_node=EDGES_PER_NODE, num_features=NUM_FEATURES, num_classes=NUM_CLASSES, rng_seed=RNG_SEED
    )


def with_times_and_weights(graph: Graph) -> Graph:
    """Replace the graph's features by random times and weights of edges."""
    table = graph.edges[EDGE]
    rng = np.random.default_rng(RNG_SEED)
    features = {
        "time": rng.integers(0, TIME_RANGE, table.num_edges),
        "weight": rng.exponential(size=table.num_edges).astype(np.float32),
    }
    edges = EdgeTable(src_keys=table.src_keys, dst_keys=table.dst_keys, features=features)
    nodes = {NODE: dataclasses.replace(graph.nodes[NODE], features={})}
    return Graph(nodes=nodes, edges={EDGE: edges}, splits=graph.splits)


def is_prepared(options: Options) -> bool:
    """Whether the datasets exist and are complete."""
    try:
        for path in (*map(options.parts_path, PARTS), options.modes_path):
            open_dataset(path)
    except FormatError:
        return False
    return True


def prepare(options: Options) -> Figures:
    """Make the graph and write the datasets; return the seconds of each step."""
    make_graph(4)  # compiles the kernels
    started = time.perf_counter()
    graph = make_graph(options.scale)
    figures = {"make_s": time.perf_counter() - started, "num_edges": float(EDGES_PER_NODE << options.scale)}
    figures["edges_per_s"] = figures["num_edges"] / figures["make_s"]
    for num_parts in PARTS:
        started = time.perf_counter()
        write_parts(graph, options.parts_path(num_parts), num_parts=num_parts, method="random", overwrite=True)
        figures[f"write_{num_parts}_parts_s"] = time.perf_counter() - started
    timed = with_times_and_weights(graph)
    started = time.perf_counter()
    write_parts(
        timed, options.modes_path, num_parts=1, time_attr="time", weight_attr="weight", keep_edge_keys=False,
        overwrite=True,
    )  # fmt: skip
    figures["write_modes_s"] = time.perf_counter() - started
    return figures


def main() -> None:
    """Prepare the data folder."""
    options = read_options(__doc__ or "")
    settings = {"scale": options.scale, "edges_per_node": EDGES_PER_NODE, "num_features": NUM_FEATURES}
    report("prepare", settings, prepare(options))


if __name__ == "__main__":
    main()
