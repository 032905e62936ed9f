"""In which order are exported examples read, so that files are read nearly in sequence and batches are still mixed?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray, offsets_of
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.permute import permute_range
from hopstream.load.order import BatchSpan, SeedOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOrder(SeedOrder):
    """Files in a new order each epoch, and their examples mixed inside windows that follow each other.

    Any stretch of the order is computed by itself, so threads, ranks and resumed loaders read what they need alone.

    Attributes:
        file_sizes: Examples of each file; ``num_seeds`` in all.
        window: Examples that are mixed with each other; with as many as there are, all are.
    """

    file_sizes: tuple[int, ...]
    window: int

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """int64[stop - start], the numbers of the examples of one batch, counted over the files in their own order."""
        places = np.arange(span.start, span.stop, dtype=np.int64)
        if not self.is_shuffled:
            return places
        for number in range(span.start // self.window, -(-span.stop // self.window)):
            first = number * self.window
            start, stop = max(span.start, first), min(span.stop, first + self.window)
            mixed = places[start - span.start : stop - span.start]
            seed = np.uint64(derive_seed("window", self.rng_seed, epoch, number))
            permute_range(start - first, min(self.window, self.num_seeds - first), seed, mixed)
            mixed += first
        files = np.empty(len(self.file_sizes), np.int64)
        permute_range(0, len(files), np.uint64(derive_seed("files", self.rng_seed, epoch)), files)
        sizes = np.array(self.file_sizes, np.int64)
        ends = np.cumsum(sizes[files])
        at = np.searchsorted(ends, places, side="right")
        return places - (ends - sizes[files])[at] + offsets_of(sizes)[files[at]]
