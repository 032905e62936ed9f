"""Reads the rows of CSV, Parquet and TFRecord files, batch by batch, and finds the line that a row stands on."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.arrow_checks import ValueCounts, check_codes
from hopstream.ingest.raw_tables.csv_rows import MAX_ROW_BYTES, csv_rows, whole_rows
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.ingest.raw_tables.tfrecords import read_rows

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
        held = {name: files.columns[name] for name in wanted}
        for rows in read_rows(path, shown_path(files, path), held, files.other_names, block_bytes):
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
