"""Writes the kept rows of a table to one file of the chunked graph.

The rows are read from the spilled columns block by block while the file is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.engine import task
from hopstream.ingest.chunked.sources import RaggedSource, cut_rows
from hopstream.ingest.chunked.writing import ChunkFile, write_ends, write_ragged, write_rows
from hopstream.ingest.chunking.buckets import read_values
from hopstream.ingest.chunking.join import kept_path, read_sorted, settled_folder
from hopstream.ingest.chunking.read import ENDS, RAW, SPLITS
from hopstream.ingest.chunking.workplace import ChunkFolder, Layout, Table
from hopstream.ingest.raw_tables.raw_ids import strings_column
from hopstream.schema import FeatureSchema

READ_BYTES = 16 << 20
"""Bytes of rows read at a time from a block with dropped rows."""
ENDS_ROWS = 1 << 16
"""Rows of a ragged feature whose end offsets are read at a time."""


@task
def write_chunk(args: dict[str, Any]) -> dict[str, Any]:
    """Write one file of the chunked graph.

    Returns:
        ``bytes``: Size of the file.
    """
    workplace = ChunkFolder.of(args)
    table = workplace.tables[int(args["table"])]
    file = ChunkFile(
        entity=table.entity, feature=args["feature"], name=args["name"], start=args["start"], stop=args["stop"]
    )
    path = workplace.chunked / file.name
    settings = workplace.spec.chunks
    if file.feature is None:
        ends = (_Ends(workplace, table, end) for end in ("src", "dst"))
        src, dst = (StoredRows(end.offsets, file, np.dtype(np.int64), (), end.read) for end in ends)
        write_ends(path, src, dst, settings)
    elif (schema := FeatureSchema.from_json(args["schema"])).is_fixed_width:
        write_rows(path, _rows_of(workplace, table, file, args, schema), settings)
    else:
        write_ragged(path, StoredRagged(workplace, table, _file_name(table, file, args), schema), file.start, file.stop)
    return {"bytes": path.stat().st_size}


class StoredRows:
    """A range of the kept rows of a table; implements ``hopstream.ingest.chunked.writing.Rows``."""

    def __init__(
        self, offsets: IntArray, file: ChunkFile, dtype: np.dtype[Any], row_shape: tuple[int, ...],
        read: Callable[[int, int, int], Array],
    ) -> None:  # fmt: skip
        """Describe the rows; nothing is read yet.

        Args:
            offsets: int64[num_blocks + 1], the first kept row of each block.
            file: The output file, which gives the range of rows.
            dtype: Dtype of the values.
            row_shape: Shape of one row.
            read: ``read(block, start, stop)`` returns a range of the kept rows of a block.
        """
        self.dtype, self._offsets, self._read, self._first = dtype, offsets, read, file.start
        self.shape = (file.stop - file.start, *row_shape)

    def __getitem__(self, rows: slice, /) -> Array:
        """Read a slice of the rows."""
        start, stop, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for block, begin, end in _overlaps(self._first + start, self._first + stop, self._offsets):
            place = int(self._offsets[block])
            out = values[begin - self._first - start : end - self._first - start]
            out[:] = self._read(block, begin - place, end - place).reshape(out.shape)
        return values


def _overlaps(first: int, stop: int, offsets: IntArray) -> Iterator[tuple[int, int, int]]:
    """Yield ``(block, begin, end)`` for each block that overlaps the rows ``first`` to ``stop``."""
    block = int(np.searchsorted(offsets, first, side="right")) - 1
    while first < stop:
        end = min(stop, int(offsets[block + 1]))
        if end > first:
            yield block, first, end
        first, block = max(first, end), block + 1


class _Ends:
    """The keys at one end of a table's kept edges, part by part."""

    def __init__(self, workplace: ChunkFolder, table: Table, end: str) -> None:
        layout = workplace.layout(table, is_settled=True)
        self._workplace, self._table, self._end = workplace, table, end
        num_parts = int(layout.parts[-1]) + 1 if len(layout) else 0
        self.offsets = offsets_of(np.bincount(layout.parts, layout.kept, num_parts).astype(np.int64))

    def read(self, part: int, start: int, stop: int) -> Array:
        path = settled_folder(self._workplace, self._table, part) / self._end
        return read_values(path, np.int64, start, stop - start)


