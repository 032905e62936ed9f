"""Brings rows from the order of one set of parts into that of another, and counts edges between parts.

[Algorithm] Rows are copied as words, in the order in which they are written, from wherever they lie in what was read.
[Cost] Each item is read once and written once. Rows of one part ascend in what was read, so reads are as many
    sequential streams as there are old parts.
[Not chosen] Sorting items by their new place: it needs a place for each item, and the order of rows says the same.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.memory import find_part


@kernel
def move_rows(
    order: np.ndarray, starts: np.ndarray, counts: np.ndarray, width: int, values: np.ndarray, out: np.ndarray
) -> None:
    """Copy rows one after the other.

    Args:
        order: int64[n], which row comes when.
        starts: int64[n], the first item of each row.
        counts: int64[n], the items of each row.
        width: Words per item.
        values: words[m], what was read.
        out: words[sum(counts) * width], out.
    """
    place = np.uint64(0)
    for i in range(len(order)):
        row = np.uint64(order[i])
        first = np.uint64(starts[row] * width)
        num_words = np.uint64(counts[row] * width)
        for word in range(num_words):
            out[place + np.uint64(word)] = values[first + np.uint64(word)]
        place += num_words


@kernel
def count_parts(ids: np.ndarray, offsets: np.ndarray, counts: np.ndarray) -> None:
    """Count the ids of each part.

    Args:
        ids: integer[n], in range.
        offsets: int64[num_parts + 1], the ids of each part.
        counts: int64[num_parts], added to.
    """
    for i in range(len(ids)):
        counts[np.uint64(find_part(offsets, np.int64(ids[i])))] += 1
