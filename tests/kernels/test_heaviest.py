"""Checks that the heaviest eligible edges are found, by walk or selection, ties in stored order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hopstream.kernels.eligible import NodeFilter
from hopstream.kernels.heaviest import TOO_FAR, num_ranks, select_heaviest, take_heaviest
from hopstream.kernels.smallest import offer, sort_by_variate
from hopstream.kernels.weighted import UNREADABLE, WEIGHT_DTYPES, weight_kind
from tests import naive_weighted
from tests.kernels.draw_inputs import excluding, for_python

NODE = 3
START = 3


class Row:
    """One row of weighted edges between other edges; neighbours are positions in the row."""

    def __init__(self, weights: Sequence[float], dtype: Any = np.float64, excluded: Sequence[int] = ()) -> None:
        self.column = np.full(len(weights) + 6, 99, dtype)
        self.column[START : START + len(weights)] = weights
        self.weights = [float(weight) for weight in self.column[START : START + len(weights)]]
        self.sums = np.full(len(self.column), np.nan)
        self.sums[START : START + len(weights)] = naive_weighted.running_sums(self.weights)
        self.order = np.full(len(self.column), 77, np.uint32)
        self.order[START : START + len(weights)] = np.argsort(-np.array(self.weights), kind="stable")
        self.indices = np.arange(len(self.column), dtype=np.uint32) - np.uint32(START)
        self.excluded = sorted(excluded)
        rule, self._sets = excluding(NODE, self.excluded)
        self.own = NodeFilter(rule, NODE, 0, bool(self.excluded))

    def walk(self, num: int, count: int, ranks: int | None = None) -> list[int] | None:
        """Positions that a walk finds, or None if it stopped too early."""
        degree = len(self.weights)
        ranks = degree if ranks is None else ranks
        positions = np.full(num + 2, -1, np.int64)
        taken = take_heaviest(
            self.own, self.indices, self.order, self.sums, START, num, degree, ranks, count, positions, 1
        )
        return None if taken == TOO_FAR else (positions[1 : 1 + taken] - START).tolist()

    def select(self, num: int, count: int) -> list[int]:
        """Positions that a selection finds."""
        variates, positions = np.empty(count, np.uint64), np.full(count + 2, -1, np.int64)
        kind = weight_kind(self.column.dtype)
        taken = select_heaviest(
            self.own, self.indices, self.column.ctypes.data, kind, START, num, count, variates, positions, 1
        )
        assert positions[0] == -1 and (positions[1 + taken :] == -1).all()
        return (positions[1 : 1 + taken] - START).tolist()

    def wanted(self, num: int, count: int) -> list[int]:
        allowed = [0.0 if i in self.excluded else weight for i, weight in enumerate(self.weights)]
        return naive_weighted.take_heaviest(allowed, num, count)


def random_weights(rng: np.random.Generator, degree: int, kind: str) -> list[float]:
    if kind == "zeros":
        return np.where(rng.random(degree) < 0.6, 0.0, rng.random(degree)).tolist()
    if kind == "ties":
        return (rng.integers(0, 3, degree) / 10).tolist()
    if kind == "extreme":
        return (10.0 ** rng.uniform(-12, 12, degree)).tolist()
    return rng.random(degree).tolist()


@pytest.mark.parametrize("kind", ["plain", "zeros", "ties", "extreme"])
@pytest.mark.parametrize("count", [-1, 0, 1, 5, 100])
@pytest.mark.parametrize("num_excluded", [0, 20])
def test_walking_and_selecting_equal_the_naive_reference(
    rng: np.random.Generator, kind: str, count: int, num_excluded: int
) -> None:
    row = Row(random_weights(rng, 40, kind), excluded=rng.choice(40, num_excluded, replace=False).tolist())
    for num in (0, 1, 13, 40):
        most = num if count < 0 else min(count, num)
        wanted = row.wanted(num, most)
        assert row.walk(num, most) == wanted, row.weights
        if most:
            assert row.select(num, most) == wanted, row.weights
        for ranks in range(40):
            assert row.walk(num, most, ranks) in (None, wanted), (row.weights, ranks)


@pytest.mark.parametrize("num_excluded", [0, 5])
def test_a_walk_that_ends_too_early_returns_none(num_excluded: int) -> None:
    """The ten eligible edges are the lightest of 100, so a walk of 90 ranks reaches none of them."""
    row = Row([1.0] * 10 + [2.0] * 90, excluded=range(num_excluded))
    assert row.walk(10, 3, 90) is None
    assert row.walk(10, 3, 95 + num_excluded) == [num_excluded, num_excluded + 1, num_excluded + 2]


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_weights_are_read_in_every_dtype(rng: np.random.Generator, dtype: str) -> None:
    row = Row(rng.integers(0, 100, 80).tolist(), dtype)
    assert row.select(60, 20) == row.wanted(60, 20)


def test_weights_of_other_dtypes_are_known_by_their_order() -> None:
    assert weight_kind(np.dtype(np.float16)) == weight_kind(None) == UNREADABLE
    assert for_python(num_ranks)(1, 1000, 1, UNREADABLE) == 1000


def test_equal_weights_whose_sums_are_rounded_are_equal() -> None:
    """Differences of running sums of 0.1 vary in their last bits and would not sort in stored order."""
    row = Row([0.1] * 50 + [5.0] * 500)
    assert len(set(np.diff(row.sums[START : START + 50]).tolist())) > 1
    assert row.select(50, 50) == list(range(50))


def test_a_walk_costs_no_more_than_selecting() -> None:
    assert for_python(num_ranks)(10, 1_000_000, 1, 0) == 10
    assert for_python(num_ranks)(10, 1_000_000, 5, 0) == 30
    assert for_python(num_ranks)(1_000_000, 1_000_000, 1, 0) == 1_000_000
    assert for_python(num_ranks)(500_000, 1_000_000, 500_000, 0) == 1_000_000


def test_the_heaviest_come_first_and_equal_ones_in_stored_order() -> None:
    row = Row([2.0, 5.0, 0.0, 2.0, 5.0, 1.0])
    assert row.walk(6, 3) == row.select(6, 3) == [1, 4, 0]
    assert row.walk(6, 6) == row.select(6, 6) == row.walk(6, -1) == [1, 4, 0, 3, 5]
    assert row.walk(4, 2) == row.select(4, 2) == [1, 0]


@pytest.mark.parametrize("count", [1, 2, 7, 33, 200])
def test_a_heap_is_sorted_by_variate_and_equal_ones_by_position(rng: np.random.Generator, count: int) -> None:
    variates = rng.integers(0, 40, 150).astype(np.uint64)
    heap, positions = np.empty(count, np.uint64), np.empty(count + 2, np.int64)
    size = 0
    for position, variate in enumerate(variates):
        size = offer(heap, positions, 2, size, count, variate, position)
    sort_by_variate(heap, positions, 2, size)
    assert positions[2 : 2 + size].tolist() == np.argsort(variates, kind="stable")[:count].tolist()
