"""Tells which nodes and edges of a dataset are removed, and maps the numbers of the others.

Numbers have no gaps: a kept node or edge moves down by the number of removed ones before it. So order and owners
stay, and a few removed numbers suffice to renumber everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, find_sorted

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Removed:
    """Removed numbers (keys or ids) of one type.

    Attributes:
        numbers: int64[n], ascending, each once.
    """

    numbers: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        """Return how many numbers are removed."""
        return len(self.numbers)

    def has(self, numbers: Array) -> BoolArray:
        """Return bool[n], whether each number is removed."""
        return find_sorted(self.numbers, numbers) >= 0

    def after(self, numbers: Array) -> IntArray:
        """Return int64[n], the new numbers of kept ones; of offsets, the new offsets."""
        return np.asarray(numbers, np.int64) - np.searchsorted(self.numbers, numbers)

    def before(self, numbers: IntArray) -> IntArray:
        """Return int64[n], the old numbers of new ones."""
        kept_before = self.numbers - np.arange(len(self.numbers))
        return numbers + np.searchsorted(kept_before, numbers, side="right")

    def kept(self, first: int, stop: int) -> IntArray:
        """Return the kept numbers in ``[first, stop)``, ascending."""
        numbers = np.arange(first, stop, dtype=np.int64)
        begin, end = np.searchsorted(self.numbers, (first, stop))
        return np.delete(numbers, self.numbers[begin:end] - first)


@dataclass(slots=True, init=False, eq=False)
class Pairs:
    """Pairs of a source and a destination, with a record of the pairs that edges were found for."""

    _given: IntArray
    _sources: IntArray
    _destinations: IntArray
    _codes: IntArray
    _is_found: BoolArray

    def __init__(self, sources: IntArray, destinations: IntArray) -> None:
        """Take int64[n] each; pairs may repeat."""
        self._sources, self._destinations = np.unique(sources), np.unique(destinations)
        self._given = self._code(sources, destinations)
        self._codes = np.unique(self._given)
        self._is_found = np.zeros(len(self._codes), np.bool_)

    def __len__(self) -> int:
        """Return the number of different pairs."""
        return len(self._codes)

    def has(self, sources: IntArray, destinations: IntArray) -> BoolArray:
        """Return bool[n], whether the ends of each edge are a pair, and record the pairs."""
        if not len(self):
            return np.zeros(len(sources), np.bool_)
        places = find_sorted(self._codes, self._code(sources, destinations))
        self._is_found[places[places >= 0]] = True
        return places >= 0

    def missing(self) -> int | None:
        """Return the position of the first given pair that no edge was found for, or None."""
        if self._is_found.all():
            return None
        return int(np.argmin(self._is_found[find_sorted(self._codes, self._given)]))

    def _code(self, sources: IntArray, destinations: IntArray) -> IntArray:
        """Return int64[n], a number of each pair by its places among the given ends; -1 for other ends."""
        source, destination = find_sorted(self._sources, sources), find_sorted(self._destinations, destinations)
        code = source * len(self._destinations) + destination
        code[(source < 0) | (destination < 0)] = -1
        return code


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeFilter:
    """Edges of one type that are removed.

    Attributes:
        sources: Removed source ids.
        destinations: Removed destination ids.
        pairs: Ids of the ends of removed edges.
        keys: Removed edge keys.
    """

    sources: Removed
    destinations: Removed
    pairs: Pairs
    keys: Removed

    @property
    def is_empty(self) -> bool:
        """Whether all edges stay as they are, and all ids of their ends."""
        return not (len(self.sources) or len(self.destinations) or len(self.pairs) or len(self.keys))

    def removes(self, sources: IntArray, destinations: IntArray, keys: IntArray | None) -> BoolArray:
        """Return bool[n], whether each edge is removed, given the ids of its ends and its key."""
        is_removed = self.sources.has(sources) | self.destinations.has(destinations)
        is_removed |= self.pairs.has(sources, destinations)
        if keys is not None and len(self.keys):
            is_removed |= self.keys.has(keys)
        return is_removed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemovedEdges:
    """The removed edges of one type.

    Attributes:
        keys: Their keys; empty if the dataset knows no edge keys of the type.
        own_parts: int64[n], the part of each in the first direction, in the order of ``keys``.
        num_edges: Number of removed edges.
        num_cut: Number of those whose ends are in different parts.
        between: int64[num_parts, num_parts], how many lead from part to part; see ``empty_matrix``.
    """

    keys: Removed
    own_parts: IntArray
    num_edges: int
    num_cut: int
    between: IntArray
