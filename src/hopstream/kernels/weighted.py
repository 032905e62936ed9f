"""Draws edges in proportion to their weights by running sums, and reads stored weights.

[Algorithm] With replacement: binary search of a row's running sums. Without replacement: successive sampling; every
    draw is in proportion to the weights of the undrawn edges. Up to half of the row's weight is drawn by rejection:
    draw from all edges until one is new. Draws are independent, so an accepted draw has the distribution of the undrawn
    edges. Further draws come from the gaps between the drawn edges, whose weights are differences of running sums. One
    pass over the stored weights replaces them in three cases: in short rows from the start; when draws from gaps would
    cost more than the pass; and when the undrawn weight is too small for exact differences. The pass takes the smallest
    exponential variates divided by weights, which have the same distribution.
    Rows with at most ``count`` edges of weight give all of these, found by galloping over the running sums, so that a
    million edges without weight cost 20 steps.
    Source: Efraimidis, Spirakis, "Weighted random sampling with a reservoir", IPL 2006; Wong, Easton, "An efficient
    method for weighted sampling without replacement", SIAM Journal on Computing 1980.
[Cost] Per draw a binary search, O(log num), or two on average with rejections: each draw is accepted with probability
    1/2 or more, so ``MAX_REJECTIONS`` in a row have probability 2**-64; then a gap is drawn from. O(drawn) to keep the
    drawn edges sorted, and again for the gaps, so O(count**2) or O(num), whichever is less. Four searches are
    interleaved to share memory latency.
[Not chosen] Alias tables alone: they are faster if few edges of a row are drawn and most of the row is eligible, and
    are used there (``alias``, ``uses_alias``). Otherwise, too many draws are rejected: for a short prefix of a row, for
    many edges, or if few edges have most of the weight. Exponential variates always: O(num) per hub and batch.
    Rejection without a bound: an edge with 1 - 1e-9 of the weight takes 1e9 turns.

``add_weight`` makes the running sums: they rise exactly at edges with weight. A difference of running sums has an error
of up to 2**-53 of the row's weight per edge of the row. Gaps are used only if this error is below ``2**-17`` of the
undrawn weight (``REST_PER_EDGE``). So the probability of every draw is exact to 1e-5 for any weights, and much more
exact unless most of a row's weight is drawn.

[Algorithm] Weights are read from the part, in their stored dtype. Kernels take the address and the index of the dtype
    in ``WEIGHT_DTYPES``, so that one compiled kernel serves all dtypes.
[Cost] A chain of comparisons with the same outcome for a whole row, beside the read.
[Not chosen] Differences of running sums: they are arbitrary for an edge stored after one that is 1e16 times as heavy.
    The array itself as an argument: every kernel would be compiled once per dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN, mix64
from hopstream.kernels.memory import ZERO, array_at
from hopstream.kernels.neighbors import FLOYD_ALWAYS
from hopstream.kernels.reals import fraction, natural_log, number_of, open_fraction, ordered_bits
from hopstream.kernels.smallest import insert_position, offer, sort_positions

WEIGHT_DTYPES = (
    "float64", "float32", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"
)  # fmt: skip
"""Dtypes of readable weights; the index of a dtype is its kind."""
FLOAT64 = 0
UNREADABLE = -1
"""Kind of other weights (float16), which kernels know only by their order and their running sums."""


def weight_kind(dtype: np.dtype[Any] | None) -> int:
    """Return the kind of a dtype of weights, for kernels; ``UNREADABLE`` for other dtypes and for None."""
    return WEIGHT_DTYPES.index(dtype.name) if dtype is not None and dtype.name in WEIGHT_DTYPES else UNREADABLE


@inlined
def stored_weight(address: int, kind: int, position: int) -> float:
    """Read a weight at a position of the array at ``address``; ``kind`` is an index of ``WEIGHT_DTYPES``."""
    place, num = np.uint64(position), position + 1
    weight = 0.0
    if kind == 0:
        weight = array_at(address, num, np.float64)[place]
    elif kind == 1:
        weight = np.float64(array_at(address, num, np.float32)[place])
    elif kind == 2:
        weight = np.float64(array_at(address, num, np.int64)[place])
    elif kind == 3:
        weight = np.float64(array_at(address, num, np.int32)[place])
    elif kind == 4:
        weight = np.float64(array_at(address, num, np.int16)[place])
    elif kind == 5:
        weight = np.float64(array_at(address, num, np.int8)[place])
    elif kind == 6:
        weight = np.float64(array_at(address, num, np.uint64)[place])
    elif kind == 7:
        weight = np.float64(array_at(address, num, np.uint32)[place])
    elif kind == 8:
        weight = np.float64(array_at(address, num, np.uint16)[place])
    elif kind == 9:
        weight = np.float64(array_at(address, num, np.uint8)[place])
    return weight


MAX_REJECTIONS = 64
LANES = 4
PASS_FACTOR = 2
REST_PER_EDGE = 2.0**-36
"""Undrawn share of a row's weight, per edge of the row, from which on differences of sums are exact enough."""
WAIT_SCALE = 2.0**60
SCALED_TOTAL = 2.0**960
"""Weights of rows with a smaller total are scaled up, so that no variate is infinite; powers of 2 keep the order."""
PASS_SALT = np.uint64(0x6A09E667F3BCC909)


