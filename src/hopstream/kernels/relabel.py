"""Which slot does each id get in a subgraph?

[Algorithm] One open-addressing hash table per node type and batch: a power of two of (id, generation and slot) pairs
    in one array, linear probing. A new batch only raises the generation, so the table is never cleared. The caller
    grows the table when the kernel says that it is half full; it starts from the size of earlier batches, not from the
    worst case.
[Cost] One cache miss per id, prefetched ``PROBE_AHEAD`` ids ahead.
[Not chosen] A dense map over the global id space: one access, but memory is then sized by the whole graph, per thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import prefetch_address

PROBE_AHEAD = 16
ENTRY_BYTES = 16
SLOT_BITS = np.int64(32)
SLOT_MASK = np.int64(0xFFFFFFFF)


@njit(inline="always")
def _home(identifier: np.int64, shift: np.uint64) -> np.uint64:
    """The first entry to probe: the upper bits of a Fibonacci hash."""
    return (np.uint64(identifier) * GOLDEN) >> shift


@njit(cache=True, nogil=True)
def assign_slots(
    ids: np.ndarray, first: int, table: np.ndarray, shift: np.uint64, generation: int, node_ids: np.ndarray,
    num_nodes: int, slots: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Give each id its slot: the one it has, or the next free one.

    Args:
        ids: uint32 or int64[n].
        first: Where to begin in ``ids``; ids before it have been done.
        table: int64[capacity, 2], capacity a power of two: id, and generation << 32 | slot.
        shift: 64 minus log2 of the capacity.
        generation: Entries of any other generation are empty.
        node_ids: int64[>= capacity / 2], in and out: the id of each slot.
        num_nodes: Slots in use at the start.
        slots: int64[n], out.

    Returns:
        done: How many of ``ids`` have slots; fewer than n where the table became half full.
        num_nodes: Slots in use at the end.
    """
    num_ids = len(ids)
    mask = np.uint64(len(table) - 1)
    limit = len(table) >> 1
    base = np.int64(table.ctypes.data)
    for i in range(first, min(first + PROBE_AHEAD, num_ids)):
        prefetch_address(base + np.int64(_home(np.int64(ids[np.uint64(i)]), shift)) * ENTRY_BYTES)
    for i in range(first, num_ids):
        ahead = i + PROBE_AHEAD
        if ahead < num_ids:
            prefetch_address(base + np.int64(_home(np.int64(ids[np.uint64(ahead)]), shift)) * ENTRY_BYTES)
        identifier = np.int64(ids[np.uint64(i)])
        probe = _home(identifier, shift)
        while True:
            mark = table[probe, 1]
            if (mark >> SLOT_BITS) != generation:
                if num_nodes >= limit:
                    return i, num_nodes
                table[probe, 0] = identifier
                table[probe, 1] = (np.int64(generation) << SLOT_BITS) | np.int64(num_nodes)
                node_ids[np.uint64(num_nodes)] = identifier
                slots[np.uint64(i)] = num_nodes
                num_nodes += 1
                break
            if table[probe, 0] == identifier:
                slots[np.uint64(i)] = mark & SLOT_MASK
                break
            probe = (probe + np.uint64(1)) & mask
    return num_ids, num_nodes


@njit(cache=True, nogil=True)
def repeat_slots(first_slot: int, counts: np.ndarray, out: np.ndarray, written: int) -> int:
    """Write slot ``first_slot + i`` ``counts[i]`` times to ``out`` from ``written`` on; return where it ends.

    Args:
        first_slot: The slot of the first count.
        counts: int32[n].
        out: int64[>= written + sum(counts)], out.
        written: Where to begin in ``out``.
    """
    for i in range(len(counts)):
        for _ in range(counts[i]):
            out[np.uint64(written)] = first_slot + i
            written += 1
    return written
