"""Checks that batches that servers make are bit-equal to those that a loader makes itself.

A loader over a folder of one part is the yardstick, over 1, 2 and 4 servers, 1 and 4 threads, with a cache of rows in
the trainer and without, two epochs each. Every way runs in one of these cases, in turn, and in all in slow runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.load.ablp import ABLPLoader
from hopstream.load.clusters import ClusterLoader
from hopstream.load.hgt import HGTLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader, RandomNodeLoader
from hopstream.load.ppr import PPRLoader
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.negatives import NegativeSampling
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.stream.client import RemoteGraph
from tests.load.graphs import CITES, KNOWS, RATED_BY, RATES, flat
from tests.stream.serving import locations_of, remote_graph, serve_processes, write_timed_parts

NUMS_SERVERS = (1, 2, 4)
SERVED = ((4, 4, 3000), (1, 1, None), (2, 4, None), (4, 1, 0))
"""Numbers of servers and threads, and bytes of the trainer's cache of rows."""
COMMON = {"shuffle": True, "collate": "numpy"}
RNG = np.random.default_rng(3)
PAIRS = np.stack([RNG.integers(0, 50, 40), RNG.integers(0, 118, 40)])
MASK = np.arange(120) % 3 > 0
LABELS = np.arange(-1, 119).reshape(40, 3)


def nodes(source: Any, **options: Any) -> SubgraphLoader:
    options = {"seeds": ("paper", "train"), "batch_size": 13, **options}
    return NeighborLoader(source, options.pop("num_neighbors", [3, 2]), **options)


def links(source: Any, **options: Any) -> SubgraphLoader:
    options = {"edge_label_index": (RATES, PAIRS), "batch_size": 11, **options}
    return LinkNeighborLoader(source, [3, 2], **options)


def anchored(source: Any, **options: Any) -> SubgraphLoader:
    options = {"anchors": ("user", None), "batch_size": 13, **options}
    return ABLPLoader(source, options.pop("num_neighbors", [3, 2]), supervision=RATES, **options)


def ranked(source: Any, **options: Any) -> SubgraphLoader:
    options = {"direction": "in", "max_ppr_nodes": 9, **options}
    of_loader = {name: options.pop(name) for name in ("collate", "num_threads", "shuffle")}
    return PPRLoader(source, ("paper", None), PPRSettings(**options), batch_size=25, **of_loader)


