"""Checks that nodes of trees become numbers, and nodes again."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.relabel import pack_neighbors, unpack_pairs

SHIFT = 40


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_neighbours_are_in_the_tree_of_the_node_they_were_drawn_for(dtype: type) -> None:
    pairs = np.empty(5, np.int64)
    counts, trees = np.array([2, 0, 3], np.int32), np.array([7, 4, 0])
    pack_neighbors(np.array([10, 11, 12, 13, 10], dtype), counts, trees, SHIFT, pairs)
    assert pairs.tolist() == [(7 << 40) + 10, (7 << 40) + 11, 12, 13, 10]


def test_packed_pairs_are_unpacked(rng: np.random.Generator) -> None:
    trees, ids = rng.integers(0, 1 << 23, 200), rng.integers(0, 1 << 40, 200)
    trees[:2], ids[:2] = (1 << 23) - 1, ((1 << 40) - 1, 0)
    pairs, found_ids, found_trees = np.empty((3, 200), np.int64)
    pack_neighbors(ids, np.ones(200, np.int32), trees, SHIFT, pairs)
    assert pairs.min() >= 0
    unpack_pairs(pairs, SHIFT, found_ids, found_trees)
    assert found_ids.tolist() == ids.tolist()
    assert found_trees.tolist() == trees.tolist()
