"""Draws each node's edges, uniformly or in proportion to their weights.

[Algorithm] One node after the other: by the row's alias table if most of the row is eligible and few edges are drawn,
    else by running sums (``weighted``). The beginning of a row is prefetched ``ROWS_AHEAD`` nodes ahead. A node whose
    draws do not fit into the remaining memory ends the call: the caller grows it and resumes at that node.
[Cost] The costs of ``alias`` and ``weighted``.
[Not chosen] Memory for the largest possible number of draws: edges between given candidates are few, but the scanned
    nodes have many edges.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.alias import draw_alias, prefetch_entries
from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import (
    RANGE_AHEAD,
    ROWS_AHEAD,
    AddressTables,
    Draws,
    Filter,
    Nodes,
    Scratch,
    Weights,
    is_filtered,
    most_drawn,
    node_filter,
    prefetch_key,
    prefetch_row,
    stream_in_tree,
    stream_of,
    view,
)
from hopstream.kernels.filtered import FEW, draw_eligible
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import ZERO, array_at, prefetch_address
from hopstream.kernels.neighbors import draw_positions
from hopstream.kernels.weighted import draw_missing, draw_weighted

WEIGHT_BYTES = 8
ALIAS_FACTOR = 2


@inlined
def uses_alias(num: int, row_degree: int, count: int, replaces: bool) -> bool:
    """Return whether a node draws by the alias table: most edges are eligible, and few of many are drawn.

    Without replacement, every draw is compared with all earlier ones, so the draws must be few.
    """
    return count > 0 and row_degree <= ALIAS_FACTOR * num and (replaces or count <= min(FEW, (num - 1) // ALIAS_FACTOR))


@kernel
def _draw_row(
    stream: np.uint64, entries: np.ndarray, sums: np.ndarray, weights: int, kind: int, start: int, num: int,
    row_degree: int, count: int, replaces: bool, variates: np.ndarray, positions: np.ndarray, first: int,
) -> int:  # fmt: skip
    """Draw by the row's alias table if suitable, and the rest by its running sums."""
    taken, turns = 0, 0
    if uses_alias(num, row_degree, count, replaces):
        taken, turns = draw_alias(stream, entries, start, num, row_degree, count, replaces, positions, first)
        if taken == count:
            return taken
        if not replaces:
            return draw_missing(
                stream, sums, weights, kind, start, num, count, variates, positions, first, taken, turns
            )
    rest = stream + np.uint64(turns) * GOLDEN
    return taken + draw_weighted(
        rest, sums, weights, kind, start, num, count - taken, replaces, variates, positions, first + taken
    )


