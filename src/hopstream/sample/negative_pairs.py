"""Sampler of negatives: draws pairs of nodes as examples of links that do not exist.

Negatives are drawn by key over the whole graph. A draw is a pure function of the batch's rng seed, the negative's
position in the batch, and the turn: the number of candidates tried before. A refused candidate leads to the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, find_sorted
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.kernels.negatives import draw_uniform_nodes, draw_weighted_nodes
from hopstream.sample.negatives import NegativeSampling
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store.contract import FetchRequest, Store

Candidates = Callable[[IntArray, IntArray], IntArray]
"""``candidates(positions, turns)``, int64[n] each, returns int64[k, n] keys."""
Ranks = Callable[[IntArray, IntArray], NDArray[np.uint64]]
"""``rank(positions, keys)``, int64[n] and int64[k, n], returns uint64[n]: 0 is good, ``NEVER`` is refused, and lower is
better."""

MAX_ROUNDS = 16
"""Rounds of candidates; each round tries twice as many per negative."""
MAX_CANDIDATES = 1 << 16
"""Most candidates of one round in all, beyond one per negative."""
TURNS_PER_SOURCE_SHIFT = 6
"""A search for early sources is slow, so 64 candidates share one source."""
NEVER = np.uint64((1 << 64) - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positives:
    """Links of one batch.

    Attributes:
        src_keys: int64[n].
        dst_keys: int64[n].
        times: int64[n], or None if negatives ignore times.
    """

    src_keys: IntArray
    dst_keys: IntArray
    times: IntArray | None = None

    def __len__(self) -> int:
        """Return the number of links."""
        return len(self.src_keys)


class NegativeSampler:
    """Sampler of the negatives of batches of links of one edge type. Thread-safe."""

    def __init__(
        self, store: Store, edge_type: EdgeType, direction: Direction, how: NegativeSampling, time_attr: str | None
    ) -> None:
        """Check the settings against the graph.

        Args:
            store: The graph's store.
            edge_type: The edge type of the links.
            direction: A direction that the store holds; existing edges are looked up in it.
            how: The settings.
            time_attr: The node feature that holds the creation times of nodes, or None.

        Raises:
            SettingsError: The number of weights is not the number of nodes.
        """
        self.how = how
        self._store = store
        self._edge_type = edge_type
        self._direction = direction
        self._time_attr = time_attr
        self._end_types = (edge_type[0], edge_type[2])
        # Negatives must be neither held-out links nor links in the edge types that they were held out from.
        self._holders = ((edge_type, False), *store.schema.holders_of(edge_type))
        self._num_nodes = [store.book.num_ids(node_type) for node_type in self._end_types]
        self._weight_sums = [
            _sums(name, given, node_type, num_nodes)
            for name, given, node_type, num_nodes in zip(
                ("src_weight", "dst_weight"), (how.src_weight, how.dst_weight), self._end_types, self._num_nodes,
                strict=True,
            )
        ]  # fmt: skip

    def draw(self, positives: Positives, rng_seed: int) -> IntArray:
        """Draw the negatives of a batch: int64[2, num_negatives], keys of sources and destinations.

        Negative ``k`` belongs to positive ``k % len(positives)``. Triplets and in-batch negatives have the positive's
        source. The nodes of a negative are no newer than the positive's time; if no such node is found, the earliest
        candidate is taken.

        Args:
            positives: The links of the batch; at least one.
            rng_seed: The rng seed of the batch.

        Raises:
            SettingsError: A bounded search did not find enough strict negatives.
        """
        batch = _Batch(self, positives, rng_seed)
        num_negatives = self.how.num_negatives(len(positives))
        keys = np.empty((2, num_negatives), np.int64)
        missing = np.arange(num_negatives, dtype=np.int64)
        if self.how.in_batch:
            missing = self._draw_in_batch(batch, keys)
        if len(missing):
            self._draw_from_graph(batch, keys, missing)
        return keys

    def _draw_in_batch(self, batch: _Batch, keys: IntArray) -> IntArray:
        """Fill in negatives with the batch's destinations; return the positions that are still missing."""
        positions = np.arange(keys.shape[1], dtype=np.int64)
        if len(batch.positives) == 1:
            return positions
        candidates = batch.other_destinations(keys.shape[1])
        if not batch.is_choosy:
            keys[:] = candidates(positions, np.zeros_like(positions))
            return positions[:0]
        found, ranks = _first_good(positions, candidates, batch.rank, max_turns=len(batch.positives) - 1)
        keys[:, ranks == 0] = found[:, ranks == 0]
        return np.flatnonzero(ranks)

    def _draw_from_graph(self, batch: _Batch, keys: IntArray, positions: IntArray) -> None:
        """Fill in negatives with nodes of the whole graph."""
        if not batch.is_choosy:
            keys[:, positions] = batch.pairs(positions, np.zeros_like(positions))
            return
        found, ranks = _first_good(positions, batch.pairs, batch.rank)
        missing = np.flatnonzero(ranks == NEVER)
        if len(missing):
            source = int(found[0, missing[0]])
            raise SettingsError(
                f"{len(missing)} of {keys.shape[1]} strict negatives of {type_label(self._edge_type)} were not found "
                f"in {MAX_ROUNDS} rounds (for example for source {source}), because almost all allowed pairs are "
                "edges; leave links of such nodes out, change the weights, or use strict=False"
            )
        keys[:, positions] = found

    def has_node_times(self, end: int) -> bool:
        """Return whether nodes at an end have times."""
        return self._time_attr is not None and self._time_attr in self._store.schema.nodes[self._end_types[end]]

    def node_times(self, end: int, keys: IntArray) -> IntArray:
        """Return int64[n], the creation times of nodes at an end."""
        name, node_type = str(self._time_attr), self._end_types[end]
        request = FetchRequest(entity=node_type, names=(name,), ids=self._store.lookup(node_type, keys))
        return np.asarray(self._store.fetch([request])[0][name], np.int64)

    def are_edges(self, src_keys: IntArray, dst_keys: IntArray) -> NDArray[np.bool_]:
        """Return bool[n], whether pairs are links, in the edge type or in types related by ``holders_of``."""
        src_ids = self._store.lookup(self._edge_type[0], src_keys)
        dst_ids = self._store.lookup(self._edge_type[2], dst_keys)
        are_found = np.zeros(len(src_ids), np.bool_)
        for edge_type, is_back in self._holders:
            rest = np.flatnonzero(~are_found)
            starts, ends = (dst_ids[rest], src_ids[rest]) if is_back else (src_ids[rest], dst_ids[rest])
            ids, neighbor_ids = (ends, starts) if self._direction == "in" else (starts, ends)
            are_found[rest] = self._store.find_edges(edge_type, self._direction, ids, neighbor_ids) >= 0
        return are_found

    def draw_end(self, end: int, draw_seed: int, positions: IntArray, turns: IntArray) -> IntArray:
        """Return int64[n], the keys of sources (``end`` 0) or destinations (1)."""
        keys = np.empty(len(positions), np.int64)
        sums = self._weight_sums[end]
        if sums is None:
            draw_uniform_nodes(np.uint64(draw_seed), positions, turns, self._num_nodes[end], keys)
        else:
            draw_weighted_nodes(np.uint64(draw_seed), positions, turns, sums, keys)
        return keys