@inlined
def add_weight(running_sum: float, weight: float) -> float:
    """Return the next running sum of a row; it rises exactly if the weight is above 0, however small."""
    if weight <= 0.0:
        return running_sum
    return max(running_sum + weight, np.nextafter(running_sum, np.inf))


@inlined
def weight_at(sums: np.ndarray, start: int, position: int) -> float:
    """Return the weight of an edge by running sums of its row from ``start``; exactly 0.0 without weight."""
    if position == start:
        return sums[np.uint64(position)]
    return sums[np.uint64(position)] - sums[np.uint64(position - 1)]


@inlined
def edge_weight(sums: np.ndarray, weights: int, kind: int, start: int, position: int) -> float:
    """Return the same as ``weight_at``, but exact if weights are readable."""
    if kind < 0:
        return weight_at(sums, start, position)
    return stored_weight(weights, kind, position)


@inlined
def find_above(sums: np.ndarray, low: int, num: int, base: float, x: float) -> int:
    """Find the first position from ``low`` with a running sum minus ``base`` above ``x``, else the last.

    An edge that is found to be above has weight, because the running sum before it is smaller. ``num`` is 1 or more.
    """
    while num > 1:
        half = num >> 1
        low += half * np.int64(sums[np.uint64(low + half - 1)] - base <= x)
        num -= half
    return low


@inlined
def _find_weighted(sums: np.ndarray, low: int, num: int, base: float, weight: float, x: float) -> int:
    """Return the same as ``find_above`` for edges of total ``weight``, but never an edge without weight."""
    position = find_above(sums, low, num, base, x)
    if not sums[np.uint64(position)] - base > x:
        position = find_above(sums, low, num, base, np.nextafter(weight, 0.0))
    return position


@inlined
def _share(stream: np.uint64, turn: int, total: float) -> float:
    return fraction(mix64(stream + np.uint64(turn) * GOLDEN)) * total


