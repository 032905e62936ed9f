"""How many numbers lie in each of a few bins of one width, over the range that was seen?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import IntArray

MAX_BINS = 16


@dataclass(slots=True)
class RangeBins:
    """Counts of integers; bins get twice as wide whenever the range needs more than ``MAX_BINS``.

    Attributes:
        width: How many integers a bin has, a power of two.
        first: The first bin is of the integers from ``first * width`` on.
        counts: Of each bin.
    """

    width: int = 1
    first: int = 0
    counts: list[int] = field(default_factory=list)

    def add(self, numbers: IntArray) -> None:
        """Add numbers."""
        if not len(numbers):
            return
        old = (self.first + np.arange(len(self.counts), dtype=np.int64)) * self.width
        low, high = min([*old[:1].tolist(), int(numbers.min())]), max([*old[-1:].tolist(), int(numbers.max())])
        while high // self.width - low // self.width >= MAX_BINS:
            self.width *= 2
        self.first = low // self.width
        num_bins = high // self.width - self.first + 1
        bins = np.bincount(numbers // self.width - self.first, minlength=num_bins)
        np.add.at(bins, old // self.width - self.first, np.array(self.counts, np.int64))
        self.counts = bins.tolist()

    @property
    def bounds(self) -> list[int]:
        """Where bins begin, and where the last one ends."""
        return [(self.first + number) * self.width for number in range(len(self.counts) + 1)]
