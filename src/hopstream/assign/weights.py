"""Weighs each node by the bytes that its part stores for it.

Node counts are a poor measure on graphs with hubs: a part with its fair share of nodes may hold most of the edges. So
by default a node weighs the bytes that its part stores for it: its key, its features, its edges and their features.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hopstream.arrays import IntArray
from hopstream.assign.flatten import type_offsets
from hopstream.assign.source import OFFSET_BYTES, AssignSource, source_of
from hopstream.dataset.book import ends_of, number_dtype
from hopstream.dataset.settings import PartitionSettings
from hopstream.graph.graph import Graph
from hopstream.kernels.placement import add_amount, add_amounts, count_keys
from hopstream.schema import Direction, EdgeType, timed_edge_types

KEY_BYTES = 8
TIME_BYTES = 8
WEIGHT_BYTES = 20
"""A running sum, an index in the order of weights, and an entry of an alias table."""


def node_weights(graph: Graph | AssignSource, settings: PartitionSettings) -> dict[str, IntArray]:
    """Return int64[num_nodes] weights by node type, at least 1, in the unit of ``settings.balance``."""
    counter = LoadCounter(source_of(graph), settings)
    if settings.balance != "nodes":
        for edge_type, edges in counter.source.edges.items():
            for block in edges.blocks():
                counter.add(edge_type, *block)
    return _by_type(counter.source, counter.weights())


class LoadCounter:
    """Sums of each node's weight, and of its number of edges if needed, over blocks of edges.

    [Cost] 8 bytes per node; 16 if edges are balanced in addition to another load.
    """

    def __init__(self, source: AssignSource, settings: PartitionSettings) -> None:
        """Start with the weights of nodes without edges."""
        self.source = source
        self._settings = settings
        num_nodes = sum(source.num_nodes.values())
        counts_edges = settings.balance == "edges" or settings.balance_edges
        self._weights = None if settings.balance == "edges" else np.ones(num_nodes, np.int64)
        self._degrees = np.zeros(num_nodes, np.int64) if counts_edges else None
        self._weights_of, self._degrees_of = (
            {} if of is None else _by_type(source, of) for of in (self._weights, self._degrees)
        )
        if settings.balance == "bytes":
            for node_type, weights in self._weights_of.items():
                owned = [1 for t in source.edges for d in settings.directions if ends_of(t, d)[0] == node_type]
                weights[:] = source.node_bytes(node_type)
                weights += KEY_BYTES + OFFSET_BYTES * len(owned)  # offsets of its rows
        self._edge_bytes = {(t, d): self._bytes_of_edge(t, d) for t in source.edges for d in settings.directions}

    def add(self, edge_type: EdgeType, place: Any, src_keys: IntArray, dst_keys: IntArray) -> None:
        """Count a block of ``EdgeRows.blocks``: its place, and the keys of its ends."""
        for direction in self._settings.directions:
            owner_type, _ = ends_of(edge_type, direction)
            own_keys = dst_keys if direction == "in" else src_keys
            if self._degrees is not None:
                count_keys(own_keys, self._degrees_of[owner_type])
            if self._settings.balance != "bytes":
                continue
            weights = self._weights_of[owner_type]
            add_amount(own_keys, self._edge_bytes[edge_type, direction], weights)
            ragged_bytes = self.source.edges[edge_type].ragged_bytes
            if ragged_bytes is not None:
                add_amounts(own_keys, ragged_bytes(place, len(own_keys)), weights)

    def degrees(self) -> IntArray | None:
        """Return int64[num_nodes] over all types, the edges that each node's part stores for it.

        The count covers all edge types and directions. None if the settings do not need it.
        """
        return self._degrees if self._settings.balance_edges else None

    def weights(self) -> IntArray:
        """Return int64[num_nodes] over all types, the weight of each node, at least 1."""
        if self._weights is not None:
            return np.maximum(self._weights, 1, out=self._weights)
        return np.maximum(cast(IntArray, self._degrees), 1)

    def _bytes_of_edge(self, edge_type: EdgeType, direction: Direction) -> int:
        """Return the bytes of one edge in a direction, without ragged features."""
        source, settings = self.source, self._settings
        _, other_type = ends_of(edge_type, direction)
        num_bytes = number_dtype(source.num_nodes[other_type]).itemsize * (1 + settings.neighbor_keys)
        num_bytes += number_dtype(source.edges[edge_type].num_edges).itemsize * settings.keep_edge_keys
        num_bytes += TIME_BYTES * (edge_type in timed_edge_types(source.schema, settings.time_attr, direction))
        num_bytes += WEIGHT_BYTES * (settings.weight_attr in source.schema.edges[edge_type])
        return num_bytes + source.edges[edge_type].row_bytes


def _by_type(source: AssignSource, of_nodes: IntArray) -> dict[str, IntArray]:
    """Map node types to their ranges of an array over all nodes."""
    firsts = type_offsets(source.num_nodes)
    return {t: of_nodes[firsts[t] : firsts[t] + num_nodes] for t, num_nodes in source.num_nodes.items()}
