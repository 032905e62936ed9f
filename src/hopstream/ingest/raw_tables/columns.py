"""Converts cells of CSV files and values of Parquet files to columns of the declared dtype.

Cells of CSV files have no dtype. They are read as the dtype that the metadata declares; without one, as the first of
int64, float64, bool and string that can hold all cells of the column in all files. The dtype of a Parquet file must be
the declared one, unless the metadata says ``cast``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, Column, RaggedArray, column_schema, empty_column, join_columns, offsets_of
from hopstream.errors import SchemaError, quoted
from hopstream.ingest.arrow_checks import dtype_name
from hopstream.ingest.raw_tables.files import Batch, Origin, shown_path
from hopstream.ingest.raw_tables.metadata import FeatureSpec
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, holds_integers, strings_column
from hopstream.ingest.transforms.chain import ChainFit
from hopstream.ingest.transforms.saved import SavedFeature
from hopstream.schema import STRING, FeatureSchema

LADDER = ("int64", "float64", "bool", STRING)
"""Dtypes to try for undeclared cells, in this order."""


class ColumnReader:
    """Collector of one feature from the batches of its table, and of what its transforms are fitted to.

    Attributes:
        read_as: Schema of the rows before they are transformed; None before the first rows.
        schema: Schema of the rows that ``drain`` or ``finish`` returned; None before the first ones.
        fit: State of fitting the feature's transforms; None if nothing must be fitted.
    """

    def __init__(self, label: str, spec: FeatureSpec) -> None:
        """Start with no rows; ``label`` is the feature's name in messages, for example ``paper.title``."""
        self._label = label
        self._spec = spec
        self._columns: list[Column] = []
        self.read_as: FeatureSchema | None = None
        self.schema: FeatureSchema | None = None
        self._time_unit = None if spec.transform is None else spec.transform.time_unit
        is_unfitted = spec.transform is not None and not spec.transform.is_fitted
        self.fit = ChainFit(label, spec.transform) if spec.transform is not None and is_unfitted else None
        self._undecided: list[tuple[Origin, list[pa.Array]]] = []

    def add(self, batch: Batch) -> None:
        """Add the feature's columns of one batch.

        Raises:
            SchemaError: A cell is empty and there is no ``fill``, a cell or column is not of the declared dtype, or
                dtype or shape differ from earlier files.
        """
        arrays = [batch.columns[name] for name in self._spec.columns]
        if batch.origin.files.format != "csv":
            self._append(batch.origin, [self._values(batch.origin, array) for array in arrays])
            return
        if self._spec.dtype is None:
            self._undecided.append((batch.origin, arrays))
        else:
            self._append(batch.origin, [self._parsed(batch.origin, array, self._spec.dtype) for array in arrays])

    def finish(self) -> Column:
        """Return the whole column.

        Raises:
            SchemaError: As for ``add``, for columns whose dtype depends on all files.
        """
        if self._undecided:
            cells = [_with_nulls(array, origin, dtype=None) for origin, arrays in self._undecided for array in arrays]
            dtype = next(dtype for dtype in LADDER if all(_can_parse(array, dtype) for array in cells))
            for origin, arrays in self._undecided:
                self._append(origin, [self._parsed(origin, array, dtype) for array in arrays])
            self._undecided = []
        if self.fit is not None and self._spec.transform is not None:
            self._spec = replace(self._spec, transform=self._spec.transform.fitted_by(self.fit))
        if not self._columns:
            self._columns = [self.no_rows()]
            self.read_as = column_schema(self._columns[0])
        return join_columns(list(self.drain()))

    def drain(self) -> Iterator[Column]:
        """Yield, transformed, and forget the rows added since the last call; the schemas are kept.

        Only for features whose dtype is declared or given by the files, and whose transforms are fitted.
        """
        columns, self._columns = self._columns, []
        for column in columns:
            chain = self._spec.transform
            for piece in (column,) if chain is None else chain.pieces(self._label, column):
                self.schema = column_schema(piece)
                yield piece

    def forget(self) -> None:
        """Forget the rows added so far; only what transforms are fitted to is kept."""
        self._columns = []

    def saved(self) -> SavedFeature:
        """Return how the feature is made, after ``finish``."""
        return saved_feature(self._spec, self.read_as or column_schema(self.no_rows()))

    def _append(self, origin: Origin, parts: list[Column]) -> None:
        column = parts[0]
        if self._spec.is_vector:
            if any(not isinstance(part, np.ndarray) or part.ndim != 1 for part in parts):
                raise SchemaError(
                    f"{self._label} is a vector of columns {list(self._spec.columns)}, but not all of them are numbers"
                )
            column = np.stack(cast(list[Array], parts), axis=1)
        if self._spec.shape is not None:
            column = self._shaped(origin, column, self._spec.shape)
        if self._spec.schema is not None:
            column = self._as_described(origin, column, self._spec.schema)
        got = column_schema(column)
        self.read_as = self.read_as or got
        if got != self.read_as:
            raise other_schema_error(self._label, origin, got, self.read_as)
        if self.fit is not None:
            self.fit.add(column, (origin.files.paths.index(origin.path), origin.first_row))
        self._columns.append(column)

    def _parsed(self, origin: Origin, cells: pa.Array, dtype: str) -> Column:
        """Convert one column of a CSV file to ``dtype``."""
        filled = self._filled(origin, _with_nulls(cells, origin, None if self._time_unit else dtype), pa.string())
        try:
            return _parse(filled, dtype, is_cast=self._spec.is_cast)
        except pa.ArrowInvalid as error:
            row = _first_refused(filled, lambda part: _parse(part, dtype, is_cast=self._spec.is_cast))
            raise SchemaError(
                f"{self._label} is {quoted(filled[row].as_py())} at {origin.place(row)}; wanted {_range_text(dtype)}"
            ) from error

    def _values(self, origin: Origin, values: pa.Array) -> Column:
        """Convert one column of a Parquet or TFRecord file."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if self._time_unit and (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
            values = _counted(values, self._time_unit)
        filled = self._filled(origin, values, values.type)
        described = self._spec.schema
        if described is not None and described.is_string:
            filled = _text_of_bytes(filled, self._label, origin)
        if described is not None:
            filled = _with_fixed_lists(filled, described.shape if described.is_ragged else described.shape[1:])
        return _to_column(self._cast(origin, filled))

    def _filled(self, origin: Origin, values: pa.Array, fill_type: pa.DataType) -> pa.Array:
        if values.null_count and self._spec.fill is not None:
            values = pc.coalesce(values, self._fill(fill_type))
        row = _first_null(values)
        if row is not None:
            remedy = 'give "fill" in the metadata' if self._spec.fill is None else '"fill" does not apply inside lists'
            remedy = remedy if self._spec.schema is None else "every row needs one"
            raise SchemaError(f"{self._label} has no value at {origin.place(row)}; {remedy}")
        return values

    def _fill(self, fill_type: pa.DataType) -> pa.Scalar:
        fill = self._spec.fill
        try:
            if fill_type == pa.string():  # cells are still text
                return pa.scalar(str(fill).lower() if isinstance(fill, bool) else str(fill))
            return pa.scalar(fill, fill_type) if isinstance(fill, list) else pa.scalar(fill).cast(fill_type)
        except (pa.ArrowException, TypeError) as error:
            raise SchemaError(f"{self._label}: fill {quoted(fill)} is not of type {fill_type} ({error})") from error

    def _cast(self, origin: Origin, values: pa.Array) -> pa.Array:
        got, wanted = leaf_name(values.type), self._spec.dtype
        if got is None and not (wanted and self._spec.is_cast):
            raise SchemaError(f'{self._label} is {values.type} in {_file(origin)}; give a dtype and "cast": true')
        if wanted is None or got == wanted:
            return values
        if self._spec.schema is not None and STRING in (got, wanted):
            raise SchemaError(f"{self._label} is {got} in {_file(origin)}; the schema says {wanted}")
        if not self._spec.is_cast:
            raise SchemaError(
                f"{self._label} is {got} in {_file(origin)}; the metadata says {wanted}; "
                f'declare {got}, or add "cast": true'
            )
        try:
            return _checked_cast(values, wanted)
        except pa.ArrowException as error:
            row = _first_refused(values, lambda part: _checked_cast(part, wanted))
            shown = values[row].as_py()
            raise SchemaError(
                f"{self._label} is {quoted(shown)} at {origin.place(row)}; {wanted} cannot hold it"
            ) from error

    def _shaped(self, origin: Origin, column: Column, shape: tuple[int, ...]) -> Column:
        """Convert a column of lists of one length to rows of fixed width."""
        if isinstance(column, RaggedArray) and not column.is_string:
            wrong = np.diff(column.offsets) != shape[0]
            if wrong.any():
                row = int(np.argmax(wrong))
                got = len(column[row])
                raise SchemaError(
                    f"{self._label} has {got} values at {origin.place(row)}; the metadata says {shape[0]}"
                )
            column = column.values.reshape(len(column), shape[0], *column.values.shape[1:])
        if isinstance(column, RaggedArray) or column.shape[1:] != shape:
            raise SchemaError(
                f"{self._label} is {column_schema(column)} in {_file(origin)}; wanted shape {list(shape)}"
            )
        return column

    def _as_described(self, origin: Origin, column: Column, wanted: FeatureSchema) -> Column:
        """Convert a column to the described schema.

        Lists of one length may be ragged in the file and fixed in the schema, or the reverse, and nested or flat.
        """
        if isinstance(column, RaggedArray) and not column.is_string and not wanted.is_ragged and wanted.shape:
            num_values = math.prod(column.values.shape[1:])
            wrong = np.diff(column.offsets) * num_values != math.prod(wanted.shape)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise SchemaError(
                    f"{self._label} has {len(column[row]) * num_values} values at {origin.place(row)}; the schema says "
                    f"{math.prod(wanted.shape)}"
                )
            column = column.values.reshape(len(column), *wanted.shape)
        if not isinstance(column, RaggedArray):
            if wanted.is_ragged and column.shape[2:] == wanted.shape and column.ndim > 1:
                lengths = np.full(len(column), column.shape[1], np.int64)
                column = RaggedArray(column.reshape(-1, *wanted.shape), offsets_of(lengths))
            elif not wanted.is_ragged and math.prod(column.shape[1:]) == math.prod(wanted.shape):
                column = column.reshape(len(column), *wanted.shape)
        got = column_schema(column)
        if got != wanted:
            raise SchemaError(f"{self._label} is {got} in {_file(origin)}; the schema says {wanted}")
        return column

    def no_rows(self) -> Column:
        """Build a column without rows, whose dtype and shape match those of a table with rows."""
        described = self._spec.schema
        if described is not None:
            return empty_column(described)
        dtype = self._spec.dtype or "float32"
        if dtype == STRING:
            return RaggedArray.from_strings([])
        width = (len(self._spec.columns),) if self._spec.is_vector else self._spec.shape or ()
        return np.empty((0, *width), dtype)


def saved_feature(spec: FeatureSpec, read_as: FeatureSchema) -> SavedFeature:
    """Return how a feature is made of its columns; ``read_as`` is its schema before transforms."""
    return SavedFeature(columns=spec.columns, is_vector=spec.is_vector, read_as=read_as, chain=spec.transform)


def _counted(times: pa.Array, unit: str) -> pa.Array:
    """Return times as int64 counts of a unit since 1970, rounded down."""
    values = times.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
    return pa.array(values.astype(np.int64), mask=np.isnat(values))


def other_schema_error(label: str, origin: Origin, got: FeatureSchema, wanted: FeatureSchema) -> SchemaError:
    """Build the error for a feature whose dtype or shape differs from earlier files."""
    return SchemaError(f"{label} is {got} in {_file(origin)}; before it was {wanted}")


def parsable_dtypes(batch: Batch, spec: FeatureSpec, dtypes: Sequence[str]) -> list[str]:
    """Select the dtypes that can hold all cells of a feature in a batch of a CSV file."""
    cells = [_with_nulls(batch.columns[name], batch.origin, dtype=None) for name in spec.columns]
    return [dtype for dtype in dtypes if all(_can_parse(array, dtype) for array in cells)]


def raw_id_column(batch: Batch, name: str, label: str) -> pa.Array:
    """Return a column of raw ids as integers or strings; empty cells are nulls.

    ``hopstream.ingest.raw_tables.raw_ids`` describes the Arrow types.

    Raises:
        SchemaError: The column holds neither integers nor strings, or an integer does not fit int64.
    """
    values = batch.columns[name]
    if batch.origin.files.format == "csv":
        return _with_nulls(values, batch.origin, dtype=None)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    values = _text_of_bytes(values, label, batch.origin)
    if not (pa.types.is_integer(values.type) or _is_text(values.type)):
        raise SchemaError(f"{label} is {values.type} in {_file(batch.origin)}; raw ids are integers or strings")
    try:
        return values.cast(NAME if _is_text(values.type) else INTEGER)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{label} in {_file(batch.origin)} has a raw id of 2**63 or more ({error})") from error


def _text_of_bytes(values: pa.Array, label: str, origin: Origin) -> pa.Array:
    """Convert bytes of a Parquet file to text; other types are returned unchanged."""
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return values
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        row = _first_refused(values, lambda part: part.cast(pa.large_string()))
        raise SchemaError(
            f"{label} is {quoted(values[row].as_py())} at {origin.place(row)}, which is not UTF-8"
        ) from error


def leaf_name(arrow_type: pa.DataType) -> str | None:
    """Return the dtype name of a column's values, or of the values in its lists.

    None if it cannot be stored.
    """
    while _is_list(arrow_type):
        arrow_type = arrow_type.value_type
    if _is_text(arrow_type):
        return STRING
    return dtype_name(arrow_type)


def _file(origin: Origin) -> str:
    return shown_path(origin.files, origin.path)


def _with_nulls(cells: pa.Array, origin: Origin, dtype: str | None) -> pa.Array:
    """Replace the cells in ``null_values`` by nulls.

    An empty cell of a string column stays an empty string.
    """
    marks = [mark for mark in origin.files.null_values if mark or dtype != STRING]
    return pc.if_else(pc.is_in(cells, value_set=pa.array(marks, pa.string())), None, cells) if marks else cells


def _can_parse(cells: pa.Array, dtype: str) -> bool:
    if dtype == "int64":
        return holds_integers(cells)
    try:
        cells.cast(_arrow_type(dtype))
    except pa.ArrowInvalid:
        return False
    return True


def _parse(cells: pa.Array, dtype: str, *, is_cast: bool) -> Column:
    """Parse cells without nulls as numbers or strings; with ``is_cast``, ``3.0`` is the integer 3."""
    if dtype == STRING:
        return strings_column([cells])
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return _finite(cells, cells.cast(pa.float32()).to_numpy().astype(np.float16))
    arrow_type = _arrow_type(dtype)
    try:
        values = cells.cast(arrow_type)
    except pa.ArrowInvalid:
        if not (is_cast and pa.types.is_integer(arrow_type)):
            raise
        values = cells.cast(pa.float64()).cast(arrow_type)
    return _finite(cells, values.to_numpy(zero_copy_only=False))


def _finite(cells: pa.Array, values: Array) -> Array:
    """Check that parsing did not overflow: a value may be infinite only if its cell contains ``inf``.

    Raises:
        pa.ArrowInvalid: A number is too large for the dtype.
    """
    if values.dtype.kind == "f" and np.isinf(values).any():
        says_so = pc.match_substring(cells, "inf", ignore_case=True).to_numpy(zero_copy_only=False)
        if (np.isinf(values) & ~says_so).any():
            raise pa.ArrowInvalid(f"too large for {values.dtype}")
    return values


def _range_text(dtype: str) -> str:
    """Return a dtype's name, and the range of a dtype of numbers, for messages."""
    if dtype in (STRING, "bool"):
        return dtype
    info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return f"{dtype}, {info.min} to {info.max}"


