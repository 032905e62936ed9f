"""Changed graphs, from which tests write the datasets that changes of a dataset must lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import hopstream
from hopstream.dataset.key_book import read_key_book
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EdgeType
from tests.dataset.graphs import take_rows


def without(graph: Graph, nodes: Mapping[str, Any], edges: Mapping[EdgeType, Any]) -> Graph:
    """The graph without nodes, with the edges of these, and without edges by key."""
    kept = {t: np.setdiff1d(np.arange(table.num_nodes), nodes.get(t, [])) for t, table in graph.nodes.items()}
    stays = {}
    for t, table in graph.edges.items():
        is_kept = np.isin(table.src_keys, kept[t[0]]) & np.isin(table.dst_keys, kept[t[2]])
        is_kept[np.array(edges.get(t, []), np.int64)] = False
        stays[t] = np.flatnonzero(is_kept)
    return replace(
        graph,
        nodes={
            t: NodeTable(num_nodes=len(kept[t]), features={n: take_rows(c, kept[t]) for n, c in table.features.items()})
            for t, table in graph.nodes.items()
        },
        edges={
            t: EdgeTable(
                src_keys=np.searchsorted(kept[t[0]], table.src_keys[stays[t]]),
                dst_keys=np.searchsorted(kept[t[2]], table.dst_keys[stays[t]]),
                features={n: take_rows(c, stays[t]) for n, c in table.features.items()},
            )
            for t, table in graph.edges.items()
        },
        splits={t: {n: _moved(keys, kept[t]) for n, keys in of.items()} for t, of in graph.splits.items()},
        edge_splits={t: {n: _moved(keys, stays[t]) for n, keys in of.items()} for t, of in graph.edge_splits.items()},
    ).check()


def _moved(keys: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.searchsorted(kept, np.intersect1d(keys, kept))


def parts_of(root: Path) -> dict[str, np.ndarray]:
    """The part of each node of a dataset, by key."""
    book = read_key_book(root)
    return {t: book.part_of(t, np.arange(book.ranges.num_ids(t))).astype(np.int32) for t in book.ranges.node_offsets}


def write_like(graph: Graph, root: Path, owners: Mapping[str, np.ndarray], **options: Any) -> Any:
    """Write a graph in one go with given owners."""
    num_parts = options.pop("num_parts")
    return hopstream.write_parts(graph, root, owners=owners, num_parts=num_parts, **options)
