"""Draws the next nodes of second-order random walks.

[Algorithm] A second-order walk that came from t and is at v moves to a neighbour x with probability proportional to the
    weight of the edge times a bias: 1/p if x is t, 1 if t has an edge to x, 1/q otherwise. Rejection sampling draws
    candidates without the bias, and accepts a candidate with probability bias / largest bias. A random level decides
    most candidates alone. Only if the level lies between the biases 1 and 1/q must an edge from t to x be looked up.
    Walks without an accepted candidate draw exactly from all edges of v, in two passes: the first adds up the biased
    weights, and the second stops at the drawn sum.
    Source: Grover, Leskovec, "node2vec: Scalable feature learning for networks", KDD 2016; Yang et al., "KnightKing: A
    fast distributed graph random walk engine", SOSP 2019.
[Cost] O(1) per candidate; O(degree(v) * log(degree(t))) for an exact draw, O(degree(v)) if q is 1.
[Not chosen] Alias tables per pair of nodes, as node2vec proposes: O(edges * degree) memory. An exact draw in every
    step: it reads every edge of v and of t, and walks visit hubs often.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.eligible import AddressTables, Nodes, prefetch_key, stream_of, view
from hopstream.kernels.hashing import GOLDEN, draw_below, mix64, node_stream, tree_stream
from hopstream.kernels.lookups import RowIndex, entries_of_row, find_in_row, find_newest, prefetch_pair
from hopstream.kernels.memory import array_at, prefetch_address
from hopstream.kernels.neighbors import edge_ranges
from hopstream.kernels.reals import fraction

WALKS_AT_ONCE = 64
REJECTED, ACCEPTED, OPEN = 0, 1, 2
NO_NODE = -1


@kernel
def hash_fractions(rng_seed: np.uint64, numbers: np.ndarray, out: np.ndarray) -> None:
    """Write a fraction in [0, 1) for each number, uniform over seeds.

    Args:
        rng_seed: uint64.
        numbers: int64[n].
        out: float64[n], out.
    """
    for i in range(len(numbers)):
        out[i] = fraction(node_stream(rng_seed, numbers[i]))


@kernel
def judge_candidates(
    rng_seed: np.uint64, walks: np.ndarray, candidates: np.ndarray, previous: np.ndarray, return_bias: float,
    far_bias: float, verdicts: np.ndarray,
) -> None:  # fmt: skip
    """Accept or reject the candidates whose verdict does not depend on the previous node's edges.

    Args:
        rng_seed: uint64.
        walks: int64[n], numbers of walks.
        candidates: int64[n, m], ids drawn without the bias.
        previous: int64[n], ids of the nodes that the walks came from; ``NO_NODE`` accepts every candidate.
        return_bias: 1/p.
        far_bias: 1/q.
        verdicts: uint8[n, m], out. ``OPEN``: if ``far_bias`` is below 1, the candidate is accepted if and only if the
            previous node has an edge to it; otherwise, if and only if there is no such edge.
    """
    largest = max(return_bias, 1.0, far_bias)
    surely = min(1.0, far_bias)
    possibly = max(1.0, far_bias)
    for i in range(candidates.shape[0]):
        stream = node_stream(rng_seed, walks[i])
        for k in range(candidates.shape[1]):
            level = fraction(mix64(stream + np.uint64(k) * GOLDEN)) * largest
            verdicts[i, k] = _judge(level, candidates[i, k], previous[i], return_bias, surely, possibly)


@inlined
def _judge(level: float, candidate: int, previous: int, return_bias: float, surely: float, possibly: float) -> int:
    if previous == NO_NODE:
        return ACCEPTED
    if candidate == previous:
        return ACCEPTED if level < return_bias else REJECTED
    if level < surely:
        return ACCEPTED
    return OPEN if level < possibly else REJECTED


class WalkRule(NamedTuple):
    """Rule by which walks with memory choose the next node.

    Attributes:
        return_bias: 1/p.
        far_bias: 1/q.
        num_candidates: Candidates of each walk in the first round. Every later round draws as many candidates as all
            earlier rounds together.
        read_cost: Cost of reading an edge, in units of one drawn candidate.
        open_share: Share of candidates whose verdict needs the lookup of an edge.
    """

    return_bias: float
    far_bias: float
    num_candidates: int
    read_cost: float
    open_share: float


@kernel
def try_candidates(
    tables: AddressTables, index: RowIndex, rule: WalkRule, draw_seed: np.uint64, judge_seed: np.uint64,
    num_candidates: int, walks: np.ndarray, previous: np.ndarray, nodes: Nodes, pending: np.ndarray, found: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Draw candidates of each walk, decide on each by its bias, and take the first that is accepted.

    Candidates and verdicts are those of ``draw_neighbors`` with replacement and of ``judge_candidates``. Drawing stops
    at a candidate that every bias accepts. Edges are looked up only until a candidate is accepted.

    Args:
        tables: The parts.
        index: Index of the parts' long rows.
        rule: Rule of the choice.
        draw_seed: uint64, seed of the candidates.
        judge_seed: uint64, seed of the verdicts.
        num_candidates: Most candidates of each walk.
        walks: int64[n], numbers of walks.
        previous: int64[n], ids of the nodes that the walks came from, or ``NO_NODE``.
        nodes: 2 n nodes, with ranges: the current node of each walk, then the previous node of each walk (any node for
            a walk without one).
        pending: int64[m], in: the walks to move; out: the walks with edges and without an accepted candidate.
        found: int64[n], out: ids of the next nodes.

    Returns:
        Number of walks left in ``pending``, and number of edges of all scanned rows.
    """
    offsets, keys, indices = tables.offsets, tables.keys, tables.indices
    ids, parts, starts, degrees = nodes.ids, nodes.parts, nodes.starts, nodes.degrees
    item_bytes = tables.item.itemsize
    return_bias, far_bias, num_walks = rule.return_bias, rule.far_bias, len(walks)
    largest, surely, possibly = max(return_bias, 1.0, far_bias), min(1.0, far_bias), max(1.0, far_bias)
    at_once = min(surely, return_bias)
    candidates = np.empty((WALKS_AT_ONCE, num_candidates), np.int64)
    levels = np.empty((WALKS_AT_ONCE, num_candidates), np.float64)
    num_drawn = np.empty(WALKS_AT_ONCE, np.int64)
    entries = np.empty(WALKS_AT_ONCE, np.int64)
    memory = np.empty(1, tables.item.dtype)
    wanted = view(memory, tables.item.dtype)
    num_left, num_scanned = 0, 0
    for first in range(0, len(pending), WALKS_AT_ONCE):
        num = min(WALKS_AT_ONCE, len(pending) - first)
        for w in range(num):
            i = pending[first + w]
            part = np.int64(parts[i])
            prefetch_key(ids[i] - offsets[part], keys[part, 0], keys[part, 1])
        for w in range(num):
            i = pending[first + w]
            part = np.int64(parts[i])
            stream = stream_of(ids[i], ids[i] - offsets[part], keys[part, 0], keys[part, 1], draw_seed)
            stream = tree_stream(stream, walks[i])
            verdicts = node_stream(judge_seed, walks[i])
            entries[w] = entries_of_row(index, ids[num_walks + i], degrees[num_walks + i])
            num_drawn[w] = num_candidates if degrees[i] > 0 else 0
            for k in range(num_drawn[w]):
                position = starts[i] + np.int64(draw_below(stream, k, degrees[i]))
                prefetch_address(indices[part, 0] + position * item_bytes)
                candidates[w, k] = position
                levels[w, k] = fraction(mix64(verdicts + np.uint64(k) * GOLDEN)) * largest
                if levels[w, k] < at_once or previous[i] == NO_NODE:
                    num_drawn[w] = k + 1
                    break
        for w in range(num):
            i = pending[first + w]
            part, back = np.int64(parts[i]), np.int64(parts[num_walks + i])
            part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
            row, degree = indices[back, 0] + starts[num_walks + i] * item_bytes, degrees[num_walks + i]
            for k in range(num_drawn[w]):
                candidates[w, k] = part_indices[np.uint64(candidates[w, k])]
                verdict = _judge(levels[w, k], candidates[w, k], previous[i], return_bias, surely, possibly)
                if verdict == OPEN:
                    prefetch_pair(entries[w], row, degree, item_bytes, candidates[w, k])
                levels[w, k] = verdict
        for w in range(num):
            i = pending[first + w]
            back, degree, taken = np.int64(parts[num_walks + i]), degrees[num_walks + i], np.int64(NO_NODE)
            for k in range(num_drawn[w]):
                if levels[w, k] == OPEN:
                    row = indices[back, 0] + starts[num_walks + i] * item_bytes
                    wanted[0] = candidates[w, k]
                    is_edge = find_in_row(entries[w], row, degree, wanted) >= 0
                    num_scanned += degree if entries[w] == 0 else 0
                    levels[w, k] = ACCEPTED if is_edge == (far_bias < 1.0) else REJECTED
                if levels[w, k] == ACCEPTED:
                    taken = candidates[w, k]
                    break
            found[i] = taken
            if taken == NO_NODE and num_drawn[w] > 0:
                pending[num_left] = i
                num_left += 1
    return num_left, num_scanned


