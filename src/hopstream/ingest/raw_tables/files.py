"""Reads the rows of CSV, Parquet and TFRecord files, batch by batch, and finds the line that a row stands on.

A message has a flat list for each column, of 64-bit integers, of float32 or of bytes. The schema says
how many values make a row, and their dtype; the file does not.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.ingest.arrow_checks import ValueCounts, check_codes
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST, MISSING
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example import LocatedLists, Messages, NamedLists, locate
from hopstream.tfgnn.tfrecord import read_record_blocks

MAX_ROW_BYTES = 1 << 30
"""A longer row is no row: a quotation mark was never closed, or somebody wants memory."""


def whole_rows(
    read: Callable[[int], bytes], delimiter: str, piece_bytes: int, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[bytes]:
    """The text of a file in pieces that end where rows end, as Arrow reads rows.

    Args:
        read: Gives up to so many next bytes, and none at the end.
        delimiter: One ASCII character.
        piece_bytes: How much is read at once. A longer row has a piece that grows until the row ends.
        max_row_bytes: What no row is longer than.

    Raises:
        FormatError: A row is longer.
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
    """Whole rows. No quantifier gives anything back, so the search takes time in proportion to the text."""
    mark = re.escape(delimiter).encode()
    rest = rb"[^" + mark + rb"\r\n]*+"
    cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"' + rest + rb'|[^"' + mark + rb"\r\n]" + rest + rb")?+"
    return re.compile(rb"(?:" + cell + rb"(?:" + mark + cell + rb")*+(?:\r\n?|\n))*+")


def _end_of_rows(rows: re.Pattern[bytes], text: bytes) -> int:
    """Where the last row ends that ends in a text, which begins with a row; 0 where none does."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    begin = 3 if text.startswith(b"\xef\xbb\xbf") else 0  # the mark of UTF-8 before the first cell
    match = rows.match(text, begin)
    end = begin if match is None else match.end()
    return 0 if end == begin else end


def csv_rows(file: IO[str] | Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line, from 1, and the cells of each row; empty lines are no rows, and a quoted cell may hold several lines.

    Raises:
        csv.Error: A row is none.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))  # 131,072 is what the module begins with
    reader = csv.reader(file, delimiter=delimiter)
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1


KIND_NAMES = {BYTES_LIST: "strings", FLOAT_LIST: "reals", INT64_LIST: "integers"}


def _read_records(
    files: TableFiles, path: Path, names: Sequence[str], block_bytes: int | None
) -> Iterator[dict[str, pa.Array]]:
    """Read some columns of a TFRecord file, block by block. A column of strings may also be of integers: their digits.

    Args:
        files: The table.
        path: The file.
        names: The columns.
        block_bytes: About what a block takes; None for as much as is fast.

    Yields:
        Column name to an Arrow array of numbers, of strings, of lists, or of lists of fixed size. Without columns, one
        of nulls under an empty name tells the number of rows.

    Raises:
        FormatError: The file is damaged, or a record is no ``tf.Example``.
        ChecksumError: A record is not what was written.
        SchemaError: A record has no value for a column, or values of another kind, number or range.
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
    """Names the records of a block in errors."""

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
        """An error that names a message, about its record."""
        message, _, what = str(error).removeprefix("message ").partition(": ")
        return FormatError(f"{self.record(int(message))} {verb}{what}")


