"""Reads ranges of rows of Parquet files, and records of row groups from their footers.

A row of a feature is one value of one column, one list of one list column, or one value of each of several columns. The
schema metadata may declare ``shape``, the shape of the file's whole array, for example ``(1000, 3, 4)``. Rows of one
column may also be strings or lists of any length; ``ragged`` = ``true`` in the schema metadata declares such lists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import FormatError, SchemaError
from hopstream.ingest.arrow_checks import check_codes, dtype_name, is_list_type
from hopstream.ingest.chunked.metadata import RAGGED, SHAPE

BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
BUFFER_BYTES = 1 << 20
"""Read buffer per column. Without it Arrow reads the column of a whole row group at once."""
NO_NULLS = "replace each null by a value"
ANY_LENGTH = "for rows of any length, write lists of numbers, or of fixed-size lists, and leave shape out"
"""Remedies at the end of messages."""
TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTE_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
PARQUET_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)
_SHAPE_TEXT = re.compile(r"\(\s*(\d{1,18}(?:\s*,\s*\d{1,18})*)\s*,?\s*\)|\[\s*(\d{1,18}(?:\s*,\s*\d{1,18})*)\s*,?\s*\]")
_INDEX_COLUMN = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True, kw_only=True)
class ParquetFile:
    """A Parquet file whose footer has been read.

    Attributes:
        path: The file.
        shown: Its name in messages.
        footer: Its footer.
        schema: Its Arrow schema.
        group_offsets: int64[num_groups + 1], first row of each row group.
    """

    path: Path
    shown: str
    footer: Any
    schema: pa.Schema
    group_offsets: IntArray

    @cached_property
    def list_sizes(self) -> tuple[IntArray, IntArray]:
        """Values of the first column, and nulls or empty lists among them, int64[num_groups] each.

        An empty list counts as one value. The number of nulls is 0 for row groups without usable statistics.

        Raises:
            FormatError: The footer is damaged.
        """
        sizes = np.zeros((self.num_groups, 2), np.int64)
        physical_type = self.footer.schema.column(0).physical_type
        for group, record in self.records(range(self.num_groups)):
            # Arrow aborts the process for statistics of a record of another type, even if it could read the column.
            has_statistics = record.physical_type == physical_type and record.is_stats_set
            sizes[group] = record.num_values, (record.statistics.null_count or 0) if has_statistics else 0
        if sizes.min(initial=0) < 0:
            raise FormatError(f"{self.shown} has a footer whose row groups contradict each other; it may be damaged")
        return sizes[:, 0], sizes[:, 1]

    def num_bytes(self, group: int) -> int:
        """Return the uncompressed bytes of a row group from the footer; at least 1."""
        return max(1, int(self.footer.row_group(group).total_byte_size))

    def records(self, groups: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield number and footer record of the first column of row groups that have rows.

        pyarrow aborts the process for a record that contradicts itself: it lets a C++ exception escape. Reading a row
        first raises an error instead. With that read, no change of one byte of a footer aborted the process.

        Raises:
            FormatError: The file is damaged.
        """
        group = 0
        try:
            with self._open() as reader:
                for group in groups:
                    if self.group_offsets[group] < self.group_offsets[group + 1]:
                        next(reader.iter_batches(1, row_groups=[group], use_threads=False), None)
                        yield group, self.footer.row_group(group).column(0)
        except PARQUET_ERRORS as error:
            raise self._unreadable(group, error) from error

    def _open(self, columns_as_dictionaries: Sequence[str] | None = None) -> pq.ParquetFile:
        return pq.ParquetFile(
            self.path, metadata=self.footer, buffer_size=BUFFER_BYTES, pre_buffer=False,
            read_dictionary=columns_as_dictionaries, page_checksum_verification=True,
        )  # fmt: skip

    def _unreadable(self, group: int, error: Exception) -> FormatError:
        return FormatError(f"{self.shown} row group {group} cannot be read as parquet ({error})")

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return len(self.group_offsets) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows in all row groups."""
        return int(self.group_offsets[-1])

    def place(self, row: int) -> str:
        """Return a description of a row and its row group for messages."""
        return f"{self.shown} row {row} (row group {self.group_of(row)})"

    def group_of(self, row: int) -> int:
        """Return the row group that holds a row."""
        return int(np.searchsorted(self.group_offsets, row, side="right")) - 1

    def batches(
        self, start: int, stop: int, batch_rows: int, *, as_dictionaries: bool = False
    ) -> Iterator[tuple[int, list[pa.Array]]]:
        """Decode the rows ``[start, stop)`` in batches; only row groups that hold such rows are read.

        Args:
            start: First row.
            stop: End row, exclusive.
            batch_rows: Rows that are decoded at once.
            as_dictionaries: Return strings as dictionary arrays.

        Raises:
            FormatError: The file is damaged, or has changed since it was opened.
        """
        if start >= stop:
            return
        groups = range(self.group_of(start), self.group_of(stop - 1) + 1)
        group = groups.start
        try:
            with self._open(self.schema.names if as_dictionaries else None) as reader:
                for group in groups:
                    row = int(self.group_offsets[group])
                    for batch in reader.iter_batches(batch_rows, row_groups=[group], use_threads=False):
                        check_codes(batch)
                        first, last = max(start, row), min(stop, row + batch.num_rows)
                        if first < last:
                            yield first, [_storage(column.slice(first - row, last - first)) for column in batch.columns]
                        row += batch.num_rows
                        if row >= stop:
                            return
                    if row != self.group_offsets[group + 1]:
                        raise FormatError(f"{self.shown} row group {group} ends at row {row}; its footer disagrees")
        except PARQUET_ERRORS as error:
            raise self._unreadable(group, error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetColumn:
    """A feature in one Parquet file.

    Attributes:
        file: The file.
        dtype: Dtype of the values.
        shape: Shape of one row. None for ragged rows, and for files without rows that do not declare it. If rows may
            be ragged, it is the only shape that the footer allows.
        is_list: The feature is one column of lists.
        is_ragged: Rows hold any number of elements, according to the column's type, the schema metadata or the footer.
        element_shape: Shape of one element if rows may be ragged; None if type or schema metadata exclude that.
        is_string: Rows are strings.
    """

    file: ParquetFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    is_list: bool
    is_ragged: bool = False
    element_shape: tuple[int, ...] | None = None
    is_string: bool = False

    @property
    def shown(self) -> str:
        """The file's name in messages."""
        return self.file.shown

    @property
    def num_rows(self) -> int:
        """Number of rows of the file."""
        return self.file.num_rows

    def read_into(self, start: int, out: Array) -> None:
        """Fill an array in C order with rows from ``start`` on.

        Raises:
            FormatError: The file is damaged.
            SchemaError: A row has no value, or lists differ in length.
        """
        width = math.prod(self.shape or ())
        flat = out.reshape(len(out), width)
        batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, width * self.dtype.itemsize)))
        for row, columns in self.file.batches(start, start + len(out), batch_rows):
            rows = flat[row - start : row - start + len(columns[0])]
            if self.is_list:
                rows[:] = self._lists(row, columns[0], width)
                continue
            for number, column in enumerate(columns):
                self._check_values(row, column)
                rows[:, number] = column.to_numpy(zero_copy_only=False)

    def _lists(self, row: int, column: pa.Array, width: int) -> Array:
        num_rows = len(column)
        self._check_values(row, column)
        while is_list_type(column.type):
            if not pa.types.is_fixed_size_list(column.type):
                lengths = np.diff(column.offsets.to_numpy())
                unequal = np.flatnonzero(lengths != lengths[:1])
                if len(unequal):
                    place = self.file.place(row + int(unequal[0]) * num_rows // len(lengths))
                    got = f"{place} has a list of {lengths[unequal[0]]}; lists before it have {lengths[0]}"
                    raise SchemaError(f"{got}: {self._remedy}")
            column = column.flatten()
        if len(column) != num_rows * width:
            got = f"{self.file.place(row)} has {len(column) // num_rows} values"
            raise SchemaError(f"{got}; wanted {width}, for shape {self.shape}: {self._remedy}")
        if column.null_count:
            bad_row = row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) // max(1, width)
            raise SchemaError(f"{self.file.place(bad_row)} has no value inside its list: {NO_NULLS}")
        return cast(Array, column.to_numpy(zero_copy_only=False)).reshape(num_rows, width)

    @property
    def _remedy(self) -> str:
        """The remedy for lists that differ in length."""
        if self.element_shape is None:
            return ANY_LENGTH
        return f'give "{RAGGED.decode()}": "true" in the schema metadata if lists have any length'

    def _check_values(self, row: int, column: pa.Array) -> None:
        if column.null_count:
            bad_row = row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise SchemaError(f"{self.file.place(bad_row)} has no value: {NO_NULLS}")


