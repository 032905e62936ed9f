"""Checks that rows are sorted stably, and summed one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.adjacency import RUN, sort_rows, sum_rows
from tests import naive_rows

degrees = st.lists(st.integers(0, 5) | st.integers(RUN - 1, RUN + 1) | st.integers(0, 9 * RUN), max_size=6)


def sorted_rows(offsets: np.ndarray, values: np.ndarray, is_descending: bool) -> list[int]:
    order = np.full(len(values), 7, np.uint32)
    sort_rows(offsets, values, is_descending, order, np.empty(int(np.diff(offsets).max(initial=0)), np.uint32))
    return order.tolist()


@settings(deadline=None)
@given(degrees=degrees, num_values=st.integers(1, 300), rng_seed=st.integers(0, 1 << 32), is_descending=st.booleans())
def test_sorting_equals_the_naive_reference(degrees, num_values, rng_seed, is_descending):
    rng = np.random.default_rng(rng_seed)
    offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    times = rng.integers(-num_values, num_values, offsets[-1])
    for values in (times, times / 7):
        want = naive_rows.sort_rows(offsets.tolist(), values.tolist(), is_descending)
        assert sorted_rows(offsets, values, is_descending) == want


@pytest.mark.parametrize("is_descending", [True, False])
def test_rows_in_order_stay_and_reversed_rows_turn(is_descending: bool):
    values = np.arange(1000)
    forward, backward = list(range(1000)), list(range(999, -1, -1))
    offsets = np.array([0, 1000])
    assert sorted_rows(offsets, values, is_descending) == (backward if is_descending else forward)
    assert sorted_rows(offsets, np.zeros(1000), is_descending) == forward


def test_the_ends_of_int64_and_infinities():
    bounds = np.iinfo(np.int64)
    assert sorted_rows(np.array([0, 3]), np.array([bounds.max, 0, bounds.min]), False) == [2, 1, 0]
    assert sorted_rows(np.array([0, 3]), np.array([np.inf, 0.0, -0.0]), True) == [0, 1, 2]


@settings(deadline=None)
@given(degrees=degrees, rng_seed=st.integers(0, 1 << 32))
def test_sums_equal_the_naive_reference_bit_by_bit(degrees, rng_seed):
    rng = np.random.default_rng(rng_seed)
    offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    weights = rng.random(offsets[-1]) * 10.0 ** rng.integers(-12, 12, offsets[-1])
    sums = np.empty(len(weights))
    sum_rows(offsets, weights, sums)
    assert sums.tolist() == naive_rows.sum_rows(offsets.tolist(), weights.tolist())
