"""Checks that PyG's loaders give Hopstream's batches, over PyG's data, a folder and two servers."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling

import hopstream
from hopstream.compat.pyg import DatasetSampler, open_stores
from tests.compat.pyg.ranks import in_turns
from tests.compat.pyg.worlds import World, assert_same_batch
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES

FAR = hopstream.StoreSettings(prefer_local=False)
PLACES = ["memory", "folder", "servers"]
SOME = np.array([3, 50, 7, 7, 11, 0, 64, 21, 33, 40, 3])
"""Nodes, some of them twice."""
NODES: dict[str, tuple[str, object, dict]] = {
    "plain": ("plain", SOME, {"num_neighbors": [3, 2]}),
    "all neighbours": ("plain", SOME, {"num_neighbors": [-1, -1]}),
    "outwards, in trees": ("plain", SOME, {"num_neighbors": [4, 2], "direction": "out", "disjoint": True}),
    "replacing": ("plain", SOME, {"num_neighbors": [4, 2], "replace": True}),
    "induced": ("plain", SOME, {"num_neighbors": [2], "subgraph_type": "induced"}),
    "bidirectional": ("plain", SOME, {"num_neighbors": [2, 2], "subgraph_type": "bidirectional"}),
    "labor": ("plain", SOME, {"num_neighbors": [2, 2], "sampling": "labor"}),
    "types": ("ratings", ("movie", SOME % 60), {"num_neighbors": [3, 2]}),
    "types, counts per type, in trees": (
        "ratings", ("user", SOME % 40),
        {"num_neighbors": {RATES: [2, 2], RATED: [3, 1], LIKES: [0, 1], FOLLOWS: [2, 0]}, "disjoint": True},
    ),
    "types, induced, one type followed": (
        "ratings", ("movie", SOME % 60),
        {"num_neighbors": {RATES: [2, 2], "default": [0, 0]}, "subgraph_type": "induced"},
    ),
    "in their own time": ("ratings", ("movie", SOME % 60), {"num_neighbors": [3, 2], "time_attr": "time"}),
    "latest at given times": (
        "ratings", ("user", SOME % 40),
        {"num_neighbors": [3, 2], "time_attr": "time", "temporal_strategy": "last", "input_time": 50 + 70 * SOME},
    ),
}  # fmt: skip
PAIRS = np.stack([SOME, SOME[::-1] + 1])
RATINGS = (RATES, np.stack([SOME % 40, SOME[::-1] % 60]))
TIMES = 100 + 10 * SOME
LINKS: dict[str, tuple[str, object, dict, dict]] = {
    "pairs": ("plain", PAIRS, {"num_neighbors": [2, 2]}, {}),
    "labels, binary": (
        "plain", PAIRS, {"num_neighbors": [2, 2]},
        {"neg_sampling": NegativeSampling("binary", 1.5), "edge_label": np.arange(11) % 3},
    ),
    "triplets by weight in trees": (
        "plain", PAIRS, {"num_neighbors": [2], "disjoint": True},
        {"neg_sampling": NegativeSampling("triplet", 2, dst_weight=torch.arange(80.0))},
    ),
    "types, binary, left out": (
        "ratings", RATINGS, {"num_neighbors": [2, 2], "exclude_links": True},
        {"neg_sampling": NegativeSampling("binary", 1)},
    ),
    "types, triplets": (
        "ratings", RATINGS, {"num_neighbors": [2, 2]},
        {"neg_sampling": NegativeSampling("triplet", 3)},
    ),
    "one type of nodes, triplets": (
        "ratings", (FOLLOWS, RATINGS[1] % 40), {"num_neighbors": [2, 2]},
        {"neg_sampling": NegativeSampling("triplet", 1)},
    ),
    "in their time, binary": (
        "ratings", RATINGS, {"num_neighbors": [2, 2], "time_attr": "time"},
        {"neg_sampling": NegativeSampling("binary", 1.5), "edge_label_time": TIMES},
    ),
    "in their time, triplets": (
        "ratings", RATINGS, {"num_neighbors": [2, 2], "time_attr": "time"},
        {"neg_sampling": NegativeSampling("triplet", 2), "edge_label_time": TIMES},
    ),
}  # fmt: skip


def pyg_side(world: World, place: str, stack: ExitStack, **options) -> tuple[object, dict, DatasetSampler]:
    """The data that PyG's loader gets, how edge features get into its batches, and the sampler."""
    if place == "memory":
        return world.data, {}, stack.enter_context(DatasetSampler(world.folder, rng_seed=9, **options))
    data = open_stores(world.folder) if place == "folder" else open_stores(world.addresses, FAR)
    stack.callback(data[0].close)
    return data, {"transform": data[0].add_edge_features}, DatasetSampler(data, rng_seed=9, **options)


