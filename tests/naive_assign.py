"""Slow, obvious placement and moves of nodes."""

from __future__ import annotations

import math


def place(neighbors: list[list[int]], weights: list[list[tuple[int, int]]], limits, penalty: float | None,
          first_part: int, owner: list[int]) -> list[int]:  # fmt: skip
    """The part of each node, placed in turn; ``weights[v]`` has (row, amount), the score's weight first."""
    owner, loads = list(owner), [[0] * len(row) for row in limits]
    num_parts = len(limits[0])
    for node, around in enumerate(neighbors):
        if not around:
            continue
        ranked = []
        for turn in range(num_parts):
            part = (first_part + turn) % num_parts
            fill = max((loads[r][part] + amount) / limits[r][part] for r, amount in weights[node])
            share = loads[0][part] / limits[0][part]
            count = sum(owner[other] == part for other in around)
            score = count * (1 - share) if penalty is None else count - penalty * weights[node][0][1] * math.sqrt(share)
            rank = (0, -score, fill, turn) if fill <= 1 else (1, fill, 0.0, turn)
            ranked.append((rank, part))
        owner[node] = min(ranked)[1]
        for row, amount in weights[node]:
            loads[row][owner[node]] += amount
    return owner


def loads_of(weights: list[list[tuple[int, int]]], owner: list[int], num_rows: int, num_parts: int) -> list[list[int]]:
    """Load of each part, by row."""
    loads = [[0] * num_parts for _ in range(num_rows)]
    for node, part in enumerate(owner):
        for row, amount in weights[node]:
            loads[row][part] += amount
    return loads


def excess(weights: list[list[tuple[int, int]]], owner: list[int], limits, scales: list[float]) -> float:
    """Excess of loads over limits, scaled and summed."""
    loads = loads_of(weights, owner, len(limits), len(limits[0]))
    return sum(
        scale * max(0.0, load - limit)
        for scale, row, limit_row in zip(scales, loads, limits, strict=True)
        for load, limit in zip(row, limit_row, strict=True)
    )


def cut(neighbors: list[list[int]], owner: list[int]) -> int:
    """Number of neighbours in another part, summed over all nodes."""
    return sum(owner[node] != owner[other] for node, around in enumerate(neighbors) for other in around)
