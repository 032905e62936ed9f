"""Checks that batches from partitions in several memories are bit-equal to those of one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopstream import LinkNeighborLoader, NeighborLoader, write_parts
from hopstream.compat.pyg import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LocalFeatureStore,
    LocalGraphStore,
    write_partitions,
)
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE
from tests.compat.pyg.ranks import all_well, context, in_turns, on_ranks, owners_of, partition
from tests.ports import free_port
from tests.timed_graphs import make_timed_graph


def plain_graph(rng: np.random.Generator, num_nodes: int = 40, num_edges: int = 200) -> Graph:
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features={
            "x": rng.random((num_nodes, 3), np.float32), "y": rng.integers(0, 4, num_nodes),
            "time": rng.integers(0, 50, num_nodes),
        })},
        edges={EDGE: EdgeTable(
            src_keys=rng.integers(0, num_nodes, num_edges), dst_keys=rng.integers(0, num_nodes, num_edges),
            features={"edge_attr": rng.random((num_edges, 2)), "edge_time": rng.integers(0, 50, num_edges)},
        )},
    ).check()  # fmt: skip


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    rng = np.random.default_rng(7)
    return {"plain": plain_graph(rng), "typed": make_timed_graph(rng)}


@pytest.fixture(scope="module")
def folders(graphs: dict[str, Graph], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a graph as one part, per graph and time_attr."""
    root, written = tmp_path_factory.mktemp("whole"), {}

    def folder(name: str, time_attr: str | None) -> Path:
        if (name, time_attr) not in written:
            written[name, time_attr] = root / f"{name}-{time_attr}"
            write_parts(graphs[name], written[name, time_attr], num_parts=1, time_attr=time_attr)
        return written[name, time_attr]

    return folder


def same(one: Any, other: Any) -> None:
    """Two batches are equal, tensor by tensor."""
    _same_value(one.to_dict(), other.to_dict(), "batch")


