"""Splits row ranges into bounded chunks and maps ranges of items to the parts that have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of

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


def cut_counts(counts: IntArray, max_items: int) -> Iterator[tuple[slice, int, IntArray]]:
    """Cuts rows into chunks of at most ``max_items`` items; a row with more comes in several chunks of its own.

    Args:
        counts: int64[n], the items of each row.
        max_items: How many items.

    Yields:
        Rows of a chunk, how many items of its first row came before, and int64[rows], the items that it has of each.
    """
    for first, stop, begin, end in row_chunks(offsets_of(counts), max_items):
        if end - begin <= max_items:
            yield slice(first, stop), 0, counts[first:stop]
        else:
            for skipped in range(0, end - begin, max_items):
                yield slice(first, stop), skipped, np.array([min(max_items, end - begin - skipped)], np.int64)


def positions_of(starts: IntArray, counts: IntArray) -> IntArray:
    """int64[sum(counts)], the positions ``starts[i], starts[i] + 1, ..`` of ``counts[i]`` items for each row."""
    offsets = offsets_of(counts)
    return np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(starts - offsets[:-1], counts)
