"""Checks that every move lowers the priced cut, and that no move raises the excess over limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.placement import count_cut, excess_change, move_nodes
from tests import naive_assign
from tests.kernels.test_placement import as_csr, loaded_graphs


@settings(max_examples=60, deadline=None)
@given(loaded_graphs(), st.sampled_from([0.0, 0.5, 10.0, 1e9]))
def test_moves_lower_cut_plus_priced_excess_and_never_raise_the_excess(graph, price):
    neighbors, weights, rows, amounts, limits, owner = graph
    owner = np.maximum(owner, 0)
    indptr, flat = as_csr(neighbors)
    num_rows, num_parts = limits.shape
    scales = np.array([0.01, 0.1, 0.2])
    loads = np.array(naive_assign.loads_of(weights, owner.tolist(), num_rows, num_parts), np.int64)
    counts = np.zeros(num_parts, np.int64)

    def state() -> tuple[float, float]:
        over = naive_assign.excess(weights, owner.tolist(), limits.tolist(), scales.tolist())
        return over, naive_assign.cut(neighbors, owner.tolist()) / 2 + price * over

    for node in range(len(neighbors)):
        (over, cost), before = state(), owner.tolist()
        merits = []
        for part in range(num_parts):
            owner[node] = part
            new_over, new_cost = state()
            change = excess_change(node, before[node], part, rows, amounts, limits, scales, loads)
            assert part == before[node] or change == pytest.approx(new_over - over, abs=1e-9)
            if part == before[node] or change <= 0:  # as the kernel rounds it: two sums that are equal may differ
                merits.append(cost - new_cost)
        owner[node] = before[node]
        moved = move_nodes(
            node, node + 1, indptr, flat[indptr[node] : indptr[node + 1]], rows, amounts, limits, scales, price, loads,
            owner, counts,
        )  # fmt: skip
        new_over, new_cost = state()
        assert moved == (owner[node] != before[node]) and not counts.any()
        if moved:
            assert new_over <= over + 1e-9 and new_cost < cost
            assert cost - new_cost == pytest.approx(max(merits), rel=1e-6, abs=1e-6)
    assert loads.tolist() == naive_assign.loads_of(weights, owner.tolist(), num_rows, num_parts)
    blocks = ((0, len(neighbors) // 2), (len(neighbors) // 2, len(neighbors)))
    found = sum(count_cut(a, b, indptr, flat[indptr[a] : indptr[b]], owner) for a, b in blocks)
    assert found == naive_assign.cut(neighbors, owner.tolist())
