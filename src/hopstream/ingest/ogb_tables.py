"""What is in one of the gzipped tables that the Open Graph Benchmark writes?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hopstream.arrays import Array
from hopstream.errors import FormatError, SchemaError
from hopstream.schema import EdgeType


def _csv(path: Path, names: list[str] | None = None, *, is_text: bool = False) -> pa.Table:
    """A gzipped table without a header, or with one where ``names`` is an empty list."""
    try:
        with pa.input_stream(str(path), compression="gzip") as file:
            return pacsv.read_csv(
                file,
                read_options=pacsv.ReadOptions(autogenerate_column_names=names is None),
                convert_options=pacsv.ConvertOptions(
                    column_types={f"f{number}": pa.string() for number in range(3)} if is_text else None
                ),
            )
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read as gzipped CSV ({error})") from error


def read_matrix(path: Path, real: type[np.floating[Any]] = np.float32) -> Array:
    """int64[n, k] where all values are integers, or else reals; empty cells are NaN."""
    table = _csv(path)
    is_whole = all(column.type == pa.int64() and not column.null_count for column in table.columns)
    matrix: Array = np.empty((table.num_rows, table.num_columns), np.int64 if is_whole else real)
    for number, column in enumerate(table.columns):
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            raise SchemaError(f"{path}: column {number} is {column.type}; wanted numbers")
        matrix[:, number] = column.cast(pa.int64() if is_whole else pa.float64()).to_numpy()
    return matrix


def read_texts(path: Path, num_columns: int) -> list[EdgeType]:
    """The edge types that a table names, as they are written."""
    table = _csv(path, is_text=True)
    if table.num_columns != num_columns:
        raise SchemaError(f"{path} has {table.num_columns} columns; wanted source, relation, target")
    if any(mark in name for column in table.columns for name in column.to_pylist() for mark in ("/", "\\", "\0")):
        raise FormatError(f"{path} has a type with a slash in its name; folders are called by these names")
    heads, relations, tails = (column.to_pylist() for column in table.columns)
    return list(zip(heads, relations, tails, strict=True))


def read_named_row(path: Path) -> dict[str, Any]:
    """The only row of a table, by the names in its header."""
    table = _csv(path, [])
    if table.num_rows != 1:
        raise SchemaError(f"{path} has {table.num_rows} rows; one graph is read, of one row")
    return {name: column[0].as_py() for name, column in zip(table.column_names, table.columns, strict=True)}
