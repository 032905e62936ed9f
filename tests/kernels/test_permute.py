"""Checks that the order is a permutation, looks uniform, and stays the same for ever."""

from __future__ import annotations

from itertools import permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.hashing import permute_range


def order_of(num_positions, order_seed, start=0, count=None):
    out = np.empty(num_positions - start if count is None else count, np.int64)
    permute_range(start, num_positions, np.uint64(order_seed), out)
    return out


@settings(deadline=None)
@given(st.integers(1, 100_000), st.integers(0, 2**64 - 1))
def test_every_position_occurs_once(num_positions, order_seed):
    assert np.array_equal(np.sort(order_of(num_positions, order_seed)), np.arange(num_positions))


@pytest.mark.parametrize("num_positions", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 65_537])
def test_sizes_at_the_edges_of_the_domain(num_positions):
    assert np.array_equal(np.sort(order_of(num_positions, 7)), np.arange(num_positions))


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.data())
def test_a_slice_equals_the_slice_of_the_whole_order(num_positions, order_seed, data):
    start = data.draw(st.integers(0, num_positions))
    count = data.draw(st.integers(0, num_positions - start))
    whole = order_of(num_positions, order_seed)
    assert np.array_equal(order_of(num_positions, order_seed, start, count), whole[start : start + count])


@pytest.mark.parametrize("num_positions", [2, 3, 4, 5, 6])
def test_all_orders_are_equally_likely(num_positions):
    """Within 5 sigma of the chi-square distribution's mean, over 200 draws per order."""
    num_orders = factorial(num_positions)
    counts = dict.fromkeys(permutations(range(num_positions)), 0)
    for order_seed in np.random.default_rng(0).integers(0, 2**63, 200 * num_orders):
        counts[tuple(order_of(num_positions, order_seed).tolist())] += 1
    chi_square = float(sum((count - 200) ** 2 / 200 for count in counts.values()))
    freedom = num_orders - 1
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("num_positions", [100, 1000])
def test_where_a_position_lands_is_uniform(num_positions):
    """Each (index, tenth of the range) pair is hit within 5 sigma of its expectation."""
    num_orders = 2000
    hits = np.zeros((num_positions, 10), np.int64)
    for order_seed in range(num_orders):
        hits[np.arange(num_positions), order_of(num_positions, order_seed) * 10 // num_positions] += 1
    sigma = np.sqrt(num_orders * 0.1 * 0.9)
    assert np.abs(hits - num_orders / 10).max() < 5.5 * sigma


def test_neighbours_are_separated():
    """Adjacent indices map to adjacent values no more often than chance allows."""
    order = order_of(100_000, 3)
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 15  # 2 expected


def test_large_ranges_stay_inside():
    num_positions = 2**61 + 12345
    images = order_of(num_positions, 9, start=2**60, count=100)
    assert images.min() >= 0
    assert images.max() < num_positions
    assert len(np.unique(images)) == 100


def test_orders_never_change():
    """A saved loader state names an order by its seed, so the order of a seed is part of the format."""
    assert order_of(10, 42).tolist() == PINNED_10
    assert order_of(10**9, 2**63 + 1, start=5, count=4).tolist() == PINNED_BILLION


PINNED_10 = [6, 9, 0, 4, 2, 7, 5, 8, 1, 3]
PINNED_BILLION = [726459466, 323803345, 759217438, 795238737]
