"""Checks that nodes that draw by common variates draw uniformly, and the same neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hopstream.kernels.eligible import NodeFilter, filter_sets
from hopstream.kernels.labor import labor_variate, take_smallest
from hopstream.kernels.reals import quarter_turn
from tests import naive_weighted
from tests.kernels.draw_inputs import for_python

START = 2
OWN = NodeFilter(filter_sets(None, None).to_filter(0), 0, 0, False)


def draw(keys: np.ndarray, count: int, first_seed: int, second_seed: int = 0, share: float = 0.0) -> list[int]:
    num = len(keys)
    padded = np.concatenate([[9] * START, keys, [9]]).astype(keys.dtype)
    positions, variates = np.full(num + 2, -1, np.int64), np.empty(max(count, 0), np.uint64)
    seeds = np.uint64(first_seed), np.uint64(second_seed)
    taken = take_smallest(
        OWN, padded.astype(np.uint32), padded, START, num, count, *seeds, share, variates, positions, 1
    )
    assert positions[0] == -1 and (positions[1 + taken :] == -1).all()
    return (positions[1 : 1 + taken] - START).tolist()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("count", [1, 4, 30, 100, 300, 301])
def test_draws_equal_the_naive_reference(rng: np.random.Generator, count: int, share: float) -> None:
    keys = rng.integers(0, 200, 300)
    first_seed, second_seed = rng.integers(0, 1 << 62, 2).tolist()
    wanted = naive_weighted.draw_labor(keys.tolist(), count, first_seed, second_seed, share)
    assert draw(keys, count, first_seed, second_seed, share) == wanted


def test_parallel_edges_are_next_to_each_other() -> None:
    keys = np.array([5, 8, 5, 8, 5])
    for seed in range(50):
        first = min((5, 8), key=lambda key: naive_weighted.labor_variate(key, seed, 0, 0.0))
        assert set(keys[draw(keys, 2, seed)]) == {first}


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_parallel_edges_are_taken_equally_often(share: float) -> None:
    """Inclusion within 5 sigma of the mean over the copies of a neighbour, over seeds."""
    num_draws = 2500
    keys = np.array([7, 3, 7, 9, 7])
    drawn = np.concatenate([draw(keys, 2, seed, seed + 1, share) for seed in range(num_draws)])
    counts = np.bincount(drawn, minlength=5)[keys == 7]
    chance = counts.mean() / num_draws
    sigma = math.sqrt(num_draws * chance * (1 - chance))
    assert np.abs(counts - counts.mean()).max() < 5 * sigma, counts


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("degree,count", [(5, 1), (12, 5), (60, 40)])
def test_every_neighbour_is_drawn_equally_often(share: float, degree: int, count: int) -> None:
    """Inclusion within 5 sigma of count / degree for every edge, over seeds."""
    num_draws = 2500
    keys = np.arange(degree) * 1000 + 7
    drawn = np.concatenate([draw(keys, count, seed, seed + 1, share) for seed in range(num_draws)])
    chance = count / degree
    sigma = math.sqrt(num_draws * chance * (1 - chance))
    deviation = (np.bincount(drawn, minlength=degree) - num_draws * chance) / sigma
    assert np.abs(deviation).max() < 5, deviation


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_nodes_agree_on_common_neighbours(share: float) -> None:
    """Of two rows, at most one takes common neighbours that the other one leaves."""
    for seed in range(200):
        left, right = np.arange(0, 40), np.arange(20, 60)
        taken_left = {int(left[i]) for i in draw(left, 10, seed, seed + 7, share)}
        taken_right = {int(right[i]) for i in draw(right, 10, seed, seed + 7, share)}
        common = set(range(20, 40))
        assert not (taken_left & common - taken_right and taken_right & common - taken_left), seed


def test_fewer_distinct_neighbours_than_by_independent_draws() -> None:
    neighbors = [np.arange(i, i + 30) for i in range(0, 30, 3)]
    distinct = len({int(row[i]) for row in neighbors for i in draw(row, 5, 11)})
    rng = np.random.default_rng(11)
    independent = len({int(key) for row in neighbors for key in rng.choice(row, 5, replace=False)})
    assert distinct < 0.7 * independent, (distinct, independent)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_variates_move_along_a_quarter_circle(share: float) -> None:
    """Variates correlate with the first seed's by the cosine, and with the second seed's by the sine."""
    num_keys = 8000
    first, second, between = (
        np.array([naive_weighted.labor_variate(key, *seeds) for key in range(num_keys)])
        for seeds in ((1, 2, 1e-300), (2, 1, 1e-300), (1, 2, share))
    )
    sigma = 1 / math.sqrt(num_keys)
    assert abs(np.corrcoef(first, between)[0, 1] - math.cos(share * math.pi / 2)) < 5 * sigma
    assert abs(np.corrcoef(second, between)[0, 1] - math.sin(share * math.pi / 2)) < 5 * sigma
    assert abs(between.mean()) < 5 * sigma
    assert abs(between.var() - 1) < 5 * math.sqrt(2) * sigma


def test_draws_change_with_the_share_and_meet_at_both_ends() -> None:
    keys = np.arange(400)
    start, end = set(draw(keys, 40, 1)), set(draw(keys, 40, 2))
    kept = [len(start & set(draw(keys, 40, 1, 2, share))) for share in (0.0, 1e-9, 0.1, 0.3, 0.6, 1 - 1e-9)]
    assert kept[:2] == [40, 40]
    assert kept == sorted(kept, reverse=True) and kept[-1] == len(start & end) < 15, kept
    assert set(draw(keys, 40, 1, 2, 1 - 1e-9)) == end


def test_variates_and_draws_are_pinned() -> None:
    """Batches of a given seed must not change between versions."""
    seeds = np.uint64(1), np.uint64(2)
    assert [
        int(for_python(labor_variate)(5, 0, *seeds, *quarter_turn(share))) for share in (0.0, 0.25)
    ] == PINNED_VARIATES
    assert draw(np.arange(30), 5, 1) == PINNED_FIRST
    assert draw(np.arange(30), 5, 1, 2, 0.5) == PINNED_BETWEEN


PINNED_VARIATES = [9292961731620638493, 4619251755469836061]
PINNED_FIRST = [7, 8, 11, 18, 28]
PINNED_BETWEEN = [1, 5, 14, 23, 28]
