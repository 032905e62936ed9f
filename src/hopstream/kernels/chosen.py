"""Which edges does each node of a request draw, by any strategy?

[Algorithm] One node after the other, each by the kernel of the strategy; what its row begins with is asked for
    ``ROWS_AHEAD`` nodes ahead. A node whose draws do not fit into the memory that is left ends the call: the caller
    grows it and goes on with that node.
[Cost] That of the strategies' own kernels.
[Not chosen] Memory for as many edges as could be drawn at most: all edges between some candidates are few, and the
    edges of the nodes that are looked at many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hopstream.kernels.alias import draw_alias, prefetch_entries
from hopstream.kernels.compiling import kernel
from hopstream.kernels.eligible import has_id, set_shift, sieve_shift
from hopstream.kernels.filtered import (
    FEW,
    Filter,
    count_eligible,
    draw_labor_eligible,
    draw_listed,
    draw_skipping,
    list_eligible,
    skips,
    sum_listed,
    take_last,
)
from hopstream.kernels.hashing import GOLDEN, tree_stream
from hopstream.kernels.heaviest import num_ranks, select_heaviest, take_heaviest, take_heaviest_eligible
from hopstream.kernels.labor import draw_labor
from hopstream.kernels.memory import array_at, prefetch_address
from hopstream.kernels.neighbors import RANGE_AHEAD, draw_positions, prefetch_key, stream_of
from hopstream.kernels.smallest import sort_positions
from hopstream.kernels.weighted import ZERO, draw_missing, draw_weighted

UNIFORM, WEIGHTED, TOP_K, LAST, LABOR = range(5)
ROWS_AHEAD = 8
WEIGHTS_AHEAD = 4
WEIGHT_BYTES = 8
LINE_BYTES = 64
MAX_LINES = 4
ALIAS_FACTOR = 2


class Sources(NamedTuple):
    """Address tables, int64[num_parts, 2], of what draws are made from; zeros where it is not needed.

    Attributes:
        offsets: int64[num_parts + 1], id ranges of the nodes' type.
        keys: As for ``draw_neighbors``.
        indices: Neighbours.
        item: uint32[0] or int64[0], of the dtype of ``indices``.
        sums: Running sums of weights, float64.
        aliases: Alias tables of rows, uint64.
        orders: Positions by weight, uint32.
        weights: Weights, in the dtype of ``weight_kind``.
        weight_kind: See ``stored_weights.weight_kind``.
        neighbor_keys: Keys of neighbours.
        key_item: uint32[0] or int64[0], of their dtype.
    """

    offsets: np.ndarray
    keys: np.ndarray
    indices: np.ndarray
    item: np.ndarray
    sums: np.ndarray
    aliases: np.ndarray
    orders: np.ndarray
    weights: np.ndarray
    weight_kind: int
    neighbor_keys: np.ndarray
    key_item: np.ndarray


class Rules(NamedTuple):
    """What is asked of every node.

    Attributes:
        strategy: ``UNIFORM``, ``WEIGHTED``, ``TOP_K``, ``LAST`` or ``LABOR``.
        count: Neighbours per node; -1 means all.
        replaces: Draw with replacement; False where ``count`` is -1.
        rng_seed: uint64.
        labor_first: uint64, seed of the variates of ``LABOR``.
        labor_second: uint64, seed that they move to.
        labor_share: How far, in [0, 1).
        excluded_nodes: int64, set of ``eligible``: nodes with excluded neighbours; int64[0] for none.
        excluded_pairs: int64, set of pairs of a node and a neighbour.
        candidates: int64, set of the only neighbours that are eligible; int64[0] for all. With trees they are
            pairs, ``tree << tree_shift | id``.
        candidate_sieve: uint64, their sieve; uint64[0] for all.
        tree_shift: Bits that ids have in candidates of trees.
    """

    strategy: int
    count: int
    replaces: bool
    rng_seed: np.uint64
    labor_first: np.uint64
    labor_second: np.uint64
    labor_share: float
    excluded_nodes: np.ndarray
    excluded_pairs: np.ndarray
    candidates: np.ndarray
    candidate_sieve: np.ndarray
    tree_shift: int


class Scratch(NamedTuple):
    """Memory for the edges of one node.

    Attributes:
        listed: int64[capacity], positions of eligible edges; 64 or more.
        sums: float64[capacity] where weights count.
        weights: float64[capacity] where weights count.
        variates: uint64[capacity] where weights count, or with ``LABOR`` or ``TOP_K``.
    """

    listed: np.ndarray
    sums: np.ndarray
    weights: np.ndarray
    variates: np.ndarray


@njit(inline="always")
def uses_alias(num: int, row_degree: int, count: int, replaces: bool) -> bool:
    """Whether a node draws by the alias table: most of its row is eligible, and few of many are drawn.

    Without replacement every draw is compared with those before it, so there must be few.
    """
    return count > 0 and row_degree <= ALIAS_FACTOR * num and (replaces or count <= min(FEW, (num - 1) // ALIAS_FACTOR))


@njit(inline="always")
def _draw_by_weight(
    stream: np.uint64, entries: np.ndarray, sums: np.ndarray, weights: int, kind: int, start: int, num: int,
    row_degree: int, count: int, replaces: bool, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Draw by the row's alias table while that pays, and what is then missing by its running sums."""
    if not uses_alias(num, row_degree, count, replaces):
        return draw_weighted(stream, sums, weights, kind, start, num, count, replaces, variates, positions, first)
    taken, turns = draw_alias(stream, entries, start, num, row_degree, count, replaces, positions, first)
    if taken == count:
        return taken
    if not replaces:
        return draw_missing(stream, sums, weights, kind, start, num, count, variates, positions, first, taken, turns)
    rest = stream + np.uint64(turns) * GOLDEN
    return taken + draw_weighted(
        rest, sums, weights, kind, start, num, count - taken, replaces, variates, positions, first + taken
    )


