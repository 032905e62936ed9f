"""Draws eligible edges uniformly or by weight, where neighbours are excluded or only candidates count.

[Algorithm] The eligible edges are listed, and the list is drawn from like a row. Hubs need no list: few draws of a long
    row with excluded neighbours (``skips``) come from the whole row, in rounds of as many draws as are missing. Draws
    of excluded edges are rejected, and so are repeated draws without replacement; the distribution of the others does
    not change. After ``MAX_ROUNDS`` the rest is drawn from a list.
[Cost] O(degree) probes of sets in the L2 cache; O(count) for draws from the whole row.
[Not chosen] Listing always: every batch of links excludes edges of hubs, and hubs would be scanned in every batch.
    Drawing more than ``count`` by the number of excluded edges: parallel edges make that number unknown.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import (
    NodeFilter,
    Scratch,
    is_eligible,
    list_eligible,
    most_drawn,
)
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import ZERO, prefetch_address
from hopstream.kernels.neighbors import draw_positions
from hopstream.kernels.smallest import sort_positions
from hopstream.kernels.weighted import FLOAT64, UNREADABLE, add_weight, draw_weighted, edge_weight

SCANNED = 512
FEW = 64
MAX_ROUNDS = 8


@inlined
def skips(num: int, count: int, has_candidates: bool) -> bool:
    """Return whether a node draws from its whole row and rejects excluded edges."""
    return not has_candidates and num > SCANNED and 0 <= count <= FEW


@kernel
def sum_listed(
    sums: np.ndarray, weights: int, kind: int, start: int, listed: np.ndarray, num_listed: int,
    listed_weights: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Write the weights of listed edges of a row, and their running sums.

    Args:
        sums: float64[edges], running sums of the part.
        weights: As for ``draw_weighted``.
        kind: As for ``draw_weighted``.
        start: Position of the row's first edge.
        listed: int64[num_listed or more], positions of the edges, ascending.
        num_listed: Length of the list.
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
    stream: np.uint64, sums: np.ndarray | None, weights: int, num_listed: int, count: int, replaces: bool,
    listed: np.ndarray, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Draw from a list of edges.

    Args:
        stream: The node's stream of draws.
        sums: float64[num_listed or more], running sums of the listed edges' weights; None to draw uniformly.
        weights: Address of the listed edges' weights, float64.
        num_listed: Length of the list.
        count: Number of edges to draw; -1 means all.
        replaces: Draw with replacement; False if ``count`` is -1.
        listed: int64[num_listed or more], positions of the edges.
        variates: As for ``draw_weighted``.
        positions: int64[n], out: ``positions[first:first + drawn]``.
        first: See ``positions``.

    Returns:
        Number of drawn edges.
    """
    if num_listed == 0:
        return 0
    if sums is None:
        drawn = count
        if count < 0 or (count > num_listed and not replaces):
            drawn = num_listed
        draw_positions(stream, 0, num_listed, drawn, replaces, positions, first)
    else:
        drawn = draw_weighted(
            stream, sums, weights, np.int64(FLOAT64), ZERO, num_listed, count, replaces, variates, positions, first
        )
    for k in range(first, first + drawn):
        positions[np.uint64(k)] = listed[np.uint64(positions[np.uint64(k)])]
    return drawn


