"""Checks that pieces of requests cover each row once and stay within the budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopstream.arrays import offsets_of
from hopstream.store.wire import Piece, RowCost, Run, cut_pieces

COSTS = st.lists(
    st.builds(RowCost, st.integers(0, 40), st.sampled_from([0, 0.5, 1, 7]))
    | st.lists(st.integers(0, 9), max_size=40).map(
        lambda row: RowCost(len(row), 0, offsets_of(np.array(row, np.int64)))
    ),
    max_size=5,
)


@given(COSTS, st.sampled_from([1, 3, 10, 1000]))
def test_pieces_cover_every_row_once_within_the_budget(costs: list[RowCost], budget: int) -> None:
    rows = []
    for pieces in cut_pieces(costs, budget):
        assert pieces
        weight = sum(costs[p.request].weight(p.start, p.num_rows) for p in pieces)
        assert weight <= budget or (len(pieces) == 1 and pieces[0].num_rows == 1)
        rows += [(p.request, row) for p in pieces for row in range(p.start, p.start + p.num_rows)]
    assert rows == [(request, row) for request, cost in enumerate(costs) for row in range(cost.num_rows)]


def test_small_requests_share_a_frame() -> None:
    assert list(cut_pieces([RowCost(2, 10), RowCost(0, 10), RowCost(3, 10)], 100)) == [[Piece(0, 0, 2), Piece(2, 0, 3)]]


def test_a_heavy_row_is_cut_into_runs_of_its_elements() -> None:
    cost = RowCost(4, 0, offsets_of(np.array([20, 4 + 5 * 16, 4, 36])), element_bytes=16)
    assert list(cut_pieces([cost, RowCost(1, 9)], 40)) == [
        [Piece(0, 0, 1)],
        [Piece(0, 1, 1, Run(0, 2, 5))],
        [Piece(0, 1, 1, Run(2, 2, 5))],
        [Piece(0, 1, 1, Run(4, 1, 5))],
        [Piece(0, 2, 2)],
        [Piece(1, 0, 1)],
    ]
    assert cost.heaviest == 84
