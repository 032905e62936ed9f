"""Argument records of drawing kernels, and filters of the edges that may be drawn.

[Algorithm] Three hash sets with linear probing, built once per request: nodes with excluded neighbours, pairs of such a
    node and an excluded neighbour, and candidates. A candidate is one number: an id, or a tree and an id packed
    together. A set has a power of two of entries, at least twice as many as members; -1 is an empty entry. Few of a
    hub's neighbours are candidates. So a sieve, a bitmap with 32 bits or more per member, is tested before the set of
    candidates. If a bitmap of all ids takes no more memory than that set, the bitmap replaces the set and the sieve,
    and rows are listed without a branch.
[Cost] One probe per node, and one probe per edge of nodes with excluded neighbours. The tables of a batch fit into the
    L2 cache. With one candidate among 20 edges: 2.3 ns per edge.
[Not chosen] Sorted pairs and binary search: 11 steps per node and per edge for 2000 pairs. A bitmap of all ids in every
    case: memory and cache misses grow with the graph. No sieve: 8.6 ns, because the processor mispredicts whether an
    entry is empty. A set for each tree, which fits into the L1 cache: 8.4 ns for the same reason; with 8 entries per
    member it is nearly as fast as a sieve, in three times the memory.

Every loop that draws by a strategy takes the same arguments, ``(tables, source, rule, draws, nodes, scratch, begin,
positions, written)``, and is compiled for the types of its records. For draws uniformly or by weight, ``rule`` may be
None; numba then leaves out the code that reads it.

Inlined functions that are called under a condition take addresses, not arrays: numba counts references to an array at
every such call, which made drawing 1.5 times as slow. For the same reason loops take arrays out of records before they
begin, and pass views without an owner to the kernels of one node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.hashing import GOLDEN, node_stream, tree_stream
from hopstream.kernels.memory import array_at, prefetch_address

RANGE_AHEAD = 16
ROWS_AHEAD = 8
INT64_BYTES = 8
LINE_BYTES = 64
MAX_LINES = 4


class AddressTables(NamedTuple):
    """Address tables, int64[num_parts, 2], of one edge type and direction; zeros for remote parts.

    Attributes:
        offsets: int64[num_parts + 1], id ranges of the type of the expanded nodes.
        keys: int64 keys of these nodes; a length of 0 means that ids equal keys.
        indptrs: int64 ``indptr``.
        indices: Neighbours.
        item: uint32[0] or int64[0], an array with the dtype of ``indices``.
        edge_offsets: int64[num_parts + 1], id ranges of the edges.
    """

    offsets: np.ndarray
    keys: np.ndarray
    indptrs: np.ndarray
    indices: np.ndarray
    item: np.ndarray
    edge_offsets: np.ndarray


class Weights(NamedTuple):
    """Address tables for draws by weight; zeros for missing arrays.

    Attributes:
        sums: Running sums, float64.
        aliases: Alias tables of rows, uint64.
        orders: Positions by weight, uint32.
        weights: Weights, in the dtype of ``kind``.
        kind: See ``weighted.weight_kind``.
    """

    sums: np.ndarray
    aliases: np.ndarray
    orders: np.ndarray
    weights: np.ndarray
    kind: int


class Variates(NamedTuple):
    """Seeds and keys that determine the common random variates of a layer.

    Attributes:
        keys: Address table of the neighbours' keys.
        key_item: uint32[0] or int64[0], an array with the dtype of the keys.
        first_seed: uint64.
        second_seed: uint64, the seed that variates move to.
        share: Progress from the first seed to the second, in [0, 1).
    """

    keys: np.ndarray
    key_item: np.ndarray
    first_seed: np.uint64
    second_seed: np.uint64
    share: float


class Draws(NamedTuple):
    """Settings of the draws of every node.

    Attributes:
        count: Neighbours per node; -1 means all.
        replaces: Draw with replacement; False if ``count`` is -1.
        rng_seed: uint64, the seed of this batch and op.
    """

    count: int
    replaces: bool
    rng_seed: np.uint64


class Nodes(NamedTuple):
    """Nodes of a request.

    Attributes:
        ids: int64[n], nodes to expand.
        trees: int64[n], the tree of each node; or int64[0] without trees.
        parts: int32[n], the part of each node.
        starts: int64[n], position of the node's first edge within its time limit, in the part's ``indices``.
        degrees: int64[n], number of edges within the time limit.
        row_degrees: int64[n], number of all edges; only draws by weight read it.
        counts: int32[n], number of drawn neighbours; drawing kernels write it.
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
        sums: float64[capacity] for draws by weight.
        weights: float64[capacity] for draws by weight.
        variates: uint64[capacity] for draws by weight or by variates.
    """

    listed: np.ndarray
    sums: np.ndarray
    weights: np.ndarray
    variates: np.ndarray


@inlined
def view(array: np.ndarray, dtype: Any) -> np.ndarray:
    """View an array without an owner, so that numba counts no references."""
    return array_at(np.int64(array.ctypes.data), len(array), dtype)


@inlined
def prefetch_key(row: int, keys: int, num_keys: int) -> None:
    """Prefetch the key of a row; ``keys`` is the address of the part's keys, and with 0 keys ids are keys."""
    if num_keys > 0:
        prefetch_address(keys + row * INT64_BYTES)


