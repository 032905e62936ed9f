"""Writes rows to one file of a chunked graph, a block at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hopstream.arrays import Array, RaggedArray, write_blocks
from hopstream.errors import SchemaError
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked.metadata import RAGGED, SHAPE
from hopstream.ingest.chunked.ragged import RaggedSource

WRITTEN_ROWS = 1 << 20
GROUP_BYTES = 16 << 20
MAX_ROW_BYTES = (1 << 31) - 1
"""Of a string of a Parquet file; of a list, which is written as one too, no more are taken."""


class Rows(Protocol):
    """Rows that are read when they are asked for; an array is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a value."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, then the shape of one."""
        ...

    def __getitem__(self, rows: slice, /) -> Array:
        """Some rows."""
        ...


def write_ends(path: Path, src_keys: Rows, dst_keys: Rows, settings: ChunkSettings) -> None:
    """Write a file of edges, a block of rows at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    num_rows = src_keys.shape[0]
    if settings.edges_format == "numpy":
        blocks = (np.stack([src_keys[rows], dst_keys[rows]], axis=1) for rows in _slices(num_rows, WRITTEN_ROWS))
        write_blocks(path, np.dtype(np.int64), (num_rows, 2), blocks)
    elif settings.edges_format == "parquet":
        _write_parquet(path, {"src": src_keys, "dst": dst_keys})
    else:
        _write_lines(path, src_keys, dst_keys, settings.delimiter)


def write_rows(path: Path, rows: Rows, settings: ChunkSettings) -> None:
    """Write a file of a feature, a block of rows at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.data_format == "numpy":
        write_blocks(path, rows.dtype, rows.shape, (rows[part] for part in _slices(rows.shape[0], _step(rows))))
    else:
        _write_feature(path, rows, is_list=settings.vector_rows)


def write_ragged(path: Path, source: RaggedSource, start: int, stop: int) -> None:
    """Write some rows of strings, or of lists of any length, as a Parquet file, a block at a time.

    Raises:
        SchemaError: A string is no UTF-8, or a row is larger than a Parquet file can hold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {} if source.is_string else {RAGGED: b"true"}
    empty = _arrow_rows(source.joined([]))
    schema = pa.schema([("string" if source.is_string else "list", empty.type)], metadata=metadata)
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for block in source.blocks(start, stop):
            if len(block) == 1 and block.values.nbytes > MAX_ROW_BYTES:
                got = f"{path.name} would have a row of {block.values.nbytes} bytes"
                raise SchemaError(f"{got}; a row of parquet has {MAX_ROW_BYTES} at most")
            rows = _arrow_rows(block)
            try:
                rows.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"{path.name} would have a string that is no UTF-8 ({error})") from error
            writer.write_table(pa.table([rows], schema=schema))


def _arrow_rows(block: RaggedArray) -> Any:
    """The rows as an Arrow array of strings or lists."""
    import pyarrow as pa

    if block.is_string:
        buffers = [None, pa.py_buffer(block.offsets), pa.py_buffer(np.ascontiguousarray(block.values))]
        return pa.Array.from_buffers(pa.large_string(), len(block), buffers)
    elements = pa.array(np.ascontiguousarray(block.values).reshape(-1))
    for width in reversed(block.values.shape[1:]):
        elements = pa.FixedSizeListArray.from_arrays(elements, width)
    return pa.LargeListArray.from_arrays(pa.array(block.offsets), elements)


def _step(rows: Rows) -> int:
    """How many rows are written at once."""
    row_bytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    return max(1, min(WRITTEN_ROWS, GROUP_BYTES // max(1, row_bytes)))


def _slices(num_rows: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _write_lines(path: Path, src_keys: Rows, dst_keys: Rows, delimiter: str) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options = pacsv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    with path.open("wb") as file:
        for rows in _slices(src_keys.shape[0], WRITTEN_ROWS):
            columns = [pa.array(np.asarray(keys[rows])) for keys in (src_keys, dst_keys)]
            pacsv.write_csv(pa.table(columns, names=["src", "dst"]), file, options)


def _write_parquet(path: Path, columns: Mapping[str, Rows]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.from_numpy_dtype(values.dtype)) for name, values in columns.items()])
    num_rows = next(iter(columns.values())).shape[0]
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for rows in _slices(num_rows, WRITTEN_ROWS):
            arrays = [pa.array(np.asarray(values[rows])) for values in columns.values()]
            writer.write_table(pa.table(arrays, schema=schema))


def _write_feature(path: Path, array: Rows, *, is_list: bool) -> None:
    """One column, one column of lists, or one column per dimension; the shape is in the schema metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = math.prod(array.shape[1:])
    value_type = pa.from_numpy_dtype(array.dtype)
    is_list = is_list and len(array.shape) > 1
    columns = [("vector", pa.list_(value_type))] if is_list else [(str(n), value_type) for n in range(width)]
    schema = pa.schema(columns, metadata={SHAPE: str(array.shape).encode()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for part in _slices(array.shape[0], _step(array)):
            rows = np.ascontiguousarray(array[part]).reshape(-1, width)
            if is_list:
                offsets = np.arange(0, rows.size + 1, width, dtype=np.int32)
                arrays = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.reshape(-1)))]
            else:
                arrays = [pa.array(np.ascontiguousarray(rows[:, n])) for n in range(width)]
            writer.write_table(pa.table(arrays, schema=schema))
