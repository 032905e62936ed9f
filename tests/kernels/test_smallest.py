"""Checks that the heap keeps what a sort would."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from hopstream.kernels.smallest import drop_repeated, insert_position, offer, sort_few, sort_positions
from tests.kernels.draw_inputs import for_python


@pytest.mark.parametrize("count", [1, 2, 7, 33, 200])
@pytest.mark.parametrize("num_values", [3, 1 << 62])
def test_the_smallest_are_kept_and_equal_ones_by_position(
    rng: np.random.Generator, count: int, num_values: int
) -> None:
    variates = rng.integers(0, num_values, 150).astype(np.uint64)
    heap, positions = np.empty(count, np.uint64), np.full(count + 3, -1, np.int64)
    size = 0
    for position, variate in enumerate(variates):
        size = offer(heap, positions, 2, size, count, variate, position)
    sort_positions(positions, 2, size)
    wanted = np.sort(np.argsort(variates, kind="stable")[:count])
    assert positions[2 : 2 + size].tolist() == wanted.tolist()
    assert positions[:2].tolist() == [-1, -1]
    assert positions[2 + size :].tolist() == [-1] * (count + 1 - size)


@pytest.mark.parametrize("size", [0, 1, 2, 31, 32, 33, 64, 501])
def test_positions_are_sorted(rng: np.random.Generator, size: int) -> None:
    positions = rng.permutation(size + 4)
    wanted = [*positions[:3], *np.sort(positions[3 : 3 + size]), positions[-1]]
    sort_positions(positions, 3, size)
    assert positions.tolist() == wanted


@njit
def sort_once(positions: np.ndarray, first: int, size: int) -> int:
    sort_few(positions, first, size)
    return drop_repeated(positions, first, size)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 16, 17, 64])
@pytest.mark.parametrize("num_values", [2, 40, 1 << 40])
def test_positions_are_sorted_and_kept_once(rng: np.random.Generator, size: int, num_values: int) -> None:
    positions = rng.integers(0, num_values, size + 4)
    wanted = np.unique(positions[3 : 3 + size]).tolist()
    around = [*positions[:3], positions[-1]]
    assert sort_once(positions, 3, size) == len(wanted)
    assert positions[3 : 3 + len(wanted)].tolist() == wanted
    assert [*positions[:3], positions[-1]] == around


def test_a_position_is_inserted_in_order_unless_present() -> None:
    positions = np.array([9, 2, 4, 8, -1])
    assert not for_python(insert_position)(4, positions, 1, 3)
    assert for_python(insert_position)(5, positions, 1, 3)
    assert positions.tolist() == [9, 2, 4, 5, 8]
