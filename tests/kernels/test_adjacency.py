"""Are rows of an undirected graph ascending, without duplicates, and the same as a slow grouping has them?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import offsets_of
from hopstream.kernels.adjacency import close_gaps, group_both_ways, transpose_distinct


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(0, 0), (1, 0), (2, 9), (7, 60), (50, 40), (300, 2000)])
def test_rows_equal_a_slow_grouping(rng: np.random.Generator, num_nodes: int, num_edges: int) -> None:
    src = rng.integers(0, max(1, num_nodes), num_edges)
    dst = np.where(rng.random(num_edges) < 0.3, 0, rng.integers(0, max(1, num_nodes), num_edges))
    src, dst = (end[src != dst].astype(np.uint32) for end in (src, dst))
    degrees = np.bincount(np.concatenate([src, dst]), minlength=num_nodes)
    indptr = offsets_of(degrees)
    grouped, cursor = np.empty(2 * len(src), np.uint32), indptr[:-1].copy()
    group_both_ways(src, dst, cursor, grouped)
    assert cursor.tolist() == indptr[1:].tolist()
    out, ends = np.empty_like(grouped), indptr[:-1].copy()
    transpose_distinct(indptr, grouped, ends, out)
    close_gaps(indptr, ends, out)
    wanted: list[set[int]] = [set() for _ in range(num_nodes)]
    for left, right in zip(src.tolist(), dst.tolist(), strict=True):
        wanted[left].add(right)
        wanted[right].add(left)
    assert [out[indptr[v] : indptr[v + 1]].tolist() for v in range(num_nodes)] == [sorted(row) for row in wanted]
