"""Draws neighbours by random variates that all nodes of a layer share (LABOR sampling).

[Algorithm] Layer-neighbour sampling with a fixed number of neighbours: a neighbour has one variate, a hash of the seed
    and of its key, and every node takes the neighbours with the smallest variates. Nodes with common neighbours thus
    choose the same ones, and a batch has fewer nodes for the same number of edges. Between two seeds a variate moves
    along a quarter circle: with u1 and u2 of the seeds, z = cos(pi s / 2) Q(u1) + sin(pi s / 2) Q(u2) is standard
    normal for every share s, with the normal quantile Q. Only the order matters, so z itself is compared.
    The lowest bits are a hash of the edge's place in its row, so that parallel edges, which share the other bits, are
    taken evenly; the probability that two neighbours share all other bits is about 2**-36.
    Source: Balin, Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023, section 3.2 and its appendix on a fixed number
    of neighbours; the quarter circle is that of GraphBolt's ``batch_dependency``.
    Long rows without filter and share are hashed in blocks. A block is searched only if its smallest hash is below the
    largest kept variate.
[Cost] One hash per eligible edge; two hashes and two quantiles if the share is above 0; see ``smallest``. In blocks 1.5
    ns per edge instead of 12.
[Not chosen] The paper's LABOR-0, which includes each neighbour independently if its variate is below a bound of the
    node: the number of neighbours then varies. Linear interpolation of u1 and u2: it is not uniform in between.
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
    Variates,
    is_eligible,
    is_filtered,
    node_filter,
    prefetch_row,
    view,
)
from hopstream.kernels.hashing import GOLDEN, mix64, node_stream
from hopstream.kernels.memory import ZERO, array_at
from hopstream.kernels.reals import normal_quantile, open_fraction, ordered_bits, quarter_turn
from hopstream.kernels.smallest import offer, sort_positions

BLOCK = 64
"""Edges per block, hashed by vector instructions if the processor has them."""
PLACE_MASK = np.uint64(0xFFFF)
"""Bits of a variate that distinguish parallel edges."""


@inlined
def labor_variate(
    key: np.int64, place: int, first_seed: np.uint64, second_seed: np.uint64, cosine: float, sine: float
) -> np.uint64:
    """Return the variate of a neighbour's edge, as 64 bits with the order of the variate.

    Args:
        key: Key of the neighbour.
        place: Position of the edge in its row; it does not depend on the part.
        first_seed: As in ``take_smallest``.
        second_seed: As in ``take_smallest``.
        cosine: Cosine of the share, see ``quarter_turn``.
        sine: Sine of the share.
    """
    bits = node_stream(first_seed, key)
    own = mix64(bits + np.uint64(place) * GOLDEN) & PLACE_MASK
    if sine != 0.0:
        z = cosine * normal_quantile(open_fraction(bits))
        bits = ordered_bits(z + sine * normal_quantile(open_fraction(node_stream(second_seed, key))))
    return (bits & ~PLACE_MASK) | own


@inlined
def _take_from_blocks(
    keys: np.ndarray, start: int, num: int, count: int, seed: np.uint64, variates: np.ndarray, positions: np.ndarray,
    first: int,
) -> int:  # fmt: skip
    """Take the smallest variates of a long row, without filter and with one seed; see ``take_smallest``."""
    hashes = np.empty(BLOCK, np.uint64)
    size = ZERO
    for block in range(0, num, BLOCK):
        width = min(BLOCK, num - block)
        least = ~np.uint64(0)
        for k in range(width):
            bits = node_stream(seed, np.int64(keys[np.uint64(start + block + k)]))
            hashes[np.uint64(k)] = bits
            least = min(least, bits)
        if size == count and least > (variates[0] | PLACE_MASK):
            continue
        for k in range(width):
            bits = hashes[np.uint64(k)]
            if size == count and bits > (variates[0] | PLACE_MASK):
                continue
            place = np.uint64(block + k)
            variate = (bits & ~PLACE_MASK) | (mix64(bits + place * GOLDEN) & PLACE_MASK)
            if size < count or variate < variates[0]:
                size = offer(variates, positions, first, size, count, variate, start + block + k)
    sort_positions(positions, first, size)
    return size


@kernel
def take_smallest(
    own: NodeFilter, indices: np.ndarray, keys: np.ndarray, start: int, num: int, count: int, first_seed: np.uint64,
    second_seed: np.uint64, share: float, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Write the positions of the ``count`` eligible edges with the smallest variates, in stored order.

    Args:
        own: The node's filter.
        indices: uint32 or int64[edges], ``indices`` of its part.
        keys: uint32 or int64[edges], neighbours' keys.
        start: Position of the node's first edge.
        num: Number of its edges.
        count: Most edges to take.
        first_seed: uint64, seed of the variates.
        second_seed: uint64, seed that they move to; ignored if ``share`` is 0.
        share: Progress from the first seed to the second, in [0, 1).
        variates: uint64[count] or more, scratch; used if ``count`` is below ``num``.
        positions: int64[n], out: ``positions[first:first + taken]``.
        first: See ``positions``.

    Returns:
        Number of edges taken.
    """
    cosine, sine = quarter_turn(share)
    takes_all = count >= num
    if sine == 0.0 and num >= max(BLOCK, 2 * count) and not is_filtered(own):
        return _take_from_blocks(keys, start, num, count, np.uint64(first_seed), variates, positions, first)
    size = ZERO
    for position in range(start, start + num):
        if is_filtered(own) and not is_eligible(own, np.int64(indices[np.uint64(position)])):
            continue
        if takes_all:
            positions[np.uint64(first + size)] = position
            size += 1
            continue
        key = np.int64(keys[np.uint64(position)])
        variate = labor_variate(key, position - start, np.uint64(first_seed), np.uint64(second_seed), cosine, sine)
        if size < count or variate < variates[0]:
            size = offer(variates, positions, first, size, count, variate, position)
    if not takes_all:
        sort_positions(positions, first, size)
    return size


@kernel
def draw_by_variates(
    tables: AddressTables, source: Variates, rule: Filter, draws: Draws, nodes: Nodes, scratch: Scratch, begin: int,
    positions: np.ndarray, written: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Draw each node's edges; arguments and results as for ``draw_edges``, with a count of 0 or more."""
    keys, key_item = source.keys, source.key_item
    first_seed, second_seed, share = source.first_seed, source.second_seed, source.share
    indices, count = tables.indices, draws.count
    ids, trees, parts, starts = nodes.ids, nodes.trees, nodes.parts, nodes.starts
    degrees, counts = nodes.degrees, nodes.counts
    out, variates = view(positions, np.int64), view(scratch.variates, np.uint64)
    num_ids = len(ids)
    for i in range(begin, num_ids):
        if i + ROWS_AHEAD < num_ids:
            ahead = i + ROWS_AHEAD
            part = np.int64(parts[ahead])
            prefetch_row(keys[part, 0] + starts[ahead] * key_item.itemsize, degrees[ahead] * key_item.itemsize)
        part = np.int64(parts[i])
        start, num = starts[i], degrees[i]
        if num == 0 or count == 0:
            counts[i] = 0
            continue
        most = min(count, num)
        if written + most > len(out):
            return i, written, written + most, 0
        if most > len(variates):
            return i, written, 0, most
        part_keys = array_at(keys[part, 0], keys[part, 1], key_item.dtype)
        own = node_filter(rule, ids[i], trees, i)
        part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
        taken = take_smallest(
            own, part_indices, part_keys, start, num, most, first_seed, second_seed, share, variates, out, written
        )
        counts[i] = taken
        written += taken
    return num_ids, written, 0, 0
