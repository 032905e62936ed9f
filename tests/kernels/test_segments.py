"""Checks that rows move as joined slices, and that ids are counted as in a histogram."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hopstream.kernels.gather import count_parts, move_rows


@pytest.mark.parametrize(("word", "width"), [(np.uint8, 1), (np.uint16, 3), (np.uint32, 1), (np.uint64, 5)])
def test_rows_are_moved(rng, word, width):
    counts = rng.integers(0, 6, 40)
    starts = rng.integers(0, 100, 40)
    values = rng.integers(0, 255, 106 * width).astype(word)
    order = rng.permutation(40)
    out = np.empty(int(counts.sum()) * width, word)
    move_rows(order, starts, counts, width, values, out)
    wanted = [values[starts[i] * width : (starts[i] + counts[i]) * width] for i in order]
    assert out.tolist() == np.concatenate(wanted).tolist()


def test_ids_are_counted_by_part(rng):
    offsets = np.array([0, 0, 7, 7, 20, 31])
    ids = rng.integers(0, 31, 500).astype(np.uint32)
    counts = np.ones(5, np.int64)
    count_parts(ids, offsets, counts)
    wanted = [((ids >= first) & (ids < stop)).sum() for first, stop in pairwise(offsets)]
    assert (counts - 1).tolist() == [int(count) for count in wanted]
