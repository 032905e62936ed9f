"""Draws the heaviest of each node's eligible edges.

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

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import (
    ROWS_AHEAD,
    AddressTables,
    Draws,
    Filter,
    NodeFilter,
    Nodes,
    Scratch,
    Weights,
    is_eligible,
    is_filtered,
    node_filter,
    prefetch_row,
    view,
)
from hopstream.kernels.memory import ZERO, array_at, prefetch_address
from hopstream.kernels.reals import ordered_bits
from hopstream.kernels.smallest import offer, sort_by_variate
from hopstream.kernels.weighted import stored_weight, weight_at

TOO_FAR = -1
WEIGHTS_AHEAD = 4
ORDER_BYTES = 4
WEIGHT_BYTES = 8


@inlined
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
    own: NodeFilter, indices: np.ndarray, order: np.ndarray, sums: np.ndarray, start: int, num: int,
    degree: int, ranks: int, count: int, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Write the positions of a row's heaviest eligible edges, heaviest first; never those without weight.

    Args:
        own: The node's filter.
        indices: uint32 or int64[edges], its part's.
        order: uint32[edges], positions inside the row, heaviest first and equal weights in stored order.
        sums: float64[edges], running sums as for ``draw_weighted``.
        start: Position of the row's first edge.
        num: Number of edges that are there at the node's time, the first ones of the row.
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
        if row_position >= num:
            continue
        if is_filtered(own) and not is_eligible(own, np.int64(indices[np.uint64(start + row_position)])):
            continue
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
def select_heaviest(
    own: NodeFilter, indices: np.ndarray, weights: int, kind: int, start: int, num: int, count: int,
    variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """As ``take_heaviest``, from the eligible edges alone.

    Args:
        own: As there.
        indices: As there.
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
    size = ZERO
    for position in range(start, start + num):
        weight = stored_weight(weights, kind, position)
        if not weight > 0.0:
            continue
        # The heaviest come first, as the smallest variates do.
        variate = ~ordered_bits(weight)
        if size == count and variate >= variates[0]:
            continue
        if not is_filtered(own) or is_eligible(own, np.int64(indices[np.uint64(position)])):
            size = offer(variates, positions, first, size, count, variate, position)
    sort_by_variate(variates, positions, first, size)
    return size


@kernel
def draw_heaviest(
    tables: AddressTables, source: Weights, rule: Filter, draws: Draws, nodes: Nodes, scratch: Scratch, begin: int,
    positions: np.ndarray, written: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Draw each node's edges; arguments and answer as for ``draw_edges``."""
    sums, orders, weights, kind = source.sums, source.orders, source.weights, source.kind
    indices, count = tables.indices, draws.count
    ids, trees, parts, starts = nodes.ids, nodes.trees, nodes.parts, nodes.starts
    degrees, row_degrees, counts = nodes.degrees, nodes.row_degrees, nodes.counts
    out, variates = view(positions, np.int64), view(scratch.variates, np.uint64)
    num_ids = len(ids)
    for i in range(begin, num_ids):
        if i + ROWS_AHEAD < num_ids:
            ahead = i + ROWS_AHEAD
            part = np.int64(parts[ahead])
            prefetch_row(orders[part, 0] + starts[ahead] * ORDER_BYTES, degrees[ahead] * ORDER_BYTES)
        if i + WEIGHTS_AHEAD < num_ids:
            # Whether the last edge that is wanted has weight tells whether all have.
            ahead = i + WEIGHTS_AHEAD
            part = np.int64(parts[ahead])
            rank = degrees[ahead] - 1 if count < 0 else min(count, degrees[ahead]) - 1
            if rank >= 0:
                part_order = array_at(orders[part, 0], orders[part, 1], np.uint32)
                last = starts[ahead] + np.int64(part_order[np.uint64(starts[ahead] + rank)])
                prefetch_address(sums[part, 0] + last * WEIGHT_BYTES)
        part = np.int64(parts[i])
        start, num, degree = starts[i], degrees[i], row_degrees[i]
        if num == 0 or count == 0:
            counts[i] = 0
            continue
        most = num if count < 0 or count > num else count
        if written + most > len(out):
            return i, written, written + most, 0
        ranks = num_ranks(num, degree, most, kind)
        if ranks < degree and most > len(variates):
            return i, written, 0, most
        part_order = array_at(orders[part, 0], orders[part, 1], np.uint32)
        part_sums = array_at(sums[part, 0], sums[part, 1], np.float64)
        own = node_filter(rule, ids[i], trees, i)
        part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
        taken = take_heaviest(own, part_indices, part_order, part_sums, start, num, degree, ranks, most, out, written)
        if taken == TOO_FAR:
            taken = select_heaviest(own, part_indices, weights[part, 0], kind, start, num, most, variates, out, written)
        counts[i] = taken
        written += taken
    return num_ids, written, 0, 0
