"""Helpers to run several ranks in threads, each with a partition in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore

from hopstream.compat.pyg import DistContext
from hopstream.graph.graph import Graph
from hopstream.schema import EDGE, NODE


def in_turns(cases: Iterable[str], ways: Sequence[Any] = (2, 3)) -> list[Any]:
    """Each case in one of the ways, which take turns."""
    return list(zip(cases, itertools.cycle(ways), strict=False))


def owners_of(graph: Graph, num_parts: int, rng_seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rng_seed)
    return {t: rng.integers(0, num_parts, table.num_nodes).astype(np.int32) for t, table in graph.nodes.items()}


def partition(
    graph: Graph, owners: Mapping[str, np.ndarray], part: int, num_parts: int, time_attr: str | None = None
) -> tuple[LocalFeatureStore, LocalGraphStore]:
    """PyG's stores of one partition: features of own nodes, edges to own nodes, times of all nodes."""
    is_hetero = not graph.schema.is_homogeneous
    features, store = LocalFeatureStore(), LocalGraphStore()
    books = {t: torch.from_numpy(of.astype(np.int64)) for t, of in owners.items()}
    edge_books = {}
    for node_type, table in graph.nodes.items():
        group = node_type if is_hetero else None
        keys = np.flatnonzero(owners[node_type] == part)[::-1].copy()
        features.put_global_id(torch.from_numpy(keys), group_name=group)
        for name, column in table.features.items():
            rows = column if name in ("time", time_attr) else column[keys]
            features.put_tensor(torch.from_numpy(rows), group_name=group, attr_name=name)
    for edge_type, table in graph.edges.items():
        owner = owners[edge_type[2]][table.dst_keys]
        edge_books[edge_type] = torch.from_numpy(owner.astype(np.int64))
        keys = np.flatnonzero(owner == part)
        keys = keys[np.argsort(table.dst_keys[keys], kind="stable")]
        group = edge_type if is_hetero else (None, None)
        attr = {
            "edge_type": edge_type if is_hetero else None, "layout": "coo", "is_sorted": True,
            "size": (graph.nodes[edge_type[0]].num_nodes, graph.nodes[edge_type[2]].num_nodes),
        }  # fmt: skip
        ends = np.stack([table.src_keys[keys], table.dst_keys[keys]])
        store.put_edge_index(torch.from_numpy(ends), **attr)
        store.put_edge_id(torch.from_numpy(keys), **attr)
        if len(keys):
            features.put_global_id(torch.from_numpy(keys), group_name=group)
        for name, column in table.features.items():
            features.put_tensor(torch.from_numpy(column[keys]), group_name=group, attr_name=name)
    store.num_partitions = features.num_partitions = num_parts
    store.partition_idx = features.partition_idx = part
    store.node_pb = books if is_hetero else books[NODE]
    store.edge_pb = edge_books if is_hetero else edge_books[EDGE]
    store.meta = {"is_hetero": is_hetero, "num_parts": num_parts}
    if is_hetero:
        store.meta |= {"node_types": list(graph.nodes), "edge_types": list(graph.edges)}
    features.meta = store.meta
    return features, store


def context(rank: int, world_size: int) -> DistContext:
    return DistContext(
        rank=rank, global_rank=rank, world_size=world_size, global_world_size=world_size, group_name="dist-test"
    )


def on_ranks(world_size: int, work: Callable[[int], Any]) -> list[Any]:
    """Run every rank in a thread; return each result or raised error."""
    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(work, rank) for rank in range(world_size)]
    return [future.exception() or future.result() for future in futures]


def all_well(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
