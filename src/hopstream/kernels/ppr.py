"""Walks of personalised PageRank: finds and scores nodes around seeds, and selects the best.

[Algorithm] Forward push: a walk is one seed (in one channel) with a residual and a score per reached node. A node whose
    residual is large enough for its degree adds it to its score and passes ``1 - alpha`` of it on to its neighbours.
    Nodes of a batch are numbered once, as *slots*; neighbour lists hold slots and are shared by all walks. The nodes
    that a walk reached are its *entries*, in the order of discovery, with an open-addressing table from slot to entry.
    A walk's entries and its table are one segment of shared arrays; a full segment moves to the end of the arrays at
    twice its size. Results do not depend on the values of slots or ids, and sums have a fixed order.
    Source: Andersen, Chung, Lang, "Local graph partitioning using PageRank vectors", FOCS 2006.
[Cost] One probe of a table per traversed edge; a walk's table stays in a cache while the walk is pushed. At most
    ``1 / (alpha * eps)`` edges are traversed per walk if lists are not cut.
[Not chosen] One table for all walks of a batch: it exceeds every cache. Dense vectors over the slots of a batch:
    their memory is walks times slots. Power iteration: it touches every node.

[Algorithm] Selection per channel, then for the rest: a heap of bounded size with the worst kept node at its root. Then
    a heap sort by score. Nodes of equal score keep the order of discovery, so the choice does not depend on ids.
[Cost] O(reached nodes * log(kept nodes)) per channel and group at worst; nearly always one comparison per node.
[Not chosen] Sorting all reached nodes: of some thousands, 50 are kept.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN

FIRST_CAPACITY = 64
"""Initial capacity of a walk in entries; a power of two."""
NOT_FETCHED = -1
ASKED = -2
QUEUED, OPEN = np.uint8(1), np.uint8(2)
"""Marks of an entry: waits to be pushed; has been pushed along its neighbour list."""
START, CAPACITY, COUNT, IS_STALE = 0, 1, 2, 3
"""Columns of ``walks``: first entry of the segment, its capacity, entries in use, whether hops must be recomputed."""
DONE, FULL, TOO_MANY = 0, 1, 2
"""Reasons for the end of a push: the round is over; the arrays are full; a walk reached too many nodes."""


@inlined
def _find_entry(
    slot: np.int64, start: np.int64, capacity: np.int64, table: np.ndarray, slots: np.ndarray
) -> tuple[np.int64, np.int64]:
    """Find the entry of a slot in a walk's segment, or -1, and its position in ``table``."""
    mask = 2 * capacity - 1
    probe = np.int64((np.uint64(slot) * GOLDEN) >> np.uint64(32)) & mask
    while True:
        place = 2 * start + probe
        entry = np.int64(table[place]) - 1
        if entry < 0 or slots[start + entry] == slot:
            return entry, place
        probe = (probe + 1) & mask


@kernel
def begin_walks(
    num_seeds: int, num_channels: int, alpha: float, walks: np.ndarray, table: np.ndarray, slots: np.ndarray,
    masses: np.ndarray, hops: np.ndarray, marks: np.ndarray, queue: np.ndarray, queue_counts: np.ndarray,
) -> int:  # fmt: skip
    """Begin every walk: a segment with one queued entry, the seed, with residual ``alpha``.

    Args:
        num_seeds: Seeds; seed ``i`` is slot ``i``, and its walks are numbered from ``i * num_channels``.
        num_channels: Walks per seed.
        alpha: As in ``PPRSettings``.
        walks: int64[num_walks, 4], out: see ``START`` and following.
        table: int32[>= 2 * used], out: entry + 1, or 0.
        slots: int32[>= used], out: the slot of each entry.
        masses: float64[>= used, 2], out: residual and score of each entry.
        hops: int32[>= used], out: distance of each entry from the seed.
        marks: uint8[>= used], out.
        queue: int32[>= used], out: queued entries, from the walk's ``START`` on.
        queue_counts: int64[num_walks], out.

    Returns:
        Used length of the arrays.
    """
    used = 0
    for walk in range(num_seeds * num_channels):
        walks[walk, START] = used
        walks[walk, CAPACITY] = FIRST_CAPACITY
        walks[walk, COUNT] = 1
        walks[walk, IS_STALE] = 0
        table[2 * used : 2 * (used + FIRST_CAPACITY)] = 0
        slot = walk // num_channels
        _, place = _find_entry(slot, used, FIRST_CAPACITY, table, slots)
        table[place] = 1
        slots[used] = slot
        masses[used, 0] = alpha
        masses[used, 1] = 0.0
        hops[used] = 0
        marks[used] = QUEUED
        queue[used] = 0
        queue_counts[walk] = 1
        used += FIRST_CAPACITY
    return used


