"""Reads rows of CSV, Parquet and TFRecord files and of tables in memory, and finds the line of a row.

A record of a TFRecord file is a ``tf.Example`` with a flat list for each column, of int64, float32 or bytes. The shape
and the dtype of a row are in the schema, not in the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.ingest.arrow_checks import ValueCounts, check_codes
from hopstream.ingest.raw_tables.frames import opened_table
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST, MISSING
from hopstream.places.paths import AnyPath, arrow_source, shown_below
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example import LocatedLists, Messages, NamedLists, locate
from hopstream.tfgnn.tfrecord import read_record_blocks

MAX_ROW_BYTES = 1 << 30
"""A longer row is refused: a quotation mark is not closed, or the file was made to exhaust memory."""


def whole_rows(
    read: Callable[[int], bytes], delimiter: str, piece_bytes: int, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[bytes]:
    """Split the text of a CSV file into pieces of whole rows, with Arrow's rules for the ends of rows.

    Args:
        read: Returns up to the given number of next bytes, and none at the end.
        delimiter: One ASCII character.
        piece_bytes: Bytes read at once. For a longer row, the piece grows until the row ends.
        max_row_bytes: Maximum length of a row.

    Raises:
        FormatError: A row is longer than ``max_row_bytes``.
    """
    rows = _rows_pattern(delimiter)
    rest, wanted = b"", piece_bytes
    while block := read(wanted):
        text = rest + block
        end = _end_of_rows(rows, text)
        if end:
            piece, rest, wanted = text[:end], text[end:], piece_bytes
            del text, block
            yield piece
            continue
        rest, wanted = text, min(max(piece_bytes, len(text)), max_row_bytes + 1 - len(text))
        if wanted <= 0:
            raise FormatError(f"a row is longer than {max_row_bytes} bytes")
    if rest:
        yield rest


def _rows_pattern(delimiter: str) -> re.Pattern[bytes]:
    """Return a pattern of whole rows. All quantifiers are possessive, so matching takes linear time."""
    mark = re.escape(delimiter).encode()
    rest = rb"[^" + mark + rb"\r\n]*+"
    cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"' + rest + rb'|[^"' + mark + rb"\r\n]" + rest + rb")?+"
    return re.compile(rb"(?:" + cell + rb"(?:" + mark + cell + rb")*+(?:\r\n?|\n))*+")


def _end_of_rows(rows: re.Pattern[bytes], text: bytes) -> int:
    """Return the end of the last complete row of a text that begins with a row; 0 if no row ends in it."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    begin = 3 if text.startswith(b"\xef\xbb\xbf") else 0  # the byte order mark of UTF-8
    match = rows.match(text, begin)
    end = begin if match is None else match.end()
    return 0 if end == begin else end


def csv_rows(file: IO[str] | Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line, from 1, and the cells of each row.

    Empty lines are skipped, and a quoted cell may contain line ends.

    Raises:
        csv.Error: A row is invalid.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))  # the default is 131,072
    reader = csv.reader(file, delimiter=delimiter)
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1


KIND_NAMES = {BYTES_LIST: "strings", FLOAT_LIST: "reals", INT64_LIST: "integers"}


def _read_records(
    files: TableFiles, path: AnyPath, names: Sequence[str], block_bytes: int | None
) -> Iterator[dict[str, pa.Array]]:
    """Read columns of a TFRecord file block by block.

    Integers in a column of strings are read as their digits.

    Args:
        files: The table.
        path: The file.
        names: The columns.
        block_bytes: Approximate size of a block; None for a size that is fast.

    Yields:
        Column name to an Arrow array of numbers, strings, lists, or lists of fixed size. An array of nulls with the
        empty name gives the number of rows.

    Raises:
        FormatError: The file is damaged, or a record is not a ``tf.Example``.
        ChecksumError: The checksum of a record is wrong.
        SchemaError: A record has no value for a column, or values of the wrong kind, number or range.
    """
    features = {column: (column, *files.other_names.get(column, ())) for column in names}
    wanted = sorted({name for of_column in features.values() for name in of_column})
    for block in read_record_blocks(path, block_bytes):
        where = _Where(shown_path(files, path), block.first, files.columns_said_by)
        located = where.located(Messages(block.data, block.bounds), wanted)
        arrays = {"": pa.nulls(len(block.bounds))}
        for column, of_column in features.items():
            places = [wanted.index(name) for name in of_column]
            arrays[column] = _Column(where, column, files.columns[column]).array(located.first_there(places))
        yield arrays


