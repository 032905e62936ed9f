"""Transforms of one column: what they are given, what they are fitted to, and how they are applied.

A transform is a record. Its options come from the description of the tables. Its fitted values, if it has any, are None
until the table was read once.
"""

from __future__ import annotations

import importlib
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, Column, RaggedArray, offsets_of
from hopstream.checks import known_names
from hopstream.errors import SchemaError, SettingsError, quoted
from hopstream.ingest.raw_tables.raw_ids import strings_column, text_of
from hopstream.ingest.transforms.fits import (
    Counts,
    Extremes,
    Fit,
    Moments,
    RowSample,
    categories_of,
    flat_categories,
    numbers_of,
)
from hopstream.kernels.hashing import hash_keys
from hopstream.kernels.spill import hash_strings
from hopstream.schema import STRING

MAX_WIDTH = 1 << 16
"""Most values per row of a one-hot vector or of a padded list."""
LEAST_RANK = 1e-7 - float(np.spacing(1.0))
"""Ranks nearer to 0 or 1 are clipped before they become quantiles of the normal distribution."""
MIN_WIDTH = 1e-8
"""Narrower buckets are joined to the one before."""
FloatDtype = Literal["float16", "float32", "float64"]
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Transform(ABC):
    """Transform of a column to a column with as many rows."""

    name: ClassVar[str]
    found: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that fitting fills."""
    csv_dtype: ClassVar[str] = STRING
    """Dtype as which cells of CSV files are read if the description gives none."""

    @property
    def is_fitted(self) -> bool:
        """Whether the transform can be applied."""
        return all(getattr(self, name) is not None for name in self.found)

    @abstractmethod
    def apply(self, column: Column) -> Column:
        """Transform some rows.

        Raises:
            SchemaError: The rows are of a kind that the transform does not take.
        """

    def to_json(self, *, with_fitted: bool = True) -> dict[str, Any]:
        """Return a JSON value for ``transform_of``; without fitted values it equals that of the description."""
        kept = [one.name for one in fields(self) if with_fitted or one.name not in self.found]
        return {"name": self.name, **{name: getattr(self, name) for name in kept}}

    def check(self, where: str) -> None:
        """Check the options.

        Raises:
            SchemaError: An option is out of range.
        """
        return


class Fitted(Transform):
    """Transform that is fitted to the table."""

    @abstractmethod
    def start(self) -> Fit:
        """Start fitting."""

    @abstractmethod
    def fitted_by(self, fit: Any) -> Self:
        """Return the transform with the values that the fit found."""


def _check(where: str, name: str, value: object, is_valid: bool, wanted: str) -> None:
    if not is_valid:
        raise SchemaError(f"{where}.{name} is {quoted(value)}; wanted {wanted}")


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


@dataclass(frozen=True, kw_only=True)
class _OfNumbers(Fitted):
    """Transform of numbers to floats, value by value; NaN stays NaN."""

    csv_dtype: ClassVar[str] = "float64"
    dtype: FloatDtype = "float32"

    def check(self, where: str) -> None:
        """Check that ``dtype`` is a dtype of floats."""
        _check(where, "dtype", self.dtype, self.dtype in FLOATS, f"one of {', '.join(FLOATS)}")

    def _as_rows(self, values: Array, column: Column) -> Array:
        return values.reshape(cast(Array, column).shape).astype(self.dtype)


@dataclass(frozen=True, kw_only=True)
class _Scaled(_OfNumbers):
    """Transform of numbers by an offset and a factor."""

    found: ClassVar[tuple[str, ...]] = ("shift", "scale")
    shift: list[float] | None = None
    scale: list[float] | None = None

    def apply(self, column: Column) -> Column:
        """Subtract the offset and divide by the scale."""
        rows = numbers_of(column)
        return self._as_rows((rows - np.array(self.shift or [0.0])) / np.array(self.scale or [1.0]), column)


@dataclass(frozen=True, kw_only=True)
class Standard(_Scaled):
    """Numbers minus their mean, divided by their standard deviation; a constant only loses its mean."""

    name: ClassVar[str] = "standard"

    def start(self) -> Fit:
        """Start to sum values and squares."""
        return Moments()

    def fitted_by(self, fit: Moments) -> Self:
        """Take mean and standard deviation from the sums."""
        found = fit.results()
        return replace(self, shift=[mean for mean, _ in found], scale=[var**0.5 or 1.0 for _, var in found])


@dataclass(frozen=True, kw_only=True)
class MinMax(_Scaled):
    """Numbers scaled so that the least is 0 and the greatest 1; a constant becomes 0.

    Attributes:
        clip: Numbers of new rows below the least become 0, and those above the greatest 1.
    """

    name: ClassVar[str] = "min-max"
    clip: bool = False

    def check(self, where: str) -> None:
        """Check ``dtype``, and that ``clip`` is a flag."""
        super().check(where)
        _check(where, "clip", self.clip, isinstance(self.clip, bool), "true or false")

    def apply(self, column: Column) -> Column:
        """Scale to the range from 0 to 1, and cut off what lies outside if asked to."""
        scaled = cast(Array, super().apply(column))
        return np.clip(scaled, 0, 1) if self.clip else scaled

    def start(self) -> Fit:
        """Start to look for the least and the greatest value."""
        return Extremes()

    def fitted_by(self, fit: Extremes) -> Self:
        """Take the least value as offset and the range of values as scale."""
        found = fit.results()
        return replace(self, shift=[low for low, _ in found], scale=[(high - low) or 1.0 for low, high in found])


@dataclass(frozen=True, kw_only=True)
class Rank(_OfNumbers):
    """Ranks of numbers, spread over a normal or uniform distribution.

    [Algorithm] Piecewise linear between quantiles, as scikit-learn's ``QuantileTransformer``, which extends to new
        numbers. GraphStorm's ``rank_gauss`` sorts one whole column instead.

    Attributes:
        distribution: ``normal``, within -5.2 and 5.2, or ``uniform``, from 0 to 1.
        quantiles: Number of quantiles.
    """

    name: ClassVar[str] = "rank"
    found: ClassVar[tuple[str, ...]] = ("points",)
    distribution: Literal["normal", "uniform"] = "normal"
    quantiles: int = 1000
    points: list[list[float]] | None = None

    def check(self, where: str) -> None:
        """Check the distribution, and that ``quantiles`` is a number from 2 on."""
        super().check(where)
        _check(
            where, "distribution", self.distribution, self.distribution in ("normal", "uniform"), "normal or uniform"
        )
        is_valid = _is_count(self.quantiles, 1 << 16) and self.quantiles > 1
        _check(where, "quantiles", self.quantiles, is_valid, "an integer from 2 to 65536")

    def start(self) -> Fit:
        """Start to sample rows."""
        return RowSample()

    def fitted_by(self, fit: RowSample) -> Self:
        """Compute the quantiles of the sample."""
        points = []
        for values in fit.columns():
            known = values if len(values) else np.zeros(1)
            at = np.linspace(0, 1, max(2, min(self.quantiles, len(known))))
            points.append(np.maximum.accumulate(np.quantile(known, at)).tolist())
        return replace(self, points=points)

    def apply(self, column: Column) -> Column:
        """Interpolate the rank of each value, and spread the ranks over the distribution."""
        rows = numbers_of(column)
        done = np.empty_like(rows)
        for number, values in enumerate(rows.T):
            done[:, number] = self._ranks(values, np.array((self.points or [[0.0, 0.0]] * rows.shape[1])[number]))
        return self._as_rows(done, column)

    def _ranks(self, values: Array, points: Array) -> Array:
        at = np.linspace(0, 1, len(points))
        # The mean of both directions is the middle rank of a value that several quantiles share.
        ranks: Array = 0.5 * (np.interp(values, points, at) - np.interp(-values, -points[::-1], -at[::-1]))
        edge = 1e-7 if self.distribution == "normal" else 0.0
        ranks[values + edge >= points[-1]] = 1.0
        ranks[values - edge <= points[0]] = 0.0
        return ranks if self.distribution == "uniform" else _normal(ranks)


def _normal(ranks: Array) -> Array:
    """Return the normal distribution's quantiles of ranks, clipped; each distinct rank is computed once."""
    found, places = np.unique(np.clip(ranks, LEAST_RANK, 1 - LEAST_RANK), return_inverse=True)
    inverse = statistics.NormalDist().inv_cdf
    return np.array([value if value != value else inverse(value) for value in found.tolist()])[places]


