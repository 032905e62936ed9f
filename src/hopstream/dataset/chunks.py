"""Which stretch of rows is worked on at a time, so that memory does not grow with a part, and whose is it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hopstream.arrays import Array, IntArray

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


def stretches_of(starts: Array, bounds: IntArray) -> Iterable[tuple[int, int, int]]:
    """``(which, first, stop)`` for each non-empty stretch of ascending values between bounds that follow each other.

    Args:
        starts: integer[n], ascending.
        bounds: int64[m + 1], ascending.
    """
    places = np.searchsorted(starts, bounds)
    for which in np.flatnonzero(np.diff(places)):
        yield int(which), int(places[which]), int(places[which + 1])


def overlaps(first: int, stop: int, bounds: IntArray) -> Iterable[tuple[int, int, int]]:
    """``(which, begin, end)`` for each of the ranges ``[bounds[i], bounds[i + 1])`` that meets ``[first, stop)``."""
    which = int(np.searchsorted(bounds, first, side="right")) - 1
    while first < stop:
        end = min(stop, int(bounds[which + 1]))
        if end > first:
            yield which, first, end
        first, which = max(first, end), which + 1
