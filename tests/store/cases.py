"""Graphs that stores are tested with, and the plain truth about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE, Direction, EdgeType
from hopstream.store.contract import KEY, FetchRequest, Store
from hopstream.store.local import LocalStore
from tests.conftest import make_typed_graph

BUYS: EdgeType = ("user", "buys", "item")
LIKES: EdgeType = ("user", "likes", "item")
KNOWS: EdgeType = ("user", "knows", "user")


@dataclass(frozen=True)
class Case:
    """A graph and the dataset that was written from it."""

    graph: Graph
    root: Path
    num_parts: int

    @cached_property
    def dataset(self) -> Dataset:
        return open_dataset(self.root)

    def local(self, parts: Sequence[int] | None = None) -> LocalStore:
        """A new store, for the test to close."""
        return LocalStore(self.dataset, parts)

    def shared(self, parts: Sequence[int] | None = None) -> LocalStore:
        """A store to be served, shared by all tests: opening one takes longer than most tests."""
        chosen = tuple(range(self.num_parts) if parts is None else parts)
        if chosen not in self._shared:
            self._shared[chosen] = self.local(chosen)
        return self._shared[chosen]

    @cached_property
    def _shared(self) -> dict[tuple[int, ...], LocalStore]:
        return {}

    def adjacency(self, edge_type: EdgeType, direction: Direction) -> list[list[tuple[int, int]]]:
        """Per key of the expanded type: (key of the other end, edge key) in original order."""
        table = self.graph.edges[edge_type]
        ends, others = table.dst_keys, table.src_keys
        if direction == "out":
            ends, others = others, ends
        node_type = edge_type[2] if direction == "in" else edge_type[0]
        rows: list[list[tuple[int, int]]] = [[] for _ in range(self.graph.nodes[node_type].num_nodes)]
        for edge_key, (end, other) in enumerate(zip(ends.tolist(), others.tolist(), strict=True)):
            rows[end].append((other, edge_key))
        return rows


def make_case(kind: str, num_parts: int, folder: Path) -> Case:
    """Write the graph of a kind, always the same one, in so many parts."""
    root = folder / "parts"
    if kind == "timed":
        graph = make_timed_graph()
        write_parts(
            graph, root, num_parts=num_parts, method="hash", direction="both", time_attr="stamp", weight_attr="price",
            neighbor_keys=True, links=[LIKES],
        )  # fmt: skip
        return Case(graph, root, num_parts)
    graph = make_typed_graph(np.random.default_rng(11)) if kind == "typed" else make_plain_graph()
    write_parts(graph, root, num_parts=num_parts, method="hash", direction="both")
    return Case(graph, root, num_parts)


def make_plain_graph(num_nodes: int = 97, num_edges: int = 600) -> Graph:
    rng = np.random.default_rng(7)
    return Graph(
        nodes={
            NODE: NodeTable(
                num_nodes=num_nodes,
                features={
                    "x": rng.standard_normal((num_nodes, 7)).astype(np.float32),
                    "flag": rng.random(num_nodes) < 0.5,
                    "name": RaggedArray.from_strings([f"n{i}" for i in range(num_nodes)]),
                    "none": np.empty((num_nodes, 0), np.float32),
                },
            )
        },
        edges={
            EDGE: EdgeTable(
                src_keys=rng.integers(0, num_nodes, num_edges),
                dst_keys=rng.integers(0, num_nodes // 2, num_edges),
                features={"w": rng.random(num_edges)},
            )
        },
        splits={NODE: {"train": np.arange(0, num_nodes, 3, dtype=np.int64)}},
    ).check()


def make_timed_graph(num_users: int = 30, num_items: int = 20, num_hub_edges: int = 700) -> Graph:
    """Users who buy, like and know each other.

    ``buys`` has a ``stamp`` and a ``price``, 0 for some; items have a ``stamp``, so ``likes`` has times where they lead
    to items; ``knows`` has neither. Item 0 is bought very often, and likes are shared by parallel edges. ``buys``
    has splits.
    """
    rng = np.random.default_rng(23)
    num_buys, num_likes, num_knows = num_hub_edges + 200, 120, 90
    items = np.where(np.arange(num_buys) % 9 < 7, 0, rng.integers(0, num_items - 2, num_buys))
    prices = rng.random(num_buys).astype(np.float32) * (rng.random(num_buys) < 0.8)
    return Graph(
        nodes={
            "user": NodeTable(num_nodes=num_users),
            "item": NodeTable(num_nodes=num_items, features={"stamp": rng.integers(0, 40, num_items).astype(np.int32)}),
        },
        edges={
            BUYS: EdgeTable(
                src_keys=rng.integers(0, num_users - 1, num_buys),
                dst_keys=items,
                features={"stamp": rng.integers(-5, 50, num_buys), "price": prices},
            ),
            LIKES: EdgeTable(
                src_keys=rng.integers(0, num_users, num_likes), dst_keys=rng.integers(0, num_items // 2, num_likes)
            ),
            KNOWS: EdgeTable(
                src_keys=rng.integers(0, num_users // 2, num_knows), dst_keys=rng.integers(0, num_users, num_knows)
            ),
        },
        edge_splits={BUYS: {"train": np.arange(0, num_buys, 2), "test": np.arange(1, num_buys, 7)}},
    ).check()


def keys_of(store: Store, node_type: str, ids: np.ndarray) -> list[int]:
    """The keys of some nodes."""
    request = FetchRequest(entity=node_type, names=(KEY,), ids=np.asarray(ids, np.int64))
    return np.asarray(store.fetch([request])[0][KEY]).tolist()
