"""Mergeable results of the pass that fits transforms: sums, extremes, samples and counts.

A result depends on the rows alone. The sizes of chunks and the order of merges do not change a bit of it. So a table
gives the same features whether it is read at once or by many tasks.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import SchemaError
from hopstream.kernels.hashing import hash_keys

SAMPLE_ROWS = 1 << 16
"""Rows of a sample. Quantiles of more rows are estimates: the rank of the median has a standard error of 0.2 %."""
SAMPLE_VALUES, LEAST_ROWS = 1 << 18, 1 << 12
"""Values of a sample of vectors, which has fewer rows, and the least number of its rows."""
MAX_CATEGORIES, MAX_CATEGORY_BYTES = 1 << 18, 16 << 20
MAX_MAGNITUDE = 1e150
"""Larger values are refused, because their squares overflow."""
_UNIT_BITS = 1074 + 53
"""Sums are integers in units of ``2**-_UNIT_BITS``, the last bit of the smallest float64."""
_SUM_ROWS = 1 << 20
_SAMPLE_SEED = 0x7AB1E


class Fit(Protocol):
    """State of fitting a transform; states of parts of a table can be merged in any order."""

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Add consecutive rows, given the number of their file and the number of the first row in it.

        Raises:
            SchemaError: The transform cannot take such values.
        """
        ...

    def merge(self, other: Any) -> None:
        """Add the rows of a state that ``to_json`` of another process returned."""
        ...

    def to_json(self) -> Any:
        """Return the state as a JSON value."""
        ...


def numbers_of(column: Column) -> Array:
    """Return float64[rows, values per row] of a column of numbers.

    Raises:
        SchemaError: The rows are strings or lists of any length.
    """
    if isinstance(column, RaggedArray) or column.dtype.kind not in "biuf":
        got = "strings" if isinstance(column, RaggedArray) and column.is_string else "lists of any length"
        raise SchemaError(f"its values are {got}; wanted numbers, so give a dtype of numbers or another transform")
    return column.reshape(len(column), math.prod(column.shape[1:])).astype(np.float64)


def exact_sum(values: Array) -> int:
    """Return the sum of finite float64 values without rounding, in units of ``2**-_UNIT_BITS``.

    [Algorithm] The 53 bits of each value are cut into two integers. Those of one exponent are added in float64, which
        is exact below 2**53, and the sums per exponent as Python's integers.
    [Cost] About 12 ns per value.
    [Not chosen] Welford's and Chan's updates: their last bits depend on the order of merges.
    """
    total = 0
    for start in range(0, len(values), _SUM_ROWS):
        mantissas, exponents = np.frexp(values[start : start + _SUM_ROWS])
        whole = mantissas * 2.0**53
        high = np.floor(whole * 2.0**-27)
        for part, shift in ((high, 27), (whole - high * 2.0**27, 0)):
            sums = np.bincount(exponents + 1074, part)
            total += sum(int(sums[e]) << (int(e) + shift) for e in np.flatnonzero(sums))
    return total


def _rounding_of_square(values: Array) -> Array:
    """Return what ``values * values`` rounds off (Dekker's product)."""
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    low = values - high
    error: Array = ((high * high - values * values) + 2.0 * high * low) + low * low
    return error