@kernel
def collect_wanted(
    num_channels: int, follows: np.ndarray, types: np.ndarray, lists: np.ndarray, walks: np.ndarray,
    slots: np.ndarray, queue: np.ndarray, queue_counts: np.ndarray, wanted: np.ndarray,
) -> int:  # fmt: skip
    """Find the neighbour lists that queued nodes need and that are not fetched; mark them as asked for.

    Args:
        num_channels: Walks per seed.
        follows: bool[num_channels, num_types, num_columns], whether a channel follows an edge type of a node type.
        types: int32[>= num_slots], node type of each slot.
        lists: int64[>= num_slots, num_columns, 2], in and out: position of the first neighbour, or ``NOT_FETCHED`` or
            ``ASKED``, and number of neighbours.
        walks: As for ``begin_walks``.
        slots: As for ``begin_walks``.
        queue: As for ``begin_walks``.
        queue_counts: As for ``begin_walks``.
        wanted: int64[2, n], out: slots and columns; n >= sum(queue_counts) * num_columns.

    Returns:
        Number of lists.
    """
    num_wanted = 0
    for walk in range(len(walks)):
        start = walks[walk, START]
        channel = walk % num_channels
        for i in range(queue_counts[walk]):
            slot = slots[start + queue[start + i]]
            for column in range(follows.shape[2]):
                if follows[channel, types[slot], column] and lists[slot, column, 0] == NOT_FETCHED:
                    lists[slot, column, 0] = ASKED
                    wanted[0, num_wanted] = slot
                    wanted[1, num_wanted] = column
                    num_wanted += 1
    return num_wanted


@inlined
def _move_walk(
    walk: int, capacity: np.int64, used: np.int64, walks: np.ndarray, table: np.ndarray, slots: np.ndarray,
    masses: np.ndarray, hops: np.ndarray, marks: np.ndarray, queue: np.ndarray, next_queue: np.ndarray,
) -> None:  # fmt: skip
    """Move a walk's segment to ``used``, with a capacity of ``capacity`` entries."""
    old, count = walks[walk, START], walks[walk, COUNT]
    table[2 * used : 2 * (used + capacity)] = 0
    for i in range(count):
        slots[used + i] = slots[old + i]
        masses[used + i, 0] = masses[old + i, 0]
        masses[used + i, 1] = masses[old + i, 1]
        hops[used + i] = hops[old + i]
        marks[used + i] = marks[old + i]
        queue[used + i] = queue[old + i]
        next_queue[used + i] = next_queue[old + i]
        _, place = _find_entry(slots[used + i], used, capacity, table, slots)
        table[place] = i + 1
    walks[walk, START] = used
    walks[walk, CAPACITY] = capacity