class _Column:
    """A column that is read out of the messages of a block."""

    def __init__(self, where: _Where, name: str, schema: FeatureSchema) -> None:
        self._where, self._name, self._schema = where, name, schema
        is_real = schema.dtype.startswith("float")
        self._kind = BYTES_LIST if schema.is_string else FLOAT_LIST if is_real else INT64_LIST

    def array(self, located: LocatedLists) -> pa.Array:
        """The values of one list of each message."""
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
        """The kind of all lists that are not empty."""
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
            raise SchemaError(f"{place} has no feature {self._name!r}; every row of the table has one")
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
        """The values as the dtype of the schema.

        Raises:
            SchemaError: The dtype cannot hold a value.
        """
        dtype: np.dtype[Any] = self._schema.numpy_dtype
        if dtype == np.bool_:
            return np.not_equal(values, 0)
        if dtype == np.uint64:  # kept bit by bit
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
"""How much of a column of a row group is read at once; without it, all."""
CSV_BLOCK_BYTES = 8 << 20
"""How much of a CSV file is parsed at once."""
BLOCKS_AHEAD = 32
"""How many blocks Arrow reads ahead."""
LONGER_THAN_BLOCK = "straddles two block boundaries"
"""What Arrow says of a row that is longer than a block."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a batch of rows comes from."""

    files: TableFiles
    path: Path
    first_row: int

    def place(self, row: int) -> str:
        """File and line (CSV, from 1) or row or record (from 0) of a row of the batch, as messages show it."""
        shown = shown_path(self.files, self.path)
        line = _line_of_row(self.files, self.path, self.first_row + row) if self.files.format == "csv" else None
        what = "record" if self.files.format == "tfrecord" else "row"
        return f"{shown} {what} {self.first_row + row}" if line is None else f"{shown} line {line}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of one file.

    Attributes:
        origin: Where the rows come from.
        columns: Column name to an Arrow array; cells of CSV files are strings, as they stand in the file.
        num_rows: Rows in each of the columns.
    """

    origin: Origin
    columns: dict[str, pa.Array]
    num_rows: int


def read_batches(files: TableFiles, columns: Sequence[str]) -> Iterator[Batch]:
    """Read some columns of a table's files in their order.

    Raises:
        FormatError: A file is damaged.
        SchemaError: A file lacks a column.
    """
    for file in range(len(files.paths)):
        yield from read_part(files, FilePart(file=file), columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """A file of a table, or some row groups of a Parquet file.

    Attributes:
        file: Which file of the table.
        groups: The first row group and the one after the last; None for the whole file.
        first_row: The row of the file at which the row groups begin.
    """

    file: int
    groups: tuple[int, int] | None = None
    first_row: int = 0


def read_part(
    files: TableFiles, part: FilePart, columns: Sequence[str], *, block_bytes: int | None = None
) -> Iterator[Batch]:
    """Read some columns of a file, or of some row groups.

    Args:
        files: The table.
        part: What of it to read.
        columns: The columns, in any order; a column may be there twice.
        block_bytes: How much is decoded at once, in one thread, where memory is short. Of a CSV file, Arrow reads up to
            32 blocks ahead, and no row may be longer than these. None for as much as is fast, in threads; a row may
            have 1 GiB.

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
        batches = (
            _read_csv(files, path, wanted, block_bytes)
            if is_csv
            else _read_parquet(files, path, wanted, part.groups, block_bytes)
        )
        for arrow in batches:
            arrays = {name: arrow.column(_name_in(files, arrow.schema.names, name)) for name in wanted}
            yield Batch(Origin(files, path, first_row), arrays, arrow.num_rows)
            first_row += arrow.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        undecodable = _undecodable_line(path) if is_csv else None
        if undecodable is not None:
            raise FormatError(
                f"{shown_path(files, path)} line {undecodable} is not UTF-8; convert the file, or mend the line"
            ) from error
        uneven = _uneven_line(files, path) if is_csv else None
        place = shown_path(files, path) + ("" if uneven is None else f" line {uneven}")
        raise FormatError(f"{place} cannot be read as {files.format}: {error}") from error


def shown_path(files: TableFiles, path: Path) -> str:
    """A file's path below the folder of the file that describes it."""
    return str(path.relative_to(files.root))