@inlined
def prefetch_row(row: int, num_bytes: int) -> None:
    """Prefetch the first cache lines of a row."""
    for line in range(0, min(num_bytes, MAX_LINES * LINE_BYTES), LINE_BYTES):
        prefetch_address(row + line)


@inlined
def stream_of(identifier: int, row: int, keys: int, num_keys: int, rng_seed: np.uint64) -> np.uint64:
    """Return the stream of draws of a node, by its key; arguments as for ``prefetch_key``."""
    key = identifier
    if num_keys > 0:
        key = array_at(keys, num_keys, np.int64)[np.uint64(row)]
    return node_stream(rng_seed, key)


@inlined
def stream_in_tree(stream: np.uint64, trees: np.ndarray, i: int) -> np.uint64:
    """Return the stream of the ``i``-th node in its tree."""
    return tree_stream(stream, trees[i]) if len(trees) > 0 else stream


@inlined
def most_drawn(num: int, count: int, replaces: bool) -> int:
    """Return the largest number of edges that a node draws of ``num`` edges."""
    return count if count >= 0 and (replaces or count < num) else num


PAIR_FACTOR = np.uint64(0xD1B54A32D192ED03)
EMPTY = np.int64(-1)
MIN_CAPACITY = 16
ENTRIES_PER_WORD = 4
WORDS_PER_ENTRY = 1
"""Largest bitmap of all ids that replaces the set of candidates, in words per entry of the set."""
ONE = np.uint64(1)
WORD_BITS = np.uint64(6)
WORD_MASK = np.uint64(63)


class Filter(NamedTuple):
    """Filter of a request's neighbours: addresses and lengths of hash sets, and their shifts.

    Attributes:
        nodes: Set of nodes with excluded neighbours.
        num_nodes: Length of ``nodes``; 0 if nothing is excluded.
        node_shift: See ``set_shift``.
        pairs: Set of excluded pairs of a node and a neighbour.
        num_pairs: Capacity of ``pairs``.
        pair_shift: See ``set_shift``.
        candidates: Set of the eligible neighbours; with trees they are pairs, ``tree << tree_shift | id``.
        num_candidates: Length of ``candidates``; 0 if all neighbours are eligible.
        candidate_shift: See ``set_shift``.
        sieve: Sieve of candidates.
        num_words: Length of ``sieve``.
        sieve_shift: See ``sieve_shift``.
        is_exact: The sieve has a bit for each id, and the set of candidates is one empty entry.
        tree_shift: Bits that ids have in candidates of trees.
    """

    nodes: int
    num_nodes: int
    node_shift: np.uint64
    pairs: int
    num_pairs: int
    pair_shift: np.uint64
    candidates: int
    num_candidates: int
    candidate_shift: np.uint64
    sieve: int
    num_words: int
    sieve_shift: np.uint64
    is_exact: bool
    tree_shift: int


class NodeFilter(NamedTuple):
    """Filter of one node's neighbours.

    Attributes:
        sets: The request's filter.
        node: The node's id.
        tree: ``tree << tree_shift``, the upper bits of its candidates; 0 without trees.
        has_excluded: Whether the node has excluded neighbours.
    """

    sets: Filter
    node: int
    tree: int
    has_excluded: bool


class FilterSets(NamedTuple):
    """Hash sets of a request. They own the memory of its ``Filter`` and must live as long.

    Attributes:
        nodes: int64, nodes with excluded neighbours; int64[0] for none.
        pairs: int64, pairs of such a node and a neighbour.
        candidates: int64, candidates; int64[0] for all.
        sieve: uint64, their sieve.
        is_exact: The sieve has a bit for each id, and ``candidates`` are left out.
    """

    nodes: NDArray[np.int64]
    pairs: NDArray[np.int64]
    candidates: NDArray[np.int64]
    sieve: NDArray[np.uint64]
    is_exact: bool

    def to_filter(self, tree_shift: int) -> Filter:
        """Make the argument of kernels."""
        num_pairs = len(self.pairs) >> 1
        return Filter(
            self.nodes.ctypes.data, len(self.nodes), _shift(len(self.nodes)),
            self.pairs.ctypes.data, num_pairs, _shift(num_pairs),
            self.candidates.ctypes.data, len(self.candidates), _shift(len(self.candidates)),
            self.sieve.ctypes.data, len(self.sieve), _shift(len(self.sieve) * 64), self.is_exact, tree_shift,
        )  # fmt: skip


