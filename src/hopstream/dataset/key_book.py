"""Looks up the owner and the id of a key, and the key of an id.

A dataset's partition book is ranges of ids. The parts keep slices of the maps between keys and ids, which are
memory-mapped on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import IntArray, open_array
from hopstream.checks import known_names
from hopstream.dataset.book import Entity, PartitionBook
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.paths import node_folder
from hopstream.errors import IdRangeError, SchemaError, UnknownNameError
from hopstream.schema import Direction, EdgeType, type_label


@dataclass(frozen=True, slots=True, eq=False)
class KeyBook:
    """Partition book of a dataset on disk, by keys as well as ids.

    Attributes:
        dataset: The dataset.
    """

    dataset: Dataset
    _arrays: dict[tuple[str, int, str], IntArray] = field(default_factory=dict)

    @property
    def ranges(self) -> PartitionBook:
        """The ranges of ids that each part owns, by type."""
        return self.dataset.manifest.book

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.ranges.num_parts

    def ids_of(self, node_type: str, keys: ArrayLike) -> IntArray:
        """Return int64[n], the id of each key.

        Raises:
            UnknownNameError: There is no such node type.
            IdRangeError: A key belongs to no node.
            FormatError: The folder of the part that keeps a key's id is not here.
        """
        return self._look_up(node_type, keys, "id_of_key.npy", self.ranges.key_offsets(self._known(node_type)), "key")

    def keys_of(self, node_type: str, ids: ArrayLike) -> IntArray:
        """Return int64[n], the key of each id; raises as ``ids_of`` does."""
        return self._look_up(node_type, ids, "key.npy", self.ranges.node_offsets[self._known(node_type)], "id")

    def part_of(self, node_type: str, keys: ArrayLike) -> IntArray:
        """Return int64[n], the part that owns each key; raises as ``ids_of`` does."""
        return self.ranges.parts_of(node_type, self.ids_of(node_type, keys))

    def keys_of_part(self, node_type: str, part: int) -> IntArray:
        """Return int64[rows], the keys of the nodes that a part owns, ascending.

        Raises:
            UnknownNameError: There is no such node type or part.
            FormatError: The part's folder is not here.
        """
        self._check_part(part)
        return self._array(self._known(node_type), part, "key.npy")

    def metadata(self) -> tuple[Mapping[str, Any], ...]:
        """Return each part's number, its number of nodes by type, and its edges by direction and type."""
        book = self.ranges
        nodes = {t: np.diff(offsets).tolist() for t, offsets in book.node_offsets.items()}
        edges: dict[str, dict[str, list[int]]] = {}
        for edge_type, direction in book.edge_offsets:
            of_parts = book.edges_of_parts((edge_type, direction)).tolist()
            edges.setdefault(direction, {})[type_label(edge_type)] = of_parts
        return tuple(
            {
                "part": part,
                "num_nodes": {t: counts[part] for t, counts in nodes.items()},
                "num_edges": {d: {t: counts[part] for t, counts in of.items()} for d, of in edges.items()},
            }
            for part in range(self.num_parts)
        )

    def node_range(self, node_type: str, part: int) -> tuple[int, int]:
        """Return the ids ``[first, stop)`` of a node type that a part owns."""
        return self._range(self._known(node_type), part)

    def edge_range(self, edge_type: EdgeType | str, direction: Direction, part: int) -> tuple[int, int]:
        """Return the ids ``[first, stop)`` of the edges of a type and direction in a part's own rows.

        Overlays of the part have other ids, after the ids of all parts.
        """
        edge_type = self.dataset.manifest.schema.edge_type_of(edge_type)
        if (edge_type, direction) not in self.ranges.edge_offsets:
            known = list(self.dataset.manifest.directions)
            raise UnknownNameError(
                f"{self.dataset.root} has no edges of direction {direction!r}; {known_names(direction, known)}"
            )
        return self._range((edge_type, direction), part)

    def _range(self, entity: Entity, part: int) -> tuple[int, int]:
        self._check_part(part)
        offsets = self.ranges.offsets(entity)  # the parts are the first pieces
        return int(offsets[part]), int(offsets[part + 1])

    def _check_part(self, part: int) -> None:
        if not 0 <= part < self.num_parts:
            numbers = f"0..{self.num_parts - 1}"
            raise UnknownNameError(f"{self.dataset.root} has no part {part}; parts are numbered {numbers}")

    def _known(self, node_type: str) -> str:
        self.dataset.manifest.schema.check_node_type(node_type)
        return node_type

    def _array(self, node_type: str, part: int, name: str) -> IntArray:
        if (node_type, part, name) not in self._arrays:
            path = node_folder(part, node_type) / name
            record = self.dataset.manifest.files[str(path)]
            self._arrays[node_type, part, name] = open_array(self.dataset.root / path, record)
        return self._arrays[node_type, part, name]

    def _look_up(self, node_type: str, numbers: ArrayLike, name: str, offsets: IntArray, what: str) -> IntArray:
        given = np.atleast_1d(np.asarray(numbers))
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise SchemaError(f"{what}s of {node_type} must be integers[n], got {given.dtype}{list(given.shape)}")
        given = given.astype(np.int64)
        outside = np.flatnonzero((given < 0) | (given >= offsets[-1]))
        if len(outside):
            row = int(outside[0])
            raise IdRangeError(f"{node_type}: {what}s[{row}] is {given[row]}; {what}s are 0..{int(offsets[-1]) - 1}")
        parts = np.searchsorted(offsets, given, side="right") - 1
        found = np.empty(len(given), np.int64)
        for part in np.unique(parts).tolist():
            of_part = parts == part
            found[of_part] = self._array(node_type, part, name)[given[of_part] - offsets[part]]
        return found


def read_key_book(root: str | Path) -> KeyBook:
    """Open the book of a dataset, which maps keys to parts and ids, and ids to keys.

    Raises:
        FormatError: The folder is no dataset of a format that this version reads.
        ChecksumError: The manifest does not match its checksum.
    """
    return KeyBook(open_dataset(root))