def _read_csv(files: TableFiles, path: Path, columns: list[str], block_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Read blocks ahead; from the first row that is longer than a block, read pieces of whole rows one by one."""
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
    files: TableFiles, path: Path, columns: list[str], block_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    how = _csv_options(files, files.names_in(path), block_bytes or CSV_BLOCK_BYTES, is_bounded=block_bytes is not None)
    # Blocks are freed by other threads than those that took them, which mimalloc gives back late: 384 MiB for 327.
    # It is better for pieces of many megabytes, which malloc keeps: 518 MiB for 770.
    how["memory_pool"] = None if block_bytes is None else pa.system_memory_pool()
    try:
        with pacsv.open_csv(path, **how) as reader:
            names = reader.schema.names
    except pa.ArrowInvalid as error:
        if files.names_in(path) and "Empty CSV file" in str(error):
            return
        raise
    columns = _check_columns(files, path, names, columns)
    with pacsv.open_csv(path, **how, convert_options=_as_text(columns or names[:1])) as reader:
        yield from reader


def _read_csv_pieces(
    files: TableFiles, path: Path, columns: list[str], block_bytes: int | None, num_read: int
) -> Iterator[pa.RecordBatch]:
    """Read all but the first ``num_read`` rows; a row may be as long as all blocks that are read ahead."""
    max_row_bytes = MAX_ROW_BYTES if block_bytes is None else BLOCKS_AHEAD * block_bytes
    header, num_rows = files.names_in(path), 0
    names = header or tuple(next(_records(files, path), (1, []))[1])
    columns = _check_columns(files, path, list(names), columns)
    with pa.input_stream(str(path), compression="detect") as file:
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
    """How Arrow reads a CSV file or a piece of one, whose first row names the columns where no header is given."""
    return {
        "parse_options": pacsv.ParseOptions(delimiter=files.delimiter, newlines_in_values=True),
        "read_options": pacsv.ReadOptions(column_names=header, block_size=block_bytes, use_threads=not is_bounded),
    }


def _as_text(columns: Sequence[str]) -> pacsv.ConvertOptions:
    """Read these columns alone, as strings."""
    return pacsv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
    )


def _read_parquet(
    files: TableFiles, path: Path, columns: list[str], groups: tuple[int, int] | None, block_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(
        path, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
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


def _check_columns(files: TableFiles, path: Path, names: list[str], wanted: list[str]) -> list[str]:
    """What a file calls the columns that are wanted, each once."""
    in_file = [_name_in(files, names, name) for name in wanted]
    for name, own in zip(wanted, in_file, strict=True):
        if names.count(own) != 1:
            found = "has no column" if own not in names else "has more than one column"
            others = "".join(f" or {other!r}" for other in files.other_names.get(name, ()) if own not in names)
            raise SchemaError(f"{shown_path(files, path)} {found} {own!r}{others}; its columns are {names}")
    return list(dict.fromkeys(in_file))


def _name_in(files: TableFiles, names: Sequence[str], wanted: str) -> str:
    """What a file with columns of some names calls a column."""
    return next((name for name in (wanted, *files.other_names.get(wanted, ())) if name in names), wanted)


def _line_of_row(files: TableFiles, path: Path, row: int) -> int | None:
    """The line, from 1, on which a row starts."""
    records = _records(files, path)
    return next(
        (line for number, (line, _) in enumerate(records, -(files.names_in(path) is None)) if number == row), None
    )


def _uneven_line(files: TableFiles, path: Path) -> int | None:
    """The first line, from 1, with another number of cells than the first row; None where that is not what is wrong."""
    records = _records(files, path)
    num_cells = len(files.names_in(path) or next(records, (1, []))[1])
    return next((line for line, cells in records if len(cells) != num_cells), None)


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed with gzip as a whole."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _undecodable_line(path: Path) -> int | None:
    """The first line, from 1, that is not UTF-8; None where that is not what is wrong."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            for number, line in enumerate(cast(IO[bytes], file), 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return number
    except (OSError, EOFError):
        return None
    return None


def first_cells(path: Path) -> list[str]:
    """The cells of the first row of a CSV file with commas; none where it is empty or cannot be read so."""
    files = TableFiles(root=path.parent, paths=(path,), format="csv")
    return next((cells for _, cells in _records(files, path)), [])


def _records(files: TableFiles, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of each row.

    Slow, so only an error that is to name a line reads a file this way. It ends early where it cannot go on.
    """
    try:
        with _open_text(path) as file:
            yield from csv_rows(file, files.delimiter)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        return


def _open_text(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")
