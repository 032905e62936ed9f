"""Opens edge files, and reads ranges of their rows from CSV, ``.npy`` and Parquet.

A CSV line is two integers with one delimiter between them. There is no header, no quoting and no empty line. So each
line is a row, and counting line feeds counts rows.

Files are read, not mapped: mapped pages count as resident memory, and a row that is read once gains nothing from a map.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hopstream.arrays import BROKEN_ARRAY_ERRORS, Array, IntArray, read_header
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.ingest.chunked.metadata import FileSpec
from hopstream.ingest.chunked.parquet import open_parquet
from hopstream.ingest.chunked.sources import BLOCK_ROWS, Span
from hopstream.schema import NUMERIC_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyFile:
    """An ``.npy`` file whose header has been read.

    Attributes:
        path: The file.
        shown: Its name in messages.
        num_rows: Length of the first dimension.
        dtype: Dtype in the file, of either byte order.
        shape: Shape of one row.
        is_fortran: The values are in Fortran order; False for arrays of one dimension.
        first_byte: Offset of the first value.
    """

    path: Path
    shown: str
    num_rows: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    first_byte: int

    def read_into(self, start: int, out: Array) -> None:
        """Fill an array in C order and native byte order with rows from ``start`` on.

        Raises:
            FormatError: The file cannot be read, or is shorter than when it was opened.
        """
        if not out.size:
            return
        is_foreign = not self.dtype.isnative
        try:
            with self.path.open("rb", buffering=0) as file:
                if self.is_fortran:
                    self._read_columns(file, start, out)
                else:
                    file.seek(self.first_byte + start * math.prod(self.shape) * self.dtype.itemsize)
                    self._fill(file, out)
        except OSError as error:
            raise FormatError(f"{self.shown} cannot be read ({error})") from error
        if is_foreign:
            out.byteswap(inplace=True)

    def _read_columns(self, file: IO[bytes], start: int, out: Array) -> None:
        columns = np.empty((math.prod(self.shape), len(out)), out.dtype)
        for number, column in enumerate(columns):
            file.seek(self.first_byte + (number * self.num_rows + start) * self.dtype.itemsize)
            self._fill(file, column)
        out[:] = columns.reshape(*reversed(self.shape), len(out)).T

    def _fill(self, file: IO[bytes], out: Array) -> None:
        room = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(room):  # one call reads at most 2 GB
            got = file.readinto(room[done:])  # type: ignore[attr-defined]
            if not got:
                raise FormatError(f"{self.shown} is shorter than when it was opened; was it replaced?")
            done += got


def open_npy(path: Path, shown: str) -> NpyFile:
    """Read the header of an ``.npy`` file and compare it with the file's size.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: The dtype cannot be stored, or the array is a scalar.
    """
    try:
        with path.open("rb") as file:
            shape, is_fortran, dtype = read_header(file)
            first_byte = file.tell()
            num_bytes = path.stat().st_size
    except BROKEN_ARRAY_ERRORS as error:
        raise FormatError(f"{shown} cannot be read as .npy ({error}); it may be truncated") from error
    wanted = first_byte + math.prod(shape) * dtype.itemsize
    if wanted != num_bytes:
        raise FormatError(f"{shown} is {num_bytes} bytes; its header says {wanted}; it may be truncated")
    if dtype.name not in NUMERIC_DTYPES:
        raise SchemaError(f"{shown} is {dtype}{list(shape)}; dtypes are {', '.join(NUMERIC_DTYPES)}")
    if not shape:
        raise SchemaError(f"{shown} is a scalar; wanted an array with one row per node or edge")
    return NpyFile(
        path=path,
        shown=shown,
        num_rows=shape[0],
        dtype=dtype,
        shape=tuple(shape[1:]),
        is_fortran=is_fortran and len(shape) > 1,
        first_byte=first_byte,
    )


Rows = tuple[int, IntArray, IntArray]
"""First row of a block in its file, then source keys and destination keys, int64[num_rows] each."""
MAX_KEY = (1 << 63) - 1


class EdgeFile(ABC):
    """Base class of edge files."""

    shown: str
    """Name of the file in messages."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Return a description of a row for messages."""

    @abstractmethod
    def count(self, declared: int | None) -> int | None:
        """Return the number of edges in the file; None if that takes reading it.

        Raises:
            SchemaError: The file cannot have as many edges as are declared.
        """

    @abstractmethod
    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """Cut the rows into spans of at most ``max_rows``; ``number`` is the file's index in its table."""

    @abstractmethod
    def read(self, span: Span) -> Iterator[Rows]:
        """Read a span in blocks of at most ``BLOCK_ROWS``."""