@inlined
def _find_four(
    stream: np.uint64, turn: int, sums: np.ndarray, start: int, num: int, total: float
) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Draw four turns from a whole row, by interleaved searches that share memory latency."""
    x0, x1 = _share(stream, turn, total), _share(stream, turn + 1, total)
    x2, x3 = _share(stream, turn + 2, total), _share(stream, turn + 3, total)
    low0 = low1 = low2 = low3 = np.int64(start)
    left = num
    while left > 1:
        half = left >> 1
        low0 += half * np.int64(sums[np.uint64(low0 + half - 1)] <= x0)
        low1 += half * np.int64(sums[np.uint64(low1 + half - 1)] <= x1)
        low2 += half * np.int64(sums[np.uint64(low2 + half - 1)] <= x2)
        low3 += half * np.int64(sums[np.uint64(low3 + half - 1)] <= x3)
        left -= half
    least = min(
        min(sums[np.uint64(low0)] - x0, sums[np.uint64(low1)] - x1),
        min(sums[np.uint64(low2)] - x2, sums[np.uint64(low3)] - x3),
    )
    if not least > 0.0:
        low0 = _find_weighted(sums, start, num, 0.0, total, x0)
        low1 = _find_weighted(sums, start, num, 0.0, total, x1)
        low2 = _find_weighted(sums, start, num, 0.0, total, x2)
        low3 = _find_weighted(sums, start, num, 0.0, total, x3)
    return low0, low1, low2, low3


@inlined
def next_weighted(sums: np.ndarray, position: int, end: int, running_sum: float) -> int:
    """Find the first edge with weight in ``[position, end)``, else ``end``, by a galloping search.

    ``running_sum`` is the sum before ``position``. O(1) if weights are common, O(log) over edges without weight.
    """
    step = 1
    while position < end and not sums[np.uint64(min(position + step, end) - 1)] > running_sum:
        position += step
        step *= 2
    if position >= end:
        return end
    return find_above(sums, position, min(step, end - position), 0.0, running_sum)


@kernel
def take_weighted(sums: np.ndarray, start: int, num: int, count: int, positions: np.ndarray, first: int) -> int:
    """Write the first ``count`` edges with weight, in stored order.

    Returns:
        Number of edges with weight; ``count + 1`` if there are more than ``count``.
    """
    end = start + num
    position = start
    running_sum = 0.0
    taken = 0
    while True:
        position = next_weighted(sums, position, end, running_sum)
        if position == end:
            return taken
        if taken == count:
            return count + 1
        positions[np.uint64(first + taken)] = position
        taken += 1
        running_sum = sums[np.uint64(position)]
        position += 1


@kernel
def draw_weighted(
    stream: np.uint64, sums: np.ndarray, weights: int, kind: int, start: int, num: int, count: int, is_replacing: bool,
    variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Write the positions of the edges that one node draws by weight.

    Args:
        stream: uint64 of ``node_stream``.
        sums: float64[edges], running sums that start from 0 in each row.
        weights: Address of the weights, in the order of ``sums``; not read with replacement.
        kind: ``weight_kind`` of their dtype; for ``UNREADABLE``, differences of running sums are used instead.
        start: Position of the row's first edge.
        num: Number of eligible edges, the first ones of the row.
        count: Number of edges to draw; -1 means all with weight.
        is_replacing: Draw with replacement; ignored if ``count`` is -1.
        variates: uint64[min(count, num)] or more, scratch; not used with replacement.
        positions: int64[n], out: ``positions[first:first + drawn]``; in the order of draws with replacement, else in
            stored order.
        first: See ``positions``.

    Returns:
        Number of drawn edges: ``count``, or fewer if fewer edges have weight; with replacement 0 if no edge has weight.
    """
    if num <= 0 or count == 0 or not sums[np.uint64(start + num - 1)] > 0.0:
        return 0
    if is_replacing and count > 0:
        total = sums[np.uint64(start + num - 1)]
        for turn in range(0, count, LANES):
            found = _find_four(stream, turn, sums, start, num, total)
            for lane in range(min(LANES, count - turn)):
                positions[np.uint64(first + turn + lane)] = found[lane]
        return count
    limit = num if count < 0 or count > num else count
    taken = take_weighted(sums, start, num, limit, positions, first)
    if taken <= limit:
        return taken
    if limit >= num // PASS_FACTOR or (limit > FLOYD_ALWAYS and limit * limit > 8 * num):
        return _draw_in_one_pass(stream, sums, weights, kind, start, num, limit, variates, positions, first, ZERO)
    return _draw_successively(stream, sums, weights, kind, start, num, limit, variates, positions, first, ZERO, ZERO)


@kernel
def draw_missing(
    stream: np.uint64, sums: np.ndarray, weights: int, kind: int, start: int, num: int, count: int,
    variates: np.ndarray, positions: np.ndarray, first: int, drawn: int, turn: int,
) -> int:  # fmt: skip
    """Complete draws without replacement that another method began.

    Args:
        stream: As for ``draw_weighted``.
        sums: As for ``draw_weighted``.
        weights: As for ``draw_weighted``.
        kind: As for ``draw_weighted``.
        start: As for ``draw_weighted``.
        num: As for ``draw_weighted``.
        count: Number of edges to draw in all, at most ``num``.
        variates: As for ``draw_weighted``.
        positions: As for ``draw_weighted``; ``positions[first:first + drawn]`` are drawn already, in any order.
        first: See ``positions``.
        drawn: See ``positions``.
        turn: The first unused turn of the stream.

    Returns:
        Number of drawn edges, as for ``draw_weighted``; they are in stored order.
    """
    weighted = 0
    position, running_sum = start, 0.0
    while weighted <= count:
        position = next_weighted(sums, position, start + num, running_sum)
        if position == start + num:
            return take_weighted(sums, start, num, count, positions, first)
        running_sum = sums[np.uint64(position)]
        position += 1
        weighted += 1
    sort_positions(positions, first, drawn)
    return _draw_successively(stream, sums, weights, kind, start, num, count, variates, positions, first, drawn, turn)