def open_parquet(path: Path, shown: str) -> ParquetFile:
    """Read the footer of a Parquet file.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: The file has an index column of pandas.
    """
    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
        names = schema.names
    except PARQUET_ERRORS as error:
        raise FormatError(f"{shown} cannot be read as parquet ({error}); it may be truncated") from error
    group_rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    if min(group_rows, default=0) < 0 or sum(group_rows) != footer.num_rows:
        raise FormatError(f"{shown} has row groups of {sum(group_rows)} rows; its footer says {footer.num_rows}")
    index = next((name for name in names if _INDEX_COLUMN.fullmatch(name)), None)
    if index is not None:
        raise SchemaError(f"{shown} has column {index!r}, an index of pandas; write it with index=False")
    offsets = offsets_of(np.array(group_rows, np.int64))
    return ParquetFile(path=path, shown=shown, footer=footer, schema=schema, group_offsets=offsets)


def open_parquet_column(path: Path, shown: str) -> ParquetColumn:
    """Read the footer of a Parquet file of one feature.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: Columns differ in type, a dtype cannot be stored, or the shape of a row is unknown or wrong.
    """
    file = open_parquet(path, shown)
    schema = file.schema
    types = list(dict.fromkeys(field.type for field in schema))
    if len(types) != 1:
        columns = {field.name: str(field.type) for field in schema}
        raise SchemaError(f"{shown} has columns {columns}; a feature's columns are one or more, of one dtype")
    if is_list_type(types[0]) and len(schema) > 1:
        raise SchemaError(f"{shown} has {len(schema)} columns of lists; a feature has one column of lists")
    column = _ragged_column(file, types[0])
    return column or _fixed_column(file, types[0])


