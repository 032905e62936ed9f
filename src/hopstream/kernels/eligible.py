"""May an edge be drawn, where neighbours are excluded or only some are candidates?

[Algorithm] Three sets of open addressing with linear probing, built once per request: nodes that have excluded
    neighbours, pairs of such a node and a neighbour, and candidates, which are one number each, of trees too. A set is
    a power of two of entries, at least twice as many as it holds; -1 is an empty entry. Few of a hub's neighbours are
    candidates, so a sieve is asked before their set: one bit of 32 or more per member.
[Cost] One probe per node, which is all that nodes without excluded neighbours pay; one per edge of the others. The
    tables of a batch fit into the second cache. Where one edge in 20 leads to a candidate: 2.3 ns per edge.
[Not chosen] Sorted pairs and binary search: 11 steps per node and per edge for 2000 pairs. A bit per id: memory and
    cache misses grow with the graph. No sieve: 8.6 ns, because whether an entry is empty is a branch that no processor
    foresees. A set for each tree, in the first cache: 8.4 ns for the same reason; nearly as fast as a sieve where it
    has 8 entries per member, in three times the memory.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN
from hopstream.kernels.memory import array_at

PAIR_FACTOR = np.uint64(0xD1B54A32D192ED03)
EMPTY = np.int64(-1)
MIN_CAPACITY = 16
ENTRIES_PER_WORD = 4
ONE = np.uint64(1)
WORD_BITS = np.uint64(6)
WORD_MASK = np.uint64(63)


def set_capacity(num_members: int) -> int:
    """Entries of a set that will hold so many members."""
    return max(MIN_CAPACITY, 1 << (2 * num_members - 1).bit_length())


def empty_set(num_entries: int) -> NDArray[np.int64]:
    """int64[num_entries] of empty entries."""
    return np.full(num_entries, EMPTY, np.int64)


def empty_sieve(num_entries: int) -> NDArray[np.uint64]:
    """uint64[words] that nothing passes, for a set of so many entries."""
    return np.zeros(num_entries // ENTRIES_PER_WORD, np.uint64)


@njit(inline="always")
def set_shift(num_entries: int) -> np.uint64:
    """64 minus log2 of a power of two."""
    shift = np.uint64(64)
    while num_entries > 1:
        num_entries >>= 1
        shift -= ONE
    return shift


@njit(inline="always")
def sieve_shift(num_words: int) -> np.uint64:
    """64 minus log2 of the bits of a power of two of words."""
    return set_shift(num_words) - WORD_BITS


@njit(inline="always")
def has_id(table: int, num_entries: int, shift: np.uint64, identifier: int) -> bool:
    """Whether an id is in a set made by ``add_ids``.

    Args:
        table: Address of the set: numba counts references to arrays that are handed on under a condition.
        num_entries: Its length.
        shift: ``set_shift(num_entries)``.
        identifier: The id.
    """
    entries = array_at(table, num_entries, np.int64)
    mask = np.uint64(num_entries - 1)
    probe = (np.uint64(identifier) * GOLDEN) >> shift
    while entries[probe] != EMPTY:
        if entries[probe] == identifier:
            return True
        probe = (probe + ONE) & mask
    return False


@njit(inline="always")
def passes(sieve: int, num_words: int, shift: np.uint64, identifier: int) -> bool:
    """Whether an id may be in the set that a sieve was made for; all that are in it pass.

    Args:
        sieve: Address of a sieve made by ``add_to_sieve``.
        num_words: Its length.
        shift: ``sieve_shift(num_words)``.
        identifier: The id.
    """
    words = array_at(sieve, num_words, np.uint64)
    bit = (np.uint64(identifier) * GOLDEN) >> shift
    return (words[bit >> WORD_BITS] >> (bit & WORD_MASK)) & ONE != 0


@njit(inline="always")
def has_pair(table: int, num_entries: int, shift: np.uint64, node: int, neighbor: int) -> bool:
    """Whether a pair is in a set made by ``add_pairs``; arguments as for ``has_id``."""
    entries = array_at(table, 2 * num_entries, np.int64)
    mask = np.uint64(num_entries - 1)
    probe = ((np.uint64(node) * GOLDEN + np.uint64(neighbor)) * PAIR_FACTOR) >> shift
    while entries[probe << ONE] != EMPTY:
        if entries[probe << ONE] == node and entries[(probe << ONE) | ONE] == neighbor:
            return True
        probe = (probe + ONE) & mask
    return False


@kernel
def add_ids(ids: np.ndarray, table: np.ndarray) -> None:
    """Add ids to a set.

    Args:
        ids: int64[n], 0 or above.
        table: int64[entries], in and out: ``set_capacity(n)`` entries or more.
    """
    shift = set_shift(len(table))
    mask = np.uint64(len(table) - 1)
    for i in range(len(ids)):
        probe = (np.uint64(ids[i]) * GOLDEN) >> shift
        while table[probe] != EMPTY and table[probe] != ids[i]:
            probe = (probe + ONE) & mask
        table[probe] = ids[i]


@kernel
def add_to_sieve(ids: np.ndarray, sieve: np.ndarray) -> None:
    """Let ids pass a sieve.

    Args:
        ids: int64[n], 0 or above.
        sieve: uint64[words] of ``empty_sieve``, in and out.
    """
    shift = sieve_shift(len(sieve))
    for i in range(len(ids)):
        bit = (np.uint64(ids[i]) * GOLDEN) >> shift
        sieve[bit >> WORD_BITS] |= ONE << (bit & WORD_MASK)


@kernel
def add_pairs(nodes: np.ndarray, neighbors: np.ndarray, table: np.ndarray) -> None:
    """Add pairs to a set.

    Args:
        nodes: int64[n], 0 or above.
        neighbors: int64[n].
        table: int64[2 * entries], in and out: ``set_capacity(n)`` entries or more, each a node and a neighbour.
    """
    shift = set_shift(len(table) >> 1)
    mask = np.uint64((len(table) >> 1) - 1)
    for i in range(len(nodes)):
        probe = ((np.uint64(nodes[i]) * GOLDEN + np.uint64(neighbors[i])) * PAIR_FACTOR) >> shift
        while table[probe << ONE] != EMPTY:
            if table[probe << ONE] == nodes[i] and table[(probe << ONE) | ONE] == neighbors[i]:
                break
            probe = (probe + ONE) & mask
        table[probe << ONE] = nodes[i]
        table[(probe << ONE) | ONE] = neighbors[i]