@kernel
def _draw_in_one_pass(
    stream: np.uint64, sums: np.ndarray, weights: int, kind: int, start: int, num: int, count: int,
    variates: np.ndarray, positions: np.ndarray, first: int, drawn: int,
) -> int:  # fmt: skip
    """Complete draws to ``count`` in one pass; ``positions[first:first + drawn]`` is drawn and sorted."""
    heap = first + drawn
    next_drawn = 0
    size = ZERO
    scale = WAIT_SCALE if sums[np.uint64(start + num - 1)] < SCALED_TOTAL else 1.0
    longest = np.inf
    for i in range(num):
        weight = edge_weight(sums, weights, kind, start, start + i) * scale
        if not weight > 0.0:
            continue
        if next_drawn < drawn and positions[np.uint64(first + next_drawn)] == start + i:
            next_drawn += 1
            continue
        u = open_fraction(mix64((stream ^ PASS_SALT) + np.uint64(i) * GOLDEN))
        # -log(u) is at least 1 - u, so most edges need no logarithm.
        if 1.0 - u >= longest * weight:
            continue
        wait = ordered_bits(-natural_log(u) / weight)
        size = offer(variates, positions, heap, size, count - drawn, wait, start + i)
        if size == count - drawn:
            longest = number_of(variates[0])
    sort_positions(positions, first, drawn + size)
    return drawn + size


@kernel
def _draw_successively(
    stream: np.uint64, sums: np.ndarray, weights: int, kind: int, start: int, num: int, count: int,
    variates: np.ndarray, positions: np.ndarray, first: int, drawn: int, turn: int,
) -> int:  # fmt: skip
    """Complete draws to ``count`` one by one; ``drawn`` edges are drawn already, in stored order."""
    total = sums[np.uint64(start + num - 1)]
    drawn_weight = 0.0
    for k in range(first, first + drawn):
        drawn_weight += weight_at(sums, start, positions[np.uint64(k)])
    rejections = 0
    block = turn - LANES
    found = (start, start, start, start)
    while drawn < count:
        if drawn_weight > 0.5 * total or rejections == MAX_REJECTIONS:
            if num <= drawn * (count - drawn):
                return _draw_in_one_pass(
                    stream, sums, weights, kind, start, num, count, variates, positions, first, drawn
                )
            rest = _undrawn_weight(sums, start, num, positions, first, drawn)
            if kind >= 0 and rest < total * num * REST_PER_EDGE:
                return _draw_in_one_pass(
                    stream, sums, weights, kind, start, num, count, variates, positions, first, drawn
                )
            u = fraction(mix64(stream + np.uint64(turn) * GOLDEN))
            position = _find_undrawn(u, rest, sums, start, num, positions, first, drawn)
            if position < 0:
                break
        else:
            if turn - block >= LANES:
                block = turn
                found = _find_four(stream, turn, sums, start, num, total)
            position = found[turn - block]
        turn += 1
        rejections += 1
        if insert_position(position, positions, first, drawn):
            drawn_weight += weight_at(sums, start, position)
            drawn += 1
            rejections = 0
    return drawn


@kernel
def _undrawn_weight(sums: np.ndarray, start: int, num: int, positions: np.ndarray, first: int, drawn: int) -> float:
    """Return the total weight of the gaps between the drawn positions."""
    rest = 0.0
    for k in range(drawn + 1):
        rest += max(_gap(sums, start, num, positions, first, drawn, k)[3], 0.0)
    return rest


@kernel
def _find_undrawn(
    u: float, rest: float, sums: np.ndarray, start: int, num: int, positions: np.ndarray, first: int, drawn: int
) -> int:
    """Find the edge at the fraction ``u`` of the total weight ``rest`` of all gaps, or -1."""
    x = u * rest
    last = (-1, 0, 0.0, 0.0)
    for k in range(drawn + 1):
        low, width, base, weight = _gap(sums, start, num, positions, first, drawn, k)
        if weight > 0.0:
            if x < weight:
                return _find_weighted(sums, low, width, base, weight, x)
            x -= weight
            last = low, width, base, weight
    if last[0] < 0:
        return -1
    return _find_weighted(sums, last[0], last[1], last[2], last[3], x + last[3])


@inlined
def _gap(
    sums: np.ndarray, start: int, num: int, positions: np.ndarray, first: int, drawn: int, k: int
) -> tuple[int, int, float, float]:
    """Return first position, length, sum before, and weight of the gap before the ``k``-th drawn position."""
    low = start
    base = 0.0
    if k > 0:
        low = positions[np.uint64(first + k - 1)] + 1
        base = sums[np.uint64(low - 1)]
    stop = start + num
    if k < drawn:
        stop = positions[np.uint64(first + k)]
    if stop <= low:
        return low, 0, base, 0.0
    return low, stop - low, base, sums[np.uint64(stop - 1)] - base
