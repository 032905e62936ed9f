"""How do the kept rows of a table become one file of the chunked graph?

A file's rows are read from where they were kept, a block at a time, while the file is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.engine import task
from hopstream.ingest.chunked.writing import ChunkFile, write_ends, write_rows
from hopstream.ingest.chunking.join import kept_path, read_sorted, settled_folder
from hopstream.ingest.chunking.raw_files import read_values
from hopstream.ingest.chunking.read import RAW, SPLITS
from hopstream.ingest.chunking.workplace import Layout, Table, Workplace, workplace_of

READ_BYTES = 16 << 20
"""Of rows that are read at a time where some of them are left out."""


@task
def write_chunk(args: dict[str, Any]) -> dict[str, Any]:
    """Write one file of the chunked graph.

    Returns:
        ``bytes``: Its size.
    """
    workplace = workplace_of(args)
    table = workplace.tables[int(args["table"])]
    file = ChunkFile(
        owner=table.owner, feature=args["feature"], name=args["name"], start=args["start"], stop=args["stop"]
    )
    path = workplace.chunked / file.name
    settings = workplace.plan.chunks
    if file.feature is None:
        ends = (_Ends(workplace, table, end) for end in ("src", "dst"))
        src, dst = (StoredRows(end.offsets, file, np.dtype(np.int64), (), end.read) for end in ends)
        write_ends(path, src, dst, settings)
    else:
        write_rows(path, _rows_of(workplace, table, file, args), settings)
    return {"bytes": path.stat().st_size}


class StoredRows:
    """Some kept rows of a table; see ``hopstream.ingest.chunked.writing.Rows``."""

    def __init__(
        self, offsets: IntArray, file: ChunkFile, dtype: np.dtype[Any], row_shape: tuple[int, ...],
        read: Callable[[int, int, int], Array],
    ) -> None:  # fmt: skip
        """Say where rows are.

        Args:
            offsets: int64[num_blocks + 1], the first kept row of each block.
            file: Which rows.
            dtype: Of a value.
            row_shape: Of a row.
            read: ``read(block, start, stop)`` gives some kept rows of a block.
        """
        self.dtype, self._offsets, self._read, self._first = dtype, offsets, read, file.start
        self.shape = (file.stop - file.start, *row_shape)

    def __getitem__(self, rows: slice, /) -> Array:
        """Some of the rows."""
        start, stop, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for block, begin, end in _overlaps(self._first + start, self._first + stop, self._offsets):
            place = int(self._offsets[block])
            out = values[begin - self._first - start : end - self._first - start]
            out[:] = self._read(block, begin - place, end - place).reshape(out.shape)
        return values


def _overlaps(first: int, stop: int, offsets: IntArray) -> Iterator[tuple[int, int, int]]:
    """``(block, begin, end)`` of each block that has some of the rows."""
    block = int(np.searchsorted(offsets, first, side="right")) - 1
    while first < stop:
        end = min(stop, int(offsets[block + 1]))
        if end > first:
            yield block, first, end
        first, block = max(first, end), block + 1


class _Ends:
    """The keys at one end of a table's kept edges, part by part."""

    def __init__(self, workplace: Workplace, table: Table, end: str) -> None:
        layout = workplace.layout(table, is_settled=True)
        self._workplace, self._table, self._end = workplace, table, end
        num_parts = int(layout.parts[-1]) + 1 if len(layout) else 0
        self.offsets = offsets_of(np.bincount(layout.parts, layout.kept, num_parts).astype(np.int64))

    def read(self, part: int, start: int, stop: int) -> Array:
        path = settled_folder(self._workplace, self._table, part) / self._end
        return read_values(path, np.int64, start, stop - start)


class _Column:
    """A column that was kept in the order of the table's rows; rows that are left out are passed over."""

    def __init__(self, workplace: Workplace, table: Table, name: str, dtype: np.dtype[Any], width: int) -> None:
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


def _rows_of(workplace: Workplace, table: Table, file: ChunkFile, args: dict[str, Any]) -> StoredRows:
    """The rows of a feature: one of the table, its raw ids, or the mask of a split."""
    layout = workplace.layout(table, is_settled=True)
    what = str(args["what"])
    if what == "sorted":

        def read_ids(block: int, start: int, stop: int) -> Array:
            ids: Array = read_sorted(workplace, str(table.owner), block, start, stop).to_numpy()
            return ids

        return StoredRows(layout.kept_offsets, file, np.dtype(np.int64), (), read_ids)
    if what == "mask":
        column, code = _Column(workplace, table, "splits", np.dtype(np.uint8), 1), SPLITS.index(str(args["split"]))

        def read_mask(block: int, start: int, stop: int) -> Array:
            mask: Array = column.read(block, start, stop) == code
            return mask

        return StoredRows(layout.kept_offsets, file, np.dtype(np.bool_), (), read_mask)
    dtype, shape = np.dtype(args["dtype"]), tuple(args["shape"])
    name = RAW if what == "raw" else f"feature-{list(table.features).index(str(file.feature))}"
    stored = _Column(workplace, table, name, dtype, math.prod(shape))
    return StoredRows(layout.kept_offsets, file, dtype, shape, stored.read)


def chunk_args(file: ChunkFile) -> dict[str, Any]:
    """What a task is told of its file."""
    return {"feature": file.feature, "name": file.name, "start": file.start, "stop": file.stop}
