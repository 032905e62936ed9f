"""Where is the newest row of a node, if something was appended to its part?

[Algorithm] The overlays of the node's part are asked one after the other, the newest first: is the row between its
    first and its last, and if so, a binary search without branches.
[Cost] O(log(rows)) per id and overlay of its part; nothing where there is no overlay.
[Not chosen] A table of the newest row of each row: 8 bytes for every node of every edge type, and time to fill it
    whenever a dataset is opened. A hash table of touched rows: the same for what was touched.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.memory import array_at, find_part


@njit(inline="always")
def _last_not_after(values: np.ndarray, wanted: np.int64) -> np.int64:
    """The position of the last value that is not above one that is not below the first."""
    place = np.int64(0)
    num_values = np.int64(len(values))
    while num_values > 1:
        half = num_values >> 1
        place += half * np.int64(values[np.uint64(place + half)] <= wanted)
        num_values -= half
    return place


@njit(cache=True, nogil=True)
def find_newest(
    ids: np.ndarray, offsets: np.ndarray, firsts: np.ndarray, rows: np.ndarray, row_ids: np.ndarray, found: np.ndarray
) -> None:
    """Write the id of each node's newest row: its own, or that of a row of an overlay.

    Args:
        ids: int64[n], ids of nodes, in ``[0, offsets[-1])``.
        offsets: int64[num_parts + 1], id ranges of the nodes' type.
        firsts: int64[num_parts + 1]; part ``p`` has the overlays ``[firsts[p], firsts[p + 1])``, newest first.
        rows: int64[num_overlays, 2], address table of int64 arrays of rows, ascending.
        row_ids: int64[num_overlays], the id of each overlay's first row.
        found: int64[n], out.
    """
    for i in range(len(ids)):
        part = find_part(offsets, ids[i])
        found[i] = ids[i]
        row = ids[i] - offsets[part]
        for overlay in range(firsts[part], firsts[part + 1]):
            num_rows = rows[overlay, 1]
            if num_rows == 0:
                continue
            of_overlay = array_at(rows[overlay, 0], num_rows, np.int64)
            if row < of_overlay[0] or row > of_overlay[num_rows - 1]:
                continue
            place = _last_not_after(of_overlay, row)
            if of_overlay[place] == row:
                found[i] = row_ids[overlay] + place
                break
