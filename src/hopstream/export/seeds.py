"""Finds the seeds of an export: nodes or links of a table or array, nodes of a split, or all nodes.

Repeated seeds are numbered, so that the subgraphs of one seed have different names.

The labels of links are in a memory-mapped Arrow file, so no process holds them in memory. Cells of CSV files have no
type: a column of integers becomes ``int64``, a column of numbers ``float32``, and any other column strings.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hopstream.arrays import IntArray, RaggedArray, open_array, written_whole
from hopstream.dataset.raw_ids import find_ids, id_feature_of, texts_of
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, quoted
from hopstream.export.raw_ids import column_of, ids_as, kind_of_ids, link_name
from hopstream.ingest.raw_tables.files import csv_rows, open_plain, read_batches
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.ingest.raw_tables.raw_ids import NAME, strings_column
from hopstream.places.paths import AnyPath, arrow_source, is_remote
from hopstream.sample.raw_ids import fetch_ids, id_blocks, num_keys
from hopstream.schema import STRING, FeatureSchema
from hopstream.store.contract import Store
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.tfrecord import files_of, read_records, sharded_name
from hopstream.tfgnn.values import FeatureValues

INTEGER, REAL, TEXT, CELL = pa.int64(), pa.float32(), pa.large_string(), pa.string()
_SCHEMAS = {
    INTEGER: FeatureSchema(dtype="int64"), REAL: FeatureSchema(dtype="float32"), TEXT: FeatureSchema(dtype=STRING),
}  # fmt: skip


class LinkValues:
    """The labels of all links of an export."""

    def __init__(self, path: Path) -> None:
        """Map a file from ``written_values``."""
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    @property
    def schema(self) -> dict[str, FeatureSchema]:
        """Label name to schema."""
        return {field.name: _SCHEMAS[field.type] for field in self._table.schema}

    def read(self, first: int, last: int) -> dict[str, FeatureValues]:
        """Read the labels of a range of links."""
        rows = self._table.slice(first, last - first)
        return {name: _values(rows.column(name).combine_chunks()) for name in rows.column_names}


def written_values(path: Path, batches: Iterable[SeedBlock], source: str) -> Iterator[SeedBlock]:
    """Pass seeds through, and write their labels to a file; without labels no file is written.

    Args:
        path: The file; it appears, by a rename, after the last seed.
        batches: The seeds.
        source: Name of the table in messages.

    Raises:
        SchemaError: The type of a column differs between files.
    """
    spool = path.with_name(f".{path.name}.{os.getpid()}.spool")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: pa.RecordBatchFileWriter | None = None
    try:
        for batch in batches:
            if batch.values:
                rows = pa.RecordBatch.from_pydict(dict(batch.values))
                if writer is None:
                    schema = rows.schema
                    writer = pa.ipc.new_file(str(spool), schema)
                if rows.schema != schema:
                    raise SchemaError(f"{batch.place(0)}: labels of {source} are {_shown(rows.schema)} here, and "
                                      f"{_shown(schema)} before; write one type per column")  # fmt: skip
                writer.write_batch(rows)
            yield batch
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        _write_typed(spool, path)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _write_typed(spool: Path, path: Path) -> None:
    """Write the spooled labels to the final file, with a type for each column of cells."""
    table = pa.ipc.open_file(pa.memory_map(str(spool))).read_all()
    types = {field.name: _type_of(table.column(field.name)) for field in table.schema}
    with written_whole(path) as partial, pa.ipc.new_file(str(partial), pa.schema(types)) as writer:
        for rows in table.to_batches():
            writer.write_batch(pa.RecordBatch.from_pydict({n: rows.column(n).cast(kind) for n, kind in types.items()}))
    spool.unlink()


def _type_of(column: pa.ChunkedArray) -> pa.DataType:
    if column.type != CELL:
        return column.type
    return next((kind for kind in (INTEGER, REAL) if _can_be(column, kind)), TEXT)


def _can_be(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        for chunk in column.chunks:
            chunk.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _values(column: pa.Array) -> FeatureValues:
    if column.type != TEXT:
        return FeatureValues.of(column.to_numpy(zero_copy_only=False))
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    bounds = offsets if len(offsets) else np.zeros(1, np.int64)
    text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return FeatureValues(RaggedArray(text, bounds - bounds[0], is_string=True), len(column))


BATCH_ROWS = 1 << 16
_SHARD = re.compile(r"-(?:\d{5}|\?{5}|\*)-of-\d{5}$|-?\*$")
_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".npy": "npy", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrecord.gz": "tfrecord",
    ".tfrecords.gz": "tfrecord",
}  # fmt: skip
NODE_COLUMNS = (("#id", "id"),)
LINK_COLUMNS = (("#source", "source"), ("#target", "target"))
_REMEDIES: dict[tuple[tuple[str, ...], ...], str] = {
    NODE_COLUMNS: "; rename the column, or name it with seed_column", LINK_COLUMNS: "; rename the columns"
}  # fmt: skip
"""Columns to the remedy if one is missing; none if the caller has named the column."""


@dataclass(frozen=True, slots=True)
class SeedBlock:
    """A block of seeds of a table.

    Attributes:
        columns: Raw ids as Arrow ``int64``, ``uint64``, ``string`` (cells of CSV files) or ``large_string`` arrays:
            one, or two for links.
        place: Function from a row of the block to a description for messages.
        values: Label name to Arrow array of the same types but ``uint64``, or of ``float32``.
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
        columns: For each end, the possible names of its column, in order of preference.
        values: Columns to read as labels; None for all columns whose names do not begin with ``#``.
    """

    paths: tuple[AnyPath, ...]
    kind: str
    columns: tuple[tuple[str, ...], ...]
    values: tuple[str, ...] | None = ()

    @classmethod
    def of(
        cls,
        name: str | AnyPath,
        columns: tuple[tuple[str, ...], ...] = NODE_COLUMNS,
        values: tuple[str, ...] | None = (),
    ) -> SeedTable:
        """Find the files of a table: one file, ``seeds.csv@4``, or a pattern.

        Raises:
            FormatError: A file is missing.
            SettingsError: The suffix is unknown, or labels are wanted from ``.npy``.
        """
        stem = _SHARD.sub("", sharded_name(str(name))[0])
        kind = next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), None)
        if kind is None:
            raise SettingsError(f"seeds are {str(name)!r}; the name must end in one of {', '.join(_SUFFIXES)}")
        if kind == "npy" and values:
            raise SettingsError(f"seeds are {str(name)!r}, which has no column {values[0]!r}; use another format")
        paths = tuple(files_of(name))
        if kind == "npy" and is_remote(paths[0]):
            raise SettingsError(
                f"seeds are {paths[0]}, an array, which is mapped; copy it to this machine, or give a table"
            )
        return cls(paths, kind, columns, values)

    def states(self) -> list[list[str | int]]:
        """Return path, size and time of each file, to notice changed files."""
        return [[str(path.absolute()), (s := path.stat()).st_size, s.st_mtime_ns] for path in self.paths]

    def num_known(self) -> int:
        """Return the number of rows from headers or footers, before the files are read.

        It is 0 for formats other than ``.npy`` and Parquet.
        """
        if self.kind == "npy":
            arrays = (open_array(cast(Path, path)) for path in self.paths)
            return sum(array.shape[0] if array.ndim else 0 for array in arrays)
        return sum(map(_parquet_rows, self.paths)) if self.kind == "parquet" else 0

    def check_columns(self) -> None:
        """Refuse a table without the needed columns before its rows are read.

        Of ``.npy`` files, shape, dtype and the first rows are checked.

        Raises:
            FormatError: A file is damaged.
            SchemaError: A column is missing, or the shape or dtype of an array is wrong.
        """
        for path in self.paths:
            if self.kind == "npy":
                next(array_batches(open_array(cast(Path, path)), str(path), len(self.columns)), None)
                continue
            opened = self._opened(path)
            if opened is not None:
                self._others(path, opened[1], self._chosen(path, opened[1]))

    def batches(self) -> Iterator[SeedBlock]:
        """Read all rows in order.

        Raises:
            FormatError: A file is damaged.
            SchemaError: A column is missing or has empty cells, or its values are neither strings nor integers (for
                labels, nor floats).
        """
        for path in self.paths:
            if self.kind == "npy":
                yield from array_batches(open_array(cast(Path, path)), str(path), len(self.columns))
            else:
                yield from self._table(path)

    def _table(self, path: AnyPath) -> Iterator[SeedBlock]:
        opened = self._opened(path)
        if opened is None:
            return
        files, there = opened
        names = self._chosen(path, there)
        others = self._others(path, there, names)
        for batch in read_batches(files, [*names, *others]):
            columns = tuple(_ids_of(batch.columns[name], f"{path}: column {name!r}") for name in names)
            values = {name: _values_of(batch.columns[name], f"{path}: column {name!r}") for name in others}
            _refuse_nulls((*columns, *values.values()), (*names, *others), batch.origin.place)
            yield SeedBlock(columns, batch.origin.place, values)

    def _opened(self, path: AnyPath) -> tuple[TableFiles, list[str]] | None:
        """Describe a file as a table, and list its columns; None for a file without records.

        The first record of a TFRecord file defines the columns of all records.
        """
        files = TableFiles(root=path.parent, paths=(path,), format=cast(Any, self.kind))
        if self.kind == "csv":
            delimiter = "\t" if ".tsv" in path.name.lower() else ","
            return replace(files, delimiter=delimiter), _csv_header(path, delimiter)
        if self.kind == "parquet":
            return files, _parquet_columns(path)
        first = next(read_records(path), None)
        if first is None:
            return None
        held = {
            name: FeatureSchema(dtype=STRING if isinstance(values, RaggedArray) else values.dtype.name)
            for name, values in sorted(decode_example(first).items())
        }
        return replace(files, columns=held, columns_said_by="wanted"), list(held)

    def _chosen(self, path: AnyPath, there: Sequence[str]) -> list[str]:
        """Choose the column of each end."""
        chosen = []
        for names in self.columns:
            found = [name for name in names if name in there]
            if not found:
                raise SchemaError(
                    f"{path} has no column {' or '.join(map(repr, names))}; its columns are {list(there)}"
                    f"{_REMEDIES.get(self.columns, '')}"
                )
            chosen.append(found[0])
        return chosen

    def _others(self, path: AnyPath, there: Sequence[str], chosen: Sequence[str]) -> list[str]:
        """Choose the columns of labels."""
        if self.values is None:
            return [name for name in there if name not in chosen and not name.startswith("#")]
        missing = [name for name in self.values if name not in there]
        if missing:
            raise SchemaError(f"{path} has no column {missing[0]!r}; its columns are {list(there)}")
        return list(self.values)


def array_batches(given: Any, where: str, num_columns: int = 1) -> Iterator[SeedBlock]:
    """Read seeds from an array.

    Args:
        given: Integers or strings [n], or [n, 2] for links: an array or lists.
        where: Name of the array in messages.
        num_columns: 1, or 2 for links.

    Raises:
        SchemaError: The shape is wrong, or a value is neither a 64-bit integer nor a string.
    """
    values = _as_array(given, where)
    wanted = "[n]" if num_columns == 1 else "[n, 2]"
    if values.ndim != num_columns or (num_columns > 1 and values.shape[1] != num_columns):
        raise SchemaError(f"{where} is {values.dtype}{list(values.shape)}; seeds are integers or strings {wanted}")
    table = values.reshape(len(values), num_columns)
    for first in range(0, len(table), BATCH_ROWS):
        rows = table[first : first + BATCH_ROWS]
        columns = tuple(_ids_of(_arrow_of(rows[:, i], where, first), where) for i in range(num_columns))
        batch = SeedBlock(columns, lambda row, first=first: f"{where} row {first + row}")  # type: ignore[misc]
        _refuse_nulls(columns, ("the seed",) * num_columns, batch.place)
        yield batch


def _as_array(given: Any, where: str) -> Any:
    try:
        return np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise SchemaError(f"{where} is not an array: {error}") from error


def _arrow_of(rows: Any, where: str, first: int) -> pa.Array:
    if rows.dtype.kind != "O":
        return pa.array(np.ascontiguousarray(rows))
    for row, value in enumerate(rows.tolist()):
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not (isinstance(value, str | bytes) or (is_integer and -(1 << 63) <= value < 1 << 64)):
            raise SchemaError(f"{where} row {first + row} is {quoted(value)}; a seed is a string or a 64-bit integer")
    try:
        numbers = any(isinstance(value, int | np.integer) and value >= 1 << 63 for value in rows.tolist())
        return pa.array(rows.tolist(), pa.uint64() if numbers else None)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaError(f"{where} rows {first} to {first + len(rows) - 1} are of several kinds: {error}") from error


def digest_of_seeds(batches: Iterable[SeedBlock]) -> str:
    """Return a digest of the values of seeds; it does not depend on the process or the integer dtype."""
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
    """Convert raw ids to Arrow ``int64``, ``uint64`` (for values of 2**63 or more), or a string type."""
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
    """Convert labels to Arrow ``int64``, ``float32``, or a string type."""
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
            raise SchemaError(f"{place(row)}: {name} is empty; every seed needs one")


def _csv_header(path: AnyPath, delimiter: str) -> list[str]:
    """Read the names of columns; bytes that are not UTF-8 are replaced, and reading the rows reports them."""
    try:
        how: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": ""}
        with open_plain(path) as file, io.TextIOWrapper(file, **how) as text:
            return next((cells for _, cells in csv_rows(text, delimiter)), [])
    except (csv.Error, EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{path} cannot be read as csv: {error}") from error


def _parquet_columns(path: AnyPath) -> list[str]:
    try:
        return list(pq.read_schema(arrow_source(path)).names)
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}") from error


def _parquet_rows(path: AnyPath) -> int:
    try:
        return int(pq.read_metadata(arrow_source(path)).num_rows)
    except pa.ArrowException as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}") from error


def repeats_of(seeds: IntArray) -> IntArray:
    """Return int64[n], how often each seed occurs before its position; needs 40 to 60 bytes per seed.

    Args:
        seeds: int64[n], or int64[n, 2] for links.
    """
    columns = seeds[:, None] if seeds.ndim == 1 else seeds
    order = np.lexsort(columns.T[::-1])
    is_new = np.ones(len(seeds), np.bool_)
    of_sorted = columns[order]
    is_new[1:] = (of_sorted[1:] != of_sorted[:-1]).any(axis=1)
    places = np.arange(len(seeds), dtype=np.int64)
    repeats = np.empty(len(seeds), np.int64)
    repeats[order] = places - np.maximum.accumulate(np.where(is_new, places, 0))
    return repeats


SEEDS_AT_ONCE = 1 << 22
"""Seeds that are looked up in one pass over the raw ids of all nodes."""


class NodeIds:
    """Look-up from raw ids of one node type to keys, for millions of seeds at a time.

    Each look-up reads all raw ids in one pass, and nothing is kept between passes. ``RawIndex`` is for many look-ups of
    few seeds each: it keeps 16 bytes per node.
    """

    def __init__(self, store: Store, node_type: str, feature: str | None) -> None:
        """Find the feature that holds raw ids, see ``id_feature_of``.

        Raises:
            UnknownNameError: There is no such node type or feature.
            SettingsError: The feature holds neither single strings nor single integers.
        """
        self._store, self.node_type = store, node_type
        self.num_nodes = num_keys(store, node_type)
        self.feature = id_feature_of(store.schema, node_type, feature)
        self.kind = kind_of_ids(store.schema, node_type, self.feature)

    def of_keys(self, keys: IntArray) -> list[bytes]:
        """Return the raw ids of nodes as text."""
        if self.feature is None:
            return [b"%d" % key for key in keys.tolist()]
        return texts_of(fetch_ids(self._store, self.node_type, self.feature, keys))

    def keys_of(self, raw: pa.Array) -> IntArray:
        """Look up int64[n], the key of the first node with each raw id; -1 for unknown raw ids.

        The raw ids of all nodes are read once, in blocks.
        """
        wanted = ids_as(raw, self.kind)
        if self.feature is None:
            numbers: IntArray = wanted.fill_null(-1).to_numpy(zero_copy_only=False)
            return np.where((numbers >= 0) & (numbers < self.num_nodes), numbers, -1)
        keys = np.full(len(wanted), -1, np.int64)
        blocks = id_blocks(self._store, self.node_type, self.feature)
        is_one = wanted.is_valid().to_numpy(zero_copy_only=False)
        label = f"{self.node_type}.{self.feature}"
        keys[is_one] = find_ids(blocks, column_of(wanted.drop_null()), label, takes_first=True)
        return keys


def seed_names(ends: Sequence[NodeIds], keys: IntArray) -> list[bytes]:
    """Return the raw ids of nodes, given int64[n] keys, or the names of links, given int64[n, 2], as text."""
    columns = keys.reshape(-1, len(ends)).T
    names = [of.of_keys(np.ascontiguousarray(column)) for of, column in zip(ends, columns, strict=True)]
    return names[0] if len(names) == 1 else list(map(link_name, *names))


def write_seeds(
    path: Path, batches: Iterable[SeedBlock], ends: Sequence[NodeIds], source: str, at_once: int = SEEDS_AT_ONCE
) -> None:  # fmt: skip
    """Look up the keys of the seeds of a table, and write them to a file.

    Args:
        path: The file; it appears, by a rename, when all keys are known.
        batches: The seeds.
        ends: Look-up for the seeds' node type; for links, one for sources and one for targets.
        source: Name of the table in messages.
        at_once: Seeds that are looked up in one pass, at most ``SEEDS_AT_ONCE``.

    Raises:
        IdRangeError: A seed is not a node; the message names table, row and id.
        SettingsError: There are no seeds.
    """
    num_seeds = 0
    with written_whole(path) as partial, partial.open("wb") as file:
        for group in _groups(batches, min(at_once, SEEDS_AT_ONCE)):
            keys = _keys_of_group(group, ends, source)
            num_seeds += len(keys)
            file.write(np.ascontiguousarray(keys, "<i8").data)
        if not num_seeds:
            raise SettingsError(f"{source} has no rows; give seeds, or leave seeds out to start from every node")


def write_numbers(path: Path, numbers: IntArray) -> None:
    """Write int64[n] to a file for ``read_seeds``, atomically."""
    with written_whole(path) as partial:
        partial.write_bytes(np.ascontiguousarray(numbers, "<i8").data)


def read_seeds(path: Path, num_columns: int = 1) -> IntArray:
    """Map a file of keys: int64[n], or int64[n, 2] for links."""
    keys: IntArray = np.memmap(path, np.dtype("<i8"), mode="r")
    return keys if num_columns == 1 else keys.reshape(-1, num_columns)


def split_seeds(store: Store, node_type: str, split: str) -> IntArray:
    """Return the keys of a split.

    Raises:
        UnknownNameError: There is no such split.
        SettingsError: The split has no nodes.
    """
    keys = store.split(node_type, split)
    if not len(keys):
        raise SettingsError(f"split {split!r} of {node_type} has no nodes, so there is nothing to export")
    return keys


def _groups(batches: Iterable[SeedBlock], at_once: int) -> Iterator[list[SeedBlock]]:
    group: list[SeedBlock] = []
    num_rows = 0
    for batch in batches:
        group.append(batch)
        num_rows += len(batch.columns[0])
        if num_rows >= at_once:
            yield group
            group, num_rows = [], 0
    if group:
        yield group


def _keys_of_group(group: list[SeedBlock], ends: Sequence[NodeIds], source: str) -> IntArray:
    """Look up the keys of a group of blocks: int64[n] or int64[n, 2].

    Raises:
        IdRangeError: A seed is not a node.
    """
    columns = [
        nodes.keys_of(_joined([batch.columns[number] for batch in group], source, nodes.kind))
        for number, nodes in enumerate(ends)
    ]
    keys = np.stack(columns, axis=1)
    is_missing = (keys < 0).any(axis=1)
    if is_missing.any():
        _refuse(group, int(np.argmax(is_missing)), keys, ends)
    return keys[:, 0] if len(columns) == 1 else keys


def _joined(arrays: list[pa.Array], source: str, kind: pa.DataType) -> pa.Array:
    are_integers = {pa.types.is_integer(array.type) for array in arrays}
    if len(are_integers) > 1:
        raise SchemaError(f"{source} holds integers in one file and strings in another; write one kind of ids")
    return pa.concat_arrays([ids_as(array, kind) for array in arrays])


def _refuse(group: list[SeedBlock], row: int, keys: IntArray, ends: Sequence[NodeIds]) -> None:
    """Raise the error for the seed in a row of a group."""
    column = int(np.argmax(keys[row] < 0))
    nodes = ends[column]
    for batch in group:
        if row < len(batch.columns[0]):
            raw = batch.columns[column][row].as_py()
            known = (
                f"its nodes are 0..{nodes.num_nodes - 1}" if nodes.feature is None
                else f"feature {nodes.feature!r} of its {nodes.num_nodes} nodes does not contain it"
            )  # fmt: skip
            raise IdRangeError(
                f"{batch.place(row)}: seed {quoted(raw)} is not a node of type {nodes.node_type}; {known}"
            )
        row -= len(batch.columns[0])
