"""Draws the heaviest of each node's eligible edges.

[Algorithm] The dataset stores the positions of a row by weight; a walk visits them from the heaviest on until enough
    are eligible. If few edges of a row are within the time limit, most steps find nothing. So the walk stops after as
    many steps as a selection costs; a heap of ``count`` then selects the heaviest of the eligible edges.
[Cost] O(count) if all edges are eligible; about ``count * degree / num`` if some are and weights do not depend on time;
    never more than O(num * log(count)), nor than O(degree).
[Not chosen] Selecting by differences of running sums: rounding makes equal weights differ, and equal weights must keep
    the stored order. Selecting always: if half of a hub is eligible, the walk ends after a few steps. A stored rank per
    edge: 4 bytes for information that the weights have.
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
    """Return the most steps of the walk; beyond them, selecting ``count`` of ``num`` edges costs less."""
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
    """Write the positions of a row's heaviest eligible edges, heaviest first, without edges of weight 0.

    Args:
        own: The node's filter.
        indices: uint32 or int64[edges], ``indices`` of its part.
        order: uint32[edges], positions inside the row, heaviest first and equal weights in stored order.
        sums: float64[edges], running sums as for ``draw_weighted``.
        start: Position of the row's first edge.
        num: Number of edges within the node's time limit, the first ones of the row.
        degree: Number of edges of the row.
        ranks: Most steps of the walk, at most ``degree``.
        count: Most edges to take; -1 means all with weight.
        positions: int64[n], out: ``positions[first:first + taken]``.
        first: See ``positions``.

    Returns:
        Number of edges taken; ``TOO_FAR`` if the walk ended too early to know it.
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
    # Edges without weight come last; mostly there are none, which one test shows.
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
    """Do the same as ``take_heaviest``, by a selection from the edges within the time limit.

    Args:
        own: As for ``take_heaviest``.
        indices: As for ``take_heaviest``.
        weights: Address of the part's weights.
        kind: ``weight_kind`` of their dtype; not ``UNREADABLE``.
        start: As for ``take_heaviest``.
        num: As for ``take_heaviest``.
        count: Most edges to take, 1 or more.
        variates: uint64[count] or more, scratch.
        positions: As for ``take_heaviest``.
        first: As for ``take_heaviest``.

    Returns:
        Number of edges taken.
    """
    size = ZERO
    for position in range(start, start + num):
        weight = stored_weight(weights, kind, position)
        if not weight > 0.0:
            continue
        # Complemented, because ``offer`` keeps the smallest variates.
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
    """Draw each node's edges; arguments and results as for ``draw_edges``."""
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
            # ``take_heaviest`` reads the running sum of the last wanted edge: if that edge has weight, all have.
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
