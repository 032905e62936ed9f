"""Draws edges by weight in constant time per draw.

[Algorithm] An alias table: every edge of a row has a place of equal chance, which it shares with one heavier edge. A
    draw takes a place, and one more number tells which of the two. A draw of an edge that is not eligible, or without
    replacement of one that is drawn already, is thrown away, which leaves the law of the others as it is: successive
    sampling. After ``MAX_TURNS`` turns per edge wanted the caller draws what is missing otherwise.
    Source: Walker, "An efficient method for generating discrete random variables with general distributions", ACM
    TOMS 1977; Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991.
[Cost] One cache miss per draw, whose address is known from the stream alone, so that it can be asked for some nodes
    ahead. 8 bytes per edge on disk. Building: three passes over a row.
[Not chosen] Binary search of running sums: a miss per halving of the row, one after the other. Thresholds as float64:
    16 bytes per edge; 32 bits are off by less than 2**-32 of an average edge's chance.

An entry is ``threshold << 32 | alias``: with the chance ``threshold / 2**32`` the place is its own edge's, else that of
the edge at position ``alias`` of the row. An edge without weight has threshold 0 and is nobody's alias.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN, high_product, mix64
from hopstream.kernels.memory import prefetch_address
from hopstream.kernels.smallest import drop_repeated, insert_position, sort_few

ENTRY_BYTES = 8
MAX_TURNS = 4
"""Turns per edge wanted, before draws without replacement are given up."""
HALF = np.uint64(32)
ALIAS_MASK = np.uint64(0xFFFFFFFF)
SCALE = 4294967296.0
WEIGHTLESS = ALIAS_MASK
"""Entry of a row in which no edge has weight: its alias is outside every row."""


@kernel
def build_aliases(
    offsets: np.ndarray, weights: np.ndarray, scaled: np.ndarray, stack: np.ndarray, entries: np.ndarray
) -> None:
    """Write the alias table of each row; rows without weight have entries ``WEIGHTLESS``.

    Args:
        offsets: int64[num_rows + 1], row ``r`` is ``[offsets[r], offsets[r + 1])``; from 0.
        weights: float64[num_edges], finite, 0 or more.
        scaled: float64[largest degree], scratch.
        stack: uint32[largest degree], scratch.
        entries: uint64[num_edges], out.
    """
    for row in range(len(offsets) - 1):
        start, degree = offsets[row], offsets[row + 1] - offsets[row]
        total = 0.0
        heaviest = 0
        for i in range(degree):
            total += weights[start + i]
            if weights[start + i] > weights[start + heaviest]:
                heaviest = i
            entries[start + i] = WEIGHTLESS
        if not total > 0.0:
            continue
        # Light edges grow from the left of the stack, heavy ones from its right.
        num_light = num_heavy = 0
        for i in range(degree):
            scaled[i] = weights[start + i] / total * degree
            if scaled[i] < 1.0:
                stack[num_light] = i
                num_light += 1
            else:
                num_heavy += 1
                stack[degree - num_heavy] = i
        while num_light > 0 and num_heavy > 0:
            num_light -= 1
            light, heavy = stack[num_light], stack[degree - num_heavy]
            threshold = np.uint64(min(scaled[light] * SCALE, SCALE - 1.0))
            entries[start + light] = (threshold << HALF) | np.uint64(heavy)
            scaled[heavy] -= 1.0 - scaled[light]
            if scaled[heavy] < 1.0:
                num_heavy -= 1
                stack[num_light] = heavy
                num_light += 1
        # What rounding leaves on either side has a whole place, but for edges without weight.
        for k in range(num_light):
            light = stack[k]
            entries[start + light] = np.uint64(heaviest)
            if weights[start + light] > 0.0:
                entries[start + light] = (ALIAS_MASK << HALF) | np.uint64(light)
        for k in range(num_heavy):
            heavy = stack[degree - num_heavy + k]
            entries[start + heavy] = (ALIAS_MASK << HALF) | np.uint64(heavy)


@inlined
def prefetch_entries(stream: np.uint64, base: int, start: int, degree: int, num_turns: int) -> None:
    """Ask for the entries of a row's first turns; ``base`` is the address of the part's entries."""
    for turn in range(num_turns):
        place = high_product(mix64(stream + np.uint64(turn) * GOLDEN), np.uint64(degree))
        prefetch_address(base + (start + np.int64(place)) * ENTRY_BYTES)


@inlined
def pick(bits: np.uint64, entries: np.ndarray, start: int, degree: int) -> np.uint64:
    """The position inside its row that a draw falls on; not below ``degree`` where no edge has weight."""
    place = high_product(bits, np.uint64(degree))
    entry = entries[np.uint64(start) + place]
    # The lower half of the product is the fraction of the place that the draw fell on.
    rest = (bits * np.uint64(degree)) >> HALF
    # Chosen by arithmetic: a branch that goes either way is mispredicted half of the time.
    takes_alias = np.uint64(0) - np.uint64(rest >= (entry >> HALF))
    return place ^ ((place ^ (entry & ALIAS_MASK)) & takes_alias)


@kernel
def draw_alias(
    stream: np.uint64, entries: np.ndarray, start: int, num: int, degree: int, count: int, is_replacing: bool,
    positions: np.ndarray, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Write the positions that one node draws.

    Args:
        stream: uint64 of ``node_stream``.
        entries: uint64[edges], the alias tables of the part's rows.
        start: Position of the row's first edge.
        num: Number of eligible edges, the first ones of the row; draws of others are thrown away too.
        degree: Its number of edges.
        count: How many to draw.
        is_replacing: Draw with replacement.
        positions: int64[n], out: ``positions[first:first + drawn]``; in the order of the draws with replacement, else
            in stored order.
        first: See there.

    Returns:
        drawn: How many were drawn; fewer than ``count`` where too many were thrown away, none where no edge has weight.
        turns: How many turns of the stream that took.
    """
    drawn = 0
    turn = 0
    max_turns = MAX_TURNS * count
    while drawn < count and turn < max_turns:
        row_position = pick(mix64(stream + np.uint64(turn) * GOLDEN), entries, start, degree)
        turn += 1
        if row_position >= np.uint64(degree):
            return 0, turn
        # Written in any case, and kept where it is eligible: no branch to mispredict.
        positions[np.uint64(first + drawn)] = start + np.int64(row_position)
        drawn += np.int64(row_position < np.uint64(num))
    if is_replacing:
        return drawn, turn
    sort_few(positions, first, drawn)
    num_distinct = drop_repeated(positions, first, drawn)
    while num_distinct < count and turn < max_turns:
        row_position = pick(mix64(stream + np.uint64(turn) * GOLDEN), entries, start, degree)
        turn += 1
        if row_position < np.uint64(num):
            num_distinct += np.int64(insert_position(start + np.int64(row_position), positions, first, num_distinct))
    return num_distinct, turn
