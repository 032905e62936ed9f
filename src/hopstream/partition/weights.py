"""How heavy is a node for the part that owns it?

Node counts are a poor measure on graphs with hubs: a part with its fair share of nodes may hold most of the edges. So a
node weighs, unless asked otherwise, the bytes that its part stores for it: its key, its features, its edges and theirs.
"""

from __future__ import annotations

import numpy as np

from hopstream.arrays import IntArray
from hopstream.graph.graph import Graph
from hopstream.kernels.placement import add_amounts, count_and_add, count_keys
from hopstream.partition.assign_source import OFFSET_BYTES, AssignSource, source_of
from hopstream.partition.book import ends_of, neighbor_dtype
from hopstream.partition.settings import PartitionSettings
from hopstream.schema import Direction, EdgeType, timed_edge_types

KEY_BYTES = 8
TIME_BYTES = 8
WEIGHT_BYTES = 20
"""A running sum, a place in the order of weights, and an entry of an alias table."""


def node_weights(graph: Graph | AssignSource, settings: PartitionSettings) -> dict[str, IntArray]:
    """Node type to int64[num_nodes], the weight of each node, at least 1, in the unit of ``settings.balance``."""
    counter = LoadCounter(source_of(graph), settings)
    if settings.balance != "nodes":
        for edge_type, edges in counter.source.edges.items():
            for first, src_keys, dst_keys in edges.blocks():
                counter.add(edge_type, first, src_keys, dst_keys)
    return counter.weights()


class LoadCounter:
    """Adds up what each node weighs, and how many edges its part holds for it, while edges go by.

    [Cost] 16 bytes per node, or 8 where edges are what balances.
    """

    def __init__(self, source: AssignSource, settings: PartitionSettings) -> None:
        """Start with what nodes weigh without edges."""
        self.source = source
        self._settings = settings
        self._weights = {t: self._own_weight(t) for t in source.num_nodes}
        self._degrees = {t: np.zeros(n, np.int64) for t, n in source.num_nodes.items()}
        self._edge_bytes = {(t, d): self._bytes_of_edge(t, d) for t in source.edges for d in settings.directions}

    def add(self, edge_type: EdgeType, first: int, src_keys: IntArray, dst_keys: IntArray) -> None:
        """Count a block of edges, of which the first has a place."""
        for direction in self._settings.directions:
            owner_type, _ = ends_of(edge_type, direction)
            own_keys = dst_keys if direction == "in" else src_keys
            degrees, weights = self._degrees[owner_type], self._weights[owner_type]
            if self._settings.balance != "bytes":
                count_keys(own_keys, degrees)
                continue
            count_and_add(own_keys, self._edge_bytes[edge_type, direction], degrees, weights)
            ragged_bytes = self.source.edges[edge_type].ragged_bytes
            if ragged_bytes is not None:
                add_amounts(own_keys, ragged_bytes(first, first + len(own_keys)), weights)

    def degrees(self) -> dict[str, IntArray]:
        """Node type to int64[num_nodes], the edges that a node's part holds for it, over all types and directions."""
        return self._degrees

    def weights(self) -> dict[str, IntArray]:
        """Node type to int64[num_nodes], the weight of each node, at least 1."""
        of = self._degrees if self._settings.balance == "edges" else self._weights
        return {t: np.maximum(w, 1) for t, w in of.items()}

    def _own_weight(self, node_type: str) -> IntArray:
        """int64[num_nodes], what a node weighs without its edges: with bytes, the starts of its rows count."""
        num_nodes, settings = self.source.num_nodes[node_type], self._settings
        if settings.balance != "bytes":
            return np.full(num_nodes, int(settings.balance == "nodes"), np.int64)
        owned = [1 for t in self.source.edges for d in settings.directions if ends_of(t, d)[0] == node_type]
        weights = np.full(num_nodes, KEY_BYTES + OFFSET_BYTES * len(owned), np.int64)
        weights += self.source.node_bytes[node_type]
        return weights

    def _bytes_of_edge(self, edge_type: EdgeType, direction: Direction) -> int:
        """Bytes of one edge in a direction, without ragged features."""
        source, settings = self.source, self._settings
        _, other_type = ends_of(edge_type, direction)
        num_bytes = neighbor_dtype(source.num_nodes[other_type]).itemsize * (1 + settings.neighbor_keys)
        num_bytes += KEY_BYTES * settings.keep_edge_keys
        num_bytes += TIME_BYTES * (edge_type in timed_edge_types(source.schema, settings.time_attr, direction))
        num_bytes += WEIGHT_BYTES * (settings.weight_attr in source.schema.edges[edge_type])
        return num_bytes + source.edges[edge_type].row_bytes
