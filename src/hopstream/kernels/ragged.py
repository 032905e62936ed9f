"""Copies ragged rows to given places.

[Algorithm] Rows are copied word by word, in the order in which they were read, to places that are known ahead.
[Cost] Each row is read once and written once, wherever it goes.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel


@kernel
def scatter_rows(
    offsets: np.ndarray, starts: np.ndarray, begin: int, end: int, width: int, values: np.ndarray, out: np.ndarray
) -> None:
    """Copy the rows that belong into a stretch of elements; others are passed over.

    Args:
        offsets: int64[num_rows + 1], where the elements of each row begin in ``values``.
        starts: int64[num_rows], where they belong.
        begin: The first element of the stretch, where a row begins.
        end: One past its last, where a row ends.
        width: Words per element.
        values: words[offsets[-1] * width], what was read.
        out: words[(end - begin) * width], out: the stretch.
    """
    for i in range(len(starts)):
        if starts[i] < begin or starts[i] >= end:
            continue
        first = np.uint64(offsets[i] * width)
        place = np.uint64((starts[i] - begin) * width)
        for word in range(np.uint64((offsets[i + 1] - offsets[i]) * width)):
            out[place + np.uint64(word)] = values[first + np.uint64(word)]
