"""Moves the rows of ranges of keys from the files of old parts and overlays to those of new parts.

Counting comes first: the counts of all earlier ranges are the offsets of a range's items in each new part.

A task takes some blocks of keys, and of these as many rows at a time as fit its memory. For a column it reads one range
of each old piece, and writes one range of each new part. Neighbours are renumbered on the way. Everything else is
copied unchanged: the edges of a row keep their order, and no column refers to edges outside of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of, open_array, write_array
from hopstream.dataset.balance import MAX_MATRIX_PARTS
from hopstream.dataset.book import Entity, ends_of, number_dtype
from hopstream.dataset.chunks import cut_counts
from hopstream.dataset.regions import RegionWriter, read_array
from hopstream.dataset.rows import (
    EDGE_KEYS,
    INDICES,
    INT64,
    ColumnFile,
    RaggedFiles,
    entity_folder,
    own_type,
    take_rows,
)
from hopstream.dataset.stored_columns import integers
from hopstream.engine import task
from hopstream.kernels.gather import count_parts
from hopstream.kernels.placement import add_amounts
from hopstream.kernels.spill import take_ids
from hopstream.preparation.dataset_job_folder import IDS, parts_of, places_of_parts
from hopstream.preparation.reshard.reshard_folder import NEW_IDS, ReshardFolder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """Items of some rows, in the order of keys.

    Attributes:
        old_pieces: int64[n], the part or overlay that each row is read from.
        old_starts: int64[n], the position of the row's first item there, ascending in each piece.
        counts: int64[n], the row's number of items.
        new_parts: int64[n], the part that each row is written to.
        new_starts: int64[n], the position of the row's first item there. The items of a part's rows are contiguous.
    """

    old_pieces: IntArray
    old_starts: IntArray
    counts: IntArray
    new_parts: IntArray
    new_starts: IntArray

    def pieces(self, max_items: int) -> Iterator[tuple[int, int, Segments]]:
        """Yield ``(first row, end row, segments)`` of about ``max_items`` items; a longer row is split."""
        for rows, skipped, counts in cut_counts(self.counts, max_items):
            yield rows.start, rows.stop, Segments(
                old_pieces=self.old_pieces[rows], old_starts=self.old_starts[rows] + skipped, counts=counts,
                new_parts=self.new_parts[rows], new_starts=self.new_starts[rows] + skipped,
            )  # fmt: skip


Read = Callable[[int, IntArray, IntArray], Array]
"""``read(piece, starts, counts)`` returns the values of some spans of items of an old piece, in order."""


class Moves:
    """Reordering of some rows from old pieces to new parts, for any column."""

    def __init__(self, segments: Segments, num_old_pieces: int, num_new_parts: int) -> None:
        """Compute the spans to read of each old piece, and the order in which rows are written."""
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
        """Read all old pieces, and return the values in the order of new parts."""
        values, done = np.empty(0), 0
        for spans in self._old:
            here = read(*spans)
            if not done:  # a single piece needs no copy
                values = (
                    here if len(here) == self._num_read else np.empty((self._num_read, *here.shape[1:]), here.dtype)
                )
            if values is not here:
                values[done : done + len(here)] = here
            done += len(here)
            del here  # frees the memory before the next piece is read
        return take_rows(values, self._starts, self._counts, self._order)


def locate(
    folder: ReshardFolder, entity: Entity, first_key: int, stop_key: int, next_items: IntArray
) -> tuple[Array, Segments]:
    """Return the new ids, and the items, of a range of keys.

    Args:
        folder: The job's folder.
        entity: The entity of the items.
        first_key: The first key.
        stop_key: One past the last key.
        next_items: int64[num_parts], the position of the next item in each new part; advanced by this call.
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


ITEM_BYTES = 32
"""Memory per item while its elements are counted."""


@task
def measure_blocks(args: dict[str, Any]) -> dict[str, Any]:
    """Count the items and elements of some blocks by new part; write int64[quantities, blocks, num_parts]."""
    folder, number = ReshardFolder.of(args), int(args["entity"])
    first, stop = int(args["first"]), int(args["stop"])
    entity, num_parts = folder.entities[number], folder.num_parts
    bounds, ragged = folder.blocks(entity), folder.rows.columns(entity).ragged
    counts = np.zeros((1 + len(ragged), stop - first, num_parts), np.int64)
    step = folder.spec.block_rows
    for block in range(first, stop):
        for first_key in range(int(bounds[block]), int(bounds[block + 1]), step):
            stop_key = min(first_key + step, int(bounds[block + 1]))
            _, segments = locate(folder, entity, first_key, stop_key, np.zeros(num_parts, np.int64))
            add_amounts(segments.new_parts, segments.counts, counts[0, block - first])
            for column, per_part in zip(ragged, counts[1:, block - first], strict=True):
                add_amounts(segments.new_parts, num_elements(folder, entity, column, segments), per_part)
    write_array(folder.counts_path(number, first), counts)
    return {}


