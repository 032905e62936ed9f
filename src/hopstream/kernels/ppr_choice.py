"""Chooses the nodes that each seed keeps of those that walks reached.

[Algorithm] Channel by channel, then what is left: a heap of bounded size whose root is the worst node kept. Then a heap
    sort by score. Nodes of equal score keep the order in which they were reached, so the choice does not depend on ids.
[Cost] O(reached nodes * log(nodes kept)) per channel and group at worst; next to always one comparison per node.
[Not chosen] Sorting all nodes reached: 50 of some thousands are wanted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.ppr import COUNT, START

NO_CHANNEL = -1


@njit(inline="always")
def _is_better(left: int, right: int, scores: np.ndarray, is_pushed: np.ndarray) -> bool:
    """A candidate is chosen before another: pushed first, then by score, then by discovery."""
    if is_pushed[left] != is_pushed[right]:
        return is_pushed[left]
    if scores[left] != scores[right]:
        return scores[left] > scores[right]
    return left < right


@njit(inline="always")
def _sink(heap: np.ndarray, at: int, size: int, scores: np.ndarray, is_pushed: np.ndarray) -> None:
    """Restore a heap, whose root is the worst, from one place downwards."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_better(heap[child], heap[child + 1], scores, is_pushed):
            child += 1
        if not _is_better(heap[at], heap[child], scores, is_pushed):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@njit(inline="always")
def _sort_best_first(heap: np.ndarray, size: int, scores: np.ndarray, is_chosen: np.ndarray) -> None:
    """Sort chosen nodes by falling score, then by discovery; whether they were pushed no longer counts."""
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, at, size, scores, is_chosen)
    for end in range(size - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        _sink(heap, 0, end, scores, is_chosen)


@njit(inline="always")
def _choose_best(
    num_nodes: int, group: int, channel: int, limit: int, groups: np.ndarray, channels: np.ndarray,
    scores: np.ndarray, is_pushed: np.ndarray, is_chosen: np.ndarray, heap: np.ndarray,
) -> int:  # fmt: skip
    """Mark the best ``limit`` nodes of a group and a channel (``NO_CHANNEL``: of any) that are not chosen yet."""
    size = 0
    for node in range(num_nodes):
        if groups[node] != group or scores[node] <= 0.0 or is_chosen[node]:
            continue
        if channel != NO_CHANNEL and channels[node] != channel:
            continue
        if size < limit:
            heap[size] = node
            size += 1
            if size == limit:
                for at in range(size // 2 - 1, -1, -1):
                    _sink(heap, at, size, scores, is_pushed)
        elif limit > 0 and _is_better(node, heap[0], scores, is_pushed):
            heap[0] = node
            _sink(heap, 0, size, scores, is_pushed)
    for i in range(size):
        is_chosen[heap[i]] = True
    return size


@kernel
def select_nodes(
    num_channels: int, targets: np.ndarray, limit: int, tops_up: bool, group_of_type: np.ndarray, num_groups: int,
    types: np.ndarray, walks: np.ndarray, slots: np.ndarray, masses: np.ndarray, hops: np.ndarray,
    places: np.ndarray, nodes: np.ndarray, groups: np.ndarray, channels: np.ndarray, node_hops: np.ndarray,
    scores: np.ndarray, is_pushed: np.ndarray, is_chosen: np.ndarray, heap: np.ndarray, chosen_slots: np.ndarray,
    attributes: np.ndarray, counts: np.ndarray,
) -> int:  # fmt: skip
    """Choose the nodes of every seed, best first.

    Args:
        num_channels: Walks per seed.
        targets: int64[num_channels], nodes that each channel should have.
        limit: Nodes per seed and group at most.
        tops_up: Nodes that were reached and not pushed fill what is left; residuals count in scores.
        group_of_type: int64[num_types], what ``limit`` is per.
        num_groups: How many.
        types: int32[>= num_slots].
        walks: As for ``push_round``, and so up to ``hops``.
        slots: As there.
        masses: As there.
        hops: As there.
        places: int64[num_slots], scratch: -1 everywhere, before and after.
        nodes: int64[n], scratch, and so up to ``heap``; n >= the entries of all walks of any one seed.
        groups: int64[n].
        channels: int64[n].
        node_hops: int64[n].
        scores: float64[n].
        is_pushed: bool[n].
        is_chosen: bool[n].
        heap: int64[n].
        chosen_slots: int64[>= rows], out.
        attributes: float64[>= rows, >= 2], out: score and proximity of each row.
        counts: int64[num_seeds], out: rows of each seed.

    Returns:
        rows: How many rows were written.
    """
    row = 0
    for seed in range(len(counts)):
        num_nodes = 0
        for channel in range(num_channels):
            walk = seed * num_channels + channel
            start = walks[walk, START]
            for i in range(start, start + walks[walk, COUNT]):
                slot = slots[i]
                score = masses[i, 1]
                if tops_up:
                    score += masses[i, 0]
                node = places[slot]
                if node < 0:
                    node = num_nodes
                    num_nodes += 1
                    places[slot] = node
                    nodes[node] = slot
                    groups[node] = group_of_type[types[slot]]
                    channels[node] = channel
                    node_hops[node] = hops[i]
                    scores[node] = score
                    is_pushed[node] = False
                    is_chosen[node] = False
                elif score > scores[node]:
                    channels[node] = channel
                    scores[node] = score
                node_hops[node] = min(node_hops[node], np.int64(hops[i]))
                is_pushed[node] |= masses[i, 1] > 0.0
        for node in range(num_nodes):
            places[nodes[node]] = -1
        first_row = row
        for group in range(num_groups):
            left = limit
            for channel in range(num_channels):
                left -= _choose_best(
                    num_nodes, group, channel, min(targets[channel], left), groups, channels, scores, is_pushed,
                    is_chosen, heap,
                )  # fmt: skip
            if left > 0:
                _choose_best(
                    num_nodes, group, NO_CHANNEL, left, groups, channels, scores, is_pushed, is_chosen, heap
                )  # fmt: skip
            size = 0
            for node in range(num_nodes):
                if is_chosen[node] and groups[node] == group:
                    heap[size] = node
                    size += 1
            _sort_best_first(heap, size, scores, is_chosen)
            for i in range(size):
                node = heap[i]
                chosen_slots[row] = nodes[node]
                attributes[row, 0] = scores[node]
                attributes[row, 1] = 1.0 / (1.0 + node_hops[node])
                row += 1
        counts[seed] = row - first_row
    return row


@kernel
def number_nodes(
    slots: np.ndarray, types: np.ndarray, numbers: np.ndarray, type_counts: np.ndarray, new_slots: np.ndarray
) -> int:
    """Number the nodes of each type by first occurrence, after those that have a number.

    Args:
        slots: int64[n].
        types: int32[>= num_slots].
        numbers: int64[num_slots], in and out: -1 where there is none.
        type_counts: int64[num_types], in and out: numbers given in each type.
        new_slots: int64[n], out: slots that had no number, in order.

    Returns:
        How many ``new_slots`` there are.
    """
    num_new = 0
    for slot in slots:
        if numbers[slot] < 0:
            numbers[slot] = type_counts[types[slot]]
            type_counts[types[slot]] += 1
            new_slots[num_new] = slot
            num_new += 1
    return num_new
