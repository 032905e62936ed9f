"""Draws random walks.

All walks of a batch take a step together: one request of the store for a step without memory, a few for one with it.
What a walk draws is a function of the seed, of its number, of the step, and of the key of the node where it stands.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from hopstream.arguments import called_with
from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.walks import NO_NODE, hash_fractions
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.sample.walk_memory import WalkMemory
from hopstream.sample.walk_settings import Step, WalkSettings
from hopstream.schema import type_label
from hopstream.store import Source, open_store
from hopstream.store.contract import KEY, MAX_TREES, FetchRequest, SampleReply, SampleRequest, Store, Strategy

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

MAX_KEYS_ASKED = 1 << 22
"""Keys of nodes that are asked for at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WalkArguments(WalkSettings):
    """Arguments of ``random_walks`` and ``walk_batches``.

    Attributes:
        source: A dataset folder, a ``cluster.json``, an address such as ``grpc://host:7001``, or an open store.
        start: integer[num_starts] keys, a bool[num_nodes] mask, a split, or None for all nodes, as loaders take seeds;
            with or without the node type in front, which is that from which the first step goes.
        store_settings: Deadline, token and certificates, where servers are asked.
    """

    source: Source = field(kw_only=False)
    start: SeedsLike = field(kw_only=False)
    store_settings: StoreSettings | None = None


@called_with(WalkArguments)
def random_walks(arguments: WalkArguments) -> IntArray:
    """Walk at random from some nodes.

    Returns:
        int64[num_starts * num_walks, length + 1]: keys, the start first; rows ``i * num_walks`` and on are the walks of
        start ``i``. Column ``j`` holds nodes of the type that step ``j - 1`` leads to. After a node from which no edge
        leads on, a row holds -1.

    Raises:
        SettingsError: An option outside its range, or one that the dataset cannot meet; no start at all.
        UnknownNameError: The graph has no such edge type or split.
        IdRangeError: A start outside 0..n-1 of its type.
    """
    source = arguments.source
    store = open_store(source, arguments.store_settings)
    try:
        walker = Walker(store, arguments)
        starts = walker.read_start(arguments.start)
        walks = np.empty((len(starts) * arguments.num_walks, len(walker.steps) + 1), np.int64)
        done = 0
        for batch in walker.batches(starts):
            walks[done : done + len(batch)] = batch
            done += len(batch)
        return walks
    finally:
        if store is not source:
            store.close()


@called_with(WalkArguments)
def walk_batches(arguments: WalkArguments) -> Iterator[IntArray]:
    """The walks of ``random_walks``, ``batch_size`` rows at a time, so that all of them need not fit into memory.

    What the iterator opened it closes at its end, or when it is closed or forgotten.

    Raises:
        SettingsError: As of ``random_walks``.
        UnknownNameError: As there.
        IdRangeError: As there.
    """
    source = arguments.source
    store = open_store(source, arguments.store_settings)
    try:
        walker = Walker(store, arguments)
        batches = walker.batches(walker.read_start(arguments.start))
    except BaseException:
        if store is not source:
            store.close()
        raise
    if store is not source:
        batches = _closing(batches, store)
        weakref.finalize(batches, store.close)
    return batches


def _closing(batches: Iterator[IntArray], store: Store) -> Iterator[IntArray]:
    with store:
        yield from batches


