"""How heavy is a node for the part that owns it?

Node counts are a poor measure on graphs with hubs: a part with its fair share of nodes may hold most of the edges. So a
node weighs, unless asked otherwise, the bytes that its part stores for it: its key, its features, its edges and theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.partition.book import ends_of, neighbor_dtype
from hopstream.partition.settings import PartitionSettings
from hopstream.schema import Direction, timed_edge_types

KEY_BYTES = 8
OFFSET_BYTES = 8
TIME_BYTES = 8
WEIGHT_BYTES = 20
"""A running sum, a place in the order of weights, and an entry of an alias table."""


def node_weights(graph: Graph, settings: PartitionSettings) -> dict[str, IntArray]:
    """Node type to int64[num_nodes], the weight of each node, at least 1, in the unit of ``settings.balance``."""
    schema = graph.schema
    weights = {t: _own_weight(table.num_nodes, table.features, settings) for t, table in graph.nodes.items()}
    if settings.balance == "nodes":
        return weights
    for edge_type, edges in graph.edges.items():
        for direction in settings.directions:
            owner_type, other_type = ends_of(edge_type, direction)
            num_nodes = graph.nodes[owner_type].num_nodes
            degrees, edge_bytes = _edge_load(edges, direction, num_nodes)
            if settings.balance == "edges":
                weights[owner_type] += degrees
                continue
            per_edge = neighbor_dtype(graph.nodes[other_type].num_nodes).itemsize * (1 + settings.neighbor_keys)
            per_edge += KEY_BYTES * settings.keep_edge_keys
            per_edge += TIME_BYTES * (edge_type in timed_edge_types(schema, settings.time_attr, direction))
            per_edge += WEIGHT_BYTES * (settings.weight_attr in edges.features)
            weights[owner_type] += OFFSET_BYTES + degrees * per_edge + edge_bytes
    return {t: np.maximum(w, 1) for t, w in weights.items()}


def _own_weight(num_nodes: int, features: Mapping[str, Column], settings: PartitionSettings) -> IntArray:
    """int64[num_nodes], what a node weighs without its edges."""
    if settings.balance != "bytes":
        return np.full(num_nodes, int(settings.balance == "nodes"), np.int64)
    weights = np.full(num_nodes, KEY_BYTES, np.int64)
    for column in features.values():
        weights += column_row_bytes(column)
    return weights


def _edge_load(edges: EdgeTable, direction: Direction, num_nodes: int) -> tuple[IntArray, IntArray]:
    """int64[num_nodes] edges of each node in a direction, and int64[num_nodes] bytes of their features."""
    own_keys = edges.dst_keys if direction == "in" else edges.src_keys
    degrees = np.bincount(own_keys, minlength=num_nodes)
    edge_bytes = np.zeros(num_nodes, np.int64)
    for column in edges.features.values():
        row_bytes = column_row_bytes(column)
        if isinstance(row_bytes, int):
            edge_bytes += degrees * row_bytes
        else:
            # Sums below 2**53 are exact in float64, which is all that bincount can add up.
            edge_bytes += np.bincount(own_keys, weights=row_bytes, minlength=num_nodes).astype(np.int64)
    return degrees, edge_bytes


def column_row_bytes(column: Column) -> IntArray | int:
    """Bytes of one row where all rows are alike, else int64[rows] bytes of each."""
    if isinstance(column, RaggedArray):
        element_bytes = int(np.prod(column.values.shape[1:], dtype=np.int64)) * column.values.itemsize
        return np.diff(column.offsets) * element_bytes + OFFSET_BYTES
    return int(np.prod(column.shape[1:], dtype=np.int64)) * column.itemsize
