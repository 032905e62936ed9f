"""Values that a table of links has beside the ends, kept in files while an export runs.

A file of Arrow that is mapped, so that any number of links is held by no process. Cells of CSV files have no type: a
column whose cells are all integers is ``int64``, one whose cells are all numbers ``float32``, and others strings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from hopstream.arrays import RaggedArray
from hopstream.errors import SchemaError
from hopstream.export.seed_tables import SeedBatch
from hopstream.schema import STRING, FeatureSchema
from hopstream.tfgnn.values import FeatureValues

INTEGER, REAL, TEXT, CELL = pa.int64(), pa.float32(), pa.large_string(), pa.string()
_SCHEMAS = {
    INTEGER: FeatureSchema(dtype="int64"), REAL: FeatureSchema(dtype="float32"), TEXT: FeatureSchema(dtype=STRING),
}  # fmt: skip


class LinkValues:
    """The values of all links of an export."""

    def __init__(self, path: Path) -> None:
        """Map the file that ``written_values`` made."""
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    @property
    def schema(self) -> dict[str, FeatureSchema]:
        """What is known of each link."""
        return {field.name: _SCHEMAS[field.type] for field in self._table.schema}

    def read(self, first: int, last: int) -> dict[str, FeatureValues]:
        """The values of a stretch of links."""
        rows = self._table.slice(first, last - first)
        return {name: _values(rows.column(name).combine_chunks()) for name in rows.column_names}


def written_values(path: Path, batches: Iterable[SeedBatch], source: str) -> Iterator[SeedBatch]:
    """Pass seeds through, and write what their table says of them besides; nothing where it says nothing.

    Args:
        path: The file; it comes into its place behind the last seed.
        batches: The seeds.
        source: What the table is called.

    Raises:
        SchemaError: A column is of one type in one file and of another in another.
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
    """Write what was spooled, with a type for each column of cells."""
    table = pa.ipc.open_file(pa.memory_map(str(spool))).read_all()
    types = {field.name: _type_of(table.column(field.name)) for field in table.schema}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with pa.ipc.new_file(str(partial), pa.schema(types)) as writer:
        for rows in table.to_batches():
            writer.write_batch(pa.RecordBatch.from_pydict({n: rows.column(n).cast(kind) for n, kind in types.items()}))
    spool.unlink()
    partial.replace(path)


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
