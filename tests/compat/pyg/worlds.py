"""Graphs that tests of PyG's loaders share, and a check that two batches are equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests.load.graphs import make_plain_graph
from tests.load.link_graphs import RATES, make_rating_graph
from tests.processes import ServerPool


@dataclass(frozen=True)
class World:
    """A graph in two parts: in a folder, and served by two processes."""

    graph: Graph
    folder: str
    addresses: str

    @property
    def data(self) -> Data | HeteroData:
        """The graph as PyG's own record."""
        return as_data(self.graph)


@contextmanager
def worlds(root: Path, pool: ServerPool) -> Iterator[dict[str, World]]:
    """A graph without types, and one with types and times."""
    graphs = {
        "plain": (
            make_plain_graph(np.random.default_rng(6)),
            {"links": [EDGE], "neighbor_keys": True, "direction": "both"},
        ),
        "ratings": (make_rating_graph(np.random.default_rng(4)), {"time_attr": "time", "links": [RATES]}),
    }
    for name, (graph, options) in graphs.items():
        write_parts(graph, root / name, num_parts=2, method="random", rng_seed=3, **options)
    with pool.serve([root / name for name in graphs], [[0], [1]]) as locations:
        yield {
            name: World(graph, str(root / name), ",".join(of))
            for (name, (graph, _)), of in zip(graphs.items(), locations, strict=True)
        }


def as_data(graph: Graph) -> Data | HeteroData:
    """A graph as PyG's own record."""
    is_plain = list(graph.nodes) == [NODE]
    data = Data() if is_plain else HeteroData()
    for node_type, nodes in graph.nodes.items():
        store = data if is_plain else data[node_type]
        store.num_nodes = nodes.num_nodes
        for name, column in nodes.features.items():
            store[name] = torch.from_numpy(column)
    for edge_type, edges in graph.edges.items():
        store = data if is_plain else data[edge_type]
        store.edge_index = torch.from_numpy(np.stack([edges.src_keys, edges.dst_keys]))
        for name, column in edges.features.items():
            store[name] = torch.from_numpy(column)
    return data


def assert_same_batch(found: Data | HeteroData, ours: Data | HeteroData, is_of_links: bool = False) -> None:
    """All that our loader's batch holds is in the other, in the same dtype, and nothing else.

    PyG's loaders say how many nodes there are beside their keys, and of links do not say how many.
    """
    assert type(found) is type(ours)
    left_out = {"num_nodes", "batch_size"} if is_of_links else {"num_nodes"}
    flat = [
        {
            (owner, name): value
            for owner, store in (
                batch.to_dict().items() if isinstance(batch, HeteroData) else [(None, batch.to_dict())]
            )
            for name, value in store.items()
            if name not in left_out
        }
        for batch in (found, ours)
    ]
    assert flat[0].keys() == flat[1].keys()
    for name, value in flat[1].items():
        if isinstance(value, torch.Tensor):
            assert flat[0][name].dtype == value.dtype, name
            assert torch.equal(flat[0][name], value), name
        else:
            assert flat[0][name] == value, name
