"""Pairs of nodes between which a run follows no edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.sample.slots import SlotMap
from hopstream.schema import Direction

SLOT_BITS = 32
"""Bits that a slot has where two are one int64."""


class ExcludedPairs:
    """Pairs of nodes that no edge of one type may join, in the batch that they were given for."""

    def __init__(self, pairs: IntArray) -> None:
        """Take int64[2, m] ids of sources and of destinations, in any order and with repetitions."""
        self._ids = np.ascontiguousarray(pairs, np.int64)
        self._ends = SlotMap(), SlotMap()
        self._slots = np.empty_like(self._ids)
        for row, end in enumerate(self._ends):
            end.assign(self._ids[row], self._slots[row])

    def of_frontier(self, direction: Direction, ids: IntArray) -> IntArray | None:
        """int64[2, n], the pairs whose expanded node is among ``ids``: expanded node and neighbour; None for none."""
        expanded = 1 if direction == "in" else 0
        found = self._ends[expanded].find(ids)
        is_asked = np.zeros(self._ends[expanded].num_nodes, np.bool_)
        is_asked[found[found >= 0]] = True
        pairs = self._ids[[expanded, 1 - expanded]][:, is_asked[self._slots[expanded]]]
        return pairs if pairs.size else None

    def join(self, src_ids: IntArray, dst_ids: IntArray) -> NDArray[np.bool_]:
        """bool[n], whether the pair of a source and a destination is excluded."""
        src_slots, dst_slots = self._ends[0].find(src_ids), self._ends[1].find(dst_ids)
        is_known = (src_slots >= 0) & (dst_slots >= 0)
        return is_known & np.isin(pairs_of_slots(src_slots, dst_slots), pairs_of_slots(*self._slots))


def pairs_of_slots(first: IntArray, second: IntArray) -> IntArray:
    """int64[n], one number for each pair of slots."""
    return (first << SLOT_BITS) | second


def slots_of_pairs(pairs: IntArray) -> tuple[IntArray, IntArray]:
    """The slots, int64[n] and int64[n], that ``pairs_of_slots`` made one number of."""
    return pairs >> SLOT_BITS, pairs & ((1 << SLOT_BITS) - 1)
