"""The partition book: which part owns an id, and where the bookkeeping rows of a key are.

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
"""What an id belongs to: a node type, or the edges of one type in one direction."""


EdgeEntity = tuple[EdgeType, Direction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Complete new rows of one part, edge type and direction, which stand for older rows of the same nodes.

    Attributes:
        delta: Number of the delta that brought them, from 1.
        part: The part whose rows they are.
        num_rows: How many rows.
        num_edges: How many edges they have together.
        num_new: How many of these the delta added; the others were edges of the rows before.
    """

    delta: int
    part: int
    num_rows: int
    num_edges: int
    num_new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one append added: a part of new nodes, and new rows for nodes that were there.

    Attributes:
        num_edges: Edge type to its number of new edges, for every edge type.
        overlays: (edge type, direction) to the overlays, in the order of their parts; those without may be left out.
        digest: Names the rows that were added, whatever they were added to.
    """

    num_edges: Mapping[EdgeType, int]
    overlays: Mapping[EdgeEntity, tuple[Overlay, ...]]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBook:
    """Ranges of ids that each part owns.

    Each append adds one part, so the last ``len(deltas)`` parts are those of new nodes. The edges of an overlay have
    ids behind those of all parts, in the order of (delta, part): parts and overlays together are the *pieces* of the
    ids of an edge type and direction.

    Attributes:
        num_parts: Number of parts.
        node_offsets: Node type to int64[num_parts + 1]; part ``p`` owns node ids ``[offsets[p], offsets[p + 1])``.
        edge_offsets: (edge type, direction) to int64[num_parts + 1], the same for edge ids: an edge's id is
            ``offsets[p]`` plus its position in the part's ``indices``.
        deltas: What was appended, oldest first.
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
            raise FormatError(f"{len(self.deltas)} deltas in {self.num_parts} parts; each has a part of its own")
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
        """How many parts were written before anything was appended."""
        return self.num_parts - len(self.deltas)

    @property
    def ids_are_keys(self) -> bool:
        """The id of every node is its key, as it is where there is one part, and stays where nodes are appended."""
        return self.num_base_parts == 1

    def overlays(self, entity: EdgeEntity) -> tuple[Overlay, ...]:
        """The overlays of an edge type and direction, in the order of their edge ids."""
        return tuple(overlay for delta in self.deltas for overlay in delta.overlays.get(entity, ()))

    def offsets(self, entity: Entity) -> IntArray:
        """int64[num_pieces + 1], the ranges of ids of a node type's parts, or of an edge type and direction's pieces.

        Pieces are the parts, and after them the overlays.
        """
        return self.node_offsets[entity] if isinstance(entity, str) else self._piece_offsets[entity]

    def piece_parts(self, entity: Entity) -> IntArray:
        """int64[num_pieces], the part that each range of ``offsets`` belongs to."""
        return np.arange(self.num_parts, dtype=np.int64) if isinstance(entity, str) else self._piece_parts[entity]

    def pieces_of(self, entity: Entity, part: int) -> IntArray:
        """int64[n], the ranges of ``offsets`` that belong to a part: its own, then its overlays, oldest first."""
        return np.flatnonzero(self.piece_parts(entity) == part)

    def has_overlays(self, entity: Entity) -> bool:
        """Some rows have newer ones, so there are more pieces than parts."""
        return not isinstance(entity, str) and len(self._piece_parts[entity]) > self.num_parts

    def edges_of_parts(self, entity: EdgeEntity) -> IntArray:
        """int64[num_parts], how many edges of a type and direction each part has, each counted once."""
        num_edges = np.diff(self.edge_offsets[entity])
        for overlay in self.overlays(entity):
            num_edges[overlay.part] += overlay.num_new
        return num_edges

    def num_ids(self, entity: Entity) -> int:
        """How many ids there are of a node type, or of an edge type and direction, in all parts together.

        Every node has one id. Edges of rows that an overlay stands for leave their ids unused: see ``num_edges``.
        """
        return int(self.offsets(entity)[-1])

    def parts_of(self, entity: Entity, ids: IntArray) -> IntArray:
        """int64[len(ids)], the part that owns each id. Ids are not checked; see ``check_ids``."""
        pieces = np.searchsorted(self.offsets(entity), ids, side="right") - 1
        return pieces if isinstance(entity, str) or not self.deltas else self._piece_parts[entity][pieces]

    def check_ids(self, entity: Entity, ids: IntArray) -> None:
        """Raise ``IdRangeError`` that names the first id outside the entity's range."""
        num_ids = self.num_ids(entity)
        if not is_within(ids, 0, num_ids):
            row = int(np.flatnonzero((ids < 0) | (ids >= num_ids))[0])
            raise IdRangeError(f"{entity_label(entity)}: ids[{row}] is {int(ids[row])}; ids are 0..{num_ids - 1}")

    def key_offsets(self, node_type: str) -> IntArray:
        """int64[num_parts + 1]: part ``p`` keeps the key-to-id map and the splits of keys ``[o[p], o[p + 1])``.

        Keys are cut evenly over the parts that were written first, whatever the assignment, so a key's keeper needs no
        table to be found; keys that were appended are kept by the part that came with them.
        """
        offsets = self.node_offsets[node_type]
        return self._slices([int(offsets[self.num_base_parts]), *offsets[self.num_base_parts + 1 :].tolist()])

    def num_edges(self, edge_type: EdgeType) -> int:
        """Edges of a type; every direction holds all of them."""
        return int(self.link_offsets(edge_type)[-1])

    def link_offsets(self, edge_type: EdgeType) -> IntArray:
        """int64[num_parts + 1]: part ``p`` keeps the links and edge splits of edge keys ``[o[p], o[p + 1])``."""
        totals = [next(int(o[self.num_base_parts]) for (t, _), o in self.edge_offsets.items() if t == edge_type)]
        for delta in self.deltas:
            totals.append(totals[-1] + delta.num_edges[edge_type])
        return self._slices(totals)

    def _slices(self, totals: list[int]) -> IntArray:
        """Where slices begin, given how many keys there were at first and after each append."""
        even = np.arange(self.num_base_parts + 1, dtype=np.int64) * totals[0] // self.num_base_parts
        return np.append(even, np.array(totals[1:], np.int64))