class _Batch:
    """Candidates of one batch, and their ranks."""

    def __init__(self, sampler: NegativeSampler, positives: Positives, rng_seed: int) -> None:
        self._sampler = sampler
        self.positives = positives
        self._seeds = [derive_seed("negatives", rng_seed, end) for end in ("source", "destination")]
        self._order_seed = derive_seed("negatives", rng_seed, "order")
        self._has_own_sources = sampler.how.mode == "binary" and not sampler.how.in_batch
        self._is_timed = [positives.times is not None and sampler.has_node_times(end) for end in (0, 1)]
        self.is_choosy = sampler.how.strict or self._is_timed[1]
        """Whether candidates may be refused."""

    @cached_property
    def _known(self) -> _PairSet:
        return _PairSet(self.positives.src_keys, self.positives.dst_keys)

    def pairs(self, positions: IntArray, turns: IntArray) -> IntArray:
        """Return int64[2, n], the candidates from the whole graph, with early sources if such are found."""
        dst_keys = self._sampler.draw_end(1, self._seeds[1], positions, turns)
        if not self._has_own_sources:
            src_keys = self.positives.src_keys[positions % len(self.positives)]
        elif self._is_timed[0]:
            src_keys = self._early_sources(positions, turns >> TURNS_PER_SOURCE_SHIFT)
        else:
            src_keys = self._sampler.draw_end(0, self._seeds[0], positions, turns)
        return np.stack([src_keys, dst_keys])

    def other_destinations(self, num_negatives: int) -> Candidates:
        """Make candidates: a positive's source with other positives' destinations, in random order.

        In one turn no positive gets the same destination's link twice, unless it has more negatives than there are
        other positives.
        """
        num_positives = len(self.positives)
        num_others = num_positives - 1
        shifts = np.empty(num_others, np.int64)
        permute_range(0, num_others, np.uint64(self._order_seed), shifts)
        # A stride that is coprime to the number of others visits all of them.
        stride = max(1, -(-num_negatives // num_positives))
        while math.gcd(stride, num_others) != 1:
            stride += 1

        def candidates(positions: IntArray, turns: IntArray) -> IntArray:
            links = positions % num_positives
            steps = (positions // num_positives + turns * stride) % num_others
            others = (links + 1 + shifts[steps]) % num_positives
            return np.stack([self.positives.src_keys[links], self.positives.dst_keys[others]])

        return candidates

    def rank(self, positions: IntArray, keys: IntArray) -> NDArray[np.uint64]:
        """Return uint64[n], how much a pair's destination is too new; ``NEVER`` for edges if ``strict``."""
        late = self._lateness(1, positions, keys[1])
        if not self._sampler.how.strict:
            return late
        is_known = self._known.holds(keys[0], keys[1])
        rest = np.flatnonzero(~is_known)
        is_known[rest] = self._sampler.are_edges(keys[0, rest], keys[1, rest])
        return np.where(is_known, NEVER, late)

    def _early_sources(self, positions: IntArray, turns: IntArray) -> IntArray:
        """Find sources no newer than their link, else the earliest source tried.

        Equal pairs of position and turn must be adjacent; they share one search.
        """
        is_first = np.ones(len(positions), np.bool_)
        is_first[1:] = (positions[1:] != positions[:-1]) | (turns[1:] != turns[:-1])
        own_positions, own_turns = positions[is_first], turns[is_first] << 32

        def candidates(rows: IntArray, tries: IntArray) -> IntArray:
            return self._sampler.draw_end(0, self._seeds[0], own_positions[rows], own_turns[rows] + tries)[None]

        def rank(rows: IntArray, keys: IntArray) -> NDArray[np.uint64]:
            return self._lateness(0, own_positions[rows], keys[0])

        found, _ = _first_good(np.arange(len(own_positions), dtype=np.int64), candidates, rank)
        keys: IntArray = found[0, np.cumsum(is_first) - 1]
        return keys

    def _lateness(self, end: int, positions: IntArray, keys: IntArray) -> NDArray[np.uint64]:
        """Return uint64[n], how much later than its link each node was created; 0 if it is no newer."""
        times = self.positives.times
        if times is None or not self._is_timed[end]:
            return np.zeros(len(keys), np.uint64)
        node_times = self._sampler.node_times(end, keys)
        link_times = times[positions % len(self.positives)]
        # The difference of two int64 may exceed int64; modulo 2**64 it is right as uint64.
        late = node_times.astype(np.uint64) - link_times.astype(np.uint64)
        return np.where(node_times > link_times, np.minimum(late, NEVER - np.uint64(1)), np.uint64(0))


class _PairSet:
    """Set of pairs of keys."""

    def __init__(self, src_keys: IntArray, dst_keys: IntArray) -> None:
        self._src, self._dst = np.unique(src_keys), np.unique(dst_keys)
        self._codes = np.unique(self._encode(src_keys, dst_keys))

    def holds(self, src_keys: IntArray, dst_keys: IntArray) -> NDArray[np.bool_]:
        """Return bool[n], whether each pair is in the set."""
        codes = self._encode(src_keys, dst_keys)
        is_known = codes >= 0
        is_known[is_known] = find_sorted(self._codes, codes[is_known]) >= 0
        return is_known

    def _encode(self, src_keys: IntArray, dst_keys: IntArray) -> IntArray:
        """Return int64[n], one number per pair, from the keys' ranks among distinct keys; -1 for unknown keys."""
        src_places, dst_places = find_sorted(self._src, src_keys), find_sorted(self._dst, dst_keys)
        codes = src_places * len(self._dst) + dst_places
        codes[(src_places < 0) | (dst_places < 0)] = -1
        return codes


def _first_good(
    positions: IntArray, candidates: Candidates, rank: Ranks, max_turns: int | None = None
) -> tuple[IntArray, NDArray[np.uint64]]:
    """Find the first good candidate of each position in the order of turns, else the first of the best.

    Args:
        positions: int64[n].
        candidates: Returns the candidates of given turns.
        rank: Returns the ranks of candidates.
        max_turns: Number of turns after which candidates repeat, or None.

    Returns:
        keys: int64[k, n].
        ranks: uint64[n], 0 if a good candidate was found.
    """
    best = candidates(positions, np.zeros_like(positions))
    ranks = rank(positions, best)
    missing = np.flatnonzero(ranks)
    next_turn = 1
    for round_number in range(1, MAX_ROUNDS):
        num_turns = min(1 << round_number, max(1, MAX_CANDIDATES // max(1, len(missing))))
        if max_turns is not None:
            num_turns = min(num_turns, max_turns - next_turn)
        if not len(missing) or num_turns < 1:
            break
        rows = np.repeat(positions[missing], num_turns)
        turns = np.tile(np.arange(next_turn, next_turn + num_turns, dtype=np.int64), len(missing))
        found = candidates(rows, turns)
        found_ranks = rank(rows, found).reshape(len(missing), num_turns)
        choice = found_ranks.argmin(axis=1)
        chosen = np.arange(len(missing)) * num_turns + choice
        chosen_ranks = found_ranks.reshape(-1)[chosen]
        is_better = chosen_ranks < ranks[missing]
        best[:, missing[is_better]] = found[:, chosen[is_better]]
        ranks[missing[is_better]] = chosen_ranks[is_better]
        missing = np.flatnonzero(ranks)
        next_turn += num_turns
    return best, ranks


def _sums(name: str, weights: NDArray[np.float64] | None, node_type: str, num_nodes: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    if len(weights) != num_nodes:
        raise SettingsError(f"{name} has {len(weights)} entries; node type {node_type!r} has {num_nodes} nodes")
    return np.cumsum(weights)