@dataclass(frozen=True, kw_only=True)
class _OfCodes(Transform):
    """Transform to the number of a class, or to a vector with a 1 in the place of the class.

    Attributes:
        encode: ``ids`` for int64 numbers, or ``one-hot`` for float32 vectors, in which unknown classes are zeros.
    """

    encode: Literal["ids", "one-hot"] = "ids"

    def check(self, where: str) -> None:
        """Check that ``encode`` is known."""
        _check(where, "encode", self.encode, self.encode in ("ids", "one-hot"), "ids or one-hot")

    @abstractmethod
    def codes(self, column: Column) -> Array:
        """Return int64, the number of each value's class; ``num_classes`` for unknown classes."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of known classes."""

    def apply(self, column: Column) -> Column:
        """Return the numbers of the classes, or one-hot vectors."""
        codes = self.codes(column)
        return codes if self.encode == "ids" else self._vectors(len(codes), np.arange(len(codes)), codes)

    def _vectors(self, num_rows: int, rows: Array, codes: Array) -> Array:
        """Return float32[num_rows, num_classes] with ones at these rows and codes."""
        if self.num_classes > MAX_WIDTH:
            raise SchemaError(
                f"there are {self.num_classes} classes; one-hot vectors have at most {MAX_WIDTH}: encode ids"
            )
        vectors = np.zeros((num_rows, self.num_classes + 1), np.float32)
        vectors[rows, codes] = 1.0
        return np.ascontiguousarray(vectors[:, :-1])


