"""Maps Arrow types to dtypes, and finds damage in Parquet files that Arrow does not report.

The checksum of a page does not cover the page's header. If a damaged header declares too few values, Arrow ends the
last list or the column early and raises no error. ``ValueCounts`` therefore compares the number of values read with the
footer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.errors import FormatError
from hopstream.schema import NUMERIC_DTYPES

NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow types whose names differ from numpy's. Arrow's own ``to_pandas_dtype`` needs pandas in some versions."""


def dtype_name(arrow_type: pa.DataType) -> str | None:
    """Return the dtype name of an Arrow type of numbers or bool; None for other types."""
    name = NUMPY_NAMES.get(str(arrow_type), str(arrow_type))
    return name if name in NUMERIC_DTYPES else None


def is_list_type(arrow_type: pa.DataType) -> bool:
    """Return whether a type is a list type: fixed or variable length, or a tensor of fixed shape."""
    is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return isinstance(arrow_type, pa.FixedShapeTensorType) or any(check(arrow_type) for check in is_list)


def check_codes(columns: pa.Table | pa.RecordBatch) -> None:
    """Refuse dictionary codes that are out of range; Arrow does not check them in a damaged Parquet file.

    Raises:
        pa.ArrowInvalid: A code is out of range.
    """
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if not pa.types.is_dictionary(column.type):
            continue
        for chunk in getattr(column, "chunks", [column]):
            found, num_values = pc.min_max(chunk.indices).as_py(), len(chunk.dictionary)
            if found["min"] is not None and not 0 <= found["min"] <= found["max"] < num_values:
                codes = f"{found['min']} to {found['max']}"
                raise pa.ArrowInvalid(f"column {name!r} has codes {codes} for a dictionary of {num_values} values")


class ValueCounts:
    """Counts of the values read from some row groups, by column."""

    def __init__(self, footer: Any, schema: pa.Schema, names: Sequence[str]) -> None:
        """Start all counts at zero.

        Args:
            footer: The footer of a Parquet file.
            schema: Its Arrow schema.
            names: The columns that are read; columns of maps and structs are not counted.
        """
        self._footer = footer
        self._leaves = np.cumsum([0, *(_num_leaves(field.type) for field in schema)]).tolist()
        self._places = {name: schema.get_field_index(name) for name in names}
        self._counts = {name: 0 for name, place in self._places.items() if _is_of_one(schema.field(place).type)}

    def add(self, columns: pa.Table | pa.RecordBatch) -> None:
        """Count the values of a batch of rows."""
        for name in self._counts:
            column = columns.column(name)
            self._counts[name] += sum(map(_num_values, getattr(column, "chunks", [column])))

    def check(self, shown: str, row_groups: Sequence[int]) -> None:
        """Compare the counts with the footer, after all rows of the row groups have been read.

        Call this only after Arrow has read the columns: Arrow aborts the process when it is asked for a column's
        record in a footer that contradicts itself.

        Raises:
            FormatError: A column has more or fewer values.
        """
        for name, count in self._counts.items():
            leaf = self._leaves[self._places[name]]
            told = sum(self._footer.row_group(group).column(leaf).num_values for group in row_groups)
            if count != told:
                got = f"{shown} has {count} values in column {name!r}"
                raise FormatError(f"{got}, but its footer says {told}; the file is damaged: copy it again")


def _num_leaves(arrow_type: pa.DataType) -> int:
    """Count the Parquet columns that store one Arrow column."""
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    return sum(_num_leaves(arrow_type.field(i).type) for i in range(arrow_type.num_fields)) or 1


def _is_of_one(arrow_type: pa.DataType) -> bool:
    """Return whether a column holds single values or (nested) lists of them: no maps and no structs."""
    while is_list_type(arrow_type):
        arrow_type = getattr(arrow_type, "storage_type", arrow_type).value_type
    return not pa.types.is_nested(arrow_type)


def _num_values(array: pa.Array) -> int:
    """Count values as a Parquet footer does: a null or an empty list counts as one value."""
    num_empty = 0
    while is_list_type(array.type):
        array = getattr(array, "storage", array)
        lengths = array.value_lengths().fill_null(0).to_numpy()
        num_empty += len(lengths) - int(np.count_nonzero(lengths))
        array = array.flatten()
    return num_empty + len(array)