def num_elements(folder: ReshardFolder, entity: Entity, column: RaggedFiles, segments: Segments) -> IntArray:
    """Return int64[n], the number of elements of all items of each row."""
    found = np.zeros(len(segments.counts), np.int64)
    num_pieces = len(folder.rows.folders(entity))
    for first, stop, piece in segments.pieces(folder.spec.piece_items(ITEM_BYTES)):
        for number, places in places_of_parts(piece.old_pieces, num_pieces):
            starts, counts = piece.old_starts[places], piece.counts[places]
            _, lengths = folder.rows.element_spans(entity, column, number, starts, counts)
            found[first:stop][places] += np.diff(offsets_of(lengths)[offsets_of(counts)])
    return found


def first_places(folder: ReshardFolder, number: int, tasks: list[tuple[int, int]]) -> IntArray:
    """Return the sums of counts before each block, int64[quantities, num_blocks + 1, num_parts]."""
    counts = [np.load(folder.counts_path(number, first)) for first, _ in tasks]
    sums = np.cumsum(np.concatenate(counts, axis=1), axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)


@task
def move_blocks(args: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of some blocks."""
    folder = ReshardFolder.of(args)
    mover = _Mover(folder, int(args["entity"]), int(args["first"]))
    mover.run(int(args["stop"]))
    return {
        "stretches": mover.writer.stretches, "read": folder.rows.stretches, "cut": mover.num_cut,
        "between": mover.between.tolist(),
    }  # fmt: skip


class _Mover:
    """Mover of some blocks of one entity."""

    def __init__(self, folder: ReshardFolder, number: int, first_block: int) -> None:
        self.folder, self.spec, self.rows = folder, folder.spec, folder.rows
        self.entity, self.first_block = folder.entities[number], first_block
        self.columns = self.rows.columns(self.entity)
        self.writer = RegionWriter(folder.dataset)
        firsts = open_array(folder.firsts_path(number))[:, first_block]
        self.next_items: IntArray = firsts[0].copy()
        self.next_elements: IntArray = firsts[1:].copy()
        self.num_old_pieces, self.num_parts = len(self.rows.folders(self.entity)), self.spec.settings.num_parts
        self.new_ids: Array | None = None
        self.key_dtype: np.dtype[Any] = INT64
        self.other_offsets: IntArray = np.empty(0, np.int64)
        if not isinstance(self.entity, str):
            other_type = ends_of(*self.entity)[1]
            self.key_dtype = number_dtype(self.rows.book.num_edges(self.entity[0]))
            self.new_ids, self.other_offsets = folder.table(NEW_IDS, other_type), folder.node_offsets(other_type)
        # One direction has every edge once.
        self.is_counted = not isinstance(self.entity, str) and self.entity[1] == self.rows.contents.directions[0]
        num_rows = self.num_parts if self.is_counted and self.num_parts <= MAX_MATRIX_PARTS else 0
        self.between, self.num_cut = np.zeros((num_rows, num_rows), np.int64), 0
        widest = max((c.item_bytes for c in self.columns.fixed), default=0)
        self.piece_items = self.spec.piece_items(widest)

    def run(self, stop_block: int) -> None:
        """Write the blocks, in ranges of ``block_rows`` rows."""
        if self.first_block == 0:
            self._write_first_offsets()
        bounds, step = self.folder.blocks(self.entity), self.spec.block_rows
        first_key, last_key = int(bounds[self.first_block]), int(bounds[stop_block])
        for first in range(first_key, last_key, step):
            stop = min(first + step, last_key)
            new_ids, segments = locate(self.folder, self.entity, first, stop, self.next_items)
            if not isinstance(self.entity, str):
                self._write_indptr(new_ids, segments)
            for _, _, piece in segments.pieces(self.piece_items):
                moves = Moves(piece, self.num_old_pieces, self.num_parts)
                for column in self.columns.fixed:
                    self._move(column, moves)
                for ragged, next_elements in zip(self.columns.ragged, self.next_elements, strict=True):
                    self._move_ragged(ragged, piece, moves, next_elements)

    def _write_first_offsets(self) -> None:
        """Write the leading 0 of each file of offsets; tasks write the ends of rows and items."""
        names = [str(column.offsets.name) for column in self.columns.ragged]
        names += [] if isinstance(self.entity, str) else ["indptr.npy"]
        zero = np.zeros(1, np.int64)
        for part in range(self.num_parts):
            for name in names:
                self.writer.write(integers(entity_folder(part, self.entity) / name, zero), 0)

    def _write_indptr(self, new_ids: Array, segments: Segments) -> None:
        """Write the end of each row's edges."""
        offsets = self.folder.node_offsets(own_type(self.entity))
        ends = segments.new_starts + segments.counts
        for part, places in places_of_parts(segments.new_parts, self.num_parts):
            first_row = int(new_ids[places[0]]) - int(offsets[part])
            self.writer.write(integers(entity_folder(part, self.entity) / "indptr.npy", ends[places]), first_row + 1)

    def _move(self, column: ColumnFile, moves: Moves) -> None:
        """Move a column with one value per item."""
        if not column.item_bytes:
            return
        values = moves.moved(partial(self.rows.read_spans, self.entity, column))
        if str(column.name) == EDGE_KEYS:  # an earlier revision stored 64 bits
            column = replace(column, dtype=self.key_dtype)
        new_ids = self.new_ids if str(column.name) == INDICES else None
        if new_ids is not None:
            take_ids(values, new_ids, values)
        for part, first_item, begin, end in moves.new:
            self._write(column, part, first_item, values[begin:end])
            if new_ids is not None and self.is_counted:
                self._count(part, values[begin:end])

    def _write(self, column: ColumnFile, part: int, first_item: int, values: Array) -> None:
        path = entity_folder(part, self.entity) / column.name
        self.writer.write_blocks(path, column.dtype, first_item * column.item_bytes, [values])

    def _count(self, part: int, other_ids: Array) -> None:
        """Count the edges whose other end lies in another part."""
        first, stop = int(self.other_offsets[part]), int(self.other_offsets[part + 1])
        self.num_cut += int(np.count_nonzero((other_ids < first) | (other_ids >= stop)))
        if len(self.between):
            counts = np.zeros(self.num_parts, np.int64)
            count_parts(other_ids, self.other_offsets, counts)
            is_in = not isinstance(self.entity, str) and self.entity[1] == "in"
            (self.between.T if is_in else self.between)[part] += counts

    def _move_ragged(self, column: RaggedFiles, piece: Segments, moves: Moves, next_elements: IntArray) -> None:
        """Write the end of each item's elements, and the elements."""
        old_starts, new_starts, counts = (np.zeros(len(piece.counts), np.int64) for _ in range(3))
        places_of_pieces = dict(places_of_parts(piece.old_pieces, self.num_old_pieces))

        def lengths_of(number: int, starts: IntArray, num_items: IntArray) -> IntArray:
            """Return the number of elements of each item; record the locations of each row's elements."""
            first_elements, lengths = self.rows.element_spans(self.entity, column, number, starts, num_items)
            bounds, places = offsets_of(num_items), places_of_pieces[number]
            counts[places] = np.diff(offsets_of(lengths)[bounds])
            # A row without items gets the start of the next row.
            last = first_elements[-1:] + lengths[-1:] if len(lengths) else np.zeros(1, np.int64)
            old_starts[places] = np.append(first_elements, last)[bounds[:-1]]
            return lengths

        lengths = moves.moved(lengths_of)
        for part, first_item, begin, end in moves.new:
            ends = offsets_of(lengths[begin:end])[1:] + next_elements[part]
            self._write(column.offsets, part, first_item + 1, ends)
            places = np.flatnonzero(piece.new_parts == part)
            offsets = offsets_of(counts[places]) + next_elements[part]
            new_starts[places] = offsets[:-1]
            next_elements[part] = offsets[-1]
        elements = Segments(
            old_pieces=piece.old_pieces, old_starts=old_starts, counts=counts, new_parts=piece.new_parts,
            new_starts=new_starts,
        )  # fmt: skip
        read = partial(self.rows.read_spans, self.entity, column.values)
        for _, _, few in elements.pieces(self.spec.piece_items(column.values.item_bytes)):
            few_moves = Moves(few, self.num_old_pieces, self.num_parts)
            values = few_moves.moved(read)
            for part, first_element, begin, end in few_moves.new:
                self._write(column.values, part, first_element, values[begin:end])