class Moments:
    """Exact sums of values and of their squares, for each value of a row; NaN is left out."""

    def __init__(self) -> None:
        """Start without rows."""
        self._sums: list[list[int]] = []

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Add the values of some rows, and their squares, to the sums."""
        rows = numbers_of(column)
        if (np.abs(rows) > MAX_MAGNITUDE).any():
            raise SchemaError(f"a value is infinite or beyond {MAX_MAGNITUDE:g}; replace such values in the table")
        sums = []
        for values in rows.T:
            known = values[~np.isnan(values)]
            squares = exact_sum(known * known) + exact_sum(_rounding_of_square(known))
            sums.append([len(known), exact_sum(known), squares])
        self.merge(sums)

    def merge(self, other: Any) -> None:
        """Add the sums of another process."""
        self._sums = _merged(self._sums, other, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])

    def to_json(self) -> Any:
        """Return the sums as a JSON value."""
        return self._sums

    def results(self) -> list[tuple[float, float]]:
        """Return mean and variance of each value of a row, rounded once; 0 and 0 without values."""
        found = []
        for count, of_values, of_squares in self._sums:
            mean = Fraction(of_values, (count or 1) << _UNIT_BITS)
            variance = Fraction(of_squares, (count or 1) << _UNIT_BITS) - mean**2
            found.append((float(mean), float(variance)))
        return found


class Extremes:
    """Least and greatest value, for each value of a row; NaN is left out."""

    def __init__(self) -> None:
        """Start without rows."""
        self._ends: list[list[float]] = []

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Update the least and the greatest value by some rows."""
        rows = numbers_of(column)
        if np.isinf(rows).any():
            raise SchemaError("a value is infinite; replace such values in the table")
        if len(rows):
            low, high = (np.where(np.isnan(rows), fill, rows) for fill in (np.inf, -np.inf))
            self.merge([list(ends) for ends in zip(low.min(0).tolist(), high.max(0).tolist(), strict=True)])

    def merge(self, other: Any) -> None:
        """Update the least and the greatest value by those of another process."""
        self._ends = _merged(self._ends, other, lambda a, b: [min(a[0], b[0]), max(a[1], b[1])])

    def to_json(self) -> Any:
        """Return the least and the greatest value as a JSON value."""
        return self._ends

    def results(self) -> list[tuple[float, float]]:
        """Return the least and the greatest value; 0 and 0 without values."""
        return [(low + 0.0, high + 0.0) if low <= high else (0.0, 0.0) for low, high in self._ends]


def _merged(mine: list[Any], other: list[Any], join: Any) -> list[Any]:
    if mine and other and len(mine) != len(other):
        raise SchemaError(f"rows have {len(other)} values; earlier rows had {len(mine)}")
    return [join(a, b) for a, b in zip(mine, other, strict=True)] if mine and other else mine or other


class RowSample:
    """Uniform sample of rows: those with the lowest hashes of their file and row number.

    All rows are in the sample if there are few. ``SAMPLE_ROWS`` and ``SAMPLE_VALUES`` limit it.
    """

    def __init__(self) -> None:
        """Start without rows."""
        self._hashes: Array = np.empty(0, np.uint64)
        self._rows: Array | None = None

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Add some rows to the sample; the rows with the smallest hashes stay."""
        rows, (file, first) = numbers_of(column), place
        if np.isinf(rows).any():
            raise SchemaError("a value is infinite; replace such values in the table")
        hashes = np.empty(len(rows), np.uint64)
        hash_keys(np.arange(first, first + len(rows)), np.uint64(_SAMPLE_SEED + (file << 20)), hashes)
        self._take(hashes, rows)

    def _take(self, hashes: Array, rows: Array) -> None:
        if self._rows is None:
            self._rows = rows[:0]
        if len(self._rows) and len(rows) and rows.shape[1] != self._rows.shape[1]:
            raise SchemaError(f"rows have {rows.shape[1]} values; earlier rows had {self._rows.shape[1]}")
        size = min(SAMPLE_ROWS, max(LEAST_ROWS, SAMPLE_VALUES // max(1, rows.shape[1])))
        if len(self._hashes) == size:
            is_low = hashes < self._hashes[-1]
            hashes, rows = hashes[is_low], rows[is_low]
        if len(rows):
            hashes, rows = np.concatenate([self._hashes, hashes]), np.concatenate([self._rows, rows])
            order = np.argsort(hashes, kind="stable")[:size]
            self._hashes, self._rows = hashes[order], rows[order]

    def merge(self, other: Any) -> None:
        """Add the sample of another process; the rows with the smallest hashes stay."""
        if other[0]:
            self._take(np.array(other[0], np.uint64), np.array(other[1], np.float64))

    def to_json(self) -> Any:
        """Return the sample as a JSON value."""
        return [self._hashes.tolist(), [] if self._rows is None else self._rows.tolist()]

    def columns(self) -> list[Array]:
        """Return the sampled values without NaN, for each value of a row."""
        return [] if self._rows is None else [values[~np.isnan(values)] for values in self._rows.T]


class Counts:
    """Number of rows of each value of a column of strings, integers or booleans, or of lists of them."""

    def __init__(self, separator: str | None = None) -> None:
        """Start without rows; with a separator, a string holds several values."""
        self._separator = separator
        self._counts: pa.Table | None = None

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Count the values of some rows."""
        counted = pc.value_counts(flat_categories(column, self._separator)[0])
        self._take(pa.table({"value": counted.field("values"), "rows": counted.field("counts")}))

    def _take(self, counts: pa.Table) -> None:
        if self._counts is not None and self._counts.schema != counts.schema:
            raise SchemaError(f"values are {counts.schema.types[0]}; earlier ones were {self._counts.schema.types[0]}")
        both = counts if self._counts is None else pa.concat_tables([self._counts, counts])
        summed = both.group_by("value").aggregate([("rows", "sum")])
        self._counts = summed.select(["value", "rows_sum"]).rename_columns(["value", "rows"])
        if summed.num_rows > MAX_CATEGORIES or summed.nbytes > MAX_CATEGORY_BYTES:
            raise SchemaError(
                f"there are more than {min(summed.num_rows - 1, MAX_CATEGORIES)} different values; use the transform "
                "hash, or keep the column as a feature of strings"
            )

    def merge(self, other: Any) -> None:
        """Add the counts of another process."""
        if other[0] is not None:
            value_type = {"string": pa.large_string(), "int64": pa.int64(), "bool": pa.bool_()}[other[0]]
            self._take(pa.table({"value": pa.array(other[1], value_type), "rows": pa.array(other[2], pa.int64())}))

    def to_json(self) -> Any:
        """Return each value with its number of rows as a JSON value."""
        if self._counts is None:
            return [None, [], []]
        value_type = self._counts.schema.field("value").type
        kind = "string" if pa.types.is_large_string(value_type) else str(value_type)
        return [kind, self._counts["value"].to_pylist(), self._counts["rows"].to_pylist()]

    def values(self, limit: int | None) -> list[Any]:
        """Return the values in ascending order; with a limit the most frequent ones, of equals the least."""
        if self._counts is None:
            return []
        ordered = self._counts.sort_by([("rows", "descending"), ("value", "ascending")])["value"]
        return sorted(ordered.slice(0, limit).to_pylist())