class CountedFile(EdgeFile):
    """An edge file whose header or footer gives the number of rows."""

    num_rows: int

    def count(self, declared: int | None) -> int:
        """Return the number of edges in the header or footer, after comparing it with the metadata."""
        if declared is not None and self.num_rows != declared:
            raise SchemaError(f"{self.shown} has {self.num_rows} edges; the metadata says {declared}")
        return self.num_rows

    def ends(self) -> Sequence[int]:
        """Return preferred end rows of spans, ascending; the last one is the number of rows."""
        return [self.num_rows]

    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """Cut the rows into spans; only row groups larger than ``max_rows`` are cut.

        A span that ended inside a row group would make the next span decode that group again.
        """
        cuts, last = [0], 0
        for end in self.ends():
            if end - cuts[-1] > max_rows and last > cuts[-1]:
                cuts.append(last)
            cuts.extend(range(cuts[-1] + max_rows, end, max_rows))
            last = end
        if last > cuts[-1]:
            cuts.append(last)
        return [Span(file=number, first_row=start, num_rows=end - start) for start, end in pairwise(cuts)]

    def keys(self, row: int, values: Array) -> IntArray:
        """Convert integers of any dtype to int64; ``row`` is the row of the first one."""
        if values.dtype == np.uint64 and len(values) and int(values.max()) > MAX_KEY:
            bad_row = int(np.argmax(values > MAX_KEY))
            raise IdRangeError(f"{self.place(row + bad_row)} has {int(values[bad_row])}; keys are below 2**63")
        return np.ascontiguousarray(values, np.int64)


SHORTEST_LINE = 4
PARSED_BYTES = (4 << 20) - SHORTEST_LINE
"""Bytes parsed at once: at most ``BLOCK_ROWS`` lines, even of the shortest ones."""
COUNTED_BYTES = 1 << 20
NAMES = ["src", "dst"]
LINE_FEED = ord("\n")