@kernel
def draw_chosen(
    sources: Sources, rules: Rules, ids: np.ndarray, trees: np.ndarray, parts: np.ndarray, starts: np.ndarray,
    row_degrees: np.ndarray, degrees: np.ndarray, begin: int, scratch: Scratch, positions: np.ndarray, written: int,
    counts: np.ndarray,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Draw each node's edges.

    Args:
        sources: What draws are made from.
        rules: What is asked.
        ids: int64[n], ids of nodes to expand.
        trees: int64[n], or int64[0] for one tree.
        parts: int32[n] of ``edge_ranges``.
        starts: int64[n] of ``edge_ranges``.
        row_degrees: int64[n] of ``edge_ranges``.
        degrees: int64[n], how many edges from the row's first on are eligible, as far as times decide.
        begin: The node to begin with; those before it are done.
        scratch: Memory for the edges of one node.
        positions: int64[capacity], out: positions drawn, node by node, in the part's ``indices``.
        written: Where to begin in ``positions``.
        counts: int32[n], out: how many each node draws.

    Returns:
        done: Nodes done; fewer than n where memory is to be grown.
        written: Where ``positions`` end.
        num_positions: The capacity of ``positions`` that the next node needs, or 0.
        num_scratch: The capacity of the scratch that it needs, or 0.
    """
    offsets, keys, indices = sources.offsets, sources.keys, sources.indices
    strategy, count, replaces = rules.strategy, rules.count, rules.replaces
    is_weighted = strategy == WEIGHTED
    # Views without an owner: numba counts no references to them when they are handed to the kernels of one node.
    out = array_at(np.int64(positions.ctypes.data), len(positions), np.int64)
    listed = array_at(np.int64(scratch.listed.ctypes.data), len(scratch.listed), np.int64)
    listed_sums = array_at(np.int64(scratch.sums.ctypes.data), len(scratch.sums), np.float64)
    weights_of_listed = np.int64(scratch.weights.ctypes.data)
    listed_weights = array_at(weights_of_listed, len(scratch.weights), np.float64)
    variates = array_at(np.int64(scratch.variates.ctypes.data), len(scratch.variates), np.uint64)
    nodes, num_nodes = np.int64(rules.excluded_nodes.ctypes.data), len(rules.excluded_nodes)
    pairs, num_pairs = np.int64(rules.excluded_pairs.ctypes.data), len(rules.excluded_pairs) >> 1
    candidates, num_candidates = np.int64(rules.candidates.ctypes.data), len(rules.candidates)
    node_shift, pair_shift, candidate_shift = set_shift(num_nodes), set_shift(num_pairs), set_shift(num_candidates)
    sieve, num_words = np.int64(rules.candidate_sieve.ctypes.data), len(rules.candidate_sieve)
    word_shift = sieve_shift(num_words)
    has_candidates, has_trees = num_candidates > 0, len(trees) > 0
    lead, lead_bytes = indices, sources.item.itemsize
    if is_weighted:
        lead, lead_bytes = sources.sums, WEIGHT_BYTES
    elif strategy == TOP_K:
        lead, lead_bytes = sources.orders, 4
    elif strategy == LABOR:
        lead, lead_bytes = sources.neighbor_keys, sources.key_item.itemsize
    num_ids = len(ids)
    for i in range(begin, num_ids):
        if i + RANGE_AHEAD < num_ids:
            ahead = i + RANGE_AHEAD
            part = np.int64(parts[ahead])
            prefetch_key(ids[ahead] - offsets[part], keys[part, 0], keys[part, 1])
        if i + ROWS_AHEAD < num_ids:
            ahead = i + ROWS_AHEAD
            part = np.int64(parts[ahead])
            if is_weighted and uses_alias(degrees[ahead], row_degrees[ahead], count, replaces):
                stream = stream_of(ids[ahead], ids[ahead] - offsets[part], keys[part, 0], keys[part, 1], rules.rng_seed)
                if has_trees:
                    stream = tree_stream(stream, trees[ahead])
                num_turns = count
                if degrees[ahead] < row_degrees[ahead]:
                    num_turns += (count + 1) >> 1  # draws of edges that are not eligible are thrown away
                if not replaces:
                    # So are those of edges drawn already, which are common in short rows.
                    num_turns += np.int64(row_degrees[ahead] < 16 * count) + np.int64(row_degrees[ahead] < 64 * count)
                prefetch_entries(stream, sources.aliases[part, 0], starts[ahead], row_degrees[ahead], num_turns)
            else:
                row = lead[part, 0] + starts[ahead] * lead_bytes
                row_bytes = degrees[ahead] * lead_bytes
                for line in range(0, min(row_bytes, MAX_LINES * LINE_BYTES), LINE_BYTES):
                    prefetch_address(row + line)
                if is_weighted:
                    # Searches begin at the sum of all weights and go on in the middle of the row.
                    for quarter in range(1, 4):
                        prefetch_address(row + (row_bytes >> 2) * quarter)
                    prefetch_address(row + row_bytes - lead_bytes)
        if strategy == TOP_K and i + WEIGHTS_AHEAD < num_ids:
            # Whether the last edge that is wanted has weight tells whether all have.
            ahead = i + WEIGHTS_AHEAD
            part = np.int64(parts[ahead])
            rank = degrees[ahead] - 1 if count < 0 else min(count, degrees[ahead]) - 1
            if rank >= 0:
                part_order = array_at(sources.orders[part, 0], sources.orders[part, 1], np.uint32)
                last = starts[ahead] + np.int64(part_order[np.uint64(starts[ahead] + rank)])
                prefetch_address(sources.sums[part, 0] + last * WEIGHT_BYTES)
        part = np.int64(parts[i])
        start, num = starts[i], degrees[i]
        if num == 0 or count == 0:
            counts[i] = 0
            continue
        part_indices = array_at(indices[part, 0], indices[part, 1], sources.item.dtype)
        part_sums = array_at(sources.sums[part, 0], sources.sums[part, 1], np.float64)
        weights, kind = sources.weights[part, 0], sources.weight_kind
        own_pairs = 0
        if num_nodes > 0 and has_id(nodes, num_nodes, node_shift, ids[i]):
            own_pairs = num_pairs
        is_filtered = own_pairs > 0 or has_candidates
        tree = trees[i] << rules.tree_shift if has_trees else 0
        rule = Filter(
            ids[i], tree, pairs, own_pairs, pair_shift, candidates, num_candidates, candidate_shift, sieve, num_words,
            word_shift,
        )  # fmt: skip

        # How much memory the node needs, which is known before its draws unless its edges have to be listed.
        is_skipping = (strategy == UNIFORM or is_weighted) and skips(num, count, has_candidates)
        is_listing = is_filtered and (count < 0 or ((strategy == UNIFORM or is_weighted) and not is_skipping))
        num_listed = 0
        if is_listing:
            num_listed = list_eligible(rule, part_indices, start, num, out, written, ZERO, listed)
            if num_listed < 0:
                return i, written, 0, 2 * len(listed)
        most = num_listed if is_listing else num
        if count >= 0 and (replaces or count < most):
            most = count
        if written + most > len(out):
            return i, written, written + most, 0
        needs_variates = (is_weighted or strategy == LABOR) and count >= 0 and not replaces
        degree = row_degrees[i]
        ranks = num_ranks(num, degree, most, kind)
        if strategy == TOP_K:
            needs_variates = ranks < degree
        if needs_variates and most > len(variates):
            return i, written, 0, most

        if strategy == TOP_K:
            part_order = array_at(sources.orders[part, 0], sources.orders[part, 1], np.uint32)
            if is_filtered:
                taken = take_heaviest_eligible(
                    rule, part_indices, part_order, part_sums, start, num, degree, ranks, most, out, written
                )
            else:
                taken = take_heaviest(part_order, part_sums, start, num, degree, ranks, most, out, written)
            if taken < 0:
                taken = select_heaviest(
                    rule, is_filtered, part_indices, weights, kind, start, num, most, variates, out, written
                )  # fmt: skip
        elif strategy == LABOR and count >= 0:
            part_keys = array_at(sources.neighbor_keys[part, 0], sources.neighbor_keys[part, 1], sources.key_item.dtype)
            first_seed, second_seed, share = rules.labor_first, rules.labor_second, rules.labor_share
            if is_filtered:
                taken = draw_labor_eligible(
                    rule, part_indices, part_keys, start, num, most, first_seed, second_seed, share, variates, out,
                    written,
                )  # fmt: skip
            else:
                taken = draw_labor(part_keys, start, num, most, first_seed, second_seed, share, variates, out, written)
        elif strategy == LAST and count >= 0:
            taken = take_last(rule, part_indices, start, num, most, out, written)
        else:
            stream = stream_of(ids[i], ids[i] - offsets[part], keys[part, 0], keys[part, 1], rules.rng_seed)
            if has_trees:
                stream = tree_stream(stream, trees[i])
            taken = 0
            if not is_filtered:
                if is_weighted:
                    entries = array_at(sources.aliases[part, 0], sources.aliases[part, 1], np.uint64)
                    taken = _draw_by_weight(
                        stream,
                        entries,
                        part_sums,
                        weights,
                        kind,
                        start,
                        num,
                        row_degrees[i],
                        count,
                        replaces,
                        variates,
                        out,
                        written,
                    )
                else:
                    draw_positions(stream, start, num, most, replaces, out, written)
                    taken = most
            elif is_skipping:
                taken, turns = draw_skipping(
                    stream, rule, part_indices, indices[part, 0], sources.item.itemsize, is_weighted, part_sums, start,
                    num, count, replaces, listed, variates, out, written,
                )  # fmt: skip
                if taken < count:
                    num_drawn = 0 if replaces else taken
                    num_listed = list_eligible(rule, part_indices, start, num, out, written, num_drawn, listed)
                    if num_listed < 0:
                        return i, written, 0, 2 * len(listed)
                    if is_weighted:
                        if num_listed > len(listed_sums):
                            return i, written, 0, num_listed
                        sum_listed(part_sums, weights, kind, start, listed, num_listed, listed_weights, listed_sums)
                    more = draw_listed(
                        stream + np.uint64(turns) * GOLDEN, is_weighted, listed_sums, weights_of_listed, num_listed,
                        count - taken, replaces, listed, variates, out, written + taken,
                    )  # fmt: skip
                    taken += more
                    if not replaces:
                        sort_positions(out, written, taken)
            else:
                if is_weighted:
                    sum_listed(part_sums, weights, kind, start, listed, num_listed, listed_weights, listed_sums)
                taken = draw_listed(
                    stream,
                    is_weighted,
                    listed_sums,
                    weights_of_listed,
                    num_listed,
                    count,
                    replaces,
                    listed,
                    variates,
                    out,
                    written,
                )
        counts[i] = taken
        written += taken
    return num_ids, written, 0, 0


@kernel
def count_chosen(
    sources: Sources, rules: Rules, ids: np.ndarray, trees: np.ndarray, parts: np.ndarray, starts: np.ndarray,
    degrees: np.ndarray, num_eligible: np.ndarray,
) -> None:  # fmt: skip
    """Count each node's eligible edges.

    Args:
        sources: As for ``draw_chosen``.
        rules: As there.
        ids: As there.
        trees: As there.
        parts: As there.
        starts: As there.
        degrees: As there.
        num_eligible: int64[n], out.
    """
    indices = sources.indices
    nodes, num_nodes = np.int64(rules.excluded_nodes.ctypes.data), len(rules.excluded_nodes)
    pairs, num_pairs = np.int64(rules.excluded_pairs.ctypes.data), len(rules.excluded_pairs) >> 1
    candidates, num_candidates = np.int64(rules.candidates.ctypes.data), len(rules.candidates)
    node_shift, pair_shift, candidate_shift = set_shift(num_nodes), set_shift(num_pairs), set_shift(num_candidates)
    sieve, num_words = np.int64(rules.candidate_sieve.ctypes.data), len(rules.candidate_sieve)
    word_shift = sieve_shift(num_words)
    for i in range(len(ids)):
        part = np.int64(parts[i])
        own_pairs = 0
        if num_nodes > 0 and has_id(nodes, num_nodes, node_shift, ids[i]):
            own_pairs = num_pairs
        num_eligible[i] = degrees[i]
        if own_pairs > 0 or num_candidates > 0:
            part_indices = array_at(indices[part, 0], indices[part, 1], sources.item.dtype)
            tree = trees[i] << rules.tree_shift if len(trees) > 0 else 0
            rule = Filter(
                ids[i], tree, pairs, own_pairs, pair_shift, candidates, num_candidates, candidate_shift, sieve,
                num_words, word_shift,
            )  # fmt: skip
            num_eligible[i] = count_eligible(rule, part_indices, starts[i], degrees[i])
