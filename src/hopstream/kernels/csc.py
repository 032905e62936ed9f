"""How are edges grouped by one of their ends?

[Algorithm] Counting sort by the grouping end: one pass counts, one pass places. Edges of one node keep their original
    order.
[Cost] Two sequential reads of the ends and one random write per edge.
[Not chosen] ``numpy.argsort(kind="stable")``: 3 to 6 times slower on 64 M edges, and it needs an int64 copy of the
    order.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_rows(rows: np.ndarray, indptr: np.ndarray) -> None:
    """Write the running count of edges per row.

    Args:
        rows: integer[num_edges], the row of each edge's grouping end, in ``[0, num_rows)``.
        indptr: int64[num_rows + 1], out.
    """
    indptr[:] = 0
    for i in range(len(rows)):
        indptr[np.uint64(rows[i]) + np.uint64(1)] += 1
    for row in range(1, len(indptr)):
        indptr[row] += indptr[row - 1]


@njit(cache=True, nogil=True)
def group_edges(rows: np.ndarray, indptr: np.ndarray, cursor: np.ndarray, order: np.ndarray) -> None:
    """Write the edges' positions grouped by row, in original order inside a row.

    Args:
        rows: integer[num_edges], the row of each edge's grouping end.
        indptr: int64[num_rows + 1] of ``count_rows``.
        cursor: int64[num_rows], scratch.
        order: integer[num_edges], out: ``order[indptr[r]:indptr[r + 1]]`` are the edges of row ``r``, ascending.
    """
    for row in range(len(cursor)):
        cursor[row] = indptr[row]
    for i in range(len(rows)):
        row = np.uint64(rows[i])
        order[np.uint64(cursor[row])] = i
        cursor[row] += 1
