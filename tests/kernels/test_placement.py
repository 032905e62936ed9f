"""Checks that a stream places nodes as the papers define, within limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.placement import add_amounts, add_loads, count_keys, place_nodes
from tests import naive_assign


@st.composite
def loaded_graphs(draw: st.DrawFn):
    """Neighbours of each node, (row, amount) of each node, rows, amounts and limits."""
    num_nodes, num_parts = draw(st.integers(1, 14)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    is_joined = np.triu(rng.random((num_nodes, num_nodes)) < 0.3, 1)
    neighbors = [np.flatnonzero(row).tolist() for row in is_joined | is_joined.T]
    classes = rng.integers(-1, 2, num_nodes)
    rows = np.array([np.zeros(num_nodes), np.where(classes < 0, -1, classes + 1)], np.int32)
    amounts = rng.integers(1, 9, (1, num_nodes))
    weights = [[(0, a), (c + 1, 1)][: 2 - (c < 0)] for a, c in zip(amounts[0].tolist(), classes.tolist(), strict=True)]
    limits = np.array([[amounts.sum()], [num_nodes], [num_nodes]]) * rng.choice([0.3, 0.6, 1.1], (3, num_parts))
    owner = rng.integers(-1, num_parts, num_nodes).astype(np.int32)
    return neighbors, weights, rows, amounts, limits, owner


def as_csr(neighbors: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.concatenate([[0], np.cumsum([len(around) for around in neighbors])]).astype(np.int64)
    return indptr, np.array([other for around in neighbors for other in around], np.uint32)


@settings(max_examples=60, deadline=None)
@given(loaded_graphs(), st.sampled_from([None, 0.3]), st.integers(0, 4), st.integers(0, 14))
def test_placement_equals_the_naive_reference(graph, penalty, first_part, middle):
    neighbors, weights, rows, amounts, limits, owner = graph
    indptr, flat = as_csr(neighbors)
    first_part %= limits.shape[1]
    wanted = naive_assign.place(neighbors, weights, limits.tolist(), penalty, first_part, owner.tolist())
    loads, counts = np.zeros(limits.shape, np.int64), np.zeros(limits.shape[1], np.int64)
    middle = min(middle, len(neighbors))
    for first, stop in ((0, middle), (middle, len(neighbors))):  # blocks do not matter
        place_nodes(
            first, stop, indptr, flat[indptr[first] : indptr[stop]], rows, amounts, limits, penalty is not None,
            penalty or 0.0, first_part, loads, owner, counts,
        )  # fmt: skip
    assert owner.tolist() == wanted
    placed = [part if around else -1 for part, around in zip(wanted, neighbors, strict=True)]
    again = np.zeros(limits.shape, np.int64)
    add_loads(np.array(placed, np.int32), rows, amounts, again)
    assert loads.tolist() == again.tolist() and not counts.any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_keys_and_amounts_are_counted(rng, dtype):
    keys, amounts = rng.integers(0, 9, 100).astype(dtype), rng.integers(0, 5, 100)
    counts, sums = np.ones(9, np.int64), np.ones(9, np.int64)
    count_keys(keys, counts)
    add_amounts(keys, amounts, sums)
    assert counts.tolist() == (1 + np.bincount(keys.astype(np.int64), minlength=9)).tolist()
    assert sums.tolist() == (1 + np.bincount(keys.astype(np.int64), amounts, minlength=9)).tolist()
