"""How much longer than plain uniform sampling may each way to sample take, at most?

Ratios are of seconds per edge drawn; that of ``link`` is of seconds per seed node, beside a node loader.
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
"""Name of a figure, without ``_ratio``, to its limit; other ways have none."""
MIN_STREAMED_SHARE = 0.8
"""What streaming from two servers reaches, at the least, of what the same processes do in the calls themselves."""
