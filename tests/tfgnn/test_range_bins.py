"""Do bins count what was added, over the range that it has?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.tfgnn.range_bins import MAX_BINS, RangeBins


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize(("low", "high"), [(1029, 1092), (5, 6), (0, 3), (0, 10**6), (10**12, 10**12 + 40)])
def test_counts_and_bounds(rng, block, low, high):
    numbers, bins = rng.integers(low, high, 100), RangeBins()
    for start in range(0, 100, block):
        bins.add(numbers[start : start + block])
    bins.add(numbers[:0])
    assert 1 <= len(bins.counts) <= MAX_BINS
    assert np.histogram(numbers, np.array(bins.bounds) - 0.5)[0].tolist() == bins.counts
    assert bins.bounds[0] <= numbers.min() and numbers.max() < bins.bounds[-1]
    assert bins.counts[0] and bins.counts[-1]
    assert bins.width == 1 or (numbers.max() - numbers.min()) // bins.width >= MAX_BINS // 2 - 1


def test_nothing_has_no_bins():
    assert RangeBins().counts == []
