"""Computes the hits of the best possible cache, which knows all batches in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import IntArray


def best_hits(batches: Sequence[IntArray], num_rows: int) -> IntArray:
    """Compute the cache hits of an optimal cache, which keeps the rows that are needed soonest.

    New rows may bypass the cache, so no other policy has more hits in all (Belady's MIN with bypass).

    [Algorithm] Rows with the same next batch are equivalent, so it is enough to count them. After each batch, the first
    ``num_rows`` rows in the order of their next batches are kept. An evicted row is missed once and fetched again.
    [Cost] Sorts all ids once; then the square of the number of batches.

    Args:
        batches: int64[n] each, the distinct ids of a batch.
        num_rows: Capacity of the cache in rows.

    Returns:
        int64[num_batches], number of cache hits of each batch.
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
