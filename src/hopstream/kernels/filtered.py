"""Which edges does a node draw, where some of its neighbours are excluded or only some are candidates?

[Algorithm] The eligible edges are listed and drawn from like a row of their own. Two ways out spare hubs the list:
    ``last`` and ``top_k`` (in ``heaviest``) walk along the row, from its end or from its heaviest edge, until they have
    enough; and few draws of a long row with excluded neighbours (``skips``) are made from the whole row, in rounds of
    as many as are still missing. A draw of an excluded edge, or without replacement of one already drawn, is thrown
    away, which leaves the law of the others as it is. After ``MAX_ROUNDS`` the rest is drawn from a list after all.
[Cost] O(degree) probes of sets in the second cache; O(count) where rows are skipped or walked along.
[Not chosen] Listing always: every batch of links excludes edges of hubs, and hubs would be scanned in every batch.
    Drawing ``count`` and as many more as are excluded: parallel edges make that number unknown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.eligible import has_id, has_pair, passes
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.labor import labor_variate
from hopstream.kernels.memory import prefetch_address
from hopstream.kernels.neighbors import draw_positions
from hopstream.kernels.reals import quarter_turn
from hopstream.kernels.smallest import offer, sort_positions
from hopstream.kernels.stored_weights import FLOAT64, UNREADABLE
from hopstream.kernels.weighted import ZERO, add_weight, draw_weighted, edge_weight

SCANNED = 512
FEW = 64
MAX_ROUNDS = 8


class Filter(NamedTuple):
    """Which neighbours one node may draw; the sets are those of ``eligible``.

    Attributes:
        node: The node's id.
        tree: What its candidates begin with: its tree, shifted to above ids; 0 where there is one tree.
        pairs: Address of the set of excluded pairs.
        num_pairs: Its length; 0 where the node has no excluded neighbours.
        pair_shift: See ``set_shift``.
        candidates: Address of the set of candidates.
        num_candidates: Its length; 0 where all neighbours are.
        candidate_shift: See ``set_shift``.
        sieve: Address of the sieve of candidates.
        num_words: Its length.
        sieve_shift: See ``sieve_shift``.
    """

    node: int
    tree: int
    pairs: int
    num_pairs: int
    pair_shift: np.uint64
    candidates: int
    num_candidates: int
    candidate_shift: np.uint64
    sieve: int
    num_words: int
    sieve_shift: np.uint64


@njit(inline="always")
def skips(num: int, count: int, has_candidates: bool) -> bool:
    """Whether a node's draws are made from its whole row, and those of excluded edges thrown away."""
    return not has_candidates and num > SCANNED and 0 <= count <= FEW


@njit(inline="always")
def is_eligible(rule: Filter, neighbor: int) -> bool:
    """Whether the node may draw an edge to a neighbour."""
    if rule.num_candidates > 0:
        candidate = rule.tree | neighbor
        if not passes(rule.sieve, rule.num_words, rule.sieve_shift, candidate):
            return False
        if not has_id(rule.candidates, rule.num_candidates, rule.candidate_shift, candidate):
            return False
    return rule.num_pairs == 0 or not has_pair(rule.pairs, rule.num_pairs, rule.pair_shift, rule.node, neighbor)


@kernel
def count_eligible(rule: Filter, indices: np.ndarray, start: int, num: int) -> int:
    """How many of the ``num`` edges from ``start`` on a node may draw; ``indices`` are its part's."""
    total = 0
    for position in range(start, start + num):
        total += np.int64(is_eligible(rule, np.int64(indices[np.uint64(position)])))
    return total


@kernel
def list_eligible(
    rule: Filter, indices: np.ndarray, start: int, num: int, drawn: np.ndarray, first: int, num_drawn: int,
    listed: np.ndarray,
) -> int:  # fmt: skip
    """Write the positions of the edges that a node may draw, without those drawn already.

    Args:
        rule: The node's.
        indices: uint32 or int64[edges], its part's.
        start: Its first edge.
        num: Its number of edges.
        drawn: int64[n]; ``drawn[first:first + num_drawn]`` are positions drawn already, ascending.
        first: See there.
        num_drawn: See there.
        listed: int64[capacity], out.

    Returns:
        How many there are; -1 where they are more than the capacity.
    """
    size = 0
    behind = first
    for position in range(start, start + num):
        if behind < first + num_drawn and drawn[np.uint64(behind)] == position:
            behind += 1
            continue
        if is_eligible(rule, np.int64(indices[np.uint64(position)])):
            if size == len(listed):
                return -1
            listed[np.uint64(size)] = position
            size += 1
    return size