def _shift(num_entries: int) -> np.uint64:
    """Return the same as ``set_shift``, for Python."""
    return np.uint64(64 - max(0, num_entries.bit_length() - 1))


def filter_sets(
    excluded: tuple[NDArray[np.int64], NDArray[np.int64]] | None, candidates: NDArray[np.int64] | None
) -> FilterSets:
    """Build the sets of a request.

    Args:
        excluded: Nodes and excluded neighbours, int64[m] each; None for none.
        candidates: int64[c], the eligible neighbours; None for all.
    """
    nodes = pairs = members = np.empty(0, np.int64)
    sieve, is_exact = np.empty(0, np.uint64), False
    if excluded is not None:
        num_entries = set_capacity(len(excluded[0]))
        nodes, pairs = empty_set(num_entries), empty_set(2 * num_entries)
        add_ids(excluded[0], nodes)
        add_pairs(*excluded, pairs)
    if candidates is not None:
        num_entries, num_words = set_capacity(len(candidates)), int(candidates.max(initial=0)) // 64 + 1
        if candidates.min(initial=0) == 0 and num_words <= WORDS_PER_ENTRY * num_entries:
            members, sieve, is_exact = empty_set(1), np.zeros(num_words, np.uint64), True
            add_bits(candidates, sieve)
        else:
            members, sieve = empty_set(num_entries), empty_sieve(num_entries)
            add_ids(candidates, members)
            add_to_sieve(candidates, sieve)
    return FilterSets(nodes, pairs, members, sieve, is_exact)


def set_capacity(num_members: int) -> int:
    """Return the number of entries of a set for a number of members."""
    return max(MIN_CAPACITY, 1 << (2 * num_members - 1).bit_length())


def empty_set(num_entries: int) -> NDArray[np.int64]:
    """Return int64[num_entries], empty entries."""
    return np.full(num_entries, EMPTY, np.int64)