class _Where:
    """Names of the records of a block in errors."""

    def __init__(self, shown: str, first: int, columns_said_by: str) -> None:
        self._shown, self._first = shown, first
        self.columns_said_by = columns_said_by

    def record(self, row: int) -> str:
        return f"{self._shown} record {self._first + row}"

    def located(self, messages: Messages, names: Sequence[str]) -> LocatedLists:
        try:
            return locate(messages, names)
        except FormatError as error:
            raise self.renamed(error, "is ") from error

    def renamed(self, error: FormatError, verb: str) -> FormatError:
        """Rewrite an error about a message as one about its record."""
        message, _, what = str(error).removeprefix("message ").partition(": ")
        return FormatError(f"{self.record(int(message))} {verb}{what}")


class _Column:
    """A column that is read from the messages of a block."""

    def __init__(self, where: _Where, name: str, schema: FeatureSchema) -> None:
        self._where, self._name, self._schema = where, name, schema
        is_real = schema.dtype.startswith("float")
        self._kind = BYTES_LIST if schema.is_string else FLOAT_LIST if is_real else INT64_LIST

    def array(self, located: LocatedLists) -> pa.Array:
        """Read one list from each message as the column's values."""
        try:
            (lists,) = located.read([self._kind_of(located)])
        except FormatError as error:
            raise self._where.renamed(error, f"has a damaged feature {self._name!r}: ") from error
        per_row = math.prod(self._schema.shape)
        lengths = lists.counts
        wrong = lengths % max(1, per_row) != 0 if self._schema.is_ragged else lengths != per_row
        if wrong.any():
            self._refuse_number(int(np.argmax(wrong)), lists)
        if isinstance(lists.values, RaggedArray):
            return self._strings(lists.values)
        if self._schema.is_string:
            return pa.array(lists.values).cast(pa.large_string())
        values = pa.array(self._converted(lists.values, lists.offsets))
        for width in reversed(self._schema.shape):
            values = pa.FixedSizeListArray.from_arrays(values, width)
        if self._schema.is_ragged:
            return pa.LargeListArray.from_arrays(pa.array(lists.offsets // max(1, per_row)), values)
        return values

    def _kind_of(self, located: LocatedLists) -> int:
        """Return the kind of all lists that are not empty.

        Raises:
            SchemaError: A list is of a kind that does not fit the schema.
        """
        kinds = np.where(located.counts[0] == 0, MISSING, located.found[0, :, 0])
        present = np.unique(kinds[kinds != MISSING]).tolist()
        if self._schema.is_string and present == [INT64_LIST]:
            return INT64_LIST
        if present and present != [self._kind]:
            other = next(kind for kind in present if kind != self._kind)
            raise SchemaError(
                f"{self._where.record(int(np.argmax(kinds == other)))}: feature {self._name!r} holds "
                f"{KIND_NAMES[other]}; {self._where.columns_said_by} {self._schema}"
            )
        return self._kind

    def _refuse_number(self, row: int, lists: NamedLists) -> None:
        place = self._where.record(row)
        if not lists.is_there[row]:
            raise SchemaError(f"{place} has no feature {self._name!r}, which every row needs")
        per_row = math.prod(self._schema.shape)
        wanted = f"a multiple of {per_row}" if self._schema.is_ragged else str(per_row)
        says = self._where.columns_said_by
        raise SchemaError(f"{place}: feature {self._name!r} has {lists.counts[row]} values; {says} {wanted}")

    def _strings(self, strings: RaggedArray) -> pa.Array:
        buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.values)]
        array = pa.Array.from_buffers(pa.large_string(), len(strings), buffers)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            for row in range(len(strings)):
                raw = strings.values[strings.offsets[row] : strings.offsets[row + 1]].tobytes()
                try:
                    raw.decode()
                except UnicodeDecodeError:
                    raise SchemaError(
                        f"{self._where.record(row)}: feature {self._name!r} is {quoted(raw)}, which is not UTF-8; "
                        "Hopstream holds text only"
                    ) from error
            raise
        return array

    def _converted(self, values: Array, offsets: IntArray) -> Array:
        """Convert values to the dtype of the schema.

        Raises:
            SchemaError: The dtype cannot hold a value.
        """
        dtype: np.dtype[Any] = self._schema.numpy_dtype
        if dtype == np.bool_:
            return np.not_equal(values, 0)
        if dtype == np.uint64:  # stored as int64 with the same bits
            return values.view(np.uint64)
        with np.errstate(over="ignore"):
            converted = values.astype(dtype, copy=False)
        is_lost = np.isinf(converted) & ~np.isinf(values) if dtype.kind == "f" else converted != values
        if is_lost.any():
            place = int(np.argmax(is_lost))
            row = int(np.searchsorted(offsets, place, side="right")) - 1
            raise SchemaError(
                f"{self._where.record(row)}: feature {self._name!r} has {values[place].item()!r}, which {dtype} cannot "
                "hold; give it a wider dtype in the schema"
            )
        return converted