@kernel
def sum_listed(
    sums: np.ndarray, weights: int, kind: int, start: int, listed: np.ndarray, num_listed: int,
    listed_weights: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Write the weights of some edges of a row, and the running sums of these alone.

    Args:
        sums: float64[edges], running sums of the part.
        weights: As for ``draw_weighted``.
        kind: As there.
        start: First edge of the row.
        listed: int64[num_listed or more], positions of the edges, ascending.
        num_listed: See there.
        listed_weights: float64[num_listed or more], out.
        out: float64[num_listed or more], out.
    """
    total = 0.0
    for i in range(num_listed):
        weight = edge_weight(sums, weights, kind, start, listed[np.uint64(i)])
        listed_weights[np.uint64(i)] = weight
        total = add_weight(total, weight)
        out[np.uint64(i)] = total


@kernel
def draw_listed(
    stream: np.uint64, is_weighted: bool, sums: np.ndarray, weights: int, num_listed: int, count: int, replaces: bool,
    listed: np.ndarray, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Draw from a list of edges.

    Args:
        stream: The node's stream of draws.
        is_weighted: Draw by weight, not uniformly.
        sums: float64[num_listed or more], running sums of the listed edges' weights, where those count.
        weights: Address of the listed edges' weights, float64.
        num_listed: Length of the list.
        count: How many to draw; -1 means all.
        replaces: Draw with replacement; False where ``count`` is -1.
        listed: int64[num_listed or more], positions of the edges.
        variates: As for ``draw_weighted``.
        positions: int64[n], out: ``positions[first:first + drawn]``.
        first: See there.

    Returns:
        How many were drawn.
    """
    if num_listed == 0:
        return 0
    if is_weighted:
        drawn = draw_weighted(
            stream, sums, weights, np.int64(FLOAT64), ZERO, num_listed, count, replaces, variates, positions, first
        )
    else:
        drawn = count
        if count < 0 or (count > num_listed and not replaces):
            drawn = num_listed
        draw_positions(stream, 0, num_listed, drawn, replaces, positions, first)
    for k in range(first, first + drawn):
        positions[np.uint64(k)] = listed[np.uint64(positions[np.uint64(k)])]
    return drawn


@kernel
def draw_skipping(
    stream: np.uint64, rule: Filter, indices: np.ndarray, base: int, item_bytes: int, is_weighted: bool,
    sums: np.ndarray, start: int, num: int, count: int, replaces: bool, tried: np.ndarray, variates: np.ndarray,
    positions: np.ndarray, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Draw from a whole row and throw away what may not be drawn, for so many rounds at most.

    Args:
        stream: The node's stream of draws.
        rule: The node's.
        indices: uint32 or int64[edges], its part's.
        base: Address of ``indices``.
        item_bytes: Bytes of one of them.
        is_weighted: Draw by weight, not uniformly.
        sums: float64[edges], running sums of the part, where weights count.
        start: The node's first edge.
        num: Its number of edges.
        count: How many to draw.
        replaces: Draw with replacement.
        tried: int64[count or more], scratch.
        variates: As for ``draw_weighted``.
        positions: int64[n], out: ``positions[first:first + drawn]``; ascending without replacement.
        first: See there.

    Returns:
        How many were drawn, and how many turns of the stream that took.
    """
    taken = 0
    turns = 0
    for _ in range(MAX_ROUNDS):
        missing = count - taken
        if missing == 0:
            break
        own = stream + np.uint64(turns) * GOLDEN
        size = missing
        if is_weighted:
            kind, is_replacing = np.int64(UNREADABLE), np.bool_(True)
            size = draw_weighted(own, sums, ZERO, kind, start, num, missing, is_replacing, variates, tried, ZERO)
        else:
            draw_positions(own, start, num, missing, True, tried, 0)
        turns += missing
        for k in range(size):
            prefetch_address(base + tried[np.uint64(k)] * item_bytes)
        for k in range(size):
            position = tried[np.uint64(k)]
            is_new = is_eligible(rule, np.int64(indices[np.uint64(position)]))
            if not replaces:
                for earlier in range(first, first + taken):
                    is_new = is_new and positions[np.uint64(earlier)] != position
            if is_new:
                positions[np.uint64(first + taken)] = position
                taken += 1
    if not replaces:
        sort_positions(positions, first, taken)
    return taken, turns


@kernel
def take_last(
    rule: Filter, indices: np.ndarray, start: int, num: int, count: int, positions: np.ndarray, first: int
) -> int:
    """Write the last ``count`` edges that a node may draw, in stored order; return how many there are.

    Args:
        rule: The node's.
        indices: uint32 or int64[edges], its part's.
        start: Its first edge.
        num: Its number of edges.
        count: The most to take.
        positions: int64[n], out.
        first: Where to begin in ``positions``.
    """
    taken = 0
    position = start + num
    while position > start and taken < count:
        position -= 1
        if is_eligible(rule, np.int64(indices[np.uint64(position)])):
            positions[np.uint64(first + taken)] = position
            taken += 1
    for k in range(taken >> 1):
        other = first + taken - 1 - k
        position = positions[np.uint64(first + k)]
        positions[np.uint64(first + k)] = positions[np.uint64(other)]
        positions[np.uint64(other)] = position
    return taken


@kernel
def draw_labor_eligible(
    rule: Filter, indices: np.ndarray, keys: np.ndarray, start: int, num: int, count: int, first_seed: np.uint64,
    second_seed: np.uint64, share: float, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """As ``draw_labor``, of the edges that a node may draw.

    Args:
        rule: The node's.
        indices: uint32 or int64[edges], its part's.
        keys: As there.
        start: As there.
        num: As there.
        count: The most to take.
        first_seed: As there.
        second_seed: As there.
        share: As there.
        variates: uint64[min(count, num)] or more, scratch.
        positions: As there.
        first: As there.

    Returns:
        How many were taken.
    """
    if count == 0:
        return 0
    cosine, sine = quarter_turn(share)
    size = 0
    for position in range(start, start + num):
        if is_eligible(rule, np.int64(indices[np.uint64(position)])):
            key = np.int64(keys[np.uint64(position)])
            variate = labor_variate(key, position - start, np.uint64(first_seed), np.uint64(second_seed), cosine, sine)
            size = offer(variates, positions, first, size, count, variate, position)
    sort_positions(positions, first, size)
    return size
