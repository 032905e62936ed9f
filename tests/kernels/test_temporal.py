"""Checks that a node sees the edges up to its time, and no others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import pytest

from hopstream.kernels.memory import address_table
from hopstream.kernels.neighbors import MAX_TAKEN, TOO_MANY
from hopstream.kernels.temporal import TOGETHER, count_draws, trim_by_time

EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("is_inclusive", [True, False])
@pytest.mark.parametrize("num_nodes", [0, 1, TOGETHER - 1, TOGETHER, 3 * TOGETHER + 5])
def test_rows_are_cut_at_the_bisection_point(rng: np.random.Generator, num_nodes: int, is_inclusive: bool) -> None:
    """Rows of 0 to 700 edges, with equal times and extreme ones, in three parts, one without edges."""
    rows: list[list[np.ndarray]] = [[], [], []]
    parts = rng.integers(0, 2, num_nodes).astype(np.int32) * 2
    starts, degrees = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    own = []
    for node in range(num_nodes):
        degree = int(rng.choice([0, 1, 2, 3, 8, 700]))
        times = np.sort(rng.choice([EARLIEST, -3, 0, 1, 2, 7, LATEST], degree))
        starts[node], degrees[node] = sum(len(row) for row in rows[parts[node]]), degree
        rows[parts[node]].append(times)
        own.append(times.tolist())
    columns = [np.concatenate([*part, np.empty(0, np.int64)]).astype(np.int64) for part in rows]
    limits = rng.choice([EARLIEST, EARLIEST + 1, -4, -3, 0, 2, 6, 7, LATEST - 1, LATEST], num_nodes).astype(np.int64)
    bisect = bisect_right if is_inclusive else bisect_left
    wanted = [bisect(times, limit) for times, limit in zip(own, limits.tolist(), strict=True)]
    trim_by_time(limits, is_inclusive, address_table(columns), parts, starts, degrees)
    assert degrees.tolist() == wanted


@pytest.mark.parametrize(
    ("count", "is_replacing", "wanted"), [(-1, False, [0, 1, 5]), (3, False, [0, 1, 3]), (3, True, [0, 3, 3])]
)
def test_counts_are_those_of_the_degrees(count: int, is_replacing: bool, wanted: list[int]) -> None:
    counts = np.empty(3, np.int32)
    starts, degrees = np.array([7, 8, 20]), np.array([0, 1, 5])
    assert count_draws(count, is_replacing, False, starts, degrees, counts) == sum(wanted)
    assert counts.tolist() == wanted
    assert (starts.tolist(), degrees.tolist()) == ([7, 8, 20], [0, 1, 5])


def test_the_last_edges_are_the_end_of_the_range() -> None:
    counts = np.empty(3, np.int32)
    starts, degrees = np.array([7, 8, 20]), np.array([0, 1, 5])
    assert count_draws(2, False, True, starts, degrees, counts) == 3
    assert (starts.tolist(), degrees.tolist(), counts.tolist()) == ([7, 8, 23], [0, 1, 2], [0, 1, 2])


def test_more_edges_than_can_be_counted_are_reported() -> None:
    counts = np.empty(1, np.int32)
    assert count_draws(-1, False, False, np.array([0]), np.array([MAX_TAKEN + 1]), counts) == TOO_MANY