def _arrow_type(dtype: str) -> pa.DataType:
    return pa.large_string() if dtype == STRING else pa.from_numpy_dtype(np.dtype(dtype))


def _checked_cast(values: pa.Array, dtype: str) -> pa.Array:
    """Cast values, also inside lists, without loss.

    Raises:
        pa.ArrowException: An integer changes, or a float becomes infinite.
    """
    done = pc.cast(values, _with_leaf(values.type, _arrow_type(dtype)))
    before, after = _leaves(values), _leaves(done)
    if pa.types.is_floating(before.type) and pa.types.is_floating(after.type):
        num_before, num_after = (
            int(np.isinf(leaves.to_numpy(zero_copy_only=False)).sum()) for leaves in (before, after)
        )
        if num_after > num_before:
            raise pa.ArrowInvalid(f"too large for {dtype}")
    return done


def _with_fixed_lists(values: pa.Array, sizes: Sequence[int]) -> pa.Array:
    """Convert inner lists to lists of fixed size, level by level, if all have the given sizes."""
    if not sizes or not _is_list(values.type):
        return values
    inner = values.flatten()
    if not _is_list(inner.type) or not bool(np.all(pc.list_value_length(inner).to_numpy() == sizes[0])):
        return values
    leaves = _with_fixed_lists(inner, sizes[1:]).flatten()
    fixed = pa.FixedSizeListArray.from_arrays(leaves, sizes[0])
    if pa.types.is_fixed_size_list(values.type):
        return pa.FixedSizeListArray.from_arrays(fixed, values.type.list_size)
    offsets = offsets_of(pc.list_value_length(values).to_numpy())
    return pa.LargeListArray.from_arrays(pa.array(offsets), fixed)


