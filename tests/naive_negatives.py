"""Negatives of a batch, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from hopstream.kernels.hashing import derive_seed
from tests.naive import GOLDEN, draw_below, mix64, node_stream


def uniform_node(draw_seed: int, position: int, turn: int, num_nodes: int) -> int:
    """One draw, all nodes with equal chances."""
    return draw_below(node_stream(draw_seed, position), turn, num_nodes)


def weighted_node(draw_seed: int, position: int, turn: int, weights: Sequence[float]) -> int:
    """One draw in proportion to weights: the first node whose running sum is above a uniform number."""
    sums = list(accumulate(weights))
    wanted = (mix64(node_stream(draw_seed, position) + turn * GOLDEN) >> 11) * 2.0**-53 * sums[-1]
    return next(node for node, reached in enumerate(sums) if reached > wanted or reached == sums[-1])


def strict_triplets(
    src_keys: Sequence[int], amount: int, num_dst: int, rng_seed: int, is_known: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Per negative the first turn's pair that is not known."""
    draw_seed = derive_seed("negatives", rng_seed, "destination")
    found = []
    for position in range(len(src_keys) * amount):
        source, turn = src_keys[position % len(src_keys)], 0
        while is_known(source, uniform_node(draw_seed, position, turn, num_dst)):
            turn += 1
        found.append((source, uniform_node(draw_seed, position, turn, num_dst)))
    return found


def chi_square_bound(num_values: int, sigmas: float = 5.0) -> float:
    """Bound of the chi-square statistic of ``num_values`` equally likely values, in sigmas."""
    freedom = num_values - 1
    return freedom + sigmas * math.sqrt(2 * freedom) + sigmas**2