class Walker:
    """Takes walks over one store."""

    def __init__(self, store: Store, settings: WalkSettings) -> None:
        """Check the settings against the dataset.

        Raises:
            UnknownNameError: The graph has no such edge type.
            SettingsError: The dataset cannot be walked that way.
        """
        self._store = store
        self._settings = settings
        self.steps = settings.steps(store)
        self._node_types = [ends_of(*self.steps[0])[0], *(ends_of(*step)[1] for step in self.steps)]

    def read_start(self, start: SeedsLike) -> IntArray:
        """int64[n], keys of the nodes that were asked for.

        Raises:
            SettingsError: No keys, no start at all, or one of another type than the first step goes from.
            UnknownNameError: No such split or type.
            IdRangeError: A key outside 0..n-1.
        """
        node_type = self._node_types[0]
        found = read_seeds(self._store, start, "start", node_type)
        if found.node_type != node_type:
            raise SettingsError(
                f"start is of type {found.node_type!r}, and the first step goes from {node_type!r}; give nodes of that "
                "type, or another metapath"
            )
        return found.keys_at(np.arange(found.num_seeds, dtype=np.int64))

    def batches(self, starts: IntArray) -> Iterator[IntArray]:
        """int64[walks, length + 1] keys, batch by batch."""
        num_walks = self._settings.num_walks
        first, end = 0, len(starts) * num_walks
        while first < end:
            # A walk's number is its tree, of which there are only so many; beyond them, the seed changes.
            stop = min(first + self._settings.batch_size, end, (first // MAX_TREES + 1) * MAX_TREES)
            numbers = np.arange(first, stop, dtype=np.int64)
            start_ids = self._store.lookup(self._node_types[0], starts[numbers // num_walks])
            yield self._keys(_Batch(self._store, self._settings, self.steps, start_ids, numbers).walk())
            first = stop

    def _keys(self, ids: IntArray) -> IntArray:
        """Keys of int64[length + 1, walks] ids, as int64[walks, length + 1]."""
        keys = np.full(ids.shape[::-1], NO_NODE, np.int64)
        columns_at_a_time = max(1, MAX_KEYS_ASKED // max(1, ids.shape[1]))
        for first in range(0, len(ids), columns_at_a_time):
            columns = range(first, min(first + columns_at_a_time, len(ids)))
            is_node = [ids[column] >= 0 for column in columns]
            replies = self._store.fetch(
                [
                    FetchRequest(owner=self._node_types[column], names=(KEY,), ids=ids[column][is_in])
                    for column, is_in in zip(columns, is_node, strict=True)
                ]
            )
            for column, is_in, reply in zip(columns, is_node, replies, strict=True):
                keys[is_in, column] = cast(Array, reply[KEY])
        return keys


class _Batch:
    """Walks that take their steps together; ``walks`` are positions among them."""

    def __init__(
        self, store: Store, settings: WalkSettings, steps: tuple[Step, ...], start_ids: IntArray, numbers: IntArray
    ) -> None:
        self._store = store
        self._settings = settings
        self._steps = steps
        self._start_ids = start_ids
        self._trees = numbers % MAX_TREES
        self._rng_seed = derive_seed(settings.rng_seed, "walks", int(numbers[0]) // MAX_TREES)
        self._previous = np.full(len(start_ids), NO_NODE, np.int64)
        biases = (1 / settings.p, 1 / settings.q)
        self._memory = WalkMemory(store, steps[0], biases, self._weight_attr(0)) if settings.has_memory else None

    def walk(self) -> IntArray:
        """int64[length + 1, walks] ids; ``NO_NODE`` after the end of a walk."""
        ids = np.full((len(self._steps) + 1, len(self._start_ids)), NO_NODE, np.int64)
        ids[0] = self._start_ids
        walks = np.arange(len(self._start_ids))
        for number in range(len(self._steps)):
            if not len(walks):
                break
            moving = walks
            if self._settings.restart_probability > 0:
                moving = self._restart(walks, ids[number + 1], number)
            current = ids[number][moving]
            ids[number + 1][moving] = self._step(moving, current, number)
            self._previous[moving] = current
            walks = walks[ids[number + 1][walks] != NO_NODE]
        return ids

    def _restart(self, walks: IntArray, next_ids: IntArray, number: int) -> IntArray:
        """Bring some walks back to their start; return the others."""
        chances = np.empty(len(walks), np.float64)
        hash_fractions(self._seed(number, "restart"), self._trees[walks], chances)
        is_restarting = chances < self._settings.restart_probability
        back = walks[is_restarting]
        next_ids[back] = self._start_ids[back]
        self._previous[back] = NO_NODE
        return walks[~is_restarting]

    def _step(self, walks: IntArray, current: IntArray, number: int) -> IntArray:
        """int64[n], where each walk goes next."""
        if self._memory is not None:
            return self._memory.advance(
                int(self._seed(number, "step")), self._trees[walks], current, self._previous[walks]
            )
        reply = self._draw(walks, current, number)
        found = np.full(len(walks), NO_NODE, np.int64)
        found[reply.counts > 0] = reply.neighbor_ids
        return found

    def _draw(self, walks: IntArray, current: IntArray, number: int) -> SampleReply:
        """Draw an edge of each walk's node; none where no edge leads on."""
        edge_type, direction = self._steps[number]
        strategy: Strategy = "uniform" if self._weight_attr(number) is None else "weighted"
        request = SampleRequest(
            edge_type=edge_type, direction=direction, ids=current, count=1, is_replacing=True,
            rng_seed=int(self._seed(number, "step")), strategy=strategy, trees=self._trees[walks],
        )  # fmt: skip
        return self._store.sample([request])[0]

    def _weight_attr(self, number: int) -> str | None:
        name = self._settings.weight_attr
        return name if name in self._store.schema.edges[self._steps[number][0]] else None

    def _seed(self, number: int, what: str) -> np.uint64:
        edge_type, direction = self._steps[number]
        return np.uint64(derive_seed(self._rng_seed, number, type_label(edge_type), direction, what))