def _with_leaf(arrow_type: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    if not _is_list(arrow_type):
        return leaf
    inner = _with_leaf(arrow_type.value_type, leaf)
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(inner, arrow_type.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(arrow_type) else pa.list_(inner)


def _leaves(values: pa.Array) -> pa.Array:
    while _is_list(values.type):
        values = values.flatten()
    return values


def _to_column(values: pa.Array) -> Column:
    """Convert Arrow values without nulls to a column of numbers, strings, or lists of fixed or any length."""
    if _is_text(values.type):
        return strings_column([values])
    if not _is_list(values.type):
        return cast(Array, values.to_numpy(zero_copy_only=False))
    inner = _to_column(values.flatten())
    if isinstance(inner, RaggedArray):
        raise SchemaError(f"{values.type} cannot be stored; a column holds lists of numbers of one shape")
    if pa.types.is_fixed_size_list(values.type):
        return inner.reshape(len(values), values.type.list_size, *inner.shape[1:])
    return RaggedArray(inner, offsets_of(pc.list_value_length(values).to_numpy()))


def _first_null(values: pa.Array) -> int | None:
    """Return the first row that is null or has a null in its list, or None."""
    if values.null_count:
        return int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
    if not _is_list(values.type):
        return None
    position = _first_null(values.flatten())
    if position is None or pa.types.is_fixed_size_list(values.type):
        return None if position is None else position // values.type.list_size
    ends = np.cumsum(pc.list_value_length(values).to_numpy())
    return int(np.searchsorted(ends, position, side="right"))


def _first_refused(values: pa.Array, convert: Callable[[pa.Array], object]) -> int:
    """Find the first row that ``convert`` refuses by binary search; it must refuse at least one."""
    start, stop = 0, len(values)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            convert(values[start:middle])
            start = middle
        except pa.ArrowException:
            stop = middle
    return start


def _is_list(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type))


def _is_text(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type))
