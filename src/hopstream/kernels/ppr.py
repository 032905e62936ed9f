"""Walks of personalised PageRank: the nodes that are reached from a seed, and their scores.

[Algorithm] Forward push: a walk is one seed (in one channel) with a residual and a score per node reached. A node whose
    residual is large enough for its degree keeps it as score and passes ``1 - alpha`` of it on to its neighbours.
    Nodes of a batch are numbered once, as *slots*; neighbour lists hold slots and are shared by all walks. What a walk
    reached are its *entries*, in the order in which it reached them, with an open-addressing table from slot to
    entry. A walk's entries and its table are one segment of shared arrays; a segment that is full moves to the end of
    them at twice its size. Nothing depends on the value of a slot, so not on ids, and sums are made in one order.
    Source: Andersen, Chung, Lang, "Local graph partitioning using PageRank vectors", FOCS 2006.
[Cost] One probe of a table per edge passed along; a walk's table stays in a cache while the walk is pushed. At most
    ``1 / (alpha * eps)`` edges are passed along per walk where lists are not cut short.
[Not chosen] One table for all walks of a batch: it falls out of every cache. Dense vectors over the slots of a batch:
    their memory is walks times slots. Power iteration: it touches every node.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN

FIRST_CAPACITY = 64
"""Entries that a walk has room for at first; a power of two."""
NOT_FETCHED = -1
ASKED = -2
QUEUED, OPEN = np.uint8(1), np.uint8(2)
"""Marks of an entry: it waits to be pushed; it has been pushed along its neighbour list."""
START, CAPACITY, COUNT, IS_STALE = 0, 1, 2, 3
"""Columns of ``walks``: first entry of the segment, its room, entries in use, and whether hops must be found again."""
DONE, FULL, TOO_MANY = 0, 1, 2
"""Why pushing ended: the round is over; the arrays are full; a walk reached too many nodes."""


@njit(inline="always")
def _find_entry(
    slot: np.int64, start: np.int64, capacity: np.int64, table: np.ndarray, slots: np.ndarray
) -> tuple[np.int64, np.int64]:
    """The entry of a slot in a walk's segment, or -1, and the place in ``table`` where the search ended."""
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
    """Give every walk a segment with one entry, its seed, whose residual is ``alpha`` and which waits to be pushed.

    Args:
        num_seeds: Seeds; seed ``i`` is slot ``i``, and its walks are ``i * num_channels`` and following.
        num_channels: Walks per seed.
        alpha: As in ``PPRSettings``.
        walks: int64[num_walks, 4], out: see ``START`` and following.
        table: int32[>= 2 * used], out: entry + 1, or 0.
        slots: int32[>= used], out: the slot of each entry.
        masses: float64[>= used, 2], out: residual and score of each entry.
        hops: int32[>= used], out: distance of each entry from the seed.
        marks: uint8[>= used], out.
        queue: int32[>= used], out: entries that wait, from the walk's ``START`` on.
        queue_counts: int64[num_walks], out.

    Returns:
        How much of the arrays is used.
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
    """Find the neighbour lists that waiting nodes need and the batch does not have; each is marked as asked for.

    Args:
        num_channels: As there.
        follows: bool[num_channels, num_types, num_columns]: a channel follows that edge type of a node type.
        types: int32[>= num_slots], node type of each slot.
        lists: int64[>= num_slots, num_columns, 2], in and out: first neighbour and their number; ``NOT_FETCHED``.
        walks: As for ``begin_walks``.
        slots: As there.
        queue: As there.
        queue_counts: As there.
        wanted: int64[2, n], out: slots and columns; n >= sum(queue_counts) * num_columns.

    Returns:
        How many.
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


@njit(inline="always")
def _move_walk(
    walk: int, capacity: np.int64, used: np.int64, walks: np.ndarray, table: np.ndarray, slots: np.ndarray,
    masses: np.ndarray, hops: np.ndarray, marks: np.ndarray, queue: np.ndarray, next_queue: np.ndarray,
) -> None:  # fmt: skip
    """Move a walk's segment to ``used``, with room for ``capacity`` entries."""
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
    """Push every waiting node of every walk once.

    Args:
        first_walk: Where to begin: 0, or where the call before ended.
        first_turn: The same, in the queue of that walk.
        used: How much of the walks' arrays is used.
        num_channels: Walks per seed.
        num_slots: Nodes of the batch so far; no walk reaches more.
        alpha: As in ``PPRSettings``.
        threshold: ``alpha * eps``.
        opens: Nodes may be pushed along their lists for the first time; otherwise those keep their residual as score.
        max_nodes: Nodes that a walk may reach.
        follows: As for ``collect_wanted``.
        types: As there.
        degrees: int64[>= num_slots].
        lists: As for ``collect_wanted``; those of waiting nodes are there, where ``opens``.
        neighbors: int64[e], slots of neighbours.
        walks: As for ``begin_walks``, in and out; so up to ``marks``.
        table: As there.
        slots: As there.
        masses: As there.
        hops: As there.
        marks: As there.
        queue: As there, of this round.
        next_queue: int32[>= used], out: of the next round.
        queue_counts: int64[num_walks], of this round.
        next_counts: int64[num_walks], in and out: of the next round; zeros at first.

    Returns:
        walk: Where it ended.
        turn: The same, in the queue of that walk.
        used: How much of the arrays is used now.
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
    """Find the hops again where a shorter path came to a node after it had passed its own hop on.

    Args:
        num_channels: As for ``push_round``, and so are the others; ``hops`` is out, ``queue`` is scratch.
        follows: As there.
        types: As there.
        lists: As there.
        neighbors: As there.
        walks: As there.
        table: As there.
        slots: As there.
        hops: As there.
        marks: As there.
        queue: As there.
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
    """Write what each channel knows of the nodes that seeds keep.

    Args:
        num_channels: Walks per seed.
        tops_up: Residuals count in scores.
        walks: As for ``push_round``.
        table: As there.
        slots: As there.
        masses: As there.
        hops: As there.
        chosen_slots: int64[rows], nodes, seed by seed.
        counts: int64[num_seeds], rows of each seed.
        attributes: float64[rows, 2 + 3 * num_channels], out from column 2 on: of each channel score, proximity,
            presence.
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
