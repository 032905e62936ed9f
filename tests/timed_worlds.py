"""Small graphs and times with which a neighbour from the future could turn up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EdgeType
from hopstream.store.local import LocalStore

BUYS, BOUGHT, LIKE = ("user", "buys", "item"), ("item", "bought", "user"), ("item", "like", "item")
MAX_TIME = 6


@dataclass(frozen=True)
class World:
    """Graph with times of edges (``buys``), of nodes (``item``), or both (``buys``, ``like`` to items)."""

    graph: Graph
    num_hops: int
    seeds: dict[str, list[int]]
    times: list[int]
    rng_seed: int

    @property
    def has_weights(self) -> bool:
        """Whether the edge type with weights has edges."""
        return self.graph.edges[BUYS].num_edges > 0

    def store(self, folder: Path, num_parts: int) -> LocalStore:
        """Write the graph with times, weights and the keys of neighbours, and open all parts."""
        write_parts(
            self.graph,
            folder,
            num_parts=num_parts,
            method="hash",
            direction="both",
            time_attr="time",
            weight_attr="weight" if self.has_weights else None,
            neighbor_keys=True,
        )
        return LocalStore(open_dataset(folder))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Small dense graphs of few times, so that many times equal a seed's, or are just before or after."""
    num_nodes = {t: draw(st.integers(1, 7)) for t in ("user", "item")}
    has_time = {owner: draw(st.booleans()) for owner in ("item", LIKE, BOUGHT)}

    def times(n: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, MAX_TIME), min_size=n, max_size=n)), np.int64)

    edges = {}
    for edge_type in (BUYS, BOUGHT, LIKE):
        num_edges = draw(st.integers(0, 20))
        features = {"time": times(num_edges)} if edge_type == BUYS or has_time[edge_type] else {}
        if edge_type == BUYS:
            weights = draw(st.lists(st.sampled_from([0.0, 0.25, 3.0]), min_size=num_edges, max_size=num_edges))
            features["weight"] = np.array([1.0, *weights[1:]][:num_edges])
        ends = [
            np.array(draw(st.lists(st.integers(0, num_nodes[t] - 1), min_size=num_edges, max_size=num_edges)), np.int64)
            for t in (edge_type[0], edge_type[2])
        ]
        edges[edge_type] = EdgeTable(src_keys=ends[0], dst_keys=ends[1], features=features)
    nodes = {
        t: NodeTable(num_nodes=n, features={"time": times(n)} if has_time.get(t) else {}) for t, n in num_nodes.items()
    }
    seeds = {t: draw(st.lists(st.integers(0, n - 1), max_size=4)) for t, n in num_nodes.items()}
    return World(
        graph=Graph(nodes=nodes, edges=edges),
        num_hops=draw(st.integers(1, 4)),
        seeds=seeds,
        times=[draw(st.integers(0, MAX_TIME)) for of in seeds.values() for _ in of],
        rng_seed=draw(st.integers(0, (1 << 64) - 1)),
    )


@dataclass(frozen=True)
class Sight:
    """Nodes and edges that the trees of a batch see.

    Attributes:
        nodes: Node type to the keys and trees of nodes that are no seeds.
        edges: Edge type to the keys and trees of edges.
    """

    nodes: dict[str, tuple[np.ndarray, np.ndarray]]
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]]

    def assert_nothing_later(self, graph: Graph, latest: np.ndarray) -> None:
        """Check that no node or edge is later than the latest time that its tree may see."""
        for tables, shown in ((graph.nodes, self.nodes), (graph.edges, self.edges)):
            for owner, (keys, trees) in shown.items():
                if "time" in tables[owner].features:
                    assert np.all(tables[owner].features["time"][keys] <= latest[trees]), owner