class LinesFile(EdgeFile):
    """An edge file in CSV."""

    def __init__(self, path: Path, shown: str, delimiter: str) -> None:
        """Read the size of the file."""
        self._path = path
        self.shown = shown
        self._delimiter = delimiter
        self._num_bytes = path.stat().st_size

    def place(self, row: int) -> str:
        """Return the file and line of a row for messages; lines count from 1."""
        return f"{self.shown} line {row + 1}"

    def count(self, declared: int | None) -> int | None:
        """Return the number of edges in the metadata, 0 for an empty file, or None if unknown."""
        shortest = (declared or 0) * SHORTEST_LINE - 1  # the last line may end without a line feed
        if declared is not None and (bool(declared) != bool(self._num_bytes) or self._num_bytes < shortest):
            raise SchemaError(f"{self.shown} is {self._num_bytes} bytes; the metadata says {declared} edges")
        return declared if self._num_bytes else 0

    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """Cut the file into spans of lines, which are counted unless one span fits the whole file.

        Raises:
            FormatError: The file cannot be read, or is shorter than when it was opened.
        """
        if declared is not None and declared <= max_rows:
            return [_span(number, 0, declared, 0, self._num_bytes)] if declared else []
        found: list[Span] = []
        num_lines, first_byte, at = 0, 0, 0
        for block in self._blocks(0, self._num_bytes, COUNTED_BYTES):
            values = np.frombuffer(block, np.uint8)
            here = int(np.count_nonzero(values == LINE_FEED))
            wanted = (len(found) + 1) * max_rows - num_lines
            if here >= wanted:
                ends = np.flatnonzero(values == LINE_FEED)
                for end in ends[wanted - 1 :: max_rows]:
                    found.append(_span(number, len(found) * max_rows, max_rows, first_byte, at + int(end) + 1))
                    first_byte = found[-1].end_byte
            num_lines += here
            at += len(block)
            is_ended = values[-1] == LINE_FEED
        if first_byte < self._num_bytes:
            first_row = len(found) * max_rows
            num_rows = num_lines + (not is_ended) - first_row
            found.append(_span(number, first_row, num_rows, first_byte, self._num_bytes))
        return found

    def read(self, span: Span) -> Iterator[Rows]:
        """Read the lines of a span in blocks.

        Raises:
            FormatError: A line does not have two cells, or the file is shorter than when it was opened.
            SchemaError: A cell is not an integer.
        """
        row, rest = span.first_row, b""
        for block in self._blocks(span.first_byte, span.end_byte, PARSED_BYTES):
            cut = block.rfind(b"\n") + 1
            if not cut and len(rest) + len(block) > PARSED_BYTES:
                raise FormatError(f"{self.place(row)} is longer than {PARSED_BYTES} bytes; is the file a CSV file?")
            lines, rest = rest + block[:cut], block[cut:] if cut else rest + block
            for part in self._parsed(row, lines):
                yield row, *part
                row += len(part[0])
        for part in self._parsed(row, rest):
            yield row, *part

    def _parsed(self, row: int, lines: bytes) -> Iterator[tuple[IntArray, IntArray]]:
        if not lines:
            return
        read = pacsv.ReadOptions(column_names=NAMES, use_threads=False, block_size=len(lines) + 1)
        parse = pacsv.ParseOptions(delimiter=self._delimiter, quote_char=False, ignore_empty_lines=False)
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.int64()), null_values=[])
        try:
            table = pacsv.read_csv(pa.BufferReader(lines), read, parse, convert)
        except pa.ArrowException as error:
            raise self._error(row, lines, error) from error
        if b"x" in lines or b"X" in lines:  # Arrow reads 0x10 as 16
            raise self._error(row, lines, None)
        if not table.num_rows or table.num_rows != lines.count(b"\n") + (lines[-1] != LINE_FEED):
            raise self._error(row, lines, None)
        for batch in table.to_batches():
            yield batch.column(0).to_numpy(), batch.column(1).to_numpy()

    def _error(self, row: int, lines: bytes, error: Exception | None) -> FormatError | SchemaError:
        """Build the error for the first bad line, reading line by line; slow, but only used after an error."""
        delimiter = self._delimiter.encode()
        for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n"), row):
            cells = line.removesuffix(b"\r").split(delimiter)
            if len(cells) != len(NAMES):
                shown = line[:100].decode(errors="backslashreplace")
                return FormatError(
                    f"{self.place(number)} is {shown!r}, {len(cells)} cells with delimiter {self._delimiter!r}; wanted "
                    f"two integers, as in '0{self._delimiter}1'"
                )
            bad = next((cell for cell in cells if not _is_int64(cell)), None)
            if bad is not None:
                shown = bad[:100].decode(errors="backslashreplace")
                return SchemaError(f"{self.place(number)} has {shown!r}; wanted an integer")
        last_line = row + lines.count(b"\n")
        return FormatError(f"{self.shown} lines {row + 1} to {last_line} cannot be read as csv ({error})")

    def _blocks(self, first_byte: int, end_byte: int, block_bytes: int) -> Iterator[bytes]:
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(first_byte)
                while first_byte < end_byte:
                    block = file.read(min(block_bytes, end_byte - first_byte))
                    if not block:
                        raise FormatError(f"{self.shown} is shorter than when it was opened; was it replaced?")
                    yield block
                    first_byte += len(block)
        except OSError as error:
            raise FormatError(f"{self.shown} cannot be read ({error})") from error


