"""Does a Parquet file hold as many values as its footer says?

The checksum of a page leaves out the page's header: where that says fewer values than there are, Arrow ends the last
list, or the column, early and tells nobody. So what was read is counted, and compared with the footer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopstream.errors import FormatError
from hopstream.ingest.chunked.parquet import is_list_type


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