@kernel
def take_steps(
    tables: AddressTables, index: RowIndex, marks: np.ndarray, newest: np.ndarray, num_ids: int, rule: WalkRule,
    seeds: np.ndarray, walks: np.ndarray, ids: np.ndarray, pending: np.ndarray, reading: np.ndarray,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Take steps of walks, up to the first step that leaves a walk with edges without a successor.

    Args:
        tables: All parts.
        index: Index of the parts' long rows.
        marks: As for ``find_newest``; not read if ``newest`` is empty.
        newest: As for ``find_newest``; int64[0] if no node has a newer row.
        num_ids: Number of ids.
        rule: Rule of the choice.
        seeds: uint64[num_steps, num_rounds, 2], seeds of candidates and of verdicts.
        walks: int64[n], numbers of walks.
        ids: int64[2 + num_steps, n], in: the previous and the current nodes of the walks; out: the nodes after each
            step. ``NO_NODE`` for none.
        pending: int64[n], out: walks without a successor after the last round.
        reading: int64[n], out: walks without a successor for which reading all edges costs no more than the candidates
            drawn so far.

    Returns:
        num_steps: Steps that all walks have taken.
        num_rounds: Finished rounds of the next step; 0 if a neighbour or a row lies outside its range.
        num_pending: Entries of ``pending``.
        num_reading: Entries of ``reading``.
        num_scanned: Number of edges of all scanned rows.
    """
    num_walks, num_rounds = len(walks), seeds.shape[1]
    moving, numbers = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
    previous, found = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
    at, rows = np.empty(2 * num_walks, np.int64), np.empty(2 * num_walks, np.int64)
    starts, degrees = np.empty(2 * num_walks, np.int64), np.empty(2 * num_walks, np.int64)
    parts, counts = np.empty(2 * num_walks, np.int32), np.empty(2 * num_walks, np.int32)
    num_scanned = 0
    for step in range(len(seeds)):
        num, is_inside = 0, True
        for i in range(num_walks):
            if ids[step + 1, i] != NO_NODE:
                moving[num], numbers[num], previous[num] = i, walks[i], ids[step, i]
                at[num], found[num] = ids[step + 1, i], NO_NODE
                is_inside = is_inside and np.uint64(at[num]) < np.uint64(num_ids)
                num += 1
        for w in range(num):
            at[num + w] = previous[w] if previous[w] != NO_NODE else at[w]
            pending[w] = w
        num_left, num_reading, drawn, rounds = num, 0, 0, 0
        if is_inside:
            own = rows if len(newest) > 0 else at
            if len(newest) > 0:
                find_newest(at[: 2 * num], marks, newest, rows[: 2 * num])
            nodes = Nodes(
                own[: 2 * num], at[:0], parts[: 2 * num], starts[: 2 * num], degrees[: 2 * num], degrees[: 2 * num],
                counts[: 2 * num],
            )  # fmt: skip
            is_inside = edge_ranges(tables, nodes, 0, False) >= 0
        while is_inside and num_left > 0 and rounds < num_rounds:
            size = drawn if drawn > 0 else rule.num_candidates
            num_tried, scanned = try_candidates(
                tables, index, rule, seeds[step, rounds, 0], seeds[step, rounds, 1], size, numbers[:num],
                previous[:num], nodes, pending[:num_left], found[:num],
            )  # fmt: skip
            num_scanned += scanned
            drawn += size
            rounds += 1
            num_left = 0
            for k in range(num_tried):
                w = pending[k]
                ahead, behind = degrees[w], degrees[num + w]
                if rule.read_cost * (ahead + behind) <= drawn * (1 + rule.open_share * behind):
                    reading[num_reading] = moving[w]
                    num_reading += 1
                else:
                    pending[num_left] = w
                    num_left += 1
        for w in range(num):
            ids[step + 2, moving[w]] = found[w]
        if num_left + num_reading > 0:
            for k in range(num_left):
                pending[k] = moving[pending[k]]
            return step, rounds, num_left, num_reading, num_scanned
    return len(seeds), 0, 0, 0, num_scanned


@kernel
def draw_second_order(
    rng_seed: np.uint64, walks: np.ndarray, rows: np.ndarray, offsets: np.ndarray, neighbors: np.ndarray,
    weights: np.ndarray, previous: np.ndarray, previous_rows: np.ndarray, previous_offsets: np.ndarray,
    previous_neighbors: np.ndarray, return_bias: float, far_bias: float, sums: np.ndarray, found: np.ndarray,
) -> None:  # fmt: skip
    """Draw the next node of each walk exactly, from all edges of its current node.

    Args:
        rng_seed: uint64.
        walks: int64[n], numbers of walks.
        rows: int64[n]; a walk in row ``r`` can go to ``neighbors[offsets[r]:offsets[r + 1]]``.
        offsets: int64[num_rows + 1].
        neighbors: int64[m], ids in stored order.
        weights: float64[m], or float64[0] if all edges weigh the same.
        previous: int64[n], ids of the nodes that the walks came from.
        previous_rows: int64[n], the row of each walk's previous node in ``previous_offsets``.
        previous_offsets: int64[num_previous_rows + 1].
        previous_neighbors: int64[k], ids, ascending in each row; not read if ``far_bias`` is 1.
        return_bias: 1/p.
        far_bias: 1/q.
        sums: float64[most neighbours of a row], scratch.
        found: int64[n], out: the neighbour, or ``NO_NODE`` if no edge has weight.
    """
    for i in range(len(walks)):
        start = offsets[rows[i]]
        degree = offsets[rows[i] + 1] - start
        beside_first, beside_stop = previous_offsets[previous_rows[i]], previous_offsets[previous_rows[i] + 1]
        total = 0.0
        for k in range(degree):
            weight = 1.0
            if len(weights) > 0:
                weight = weights[start + k]
            neighbor = neighbors[start + k]
            if neighbor == previous[i]:
                weight *= return_bias
            elif far_bias != 1.0 and not _holds(previous_neighbors, beside_first, beside_stop, neighbor):
                weight *= far_bias
            total += weight
            sums[k] = total
        x = fraction(node_stream(rng_seed, walks[i])) * total
        found[i] = NO_NODE
        reached = 0.0
        for k in range(degree):
            if sums[k] > reached:
                reached = sums[k]
                found[i] = neighbors[start + k]
                if reached > x:
                    break


@inlined
def _holds(values: np.ndarray, low: int, stop: int, wanted: int) -> bool:
    """Return whether the ascending ``values[low:stop]`` hold a value."""
    end = stop
    while low < stop:
        middle = (low + stop) >> 1
        if values[np.uint64(middle)] < wanted:
            low = middle + 1
        else:
            stop = middle
    return low < end and values[np.uint64(low)] == wanted