@kernel
def draw_edges(
    tables: AddressTables, source: Weights | None, rule: Filter | None, draws: Draws, nodes: Nodes, scratch: Scratch,
    begin: int, positions: np.ndarray, written: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Draw each node's edges, by weight or uniformly.

    Args:
        tables: The parts.
        source: Their weights; None to draw uniformly. Code for a None argument is not compiled.
        rule: Filter of eligible neighbours; None for all.
        draws: Settings of the draws.
        nodes: The nodes of the request; their counts are written.
        scratch: Memory for the edges of one node.
        begin: The node to begin with; earlier nodes are finished.
        positions: int64[capacity], out: drawn positions in the part's ``indices``, node by node.
        written: Length of ``positions`` in use.

    Returns:
        done: Finished nodes; fewer than n if memory must grow.
        written: New length of ``positions`` in use.
        num_positions: Capacity of ``positions`` that the next node needs, or 0.
        num_scratch: Capacity of the scratch that the next node needs, or 0.
    """
    offsets, keys, indices = tables.offsets, tables.keys, tables.indices
    count, replaces = draws.count, draws.replaces
    ids, trees, parts, starts = nodes.ids, nodes.trees, nodes.parts, nodes.starts
    degrees, row_degrees, counts = nodes.degrees, nodes.row_degrees, nodes.counts
    out = view(positions, np.int64)
    room = Scratch(
        view(scratch.listed, np.int64), view(scratch.sums, np.float64), view(scratch.weights, np.float64),
        view(scratch.variates, np.uint64),
    )  # fmt: skip
    num_ids, item_bytes = len(ids), tables.item.itemsize
    for i in range(begin, num_ids):
        if i + RANGE_AHEAD < num_ids:
            ahead = i + RANGE_AHEAD
            part = np.int64(parts[ahead])
            prefetch_key(ids[ahead] - offsets[part], keys[part, 0], keys[part, 1])
        if i + ROWS_AHEAD < num_ids:
            ahead = i + ROWS_AHEAD
            part = np.int64(parts[ahead])
            if source is None:
                prefetch_row(indices[part, 0] + starts[ahead] * item_bytes, degrees[ahead] * item_bytes)
            elif uses_alias(degrees[ahead], row_degrees[ahead], count, replaces):
                stream = stream_of(ids[ahead], ids[ahead] - offsets[part], keys[part, 0], keys[part, 1], draws.rng_seed)
                stream = stream_in_tree(stream, trees, ahead)
                num_turns = count
                if degrees[ahead] < row_degrees[ahead]:
                    num_turns += (count + 1) >> 1  # draws of edges that are not eligible are rejected
                if not replaces:
                    # Repeated draws, which are common in short rows, are rejected too.
                    num_turns += np.int64(row_degrees[ahead] < 16 * count) + np.int64(row_degrees[ahead] < 64 * count)
                prefetch_entries(stream, source.aliases[part, 0], starts[ahead], row_degrees[ahead], num_turns)
            else:
                row = source.sums[part, 0] + starts[ahead] * WEIGHT_BYTES
                row_bytes = degrees[ahead] * WEIGHT_BYTES
                prefetch_row(row, row_bytes)
                # Searches read the last sum first, then the middle of the row.
                for quarter in range(1, 4):
                    prefetch_address(row + (row_bytes >> 2) * quarter)
                prefetch_address(row + row_bytes - WEIGHT_BYTES)
        start, num = starts[i], degrees[i]
        if num == 0 or count == 0:
            counts[i] = 0
            continue
        part = np.int64(parts[i])
        if source is not None:
            part_sums = array_at(source.sums[part, 0], source.sums[part, 1], np.float64)
            weights, kind = source.weights[part, 0], source.kind
        stream = stream_of(ids[i], ids[i] - offsets[part], keys[part, 0], keys[part, 1], draws.rng_seed)
        stream = stream_in_tree(stream, trees, i)
        if rule is not None:
            own = node_filter(rule, ids[i], trees, i)
            if is_filtered(own):
                part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
                if source is None:
                    taken, num_positions, num_scratch = draw_eligible(
                        own, stream, part_indices, indices[part, 0], None, ZERO, ZERO, start, num, count, replaces,
                        room, out, written,
                    )  # fmt: skip
                else:
                    taken, num_positions, num_scratch = draw_eligible(
                        own, stream, part_indices, indices[part, 0], part_sums, weights, kind, start, num, count,
                        replaces, room, out, written,
                    )  # fmt: skip
                if taken < 0:
                    return i, written, num_positions, num_scratch
                counts[i] = taken
                written += taken
                continue
        most = most_drawn(num, count, replaces)
        if written + most > len(out):
            return i, written, written + most, 0
        if source is None:
            taken = most
            draw_positions(stream, start, num, most, replaces, out, written)
        else:
            if count >= 0 and not replaces and most > len(room.variates):
                return i, written, 0, most
            entries = array_at(source.aliases[part, 0], source.aliases[part, 1], np.uint64)
            taken = _draw_row(
                stream, entries, part_sums, weights, kind, start, num, row_degrees[i], count, replaces, room.variates,
                out, written,
            )  # fmt: skip
        counts[i] = taken
        written += taken
    return num_ids, written, 0, 0
