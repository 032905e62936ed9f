"""Measures batches of links per seed node, as a ratio to a loader of nodes in the same run.

Loaders fetch no columns, run in the caller's thread, and have the whole graph mapped. The loader of nodes starts from
the ends of the same links, because ends of edges have more neighbours than most nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import (
    BATCH_SIZE,
    FANOUT,
    RNG_SEED,
    Figures,
    Options,
    Work,
    read_options,
    report,
    take_turns,
)
from hopstream.arrays import IntArray
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.sample.negatives import NegativeSampling
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore

LINK_BATCH = BATCH_SIZE // 4
"""A link with one negative has four ends, so batches of links and of nodes have about equally many seed nodes."""
LINK_MODES: dict[str, dict[str, Any]] = {
    "link": {"neg_sampling_ratio": 1.0},
    "link_excluded": {"neg_sampling_ratio": 1.0, "exclude_links": True},
    "link_triplet": {"neg_sampling": "triplet"},
    "link_strict": {"neg_sampling": NegativeSampling("binary", 1.0, strict=True)},
}


def draw_links(dataset: Dataset, num_batches: int) -> IntArray:
    """int64[2, num_batches * LINK_BATCH], keys of the ends of random edges of a dataset of one part."""
    edges = dataset.open_part(0).edges[EDGE, "in"]
    drawn = np.random.default_rng(RNG_SEED).integers(0, len(edges.indices), num_batches * LINK_BATCH)
    return np.stack([edges.indices[drawn].astype(np.int64), np.searchsorted(edges.indptr, drawn, "right") - 1])


def ends_of_links(links: IntArray, num_nodes: int) -> tuple[IntArray, int]:
    """Make seeds as in batches of links with one negative each; return them and the batch size."""
    rng = np.random.default_rng(RNG_SEED)
    batches = []
    for start in range(0, links.shape[1], LINK_BATCH):
        random_ends = rng.integers(0, num_nodes, 2 * LINK_BATCH)
        ends = np.unique(np.concatenate([links[:, start : start + LINK_BATCH].ravel(), random_ends]))
        batches.append(rng.permutation(ends))
    batch_size = min(map(len, batches))
    return np.concatenate([ends[:batch_size] for ends in batches]), batch_size


def loader_works(store: LocalStore, links: IntArray) -> dict[str, Work]:
    """Loaders of nodes and of links; units are seed nodes."""
    common = {
        "num_neighbors": FANOUT, "node_features": [], "edge_features": [], "edge_keys": False, "collate": "numpy",
        "num_threads": 0,
    }  # fmt: skip
    seeds, batch_size = ends_of_links(links, store.book.num_ids(NODE))
    loaders: dict[str, NeighborLoader | LinkNeighborLoader] = {
        "node": NeighborLoader(store, seeds=seeds, batch_size=batch_size, **common)
    }
    for name, how in LINK_MODES.items():
        loaders[name] = LinkNeighborLoader(store, edge_label_index=links, batch_size=LINK_BATCH, **how, **common)
    iterators: dict[str, Any] = {}

    def work(name: str, loader: NeighborLoader | LinkNeighborLoader) -> Work:
        def take(i: int) -> tuple[int, int]:
            if i == 0:
                iterators[name] = iter(loader)
            batch = next(iterators[name])
            return sum(batch.num_sampled_edges[EDGE]), batch.num_sampled_nodes[NODE][0]

        return take

    return {name: work(name, loader) for name, loader in loaders.items()}


def measure(options: Options) -> Figures:
    """Measure the speed of every loader, and the ratios of loaders of links to the loader of nodes."""
    figures: Figures = {}
    dataset = open_dataset(options.modes_path)
    with LocalStore(dataset) as store:
        found = take_turns(loader_works(store, draw_links(dataset, options.num_batches)), options)
    for name, turns in found.items():
        figures[f"{name}_edges_per_s"] = turns.edges_per_s
        figures[f"{name}_seed_nodes_per_s"] = turns.units_per_s
        if name != "node":
            figures[f"{name}_ratio"] = turns.ratio_to(found["node"])
    return figures


def main() -> None:
    """Measure all loaders."""
    options = read_options(__doc__ or "")
    settings = {"scale": options.scale, "links_per_batch": LINK_BATCH, "fanout": list(FANOUT), "threads": 1}
    report("links", settings, measure(options))


if __name__ == "__main__":
    main()
