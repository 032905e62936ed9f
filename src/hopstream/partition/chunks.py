"""Which stretch of rows is worked on at a time, so that memory does not grow with a part?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopstream.arrays import IntArray

CHUNK_ITEMS = 1 << 22
"""Edges, or elements of ragged rows, that are moved at a time."""


def row_chunks(offsets: IntArray, num_items: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """``(first row, end row, first item, end item)`` of stretches of about ``num_items`` items, or of one row.

    Args:
        offsets: int64[num_rows + 1], ascending.
        num_items: How many items; ``CHUNK_ITEMS`` if it is not given.
    """
    num_items = CHUNK_ITEMS if num_items is None else num_items
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows:
        start = int(offsets[first])
        last = int(np.searchsorted(offsets, start + num_items, side="right")) - 1
        last = min(max(last, first + 1), first + num_items, num_rows)
        yield first, last, start, int(offsets[last])
        first = last