@pytest.mark.parametrize(("case", "place"), in_turns(NODES, PLACES))
def test_batches_of_nodes(found_worlds, case, place):
    name, nodes, options = NODES[case]
    world, options = found_worlds[name], dict(options)
    times = options.pop("input_time", None)
    wanted = hopstream.NeighborLoader(
        world.folder, seeds=nodes, input_time=times, batch_size=4, rng_seed=9, num_threads=0, **options
    )
    with ExitStack() as stack:
        stack.enter_context(wanted)
        data, transform, sampler = pyg_side(world, place, stack, **options)
        tensors = tuple(map(_tensor, nodes)) if isinstance(nodes, tuple) else _tensor(nodes)
        loader = NodeLoader(
            data, sampler, tensors, None if times is None else _tensor(times), batch_size=4, **transform
        )
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for found, ours in zip(loader, wanted, strict=True):
                assert_same_batch(found, ours)


@pytest.mark.parametrize(("case", "place"), in_turns(LINKS, PLACES))
def test_batches_of_links(found_worlds, case, place):
    name, links, options, about = LINKS[case]
    world = found_worlds[name]
    wanted = hopstream.LinkNeighborLoader(
        world.folder, edge_label_index=links, batch_size=4, rng_seed=9, num_threads=0, **options, **about
    )
    with ExitStack() as stack:
        stack.enter_context(wanted)
        data, transform, sampler = pyg_side(world, place, stack, **options)
        pairs = tuple(map(_tensor, links)) if isinstance(links, tuple) else _tensor(links)
        if isinstance(data, tuple) and not isinstance(pairs, tuple):
            pairs = (None, pairs)
        about = {name: _tensor(value) for name, value in about.items()}
        loader = LinkLoader(data, sampler, pairs, batch_size=4, **about, **transform)
        for found, ours in zip(loader, wanted, strict=True):
            assert_same_batch(found, ours, is_of_links=True)


def test_loaders_of_neighbours_take_the_sampler(found_worlds):
    """The sampler is passed as ``neighbor_sampler=``; its own options decide over sampling."""
    world = found_worlds["plain"]
    with open_stores(world.folder)[0] as features:
        data = features, open_stores(world.folder)[1]
        sampler = DatasetSampler(data, [3, 2], rng_seed=9)
        loader = NeighborLoader(data, [3, 2], _tensor(SOME), neighbor_sampler=sampler, batch_size=4)
        with hopstream.NeighborLoader(world.folder, [3, 2], SOME, 4, rng_seed=9, edge_features=()) as wanted:
            for found, ours in zip(loader, wanted, strict=True):
                assert_same_batch(found, ours)
        sampler.set_epoch(0)
        links = LinkNeighborLoader(data, [3, 2], (None, _tensor(PAIRS)), neighbor_sampler=sampler, batch_size=4)
        with hopstream.LinkNeighborLoader(world.folder, [3, 2], PAIRS, 4, rng_seed=9, edge_features=()) as wanted:
            for found, ours in zip(links, wanted, strict=True):
                assert_same_batch(found, ours, is_of_links=True)


def _tensor(value: object) -> object:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
