"""Computes the hits of the best possible cache, which knows all batches in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import IntArray


def best_hits(batches: Sequence[IntArray], num_rows: int) -> IntArray:
    """Hits of the best cache that is possible: of the rows it holds and those that came it keeps those needed soonest.

    Rows that came need not be kept, so no other choice has more hits in all (Belady's MIN, with bypass).

    [Algorithm] Rows that are needed next by the same batch are equally good, so it is enough to count them: after each
    batch, the first ``num_rows`` in the order of the batches that need them are kept. A row that was given up is missed
    once and comes again.
    [Cost] Sorts all ids once; then the square of the number of batches.

    Args:
        batches: int64[n] each, the ids of a batch, without repetitions.
        num_rows: How many rows it has room for.

    Returns:
        int64[num_batches], how many ids of each batch were held.
    """
    num_batches = len(batches)
    ids = np.concatenate(batches)
    order = np.argsort(ids, kind="stable")
    steps = np.repeat(np.arange(num_batches), [len(of_batch) for of_batch in batches])[order]
    (again,) = np.nonzero(np.diff(ids[order]) == 0)
    pairs = np.bincount(steps[again] * num_batches + steps[again + 1], minlength=num_batches**2)
    needed = pairs.reshape(num_batches, num_batches)  # [i, j]: rows that batch j is the first to need after batch i
    held, hits = np.zeros(num_batches, np.int64), np.zeros(num_batches, np.int64)
    for step in range(num_batches):
        hits[step], held[step] = held[step], 0
        held = np.diff(np.minimum(np.cumsum(held + needed[step]), num_rows), prepend=0)
    return hits
