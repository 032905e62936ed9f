"""Reads tables in memory: Arrow tables, DataFrames of pandas and Polars, and Ray Datasets.

Everything but a Ray Dataset is read through Arrow's PyCapsule interface (``__arrow_c_stream__``), and a Ray Dataset
through its Arrow batches. So none of these libraries is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from hopstream.ingest.raw_tables.metadata import is_ray_dataset

Read = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
"""Function that reads some columns of a table in batches; use it once."""


@contextmanager
def opened_table(table: Any) -> Iterator[tuple[list[str], Read]]:
    """Open a table in memory for one pass; yield the names of its columns, and a reader of some.

    The types of the columns are those that a Parquet file of the same rows would have. A Ray Dataset gives its rows in
    order; only the batches under way are in memory.

    Raises:
        pa.ArrowException: The table cannot be converted to Arrow.
    """
    if is_ray_dataset(table):
        options = table.context.execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            schema = table.schema()
            names = [] if schema is None else list(schema.names)  # None: no rows and no known columns
            yield names, lambda columns: _ray_batches(table, columns)
        finally:
            options.preserve_order = before
        return
    with pa.RecordBatchReader.from_stream(table) as reader:
        yield list(reader.schema.names), lambda columns: (_plain(batch.select(columns)) for batch in reader)


def _ray_batches(dataset: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for table in dataset.select_columns(list(columns)).iter_batches(batch_size=None, batch_format="pyarrow"):
        yield from map(_plain, table.to_batches())


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert columns of views, which Parquet files do not have, to their plain types."""
    types = [_plain_type(column.type) for column in batch.columns]
    columns = [
        column if column.type == kind else column.cast(kind) for column, kind in zip(batch.columns, types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        value = _plain_type(kind.value_type)
        return kind if value == kind.value_type else pa.dictionary(kind.index_type, value, kind.ordered)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.large_list(_plain_type(kind.value_type))
    if types.is_list(kind) or types.is_large_list(kind):
        value = _plain_type(kind.value_type)
        return kind if value == kind.value_type else pa.large_list(value)
    return kind
