"""Probes of the machine's memory: latency, random reads and bandwidth.

[Algorithm] Dependent reads follow a random cycle, so each waits for the one before: this measures latency. Independent
    reads sum random entries: this measures how many cache misses the core overlaps. A copy measures bandwidth. All
    three use arrays far larger than the last-level cache, on one thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from benchmarks.harness import Figures, read_options, repeat, report
from hopstream.kernels.hashing import permute_range

NUM_SLOTS = 1 << 26
NUM_DEPENDENT_READS = 1 << 21
NUM_INDEPENDENT_READS = 1 << 24


@njit(nogil=True)
def link_cycle(order: np.ndarray, following: np.ndarray) -> None:
    """Write ``following`` as a cycle through all slots in the given order."""
    for i in range(len(order) - 1):
        following[order[i]] = order[i + 1]
    following[order[-1]] = order[0]


@njit(nogil=True)
def follow(following: np.ndarray, num_reads: int) -> int:
    """Read ``num_reads`` slots along the cycle."""
    slot = np.uint64(0)
    for _ in range(num_reads):
        slot = np.uint64(following[slot])
    return slot


@njit(nogil=True)
def sum_at(values: np.ndarray, slots: np.ndarray) -> int:
    """Sum the entries of random slots."""
    total = np.int64(0)
    for i in range(len(slots)):
        total += values[np.uint64(slots[i])]
    return total


def probe_memory(num_repeats: int) -> Figures:
    """Measure ns per dependent and independent read of 4 bytes, and GB/s of a copy (bytes read)."""
    order = np.empty(NUM_SLOTS, np.int64)
    permute_range(0, NUM_SLOTS, np.uint64(1), order)
    following = np.empty(NUM_SLOTS, np.uint32)
    link_cycle(order, following)
    slots = order[:NUM_INDEPENDENT_READS].copy()
    target = order.copy()
    dependent = repeat(lambda: follow(following, NUM_DEPENDENT_READS), num_repeats)
    independent = repeat(lambda: sum_at(following, slots), num_repeats)
    copied = repeat(lambda: np.copyto(target, order), num_repeats)
    return {
        "dependent_read_ns": dependent.median_s / NUM_DEPENDENT_READS * 1e9,
        "independent_read_ns": independent.median_s / NUM_INDEPENDENT_READS * 1e9,
        "memcpy_gb_per_s": order.nbytes / copied.median_s / 1e9,
    }


def main() -> None:
    """Run the probes by themselves."""
    options = read_options(__doc__ or "")
    report("probes", {"array_mb": NUM_SLOTS * 4 / 1e6}, probe_memory(options.num_repeats))


if __name__ == "__main__":
    main()
