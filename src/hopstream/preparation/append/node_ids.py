"""Ids, keys and times of the nodes of a dataset that is appended to, old ones and new ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset, PartArrays
from hopstream.graph.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class KnownNodes:
    """Old nodes, whose parts are mapped when they are first needed, and new ones, whose ids are their keys.

    Attributes:
        dataset: The dataset as it was.
        added: What is added to it.
    """

    dataset: Dataset
    added: Graph
    _parts: dict[int, PartArrays] = field(default_factory=dict)
    _books: list[KeyBook] = field(default_factory=list)

    def part(self, number: int) -> PartArrays:
        """One of the old parts."""
        if number not in self._parts:
            self._parts[number] = self.dataset.open_part(number)
        return self._parts[number]

    def num_old(self, node_type: str) -> int:
        """How many nodes there were."""
        return self.dataset.manifest.book.num_ids(node_type)

    def ids_of(self, node_type: str, keys: IntArray) -> IntArray:
        """int64[n], the ids of keys, which have been checked."""
        return self._old_or_same(node_type, keys, "ids_of")

    def keys_of(self, node_type: str, ids: Array) -> IntArray:
        """int64[n], the keys of ids, which have been checked."""
        return self._old_or_same(node_type, ids.astype(np.int64, copy=False), "keys_of")

    def _old_or_same(self, node_type: str, numbers: IntArray, method: str) -> IntArray:
        if not self._books:
            self._books.append(KeyBook(self.dataset))
        found = np.array(numbers, np.int64)
        old = np.flatnonzero(found < self.num_old(node_type))
        if len(old) and not self.dataset.manifest.book.ids_are_keys:
            found[old] = getattr(self._books[0], method)(node_type, found[old])
        return found

    def times_of(self, node_type: str, ids: IntArray) -> IntArray | None:
        """int64[n], the times of nodes, or None where their type has none."""
        name = self.dataset.manifest.time_attr
        if name is None or name not in self.dataset.manifest.schema.nodes[node_type]:
            return None
        times, offsets = np.empty(len(ids), np.int64), self.dataset.manifest.book.node_offsets[node_type]
        is_new = ids >= self.num_old(node_type)
        times[is_new] = np.asarray(self.added.nodes[node_type].features[name])[ids[is_new] - self.num_old(node_type)]
        parts = np.where(is_new, -1, np.searchsorted(offsets, ids, side="right") - 1)
        for number in np.unique(parts[~is_new]).tolist():
            here = parts == number
            times[here] = np.asarray(self.part(number).node_features[node_type][name])[ids[here] - offsets[number]]
        return times


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys of one node type's ids, looked up as if they were an array; see ``stored.KeysOfIds``."""

    nodes: KnownNodes
    node_type: str

    def __getitem__(self, ids: Array, /) -> Array:
        """int64[n], the key of each id."""
        return self.nodes.keys_of(self.node_type, ids)