PARQUET_BATCH_ROWS = 1 << 16
PARQUET_BUFFER_BYTES = 1 << 20
"""Read buffer per column. Without it Arrow reads the column of a whole row group at once."""
CSV_BLOCK_BYTES = 8 << 20
"""Bytes of a CSV file that are parsed at once."""
BLOCKS_AHEAD = 32
"""Number of blocks that Arrow reads ahead."""
LONGER_THAN_BLOCK = "straddles two block boundaries"
"""Part of Arrow's message about a row that is longer than a block."""


@dataclass(frozen=True, slots=True)
class Origin:
    """File and first row of a batch."""

    files: TableFiles
    path: AnyPath
    first_row: int

    def place(self, row: int) -> str:
        """Return file and line (CSV, from 1), row or record (from 0) of a row of the batch, for messages."""
        shown = shown_path(self.files, self.path)
        line = _line_of_row(self.files, self.path, self.first_row + row) if self.files.format == "csv" else None
        what = "record" if self.files.format == "tfrecord" else "row"
        return f"{shown} {what} {self.first_row + row}" if line is None else f"{shown} line {line}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of one file.

    Attributes:
        origin: File and first row.
        columns: Column name to an Arrow array; cells of CSV files are unparsed strings.
        num_rows: Number of rows.
    """

    origin: Origin
    columns: dict[str, pa.Array]
    num_rows: int


def read_batches(files: TableFiles, columns: Sequence[str]) -> Iterator[Batch]:
    """Read columns of all files of a table, in order.

    Raises:
        FormatError: A file is damaged.
        SchemaError: A file lacks a column.
    """
    for file in range(len(files.paths)):
        yield from read_part(files, FilePart(file=file), columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """A file of a table, or a range of row groups of a Parquet file.

    Attributes:
        file: Index of the file in the table.
        groups: Range ``[start, stop)`` of row groups; None for the whole file.
        first_row: First row of the row groups in the file.
    """

    file: int
    groups: tuple[int, int] | None = None
    first_row: int = 0


def read_part(
    files: TableFiles, part: FilePart, columns: Sequence[str], *, block_bytes: int | None = None
) -> Iterator[Batch]:
    """Read columns of a file, or of a range of row groups.

    Args:
        files: The table.
        part: The file or row groups to read.
        columns: The columns, in any order, possibly repeated.
        block_bytes: To bound memory: bytes decoded at once, in one thread. Of a CSV file, Arrow reads up to 32 blocks
            ahead, and no row may be longer than these. None: large blocks and many threads; a row may have 1 GiB.

    Raises:
        FormatError: The file is damaged.
        SchemaError: The file lacks a column.
    """
    wanted = list(dict.fromkeys(columns))
    path, first_row = files.paths[part.file], part.first_row
    if files.format == "tfrecord":
        for rows in _read_records(files, path, wanted, block_bytes):
            num_rows = len(rows.pop(""))
            yield Batch(Origin(files, path, first_row), rows, num_rows)
            first_row += num_rows
        return
    is_csv = files.format == "csv"
    try:
        if files.format == "arrow":
            batches = _read_table(files, path, wanted)
        elif is_csv:
            batches = _read_csv(files, path, wanted, block_bytes)
        else:
            batches = _read_parquet(files, path, wanted, part.groups, block_bytes)
        for arrow in batches:
            arrays = {name: arrow.column(_name_in(files, arrow.schema.names, name)) for name in wanted}
            yield Batch(Origin(files, path, first_row), arrays, arrow.num_rows)
            first_row += arrow.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        undecodable = _undecodable_line(path) if is_csv else None
        if undecodable is not None:
            raise FormatError(
                f"{shown_path(files, path)} line {undecodable} is not UTF-8; convert the file, or correct the line"
            ) from error
        uneven = _uneven_line(files, path) if is_csv else None
        place = shown_path(files, path) + ("" if uneven is None else f" line {uneven}")
        raise FormatError(f"{place} cannot be read as {files.format}: {error}") from error


def shown_path(files: TableFiles, path: AnyPath) -> str:
    """Return a file's path relative to the folder of the file that describes the tables."""
    return shown_below(path, files.root)


