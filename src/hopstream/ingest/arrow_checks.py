"""Names the dtypes of Arrow's types, and checks what Arrow accepts from a damaged Parquet file.

The checksum of a page leaves out the page's header. Where the header says fewer values than there are, Arrow ends the
last list, or the column, early without an error. So the values that were read are counted and compared with the footer.
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
"""Types that Arrow calls otherwise than numpy. Arrow's own ``to_pandas_dtype`` needs pandas in some versions."""


def dtype_name(arrow_type: pa.DataType) -> str | None:
    """Name of the dtype of an Arrow type of numbers or bool; None for all others."""
    name = NUMPY_NAMES.get(str(arrow_type), str(arrow_type))
    return name if name in NUMERIC_DTYPES else None


def is_list_type(arrow_type: pa.DataType) -> bool:
    """Whether a type is one of lists, of whatever length."""
    is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return isinstance(arrow_type, pa.FixedShapeTensorType) or any(check(arrow_type) for check in is_list)


def check_codes(columns: pa.Table | pa.RecordBatch) -> None:
    """Refuse codes that are in no dictionary, which Arrow takes from a damaged Parquet file as they are.

    Raises:
        pa.ArrowInvalid: There is one.
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
    """How many values of each column were read of some row groups."""

    def __init__(self, footer: Any, schema: pa.Schema, names: Sequence[str]) -> None:
        """Count nothing yet.

        Args:
            footer: The footer of a Parquet file.
            schema: Its Arrow schema.
            names: The columns that are read; those of maps and structs are not counted.
        """
        self._footer = footer
        self._leaves = np.cumsum([0, *(_num_leaves(field.type) for field in schema)]).tolist()
        self._places = {name: schema.get_field_index(name) for name in names}
        self._counts = {name: 0 for name, place in self._places.items() if _is_of_one(schema.field(place).type)}

    def add(self, columns: pa.Table | pa.RecordBatch) -> None:
        """Count the values of the columns of some rows that were read."""
        for name in self._counts:
            column = columns.column(name)
            self._counts[name] += sum(map(_num_values, getattr(column, "chunks", [column])))

    def check(self, shown: str, row_groups: Sequence[int]) -> None:
        """Compare the counts with what the footer says of the row groups, all of which have been read.

        Arrow ends the process over a footer's record of a column that contradicts itself, so this is not to be asked
        before Arrow has read the column.

        Raises:
            FormatError: A column has more or fewer values.
        """
        for name, count in self._counts.items():
            leaf = self._leaves[self._places[name]]
            told = sum(self._footer.row_group(group).column(leaf).num_values for group in row_groups)
            if count != told:
                got = f"{shown} has {count} values in column {name!r}"
                raise FormatError(f"{got}; its footer says {told}: the file is damaged")


def _num_leaves(arrow_type: pa.DataType) -> int:
    """The columns of a Parquet file that hold one column of a table."""
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    return sum(_num_leaves(arrow_type.field(i).type) for i in range(arrow_type.num_fields)) or 1


def _is_of_one(arrow_type: pa.DataType) -> bool:
    """Whether a column holds single values, or lists of them in one another."""
    while is_list_type(arrow_type):
        arrow_type = getattr(arrow_type, "storage_type", arrow_type).value_type
    return not pa.types.is_nested(arrow_type)


def _num_values(array: pa.Array) -> int:
    """The values that a Parquet file counts: nulls and empty lists are one each."""
    num_empty = 0
    while is_list_type(array.type):
        array = getattr(array, "storage", array)
        lengths = array.value_lengths().fill_null(0).to_numpy()
        num_empty += len(lengths) - int(np.count_nonzero(lengths))
        array = array.flatten()
    return num_empty + len(array)
