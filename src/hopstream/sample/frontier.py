"""The slots that an op expands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.kernels.relabel import repeat_slots
from hopstream.sample.slots import SlotRange


class Frontier(Protocol):
    """Distinct slots of one node type, ascending."""

    def __len__(self) -> int:
        """How many slots there are."""

    def take(self, column: IntArray) -> IntArray:
        """The values of the slots in a column."""

    def repeat(self, counts: NDArray[np.int32], out: IntArray, written: int) -> None:
        """Write each slot as often as its count says, from ``written`` on."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeFrontier:
    """Slots in a few ranges.

    Attributes:
        ranges: Sorted, distinct, not empty, neighbours joined.
    """

    ranges: list[SlotRange]

    @classmethod
    def of(cls, ranges: list[SlotRange]) -> RangeFrontier:
        """Join ranges, so that each slot is expanded once."""
        merged: list[SlotRange] = []
        for start, end in sorted(set(ranges)):
            if start == end:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return cls(merged)

    def __len__(self) -> int:
        """How many slots there are."""
        return sum(end - start for start, end in self.ranges)

    def take(self, column: IntArray) -> IntArray:
        """The values of the slots, copied only where there are several ranges."""
        pieces = [column[start:end] for start, end in self.ranges]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def repeat(self, counts: NDArray[np.int32], out: IntArray, written: int) -> None:
        """Write each slot as often as its count says, from ``written`` on."""
        done = 0
        for start, end in self.ranges:
            written = repeat_slots(start, counts[done : done + end - start], out, written)
            done += end - start


@dataclass(frozen=True, slots=True, eq=False)
class SlotFrontier:
    """Slots that need not lie together.

    Attributes:
        slots: int64[n], ascending.
    """

    slots: IntArray

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self.slots)

    def take(self, column: IntArray) -> IntArray:
        """The values of the slots."""
        return column[self.slots]

    def repeat(self, counts: NDArray[np.int32], out: IntArray, written: int) -> None:
        """Write each slot as often as its count says, from ``written`` on."""
        repeated = np.repeat(self.slots, counts)
        out[written : written + len(repeated)] = repeated
