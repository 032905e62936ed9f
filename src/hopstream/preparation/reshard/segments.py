"""Finds the items of a stretch of keys, old place and new, and brings those of a column to the new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.dataset.book import Owner
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.regions import read_array
from hopstream.kernels.segments import move_rows
from hopstream.preparation.dataset_job_folder import IDS
from hopstream.preparation.number_nodes import parts_of, places_of_parts
from hopstream.preparation.reshard.reshard_folder import ReshardFolder, own_type

WORDS = tuple(np.dtype(name) for name in ("uint64", "uint32", "uint16", "uint8"))
"""What items are copied as: the largest that divides them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """The items of some rows, in the order of keys.

    Attributes:
        old_parts: int64[n], the part that each row is read from.
        old_starts: int64[n], its first item there. The items of a part's rows follow each other.
        counts: int64[n], its number of items.
        new_parts: int64[n], the part that it goes to.
        new_starts: int64[n], its first item there. The items of a part's rows follow each other.
    """

    old_parts: IntArray
    old_starts: IntArray
    counts: IntArray
    new_parts: IntArray
    new_starts: IntArray

    def pieces(self, max_items: int) -> Iterator[tuple[int, int, Segments]]:
        """``(first row, end row, segments)`` of about ``max_items`` items; a row with more is cut into several."""
        for first, stop, begin, end in row_chunks(offsets_of(self.counts), max_items):
            if end - begin <= max_items:
                yield first, stop, self._rows(first, stop, 0, None)
            else:
                for start in range(0, end - begin, max_items):
                    yield first, stop, self._rows(first, stop, start, min(max_items, end - begin - start))

    def _rows(self, first: int, stop: int, skipped: int, count: int | None) -> Segments:
        counts = self.counts[first:stop] if count is None else np.array([count], np.int64)
        return Segments(
            old_parts=self.old_parts[first:stop], old_starts=self.old_starts[first:stop] + skipped, counts=counts,
            new_parts=self.new_parts[first:stop], new_starts=self.new_starts[first:stop] + skipped,
        )  # fmt: skip


Read = Callable[[int, int, int], Array]
"""``read(part, begin, end)``, the values of some items of an old part."""


class Moves:
    """How the rows of one piece get from the order of old parts into that of new ones, for any column."""

    def __init__(self, segments: Segments, num_old_parts: int, num_new_parts: int) -> None:
        """Find what is read of each old part, and in which order rows are written."""
        self.counts = segments.counts
        self.starts = np.empty(len(self.counts), np.int64)
        self.old: list[tuple[int, int, int]] = []
        self.num_items = 0
        for part, places in places_of_parts(segments.old_parts, num_old_parts):
            begin = int(segments.old_starts[places[0]])
            end = int(segments.old_starts[places[-1]] + self.counts[places[-1]])
            self.starts[places] = segments.old_starts[places] + (self.num_items - begin)
            self.old.append((part, begin, end))
            self.num_items += end - begin
        self.new: list[tuple[int, int, int, int]] = []
        orders = []
        done = 0
        for part, places in places_of_parts(segments.new_parts, num_new_parts):
            num_here = int(self.counts[places].sum())
            self.new.append((part, int(segments.new_starts[places[0]]), done, done + num_here))
            orders.append(places)
            done += num_here
        self.order = np.concatenate(orders) if orders else np.empty(0, np.int64)

    def read(self, dtype: np.dtype[Any], shape: tuple[int, ...], read: Read) -> Array:
        """``dtype[num_items, *shape]``, what is read of all old parts, one after the other."""
        values = np.empty((self.num_items, *shape), dtype)
        done = 0
        for part, begin, end in self.old:
            values[done : done + end - begin] = read(part, begin, end)
            done += end - begin
        return values

    def moved(self, values: Array) -> Array:
        """The same values in the order of new parts."""
        out = np.empty_like(values)
        if values.nbytes:
            item_bytes = values.nbytes // len(values)
            word = next(word for word in WORDS if item_bytes % word.itemsize == 0)
            flat, flat_out = (array.reshape(-1).view(word) for array in (values, out))
            move_rows(self.order, self.starts, self.counts, item_bytes // word.itemsize, flat, flat_out)
        return out


def locate(
    folder: ReshardFolder, entity: Owner, first_key: int, stop_key: int, next_items: IntArray
) -> tuple[Array, Segments]:
    """The new ids, and the items, of a stretch of keys.

    Args:
        folder: The job.
        entity: What the items belong to.
        first_key: The first key.
        stop_key: One past the last.
        next_items: int64[num_parts], where items go next in each new part; moved on.
    """
    node_type, rows = own_type(entity), folder.rows
    old_offsets, new_offsets = rows.book.node_offsets[node_type], folder.node_offsets(node_type)
    old_ids = rows.ids_of_keys(node_type, first_key, stop_key)
    new_ids = read_array(folder.table_path(IDS, node_type), first_key, stop_key)
    old_parts, new_parts = parts_of(old_ids, old_offsets), parts_of(new_ids, new_offsets)
    old_starts, new_starts, counts = (np.empty(len(old_ids), np.int64) for _ in range(3))
    for part, places in places_of_parts(old_parts, len(old_offsets) - 1):
        first_row = int(old_ids[places[0]] - old_offsets[part])
        starts = rows.starts(entity, part, first_row, first_row + len(places))
        old_starts[places], counts[places] = starts[:-1], np.diff(starts)
    for part, places in places_of_parts(new_parts, len(new_offsets) - 1):
        offsets = offsets_of(counts[places]) + next_items[part]
        new_starts[places] = offsets[:-1]
        next_items[part] = offsets[-1]
    return new_ids, Segments(
        old_parts=old_parts, old_starts=old_starts, counts=counts, new_parts=new_parts, new_starts=new_starts
    )
