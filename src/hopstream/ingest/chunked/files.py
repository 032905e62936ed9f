"""Which rows of features and edges do the files of a chunked graph hold?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import IdRangeError, SchemaError
from hopstream.ingest.chunked.lines import SHORTEST_LINE, LinesFile
from hopstream.ingest.chunked.metadata import FileSpec, TypeSpec
from hopstream.ingest.chunked.npy import NpyFile, open_npy
from hopstream.ingest.chunked.parquet import ParquetColumn, ParquetFile, open_parquet_column, open_parquet_edges
from hopstream.ingest.chunked.sources import BLOCK_ROWS, ColumnSource, EdgeSource, Ends, Piece, Span
from hopstream.schema import EdgeType

PARQUET_EDGE_ROWS = 1 << 17
EdgeFile = LinesFile | NpyFile | ParquetFile


class FileColumn(ColumnSource):
    """A feature in ``.npy`` or Parquet files."""

    def __init__(self, spec: FileSpec, num_rows: int, what: str) -> None:
        """Read the headers or footers.

        Args:
            spec: The files.
            num_rows: How many rows they must have in all.
            what: What a row is, ``node`` or ``edge``.

        Raises:
            FormatError: A file is damaged or truncated.
            SchemaError: A file is of another dtype or shape than the first, or they have another number of rows.
        """
        opened = open_npy if spec.format == "numpy" else open_parquet_column
        self._files: list[NpyFile | ParquetColumn] = [
            opened(spec.path(file), spec.shown(file)) for file in range(len(spec.names))
        ]
        self._offsets = offsets_of(np.array([file.num_rows for file in self._files], np.int64))
        if self._offsets[-1] != num_rows:
            raise SchemaError(
                f"{spec.label} has {self._offsets[-1]} rows in {len(self._files)} files ({_shown_rows(self._files)}); "
                f"{num_rows} {what}s are declared"
            )
        if not self._files:
            raise SchemaError(f"{spec.label} lists no file, so its dtype is unknown; list an empty file")
        self.num_rows = num_rows
        self.dtype = self._files[0].dtype.newbyteorder("=")
        shapes = [file.shape for file in self._files if file.shape is not None]
        self.shape = shapes[0] if shapes else (0,)
        for file in self._files:
            if file.dtype.newbyteorder("=") != self.dtype or file.shape not in (self.shape, None):
                raise SchemaError(
                    f"{file.shown} is {_shown_rows([file], is_long=True)}; "
                    f"before it came {self.dtype.name}[rows, {str(list(self.shape))[1:-1]}]"
                )

    def read(self, start: int, stop: int) -> Array:
        """As ``ColumnSource.read``."""
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        out = np.empty((stop - start, *self.shape), self.dtype)
        file = int(np.searchsorted(self._offsets, start, side="right")) - 1
        row = start
        while row < stop:
            last = min(stop, int(self._offsets[file + 1]))
            if row < last:
                self._files[file].read_into(row - int(self._offsets[file]), out[row - start : last - start])
            row, file = last, file + 1
        return out


class FileEdges(EdgeSource):
    """The ends of the edges of one type in CSV, Parquet or ``.npy`` files."""

    def __init__(self, edge_type: EdgeType, spec: TypeSpec, num_nodes: tuple[int, int]) -> None:
        """Look at the files' sizes, headers or footers.

        Args:
            edge_type: The edge type.
            spec: What the metadata says of it.
            num_nodes: How many nodes the source type and the destination type have.

        Raises:
            FormatError: A file is damaged or truncated.
            SchemaError: A file does not hold pairs of integers, or another number of edges than the metadata says.
        """
        self.num_edges = spec.num_rows
        self._ends = ((edge_type[0], "source", num_nodes[0]), (edge_type[2], "destination", num_nodes[1]))
        self._spec = spec.ends or FileSpec(label=":".join(edge_type), root=Path())
        self._files = [_open_edges(self._spec, file) for file in range(len(self._spec.names))]
        self._declared = spec.chunk_rows
        self._cuts: dict[int, list[Piece]] = {}
        counts = [_declared_rows(file, self._told_rows(number)) for number, file in enumerate(self._files)]
        if None not in counts:
            self._check_total(cast(list[int], counts))

    def _told_rows(self, file: int) -> int | None:
        """How many edges the metadata says that a file has."""
        return None if self._declared is None else self._declared[file]

    def pieces(self, max_rows: int) -> list[Piece]:
        """As ``EdgeSource.pieces``."""
        if max_rows not in self._cuts:
            self._cuts[max_rows] = self._cut(max_rows)
        return self._cuts[max_rows]

    def _cut(self, max_rows: int) -> list[Piece]:
        counts: list[int] = []
        spans: list[Span] = []
        for number, file in enumerate(self._files):
            declared = self._told_rows(number)
            found = _spans(file, number, declared, max_rows)
            counts.append(sum(span.num_rows for span in found))
            if declared is not None and counts[-1] != declared:
                raise SchemaError(f"{file.shown} has {counts[-1]} edges; the metadata says {declared}")
            spans += found
        self._check_total(counts)
        return _packed(spans, max_rows)

    def _check_total(self, counts: Sequence[int]) -> None:
        if sum(counts) != self.num_edges:
            shown = ", ".join(
                f"{name} {count}" for name, count in zip(self._spec.names[:8], counts[:8], strict=True)
            ) + (", …" if len(counts) > 8 else "")
            raise SchemaError(
                f"{self._spec.label} has {sum(counts)} edges in {len(counts)} files ({shown}); "
                f"{self.num_edges} edges are declared"
            )

    def read(self, piece: Piece) -> Iterator[Ends]:
        """As ``EdgeSource.read``."""
        key = piece.first
        for span in piece.spans:
            file = self._files[span.file]
            row, end = span.first_row, span.first_row + span.num_rows
            for first_row, src_keys, dst_keys in _read_edges(file, span):
                row = first_row + len(src_keys)
                if row > end:
                    break
                for keys, what in ((src_keys, self._ends[0]), (dst_keys, self._ends[1])):
                    self._check_range(file, first_row, keys, what)
                yield key, src_keys, dst_keys
                key += len(src_keys)
            if row != end:
                raise SchemaError(
                    f"{file.shown} has {'more' if row > end else row - span.first_row} edges from "
                    f"row {span.first_row} on; wanted {span.num_rows}, as the metadata says or was counted before"
                )

    def _check_range(self, file: EdgeFile, first_row: int, keys: IntArray, end: tuple[str, str, int]) -> None:
        node_type, what, num_nodes = end
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= num_nodes):
            row = int(np.argmax((keys < 0) | (keys >= num_nodes)))
            wanted = f"keys of {node_type} are 0..{num_nodes - 1}" if num_nodes else f"{node_type} has no nodes"
            raise IdRangeError(f"{_place(file, first_row + row)} has {what} {int(keys[row])}; {wanted}")


def _open_edges(spec: FileSpec, number: int) -> EdgeFile:
    path, shown = spec.path(number), spec.shown(number)
    if spec.format == "csv":
        return LinesFile(path=path, shown=shown, delimiter=spec.delimiter, num_bytes=path.stat().st_size)
    if spec.format == "parquet":
        return open_parquet_edges(path, shown)
    file = open_npy(path, shown)
    if file.shape != (2,) or file.dtype.kind not in "iu":
        remedy = "transpose them" if len(file.shape) == 1 and file.num_rows == 2 else "a row is a source and a target"
        shape = [file.num_rows, *file.shape]
        raise SchemaError(f"{shown} is {file.dtype}{shape}; wanted integers [num_edges, 2]: {remedy}")
    return file


def _declared_rows(file: EdgeFile, declared: int | None) -> int | None:
    """How many edges a file has, as far as that is known without reading it; checked against what is declared."""
    if isinstance(file, LinesFile):
        shortest = (declared or 0) * SHORTEST_LINE - 1  # the last line may end without a line feed
        if declared is not None and (bool(declared) != bool(file.num_bytes) or file.num_bytes < shortest):
            raise SchemaError(f"{file.shown} is {file.num_bytes} bytes; the metadata says that it has {declared} edges")
        return declared if file.num_bytes else 0
    if declared is not None and file.num_rows != declared:
        raise SchemaError(f"{file.shown} has {file.num_rows} edges; the metadata says {declared}")
    return file.num_rows


def _spans(file: EdgeFile, number: int, declared: int | None, max_rows: int) -> list[Span]:
    if isinstance(file, LinesFile):
        if declared is None or declared > max_rows:
            return file.spans(number, max_rows)
        return [file.whole(number, declared)] if declared else []
    cuts = _row_cuts(file, max_rows)
    return [Span(file=number, first_row=a, num_rows=b - a) for a, b in pairwise(cuts)]


def _row_cuts(file: NpyFile | ParquetFile, max_rows: int) -> list[int]:
    """Where a file is cut: between row groups where it has such, so that none is decoded twice."""
    cuts = [0]
    ends = file.group_offsets[1:].tolist() if isinstance(file, ParquetFile) else [file.num_rows]
    last = 0
    for end in ends:
        if end - cuts[-1] > max_rows and last > cuts[-1]:
            cuts.append(last)
        cuts.extend(range(cuts[-1] + max_rows, end, max_rows))
        last = end
    if last > cuts[-1]:
        cuts.append(last)
    return cuts


def _packed(spans: Sequence[Span], max_rows: int) -> list[Piece]:
    """Pieces of consecutive spans, so that a thousand small files make no thousand pieces."""
    pieces: list[Piece] = []
    first, num_rows = 0, 0
    held: list[Span] = []
    for span in (*spans, None):
        if held and (span is None or num_rows + span.num_rows > max_rows):
            pieces.append(Piece(first=first, stop=first + num_rows, spans=tuple(held)))
            first, held, num_rows = first + num_rows, [], 0
        if span is not None:
            held, num_rows = [*held, span], num_rows + span.num_rows
    return pieces


def _read_edges(file: EdgeFile, span: Span) -> Iterator[tuple[int, IntArray, IntArray]]:
    if isinstance(file, LinesFile):
        yield from file.read(span)
    elif isinstance(file, ParquetFile):
        end = span.first_row + span.num_rows
        for row, columns in file.batches(span.first_row, end, PARQUET_EDGE_ROWS):
            src_keys, dst_keys = (_integers(file, row, column) for column in columns)
            yield row, src_keys, dst_keys
    else:
        for row in range(span.first_row, span.first_row + span.num_rows, BLOCK_ROWS):
            pairs = np.empty((min(BLOCK_ROWS, span.first_row + span.num_rows - row), 2), file.dtype.newbyteorder("="))
            file.read_into(row, pairs)
            yield row, _as_keys(file, row, pairs[:, 0]), _as_keys(file, row, pairs[:, 1])


def _integers(file: ParquetFile, row: int, column: pa.Array) -> IntArray:
    if column.null_count:
        bad_row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(f"{file.place(row + bad_row)} has no value; wanted an integer")
    return _as_keys(file, row, column.to_numpy(zero_copy_only=False))


def _as_keys(file: EdgeFile, row: int, values: Array) -> IntArray:
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        bad_row = int(np.argmax(values > np.iinfo(np.int64).max))
        raise IdRangeError(f"{_place(file, row + bad_row)} has {int(values[bad_row])}; keys are below 2**63")
    return np.ascontiguousarray(values, np.int64)


def _place(file: EdgeFile, row: int) -> str:
    return f"{file.shown} row {row}" if isinstance(file, NpyFile) else file.place(row)


def _shown_rows(files: Sequence[Any], *, is_long: bool = False) -> str:
    """Rows of the first few files; with ``is_long`` their dtypes and shapes."""
    shown = []
    for file in files[:8]:
        name = file.shown.partition(": ")[2]
        shape = "" if file.shape is None else str([file.num_rows, *file.shape])
        shown.append(f"{file.dtype}{shape}" if is_long else f"{name} {file.num_rows}")
    return ", ".join(shown) + (", …" if len(files) > 8 else "")