@dataclass(frozen=True, kw_only=True)
class Categories(_OfCodes, Fitted):
    """Number of each category in ascending order; unknown categories get the next number.

    Attributes:
        most: Keep only so many categories, the most frequent ones; None for all.
        separator: String between two categories of a row of strings; rows of several categories, and rows of lists,
            become lists of numbers, or vectors with several ones. None: a string is one category.
    """

    name: ClassVar[str] = "categories"
    found: ClassVar[tuple[str, ...]] = ("values",)
    most: int | None = None
    separator: str | None = None
    values: list[Any] | None = None

    def check(self, where: str) -> None:
        """Check ``encode``, ``most`` and ``separator``."""
        super().check(where)
        _check(where, "most", self.most, self.most is None or _is_count(self.most, 1 << 18), "1 to 262144")
        is_valid = self.separator is None or (isinstance(self.separator, str) and bool(self.separator))
        _check(where, "separator", self.separator, is_valid, "a string")

    def start(self) -> Fit:
        """Start to count the values."""
        return Counts(self.separator)

    def fitted_by(self, fit: Counts) -> Self:
        """Take the values, or the most frequent of them, in ascending order."""
        return replace(self, values=fit.values(self.most))

    @property
    def num_classes(self) -> int:
        """Number of known categories."""
        return len(self.values or ())

    @cached_property
    def _known(self) -> pa.Array:
        kinds = {str: pa.large_string(), bool: pa.bool_()}
        return pa.array(self.values or [], kinds.get(type((self.values or [0])[0]), pa.int64()))

    def apply(self, column: Column) -> Column:
        """Return the numbers of the categories, or vectors with a 1 for each category of a row."""
        values, rows = flat_categories(column, self.separator)
        if rows is None:
            return super().apply(column)
        codes = self._codes(values)
        if self.encode == "ids":
            return RaggedArray(codes, offsets_of(np.bincount(rows, minlength=len(column))))
        return self._vectors(len(column), rows, codes)

    def codes(self, column: Column) -> Array:
        """Look up each value among the categories."""
        return self._codes(categories_of(column))

    def _codes(self, given: pa.Array) -> Array:
        if self.values and given.type != self._known.type:
            raise SchemaError(f"its values are {given.type}; the categories are {self._known.type}")
        if not self.values:
            return np.zeros(len(given), np.int64)
        found: Array = pc.index_in(given, value_set=self._known).fill_null(self.num_classes).to_numpy()
        return found.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Hash(_OfCodes):
    """Number from 0 to ``buckets - 1`` by a hash of the value; the same on every machine.

    Attributes:
        buckets: Number of buckets.
    """

    name: ClassVar[str] = "hash"
    buckets: int = 1024

    def check(self, where: str) -> None:
        """Check ``encode`` and the number of buckets."""
        super().check(where)
        _check(where, "buckets", self.buckets, _is_count(self.buckets, 1 << 31), "an integer from 1 to 2**31")

    @property
    def num_classes(self) -> int:
        """Number of buckets."""
        return self.buckets

    def codes(self, column: Column) -> Array:
        """Hash each value to a bucket."""
        given = categories_of(column)
        hashes = np.empty(len(given), np.uint64)
        if pa.types.is_large_string(given.type):
            hash_strings(*text_of(given), hashes)
        else:
            hash_keys(given.cast(pa.int64()).to_numpy(), np.uint64(0), hashes)
        return (hashes % np.uint64(self.buckets)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Buckets(_OfCodes, Fitted):
    """Number of the bucket of a number: bucket ``i`` is ``[edges[i], edges[i + 1])``.

    The outer buckets are open. NaN is in bucket 0.

    Attributes:
        buckets: Number of buckets to fit; fewer if edges are equal.
        strategy: ``uniform`` for buckets of equal width, ``quantile`` for buckets of equally many rows.
        edges: Edges of the buckets, ascending, in place of fitted ones.
    """

    name: ClassVar[str] = "buckets"
    found: ClassVar[tuple[str, ...]] = ("bounds",)
    csv_dtype: ClassVar[str] = "float64"
    buckets: int = 10
    strategy: Literal["uniform", "quantile"] = "uniform"
    edges: list[float] | None = None
    bounds: list[float] | None = None

    def check(self, where: str) -> None:
        """Check ``encode``, the number of buckets, the strategy and the edges."""
        super().check(where)
        _check(where, "buckets", self.buckets, _is_count(self.buckets, MAX_WIDTH), f"1 to {MAX_WIDTH}")
        _check(where, "strategy", self.strategy, self.strategy in ("uniform", "quantile"), "uniform or quantile")
        given = self.edges
        if given is not None:
            are_numbers = isinstance(given, list) and all(type(edge) in (int, float) for edge in given)
            is_valid = are_numbers and len(given) > 1 and all(a < b for a, b in pairwise(given))
            _check(where, "edges", given, is_valid, "two or more ascending numbers")

    @property
    def is_fitted(self) -> bool:
        """Whether the edges are known."""
        return self.edges is not None or self.bounds is not None

    def start(self) -> Fit:
        """Start to look for the extremes, or to sample rows for quantiles."""
        return Extremes() if self.strategy == "uniform" else RowSample()

    def fitted_by(self, fit: Any) -> Self:
        """Compute the edges of the buckets."""
        if isinstance(fit, Extremes):
            ends = [np.linspace(low, high, self.buckets + 1) for low, high in fit.results()]
        else:
            at = np.linspace(0, 1, self.buckets + 1)
            ends = [np.quantile(values if len(values) else np.zeros(1), at) for values in fit.columns()]
        if len(ends) > 1:
            raise SchemaError(f"rows have {len(ends)} values; buckets are for one number per row")
        found = ends[0].tolist() if ends else [0.0, 0.0]
        kept = [edge for edge, before in zip(found, [-np.inf, *found[:-1]], strict=True) if edge - before > MIN_WIDTH]
        return replace(self, bounds=kept if len(kept) > 1 else [found[0], found[0]])

    @property
    def num_classes(self) -> int:
        """Number of buckets."""
        return len(self.edges or self.bounds or [0, 0]) - 1

    def codes(self, column: Column) -> Array:
        """Look up the bucket of each value."""
        values = numbers_of(column)
        if values.shape[1] != 1:
            raise SchemaError(f"rows have {values.shape[1]} values; buckets are for one number per row")
        inner = np.array((self.edges or self.bounds or [0, 0])[1:-1], np.float64)
        codes = np.searchsorted(inner, values[:, 0], side="right").astype(np.int64)
        codes[np.isnan(values[:, 0])] = 0
        return codes


UNITS = {"D": 86400, "s": 1, "ms": 1, "us": 1, "ns": 1}
PARTS = ("year", "month", "day", "weekday", "yearday", "hour", "minute", "second", "epoch")


@dataclass(frozen=True, kw_only=True)
class Datetime(Transform):
    """Parts of dates and times in UTC, int64, of text, of Parquet's times, or of integers since 1970.

    Attributes:
        parts: Parts of the date: a list gives a vector, one name a number. Months, days and days of the year count from
            1, days of the week from Monday 0; ``epoch`` is the number of seconds since 1970.
        unit: Unit of integers: ``D``, ``s``, ``ms``, ``us`` or ``ns``.
        format: Format of text as of C's ``strptime``; None for ISO 8601.
    """

    name: ClassVar[str] = "datetime"
    parts: list[str] | str = field(default_factory=lambda: ["year", "month", "day", "weekday", "hour"])
    unit: Literal["D", "s", "ms", "us", "ns"] = "s"
    format: str | None = None

    def check(self, where: str) -> None:
        """Check the parts, the unit and the format."""
        given = [self.parts] if isinstance(self.parts, str) else self.parts
        is_valid = isinstance(given, list) and bool(given) and all(part in PARTS for part in given)
        _check(where, "parts", self.parts, is_valid, f"some of {', '.join(PARTS)}")
        _check(where, "unit", self.unit, self.unit in UNITS, f"one of {', '.join(UNITS)}")
        _check(where, "format", self.format, self.format is None or isinstance(self.format, str), "a string")

    def apply(self, column: Column) -> Column:
        """Read times, and return their parts."""
        given = categories_of(column)
        times = self._parsed(given) if pa.types.is_large_string(given.type) else self._counted(given)
        days = times.astype("datetime64[D]")
        seconds, years, months = (
            (times - days).astype(np.int64),
            days.astype("datetime64[Y]"),
            days.astype("datetime64[M]"),
        )
        found: dict[str, Array] = {
            "year": years.astype(np.int64) + 1970, "month": months.astype(np.int64) % 12 + 1,
            "day": (days - months).astype(np.int64) + 1, "weekday": (days.astype(np.int64) + 3) % 7,
            "yearday": (days - years).astype(np.int64) + 1, "hour": seconds // 3600, "minute": seconds // 60 % 60,
            "second": seconds % 60, "epoch": times.astype(np.int64),
        }  # fmt: skip
        if isinstance(self.parts, str):
            return found[self.parts]
        return np.stack([found[part] for part in self.parts], axis=1)

    def _counted(self, given: pa.Array) -> Array:
        numbers: Array = given.cast(pa.int64()).to_numpy()
        return numbers.astype(f"datetime64[{self.unit}]").astype("datetime64[s]")

    def _parsed(self, given: pa.Array) -> Array:
        """Return datetime64[s] of text; an offset from UTC is subtracted."""
        if self.format is not None:
            parsers = [partial(pc.strptime, format=self.format, unit="s")]
        else:
            parsers = [partial(pc.cast, target_type=pa.timestamp("us", zone)) for zone in (None, "UTC")]
        for parse in parsers:
            with suppress(pa.ArrowInvalid):
                times: Array = parse(given).to_numpy(zero_copy_only=False)
                return times.astype("datetime64[s]")
        bad = next((text for text in given.to_pylist() if not _can(parsers[0], text)), None)
        wanted = self.format or "ISO 8601, such as 2024-05-01 12:30:00, with an offset in all rows or in none"
        raise SchemaError(f"a value is {quoted(bad)}, which is no date and time; wanted {wanted}")


def _can(parse: Callable[[pa.Array], object], text: str) -> bool:
    try:
        parse(pa.array([text], pa.large_string()))
    except pa.ArrowInvalid:
        return False
    return True


Tokenizer = Callable[[Sequence[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, kw_only=True)
class Tokens(Transform):
    """Numbers of the tokens of a text, int64 lists of any length, by a function of the user.

    Attributes:
        tokenizer: ``module:function``. The function gets a list of strings, and returns for each a list of integers.
            It is imported only if the caller lists it among the ``tokenizers`` that may be used.
    """

    name: ClassVar[str] = "tokens"
    tokenizer: str = ""

    def check(self, where: str) -> None:
        """Check that the tokenizer has the form ``module:function``."""
        module, _, function = str(self.tokenizer).partition(":")
        is_valid = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
        _check(where, "tokenizer", self.tokenizer, is_valid, "module:function")

    def allowed_by(self, tokenizers: Collection[str]) -> None:
        """Refuse a function that the caller does not list.

        Raises:
            SettingsError: The function is not in the list.
        """
        if self.tokenizer not in tokenizers:
            raise SettingsError(
                f"tokenizers are {list(tokenizers)!r}; a transform names {self.tokenizer!r}: if you trust its module, "
                "add it to tokenizers"
            )

    def _function(self) -> Tokenizer:
        module, _, path = self.tokenizer.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise SchemaError(f"the tokenizer {self.tokenizer} cannot be imported ({error}); set PYTHONPATH") from error
        return cast(Tokenizer, found)

    def apply(self, column: Column) -> Column:
        """Call the tokenizer, and check what it returns."""
        if not isinstance(column, RaggedArray) or not column.is_string:
            raise SchemaError("its values are no strings; a tokenizer takes strings")
        if not len(column):
            return RaggedArray(np.empty(0, np.int64), np.zeros(1, np.int64))
        rows = [np.asarray(row) for row in self._function()(column.tolist())]
        if len(rows) != len(column) or any(row.ndim != 1 or (len(row) and row.dtype.kind not in "iu") for row in rows):
            wanted = f"a list of integers for each of {len(column)} strings"
            raise SchemaError(f"the tokenizer {self.tokenizer} returned something else; wanted {wanted}")
        return RaggedArray.from_rows([row.astype(np.int64) for row in rows])


@dataclass(frozen=True, kw_only=True)
class Truncate(Transform):
    """The first values of each list, or the first characters of each string.

    Attributes:
        length: Most values of a row.
    """

    name: ClassVar[str] = "truncate"
    length: int = 0

    def check(self, where: str) -> None:
        """Check that ``length`` is a number above 0."""
        _check(where, "length", self.length, _is_count(self.length, 1 << 31), "an integer of at least 1")

    def apply(self, column: Column) -> Column:
        """Keep the first characters or values of each row."""
        if not isinstance(column, RaggedArray):
            raise SchemaError("its rows have one length; truncate is for strings and lists of any length")
        if column.is_string:
            return strings_column([pc.utf8_slice_codeunits(categories_of(column), 0, self.length)])
        lengths = np.minimum(np.diff(column.offsets), self.length)
        offsets = offsets_of(lengths)
        places = np.arange(offsets[-1]) + np.repeat(column.offsets[:-1] - offsets[:-1], lengths)
        return RaggedArray(column.values[places], offsets)


@dataclass(frozen=True, kw_only=True)
class Pad(Truncate):
    """The first values of each list, and after them a value up to the length: rows of fixed width.

    Attributes:
        length: Values of a row.
        value: The value after the end of shorter lists.
    """

    name: ClassVar[str] = "pad"
    value: float = 0

    def check(self, where: str) -> None:
        """Check ``length`` and ``value``."""
        _check(where, "length", self.length, _is_count(self.length, MAX_WIDTH), f"an integer from 1 to {MAX_WIDTH}")
        _check(where, "value", self.value, type(self.value) in (int, float), "a number")

    def apply(self, column: Column) -> Column:
        """Cut or pad each row to the same length."""
        kept = column if isinstance(column, np.ndarray) else super().apply(column)
        if isinstance(kept, np.ndarray) or kept.is_string:
            raise SchemaError("its rows are no lists of any length; pad is for such lists")
        lengths = np.diff(kept.offsets)
        rows = np.full((len(kept), self.length, *kept.values.shape[1:]), self.value, kept.values.dtype)
        rows[np.arange(self.length) < lengths[:, None]] = kept.values
        return rows


KNOWN: dict[str, type[Transform]] = {
    of.name: of for of in (Standard, MinMax, Rank, Categories, Buckets, Hash, Datetime, Tokens, Truncate, Pad)
}


def transform_of(where: str, value: object, *, with_fitted: bool = False) -> Transform:
    """Read a transform: its name, or an object with its name and options.

    Args:
        where: Place of the value, for messages.
        value: JSON value.
        with_fitted: Read fitted values too, which ``to_json`` wrote.

    Raises:
        SchemaError: The name or an option is unknown, or an option is out of range.
    """
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise SchemaError(f'{where} is {quoted(value)}; wanted the name of a transform, or {{"name": …, options}}')
    kind = KNOWN.get(given["name"])
    if kind is None:
        raise SchemaError(f"{where} names {quoted(given['name'])}; {known_names(given['name'], KNOWN)}")
    options = {name: option for name, option in given.items() if name != "name"}
    known = [one.name for one in fields(kind) if with_fitted or one.name not in kind.found]
    if unknown := sorted(options.keys() - set(known)):
        raise SchemaError(f"{where}: {kind.name} has no option {quoted(unknown[0])}; {known_names(unknown[0], known)}")
    found = kind(**options)
    found.check(where)
    for name in kind.found:
        learned = getattr(found, name)
        _check(where, name, learned, learned is None or isinstance(learned, list), "a list of fitted values")
    return found
