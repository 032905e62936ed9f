"""Which seeds does a benchmark start from?"""

from __future__ import annotations

import numpy as np

from benchmarks.harness import BATCH_SIZE, RNG_SEED
from hopstream.arrays import IntArray


def draw_seeds(train_keys: IntArray, num_batches: int) -> list[IntArray]:
    """Distinct keys of the training split for each batch, the same for every system that is compared."""
    rng = np.random.default_rng(RNG_SEED)
    size = min(BATCH_SIZE, len(train_keys))
    return [rng.choice(train_keys, size, replace=False) for _ in range(num_batches)]
