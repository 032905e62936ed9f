"""Checks that each row of each server goes to exactly one compute rank."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.compat.gigl.distributed.graph_store.sharding import (
    MAX_DENOMINATOR,
    ServerSlice,
    compute_server_assignments,
)
from hopstream.errors import SettingsError


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    num_ranks=st.integers(1, 40),
)
def test_every_row_is_assigned_to_one_rank_in_order(sizes: list[int], num_ranks: int):
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    taken = []
    for rank in range(num_ranks):
        slices = compute_server_assignments(len(sizes), num_ranks, rank)
        assert list(slices) == list(range(min(slices), max(slices) + 1))
        assert all(number == one.server_rank for number, one in slices.items())
        taken += [one.slice_tensor(rows[number]) for number, one in slices.items()]
    assert np.concatenate(taken).tolist() == list(range(sum(sizes)))


@settings(deadline=None)
@given(num_servers=st.integers(1, 50), num_ranks=st.integers(1, 1 << 20), data=st.data())
def test_neighbouring_ranks_meet_at_the_same_border(num_servers: int, num_ranks: int, data: st.DataObject):
    rank = data.draw(st.integers(0, num_ranks - 1))
    num_rows = data.draw(st.integers(0, 1 << 62))
    slices = compute_server_assignments(num_servers, num_ranks, rank)
    last = slices[max(slices)]
    if rank + 1 < num_ranks:
        following = compute_server_assignments(num_servers, num_ranks, rank + 1)
        first = following[min(following)]
        if first.server_rank == last.server_rank:
            assert last.bounds(num_rows)[1] == first.bounds(num_rows)[0]
        else:
            assert last.bounds(num_rows)[1] == num_rows
            assert first.bounds(num_rows)[0] == 0


@pytest.mark.parametrize(
    ("num_servers", "num_ranks", "wanted"),
    [
        (4, 2, [{0: (0, 2, 2), 1: (0, 2, 2)}, {2: (0, 2, 2), 3: (0, 2, 2)}]),
        (2, 4, [{0: (0, 2, 4)}, {0: (2, 4, 4)}, {1: (0, 2, 4)}, {1: (2, 4, 4)}]),
        (3, 2, [{0: (0, 2, 2), 1: (0, 1, 2)}, {1: (1, 2, 2), 2: (0, 2, 2)}]),
        (2, 3, [{0: (0, 2, 3)}, {0: (2, 3, 3), 1: (0, 1, 3)}, {1: (1, 3, 3)}]),
        (1, 1, [{0: (0, 1, 1)}]),
    ],
)
def test_slices_by_example(num_servers: int, num_ranks: int, wanted: list[dict[int, tuple[int, int, int]]]):
    for rank, slices in enumerate(wanted):
        found = compute_server_assignments(num_servers, num_ranks, rank)
        assert found == {number: ServerSlice(number, *fraction) for number, fraction in slices.items()}


def test_a_slice_of_very_many_rows_is_exact():
    third = ServerSlice(0, 1, 2, 3)
    assert third.bounds((1 << 62) + 1) == (((1 << 62) + 1) // 3, 2 * ((1 << 62) + 1) // 3)
    assert ServerSlice(1, 4, 4, 4).bounds(10) == (10, 10)


def test_a_slice_takes_its_rows_of_arrays_and_tensors():
    rows = np.arange(7)
    third = ServerSlice(0, 2, 4, 6)
    assert third.slice_tensor(rows).tolist() == [2, 3]
    assert third.slice_tensor(torch.from_numpy(rows)).tolist() == [2, 3]
    assert ServerSlice(0, 0, 3, 3).slice_tensor(rows) is rows
    assert third.slice_tensor(rows[:0]).tolist() == []


def test_a_slice_of_numpys_numbers_has_plain_ones():
    numbers = asdict(ServerSlice(*np.array([1, 0, 1, 2]))).values()
    assert all(type(number) is int for number in numbers)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 0, 0, 0), "denominator is 0"),
        ((0, 2, 1, 3), "from 2/3 to 1/3"),
        ((0, -1, 1, 3), "start_numerator is -1"),
        ((0, 0, 4, 3), "end_numerator is 4"),
        ((-1, 0, 1, 1), "server_rank is -1"),
        ((0, 0.5, 1, 1), "start_numerator is 0.5"),
        ((0, 0, 1, MAX_DENOMINATOR + 1), "denominator is"),
    ],
)
def test_wrong_slices_are_refused(fields: tuple[int, int, int, int], message: str):
    with pytest.raises(SettingsError, match=message):
        ServerSlice(*fields)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0, 1, 0), "num_servers is 0"), ((1, 0, 0), "num_compute_nodes is 0"), ((2, 3, 3), "compute_rank is 3")],
)
def test_wrong_ranks_are_refused(numbers: tuple[int, int, int], message: str):
    with pytest.raises(SettingsError, match=message):
        compute_server_assignments(*numbers)
