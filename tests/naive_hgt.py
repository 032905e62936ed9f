"""Slow answer for HGT sampling, node by node and edge by edge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hopstream.graph.graph import Graph
from hopstream.kernels.hashing import derive_seed, hash_keys

Nodes = dict[str, list[int]]
"""Node type to keys."""
Edges = dict[tuple[str, str, str], list[int]]
"""Edge type to edge keys, ascending."""


def hgt_sample(
    graph: Graph, num_samples: Mapping[str, Sequence[int]], seeds: Nodes, rng_seed: int, direction: str = "in"
) -> tuple[list[Nodes], Edges]:
    """The seeds, then the nodes of each layer in order of discovery; and all edges between them."""
    num_layers = len(next(iter(num_samples.values())))
    budgets: dict[str, dict[int, float]] = {t: {} for t in graph.nodes}
    layers: list[Nodes] = [{t: list(seeds.get(t, [])) for t in graph.nodes}]
    taken = {t: set(keys) for t, keys in layers[0].items()}
    for layer in range(num_layers):
        for edge_type, edges in graph.edges.items():
            src, dst = edges.src_keys.tolist(), edges.dst_keys.tolist()
            own, other = (dst, src) if direction == "in" else (src, dst)
            own_type, other_type = (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])
            for node in layers[-1][own_type]:
                neighbors = [v for u, v in zip(own, other, strict=True) if u == node]
                for neighbor in neighbors:
                    budget = budgets[other_type]
                    budget[neighbor] = budget.get(neighbor, 0.0) + 1.0 / len(neighbors)
        new: Nodes = {}
        for node_type, budget in budgets.items():
            candidates = {key: weight for key, weight in budget.items() if key not in taken[node_type]}
            count = num_samples.get(node_type, [0] * num_layers)[layer]
            seed = rng_seed ^ derive_seed("hgt", layer, node_type)
            new[node_type] = draw(candidates, len(candidates) if count < 0 else count, seed)
            taken[node_type].update(new[node_type])
        layers.append(new)
    found = {
        edge_type: [
            edge_key
            for edge_key, (src, dst) in enumerate(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))
            if src in taken[edge_type[0]] and dst in taken[edge_type[2]]
        ]
        for edge_type, edges in graph.edges.items()
    }
    return layers, found


def draw(candidates: Mapping[int, float], count: int, seed: int) -> list[int]:
    """The nodes with the shortest waits, in order of discovery. The rate of a wait is the squared budget."""
    waits = {key: -math.log(uniform(key, seed)) / budget**2 for key, budget in candidates.items()}
    drawn: Iterable[int] = sorted(waits, key=lambda key: (waits[key], key))[:count]
    return [key for key in candidates if key in set(drawn)]


def uniform(key: int, seed: int) -> float:
    """The node's number in (0, 1): the upper 53 bits of its hash."""
    bits = np.empty(1, np.uint64)
    hash_keys(np.array([key]), np.uint64(seed), bits)
    return ((int(bits[0]) >> 11) + 0.5) / 2.0**53
