"""Graph, and servers of it, that the tests of a rank's inputs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.store.cluster import Cluster, ServerEntry, open_cluster
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from tests.load.link_graphs import make_rating_graph

SETTINGS = StoreSettings(prefer_local=False, timeout_s=10.0)
NUM_USERS, NUM_MOVIES = 83, 60


def make_graph() -> Graph:
    """The graph of ratings, with users for training and for testing."""
    graph = make_rating_graph(np.random.default_rng(5), NUM_USERS, NUM_MOVIES)
    splits = {"user": {"train": np.arange(0, NUM_USERS, 3), "test": np.array([1, 80]), "none": np.empty(0, np.int64)}}
    return replace(graph, splits=splits).check()


def write_graph(folder: Path) -> Path:
    """The graph in three parts."""
    write_parts(make_graph(), folder, num_parts=3, method="random", direction="both", weight_attr="stars")
    return folder


class Rack:
    """Servers of one dataset in this process."""

    def __init__(self, dataset_id: str) -> None:
        self.dataset_id = dataset_id
        self.entries: list[ServerEntry] = []
        self.servers: list[StoreServer] = []

    @property
    def cluster(self) -> Cluster:
        return Cluster(dataset_id=self.dataset_id, servers=tuple(self.entries))

    @property
    def locations(self) -> str:
        return ",".join(entry.location for entry in self.entries)


@contextmanager
def serve_rack(folder: Path, parts_of_servers: Sequence[Sequence[int]]) -> Iterator[Rack]:
    """Serve parts from servers of this process, each with a sampling service over all of them."""
    dataset = open_dataset(folder)
    rack = Rack(dataset.manifest.dataset_id)

    def open_graph() -> Store:
        return open_cluster(rack.cluster, SETTINGS)

    with ExitStack() as stack:
        services = []
        for parts in parts_of_servers:
            services.append(SamplingService(open_graph, SamplingLimits(threads=1)))
            store = stack.enter_context(LocalStore(dataset, list(parts)))
            server = stack.enter_context(StoreServer(store, operations=services[-1].operations))
            rack.servers.append(server)
            rack.entries.append(ServerEntry(location=server.location, parts=tuple(parts)))
        try:
            yield rack
        finally:
            for service in services:
                service.close()