def clustered(source: Any, **options: Any) -> SubgraphLoader:
    return ClusterLoader(source, {"paper": np.arange(120) % 7, "user": np.arange(50) // 5}, batch_size=2, **options)


def layered(source: Any, **options: Any) -> SubgraphLoader:
    return HGTLoader(source, {"paper": [9, 7], "user": [5, 3]}, ("paper", "train"), batch_size=13, **options)


def drawn(source: Any, **options: Any) -> SubgraphLoader:
    del options["shuffle"]
    return RandomNodeLoader(source, [3, 2], ("paper", MASK), num_batches=6, batch_size=13, **options)


WAYS: dict[str, tuple[Callable[..., SubgraphLoader], dict[str, Any]]] = {
    "nodes": (nodes, {}),
    "nodes by key": (nodes, {"seeds": ("paper", [5, 5, 9, 100, 3] * 60)}),
    "nodes by mask": (nodes, {"seeds": ("paper", MASK), "drop_last": True}),
    "nodes, hops per type": (nodes, {"num_neighbors": {RATES: [2, 1], RATED_BY: [-1, 1], "default": [1, 1]}}),
    "nodes, replaced": (nodes, {"replace": True, "rng_seed": 9}),
    "nodes, outwards": (nodes, {"direction": "out"}),
    "nodes, trees": (nodes, {"disjoint": True}),
    "nodes, times": (nodes, {"time_attr": "time", "temporal_strategy": "last"}),
    "nodes, given times": (
        nodes, {"seeds": ("user", np.arange(50)), "time_attr": "time", "input_time": np.arange(50) % 40},
    ),
    "nodes, weights": (nodes, {"weight_attr": "stars"}),
    "nodes, labor": (nodes, {"sampling": "labor", "batch_dependency": 3}),
    "nodes, induced": (nodes, {"subgraph_type": "induced"}),
    "nodes, induced, one type followed": (
        nodes, {"subgraph_type": "induced", "num_neighbors": {RATED_BY: [-1, 1], "default": [0, 0]}},
    ),
    "nodes, both ways": (nodes, {"subgraph_type": "bidirectional"}),
    "nodes, some columns": (nodes, {"node_features": {"paper": ["x"]}, "edge_features": [], "edge_keys": False}),
    "links": (links, {"edge_label_index": RATES, "batch_size": 40}),
    "links, binary": (links, {"neg_sampling": NegativeSampling("binary", 2, dst_weight=np.arange(120.0))}),
    "links, triplets": (links, {"neg_sampling": {"mode": "triplet", "amount": 2}, "exclude_links": True}),
    "links, labels and times": (
        links,
        {
            "edge_label_index": (RATES, (PAIRS[0], PAIRS[1])), "edge_label": np.arange(40) % 3, "time_attr": "time",
            "edge_label_time": np.arange(40),
        },
    ),
    "anchors": (anchored, {"negatives": None, "max_labels": 2}),
    "anchors, labels given": (
        anchored, {"anchors": ("user", np.arange(40)), "labels": {RATES: (LABELS, [[7], []] * 20)}},
    ),
    "anchors, ppr": (anchored, {"num_neighbors": PPRSettings(max_ppr_nodes=9), "max_labels": 2}),
    "ppr": (ranked, {}),
    "ppr, channels": (
        ranked, {"typed_channel_ratios": {(CITES,): 0.5, (RATED_BY, RATES, KNOWS): 0.5}, "eps": 1e-3},
    ),
    "random nodes": (drawn, {}),
    "clusters": (clustered, {}),
    "layers": (layered, {}),
}  # fmt: skip
Epochs = list[list[dict[str, object]]]


def epochs_of(loader: SubgraphLoader) -> Epochs:
    with loader:
        return [[flat(batch) for batch in loader] for _ in range(2)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_timed_parts(tmp_path_factory.mktemp("graph-store"), NUMS_SERVERS)


@pytest.fixture(scope="module")
def locations(folders: dict[int, Path]) -> Iterator[dict[int, str]]:
    with ExitStack() as stack:
        served = {number: stack.enter_context(serve_processes(folders[number])) for number in NUMS_SERVERS}
        yield {number: locations_of(processes) for number, processes in served.items()}


@pytest.fixture(scope="module")
def graphs(locations: dict[int, str]) -> dict[int, RemoteGraph]:
    return {number: remote_graph(where) for number, where in locations.items()}


def _in_turn() -> Iterator[Any]:
    for number, way in enumerate(WAYS):
        for case in SERVED:
            marks = [] if case == SERVED[number % len(SERVED)] else [pytest.mark.slow]
            num_servers, num_threads, cache_bytes = case
            name = f"{way}-{num_servers} servers-{num_threads} threads-cache {cache_bytes}"
            yield pytest.param(way, *case, marks=marks, id=name)


@pytest.fixture(scope="module")
def wanted(folders: dict[int, Path]) -> Callable[[str], Epochs]:
    """Batches of each way over a folder."""

    @cache
    def run(way: str) -> Epochs:
        new_loader, options = WAYS[way]
        return epochs_of(new_loader(folders[1], num_threads=0, **{**COMMON, **options}))

    return run


@pytest.mark.parametrize(("way", "num_servers", "num_threads", "cache_bytes"), [*_in_turn()])
def test_batches_of_servers_are_bit_equal_to_those_of_a_folder(
    locations: dict[int, str], wanted: Callable[[str], Epochs], way: str, num_servers: int, num_threads: int,
    cache_bytes: int | None,
) -> None:  # fmt: skip
    new_loader, options = WAYS[way]
    assert len(wanted(way)[0]) > 1
    assert wanted(way)[0] != wanted(way)[1]
    graph = remote_graph(locations[num_servers], cache_bytes=cache_bytes)
    assert epochs_of(new_loader(graph, num_threads=num_threads, **{**COMMON, **options})) == wanted(way)


@pytest.mark.parametrize(("num_servers", "cache_bytes"), [(2, 0), (4, None)])
@pytest.mark.parametrize("way", [way for way, (new_loader, _) in WAYS.items() if new_loader in (nodes, links, layered)])
def test_chosen_batches_of_servers_are_bit_equal_to_those_of_a_folder(
    folders: dict[int, Path], locations: dict[int, str], way: str, num_servers: int, cache_bytes: int | None
) -> None:
    new_loader, options = WAYS[way]
    graph = remote_graph(locations[num_servers], cache_bytes=cache_bytes)
    options = {"num_threads": 1, **COMMON, **options}
    with new_loader(folders[1], **options) as local, new_loader(graph, **options) as remote:
        for epoch in (0, 3):
            for loader in (local, remote):
                loader.set_epoch(epoch)
            for index in ([0], [5, 2], [39], range(20)):
                assert flat(remote(index)) == flat(local(index))
        local.set_epoch(1), remote.set_epoch(1)
        assert [flat(batch) for batch in remote] == [flat(batch) for batch in local]


def test_batches_of_pyg_are_equal(folders: dict[int, Path], graphs: dict[int, RemoteGraph]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    with nodes(folders[1], collate="pyg") as one, nodes(graphs[2], collate="pyg") as other:
        for wanted, got in zip(one, other, strict=True):
            assert torch.equal(wanted["paper"].x, got["paper"].x)
            for edge_type in wanted.edge_types:
                assert torch.equal(wanted[edge_type].edge_index, got[edge_type].edge_index)


@pytest.mark.parametrize("remainder", ["uneven", "spread"])
def test_ranks_with_different_numbers_of_batches_share_an_epoch(
    folders: dict[int, Path], graphs: dict[int, RemoteGraph], remainder: str
) -> None:
    options = {"batch_size": 9, "shuffle": True, "collate": "numpy", "remainder": remainder, "world_size": 3}
    lengths = set()
    for rank in range(3):
        wanted = epochs_of(nodes(folders[1], rank=rank, **options))
        assert epochs_of(nodes(graphs[2], rank=rank, num_threads=2, **options)) == wanted
        lengths.add(len(wanted[0]))
    assert (len(lengths) > 1) == (remainder == "uneven")


def test_loaders_side_by_side_do_not_disturb_each_other(
    folders: dict[int, Path], graphs: dict[int, RemoteGraph]
) -> None:
    ways = ("nodes", "links, triplets", "anchors", "ppr", "random nodes")
    options = {"shuffle": True, "collate": "numpy", "num_threads": 1}

    def loader(way: str, source: Any) -> SubgraphLoader:
        new_loader, more = WAYS[way]
        return new_loader(source, **options, **more)

    wanted = {way: epochs_of(loader(way, folders[1])) for way in ways}
    got: dict[str, Epochs] = {way: [] for way in ways}
    with ExitStack() as stack:
        loaders = {way: stack.enter_context(loader(way, graphs[2])) for way in ways}
        for _ in range(2):
            running = {way: iter(one) for way, one in loaders.items()}
            for way in ways:
                got[way].append([])
            while running:
                for way, iterator in list(running.items()):
                    batch = next(iterator, None)
                    if batch is None:
                        del running[way]
                    else:
                        got[way][-1].append(flat(batch))
    assert got == wanted