def _check_deltas(book: PartitionBook) -> None:
    """Refuse overlays that belong to no edges, come in another order, or are of parts that were not there."""
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
                    f"delta {number}: overlays of {entity_label(entity)} are of parts {parts[:20]}; they must be of "
                    f"edges of the dataset and ascend in 0..{num_parts - 1}"
                )


def _check_counts(book: PartitionBook, number: int, delta: Delta, part: int) -> None:
    """Refuse counts of new edges that are not those of the delta's part and its overlays together."""
    if set(delta.num_edges) != {edge_type for edge_type, _ in book.edge_offsets}:
        raise FormatError(f"delta {number} must say how many edges of each type it added")
    for entity, offsets in book.edge_offsets.items():
        in_overlays = sum(overlay.num_new for overlay in delta.overlays.get(entity, ()))
        found = int(offsets[part + 1] - offsets[part]) + in_overlays
        if found != delta.num_edges[entity[0]]:
            raise FormatError(
                f"delta {number} added {delta.num_edges[entity[0]]} edges; {entity_label(entity)} has {found} of them"
            )


def neighbor_dtype(num_nodes: int) -> np.dtype[Any]:
    """The dtype in which ids of a type are stored as neighbours: 32 bits where they fit."""
    return np.dtype(np.uint32) if num_nodes < 2**32 else np.dtype(np.int64)


def ends_of(edge_type: EdgeType, direction: Direction) -> tuple[str, str]:
    """The node type whose parts own the edges of a direction, and the node type of the other end."""
    return (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])


def entity_label(entity: Entity) -> str:
    """An entity as messages show it: ``paper`` or ``author__writes__paper/in``."""
    return entity if isinstance(entity, str) else f"{type_label(entity[0])}/{entity[1]}"
