"""Pieces of requests and answers, split to fit a budget, and JSON forms of types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.book import Entity
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """Range of the elements of one row: ``first`` to ``first + num - 1`` of ``total``."""

    first: int
    num: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Range of rows of one request among several; with ``run``, a range of elements of one row."""

    request: int
    start: int
    num_rows: int
    run: Run | None = None

    @property
    def rows(self) -> slice:
        """The range of rows in the request."""
        return slice(self.start, self.start + self.num_rows)


@dataclass(frozen=True, slots=True)
class RowCost:
    """Weights of the rows of one request.

    Attributes:
        num_rows: Rows of the request.
        row_bytes: Weight of one row, if all rows weigh the same.
        offsets: int64[num_rows + 1], cumulative weight, if rows differ.
        element_bytes: Weight of one element, if a row can be split inside; else 0. The rest of a row weighs less than
            one element.
    """

    num_rows: int
    row_bytes: float
    offsets: IntArray | None = None
    element_bytes: int = 0

    def rows_within(self, start: int, budget: float) -> int:
        """Return the number of rows from ``start`` on that fit into the budget."""
        if self.offsets is not None:
            return int(np.searchsorted(self.offsets, self.offsets[start] + budget, side="right")) - 1 - start
        fitting = int(budget / self.row_bytes) if self.row_bytes > 0 else self.num_rows
        return min(self.num_rows - start, fitting)

    def weight(self, start: int, num_rows: int) -> float:
        """Return the weight of a range of rows."""
        if self.offsets is not None:
            return int(self.offsets[start + num_rows] - self.offsets[start])
        return num_rows * self.row_bytes

    @property
    def total(self) -> float:
        """Weight of all rows."""
        return self.num_rows * self.row_bytes if self.offsets is None else self.weight(0, self.num_rows)

    @property
    def heaviest(self) -> float:
        """Weight of the heaviest row."""
        if self.offsets is not None:
            return int(np.diff(self.offsets).max(initial=0))
        return self.row_bytes if self.num_rows else 0

    def runs(self, row: int, budget: float) -> list[Run]:
        """Split a row above the budget into ranges of elements; empty if it fits or cannot be split."""
        num_elements = int(self.weight(row, 1)) // self.element_bytes if self.element_bytes else 0
        if num_elements < 2 or self.weight(row, 1) <= budget:
            return []
        step = max(1, int(budget) // self.element_bytes)
        return [Run(first, min(step, num_elements - first), num_elements) for first in range(0, num_elements, step)]


def cut_pieces(costs: Sequence[RowCost], budget: float) -> Iterator[list[Piece]]:
    """Split requests into lists of pieces within the budget; a single row or element may exceed it.

    Rows are in order. A request without rows has no piece. A range of elements is alone in its list.
    """
    if sum(cost.total for cost in costs) <= budget:  # the usual case
        whole = [Piece(request, 0, cost.num_rows) for request, cost in enumerate(costs) if cost.num_rows]
        if whole:
            yield whole
        return
    pieces: list[Piece] = []
    left = budget
    for request, cost in enumerate(costs):
        start = 0
        while start < cost.num_rows:
            num_rows = cost.rows_within(start, left) if left > 0 else 0
            if num_rows <= 0 and pieces:
                yield pieces
                pieces, left = [], budget
                continue
            runs = cost.runs(start, budget) if num_rows <= 0 else []
            if runs:
                yield from ([Piece(request, start, 1, run)] for run in runs)
                start += 1
                continue
            num_rows = max(1, num_rows)
            pieces.append(Piece(request, start, num_rows))
            left -= cost.weight(start, num_rows)
            start += num_rows
    if pieces:
        yield pieces


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each item with a flag that is True for the last item."""
    iterator = iter(items)
    for held in iterator:
        for item in iterator:
            yield held, False
            held = item
        yield held, True


def entity_to_json(entity: Entity) -> str | list[str]:
    """Encode a node type as a string, or an edge type and direction as a list of four strings."""
    return entity if isinstance(entity, str) else [*entity[0], entity[1]]


def entity_from_json(value: object) -> Entity:
    """Decode what ``entity_to_json`` encodes.

    Raises:
        FormatError: The value has another form.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 4 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value[:3])), direction_from_json(value[3])
    raise FormatError(f"{str(value)[:200]} is not a node type or [source, relation, destination, direction]")


def edge_type_from_json(value: object) -> EdgeType:
    """Decode an edge type, a list of three strings.

    Raises:
        FormatError: The value has another form.
    """
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value))
    raise FormatError(f"{str(value)[:200]} is not [source, relation, destination]")


def direction_from_json(value: object) -> Direction:
    """Check that a value is ``in`` or ``out``.

    Raises:
        FormatError: The value is neither.
    """
    if value == "in":
        return "in"
    if value == "out":
        return "out"
    raise FormatError(f"direction is {str(value)[:50]!r}; it must be 'in' or 'out'")
