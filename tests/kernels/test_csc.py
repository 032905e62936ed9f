"""Checks that edges are grouped by row, in original order inside a row."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.adjacency import count_mapped, group_mapped
from tests import naive


@pytest.mark.parametrize("num_own,num_other,num_edges", [(0, 0, 0), (1, 3, 0), (5, 7, 40), (100, 2, 30)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_mapped_grouping_equals_grouping_of_mapped_rows(
    rng: np.random.Generator, num_own: int, num_other: int, num_edges: int, dtype: type
) -> None:
    own_keys, other_keys = rng.integers(0, max(1, num_own), num_edges), rng.integers(0, max(1, num_other), num_edges)
    own_ids, other_ids = rng.permutation(num_own).astype(dtype), rng.permutation(num_other).astype(dtype)
    indptr = np.empty(num_own + 1, np.int64)
    order, indices = np.empty(num_edges, dtype), np.empty(num_edges, dtype)
    count_mapped(own_keys, own_ids, indptr)
    group_mapped(own_keys, other_keys, own_ids, other_ids, indptr[:-1].copy(), order, indices)
    assert (indptr.tolist(), order.tolist()) == naive.group_edges(own_ids[own_keys].tolist(), num_own)
    assert indices.tolist() == other_ids[other_keys[order]].tolist()
