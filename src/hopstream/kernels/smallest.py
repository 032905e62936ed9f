"""Selects the few edges of a row with the smallest variates.

[Algorithm] A heap of the ``count`` smallest variates so far, with the largest on top, in two arrays that the caller
    owns; equal variates are ordered by position. Then the positions are sorted: few by insertion, others by heap sort.
    Up to ``FEW`` random positions are sorted by branchless swaps: insertion mispredicts about once per position.
[Cost] One comparison for most edges; about ``count * log(num / count)`` edges enter the heap: O(num + count *
    log(count) * log(num / count)).
[Not chosen] Sorting all variates: O(num) memory and 10 times the comparisons. Quickselect: O(num) memory.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel

INSERTION_LIMIT = 32
FEW = 16


@inlined
def is_after(variates: np.ndarray, positions: np.ndarray, first: int, left: int, right: int) -> bool:
    """Return whether the ``left`` entry comes after the ``right`` one, by variate, then by position."""
    left_variate, right_variate = variates[np.uint64(left)], variates[np.uint64(right)]
    if left_variate != right_variate:
        return left_variate > right_variate
    return positions[np.uint64(first + left)] > positions[np.uint64(first + right)]


@inlined
def swap_entries(variates: np.ndarray, positions: np.ndarray, first: int, left: int, right: int) -> None:
    """Exchange two entries."""
    variate, position = variates[np.uint64(left)], positions[np.uint64(first + left)]
    variates[np.uint64(left)] = variates[np.uint64(right)]
    positions[np.uint64(first + left)] = positions[np.uint64(first + right)]
    variates[np.uint64(right)] = variate
    positions[np.uint64(first + right)] = position


@inlined
def sink_entry(variates: np.ndarray, positions: np.ndarray, first: int, size: int) -> None:
    """Restore a heap of ``size`` entries after its root has changed."""
    parent = 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and is_after(variates, positions, first, child + 1, child):
            child += 1
        if not is_after(variates, positions, first, child, parent):
            break
        swap_entries(variates, positions, first, child, parent)
        parent = child


@kernel
def offer(
    variates: np.ndarray, positions: np.ndarray, first: int, size: int, count: int, variate: np.uint64, position: int
) -> int:
    """Add an entry to a heap of the ``count`` smallest; entries must come in order of position.

    Args:
        variates: uint64[count], the heap.
        positions: int64[n], the heap's positions from ``first`` on.
        first: See ``positions``.
        size: Entries in the heap.
        count: Most entries in the heap; at least 1.
        variate: Variate of the new entry.
        position: Position of the new entry.

    Returns:
        New number of entries in the heap.
    """
    if size < count:
        variates[np.uint64(size)] = variate
        positions[np.uint64(first + size)] = position
        child = size
        while child > 0:
            parent = (child - 1) >> 1
            if not is_after(variates, positions, first, child, parent):
                break
            swap_entries(variates, positions, first, child, parent)
            child = parent
        return size + 1
    if variate >= variates[0]:
        return size
    variates[0] = variate
    positions[np.uint64(first)] = position
    sink_entry(variates, positions, first, size)
    return size


@kernel
def sort_by_variate(variates: np.ndarray, positions: np.ndarray, first: int, size: int) -> None:
    """Sort a heap made by ``offer`` in place, by variate, then by position."""
    for last in range(size - 1, 0, -1):
        swap_entries(variates, positions, first, 0, last)
        sink_entry(variates, positions, first, last)


@kernel
def sort_positions(positions: np.ndarray, first: int, size: int) -> None:
    """Sort ``positions[first:first + size]`` in place."""
    if size <= INSERTION_LIMIT:
        for i in range(first + 1, first + size):
            position = positions[np.uint64(i)]
            j = i
            while j > first and positions[np.uint64(j - 1)] > position:
                positions[np.uint64(j)] = positions[np.uint64(j - 1)]
                j -= 1
            positions[np.uint64(j)] = position
        return
    for root in range(size // 2 - 1, -1, -1):
        _sift_down(positions, first, root, size)
    for last in range(size - 1, 0, -1):
        top = positions[np.uint64(first)]
        positions[np.uint64(first)] = positions[np.uint64(first + last)]
        positions[np.uint64(first + last)] = top
        _sift_down(positions, first, 0, last)


@inlined
def sort_few(positions: np.ndarray, first: int, size: int) -> None:
    """Sort ``positions[first:first + size]`` in place; up to ``FEW`` by branchless swaps."""
    if size > FEW:
        sort_positions(positions, first, size)
        return
    for i in range(first + 1, first + size):
        position = positions[np.uint64(i)]
        for k in range(first, i):
            other = positions[np.uint64(k)]
            positions[np.uint64(k)] = min(other, position)
            position = max(other, position)
        positions[np.uint64(i)] = position


@inlined
def drop_repeated(positions: np.ndarray, first: int, size: int) -> int:
    """Remove duplicates from sorted ``positions[first:first + size]``; return the number that is left."""
    has_repeated = False
    for k in range(first + 1, first + size):
        has_repeated |= positions[np.uint64(k)] == positions[np.uint64(k - 1)]
    if not has_repeated:
        return size
    kept = 1
    for k in range(first + 1, first + size):
        position = positions[np.uint64(k)]
        if position != positions[np.uint64(first + kept - 1)]:
            positions[np.uint64(first + kept)] = position
            kept += 1
    return kept


@inlined
def insert_position(position: int, positions: np.ndarray, first: int, drawn: int) -> bool:
    """Insert a position into sorted ``positions[first:first + drawn]``; return False if present."""
    low = first
    num = drawn
    while num > 0:
        half = num >> 1
        if positions[np.uint64(low + half)] < position:
            low += half + 1
            num -= half + 1
        else:
            num = half
    if low < first + drawn and positions[np.uint64(low)] == position:
        return False
    for i in range(first + drawn, low, -1):
        positions[np.uint64(i)] = positions[np.uint64(i - 1)]
    positions[np.uint64(low)] = position
    return True


@inlined
def _sift_down(positions: np.ndarray, first: int, root: int, size: int) -> None:
    position = positions[np.uint64(first + root)]
    parent = root
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and positions[np.uint64(first + child + 1)] > positions[np.uint64(first + child)]:
            child += 1
        if positions[np.uint64(first + child)] <= position:
            break
        positions[np.uint64(first + parent)] = positions[np.uint64(first + child)]
        parent = child
    positions[np.uint64(first + parent)] = position
