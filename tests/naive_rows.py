"""Slow reference for data stored beside a node's edges."""

from __future__ import annotations

from itertools import pairwise

from hopstream.graph.graph import Graph
from hopstream.schema import Direction, EdgeType
from tests.naive_weighted import running_sums


def sort_rows(offsets: list[int], values: list[float], is_descending: bool) -> list[int]:
    """Positions inside each row by value; equal values keep their order."""
    order = []
    for start, stop in pairwise(offsets):
        positions = range(stop - start)
        order += sorted(positions, key=lambda i: -values[start + i] if is_descending else values[start + i])
    return order


def sum_rows(offsets: list[int], weights: list[float]) -> list[float]:
    """Running sums inside each row."""
    return [s for start, stop in pairwise(offsets) for s in running_sums(weights[start:stop])]


def edge_time(graph: Graph, edge_type: EdgeType, direction: Direction, edge_key: int, time_attr: str) -> int | None:
    """An edge's own time, its neighbour's, or the later of the two."""
    edges = graph.edges[edge_type]
    found = []
    if time_attr in edges.features:
        found.append(int(edges.features[time_attr][edge_key]))
    neighbor_type, neighbors = (edge_type[0], edges.src_keys) if direction == "in" else (edge_type[2], edges.dst_keys)
    node_features = graph.nodes[neighbor_type].features
    if time_attr in node_features:
        found.append(int(node_features[time_attr][neighbors[edge_key]]))
    return max(found, default=None)


def stored_row(
    graph: Graph, edge_type: EdgeType, direction: Direction, node_key: int, time_attr: str | None
) -> list[int]:
    """Edge keys of one node in the order in which they are stored."""
    edges = graph.edges[edge_type]
    own = edges.dst_keys if direction == "in" else edges.src_keys
    keys = [key for key in range(edges.num_edges) if own[key] == node_key]
    if time_attr is None:
        return keys
    times = {key: edge_time(graph, edge_type, direction, key, time_attr) for key in keys}
    return keys if None in times.values() else sorted(keys, key=lambda key: (times[key], key))
