"""Which part owns an id, and where are a key's bookkeeping rows?

The book is ranges: O(parts) numbers per type, whatever the size of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import FormatError, IdRangeError
from hopstream.schema import Direction, EdgeType, type_label

Owner = str | tuple[EdgeType, Direction]
"""What an id belongs to: a node type, or the edges of one type in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBook:
    """Ranges of ids that each part owns.

    Attributes:
        num_parts: Number of parts.
        node_offsets: Node type to int64[num_parts + 1]; part ``p`` owns node ids ``[offsets[p], offsets[p + 1])``.
        edge_offsets: (edge type, direction) to int64[num_parts + 1], the same for edge ids: an edge's id is
            ``offsets[p]`` plus its position in the part's ``indices``.
    """

    num_parts: int
    node_offsets: Mapping[str, IntArray]
    edge_offsets: Mapping[tuple[EdgeType, Direction], IntArray]

    def __post_init__(self) -> None:
        """Refuse offsets that are not ``num_parts + 1`` ascending integers from 0."""
        ranges: list[tuple[Owner, IntArray]] = [*self.node_offsets.items(), *self.edge_offsets.items()]
        for owner, offsets in ranges:
            if len(offsets) != self.num_parts + 1 or offsets[0] != 0 or bool(np.any(offsets[1:] < offsets[:-1])):
                raise FormatError(
                    f"{owner_label(owner)}: {offsets.tolist()} must be {self.num_parts + 1} ascending ids"
                )

    def offsets(self, owner: Owner) -> IntArray:
        """int64[num_parts + 1], the ranges of a node type or of an (edge type, direction)."""
        return self.node_offsets[owner] if isinstance(owner, str) else self.edge_offsets[owner]

    def num_ids(self, owner: Owner) -> int:
        """How many nodes of a type, or edges of a type and direction, there are in all parts together."""
        return int(self.offsets(owner)[-1])

    def parts_of(self, owner: Owner, ids: IntArray) -> IntArray:
        """int64[len(ids)], the part that owns each id. Ids are not checked; see ``check_ids``."""
        return np.searchsorted(self.offsets(owner), ids, side="right") - 1

    def check_ids(self, owner: Owner, ids: IntArray) -> None:
        """Raise ``IdRangeError`` that names the first id outside the owner's range."""
        num_ids = self.num_ids(owner)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_ids):
            row = int(np.flatnonzero((ids < 0) | (ids >= num_ids))[0])
            raise IdRangeError(f"{owner_label(owner)}: ids[{row}] is {int(ids[row])}; ids are 0..{num_ids - 1}")

    def key_offsets(self, node_type: str) -> IntArray:
        """int64[num_parts + 1]: part ``p`` keeps the key-to-id map and the splits of keys ``[o[p], o[p + 1])``.

        Keys are cut evenly whatever the assignment, so a key's keeper needs no table to be found.
        """
        num_nodes = self.num_ids(node_type)
        return np.arange(self.num_parts + 1, dtype=np.int64) * num_nodes // self.num_parts

    def num_edges(self, edge_type: EdgeType) -> int:
        """Edges of a type; every direction holds all of them."""
        return next(int(offsets[-1]) for (t, _), offsets in self.edge_offsets.items() if t == edge_type)

    def link_offsets(self, edge_type: EdgeType) -> IntArray:
        """int64[num_parts + 1]: part ``p`` keeps the links and edge splits of edge keys ``[o[p], o[p + 1])``."""
        return np.arange(self.num_parts + 1, dtype=np.int64) * self.num_edges(edge_type) // self.num_parts


def neighbor_dtype(num_nodes: int) -> np.dtype[Any]:
    """The dtype in which ids of a type are stored as neighbours: 32 bits where they fit."""
    return np.dtype(np.uint32) if num_nodes < 2**32 else np.dtype(np.int64)


def ends_of(edge_type: EdgeType, direction: Direction) -> tuple[str, str]:
    """The node type whose parts own the edges of a direction, and the node type of the other end."""
    return (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])


def owner_label(owner: Owner) -> str:
    """An owner as messages show it: ``paper`` or ``author__writes__paper/in``."""
    return owner if isinstance(owner, str) else f"{type_label(owner[0])}/{owner[1]}"
