"""Finds where the items of a stretch of keys are and where they go, and brings those of a column there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.dataset.book import Owner
from hopstream.dataset.chunks import cut_counts
from hopstream.dataset.regions import read_array
from hopstream.dataset.rows import own_type, take_rows
from hopstream.preparation.dataset_job_folder import IDS
from hopstream.preparation.number_nodes import parts_of, places_of_parts
from hopstream.preparation.reshard.reshard_folder import ReshardFolder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """The items of some rows, in the order of keys.

    Attributes:
        old_pieces: int64[n], the part or overlay that each row is read from.
        old_starts: int64[n], its first item there, ascending in each piece.
        counts: int64[n], its number of items.
        new_parts: int64[n], the part that it goes to.
        new_starts: int64[n], its first item there. The items of a part's rows follow each other.
    """

    old_pieces: IntArray
    old_starts: IntArray
    counts: IntArray
    new_parts: IntArray
    new_starts: IntArray

    def pieces(self, max_items: int) -> Iterator[tuple[int, int, Segments]]:
        """``(first row, end row, segments)`` of about ``max_items`` items; a row with more is cut into several."""
        for rows, skipped, counts in cut_counts(self.counts, max_items):
            yield rows.start, rows.stop, Segments(
                old_pieces=self.old_pieces[rows], old_starts=self.old_starts[rows] + skipped, counts=counts,
                new_parts=self.new_parts[rows], new_starts=self.new_starts[rows] + skipped,
            )  # fmt: skip


Read = Callable[[int, IntArray, IntArray], Array]
"""``read(piece, starts, counts)``, the values of some spans of items of an old piece, one span after the other."""


class Moves:
    """How some rows get from the order of old pieces into that of new parts, for any column."""

    def __init__(self, segments: Segments, num_old_pieces: int, num_new_parts: int) -> None:
        """Find what is read of each old piece, and in which order rows are written."""
        self._counts = segments.counts
        self._old: list[tuple[int, IntArray, IntArray]] = []
        self._starts = np.empty(len(self._counts), np.int64)
        num_read = 0
        for piece, places in places_of_parts(segments.old_pieces, num_old_pieces):
            counts = self._counts[places]
            self._starts[places] = num_read + offsets_of(counts)[:-1]
            self._old.append((piece, segments.old_starts[places], counts))
            num_read += int(counts.sum())
        self._num_read = num_read
        self.new: list[tuple[int, int, int, int]] = []
        orders, done = [np.empty(0, np.int64)], 0
        for part, places in places_of_parts(segments.new_parts, num_new_parts):
            num_here = int(self._counts[places].sum())
            self.new.append((part, int(segments.new_starts[places[0]]), done, done + num_here))
            orders.append(places)
            done += num_here
        self._order = np.concatenate(orders)

    def moved(self, read: Read) -> Array:
        """What is read of all old pieces, in the order of new parts."""
        values, done = np.empty(0), 0
        for spans in self._old:
            here = read(*spans)
            if not done:  # one piece is not copied
                values = (
                    here if len(here) == self._num_read else np.empty((self._num_read, *here.shape[1:]), here.dtype)
                )
            if values is not here:
                values[done : done + len(here)] = here
            done += len(here)
            del here  # it would stay while the next piece is read
        return take_rows(values, self._starts, self._counts, self._order)


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
    new_parts = parts_of(new_ids, new_offsets)
    old_pieces, old_starts, new_starts, counts = (np.empty(len(old_ids), np.int64) for _ in range(4))
    for part, places in places_of_parts(parts_of(old_ids, old_offsets), len(old_offsets) - 1):
        first_row = int(old_ids[places[0]] - old_offsets[part])
        spans = rows.spans(entity, part, first_row, first_row + len(places))
        old_pieces[places], old_starts[places], counts[places] = spans.pieces, spans.starts, spans.counts
    for part, places in places_of_parts(new_parts, len(new_offsets) - 1):
        offsets = offsets_of(counts[places]) + next_items[part]
        new_starts[places] = offsets[:-1]
        next_items[part] = offsets[-1]
    return new_ids, Segments(
        old_pieces=old_pieces, old_starts=old_starts, counts=counts, new_parts=new_parts, new_starts=new_starts
    )
