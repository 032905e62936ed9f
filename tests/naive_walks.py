"""Exact laws of random walks, and walks by plain loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopstream.kernels.hashing import derive_seed
from tests.naive import draw_below, node_stream

Edges = Mapping[int, Sequence[tuple[int, float]]]
"""Node to the (neighbour, weight) of each of its edges in stored order."""


def uniform_walk(edges: Edges, start: int, number: int, length: int, rng_seed: int, label: str) -> list[int]:
    """One walk without memory or weights along an edge type, by its number."""
    walk = [start]
    for step in range(length):
        around = edges.get(walk[-1], ())
        if not around:
            return walk + [-1] * (length + 1 - len(walk))
        seed = derive_seed(derive_seed(rng_seed, "walks", 0), step, label, "out", "step")
        stream = node_stream(node_stream(seed, walk[-1]), number)
        walk.append(around[draw_below(stream, 0, len(around))][0])
    return walk


def second_order_chances(edges: Edges, previous: int | None, current: int, p: float, q: float) -> dict[int, float]:
    """The exact chance of each neighbour of ``current`` after coming from ``previous``."""
    beside = {neighbor for neighbor, _ in edges.get(previous, ())} if previous is not None else set()
    chances: dict[int, float] = {}
    for neighbor, weight in edges.get(current, ()):
        bias = 1.0
        if previous is not None:
            bias = 1 / p if neighbor == previous else 1.0 if neighbor in beside else 1 / q
        chances[neighbor] = chances.get(neighbor, 0.0) + weight * bias
    total = sum(chances.values())
    return {neighbor: chance / total for neighbor, chance in chances.items() if chance > 0}