@kernel
def push_round(
    first_walk: int, first_turn: int, used: int, num_channels: int, num_slots: int, alpha: float, threshold: float,
    opens: bool, max_nodes: int, follows: np.ndarray, types: np.ndarray, degrees: np.ndarray, lists: np.ndarray,
    neighbors: np.ndarray, walks: np.ndarray, table: np.ndarray, slots: np.ndarray, masses: np.ndarray,
    hops: np.ndarray, marks: np.ndarray, queue: np.ndarray, next_queue: np.ndarray, queue_counts: np.ndarray,
    next_counts: np.ndarray,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Push every queued node of every walk once.

    Args:
        first_walk: The walk to begin with: 0, or the walk at which the previous call ended.
        first_turn: Position in the queue of that walk.
        used: Used length of the walks' arrays.
        num_channels: Walks per seed.
        num_slots: Nodes of the batch so far; no walk reaches more.
        alpha: As in ``PPRSettings``.
        threshold: ``alpha * eps``.
        opens: Nodes may be pushed along their lists for the first time; if False, they keep their residual as score.
        max_nodes: Most nodes that a walk may reach.
        follows: As for ``collect_wanted``.
        types: As for ``collect_wanted``.
        degrees: int64[>= num_slots].
        lists: As for ``collect_wanted``; with ``opens``, lists of queued nodes must be fetched.
        neighbors: int64[e], slots of neighbours.
        walks: As for ``begin_walks``, in and out; likewise the next ones up to ``marks``.
        table: As for ``begin_walks``.
        slots: As for ``begin_walks``.
        masses: As for ``begin_walks``.
        hops: As for ``begin_walks``.
        marks: As for ``begin_walks``.
        queue: As for ``begin_walks``; queue of this round.
        next_queue: int32[>= used], out: queue of the next round.
        queue_counts: int64[num_walks], lengths of this round's queues.
        next_counts: int64[num_walks], in and out: lengths of the next round's queues; zeros at first.

    Returns:
        walk: The walk at which the call ended.
        turn: Position in the queue of that walk.
        used: New used length of the arrays.
        reason: ``DONE``; ``FULL``: call again with larger arrays; or ``TOO_MANY``.
    """
    room = np.int64(len(slots))
    num_columns = follows.shape[2]
    for walk in range(first_walk, len(walks)):
        channel = walk % num_channels
        start, capacity, count = walks[walk, START], walks[walk, CAPACITY], walks[walk, COUNT]
        for turn in range(first_turn if walk == first_walk else 0, queue_counts[walk]):
            entry = np.int64(queue[start + turn])
            slot = slots[start + entry]
            is_open = opens or (marks[start + entry] & OPEN) != 0
            total = np.int64(0)
            if is_open:
                for column in range(num_columns):
                    if follows[channel, types[slot], column]:
                        total += lists[slot, column, 1]
            most = min(count + total, np.int64(num_slots))
            if most > capacity:
                larger = 2 * capacity
                while larger < most:
                    larger *= 2
                walks[walk, COUNT] = count
                if used + larger > room:
                    return walk, turn, used, FULL
                _move_walk(walk, larger, used, walks, table, slots, masses, hops, marks, queue, next_queue)
                start, capacity = np.int64(used), larger
                used += larger
            residual = masses[start + entry, 0]
            masses[start + entry, 0] = 0.0
            masses[start + entry, 1] += residual
            marks[start + entry] &= ~QUEUED
            if total == 0:
                continue
            marks[start + entry] |= OPEN
            share = (1.0 - alpha) * residual / total
            hop = hops[start + entry] + 1
            for column in range(num_columns):
                if not follows[channel, types[slot], column]:
                    continue
                first = lists[slot, column, 0]
                for k in range(first, first + lists[slot, column, 1]):
                    neighbor = neighbors[np.uint64(k)]
                    found, place = _find_entry(neighbor, start, capacity, table, slots)
                    if found < 0:
                        found = count
                        count += 1
                        table[place] = found + 1
                        slots[start + found] = neighbor
                        masses[start + found, 0] = 0.0
                        masses[start + found, 1] = 0.0
                        hops[start + found] = hop
                        marks[start + found] = 0
                    elif hop < hops[start + found]:
                        hops[start + found] = hop
                        if marks[start + found] & OPEN:
                            walks[walk, IS_STALE] = 1
                    masses[start + found, 0] += share
                    if not marks[start + found] & QUEUED and masses[start + found, 0] >= threshold * degrees[neighbor]:
                        marks[start + found] |= QUEUED
                        next_queue[start + next_counts[walk]] = found
                        next_counts[walk] += 1
            if count > max_nodes:
                walks[walk, COUNT] = count
                return walk, turn, used, TOO_MANY
        walks[walk, COUNT] = count
    return len(walks), 0, used, DONE


@kernel
def settle_hops(
    num_channels: int, follows: np.ndarray, types: np.ndarray, lists: np.ndarray, neighbors: np.ndarray,
    walks: np.ndarray, table: np.ndarray, slots: np.ndarray, hops: np.ndarray, marks: np.ndarray, queue: np.ndarray,
) -> None:  # fmt: skip
    """Recompute the hops of walks in which a shorter path reached a node after that node was pushed.

    Args:
        num_channels: As for ``push_round``.
        follows: As for ``push_round``.
        types: As for ``push_round``.
        lists: As for ``push_round``.
        neighbors: As for ``push_round``.
        walks: As for ``push_round``.
        table: As for ``push_round``.
        slots: As for ``push_round``.
        hops: As for ``push_round``; in and out.
        marks: As for ``push_round``.
        queue: int32[>= used], scratch.
    """
    for walk in range(len(walks)):
        if not walks[walk, IS_STALE]:
            continue
        start, capacity, count = walks[walk, START], walks[walk, CAPACITY], walks[walk, COUNT]
        hops[start : start + count] = -1
        hops[start] = 0
        queue[start] = 0
        num_queued = 1
        turn = 0
        while turn < num_queued:
            entry = np.int64(queue[start + turn])
            turn += 1
            if not marks[start + entry] & OPEN:
                continue
            slot = slots[start + entry]
            for column in range(follows.shape[2]):
                if not follows[walk % num_channels, types[slot], column]:
                    continue
                first = lists[slot, column, 0]
                for k in range(first, first + lists[slot, column, 1]):
                    found, _ = _find_entry(neighbors[np.uint64(k)], start, capacity, table, slots)
                    if hops[start + found] < 0:
                        hops[start + found] = hops[start + entry] + 1
                        queue[start + num_queued] = found
                        num_queued += 1


@kernel
def describe_channels(
    num_channels: int, tops_up: bool, walks: np.ndarray, table: np.ndarray, slots: np.ndarray, masses: np.ndarray,
    hops: np.ndarray, chosen_slots: np.ndarray, counts: np.ndarray, attributes: np.ndarray,
) -> None:  # fmt: skip
    """Write the channels' attributes of the chosen nodes.

    Args:
        num_channels: Walks per seed.
        tops_up: Add residuals to scores.
        walks: As for ``push_round``.
        table: As for ``push_round``.
        slots: As for ``push_round``.
        masses: As for ``push_round``.
        hops: As for ``push_round``.
        chosen_slots: int64[rows], chosen nodes, seed by seed.
        counts: int64[num_seeds], rows of each seed.
        attributes: float64[rows, 2 + 3 * num_channels], out from column 2 on: score, proximity and presence of each
            channel.
    """
    first = 0
    for seed in range(len(counts)):
        for row in range(first, first + counts[seed]):
            for channel in range(num_channels):
                walk = seed * num_channels + channel
                start = walks[walk, START]
                entry, _ = _find_entry(np.int64(chosen_slots[row]), start, walks[walk, CAPACITY], table, slots)
                column = 2 + 3 * channel
                attributes[row, column : column + 3] = 0.0
                if entry >= 0:
                    residual = masses[start + entry, 0] if tops_up else 0.0
                    attributes[row, column] = masses[start + entry, 1] + residual
                    attributes[row, column + 1] = 1.0 / (1.0 + hops[start + entry])
                    attributes[row, column + 2] = 1.0
        first += counts[seed]


NO_CHANNEL = -1


@inlined
def _is_better(left: int, right: int, scores: np.ndarray, is_pushed: np.ndarray) -> bool:
    """Return whether a candidate precedes another: pushed first, then by score, then by discovery."""
    if is_pushed[left] != is_pushed[right]:
        return is_pushed[left]
    if scores[left] != scores[right]:
        return scores[left] > scores[right]
    return left < right


@inlined
def _sink(heap: np.ndarray, at: int, size: int, scores: np.ndarray, is_pushed: np.ndarray) -> None:
    """Restore a heap, with the worst node at the root, from one position downwards."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_better(heap[child], heap[child + 1], scores, is_pushed):
            child += 1
        if not _is_better(heap[at], heap[child], scores, is_pushed):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@inlined
def _sort_best_first(heap: np.ndarray, size: int, scores: np.ndarray, is_chosen: np.ndarray) -> None:
    """Sort chosen nodes by falling score, then by discovery."""
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, at, size, scores, is_chosen)
    for end in range(size - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        _sink(heap, 0, end, scores, is_chosen)


@inlined
def _choose_best(
    num_nodes: int, group: int, channel: int, limit: int, groups: np.ndarray, channels: np.ndarray,
    scores: np.ndarray, is_pushed: np.ndarray, is_chosen: np.ndarray, heap: np.ndarray,
) -> int:  # fmt: skip
    """Choose the best ``limit`` remaining nodes of a group and a channel, or of any with ``NO_CHANNEL``.

    Returns:
        Number of chosen nodes.
    """
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
        targets: int64[num_channels], number of nodes that each channel should get.
        limit: Most nodes per seed and group.
        tops_up: Fill up with nodes that were reached but not pushed, and add residuals to scores.
        group_of_type: int64[num_types], the group of each node type.
        num_groups: Number of groups.
        types: int32[>= num_slots].
        walks: As for ``push_round``.
        slots: As for ``push_round``.
        masses: As for ``push_round``.
        hops: As for ``push_round``.
        places: int64[num_slots], scratch: -1 everywhere, before and after.
        nodes: int64[n], scratch; n >= the entries of all walks of any one seed.
        groups: int64[n], scratch.
        channels: int64[n], scratch.
        node_hops: int64[n], scratch.
        scores: float64[n], scratch.
        is_pushed: bool[n], scratch.
        is_chosen: bool[n], scratch.
        heap: int64[n], scratch.
        chosen_slots: int64[>= rows], out.
        attributes: float64[>= rows, >= 2], out: score and proximity of each row.
        counts: int64[num_seeds], out: rows of each seed.

    Returns:
        rows: Number of written rows.
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
    """Number the new nodes of each type by first occurrence, after the nodes with a number.

    Args:
        slots: int64[n].
        types: int32[>= num_slots].
        numbers: int64[num_slots], in and out: number of each slot, or -1.
        type_counts: int64[num_types], in and out: numbers in use per type.
        new_slots: int64[n], out: slots that had no number, in order.

    Returns:
        Number of ``new_slots``.
    """
    num_new = 0
    for slot in slots:
        if numbers[slot] < 0:
            numbers[slot] = type_counts[types[slot]]
            type_counts[types[slot]] += 1
            new_slots[num_new] = slot
            num_new += 1
    return num_new
