"""Writes the tables of a unigraph as TFRecord, CSV or Parquet files, with the raw id of each node.

Raw ids that a feature holds are copied once to files in the order of keys, so that the ends of edges can be looked up.
No two nodes of a type may have the same raw id: 8 bytes for each node are held while that is checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import SchemaError, quoted
from hopstream.export.raw_ids import can_be_ids
from hopstream.export.settings import UnigraphSettings
from hopstream.ingest.chunked.ragged import RaggedSource
from hopstream.ingest.chunked.sources import FeatureSource
from hopstream.ingest.chunking.buckets import hashes_of
from hopstream.ingest.chunking.raw_files import append_values
from hopstream.ingest.raw_tables.raw_ids import NAME, strings_column
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example import ValueLists, encode_examples
from hopstream.tfgnn.tfrecord import RecordWriter

BLOCK_ROWS = 1 << 16


class WrittenIds(Protocol):
    """The raw ids of the nodes of a type."""

    def take(self, keys: IntArray) -> RaggedArray:
        """The raw ids of some nodes, as strings."""
        ...


class KeyIds:
    """Keys as raw ids: ``"0"``, ``"1"`` and so on."""

    def take(self, keys: IntArray) -> RaggedArray:
        """As ``WrittenIds.take``."""
        return strings_column([pa.array(keys).cast(NAME)])


class StoredIds:
    """Raw ids that a feature has."""

    def __init__(self, folder: Path, label: str, source: FeatureSource) -> None:
        """Copy them.

        Args:
            folder: A new folder for the copy.
            label: What messages call the feature.
            source: The feature.

        Raises:
            SchemaError: It is not one string or integer per node, a raw id is empty, or two nodes have the same.
        """
        schema = source.schema
        if not can_be_ids(schema):
            raise SchemaError(f"{label} is {schema}; raw ids are one string or integer per node")
        folder.mkdir(parents=True)
        hashes, end, first = np.empty(source.num_rows, np.uint64), 0, 0
        with (folder / "values").open("wb") as values, (folder / "offsets").open("wb") as offsets:
            append_values(offsets, np.zeros(1, np.int64))
            for block in _strings_of(source):
                lengths = np.diff(block.offsets)
                if (lengths == 0).any():
                    raise SchemaError(
                        f"{label} of node {first + int(np.argmin(lengths))} is empty; every node has an id"
                    )
                append_values(values, block.values)
                append_values(offsets, block.offsets[1:] + end)
                hashes[first : first + len(block)] = hashes_of(arrow_strings(block))
                end, first = end + len(block.values), first + len(block)
        num_rows = source.num_rows
        self._strings = RaggedArray(
            np.memmap(folder / "values", np.uint8, "r") if end else np.empty(0, np.uint8),
            np.memmap(folder / "offsets", np.int64, "r", shape=(num_rows + 1,)), is_string=True,
        )  # fmt: skip
        self._check_unique(label, hashes)

    def take(self, keys: IntArray) -> RaggedArray:
        """As ``WrittenIds.take``."""
        return self._strings.take(keys)

    def _check_unique(self, label: str, hashes: Array) -> None:
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        seen: dict[str, int] = {}
        for key in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
            raw = self._strings[key]
            if raw in seen:
                raise SchemaError(f"{label} is {quoted(raw)} of nodes {seen[raw]} and {key}; raw ids differ")
            seen[raw] = key


def _strings_of(source: FeatureSource) -> Iterator[RaggedArray]:
    if isinstance(source, RaggedSource):
        yield from source.blocks(0, source.num_rows)
        return
    for start in range(0, source.num_rows, BLOCK_ROWS):
        values = source.read(start, min(start + BLOCK_ROWS, source.num_rows))
        yield strings_column([pa.array(values).cast(NAME)])


def arrow_strings(rows: RaggedArray) -> pa.Array:
    """Rows of strings as an Arrow array, which shares their memory."""
    offsets, values = np.ascontiguousarray(rows.offsets), np.ascontiguousarray(rows.values)
    return pa.Array.from_buffers(NAME, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


SUFFIXES = {"tfrecord": ".tfrecord", "csv": ".csv", "parquet": ".parquet"}


class RowWriter(AbstractContextManager["RowWriter"], Protocol):
    """Writes one file."""

    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        """Write some rows.

        Raises:
            SchemaError: The format cannot hold a value.
        """


def check_writable(label: str, schema: FeatureSchema, settings: UnigraphSettings) -> None:
    """Refuse a feature that the format of its file cannot hold.

    Raises:
        SchemaError: As said.
    """
    if schema.dtype.startswith("complex"):
        raise SchemaError(f"{label} is {schema}; TF-GNN stores integers, reals, bools and strings; leave it out")
    if 0 in schema.shape:
        raise SchemaError(f"{label} is {schema}, which has no values; leave it out")
    if settings.format == "csv" and (schema.is_ragged or schema.shape not in ((), (1,))):
        raise SchemaError(f"{label} is {schema}; a cell of a CSV file holds one value: write tfrecord or parquet")


def open_writer(path: Path, label: str, schemas: Mapping[str, FeatureSchema], settings: UnigraphSettings) -> RowWriter:
    """Begin a file.

    Args:
        path: The file.
        label: What messages call the table.
        schemas: Column name to what it holds.
        settings: How to write it.
    """
    if settings.format == "tfrecord":
        return _Records(path, label, schemas, is_compressed=settings.compress)
    if settings.format == "csv":
        return _Cells(path, schemas)
    return _Groups(path, schemas)


class _Records:
    """A TFRecord file of ``tf.Example`` messages."""

    def __init__(self, path: Path, label: str, schemas: Mapping[str, FeatureSchema], *, is_compressed: bool) -> None:
        self._label, self._schemas = label, schemas
        self._writer = RecordWriter(path, is_compressed=is_compressed)

    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        lists = {name: self._lists(name, column, num_rows) for name, column in columns.items()}
        encoded = encode_examples(lists, num_rows)
        self._writer.write_framed(encoded.data, encoded.offsets)

    def _lists(self, name: str, column: Column, num_rows: int) -> ValueLists:
        if isinstance(column, RaggedArray) and column.is_string:
            return ValueLists(column, np.arange(num_rows + 1, dtype=np.int64))
        values, starts = (column.values, column.offsets) if isinstance(column, RaggedArray) else (column, None)
        per_item = math.prod(values.shape[1:])
        offsets = (np.arange(num_rows + 1, dtype=np.int64) if starts is None else starts) * per_item
        flat = np.ascontiguousarray(values).reshape(-1)
        if flat.dtype.kind != "f":
            as_ints = flat.view(np.int64) if flat.dtype == np.uint64 else flat.astype(np.int64, copy=False)
            return ValueLists(as_ints, offsets)
        with np.errstate(over="ignore"):
            narrow = flat.astype(np.float32, copy=False)
        if flat.dtype == np.float64:
            self._refuse_lost(name, flat, narrow)
        return ValueLists(narrow, offsets)

    def _refuse_lost(self, name: str, values: Array, narrow: Array) -> None:
        is_lost = (narrow != values) & ~np.isnan(values)
        if is_lost.any():
            value = float(values[np.argmax(is_lost)])
            raise SchemaError(
                f"{self._label}.{name} has {value!r}, which float32 cannot hold, and tf.Example has no other reals; "
                "write parquet or csv, or make the feature float32"
            )

    def __enter__(self) -> _Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.close()


class _Arrow:
    """A file that Arrow writes."""

    def __init__(self, schemas: Mapping[str, FeatureSchema]) -> None:
        self._schemas = schemas
        self._schema = pa.schema([(name, self._array(name, _no_rows(of)).type) for name, of in schemas.items()])
        self._writer: Any

    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        del num_rows
        arrays = [self._array(name, columns[name]) for name in self._schemas]
        self._writer.write_table(pa.table(arrays, schema=self._schema))

    def _array(self, name: str, column: Column) -> pa.Array:
        raise NotImplementedError

    def __enter__(self) -> _Arrow:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.close()


class _Cells(_Arrow):
    """A CSV file with a header."""

    def __init__(self, path: Path, schemas: Mapping[str, FeatureSchema]) -> None:
        super().__init__(schemas)
        self._writer = pacsv.CSVWriter(path, self._schema)

    def _array(self, name: str, column: Column) -> pa.Array:
        if isinstance(column, RaggedArray):
            return arrow_strings(column)
        flat = np.ascontiguousarray(column).reshape(-1)
        if flat.dtype == np.bool_:  # TF-GNN reads a cell of a bool as an integer
            flat = flat.view(np.uint8)
        return pa.array(flat.astype(np.float32) if flat.dtype == np.float16 else flat)


class _Groups(_Arrow):
    """A Parquet file."""

    def __init__(self, path: Path, schemas: Mapping[str, FeatureSchema]) -> None:
        super().__init__(schemas)
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=False, write_page_checksum=True)

    def _array(self, name: str, column: Column) -> pa.Array:
        if isinstance(column, RaggedArray) and column.is_string:
            return arrow_strings(column)
        values = column.values if isinstance(column, RaggedArray) else column
        array = pa.array(np.ascontiguousarray(values).reshape(-1))
        for width in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, width)
        if isinstance(column, RaggedArray):
            return pa.LargeListArray.from_arrays(pa.array(np.ascontiguousarray(column.offsets)), array)
        return array


def _no_rows(schema: FeatureSchema) -> Column:
    values = np.empty((0, *schema.shape), schema.numpy_dtype)
    return values if schema.is_fixed_width else RaggedArray(values, np.zeros(1, np.int64), schema.is_string)
