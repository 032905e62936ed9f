"""Partition book: maps ids to their owners, and keys to the parts that keep their bookkeeping rows.

The book is ranges: O(parts) numbers per type, whatever the size of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, is_within
from hopstream.errors import FormatError, IdRangeError
from hopstream.schema import Direction, EdgeType, type_label

Entity = str | tuple[EdgeType, Direction]
"""Kind of an id: a node type, or the edges of one type in one direction."""


EdgeEntity = tuple[EdgeType, Direction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Complete new rows of one part, edge type and direction, which replace older rows of the same nodes.

    Attributes:
        delta: Number of the delta that added the rows, from 1.
        part: The part that the rows belong to.
        num_rows: Number of rows.
        num_edges: Number of edges of all these rows.
        num_new: Number of edges that the delta added; the rest are copies of older edges.
    """

    delta: int
    part: int
    num_rows: int
    num_edges: int
    num_new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Content of one append: a part of new nodes, and new rows of existing nodes.

    Attributes:
        num_edges: Edge type to its number of new edges, for every edge type.
        overlays: (edge type, direction) to the overlays, in the order of their parts; empty entries may be missing.
        digest: Digest of the added rows alone, independent of the dataset.
    """

    num_edges: Mapping[EdgeType, int]
    overlays: Mapping[EdgeEntity, tuple[Overlay, ...]]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBook:
    """Ranges of ids that each part owns.

    Each append adds one part, so the last ``len(deltas)`` parts hold the appended nodes. The edges of overlays have ids
    after the ids of all parts, in the order of (delta, part). Parts and overlays together are the *pieces* of the ids
    of an edge type and direction.

    Attributes:
        num_parts: Number of parts.
        node_offsets: Node type to int64[num_parts + 1]; part ``p`` owns node ids ``[offsets[p], offsets[p + 1])``.
        edge_offsets: (edge type, direction) to int64[num_parts + 1], the same for edge ids: the id of an edge is
            ``offsets[p]`` plus its position in the part's ``indices``.
        deltas: The appends, oldest first.
    """

    num_parts: int
    node_offsets: Mapping[str, IntArray]
    edge_offsets: Mapping[EdgeEntity, IntArray]
    deltas: tuple[Delta, ...] = ()
    _piece_offsets: Mapping[EdgeEntity, IntArray] = field(init=False, repr=False, compare=False)
    _piece_parts: Mapping[EdgeEntity, IntArray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse offsets that are not ``num_parts + 1`` ascending integers from 0."""
        ranges: list[tuple[Entity, IntArray]] = [*self.node_offsets.items(), *self.edge_offsets.items()]
        for entity, offsets in ranges:
            if len(offsets) != self.num_parts + 1 or offsets[0] != 0 or bool(np.any(offsets[1:] < offsets[:-1])):
                raise FormatError(
                    f"{entity_label(entity)}: {offsets.tolist()} must be {self.num_parts + 1} ascending ids"
                )
        if len(self.deltas) >= self.num_parts:
            raise FormatError(
                f"{len(self.deltas)} deltas in {self.num_parts} parts; each delta needs a part of its own"
            )
        _check_deltas(self)
        pieces = {entity: self.overlays(entity) for entity in self.edge_offsets}
        own_parts = np.arange(self.num_parts, dtype=np.int64)
        offsets_of_pieces = {
            entity: np.append(offsets, offsets[-1] + np.cumsum([o.num_edges for o in pieces[entity]], dtype=np.int64))
            for entity, offsets in self.edge_offsets.items()
        }
        parts_of_pieces = {
            entity: np.append(own_parts, np.array([o.part for o in overlays], np.int64))
            for entity, overlays in pieces.items()
        }
        object.__setattr__(self, "_piece_offsets", offsets_of_pieces)
        object.__setattr__(self, "_piece_parts", parts_of_pieces)

    @property
    def num_base_parts(self) -> int:
        """Number of parts before the first append."""
        return self.num_parts - len(self.deltas)

    @property
    def ids_are_keys(self) -> bool:
        """Whether the id of every node is its key: one part before the first append."""
        return self.num_base_parts == 1

    def overlays(self, entity: EdgeEntity) -> tuple[Overlay, ...]:
        """Return the overlays of an edge type and direction, in the order of their edge ids."""
        return tuple(overlay for delta in self.deltas for overlay in delta.overlays.get(entity, ()))

    def offsets(self, entity: Entity) -> IntArray:
        """Return the ranges of ids of an entity's parts or pieces, int64[num_pieces + 1].

        A node type has parts. An edge type and direction has pieces: the parts, then the overlays.
        """
        return self.node_offsets[entity] if isinstance(entity, str) else self._piece_offsets[entity]

    def piece_parts(self, entity: Entity) -> IntArray:
        """Return int64[num_pieces], the part that each range of ``offsets`` belongs to."""
        return np.arange(self.num_parts, dtype=np.int64) if isinstance(entity, str) else self._piece_parts[entity]

    def pieces_of(self, entity: Entity, part: int) -> IntArray:
        """Return int64[n], a part's ranges in ``offsets``: its own, then its overlays, oldest first."""
        return np.flatnonzero(self.piece_parts(entity) == part)

    def has_overlays(self, entity: Entity) -> bool:
        """Return whether an overlay replaces some rows, so that there are more pieces than parts."""
        return not isinstance(entity, str) and len(self._piece_parts[entity]) > self.num_parts

    def edges_of_parts(self, entity: EdgeEntity) -> IntArray:
        """Return int64[num_parts], the number of edges of a type and direction in each part, each once."""
        num_edges = np.diff(self.edge_offsets[entity])
        for overlay in self.overlays(entity):
            num_edges[overlay.part] += overlay.num_new
        return num_edges

    def num_ids(self, entity: Entity) -> int:
        """Return the number of ids of a node type, or of an edge type and direction, in all parts together.

        Every node has one id. Edges of rows that an overlay replaces leave their ids unused: see ``num_edges``.
        """
        return int(self.offsets(entity)[-1])

    def parts_of(self, entity: Entity, ids: IntArray) -> IntArray:
        """Return int64[len(ids)], the part that owns each id. Ids are not checked; see ``check_ids``."""
        pieces = np.searchsorted(self.offsets(entity), ids, side="right") - 1
        return pieces if isinstance(entity, str) or not self.deltas else self._piece_parts[entity][pieces]

    def check_ids(self, entity: Entity, ids: IntArray) -> None:
        """Raise ``IdRangeError`` for the first id outside the entity's range."""
        num_ids = self.num_ids(entity)
        if not is_within(ids, 0, num_ids):
            row = int(np.flatnonzero((ids < 0) | (ids >= num_ids))[0])
            raise IdRangeError(f"{entity_label(entity)}: ids[{row}] is {int(ids[row])}; ids are 0..{num_ids - 1}")

    def key_offsets(self, node_type: str) -> IntArray:
        """Return int64[num_parts + 1], the range of keys whose ids and splits each part keeps.

        Keys are split evenly over the base parts, whatever the assignment, so the part that keeps a key is found
        without a table. Each appended part keeps the keys that it added.
        """
        offsets = self.node_offsets[node_type]
        return self._slices([int(offsets[self.num_base_parts]), *offsets[self.num_base_parts + 1 :].tolist()])

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type; every direction holds all of them."""
        return int(self.link_offsets(edge_type)[-1])

    def link_offsets(self, edge_type: EdgeType) -> IntArray:
        """Return int64[num_parts + 1], the range of edge keys whose links and splits each part keeps."""
        totals = [next(int(o[self.num_base_parts]) for (t, _), o in self.edge_offsets.items() if t == edge_type)]
        for delta in self.deltas:
            totals.append(totals[-1] + delta.num_edges[edge_type])
        return self._slices(totals)

    def _slices(self, totals: list[int]) -> IntArray:
        """Return the offsets of the slices, given the number of keys at first and after each append."""
        even = np.arange(self.num_base_parts + 1, dtype=np.int64) * totals[0] // self.num_base_parts
        return np.append(even, np.array(totals[1:], np.int64))


def _check_deltas(book: PartitionBook) -> None:
    """Refuse overlays of unknown edges, out of order, or of parts that did not exist yet."""
    for number, delta in enumerate(book.deltas, 1):
        num_parts = book.num_base_parts + number - 1
        _check_counts(book, number, delta, num_parts)
        for entity, overlays in delta.overlays.items():
            parts = [overlay.part for overlay in overlays]
            is_ordered = all(a < b for a, b in itertools.pairwise(parts))
            are_good = all(
                o.delta == number and 0 <= o.part < num_parts and o.num_rows >= 0 and 0 <= o.num_new <= o.num_edges
                for o in overlays
            )
            if entity not in book.edge_offsets or not is_ordered or not are_good:
                raise FormatError(
                    f"delta {number}: overlays of {entity_label(entity)} have parts {parts[:20]}; parts must ascend in "
                    f"0..{num_parts - 1}, and overlays must belong to an edge type of the dataset"
                )


def _check_counts(book: PartitionBook, number: int, delta: Delta, part: int) -> None:
    """Refuse counts of new edges that differ from the sum over the delta's part and its overlays."""
    if set(delta.num_edges) != {edge_type for edge_type, _ in book.edge_offsets}:
        raise FormatError(f"delta {number} must declare the number of new edges of each type")
    for entity, offsets in book.edge_offsets.items():
        in_overlays = sum(overlay.num_new for overlay in delta.overlays.get(entity, ()))
        found = int(offsets[part + 1] - offsets[part]) + in_overlays
        if found != delta.num_edges[entity[0]]:
            raise FormatError(
                f"delta {number} declares {delta.num_edges[entity[0]]} new edges; {entity_label(entity)} has {found}"
            )


def number_dtype(num_numbers: int) -> np.dtype[Any]:
    """Return the dtype of stored and sent ids, and of edge keys: uint32 if all of a type fit, else int64."""
    return np.dtype(np.uint32) if num_numbers < 2**32 else np.dtype(np.int64)


def ends_of(edge_type: EdgeType, direction: Direction) -> tuple[str, str]:
    """Return the node type whose parts own the edges of a direction, and the node type of the other end."""
    return (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])


def entity_label(entity: Entity) -> str:
    """Format an entity for messages: ``paper`` or ``author__writes__paper/in``."""
    return entity if isinstance(entity, str) else f"{type_label(entity[0])}/{entity[1]}"
