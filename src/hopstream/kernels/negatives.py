"""Draws nodes as ends of negatives, uniformly or by weight.

[Algorithm] One draw per (seed, position, turn): uniform by 128-bit multiplication; in proportion to weights by binary
    search in their running sums for the first sum above a uniform number. A node of weight 0 has the same sum as the
    node before it, so it is never drawn.
[Cost] About 5 ns per uniform draw; O(log num_nodes) cache misses per weighted draw, and 8 bytes per node.
[Not chosen] Alias tables: O(1) per draw, but 12 bytes per node and a serial pass that depends on the order of ties.
    Multinomial draws of a whole batch: they depend on its size, so a batch could not redraw one of its negatives.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN, draw_below, mix64, node_stream
from hopstream.kernels.reals import fraction


@kernel
def draw_uniform_nodes(
    draw_seed: np.uint64, positions: np.ndarray, turns: np.ndarray, num_nodes: int, keys: np.ndarray
) -> None:
    """Draw a node per position and turn, all nodes with equal probability.

    Args:
        draw_seed: uint64.
        positions: int64[n].
        turns: int64[n].
        num_nodes: At least 1.
        keys: int64[n], out: keys in ``[0, num_nodes)``.
    """
    for i in range(len(positions)):
        stream = node_stream(draw_seed, positions[i])
        keys[i] = np.int64(draw_below(stream, np.uint64(turns[i]), np.uint64(num_nodes)))


@kernel
def draw_weighted_nodes(
    draw_seed: np.uint64, positions: np.ndarray, turns: np.ndarray, weight_sums: np.ndarray, keys: np.ndarray
) -> None:
    """Draw a node per position and turn, each in proportion to its weight.

    Args:
        draw_seed: uint64.
        positions: int64[n].
        turns: int64[n].
        weight_sums: float64[num_nodes], running sums of the weights; the last one is above 0.
        keys: int64[n], out: keys of nodes whose weight is above 0.
    """
    total = weight_sums[len(weight_sums) - 1]
    for i in range(len(positions)):
        stream = node_stream(draw_seed, positions[i])
        wanted = fraction(mix64(stream + np.uint64(turns[i]) * GOLDEN)) * total
        low, high = 0, len(weight_sums) - 1
        while low < high:
            middle = (low + high) >> 1
            # The second test covers a number that was rounded up to the total.
            if weight_sums[middle] > wanted or weight_sums[middle] == total:
                high = middle
            else:
                low = middle + 1
        keys[i] = low