def _span(file: int, first_row: int, num_rows: int, first_byte: int, end_byte: int) -> Span:
    return Span(file=file, first_row=first_row, num_rows=num_rows, first_byte=first_byte, end_byte=end_byte)


def _is_int64(cell: bytes) -> bool:
    return bool(re.fullmatch(rb"[ \t]*-?\d{1,19}[ \t]*", cell)) and -(1 << 63) <= int(cell) < 1 << 63


class NpyEdges(CountedFile):
    """An ``.npy`` file of integers [num_edges, 2]."""

    def __init__(self, file: NpyFile) -> None:
        """Check dtype and shape.

        Raises:
            SchemaError: The array is not integers [num_edges, 2].
        """
        self._file, self.shown, self.num_rows = file, file.shown, file.num_rows
        if file.shape != (2,) or file.dtype.kind not in "iu":
            is_turned = len(file.shape) == 1 and file.num_rows == 2
            remedy = "transpose them" if is_turned else "give one row [source, destination] per edge"
            shape = [file.num_rows, *file.shape]
            raise SchemaError(f"{file.shown} is {file.dtype}{shape}; wanted integers [num_edges, 2]: {remedy}")

    def place(self, row: int) -> str:
        """Return the file and number of a row for messages."""
        return f"{self.shown} row {row}"

    def read(self, span: Span) -> Iterator[Rows]:
        """Read a span of the mapped array in blocks."""
        end = span.first_row + span.num_rows
        for row in range(span.first_row, end, BLOCK_ROWS):
            pairs = np.empty((min(BLOCK_ROWS, end - row), 2), self._file.dtype.newbyteorder("="))
            self._file.read_into(row, pairs)
            yield row, self.keys(row, pairs[:, 0]), self.keys(row, pairs[:, 1])


def open_edge_file(spec: FileSpec, number: int) -> EdgeFile:
    """Open an edge file: read its size, header or footer.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: The file does not hold pairs of integers.
    """
    path, shown = spec.path(number), spec.shown(number)
    if spec.format == "csv":
        return LinesFile(path, shown, spec.delimiter)
    if spec.format == "parquet":
        return ParquetEdges(path, shown)
    return NpyEdges(open_npy(path, shown))


BATCH_ROWS = 1 << 17


class ParquetEdges(CountedFile):
    """A Parquet file of two columns of integers with any names: sources, then destinations."""

    def __init__(self, path: Path, shown: str) -> None:
        """Read the footer.

        Raises:
            FormatError: The file is damaged or truncated.
            SchemaError: The file does not have exactly two columns, both of integers.
        """
        self._file = open_parquet(path, shown)
        self.shown, self.num_rows = shown, self._file.num_rows
        schema = self._file.schema
        if len(schema) != 2 or not all(pa.types.is_integer(field.type) for field in schema):
            columns = {field.name: str(field.type) for field in schema}
            raise SchemaError(f"{shown} has columns {columns}; wanted two of integers, sources and destinations")

    def place(self, row: int) -> str:
        """Return the file and number of a row for messages."""
        return self._file.place(row)

    def ends(self) -> Sequence[int]:
        """Return the end row of each row group; see ``CountedFile.ends``."""
        return cast(list[int], self._file.group_offsets[1:].tolist())

    def read(self, span: Span) -> Iterator[Rows]:
        """Read the row groups of a span in blocks."""
        for row, columns in self._file.batches(span.first_row, span.first_row + span.num_rows, BATCH_ROWS):
            src_keys, dst_keys = (self._integers(row, column) for column in columns)
            yield row, src_keys, dst_keys

    def _integers(self, row: int, column: pa.Array) -> IntArray:
        if column.null_count:
            bad_row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise SchemaError(f"{self.place(row + bad_row)} has no value; wanted an integer")
        return self.keys(row, column.to_numpy(zero_copy_only=False))
