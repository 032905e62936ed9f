"""Which neighbours does a node draw when all nodes of a layer draw by common variates?

[Algorithm] Layer-neighbour sampling with a fixed number of neighbours: a neighbour has one variate, a hash of the seed
    and of its key, and every node takes the neighbours of the smallest variates. Nodes with common neighbours so agree
    on them, and a batch has fewer nodes for the same number of edges. Between two seeds a variate moves along a quarter
    circle: with u1 and u2 of the seeds, z = cos(pi s / 2) Q(u1) + sin(pi s / 2) Q(u2) is standard normal for every
    share s, Q being the normal quantile; as only order matters, z itself is compared and never made uniform again.
    The lowest bits are a hash of the edge's place in its row, so that parallel edges, which share the rest, are taken
    evenly; two neighbours that share all other bits are as rare as 2**-36.
    Source: Balin, Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023, section 3.2 and its appendix on a fixed number
    of neighbours; the quarter circle is that of GraphBolt's ``batch_dependency``.
[Cost] One hash per eligible edge, two and two quantiles where the share is above 0; see ``smallest``.
[Not chosen] The paper's LABOR-0, which includes each neighbour independently where its variate is below a node's own
    bound: the number of neighbours then varies. Linear interpolation of u1 and u2: it is not uniform in between.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN, mix64, node_stream
from hopstream.kernels.reals import normal_quantile, open_fraction, ordered_bits, quarter_turn
from hopstream.kernels.smallest import offer, sort_positions

PLACE_MASK = np.uint64(0xFFFF)
"""Bits of a variate that tell parallel edges apart."""


@njit(inline="always")
def labor_variate(
    key: np.int64, place: int, first_seed: np.uint64, second_seed: np.uint64, cosine: float, sine: float
) -> np.uint64:
    """The variate of a neighbour's edge, as 64 bits in its order.

    Args:
        key: The neighbour's.
        place: The edge's place in its row, which is the same wherever the row is stored.
        first_seed: As in ``draw_labor``.
        second_seed: As there.
        cosine: Of the share, see ``quarter_turn``.
        sine: Likewise.
    """
    bits = node_stream(first_seed, key)
    own = mix64(bits + np.uint64(place) * GOLDEN) & PLACE_MASK
    if sine != 0.0:
        z = cosine * normal_quantile(open_fraction(bits))
        bits = ordered_bits(z + sine * normal_quantile(open_fraction(node_stream(second_seed, key))))
    return (bits & ~PLACE_MASK) | own


@kernel
def draw_labor(
    keys: np.ndarray, start: int, num: int, count: int, first_seed: np.uint64, second_seed: np.uint64, share: float,
    variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Write the positions of the ``count`` eligible edges of smallest variates, in stored order.

    Args:
        keys: uint32 or int64[edges], neighbours' keys.
        start: Position of the first eligible edge.
        num: Number of eligible edges.
        count: The most to take; -1 means all.
        first_seed: uint64, seed of the variates.
        second_seed: uint64, seed that they move to; not looked at where ``share`` is 0.
        share: How far they have moved, in [0, 1).
        variates: uint64[min(count, num)] or more, scratch where ``count`` is below ``num``.
        positions: int64[n], out: ``positions[first:first + taken]``.
        first: See there.

    Returns:
        How many were taken: ``min(count, num)``.
    """
    if count < 0 or count >= num:
        for i in range(num):
            positions[np.uint64(first + i)] = start + i
        return num
    if count == 0:
        return 0
    cosine, sine = quarter_turn(share)
    size = 0
    for position in range(start, start + num):
        key = np.int64(keys[np.uint64(position)])
        variate = labor_variate(key, position - start, np.uint64(first_seed), np.uint64(second_seed), cosine, sine)
        if size < count or variate < variates[0]:
            size = offer(variates, positions, first, size, count, variate, position)
    sort_positions(positions, first, size)
    return size
