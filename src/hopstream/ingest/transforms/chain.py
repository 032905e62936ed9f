"""Chain of transforms: applies the transforms of a feature in order, and fits the one that needs data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hopstream.arrays import Array, Column, RaggedArray, column_schema, empty_column, offsets_of
from hopstream.errors import SchemaError, quoted
from hopstream.ingest.transforms.fits import Fit
from hopstream.ingest.transforms.steps import Datetime, Fitted, Tokens, Transform, transform_of
from hopstream.schema import FeatureSchema

PIECE_BYTES = 8 << 20
"""Bytes of transformed rows that are made at a time."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Transforms of one feature in the order in which they are applied.

    Attributes:
        steps: The transforms, at least one.
    """

    steps: tuple[Transform, ...]

    @property
    def csv_dtype(self) -> str:
        """Dtype of the cells of CSV files if the description gives none."""
        return self.steps[0].csv_dtype

    @property
    def time_unit(self) -> str | None:
        """Unit in which times of Parquet files are counted; None unless the first transform takes times."""
        return self.steps[0].unit if isinstance(self.steps[0], Datetime) else None

    @property
    def is_fitted(self) -> bool:
        """Whether rows can be transformed."""
        return all(step.is_fitted for step in self.steps)

    def check_allowed(self, tokenizers: Collection[str]) -> None:
        """Refuse functions of the user that are not in the list; see ``Tokens.allowed_by``."""
        for step in self.steps:
            if isinstance(step, Tokens):
                step.allowed_by(tokenizers)

    def fitted_by(self, fit: ChainFit) -> Chain:
        """Return the chain with the values that the fit found."""
        return Chain(
            tuple(
                step.fitted_by(fit.state) if isinstance(step, Fitted) and not step.is_fitted else step
                for step in self.steps
            )
        )

    def pieces(self, label: str, column: Column) -> Iterator[Column]:
        """Transform rows, a few megabytes at a time.

        Raises:
            SchemaError: The rows are of a kind that a transform does not take.
        """
        width = max(self.output(label, column_schema(column)).row_bytes, 8)
        step = max(1, PIECE_BYTES // width)
        for start in range(0, max(1, len(column)), step):
            yield self.apply(label, column[start : start + step])

    def apply(self, label: str, column: Column) -> Column:
        """Transform rows; ``label`` is the feature's name in messages.

        Raises:
            SchemaError: The rows are of a kind that a transform does not take.
        """
        for step in self.steps:
            column = _named(label, step, column)
        return column

    def output(self, label: str, schema: FeatureSchema) -> FeatureSchema:
        """Return the schema of transformed rows; before the fit, vectors of categories count as empty."""
        fitted = self if self.is_fitted else self.fitted_by(ChainFit(label, self))
        return column_schema(fitted.apply(label, empty_column(schema)))

    def to_json(self, *, with_fitted: bool = True) -> list[dict[str, Any]]:
        """Return a JSON value for ``chain_of``; without fitted values, that of the description."""
        return [step.to_json(with_fitted=with_fitted) for step in self.steps]


class ChainFit:
    """State of fitting a chain to a table."""

    def __init__(self, label: str, chain: Chain) -> None:
        """Start without rows.

        Args:
            label: The feature's name in messages.
            chain: A chain that is not fitted.
        """
        self._label = label
        self._step = next(step for step in chain.steps if isinstance(step, Fitted) and not step.is_fitted)
        self._before = chain.steps[: chain.steps.index(self._step)]
        self.state: Fit = self._step.start()

    def add(self, column: Column, place: tuple[int, int]) -> None:
        """Add consecutive rows; see ``Fit.add``."""
        for step in self._before:
            column = _named(self._label, step, column)
        with_name(self._label, self._step, lambda: self.state.add(column, place))

    def merge(self, other: Any) -> None:
        """Add what ``to_json`` of another process returned."""
        with_name(self._label, self._step, lambda: self.state.merge(other))

    def to_json(self) -> Any:
        """Return the state as a JSON value."""
        return self.state.to_json()


def with_name(label: str, step: Transform, act: Any) -> Any:
    """Call a function; name the feature and the transform in its errors."""
    try:
        return act()
    except SchemaError as error:
        raise SchemaError(f"{label}, transform {step.name}: {error}") from error


def _named(label: str, step: Transform, column: Column) -> Column:
    return cast(Column, with_name(label, step, lambda: step.apply(column)))


def chain_of(where: str, value: object, *, with_fitted: bool = False) -> Chain:
    """Read one transform, or a list of them; see ``transform_of``.

    Raises:
        SchemaError: A transform is unknown or has a wrong option, there is none, or several must be fitted.
    """
    given = value if isinstance(value, list) else [value]
    names = [where if len(given) == 1 else f"{where}[{i}]" for i in range(len(given))]
    steps = [transform_of(name, one, with_fitted=with_fitted) for name, one in zip(names, given, strict=True)]
    if not steps:
        raise SchemaError(f"{where} is {quoted(value)}; wanted at least one transform")
    fitted = [step.name for step in steps if not step.is_fitted]
    if len(fitted) > 1:
        raise SchemaError(f"{where} has {' and '.join(fitted)}, which are both fitted to the table; give one of them")
    return Chain(tuple(steps))


def as_read(column: Column, schema: FeatureSchema) -> Column:
    """Convert numbers to the dtype of a table's column, and lists of one length to ragged rows.

    Numbers that an integer dtype cannot hold stay as they are.
    """
    if schema.is_string:
        return column
    is_rectangle = isinstance(column, np.ndarray) and column.ndim == len(schema.shape) + 2
    if schema.is_ragged and isinstance(column, np.ndarray) and is_rectangle:
        lengths = np.full(len(column), column.shape[1], np.int64)
        column = RaggedArray(column.reshape(-1, *column.shape[2:]), offsets_of(lengths))
    if isinstance(column, RaggedArray):
        return RaggedArray(_converted(column.values, schema.numpy_dtype), column.offsets)
    return _converted(column, schema.numpy_dtype)


def _converted(values: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        done = values.astype(dtype)
    return done if dtype.kind == "f" or np.array_equal(done, values) else values
