"""Finds the nodes and edges around a part of a graph in memory, as DGL counts hops.

Edges belong to the part of their destination. Around a part lie the sources of its edges, their sources, and so on,
with the edges between them; and, one step only, the destinations of edges that leave the part.

[Cost] A pass over all edges for each hop that finds nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.dataset.balance import Owners
from hopstream.graph.graph import Graph
from hopstream.schema import EdgeType

OUTSIDE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Around:
    """A part and what lies around it.

    Attributes:
        hops: Node type to int64[num_nodes]: 0 for nodes that the part owns, the hop at which another one is found, one
            more than the last hop for nodes that only edges out of the part lead to, -1 for all others.
        edge_keys: Edge type to int64[n], ascending keys of the edges within.
    """

    hops: Mapping[str, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]


def around_part(graph: Graph, owners: Owners, part: int, num_hops: int) -> Around:
    """Find what lies within some hops of a part.

    With no hops only edges between nodes of the part lie within. Else all edges into the part do; for each further hop
    those into nodes of the hop before whose source the part does not own; and at last all edges out of the part.

    Args:
        graph: The graph, checked.
        owners: Node type to integer[num_nodes], the part of each node.
        part: The part.
        num_hops: 0 or more.
    """
    is_inner = {t: owners[t] == part for t in graph.nodes}
    hops: dict[str, IntArray] = {t: np.where(inner, 0, OUTSIDE).astype(np.int64) for t, inner in is_inner.items()}
    is_within: dict[EdgeType, NDArray[np.bool_]] = {}
    for t, edges in graph.edges.items():
        is_within[t] = is_inner[t[2]][edges.dst_keys]
        if not num_hops:
            is_within[t] &= is_inner[t[0]][edges.src_keys]
    for hop in range(1, num_hops + 1):
        found: list[tuple[str, IntArray]] = []
        for t, edges in graph.edges.items():
            leads = hops[t[2]][edges.dst_keys] == hop - 1
            if hop > 1:
                leads &= ~is_inner[t[0]][edges.src_keys]
                is_within[t] |= leads
            found.append((t[0], edges.src_keys[leads]))
        if not _mark(hops, found, hop):
            break
    if num_hops:
        leaving = []
        for t, edges in graph.edges.items():
            leaves = is_inner[t[0]][edges.src_keys] & ~is_inner[t[2]][edges.dst_keys]
            is_within[t] |= leaves
            leaving.append((t[2], edges.dst_keys[leaves]))
        _mark(hops, leaving, num_hops + 1)
    return Around(hops=hops, edge_keys={t: np.flatnonzero(within) for t, within in is_within.items()})


def _mark(hops: Mapping[str, IntArray], found: list[tuple[str, IntArray]], hop: int) -> bool:
    """Give nodes that were not found before their hop, in place; returns whether there were any."""
    any_new = False
    for node_type, keys in found:
        new = keys[hops[node_type][keys] == OUTSIDE]
        hops[node_type][new] = hop
        any_new |= bool(len(new))
    return any_new