def _read_csv(
    files: TableFiles, path: AnyPath, columns: list[str], block_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    """Read a CSV file in blocks; after a row that is longer than a block, in pieces of whole rows."""
    num_rows = 0
    try:
        for batch in _read_csv_blocks(files, path, columns, block_bytes):
            yield batch
            num_rows += batch.num_rows
    except pa.ArrowInvalid as error:
        if LONGER_THAN_BLOCK not in str(error):
            raise
        yield from _read_csv_pieces(files, path, columns, block_bytes, num_rows)


def _read_csv_blocks(
    files: TableFiles, path: AnyPath, columns: list[str], block_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    how = _csv_options(files, files.names_in(path), block_bytes or CSV_BLOCK_BYTES, is_bounded=block_bytes is not None)
    # Other threads free the blocks than allocate them, and mimalloc returns such memory late: 384 MiB, system pool
    # 327 MiB. For blocks of many megabytes, mimalloc is better: 518 MiB, malloc 770 MiB.
    how["memory_pool"] = None if block_bytes is None else pa.system_memory_pool()
    try:
        with pacsv.open_csv(_csv_source(path), **how) as reader:
            names = reader.schema.names
    except pa.ArrowInvalid as error:
        if files.names_in(path) and "Empty CSV file" in str(error):
            return
        raise
    columns = _check_columns(files, path, names, columns)
    with pacsv.open_csv(_csv_source(path), **how, convert_options=_as_text(columns or names[:1])) as reader:
        yield from reader


def _read_csv_pieces(
    files: TableFiles, path: AnyPath, columns: list[str], block_bytes: int | None, num_read: int
) -> Iterator[pa.RecordBatch]:
    """Read all rows after the first ``num_read``.

    A row may be as long as all blocks that Arrow reads ahead.
    """
    max_row_bytes = MAX_ROW_BYTES if block_bytes is None else BLOCKS_AHEAD * block_bytes
    header, num_rows = files.names_in(path), 0
    names = header or tuple(next(_records(files, path), (1, []))[1])
    columns = _check_columns(files, path, list(names), columns)
    with _csv_source(path) as file:
        pieces = whole_rows(file.read, files.delimiter, block_bytes or CSV_BLOCK_BYTES, max_row_bytes)
        try:
            for piece in pieces:
                if piece[:1] in b"\r\n" and not piece.strip(b"\r\n"):
                    continue
                how = _csv_options(files, header, len(piece) + 1, is_bounded=block_bytes is not None)
                header = names
                with pacsv.open_csv(
                    pa.BufferReader(piece), **how, convert_options=_as_text(columns or names[:1])
                ) as reader:
                    for batch in reader:
                        yield batch.slice(max(0, num_read - num_rows))
                        num_rows += batch.num_rows
        except FormatError as error:
            remedy = "give more memory, or " if block_bytes is not None else ""
            raise FormatError(
                f"{shown_path(files, path)} row {num_rows}: {error}; {remedy}keep the table in Parquet files"
            ) from error


def _csv_options(
    files: TableFiles, header: Sequence[str] | None, block_bytes: int, *, is_bounded: bool
) -> dict[str, Any]:
    """Return Arrow's options for a CSV file or a piece of one.

    Without ``header``, the first row is the header.
    """
    return {
        "parse_options": pacsv.ParseOptions(delimiter=files.delimiter, newlines_in_values=True),
        "read_options": pacsv.ReadOptions(column_names=header, block_size=block_bytes, use_threads=not is_bounded),
    }


def _as_text(columns: Sequence[str]) -> pacsv.ConvertOptions:
    """Return Arrow's options to read only these columns, as strings."""
    return pacsv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
    )


def _read_parquet(
    files: TableFiles, path: AnyPath, columns: list[str], groups: tuple[int, int] | None, block_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(
        arrow_source(path), buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    ) as reader:
        names = reader.schema_arrow.names
        columns = _check_columns(files, path, names, columns)
        row_groups = list(range(reader.num_row_groups) if groups is None else range(*groups))
        batch_rows = PARQUET_BATCH_ROWS
        if block_bytes is not None:
            sizes = [reader.metadata.row_group(group) for group in row_groups]
            row_bytes = max((size.total_byte_size // max(1, size.num_rows) for size in sizes), default=0)
            batch_rows = max(1, min(batch_rows, block_bytes // max(1, row_bytes)))
        counts = ValueCounts(reader.metadata, reader.schema_arrow, columns)
        for batch in reader.iter_batches(
            batch_rows, columns=columns, row_groups=row_groups, use_threads=block_bytes is None
        ):
            counts.add(batch)
            check_codes(batch)
            yield batch
        counts.check(shown_path(files, path), row_groups)


def _read_table(files: TableFiles, path: AnyPath, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with opened_table(files.table) as (names, read):
        for batch in read(_check_columns(files, path, names, columns) or names[:1]):  # one column, to count rows
            if batch.num_rows:
                check_codes(batch)
                yield batch


def _check_columns(files: TableFiles, path: AnyPath, names: list[str], wanted: list[str]) -> list[str]:
    """Return the file's names of the wanted columns, each once.

    Raises:
        SchemaError: The file lacks a column or has it twice.
    """
    in_file = [_name_in(files, names, name) for name in wanted]
    for name, own in zip(wanted, in_file, strict=True):
        if names.count(own) != 1:
            found = "has no column" if own not in names else "has more than one column"
            others = "".join(f" or {other!r}" for other in files.other_names.get(name, ()) if own not in names)
            raise SchemaError(f"{shown_path(files, path)} {found} {own!r}{others}; its columns are {names}")
    return list(dict.fromkeys(in_file))


def _name_in(files: TableFiles, names: Sequence[str], wanted: str) -> str:
    """Return a file's name of a column: its own name, or one of ``other_names``."""
    return next((name for name in (wanted, *files.other_names.get(wanted, ())) if name in names), wanted)


def _line_of_row(files: TableFiles, path: AnyPath, row: int) -> int | None:
    """Return the line, from 1, on which a row starts; None if the file cannot be read that far."""
    records = _records(files, path)
    return next(
        (line for number, (line, _) in enumerate(records, -(files.names_in(path) is None)) if number == row), None
    )


def _uneven_line(files: TableFiles, path: AnyPath) -> int | None:
    """Return the first line, from 1, whose number of cells differs from the first row's, or None."""
    records = _records(files, path)
    num_cells = len(files.names_in(path) or next(records, (1, []))[1])
    return next((line for line, cells in records if len(cells) != num_cells), None)


def is_compressed(path: AnyPath) -> bool:
    """Return whether a file starts with gzip's magic bytes."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _undecodable_line(path: AnyPath) -> int | None:
    """Return the first line, from 1, that is not UTF-8, or None."""
    try:
        with open_plain(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return number
    except (OSError, EOFError):
        return None
    return None


def first_cells(path: AnyPath, delimiter: str = ",") -> list[str]:
    """Return the cells of the first row of a CSV file; none if it is empty or unreadable."""
    files = TableFiles(root=path.parent, paths=(path,), format="csv", delimiter=delimiter)
    return next((cells for _, cells in _records(files, path)), [])


def _records(files: TableFiles, path: AnyPath) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row, up to the first unreadable one.

    Slow; only used to find the line for an error, and to read headers.
    """
    try:
        with open_plain(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield from csv_rows(text, files.delimiter)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        return


def _csv_source(path: AnyPath) -> pa.NativeFile:
    """Open a CSV file for Arrow; the suffix tells whether it is compressed."""
    source = arrow_source(path)
    if source is path:
        return pa.input_stream(str(path), compression="detect")
    return pa.input_stream(source, compression="gzip" if path.name.endswith(".gz") else None)


@contextmanager
def open_plain(path: AnyPath) -> Iterator[IO[bytes]]:
    """Open a file for reading, and decompress it if its suffix is ``.gz``."""
    with path.open("rb") as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.name.endswith(".gz") else file