def _same_value(one: Any, other: Any, where: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            _same_value(value, other[key], (where, key))
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    else:
        assert one == other, where


NODE_CASES = {
    "all neighbours": ("plain", {"num_neighbors": [-1, -1]}),
    "some": ("plain", {"num_neighbors": [3, 2], "replace": True}),
    "disjoint": ("plain", {"num_neighbors": [-1, -1], "disjoint": True}),
    "node times": ("plain", {"num_neighbors": [-1, -1], "time_attr": "time", "temporal_strategy": "last"}),
    "edge times": ("plain", {"num_neighbors": [2, -1], "time_attr": "edge_time", "input_time": np.arange(12) + 20}),
    "typed": ("typed", {"num_neighbors": [-1, -1]}),
    "typed, times": ("typed", {"num_neighbors": [-1, 2], "time_attr": "time", "input_time": np.arange(12) + 5}),
    "induced": ("plain", {"num_neighbors": [3, 3], "subgraph_type": "induced"}),
}


@pytest.mark.parametrize(("case", "num_parts"), in_turns(NODE_CASES))
def test_batches_of_nodes_are_those_of_one_machine(case: str, num_parts: int, graphs: Any, folders: Any) -> None:
    name, options = NODE_CASES[case]
    graph, port, time_attr = graphs[name], free_port(), options.get("time_attr")
    node_type = next(iter(graph.nodes))
    owners, num_nodes = owners_of(graph, num_parts), graph.nodes[node_type].num_nodes
    seeds = [np.random.default_rng(rank).permutation(num_nodes)[:12] for rank in range(num_parts)]

    def work(rank: int) -> list[Any]:
        loader = DistNeighborLoader(
            partition(graph, owners, rank, num_parts, time_attr), master_addr="localhost", master_port=port,
            current_ctx=context(rank, num_parts), input_nodes=(node_type, torch.from_numpy(seeds[rank])), batch_size=5,
            rpc_timeout=60, rng_seed=11, **options,
        )  # fmt: skip
        try:
            return list(loader)
        finally:
            loader.close()

    found = all_well(on_ranks(num_parts, work))
    for rank, batches in enumerate(found):
        with NeighborLoader(
            folders(name, time_attr), seeds=(node_type, seeds[rank]), batch_size=5, rng_seed=11, **options
        ) as whole:
            for one, other in zip(batches, whole, strict=True):
                same(one, other)


LINK_CASES = {
    "negatives": ("plain", {"num_neighbors": [-1, -1], "neg_sampling_ratio": 1.0}),
    "triplets, disjoint": ("plain", {"num_neighbors": [2, 2], "disjoint": True, "neg_sampling": "triplet"}),
    "times": ("plain", {"num_neighbors": [-1, -1], "time_attr": "time", "edge_label_time": np.arange(10) + 30}),
    "typed": ("typed", {"num_neighbors": [-1, -1], "neg_sampling_ratio": 2.0}),
    "typed, times": ("typed", {"num_neighbors": [-1, -1], "time_attr": "time", "edge_label_time": np.arange(10) + 30}),
}


@pytest.mark.parametrize(("case", "num_parts"), in_turns(LINK_CASES))
def test_batches_of_links_are_those_of_one_machine(case: str, num_parts: int, graphs: Any, folders: Any) -> None:
    name, options = LINK_CASES[case]
    graph, port, time_attr = graphs[name], free_port(), options.get("time_attr")
    edge_type = next(iter(graph.edges))
    table, owners = graph.edges[edge_type], owners_of(graph, num_parts)
    links = np.stack([table.src_keys, table.dst_keys])[:, :10]

    def work(rank: int) -> list[Any]:
        loader = DistLinkNeighborLoader(
            partition(graph, owners, rank, num_parts, time_attr), master_addr="127.0.0.1", master_port=str(port),
            current_ctx=context(rank, num_parts), edge_label_index=(edge_type, torch.from_numpy(links)), batch_size=4,
            rpc_timeout=60, **options,
        )  # fmt: skip
        try:
            return list(loader)
        finally:
            loader.close()

    found = all_well(on_ranks(num_parts, work))
    with LinkNeighborLoader(
        folders(name, time_attr), edge_label_index=(edge_type, links), batch_size=4, **options
    ) as whole:
        truth = list(whole)
    for batches in found:
        for one, other in zip(batches, truth, strict=True):
            same(one, other)


@pytest.mark.parametrize("name", ["plain", "typed"])
def test_partition_files_and_their_stores_give_the_same(name: str, graphs: Any, folders: Any, tmp_path: Path) -> None:
    graph, port = graphs[name], free_port()
    node_type = next(iter(graph.nodes))
    write_partitions(graph, tmp_path / "files", num_parts=2, method="hash")

    def work(rank: int) -> list[Any]:
        data = (
            LocalFeatureStore.from_partition(tmp_path / "files", rank),
            LocalGraphStore.from_partition(tmp_path / "files", rank),
        )
        loader = DistNeighborLoader(
            data, [3, 2], "127.0.0.1", port, context(rank, 2), input_nodes=(node_type, torch.arange(12)), batch_size=5,
            rpc_timeout=60,
        )  # fmt: skip
        batches = list(loader)
        loader.close()
        return batches

    with NeighborLoader(folders(name, None), [3, 2], (node_type, np.arange(12)), batch_size=5) as whole:
        truth = list(whole)
    for batches in all_well(on_ranks(2, work)):
        for one, other in zip(batches, truth, strict=True):
            same(one, other)


def test_labels_among_the_features_of_edges_are_left_out_of_batches_of_links() -> None:
    graph = plain_graph(np.random.default_rng(4))
    ((edge_type, table),) = graph.edges.items()
    features = {"edge_attr": np.ones((table.num_edges, 2), np.float32), "edge_label": np.arange(table.num_edges)}
    graph = replace(graph, edges={edge_type: replace(table, features=features)}).check()
    loader = DistLinkNeighborLoader(
        partition(graph, owners_of(graph, 1), 0, 1), [2], "127.0.0.1", free_port(), context(0, 1), batch_size=10,
        edge_label=torch.ones(table.num_edges),
    )  # fmt: skip
    batch = next(iter(loader))
    assert batch.edge_label.tolist() == [1.0] * 10
    assert batch.edge_attr.shape == (batch.edge_index.shape[1], 2)
    loader.close()