class _Column:
    """A spilled column in the order of the table's rows; reading skips dropped rows."""

    def __init__(self, workplace: ChunkFolder, table: Table, name: str, dtype: np.dtype[Any], width: int) -> None:
        self._layout: Layout = workplace.layout(table, is_settled=True)
        self._workplace, self._table, self._name = workplace, table, name
        self._dtype, self._width = dtype, width

    def read(self, block: int, start: int, stop: int) -> Array:
        layout, part = self._layout, int(self._layout.parts[block])
        path = self._workplace.part_folder(self._table, part) / self._name
        first = int(layout.firsts[block])
        if layout.kept[block] == layout.rows[block]:
            return read_values(path, self._dtype, first + start, stop - start, self._width)
        kept_file = kept_path(settled_folder(self._workplace, self._table, part), int(layout.numbers[block]))
        kept = read_values(kept_file, np.uint32, start, stop - start).astype(np.int64)
        values = np.empty((len(kept), self._width), self._dtype)
        step = max(1, READ_BYTES // max(1, self._width * self._dtype.itemsize))
        begin = 0
        while begin < len(kept):
            end = int(np.searchsorted(kept, kept[begin] + step))
            low, high = int(kept[begin]), int(kept[end - 1]) + 1
            rows = read_values(path, self._dtype, first + low, high - low, self._width).reshape(-1, self._width)
            values[begin:end] = rows[kept[begin:end] - low]
            begin = end
        return values.reshape(-1)


class StoredRagged(RaggedSource):
    """The kept rows of a feature of strings or of lists of any length."""

    def __init__(self, workplace: ChunkFolder, table: Table, name: str | None, schema: FeatureSchema) -> None:
        """Describe the rows: a spilled column by name.

        Without a name, they are the sorted raw ids of a type without a table.
        """
        self._workplace, self._table, self._name = workplace, table, name
        self._layout = workplace.layout(table, is_settled=True)
        self.num_rows, self.num_elements = self._layout.num_kept, 0
        self.dtype, self.shape, self.is_string = schema.numpy_dtype, schema.shape, schema.is_string

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read some rows in pieces from the chunks."""
        for block, begin, end in _overlaps(start, stop, self._layout.kept_offsets):
            place = int(self._layout.kept_offsets[block])
            if self._name is None:
                yield strings_column(
                    [read_sorted(self._workplace, self._table.label, block, begin - place, end - place)]
                )
            else:
                yield from self._kept(block, begin - place, end - place, self._name)

    def _kept(self, block: int, start: int, stop: int, name: str) -> Iterator[RaggedArray]:
        """Yield a range of the kept rows of a block; dropped rows are skipped."""
        layout, part = self._layout, int(self._layout.parts[block])
        path = self._workplace.part_folder(self._table, part) / name
        first = int(layout.firsts[block])
        if layout.kept[block] == layout.rows[block]:
            yield from self._stored(path, first + start, first + stop)
            return
        kept_file = kept_path(settled_folder(self._workplace, self._table, part), int(layout.numbers[block]))
        kept = first + read_values(kept_file, np.uint32, start, stop - start).astype(np.int64)
        row = int(kept[0])
        for rows in self._stored(path, row, int(kept[-1]) + 1):
            begin, end = np.searchsorted(kept, [row, row + len(rows)])
            yield rows.take(kept[begin:end] - row)
            row += len(rows)

    def _stored(self, path: Path, start: int, stop: int) -> Iterator[RaggedArray]:
        """Yield a range of the spilled rows of a part, dropped rows included."""
        width = math.prod(self.shape)
        for first in range(start, stop, ENDS_ROWS):
            last = min(first + ENDS_ROWS, stop)
            ends_path = path.with_name(path.name + ENDS)
            before = read_values(ends_path, np.int64, first - 1, 1) if first else np.zeros(1, np.int64)
            offsets = np.concatenate([before, read_values(ends_path, np.int64, first, last - first)])
            for begin, end in cut_rows(offsets, self.element_bytes):
                rows = offsets[begin : end + 1]
                num_elements = int(rows[-1] - rows[0])
                values = read_values(path, self.dtype, int(rows[0]), num_elements, width)
                yield RaggedArray(values.reshape(num_elements, *self.shape), rows - rows[0], self.is_string)


def _file_name(table: Table, file: ChunkFile, args: dict[str, Any]) -> str | None:
    """Return the name of a feature's spilled column; None for sorted raw ids."""
    if args["what"] == "sorted":
        return None
    return RAW if args["what"] == "raw" else f"feature-{list(table.features).index(str(file.feature))}"


def _rows_of(
    workplace: ChunkFolder, table: Table, file: ChunkFile, args: dict[str, Any], schema: FeatureSchema
) -> StoredRows:
    """Return the rows of a feature: one of the table's own, its raw ids, or the mask of a split."""
    layout = workplace.layout(table, is_settled=True)
    if args["what"] == "mask":
        column, code = _Column(workplace, table, "splits", np.dtype(np.uint8), 1), SPLITS.index(str(args["split"]))

        def read_mask(block: int, start: int, stop: int) -> Array:
            mask: Array = column.read(block, start, stop) == code
            return mask

        return StoredRows(layout.kept_offsets, file, np.dtype(np.bool_), (), read_mask)
    name = _file_name(table, file, args)
    if name is None:

        def read_ids(block: int, start: int, stop: int) -> Array:
            ids: Array = read_sorted(workplace, str(table.entity), block, start, stop).to_numpy()
            return ids

        return StoredRows(layout.kept_offsets, file, np.dtype(np.int64), (), read_ids)
    stored = _Column(workplace, table, name, schema.numpy_dtype, math.prod(schema.shape))
    return StoredRows(layout.kept_offsets, file, schema.numpy_dtype, schema.shape, stored.read)


def chunk_args(file: ChunkFile) -> dict[str, Any]:
    """Return the task arguments that describe the file to write."""
    return {"feature": file.feature, "name": file.name, "start": file.start, "stop": file.stop}
