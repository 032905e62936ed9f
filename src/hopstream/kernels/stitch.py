"""Splits a request by part, and merges the parts' replies in the request's order.

[Algorithm] Splitting is a counting sort of positions by part. Merging copies whole runs to these positions.
[Cost] Splitting: two passes over the ids, each with a binary search over the parts per id.
[Not chosen] A mask per part instead of the sort: one pass per part.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.memory import find_part


@kernel
def split_by_part(
    ids: np.ndarray, offsets: np.ndarray, part_starts: np.ndarray, positions: np.ndarray, sorted_ids: np.ndarray
) -> None:
    """Sort ids by the part that owns them, in original order inside a part.

    Args:
        ids: int64[n], in ``[0, offsets[-1])``.
        offsets: int64[num_parts + 1], id ranges.
        part_starts: int64[num_parts + 1], out: part ``p`` has ``positions[part_starts[p]:part_starts[p + 1]]``.
        positions: int64[n], out: original position of each id.
        sorted_ids: int64[n], out: ``ids[positions]``.
    """
    num_parts = len(offsets) - 1
    part_starts[:] = 0
    for i in range(len(ids)):
        part_starts[find_part(offsets, ids[i]) + 1] += 1
    for part in range(num_parts):
        part_starts[part + 1] += part_starts[part]
    for i in range(len(ids)):
        part = find_part(offsets, ids[i])
        target = np.uint64(part_starts[part])
        positions[target] = i
        sorted_ids[target] = ids[i]
        part_starts[part] += 1
    for part in range(num_parts, 0, -1):
        part_starts[part] = part_starts[part - 1]
    part_starts[0] = 0


@kernel
def scatter_runs(
    values: np.ndarray, lengths: np.ndarray, positions: np.ndarray, offsets: np.ndarray, width: int, out: np.ndarray
) -> None:
    """Copy runs of different lengths, concatenated in ``values``, to their positions.

    Args:
        values: dtype[sum(lengths) * width].
        lengths: integer[n], elements of each run.
        positions: int64[n], in ``[0, m)``: run ``i`` is copied to ``out[offsets[positions[i]] * width:]``.
        offsets: int64[m + 1], in elements.
        width: Items per element.
        out: dtype[offsets[m] * width].
    """
    first = np.uint64(0)
    for i in range(len(positions)):
        start = np.uint64(offsets[np.uint64(positions[i])] * width)
        num_items = np.uint64(np.int64(lengths[np.uint64(i)]) * width)
        for item in range(num_items):
            out[start + np.uint64(item)] = values[first + np.uint64(item)]
        first += num_items
