"""Checks that ids belong to parts that are here."""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.memory import find_part


@kernel
def first_unowned(ids: np.ndarray, offsets: np.ndarray, is_present: np.ndarray) -> int:
    """The position of the first id that no present part owns, or -1.

    Args:
        ids: int64[n], any values.
        offsets: int64[num_parts + 1], id ranges.
        is_present: bool[num_parts].
    """
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= offsets[-1] or not is_present[find_part(offsets, ids[i])]:
            return i
    return -1
