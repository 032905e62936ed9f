"""Checks that ragged rows are copied to their places."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import offsets_of
from hopstream.kernels.gather import scatter_rows


@pytest.mark.parametrize("width", [1, 3])
def test_rows_of_a_range_are_copied_and_others_skipped(rng, width):
    lengths = rng.integers(0, 4, 40)
    offsets, order = offsets_of(lengths), rng.permutation(40)
    values = rng.integers(0, 99, (int(offsets[-1]), width)).astype(np.uint32)
    wanted = np.concatenate([values[offsets[row] : offsets[row + 1]] for row in order])
    new_offsets = offsets_of(lengths[order])
    starts = np.empty(40, np.int64)
    starts[order] = new_offsets[:-1]
    for first in range(0, 40, 7):
        begin, end = int(new_offsets[first]), int(new_offsets[min(first + 7, 40)])
        out = np.empty((end - begin) * width, np.uint32)
        for row in range(0, 40, 9):
            of_block = slice(offsets[row], offsets[min(row + 9, 40)])
            block_offsets = offsets[row : row + 10] - offsets[row]
            scatter_rows(block_offsets, starts[row : row + 9], begin, end, width, values[of_block].reshape(-1), out)
        np.testing.assert_array_equal(out.reshape(-1, width), wanted[begin:end])
