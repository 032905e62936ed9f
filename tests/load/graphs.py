"""Graphs and stores that the loaders' tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.batch import MiniBatch
from hopstream.load.examples import GraphBatch
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_tensor import encode_graphs


def make_plain_graph(rng: np.random.Generator, num_nodes: int = 80, num_edges: int = 400) -> Graph:
    """Graph without types: ``x``, ``y``, ``edge_attr`` and a split; the last five nodes are isolated."""
    return Graph(
        nodes={
            NODE: NodeTable(
                num_nodes=num_nodes,
                features={
                    "x": rng.standard_normal((num_nodes, 3)).astype(np.float32),
                    "y": rng.integers(0, 4, num_nodes),
                },
            )
        },
        edges={
            EDGE: EdgeTable(
                src_keys=rng.integers(0, num_nodes - 5, num_edges),
                dst_keys=rng.integers(0, num_nodes - 5, num_edges),
                features={"edge_attr": rng.standard_normal((num_edges, 2)).astype(np.float32)},
            )
        },
        splits={NODE: {"train": np.sort(rng.choice(num_nodes, num_nodes // 2, replace=False))}},
    ).check()


def local_store(graph: Graph, folder: Path, num_parts: int = 1, **options: object) -> LocalStore:
    """Write a graph in parts, randomly assigned, and open them all."""
    write_parts(graph, folder, num_parts=num_parts, method="random", **options)
    return LocalStore(open_dataset(folder))


class WatchedStore(Store):
    """A store that notifies a test and then acts as another store."""

    def __init__(self, store: Store, on_fetch: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.parts = store.parts
        self.take_facts(store)
        self.on_fetch = on_fetch
        self.on_close: Callable[[], None] = lambda: None
        self.num_fetches = 0
        self.is_closed = False
        self._lock = threading.Lock()

    def submit_sample(self, requests):
        return self.store.submit_sample(requests)

    def submit_fetch(self, requests: Sequence[FetchRequest]):
        with self._lock:
            self.num_fetches += 1
        self.on_fetch()
        return self.store.submit_fetch(requests)

    def lookup(self, node_type, keys):
        return self.store.lookup(node_type, keys)

    def split(self, node_type, name):
        return self.store.split(node_type, name)

    def degrees(self, edge_type, direction, ids):
        return self.store.degrees(edge_type, direction, ids)

    def find_edges(self, edge_type, direction, ids, neighbor_ids):
        return self.store.find_edges(edge_type, direction, ids, neighbor_ids)

    def links(self, edge_type, edge_keys):
        return self.store.links(edge_type, edge_keys)

    def edge_split(self, edge_type, name):
        return self.store.edge_split(edge_type, name)

    def close(self) -> None:
        self.is_closed = True
        self.on_close()
        self.store.close()


def flat(batch: MiniBatch | GraphBatch) -> dict[str, object]:
    """Everything in a batch as bytes and lists, to compare two batches bit by bit."""
    if isinstance(batch, GraphBatch):
        encoded = encode_graphs(batch.graphs)
        return {"index": batch.index, "epoch": batch.epoch, "graphs": [encoded[i] for i in range(len(encoded))]}
    found: dict[str, object] = {"seed_type": batch.seed_type, "index": batch.index, "epoch": batch.epoch}
    found["input_ids"] = batch.input_ids.tolist()
    for name in ("node_keys", "edge_index", "edge_keys", "num_sampled_nodes", "num_sampled_edges", "trees"):
        for owner, value in (getattr(batch, name) or {}).items():
            found[f"{name} {owner}"] = value if isinstance(value, list) else value.tolist()
    for owner, attributes in batch.attributes.items():
        for name, value in attributes.items():
            if isinstance(value, np.ndarray):
                value = (value.dtype.str, value.shape, value.tobytes())
            found[f"attribute {owner} {name}"] = value
    for features in (batch.node_features, batch.edge_features):
        for owner, columns in features.items():
            for name, column in columns.items():
                values = getattr(column, "values", column)
                offsets = getattr(column, "offsets", np.empty(0, np.int64))
                found[f"{owner} {name}"] = (values.dtype.str, values.shape, values.tobytes(), offsets.tolist())
    return found


RATES, RATED_BY = ("user", "rates", "paper"), ("paper", "rev_rates", "user")
KNOWS, CITES = ("user", "knows", "user"), ("paper", "cites", "paper")


def make_timed_graph(rng: np.random.Generator, num_papers: int = 60, num_users: int = 25) -> Graph:
    """Graph with every kind of time and weight: ``paper`` has times, ``user`` none; many are equal.

    ``rates`` has times of its own and ``stars``, some of them 0; ``rev_rates`` holds the reverses of most of them, with
    times of its own beside those of the papers; ``cites`` has the papers' times; ``knows`` has none.
    """
    num_rates, num_cites, num_knows = 6 * num_users, 5 * num_papers, 3 * num_users
    users, papers = rng.integers(0, num_users, num_rates), rng.integers(0, num_papers - 2, num_rates)
    times, is_reversed = rng.integers(-10, 40, num_rates), rng.random(num_rates) < 0.8
    return Graph(
        nodes={
            "paper": NodeTable(
                num_nodes=num_papers,
                features={
                    "time": rng.integers(0, 40, num_papers).astype(np.int16),
                    # Wide enough that a cache of rows keeps them.
                    "x": np.tile(rng.standard_normal((num_papers, 2)).astype(np.float32), 4),
                },
            ),
            "user": NodeTable(num_nodes=num_users),
        },
        edges={
            RATES: EdgeTable(
                src_keys=users,
                dst_keys=papers,
                features={"time": times, "stars": rng.integers(0, 5, num_rates).astype(np.float32)},
            ),
            RATED_BY: EdgeTable(
                src_keys=papers[is_reversed], dst_keys=users[is_reversed], features={"time": times[is_reversed]}
            ),
            CITES: EdgeTable(
                src_keys=rng.integers(0, num_papers, num_cites), dst_keys=rng.integers(0, num_papers, num_cites)
            ),
            KNOWS: EdgeTable(
                src_keys=rng.integers(0, num_users, num_knows), dst_keys=rng.integers(0, num_users, num_knows)
            ),
        },
        splits={"paper": {"train": np.arange(0, num_papers, 2)}},
    ).check()
