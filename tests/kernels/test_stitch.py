"""Checks that ids are split by part, and that runs are put at their positions."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import offsets_of
from hopstream.kernels.stitch import scatter_runs, split_by_part
from tests import naive


@pytest.mark.parametrize("sizes", [[10], [3, 0, 5, 1], [0, 0, 7], [4, 4, 0], [1] * 9])
def test_ids_are_sorted_by_part_in_their_order(rng: np.random.Generator, sizes: list[int]) -> None:
    offsets = offsets_of(np.array(sizes))
    ids = rng.integers(0, offsets[-1], 50)
    starts, positions, grouped = np.empty(len(offsets), np.int64), np.empty(50, np.int64), np.empty(50, np.int64)
    split_by_part(ids, offsets, starts, positions, grouped)
    wanted = naive.positions_by_part(ids.tolist(), offsets.tolist())
    assert [positions[starts[p] : starts[p + 1]].tolist() for p in range(len(sizes))] == wanted
    assert grouped.tolist() == ids[positions].tolist()


def test_empty_ids_give_no_rows() -> None:
    starts, none = np.full(4, 9), np.empty(0, np.int64)
    split_by_part(none, np.array([0, 2, 2, 5]), starts, none.copy(), none.copy())
    assert starts.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("width", [1, 2, 6])
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64", "float32", "bool"])
def test_runs_of_two_answers_interleave(rng: np.random.Generator, width: int, dtype: str) -> None:
    lengths = rng.integers(0, 5, 25)
    offsets = offsets_of(lengths)
    values = rng.integers(0, 2, (int(offsets[-1]), width)).astype(dtype)
    out = np.empty_like(values)
    order = rng.permutation(25)
    for positions in (order[:11], order[11:]):
        runs = [values[offsets[p] : offsets[p + 1]] for p in positions]
        flat = np.concatenate(runs).reshape(-1)
        scatter_runs(flat, lengths[positions].astype(np.int32), positions, offsets, width, out.reshape(-1))
    assert np.array_equal(out, values)