@kernel
def draw_skipping(
    own: NodeFilter, stream: np.uint64, indices: np.ndarray, base: int, sums: np.ndarray | None, start: int, num: int,
    count: int, replaces: bool, tried: np.ndarray, variates: np.ndarray, positions: np.ndarray, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Draw from a whole row and reject edges that are not eligible, for at most ``MAX_ROUNDS`` rounds.

    Args:
        own: The node's filter.
        stream: Its stream of draws.
        indices: uint32 or int64[edges], ``indices`` of its part.
        base: Address of ``indices``.
        sums: float64[edges], running sums of the part; None to draw uniformly.
        start: Position of the node's first edge.
        num: Number of its edges.
        count: Number of edges to draw.
        replaces: Draw with replacement.
        tried: int64[count or more], scratch.
        variates: As for ``draw_weighted``.
        positions: int64[n], out: ``positions[first:first + drawn]``; ascending without replacement.
        first: See ``positions``.

    Returns:
        Number of drawn edges, and number of used turns of the stream.
    """
    taken = turns = ZERO
    for _ in range(MAX_ROUNDS):
        missing = count - taken
        if missing == 0:
            break
        rest = stream + np.uint64(turns) * GOLDEN
        size = missing
        if sums is None:
            draw_positions(rest, start, num, missing, True, tried, 0)
        else:
            kind, is_replacing = np.int64(UNREADABLE), np.bool_(True)
            size = draw_weighted(rest, sums, ZERO, kind, start, num, missing, is_replacing, variates, tried, ZERO)
        turns += missing
        for k in range(size):
            prefetch_address(base + tried[np.uint64(k)] * indices.itemsize)
        for k in range(size):
            position = tried[np.uint64(k)]
            is_new = is_eligible(own, np.int64(indices[np.uint64(position)]))
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
def draw_eligible(
    own: NodeFilter, stream: np.uint64, indices: np.ndarray, base: int, sums: np.ndarray | None, weights: int,
    kind: int, start: int, num: int, count: int, replaces: bool, scratch: Scratch, positions: np.ndarray, first: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Draw the edges of one node that has a filter.

    Args:
        own: The node's filter.
        stream: Its stream of draws.
        indices: uint32 or int64[edges], ``indices`` of its part.
        base: Address of ``indices``.
        sums: float64[edges], running sums of the part; None to draw uniformly.
        weights: As for ``draw_weighted``.
        kind: As for ``draw_weighted``.
        start: Position of the node's first edge.
        num: Number of its edges.
        count: Number of edges to draw; -1 means all.
        replaces: Draw with replacement; False if ``count`` is -1.
        scratch: Memory for its edges.
        positions: int64[n], out: ``positions[first:first + taken]``.
        first: See ``positions``.

    Returns:
        taken: Number of drawn edges; -1 if memory must grow.
        num_positions: Required capacity of ``positions``, or 0.
        num_scratch: Required capacity of the scratch, or 0.
    """
    listed, variates = scratch.listed, scratch.variates
    is_skipping = skips(num, count, own.sets.num_candidates > 0)
    taken, turns, num_listed = 0, 0, num
    if not is_skipping:
        num_listed = list_eligible(own, indices, start, num, positions, first, ZERO, listed)
        if num_listed < 0:
            return -1, 0, 2 * len(listed)
    most = most_drawn(num_listed, count, replaces)
    if first + most > len(positions):
        return -1, first + most, 0
    if sums is not None and count >= 0 and not replaces and most > len(variates):
        return -1, 0, most
    if is_skipping:
        taken, turns = draw_skipping(
            own, stream, indices, base, sums, start, num, count, replaces, listed, variates, positions, first
        )
        if taken == count:
            return taken, 0, 0
        num_drawn = 0 if replaces else taken
        num_listed = list_eligible(own, indices, start, num, positions, first, num_drawn, listed)
        if num_listed < 0:
            return -1, 0, 2 * len(listed)
    rest = stream + np.uint64(turns) * GOLDEN
    missing, begin = count - taken, first + taken
    if sums is None:
        more = draw_listed(rest, None, ZERO, num_listed, missing, replaces, listed, variates, positions, begin)
    else:
        if num_listed > len(scratch.sums):
            return -1, 0, num_listed
        sum_listed(sums, weights, kind, start, listed, num_listed, scratch.weights, scratch.sums)
        address = np.int64(scratch.weights.ctypes.data)
        more = draw_listed(
            rest, scratch.sums, address, num_listed, missing, replaces, listed, variates, positions, begin
        )
    if is_skipping and not replaces:
        sort_positions(positions, first, taken + more)
    return taken + more, 0, 0