def flat_categories(column: Column, separator: str | None) -> tuple[pa.Array, IntArray | None]:
    """Return the values of all rows, and the row of each; None if each row has one value.

    Args:
        column: Rows of one value, of lists, or of strings that hold several values.
        separator: String between two values of a string; empty values are left out. None: strings are single values.

    Raises:
        SchemaError: The rows are of another kind.
    """
    if separator is not None:
        if not (isinstance(column, RaggedArray) and column.is_string):
            raise SchemaError("its values are no strings; a separator is for strings")
        lists = pc.split_pattern(categories_of(column), separator)
        values, lengths = lists.flatten(), pc.list_value_length(lists).to_numpy()
        is_value = pc.not_equal(values, "")
        rows = np.repeat(np.arange(len(lists)), lengths)[is_value.to_numpy(zero_copy_only=False)]
        return values.filter(is_value), rows
    if isinstance(column, RaggedArray) and not column.is_string:
        return categories_of(column.values), np.repeat(np.arange(len(column)), np.diff(column.offsets))
    return categories_of(column), None


def categories_of(column: Column) -> pa.Array:
    """Return a column's values as Arrow's ``large_string``, ``int64`` or ``bool``.

    Raises:
        SchemaError: The rows are vectors, lists or floats, or an integer does not fit int64.
    """
    if isinstance(column, RaggedArray) and column.is_string:
        buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(np.ascontiguousarray(column.values))]
        return pa.Array.from_buffers(pa.large_string(), len(column), buffers)
    if isinstance(column, RaggedArray) or column.ndim > 1 or column.dtype.kind not in "biu":
        raise SchemaError("its values are no categories; wanted one string, integer or boolean per row: give a dtype")
    if column.dtype.kind == "b":
        return pa.array(column)
    try:
        return pa.array(np.ascontiguousarray(column)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise SchemaError("a value is 2**63 or more; give the dtype string") from error
