"""How do edges in any order become an undirected graph whose neighbours ascend, without loops and duplicates?

[Algorithm] Two counting sorts. The first groups both directions of every edge by node. The second walks the nodes in
    order and appends each to the rows of its neighbours: a row of the transpose ascends, equal entries follow each
    other, and the transpose of a symmetric graph is the graph.
[Cost] Two sequential reads and three random writes of four bytes per edge and direction. 8.4 M edges of 0.5 M nodes:
    0.5 s, against 1.8 s for sorting 64-bit pairs of both ends.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def group_both_ways(src: np.ndarray, dst: np.ndarray, cursor: np.ndarray, neighbors: np.ndarray) -> None:
    """Write the neighbours of every node, grouped by node, in the order of the edges.

    Args:
        src: uint32[num_edges], one end of each edge.
        dst: uint32[num_edges], the other.
        cursor: int64[num_nodes], where each node's row starts; afterwards where it ends.
        neighbors: uint32[2 * num_edges], out.
    """
    for i in range(len(src)):
        left, right = np.uint64(src[i]), np.uint64(dst[i])
        neighbors[np.uint64(cursor[left])] = right
        cursor[left] += 1
        neighbors[np.uint64(cursor[right])] = left
        cursor[right] += 1


@njit(cache=True, nogil=True)
def transpose_distinct(indptr: np.ndarray, neighbors: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    """Write every row of the transpose, ascending and each entry once, from where the row starts.

    Args:
        indptr: int64[num_nodes + 1], the rows of a graph whose transpose has rows of the same lengths.
        neighbors: uint32[indptr[-1]].
        ends: int64[num_nodes], where each row starts; afterwards where it ends.
        out: uint32[indptr[-1]], out; what lies between the end of a row and the next row is not written.
    """
    for node in range(len(indptr) - 1):
        for position in range(indptr[node], indptr[node + 1]):
            row = np.uint64(neighbors[position])
            end = ends[row]
            if end == indptr[row] or out[np.uint64(end - 1)] != node:
                out[np.uint64(end)] = node
                ends[row] = end + 1


@njit(cache=True, nogil=True)
def close_gaps(indptr: np.ndarray, ends: np.ndarray, neighbors: np.ndarray) -> None:
    """Move rows together, in place.

    Args:
        indptr: int64[num_nodes + 1], where rows start; afterwards the running number of entries.
        ends: int64[num_nodes], where they end, at most where the next one starts.
        neighbors: uint32[m].
    """
    written = 0
    for node in range(len(ends)):
        start, stop = indptr[node], ends[node]
        indptr[node] = written
        for position in range(start, stop):
            neighbors[np.uint64(written)] = neighbors[np.uint64(position)]
            written += 1
    indptr[len(ends)] = written
