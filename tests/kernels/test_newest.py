"""Checks the newest row of each node against handwritten lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.lookups import WORD_BITS, find_newest, mark_nodes


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
@settings(deadline=None)
def test_newest_rows_replace_those_of_marked_nodes(found):
    num_nodes, touched = found
    nodes = np.array(sorted(touched), np.int64)
    marks = np.zeros((num_nodes // WORD_BITS + 1, 2), np.uint64)
    mark_nodes(nodes, marks)
    newest = 1000 + np.arange(len(nodes))[::-1]
    wanted = np.arange(num_nodes)
    wanted[nodes] = newest
    ids = np.concatenate([np.arange(num_nodes), np.arange(num_nodes)[::-1]])
    got = np.empty(len(ids), np.int64)
    find_newest(ids, marks, newest, got)
    assert got.tolist() == wanted[ids].tolist()


def test_nothing_is_marked():
    marks, got = np.zeros((1, 2), np.uint64), np.empty(3, np.int64)
    find_newest(np.arange(3), marks, np.empty(0, np.int64), got)
    assert got.tolist() == [0, 1, 2]
