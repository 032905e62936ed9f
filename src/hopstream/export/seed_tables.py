"""Reads seeds from tables: CSV, Parquet, TFRecord of tf.Example, or ``.npy`` files, one or many."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hopstream.arrays import RaggedArray, open_array
from hopstream.errors import FormatError, SchemaError, SettingsError, quoted
from hopstream.ingest.raw_tables.csv_rows import csv_rows
from hopstream.ingest.raw_tables.files import read_batches
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.ingest.raw_tables.raw_ids import NAME, strings_column
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.tfrecord import files_of, read_records, sharded_name

BATCH_ROWS = 1 << 16
_SHARD = re.compile(r"-(?:\d{5}|\?{5}|\*)-of-\d{5}$|-?\*$")
_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".npy": "npy", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrecord.gz": "tfrecord",
    ".tfrecords.gz": "tfrecord",
}  # fmt: skip
NODE_COLUMNS = (("#id", "id"),)
LINK_COLUMNS = (("#source", "source"), ("#target", "target"))


@dataclass(frozen=True, slots=True)
class SeedBatch:
    """Some seeds of a table.

    Attributes:
        columns: Arrow ``int64``, ``uint64``, ``string`` (cells of CSV files) or ``large_string`` arrays: one, or
            two for links.
        place: Says where a row of the batch is.
        values: What else the table says of each seed; arrays of these types, or of ``float32``.
    """

    columns: tuple[pa.Array, ...]
    place: Callable[[int], str]
    values: Mapping[str, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeedTable:
    """The files of a table of seeds.

    Attributes:
        paths: The files.
        kind: ``csv``, ``parquet``, ``tfrecord`` or ``npy``.
        columns: For each end, the names that its column may have, in order.
        values: Columns that are read besides; None for all whose names do not begin with ``#``.
    """

    paths: tuple[Path, ...]
    kind: str
    columns: tuple[tuple[str, ...], ...]
    values: tuple[str, ...] | None = ()

    @classmethod
    def of(
        cls,
        name: str | Path,
        columns: tuple[tuple[str, ...], ...] = NODE_COLUMNS,
        values: tuple[str, ...] | None = (),
    ) -> SeedTable:
        """Find the files of a table: one file, ``seeds.csv@4``, or a pattern.

        Raises:
            FormatError: A file is missing.
            SettingsError: The name does not tell what the file holds.
        """
        stem = _SHARD.sub("", sharded_name(str(name))[0])
        kind = next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), None)
        if kind is None:
            raise SettingsError(f"seeds are {str(name)!r}; give a name that ends in one of {', '.join(_SUFFIXES)}")
        if kind == "npy" and values:
            raise SettingsError(f"seeds are {str(name)!r}, which has no column {values[0]!r}; use another format")
        return cls(tuple(files_of(name)), kind, columns, values)

    def states(self) -> list[list[str | int]]:
        """What tells that a file is another one than before."""
        return [[str(path.absolute()), (s := path.stat()).st_size, s.st_mtime_ns] for path in self.paths]

    def num_known(self) -> int:
        """How many rows files say that they have before they are read: ``.npy`` and Parquet; others count as none."""
        if self.kind == "npy":
            return sum(array.shape[0] if array.ndim else 0 for array in map(open_array, self.paths))
        return sum(map(_parquet_rows, self.paths)) if self.kind == "parquet" else 0

    def batches(self) -> Iterator[SeedBatch]:
        """All rows in order.

        Raises:
            FormatError: A file is damaged.
            SchemaError: A column is missing, or holds neither strings nor integers.
        """
        for path in self.paths:
            if self.kind == "npy":
                yield from array_batches(open_array(path), str(path), len(self.columns))
            elif self.kind == "tfrecord":
                yield from self._examples(path)
            else:
                yield from self._table(path)

    def _table(self, path: Path) -> Iterator[SeedBatch]:
        is_csv = self.kind == "csv"
        delimiter = "\t" if ".tsv" in path.name else ","
        files = TableFiles(
            root=path.parent, paths=(path,), format="csv" if is_csv else "parquet", delimiter=delimiter
        )  # fmt: skip
        there = _csv_header(path, delimiter) if is_csv else _parquet_columns(path)
        names = self._chosen(path, there)
        others = self._others(path, there, names)
        for batch in read_batches(files, [*names, *others]):
            columns = tuple(_ids_of(batch.columns[name], f"{path}: column {name!r}") for name in names)
            values = {name: _values_of(batch.columns[name], f"{path}: column {name!r}") for name in others}
            _refuse_nulls((*columns, *values.values()), (*names, *others), batch.origin.place)
            yield SeedBatch(columns, batch.origin.place, values)

    def _chosen(self, path: Path, there: Sequence[str]) -> list[str]:
        """The column of each end."""
        chosen = []
        for names in self.columns:
            found = [name for name in names if name in there]
            if not found:
                raise SchemaError(
                    f"{path} has no column {' or '.join(map(repr, names))}; its columns are {list(there)}"
                )
            chosen.append(found[0])
        return chosen

    def _others(self, path: Path, there: Sequence[str], chosen: Sequence[str]) -> list[str]:
        """The columns that are read besides."""
        if self.values is None:
            return [name for name in there if name not in chosen and not name.startswith("#")]
        missing = [name for name in self.values if name not in there]
        if missing:
            raise SchemaError(f"{path} has no column {missing[0]!r}; its columns are {list(there)}")
        return list(self.values)

    def _examples(self, path: Path) -> Iterator[SeedBatch]:
        rows: list[dict[str, Any]] = []
        first = 0
        for number, record in enumerate(read_records(path)):
            lists = decode_example(record)
            names = self._chosen(path, sorted(lists))
            others = self._others(path, sorted(lists), names)
            where = f"{path} record {number}"
            row = {
                name: _only_value(lists[name], f"{where}: {name}", is_id=name in names) for name in (*names, *others)
            }
            if rows and _kinds(rows[-1]) != _kinds(row):
                raise SchemaError(f"{where}: {quoted(row)} is of another kind than {quoted(rows[-1])} before")
            rows.append(row)
            if len(rows) == BATCH_ROWS:
                yield _example_batch(path, rows, first, len(self.columns))
                rows, first = [], number + 1
        if rows:
            yield _example_batch(path, rows, first, len(self.columns))


def array_batches(given: Any, where: str, num_columns: int = 1) -> Iterator[SeedBatch]:
    """Seeds out of an array.

    Args:
        given: integer or string [n], or [n, 2] for links: an array or lists.
        where: What errors call it.
        num_columns: 1 or 2.

    Raises:
        SchemaError: It is another array, or holds what is neither an integer of 64 bits nor a string.
    """
    values = _as_array(given, where)
    wanted = "[n]" if num_columns == 1 else "[n, 2]"
    if values.ndim != num_columns or (num_columns > 1 and values.shape[1] != num_columns):
        raise SchemaError(f"{where} is {values.dtype}{list(values.shape)}; seeds are integers or strings {wanted}")
    table = values.reshape(len(values), num_columns)
    for first in range(0, len(table), BATCH_ROWS):
        rows = table[first : first + BATCH_ROWS]
        columns = tuple(_ids_of(_arrow_of(rows[:, i], where, first), where) for i in range(num_columns))
        batch = SeedBatch(columns, lambda row, first=first: f"{where} row {first + row}")  # type: ignore[misc]
        _refuse_nulls(columns, ("the seed",) * num_columns, batch.place)
        yield batch


def _as_array(given: Any, where: str) -> Any:
    try:
        return np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise SchemaError(f"{where} is no array: {error}") from error


def _arrow_of(rows: Any, where: str, first: int) -> pa.Array:
    if rows.dtype.kind != "O":
        return pa.array(np.ascontiguousarray(rows))
    for row, value in enumerate(rows.tolist()):
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not (isinstance(value, str | bytes) or (is_integer and -(1 << 63) <= value < 1 << 64)):
            raise SchemaError(
                f"{where} row {first + row} is {quoted(value)}; a seed is a string, or an integer of 64 bits"
            )
    try:
        numbers = any(isinstance(value, int | np.integer) and value >= 1 << 63 for value in rows.tolist())
        return pa.array(rows.tolist(), pa.uint64() if numbers else None)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaError(f"{where} rows {first} to {first + len(rows) - 1} are of several kinds: {error}") from error


def digest_of_seeds(batches: Iterable[SeedBatch]) -> str:
    """A digest of the values of seeds, the same in every process and for arrays of any dtype that holds them."""
    digest = hashlib.sha256()
    for batch in batches:
        for column in batch.columns:
            is_integer = pa.types.is_integer(column.type)
            text = strings_column([column.cast(NAME)])
            digest.update(b"%d %d %d;" % (is_integer, len(text), len(text.values)))
            digest.update(text.offsets.tobytes())
            digest.update(text.values.tobytes())
    return digest.hexdigest()


def _ids_of(column: pa.Array, where: str) -> pa.Array:
    """Ids as one of the three Arrow types that raw ids have."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _ids_of(column.dictionary_decode(), where)
    try:
        if pa.types.is_integer(kind):
            is_large = column.type == pa.uint64() and (pc.max(column).as_py() or 0) >= 1 << 63
            return column if is_large else column.cast(pa.int64())
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return column
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return column.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{where}: {error}") from error
    raise SchemaError(f"{where} is {kind}; seeds are integers or strings")


