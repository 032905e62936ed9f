"""Seeds of the benchmarks."""

from __future__ import annotations

import numpy as np

from benchmarks.harness import BATCH_SIZE, RNG_SEED
from hopstream.arrays import IntArray


def draw_seeds(train_keys: IntArray, num_batches: int) -> list[IntArray]:
    """Draw distinct keys of the training split for each batch; all compared systems get the same."""
    rng = np.random.default_rng(RNG_SEED)
    size = min(BATCH_SIZE, len(train_keys))
    return [rng.choice(train_keys, size, replace=False) for _ in range(num_batches)]
