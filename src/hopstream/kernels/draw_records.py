"""Holds the records that kernels that draw are given, and what their loops share.

Every loop that draws by a strategy takes the same arguments, ``(tables, source, rule, draws, nodes, scratch, begin,
positions, written)``, and is compiled for the types of its records. Where draws are uniform or by weight, ``rule`` may
be None, and numba leaves out the code that would read it.

Inlined functions that are called under a condition take addresses, not arrays: numba counts references to an array at
every such call, which made drawing 1.5 times as slow. For the same reason loops take arrays out of records before they
begin, and hand views without an owner to the kernels of one node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from hopstream.kernels.hashing import node_stream, tree_stream
from hopstream.kernels.memory import array_at, prefetch_address

RANGE_AHEAD = 16
ROWS_AHEAD = 8
INT64_BYTES = 8
LINE_BYTES = 64
MAX_LINES = 4


class Tables(NamedTuple):
    """Address tables, int64[num_parts, 2], of one edge type and direction; zeros where a part is not here.

    Attributes:
        offsets: int64[num_parts + 1], id ranges of the type of the nodes that are expanded.
        keys: int64 keys of these nodes; a length of 0 means that id equals key.
        indptrs: int64 ``indptr``.
        indices: Neighbours.
        item: uint32[0] or int64[0], of the dtype of ``indices``.
        edge_offsets: int64[num_parts + 1], id ranges of the edges.
    """

    offsets: np.ndarray
    keys: np.ndarray
    indptrs: np.ndarray
    indices: np.ndarray
    item: np.ndarray
    edge_offsets: np.ndarray


class Weights(NamedTuple):
    """Address tables of what draws by weight read; zeros where it is not there.

    Attributes:
        sums: Running sums, float64.
        aliases: Alias tables of rows, uint64.
        orders: Positions by weight, uint32.
        weights: Weights, in the dtype of ``kind``.
        kind: See ``stored_weights.weight_kind``.
    """

    sums: np.ndarray
    aliases: np.ndarray
    orders: np.ndarray
    weights: np.ndarray
    kind: int


class Variates(NamedTuple):
    """What the common variates of a layer follow from.

    Attributes:
        keys: Address table of the neighbours' keys.
        key_item: uint32[0] or int64[0], of their dtype.
        first_seed: uint64.
        second_seed: uint64, the seed that variates move to.
        share: How far they have moved, in [0, 1).
    """

    keys: np.ndarray
    key_item: np.ndarray
    first_seed: np.uint64
    second_seed: np.uint64
    share: float


class Draws(NamedTuple):
    """What is asked of every node.

    Attributes:
        count: Neighbours per node; -1 means all.
        replaces: Draw with replacement; False where ``count`` is -1.
        rng_seed: uint64, the seed of this batch and op.
    """

    count: int
    replaces: bool
    rng_seed: np.uint64


class Nodes(NamedTuple):
    """The nodes of a request.

    Attributes:
        ids: int64[n], nodes to expand.
        trees: int64[n], the tree in which each is expanded; or int64[0] for one tree.
        parts: int32[n], the part of each.
        starts: int64[n], position of its first eligible edge in the part's ``indices``.
        degrees: int64[n], how many edges from there on are eligible, as far as times decide.
        row_degrees: int64[n], its number of edges; only read by draws by weight.
        counts: int32[n], neighbours that it draws; out of the loops that draw by a strategy.
    """

    ids: np.ndarray
    trees: np.ndarray
    parts: np.ndarray
    starts: np.ndarray
    degrees: np.ndarray
    row_degrees: np.ndarray
    counts: np.ndarray


class Scratch(NamedTuple):
    """Memory for the edges of one node.

    Attributes:
        listed: int64[capacity], positions of eligible edges; 64 or more.
        sums: float64[capacity] where weights count.
        weights: float64[capacity] where weights count.
        variates: uint64[capacity] where weights or variates count.
    """

    listed: np.ndarray
    sums: np.ndarray
    weights: np.ndarray
    variates: np.ndarray


@njit(inline="always")
def view(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The same array without an owner, which numba counts no references to."""
    return array_at(np.int64(array.ctypes.data), len(array), dtype)


@njit(inline="always")
def prefetch_key(row: int, keys: int, num_keys: int) -> None:
    """Ask for the key of a row of the part whose keys are at an address; with 0 keys, ids are keys."""
    if num_keys > 0:
        prefetch_address(keys + row * INT64_BYTES)


@njit(inline="always")
def prefetch_row(row: int, num_bytes: int) -> None:
    """Ask for the first cache lines of a row."""
    for line in range(0, min(num_bytes, MAX_LINES * LINE_BYTES), LINE_BYTES):
        prefetch_address(row + line)


@njit(inline="always")
def stream_of(identifier: int, row: int, keys: int, num_keys: int, rng_seed: np.uint64) -> np.uint64:
    """The stream of draws of a node, which follows from its key; arguments as for ``prefetch_key``."""
    key = identifier
    if num_keys > 0:
        key = array_at(keys, num_keys, np.int64)[np.uint64(row)]
    return node_stream(rng_seed, key)


@njit(inline="always")
def stream_in_tree(stream: np.uint64, trees: np.ndarray, i: int) -> np.uint64:
    """The stream of the ``i``-th node in its tree."""
    return tree_stream(stream, trees[i]) if len(trees) > 0 else stream


@njit(inline="always")
def most_drawn(num: int, count: int, replaces: bool) -> int:
    """How many a node draws of ``num`` edges at most."""
    return count if count >= 0 and (replaces or count < num) else num