def empty_sieve(num_entries: int) -> NDArray[np.uint64]:
    """Return uint64[words], a sieve that no id passes, for a set with ``num_entries`` entries."""
    return np.zeros(num_entries // ENTRIES_PER_WORD, np.uint64)


@inlined
def set_shift(num_entries: int) -> np.uint64:
    """Return 64 minus log2 of a power of two."""
    shift = np.uint64(64)
    while num_entries > 1:
        num_entries >>= 1
        shift -= ONE
    return shift


@inlined
def sieve_shift(num_words: int) -> np.uint64:
    """Return 64 minus log2 of the number of bits; ``num_words`` is a power of two."""
    return set_shift(num_words) - WORD_BITS


@inlined
def has_id(table: int, num_entries: int, shift: np.uint64, identifier: int) -> bool:
    """Return whether an id is in a set made by ``add_ids``.

    Args:
        table: Address of the set; with an array, numba would count references.
        num_entries: Length of the set.
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


@inlined
def passes(sieve: int, num_words: int, shift: np.uint64, identifier: int) -> bool:
    """Return whether an id passes a sieve; all members of its set do, and few other ids.

    Args:
        sieve: Address of a sieve made by ``add_to_sieve``.
        num_words: Length of the sieve.
        shift: ``sieve_shift(num_words)``.
        identifier: The id.
    """
    words = array_at(sieve, num_words, np.uint64)
    bit = (np.uint64(identifier) * GOLDEN) >> shift
    return (words[bit >> WORD_BITS] >> (bit & WORD_MASK)) & ONE != 0


@inlined
def has_bit(words: int, num_words: int, identifier: int) -> bool:
    """Return whether an id is in the bits at an address that ``add_bits`` has written."""
    word = np.uint64(identifier) >> WORD_BITS
    bits = array_at(words, num_words, np.uint64)
    return bool(word < np.uint64(num_words) and (bits[word] >> (np.uint64(identifier) & WORD_MASK)) & ONE)


@inlined
def has_pair(table: int, num_entries: int, shift: np.uint64, node: int, neighbor: int) -> bool:
    """Return whether a pair is in a set made by ``add_pairs``; arguments as for ``has_id``."""
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
    """Add ids to a sieve.

    Args:
        ids: int64[n], 0 or above.
        sieve: uint64[words] of ``empty_sieve``, in and out.
    """
    shift = sieve_shift(len(sieve))
    for i in range(len(ids)):
        bit = (np.uint64(ids[i]) * GOLDEN) >> shift
        sieve[bit >> WORD_BITS] |= ONE << (bit & WORD_MASK)


@kernel
def add_bits(ids: np.ndarray, words: np.ndarray) -> None:
    """Set a bit for each id.

    Args:
        ids: int64[n], 0 or above.
        words: uint64[words], in and out: more bits than the highest id.
    """
    for i in range(len(ids)):
        words[np.uint64(ids[i]) >> WORD_BITS] |= ONE << (np.uint64(ids[i]) & WORD_MASK)


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


@inlined
def node_filter(rule: Filter, node: int, trees: np.ndarray, i: int) -> NodeFilter:
    """Make the filter of the ``i``-th node."""
    has_excluded = rule.num_nodes > 0 and has_id(rule.nodes, rule.num_nodes, rule.node_shift, node)
    return NodeFilter(rule, node, trees[i] << rule.tree_shift if len(trees) > 0 else 0, has_excluded)


@inlined
def is_filtered(own: NodeFilter) -> bool:
    """Return whether some neighbours of the node may not be drawn."""
    return own.has_excluded or own.sets.num_candidates > 0


@inlined
def is_eligible(own: NodeFilter, neighbor: int) -> bool:
    """Return whether the node may draw an edge to a neighbour."""
    rule = own.sets
    if rule.is_exact:
        if not has_bit(rule.sieve, rule.num_words, own.tree | neighbor):
            return False
    elif rule.num_candidates > 0:
        candidate = own.tree | neighbor
        if not passes(rule.sieve, rule.num_words, rule.sieve_shift, candidate):
            return False
        if not has_id(rule.candidates, rule.num_candidates, rule.candidate_shift, candidate):
            return False
    return not own.has_excluded or not has_pair(rule.pairs, rule.num_pairs, rule.pair_shift, own.node, neighbor)


@kernel
def list_eligible(
    own: NodeFilter, indices: np.ndarray, start: int, num: int, drawn: np.ndarray, first: int, num_drawn: int,
    listed: np.ndarray,
) -> int:  # fmt: skip
    """Write the positions of the edges that a node may draw, without the edges drawn already.

    Args:
        own: The node's filter.
        indices: uint32 or int64[edges], ``indices`` of its part.
        start: Position of its first edge.
        num: Number of its edges.
        drawn: int64[n]; ``drawn[first:first + num_drawn]`` are positions drawn already, ascending.
        first: See ``drawn``.
        num_drawn: See ``drawn``.
        listed: int64[capacity], out.

    Returns:
        Number of positions; -1 if they exceed the capacity.
    """
    size = 0
    behind = first
    rule = own.sets
    if rule.is_exact and not own.has_excluded and num_drawn == 0 and num <= len(listed):
        words, num_words = array_at(rule.sieve, rule.num_words, np.uint64), np.uint64(rule.num_words)
        for position in range(start, start + num):  # without a branch: about as many edges may be drawn as not
            neighbor = np.uint64(own.tree | np.int64(indices[np.uint64(position)]))
            word = neighbor >> WORD_BITS
            is_near = word < num_words
            bit = (words[word if is_near else np.uint64(0)] >> (neighbor & WORD_MASK)) & ONE
            listed[np.uint64(size)] = position
            size += np.int64(bit) * np.int64(is_near)
        return size
    for position in range(start, start + num):
        if behind < first + num_drawn and drawn[np.uint64(behind)] == position:
            behind += 1
            continue
        if is_eligible(own, np.int64(indices[np.uint64(position)])):
            if size == len(listed):
                return -1
            listed[np.uint64(size)] = position
            size += 1
    return size


@kernel
def count_eligible(tables: AddressTables, rule: Filter, nodes: Nodes, num_eligible: np.ndarray) -> None:
    """Count each node's eligible edges.

    Args:
        tables: The parts.
        rule: Filter of eligible neighbours.
        nodes: The nodes of the request.
        num_eligible: int64[n], out.
    """
    indices, ids, trees, parts = tables.indices, nodes.ids, nodes.trees, nodes.parts
    starts, degrees = nodes.starts, nodes.degrees
    for i in range(len(ids)):
        own = node_filter(rule, ids[i], trees, i)
        if not is_filtered(own):
            num_eligible[i] = degrees[i]
            continue
        part = np.int64(parts[i])
        part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
        total = 0
        for position in range(starts[i], starts[i] + degrees[i]):
            total += np.int64(is_eligible(own, np.int64(part_indices[np.uint64(position)])))
        num_eligible[i] = total
