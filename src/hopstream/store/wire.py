"""Pieces of requests and answers, cut so that each weighs no more than a budget, and names of types as JSON."""

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
    """Some of the elements of one row: ``first`` to ``first + num - 1`` of ``total``."""

    first: int
    num: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows of one request out of several; with ``run``, only those elements of its one row."""

    request: int
    start: int
    num_rows: int
    run: Run | None = None

    @property
    def rows(self) -> slice:
        """Its rows among those of the request."""
        return slice(self.start, self.start + self.num_rows)


@dataclass(frozen=True, slots=True)
class RowCost:
    """What the rows of one request weigh, by which requests are cut.

    Attributes:
        num_rows: Rows of the request.
        row_bytes: Weight of one row, where all weigh the same.
        offsets: int64[num_rows + 1], running weight, where rows differ.
        element_bytes: Weight of one element of a row that can be cut inside; 0 where none can. What a row weighs beside
            its elements is less than one of them.
    """

    num_rows: int
    row_bytes: float
    offsets: IntArray | None = None
    element_bytes: int = 0

    def rows_within(self, start: int, budget: float) -> int:
        """How many rows from ``start`` on weigh no more than the budget."""
        if self.offsets is not None:
            return int(np.searchsorted(self.offsets, self.offsets[start] + budget, side="right")) - 1 - start
        fitting = int(budget / self.row_bytes) if self.row_bytes > 0 else self.num_rows
        return min(self.num_rows - start, fitting)

    def weight(self, start: int, num_rows: int) -> float:
        """The weight of some rows."""
        if self.offsets is not None:
            return int(self.offsets[start + num_rows] - self.offsets[start])
        return num_rows * self.row_bytes

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return self.num_rows * self.row_bytes if self.offsets is None else self.weight(0, self.num_rows)

    @property
    def heaviest(self) -> float:
        """The weight of the heaviest row."""
        if self.offsets is not None:
            return int(np.diff(self.offsets).max(initial=0))
        return self.row_bytes if self.num_rows else 0

    def runs(self, row: int, budget: float) -> list[Run]:
        """A row heavier than the budget in runs that are not, or are one element; none where it must stay whole."""
        num_elements = int(self.weight(row, 1)) // self.element_bytes if self.element_bytes else 0
        if num_elements < 2 or self.weight(row, 1) <= budget:
            return []
        step = max(1, int(budget) // self.element_bytes)
        return [Run(first, min(step, num_elements - first), num_elements) for first in range(0, num_elements, step)]


def cut_pieces(costs: Sequence[RowCost], budget: float) -> Iterator[list[Piece]]:
    """Cut requests into lists of pieces that each weigh no more than the budget, or are one row or element.

    Rows come in order; a request without rows has no piece. A run of a row's elements has a list of its own.
    """
    if sum(cost.total for cost in costs) <= budget:  # as most requests are
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
    """Items, and of each whether it is the last one."""
    iterator = iter(items)
    for held in iterator:
        for item in iterator:
            yield held, False
            held = item
        yield held, True


def entity_to_json(entity: Entity) -> str | list[str]:
    """A node type as a string; an edge type and direction as a list of four."""
    return entity if isinstance(entity, str) else [*entity[0], entity[1]]


def entity_from_json(value: object) -> Entity:
    """Read what ``entity_to_json`` wrote.

    Raises:
        FormatError: The value is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 4 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value[:3])), direction_from_json(value[3])
    raise FormatError(f"{str(value)[:200]} is not a node type or [source, relation, destination, direction]")


def edge_type_from_json(value: object) -> EdgeType:
    """An edge type, which is written as a list of three.

    Raises:
        FormatError: The value is something else.
    """
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value))
    raise FormatError(f"{str(value)[:200]} is not [source, relation, destination]")


def direction_from_json(value: object) -> Direction:
    """``in`` or ``out``.

    Raises:
        FormatError: The value is neither.
    """
    if value == "in":
        return "in"
    if value == "out":
        return "out"
    raise FormatError(f"direction is {str(value)[:50]!r}; it must be 'in' or 'out'")
