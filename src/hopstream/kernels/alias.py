"""Draws edges by weight in constant time per draw.

[Algorithm] An alias table: every edge of a row has a place of equal probability, which it shares with one heavier edge.
    A draw takes a place, and a second random number chooses one of the two edges. A draw of an edge that is not
    eligible is rejected, and so is a repeated draw without replacement. The distribution of the other draws does not
    change: this is successive sampling. After ``MAX_TURNS`` turns per wanted edge the caller draws the rest otherwise.
    Source: Walker, "An efficient method for generating discrete random variables with general distributions", ACM
    TOMS 1977; Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991.
[Cost] One cache miss per draw; its address depends on the stream only, so it is prefetched some nodes ahead. 8 bytes
    per edge on disk. Building: three passes over a row.
[Not chosen] Binary search of running sums: dependent cache misses, one per halving of the row. Thresholds as float64:
    16 bytes per edge; with 32 bits the error is below 2**-32 of an average edge's probability.

An entry is ``threshold << 32 | alias``: with probability ``threshold / 2**32`` a draw takes the place's own edge, else
the edge at position ``alias`` of the row. An edge without weight has threshold 0 and is not an alias.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN, high_product, mix64
from hopstream.kernels.memory import prefetch_address
from hopstream.kernels.smallest import drop_repeated, insert_position, sort_few

ENTRY_BYTES = 8
MAX_TURNS = 4
"""Most turns per wanted edge."""
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
        # Light edges are stacked from the left, heavy ones from the right.
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
        # Edges that remain because of rounding get a whole place, except edges without weight.
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
    """Prefetch the entries of a row's first turns; ``base`` is the address of the part's entries."""
    for turn in range(num_turns):
        place = high_product(mix64(stream + np.uint64(turn) * GOLDEN), np.uint64(degree))
        prefetch_address(base + (start + np.int64(place)) * ENTRY_BYTES)


@inlined
def pick(bits: np.uint64, entries: np.ndarray, start: int, degree: int) -> np.uint64:
    """Draw a position inside a row; it is ``degree`` or above if no edge has weight."""
    place = high_product(bits, np.uint64(degree))
    entry = entries[np.uint64(start) + place]
    # The lower half of the product is the position of the draw inside its place.
    rest = (bits * np.uint64(degree)) >> HALF
    # Chosen by arithmetic: a branch that goes either way is mispredicted half of the time.
    takes_alias = np.uint64(0) - np.uint64(rest >= (entry >> HALF))
    return place ^ ((place ^ (entry & ALIAS_MASK)) & takes_alias)


@kernel
def draw_alias(
    stream: np.uint64, entries: np.ndarray, start: int, num: int, degree: int, count: int, is_replacing: bool,
    positions: np.ndarray, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Draw the edges of one node and write their positions.

    Args:
        stream: uint64 of ``node_stream``.
        entries: uint64[edges], the alias tables of the part's rows.
        start: Position of the row's first edge.
        num: Number of eligible edges, the first ones of the row; draws of others are rejected.
        degree: Number of edges of the row.
        count: Number of edges to draw.
        is_replacing: Draw with replacement.
        positions: int64[n], out: ``positions[first:first + drawn]``; in the order of draws with replacement, else in
            stored order.
        first: See ``positions``.

    Returns:
        drawn: Number of drawn edges; fewer than ``count`` after too many rejections, 0 if no edge has weight.
        turns: Number of used turns of the stream.
    """
    drawn = 0
    turn = 0
    max_turns = MAX_TURNS * count
    while drawn < count and turn < max_turns:
        row_position = pick(mix64(stream + np.uint64(turn) * GOLDEN), entries, start, degree)
        turn += 1
        if row_position >= np.uint64(degree):
            return 0, turn
        # Always written, and counted if eligible: no branch to mispredict.
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