def _fixed_column(file: ParquetFile, arrow_type: pa.DataType) -> ParquetColumn:
    """Describe columns of numbers, or a column of lists of one length."""
    schema, shown, is_list = file.schema, file.shown, is_list_type(arrow_type)
    dims, leaf = _dims(arrow_type)
    dtype = _numpy_dtype(shown, leaf)
    width = len(schema) if not is_list else _list_width(file) if None in dims else math.prod(cast(list[int], dims))
    if width is None:
        raise SchemaError(
            f"{shown} has lists of several lengths, but the rows of this feature must have one shape: {ANY_LENGTH}"
        )
    shape = _told_shape(file)
    elements = _element_shape(file, arrow_type)
    if elements is not None:
        shape = (width // math.prod(elements), *elements) if file.num_rows else None
    elif shape is None and is_list:
        shape = tuple(dim for dim in dims if dim is not None) if None not in dims else None
    elif shape is None:
        shape = (width,) if width > 1 else ()
    if shape is None and file.num_rows:
        raise SchemaError(f"{shown} has nested lists of unknown length; give shape in the schema metadata")
    # An empty list counts as one value in a footer, so a shape with a zero is only compared when rows are read.
    if (file.num_rows or not is_list) and shape is not None and math.prod(shape) not in (0, width):
        told = f"its declared shape is {shape}"
        raise SchemaError(f"{shown} has {width} values per row; {told}: correct shape in the schema metadata")
    return ParquetColumn(file=file, dtype=dtype, shape=shape, is_list=is_list, element_shape=elements)


def _ragged_column(file: ParquetFile, arrow_type: pa.DataType) -> ParquetColumn | None:
    """Describe a column of strings, of bytes, or of lists of any length; None for others."""
    value_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    is_string = any(check(value_type) for check in TEXT_TYPES)
    if len(file.schema) == 1 and (is_string or any(check(value_type) for check in BYTE_TYPES)):
        return ParquetColumn(
            file=file, dtype=np.dtype(np.uint8), shape=None, is_list=False, is_ragged=True, element_shape=(),
            is_string=is_string,
        )  # fmt: skip
    text = (file.schema.metadata or {}).get(RAGGED)
    if text not in (None, b"true"):
        raise SchemaError(f"{file.shown}: ragged in the schema metadata is {text[:200]!r}; wanted 'true'")
    elements = _element_shape(file, arrow_type)
    if text is not None and elements is None:
        raise SchemaError(f"{file.shown} is declared ragged but is {arrow_type}; wanted lists of any length")
    if elements is None or (text is None and _may_be_fixed(file, math.prod(elements))):
        return None
    dtype = _numpy_dtype(file.shown, _dims(arrow_type)[1])
    return ParquetColumn(file=file, dtype=dtype, shape=None, is_list=True, is_ragged=True, element_shape=elements)


def _element_shape(file: ParquetFile, arrow_type: pa.DataType) -> tuple[int, ...] | None:
    """Return the shape of one element if a file's lists may have any length, else None."""
    first, *others = _dims(arrow_type)[0] or [0]
    if first is not None or None in others or _told_shape(file) is not None:
        return None
    return tuple(dim for dim in others if dim is not None)


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Parse a shape as numpy prints it, ``(1000, 3)``, or as JSON, ``[1000, 3]``; None for other text."""
    found = _SHAPE_TEXT.fullmatch(text.strip())
    return tuple(map(int, (found[1] or found[2]).split(","))) if found else None


def _told_shape(file: ParquetFile) -> tuple[int, ...] | None:
    """Return the shape of one row that the schema metadata declares, or None."""
    text = (file.schema.metadata or {}).get(SHAPE)
    if text is None:
        return None
    shape = parse_shape(text.decode(errors="replace"))
    if shape is None:
        raise SchemaError(f"{file.shown}: shape in the schema metadata is {text[:200]!r}; wanted such as '(1000, 3)'")
    if shape[0] != file.num_rows:
        raise SchemaError(f"{file.shown} has {file.num_rows} rows; its schema metadata declares shape {shape}")
    return shape[1:]


def _may_be_fixed(file: ParquetFile, element_size: int) -> bool:
    """Return whether the footer allows lists of one length; each element has ``element_size`` values."""
    width = _list_width(file)
    return width is not None and element_size > 0 and width % element_size == 0


def _list_width(file: ParquetFile) -> int | None:
    """Return the average number of values per list from the footer.

    None if it differs between row groups or is not an integer.
    """
    group_rows = np.diff(file.group_offsets).tolist()
    counts = {pair for pair in zip(file.list_sizes[0].tolist(), group_rows, strict=True) if pair[1]}
    widths = {num_values // num_rows for num_values, num_rows in counts}
    if len(widths) > 1 or any(num_values % num_rows for num_values, num_rows in counts):
        return None
    return widths.pop() if widths else 0


def _dims(arrow_type: pa.DataType) -> tuple[list[int | None], pa.DataType]:
    """Return the dimensions of a list type, None for those of any length, and the type of its values."""
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        return list(arrow_type.shape), arrow_type.value_type
    dims: list[int | None] = []
    while is_list_type(arrow_type):
        dims.append(arrow_type.list_size if pa.types.is_fixed_size_list(arrow_type) else None)
        arrow_type = arrow_type.value_type
    return dims, arrow_type


def _numpy_dtype(shown: str, arrow_type: pa.DataType) -> np.dtype[Any]:
    name = dtype_name(arrow_type)
    if name is None:
        raise SchemaError(f"{shown} is {arrow_type}, which is not a dtype of a feature; wanted numbers or bool")
    return np.dtype(name)


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column
