"""Which are the heaviest of a node's eligible edges?

[Algorithm] The positions of a row by weight are stored, so they are walked from the heaviest on until enough are
    eligible. Where times leave few edges of a row, most steps of the walk are in vain: it stops after as many as
    selecting costs, and the heaviest are selected from the eligible edges alone, by a heap of ``count``.
[Cost] O(count) where all edges are eligible, and about ``count * degree / num`` where some are and weights do not go by
    time; never more than O(num * log(count)), nor than O(degree).
[Not chosen] Selecting by differences of running sums: rounding makes equal weights differ, and the order of equal
    weights is that of the stored edges. Selecting always: a hub of which half is eligible has its heaviest after a few
    steps. A stored rank per edge: 4 bytes for what the weights themselves tell.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.filtered import Filter, is_eligible
from hopstream.kernels.reals import ordered_bits
from hopstream.kernels.smallest import offer, sort_by_variate
from hopstream.kernels.stored_weights import stored_weight
from hopstream.kernels.weighted import weight_at

TOO_FAR = -1


@njit(inline="always")
def num_ranks(num: int, degree: int, count: int, kind: int) -> int:
    """How far to walk a row of ``degree`` edges for ``count`` of its first ``num``, before selecting costs less."""
    if kind < 0:
        return degree
    steps = num
    while count > 1:
        steps += num
        count >>= 1
    return min(steps, degree)


@kernel
def take_heaviest(
    order: np.ndarray, sums: np.ndarray, start: int, num: int, degree: int, ranks: int, count: int,
    positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Write the positions of a row's heaviest eligible edges, heaviest first; never those without weight.

    Args:
        order: uint32[edges], positions inside the row, heaviest first and equal weights in stored order.
        sums: float64[edges], running sums as for ``draw_weighted``.
        start: Position of the row's first edge.
        num: Number of eligible edges, the first ones of the row.
        degree: Number of edges of the row.
        ranks: How far to walk, ``degree`` at most.
        count: The most to take; -1 means all that have weight.
        positions: int64[n], out: ``positions[first:first + taken]``.
        first: See there.

    Returns:
        How many were taken; ``TOO_FAR`` where the walk ended before that was known.
    """
    limit = num if count < 0 or count > num else count
    taken = 0
    for rank in range(ranks):
        if taken == limit:
            break
        row_position = np.int64(order[np.uint64(start + rank)])
        if row_position < num:
            positions[np.uint64(first + taken)] = start + row_position
            taken += 1
    if taken < limit and ranks < degree:
        return TOO_FAR
    # Edges without weight come last, and mostly there are none: one look tells.
    if taken > 0 and weight_at(sums, start, positions[np.uint64(first + taken - 1)]) > 0.0:
        return taken
    low = 0
    while low < taken:
        half = (low + taken) >> 1
        if weight_at(sums, start, positions[np.uint64(first + half)]) > 0.0:
            low = half + 1
        else:
            taken = half
    return taken


@kernel
def take_heaviest_eligible(
    rule: Filter, indices: np.ndarray, order: np.ndarray, sums: np.ndarray, start: int, num: int, degree: int,
    ranks: int, count: int, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """As ``take_heaviest``, of the edges that a node may draw.

    Args:
        rule: The node's.
        indices: uint32 or int64[edges], its part's.
        order: As there.
        sums: As there.
        start: As there.
        num: As there.
        degree: As there.
        ranks: As there.
        count: The most to take.
        positions: As there.
        first: As there.

    Returns:
        As there.
    """
    taken = 0
    for rank in range(ranks):
        if taken == count:
            return taken
        row_position = np.int64(order[np.uint64(start + rank)])
        if row_position >= num:
            continue
        position = start + row_position
        if not weight_at(sums, start, position) > 0.0:
            return taken
        if is_eligible(rule, np.int64(indices[np.uint64(position)])):
            positions[np.uint64(first + taken)] = position
            taken += 1
    return TOO_FAR if taken < count and ranks < degree else taken


@kernel
def select_heaviest(
    rule: Filter, is_filtered: bool, indices: np.ndarray, weights: int, kind: int, start: int, num: int, count: int,
    variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """As ``take_heaviest`` and ``take_heaviest_eligible``, from the eligible edges alone.

    Args:
        rule: The node's.
        is_filtered: Whether some of the edges may not be drawn.
        indices: uint32 or int64[edges], its part's.
        weights: Address of the part's weights.
        kind: ``weight_kind`` of their dtype; not ``UNREADABLE``.
        start: As there.
        num: As there.
        count: The most to take, 1 or more.
        variates: uint64[count] or more, scratch.
        positions: As there.
        first: As there.

    Returns:
        How many were taken.
    """
    size = 0
    for position in range(start, start + num):
        weight = stored_weight(weights, kind, position)
        if not weight > 0.0:
            continue
        # The heaviest come first, as the smallest variates do.
        variate = ~ordered_bits(weight)
        if size == count and variate >= variates[0]:
            continue
        if not is_filtered or is_eligible(rule, np.int64(indices[np.uint64(position)])):
            size = offer(variates, positions, first, size, count, variate, position)
    sort_by_variate(variates, positions, first, size)
    return size