def _values_of(column: pa.Array, where: str) -> pa.Array:
    """Values as one of the Arrow types that values of links have."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return column.cast(pa.float32())
    try:
        ids = _ids_of(column, where)
    except SchemaError as error:
        raise SchemaError(f"{where} is {column.type}; a label is one number or string; name the others") from error
    if ids.type == pa.uint64():
        raise SchemaError(f"{where} is uint64, with values from 2**63 on; a label of integers is int64")
    return ids


def _refuse_nulls(columns: Sequence[pa.Array], names: Sequence[str], place: Callable[[int], str]) -> None:
    for column, name in zip(columns, names, strict=True):
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise SchemaError(f"{place(row)}: {name} is empty; every seed has one")


def _csv_header(path: Path, delimiter: str) -> list[str]:
    """Names of columns; what is not UTF-8 is left to who reads the rows."""
    how: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": ""}
    try:
        with gzip.open(path, "rt", **how) if path.name.endswith(".gz") else path.open(**how) as file:
            return next((cells for _, cells in csv_rows(cast(IO[str], file), delimiter)), [])
    except (csv.Error, EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{path} cannot be read as csv: {error}") from error


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}") from error


def _parquet_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}") from error


def _only_value(values: Any, where: str, *, is_id: bool) -> bytes | int | float:
    is_string = isinstance(values, RaggedArray)
    if len(values) != 1 or (is_id and not is_string and values.dtype != np.int64):
        kind = "strings" if is_string else values.dtype
        wanted = "an id is one string or one integer" if is_id else "a label is one value"
        raise SchemaError(f"{where} has {len(values)} values ({kind}); {wanted}")
    return values.values.tobytes() if is_string else values[0].item()  # type: ignore[no-any-return]


def _kinds(row: Mapping[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in row.items()}


def _example_batch(path: Path, rows: list[dict[str, Any]], first: int, num_ends: int) -> SeedBatch:
    arrays = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    names = list(arrays)
    columns = tuple(_ids_of(arrays[name], str(path)) for name in names[:num_ends])
    values = {name: _values_of(arrays[name], f"{path}: {name}") for name in names[num_ends:]}
    return SeedBatch(columns, lambda row: f"{path} record {first + row}", values)
