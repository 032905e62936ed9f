"""Is this a request that the dataset can answer, and what shape will the answer have?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.partition.book import Owner, PartitionBook, ends_of, owner_label
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, SampleRequest, Store

UINT32_IDS = 1 << 32


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
        return self.weight(0, self.num_rows)

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


def id_dtype(num_ids: int) -> np.dtype[Any]:
    """The dtype of ids on the wire, and of stored neighbours: uint32 where all ids fit."""
    return np.dtype(np.uint32 if num_ids < UINT32_IDS else np.int64)


def neighbor_dtype(book: PartitionBook, edge_type: EdgeType, direction: Direction) -> np.dtype[Any]:
    """The dtype in which a dataset stores the neighbours of an edge type."""
    return id_dtype(book.num_ids(ends_of(edge_type, direction)[1]))


def column_feature(store: Store, owner: Owner, name: str) -> FeatureSchema:
    """The schema of a column that can be fetched; ``KEY`` is one.

    Raises:
        UnknownNameError: The dataset has no such type, direction or feature.
    """
    check_owner(store, owner)
    return KEY_SCHEMA if name == KEY else store.schema.feature(owner if isinstance(owner, str) else owner[0], name)


def check_owner(store: Store, owner: Owner) -> None:
    """Raise ``UnknownNameError`` unless the dataset has this node type, or this edge type in this direction."""
    if isinstance(owner, str):
        store.schema.check_node_type(owner)
        return
    store.schema.check_edge_type(owner[0])
    if owner not in store.book.edge_offsets:
        raise UnknownNameError(
            f"{owner_label(owner)}: the dataset holds direction {'|'.join(store.directions)}; "
            f"write the parts again with direction {owner[1]!r} or 'both'"
        )


def check_split(store: Store, node_type: str, name: str) -> None:
    """Raise ``UnknownNameError`` unless the node type has this split."""
    store.schema.check_node_type(node_type)
    known = store.schema.splits.get(node_type, ())
    if name not in known:
        raise UnknownNameError(f"node type {node_type!r} has no split {name!r}; known: {list(known)}")


def check_sample_request(store: Store, request: SampleRequest) -> None:
    """Check all of a request but the owners of its ids.

    Raises:
        UnknownNameError: The dataset has no such edge type or direction.
        SettingsError: The count or the seed is out of range.
        IdRangeError: An id is outside the range of its node type.
    """
    check_owner(store, (request.edge_type, request.direction))
    if request.count < -1:
        raise SettingsError(f"count is {request.count}; give -1 for all neighbours, or 0 and above")
    if not 0 <= request.rng_seed < 1 << 64:
        raise SettingsError(f"rng_seed is {request.rng_seed}; it is 64 bits, 0..{(1 << 64) - 1}")
    store.book.check_ids(ends_of(request.edge_type, request.direction)[0], request.ids)


def check_fetch_request(store: Store, request: FetchRequest) -> None:
    """Check all of a request but the owners of its ids.

    Raises:
        UnknownNameError: The dataset has no such type, direction or feature.
        SettingsError: ``out`` or ``positions`` do not fit the columns.
        IdRangeError: An id is outside the range of its type.
    """
    given = request.out or {}
    for name in request.names:
        feature = column_feature(store, request.owner, name)
        if request.positions is not None and name not in given:
            raise SettingsError(f"positions were given without out[{name!r}]; they need an array for every name")
        if name in given:
            _check_out(name, feature, given[name], request)
    check_owner(store, request.owner)
    store.book.check_ids(request.owner, request.ids)


def check_keys(store: Store, node_type: str, keys: IntArray) -> None:
    """Raise ``UnknownNameError`` or ``IdRangeError`` unless these are keys of a node type of the dataset."""
    store.schema.check_node_type(node_type)
    num_nodes = store.book.num_ids(node_type)
    if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= num_nodes):
        row = int(np.flatnonzero((keys < 0) | (keys >= num_nodes))[0])
        raise IdRangeError(f"{node_type} keys[{row}] is {int(keys[row])}; they are 0..{num_nodes - 1}")


def _check_out(name: str, feature: FeatureSchema, out: Array, request: FetchRequest) -> None:
    if not feature.is_fixed_width:
        raise SettingsError(f"out[{name!r}] was given; the column is {feature}, whose rows differ in length")
    if out.dtype != feature.numpy_dtype or out.shape[1:] != feature.shape or not out.flags.c_contiguous:
        raise SettingsError(f"out[{name!r}] is {out.dtype}{list(out.shape)}; the column is {feature}, C-contiguous")
    positions = request.positions
    if positions is not None and len(positions) != len(request.ids):
        raise SettingsError(f"{len(positions)} positions were given for {len(request.ids)} ids")
    num_rows = len(request.ids)
    if positions is not None and num_rows:
        if int(positions.min()) < 0:
            raise SettingsError(f"positions hold {int(positions.min())}; they are rows of out[{name!r}]")
        num_rows = int(positions.max()) + 1
    if len(out) < num_rows:
        raise SettingsError(f"out[{name!r}] has {len(out)} rows; the request writes {num_rows}")
