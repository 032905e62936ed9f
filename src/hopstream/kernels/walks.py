"""Draws the next nodes of second-order random walks.

[Algorithm] A second-order walk that came from t and stands at v goes to a neighbour x in proportion to the weight of
    the edge times a bias: 1/p where x is t, 1 where t leads to x, 1/q elsewhere. By rejection: candidates are drawn
    without the bias, and one is taken with probability bias / largest bias. Most are decided by their draw alone; only
    where the draw lies between the biases of neighbours and strangers of t must the store be asked which x is. What
    rejection leaves open is drawn exactly, over all edges of v: two passes, one that adds up, one that stops.
    Source: Grover, Leskovec, "node2vec: Scalable feature learning for networks", KDD 2016; Yang et al., "KnightKing: A
    fast distributed graph random walk engine", SOSP 2019.
[Cost] O(1) per candidate; O(degree(v) * log(degree(t))) for an exact draw, O(degree(v)) where q is 1.
[Not chosen] Alias tables per pair of nodes, as node2vec proposes: O(edges * degree) memory. An exact draw always: every
    step reads every edge of v and of t, and walks meet hubs often.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN, mix64, node_stream
from hopstream.kernels.reals import fraction

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
    """Accept or reject candidates where this does not depend on the edges of the previous node.

    Args:
        rng_seed: uint64.
        walks: int64[n], numbers of walks.
        candidates: int64[n, m], ids drawn without the bias.
        previous: int64[n], ids of the nodes that the walks came from; ``NO_NODE``: every candidate is as good.
        return_bias: 1/p.
        far_bias: 1/q.
        verdicts: uint8[n, m], out. ``OPEN`` means: accepted if and only if the previous node does (where ``far_bias``
            is below 1) or does not (where it is above) lead to the candidate.
    """
    largest = max(return_bias, 1.0, far_bias)
    surely = min(1.0, far_bias)
    possibly = max(1.0, far_bias)
    for i in range(candidates.shape[0]):
        stream = node_stream(rng_seed, walks[i])
        for k in range(candidates.shape[1]):
            level = fraction(mix64(stream + np.uint64(k) * GOLDEN)) * largest
            if previous[i] == NO_NODE:
                verdicts[i, k] = ACCEPTED
            elif candidates[i, k] == previous[i]:
                verdicts[i, k] = ACCEPTED if level < return_bias else REJECTED
            elif level < surely:
                verdicts[i, k] = ACCEPTED
            else:
                verdicts[i, k] = OPEN if level < possibly else REJECTED


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
        weights: float64[m], or float64[0] where all weigh the same.
        previous: int64[n], ids of the nodes that the walks came from.
        previous_rows: int64[n], the same for the edges of those nodes.
        previous_offsets: int64[num_previous_rows + 1].
        previous_neighbors: int64[k], ids, ascending in each row; not looked at where ``far_bias`` is 1.
        return_bias: 1/p.
        far_bias: 1/q.
        sums: float64[most neighbors of a row], scratch.
        found: int64[n], out: the neighbour, or ``NO_NODE`` where none has weight.
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
    """Whether the ascending ``values[low:stop]`` hold a value."""
    end = stop
    while low < stop:
        middle = (low + stop) >> 1
        if values[np.uint64(middle)] < wanted:
            low = middle + 1
        else:
            stop = middle
    return low < end and values[np.uint64(low)] == wanted
