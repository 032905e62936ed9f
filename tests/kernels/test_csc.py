"""Are edges grouped by row, in original order inside a row?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.csc import count_rows, group_edges
from tests import naive


@pytest.mark.parametrize("num_rows,num_edges", [(1, 0), (0, 0), (5, 40), (100, 30)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_grouping_equals_the_naive_reference(
    rng: np.random.Generator, num_rows: int, num_edges: int, dtype: type
) -> None:
    rows = rng.integers(0, max(1, num_rows), num_edges).astype(dtype)
    indptr, order = np.empty(num_rows + 1, np.int64), np.empty(num_edges, np.int64)
    count_rows(rows, indptr)
    group_edges(rows, indptr, np.empty(num_rows, np.int64), order)
    assert (indptr.tolist(), order.tolist()) == naive.group_edges(rows.tolist(), num_rows)
