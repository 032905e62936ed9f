"""Checks that sets hold what was added to them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from hopstream.kernels.eligible import (
    ENTRIES_PER_WORD,
    NodeFilter,
    add_ids,
    add_pairs,
    add_to_sieve,
    empty_set,
    empty_sieve,
    filter_sets,
    has_id,
    has_pair,
    list_eligible,
    passes,
    set_capacity,
    set_shift,
    sieve_shift,
)


@njit
def which_ids(table: np.ndarray, asked: np.ndarray, found: np.ndarray) -> None:
    shift = set_shift(len(table))
    for i in range(len(asked)):
        found[i] = has_id(np.int64(table.ctypes.data), len(table), shift, asked[i])


@njit
def which_pairs(table: np.ndarray, nodes: np.ndarray, neighbors: np.ndarray, found: np.ndarray) -> None:
    shift = set_shift(len(table) >> 1)
    for i in range(len(nodes)):
        found[i] = has_pair(np.int64(table.ctypes.data), len(table) >> 1, shift, nodes[i], neighbors[i])


@pytest.mark.parametrize("num_ids", [0, 1, 7, 8, 9, 500])
@pytest.mark.parametrize("stop", [1 << 10, 1 << 40])
def test_ids_that_were_added_are_found(rng: np.random.Generator, num_ids: int, stop: int) -> None:
    ids = rng.integers(0, stop, num_ids)
    ids = np.concatenate([ids, ids[: num_ids // 2]])
    table = empty_set(set_capacity(len(ids)))
    add_ids(ids, table)
    assert np.count_nonzero(table >= 0) == len(set(ids.tolist()))
    asked = np.concatenate([ids, rng.integers(0, stop, 500)])
    found = np.empty(len(asked), bool)
    which_ids(table, asked, found)
    assert found.tolist() == np.isin(asked, ids).tolist()


@njit
def which_pass(sieve: np.ndarray, asked: np.ndarray, found: np.ndarray) -> None:
    shift = sieve_shift(len(sieve))
    for i in range(len(asked)):
        found[i] = passes(np.int64(sieve.ctypes.data), len(sieve), shift, asked[i])


@pytest.mark.parametrize("num_ids", [0, 1, 8, 9, 500, 20_000])
@pytest.mark.parametrize("is_of_trees", [False, True])
def test_members_pass_a_sieve_and_few_others(rng: np.random.Generator, num_ids: int, is_of_trees: bool) -> None:
    asked = np.unique(rng.integers(0, 3000, (2, 50_000)) << np.array([[40], [0]]), axis=1).sum(axis=0)
    asked = asked if is_of_trees else np.arange(50_000)
    is_member = np.zeros(len(asked), bool)
    is_member[rng.permutation(len(asked))[:num_ids]] = True
    sieve = empty_sieve(set_capacity(num_ids))
    add_to_sieve(asked[is_member], sieve)
    found = np.empty(len(asked), bool)
    which_pass(sieve, asked, found)
    assert found[is_member].all()
    assert found[~is_member].mean() <= 1 / 16


@pytest.mark.parametrize("num_pairs", [0, 1, 8, 9, 400])
@pytest.mark.parametrize("stop", [12, 1 << 40])
def test_pairs_that_were_added_are_found(rng: np.random.Generator, num_pairs: int, stop: int) -> None:
    nodes, neighbors = rng.integers(0, stop, (2, num_pairs))
    table = empty_set(2 * set_capacity(num_pairs))
    add_pairs(nodes, neighbors, table)
    added = set(zip(nodes.tolist(), neighbors.tolist(), strict=True))
    assert np.count_nonzero(table[::2] >= 0) == len(added)
    asked = np.concatenate([[nodes, neighbors], [neighbors, nodes], rng.integers(0, stop, (2, 400))], axis=1)
    found = np.empty(asked.shape[1], bool)
    which_pairs(table, asked[0], asked[1], found)
    assert found.tolist() == [pair in added for pair in zip(*asked.tolist(), strict=True)]


@pytest.mark.parametrize("num_members", [0, 1, 2, 3, 8, 9, 1000])
def test_sets_stay_half_empty(num_members: int) -> None:
    capacity = set_capacity(num_members)
    assert capacity >= 2 * num_members
    assert capacity & (capacity - 1) == 0


def test_a_word_of_a_sieve_serves_several_entries_of_its_set() -> None:
    assert len(empty_sieve(4096)) == 4096 // ENTRIES_PER_WORD


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("tree", [0, 3 << 40])
@pytest.mark.parametrize("stop", [600, 1 << 31])
@pytest.mark.parametrize("capacity", [64, 4096])
def test_candidates_are_listed_by_bits_and_by_a_sieve(
    rng: np.random.Generator, dtype: type, tree: int, stop: int, capacity: int
) -> None:
    """Candidates of tree 0 are none of another one; a list that is too short asks for more."""
    candidates = np.unique(rng.integers(0, stop, 400))
    indices = np.concatenate([candidates, rng.integers(0, stop, 400), [stop + 5]]).astype(dtype)
    indices = rng.permutation(indices)
    sets = filter_sets(None, candidates)
    assert sets.is_exact == (stop == 600)
    own = NodeFilter(sets.to_filter(40), 1, tree, False)
    listed = np.empty(capacity, np.int64)
    num = list_eligible(own, indices, 3, 600, np.empty(0, np.int64), 0, 0, listed)
    wanted = [] if tree else (3 + np.flatnonzero(np.isin(indices[3:603], candidates))).tolist()
    assert num == (-1 if len(wanted) > capacity else len(wanted))
    assert listed[: max(num, 0)].tolist() == (wanted if num >= 0 else [])
