"""Limits of the time of each way to sample, as ratios to plain uniform sampling.

Ratios are of seconds per drawn edge; the ratio of ``link`` is of seconds per seed node, to a loader of nodes.
"""

from __future__ import annotations

LIMITS = {
    "disjoint": 2.0,
    "temporal_uniform": 2.0,
    "temporal_last": 2.0,
    "weighted": 3.0,
    "weighted_with_replacement": 3.0,
    "link": 1.5,
}
"""Name of a figure, without ``_ratio``, to its limit; other figures have none."""
MIN_STREAMED_SHARE = 0.8
"""Lowest ratio of batches streamed from two servers to batches sampled inside calls of the same processes."""
