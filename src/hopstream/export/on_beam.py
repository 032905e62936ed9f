"""Turns seeds in a Beam pipeline into ``tf.Example`` messages there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import MissingDependencyError, SettingsError, quoted
from hopstream.export.raw_ids import RawId, RawIndex, as_bytes, link_name
from hopstream.export.samples import SampleMaker, SeedSampling, distinct_stretches, sample_id_of, trees_of
from hopstream.store import open_store
from hopstream.store.contract import Store
from hopstream.store.sources import check_source
from hopstream.tfgnn.graph_tensor import encode_graphs
from hopstream.tfgnn.sampling_spec import parse_spec

Seed = RawId | tuple[RawId, RawId]
"""The raw id of a node, or, where a plan starts from links, those of source and target."""


class SeedSampler:
    """Makes ``tf.Example`` messages of raw seeds. One thread uses one sampler; stores and indexes may be shared."""

    def __init__(self, store: Store, sampling: SeedSampling, indexes: Sequence[RawIndex] | None = None) -> None:
        """Check the sampling against the store.

        Args:
            store: Where the graph is.
            sampling: What is made of each seed.
            indexes: The raw ids of the seeds' node type, or those of sources and of targets; read if None.

        Raises:
            SchemaError: The spec contradicts itself or the dataset.
            FormatError: The spec is none.
            UnknownNameError: The dataset has no such feature.
            SettingsError: The dataset does not hold what the spec needs, or links are asked for a readout of seeds.
        """
        self._maker = SampleMaker(store, sampling)
        self._indexes = indexes or RawIndex.of_ends(store, self._maker.ends)

    def sample(self, seeds: Sequence[Seed], numbers: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """The sample of each seed: its name and its ``tf.Example``.

        Args:
            seeds: Raw ids, or pairs of them where the spec starts from links.
            numbers: The number of each sample among those of its seed, from 0.

        Raises:
            IdRangeError: A seed is no node.
            SettingsError: A seed is no raw id, or not a pair of them where the spec starts from links; or there are
                not as many numbers as seeds, or one is negative or no integer.
            StoreError: The store failed.
        """
        _check_numbers(numbers, len(seeds))
        if not len(seeds):
            return []
        seed_ids, keys = self._names_and_keys(seeds)
        sample_ids = [sample_id_of(one, number) for one, number in zip(seed_ids, numbers, strict=True)]
        counted = np.array(numbers, np.int64)
        examples: list[bytes] = []
        for first, last in distinct_stretches(trees_of(keys, counted)):
            pieces = self._maker.make(keys[first:last], counted[first:last], seed_ids[first:last])
            encoded = encode_graphs(pieces)
            examples += (encoded[number] for number in range(last - first))
        return list(zip(sample_ids, examples, strict=True))

    def _names_and_keys(self, seeds: Sequence[Seed]) -> tuple[list[bytes], IntArray]:
        if not self._maker.is_of_links:
            nodes = [_one(seed) for seed in seeds]
            return self._indexes[0].names_of(nodes), self._indexes[0].keys_of(nodes)
        ends = list(zip(self._indexes, zip(*map(_pair, seeds), strict=True), strict=True))
        names = list(map(link_name, *(index.names_of(raw) for index, raw in ends)))
        return names, np.stack([index.keys_of(raw) for index, raw in ends], axis=1)


def _check_numbers(numbers: Sequence[int], num_seeds: int) -> None:
    if len(numbers) != num_seeds:
        raise SettingsError(f"numbers has {len(numbers)} values for {num_seeds} seeds; give one for each")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 1 << 63:
            raise SettingsError(
                f"numbers has {number!r}; give 0 for the first sample of a seed, 1 for the second, and so on"
            )


def _one(seed: Seed) -> RawId:
    if isinstance(seed, tuple | list):
        raise SettingsError(f"seed {quoted(seed)} is a pair; the spec starts from nodes")
    return seed


def _pair(seed: Seed) -> tuple[RawId, RawId]:
    if not isinstance(seed, tuple | list) or len(seed) != 2:
        raise SettingsError(f"seed {quoted(seed)} is no pair; the spec starts from links: give source and target")
    return seed[0], seed[1]


try:
    import apache_beam as beam
except ImportError as error:
    raise MissingDependencyError("SampleSubgraphs needs apache-beam; pip install 'hopstream[beam]'") from error

MAX_BATCH = 4096
Numbered = tuple[bytes | tuple[bytes, bytes], int]
"""A seed and the number of a sample among those of that seed."""


class SampleSubgraphs(beam.PTransform):  # type: ignore[misc]  # Beam is not read by mypy
    """Seeds to samples: a PCollection of raw ids, or of pairs of them, to one of ``tf.Example`` messages as bytes.

    A seed that is there n times gets n samples, numbered from 0; equal raw ids are counted per window. A sample depends
    on the dataset, the sampling, the seed and this number, and on nothing else: neither bundles nor workers show.

    Each process of the runner opens the dataset once, so all of them must see it: a folder that they share, or servers.
    """

    def __init__(
        self, source: str | os.PathLike[str], sampling: SeedSampling, *, batch_size: int = 64, is_keyed: bool = False
    ) -> None:
        """Say what to sample from where.

        Args:
            source: What ``open_store`` takes: the folder of a dataset, a ``cluster.json``, or a list of servers.
            sampling: What is made of each seed.
            batch_size: Seeds that are sampled at once, 1 to 4096; memory grows with it.
            is_keyed: Elements are ``(sample id, message)``: the raw id of the seed (``source->target`` for links),
                followed by ``:1`` and so on from its second sample on.

        Raises:
            FormatError: The spec is none.
            SettingsError: The source cannot be opened by other processes, or ``batch_size`` is outside its range.
        """
        super().__init__()
        check_source(source)
        if not 1 <= batch_size <= MAX_BATCH:
            raise SettingsError(f"batch_size is {batch_size}; give 1 to {MAX_BATCH}")
        parse_spec(sampling.spec)
        self._place = _Place(os.fspath(source), sampling)
        self._batch_size, self._is_keyed = batch_size, is_keyed

    def expand(self, seeds: Any) -> Any:
        """Name seeds as the dataset does, count equal ones, and sample them batch by batch.

        Where ids are integers, ``007`` and ``7`` are one. To count spreads seeds over the workers.
        """
        samples = (
            seeds
            | "as bytes" >> beam.Map(_plain)
            | "as in the dataset" >> beam.ParDo(_Name(self._place)).with_output_types(Any)
            | "count" >> beam.combiners.Count.PerElement()
            | "number" >> beam.FlatMap(_numbered)
            | "batch" >> beam.BatchElements(min_batch_size=self._batch_size, max_batch_size=self._batch_size)
            | "sample" >> beam.ParDo(_Sample(self._place)).with_output_types(tuple[bytes, bytes])
        )
        return samples if self._is_keyed else samples | "drop ids" >> beam.Values().with_output_types(bytes)


def _plain(seed: Seed) -> bytes | tuple[bytes, bytes]:
    """A seed of bytes, so that equal ones are equal on every worker."""
    if isinstance(seed, tuple | list):
        if len(seed) != 2:
            raise SettingsError(f"seed {quoted(seed)} has {len(seed)} raw ids; a link has two")
        return as_bytes(seed[0]), as_bytes(seed[1])
    return as_bytes(seed)


def _numbered(counted: tuple[bytes | tuple[bytes, bytes], int]) -> Iterator[Numbered]:
    seed, count = counted
    return ((seed, number) for number in range(count))


@dataclass(frozen=True, slots=True)
class _Place:
    """What a process opens once.

    Attributes:
        source: What ``open_store`` takes.
        sampling: What is made of each seed.
    """

    source: str
    sampling: SeedSampling


class _Opening(beam.DoFn):  # type: ignore[misc]  # Beam is not read by mypy
    """Holds the dataset while it works."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._sampler: SeedSampler | None = None
        self._indexes: Sequence[RawIndex] = ()

    def setup(self) -> None:
        """Open the dataset, or share what another thread of this process opened."""
        store, self._indexes = OPENED.take(self._place)
        try:
            self._sampler = SeedSampler(store, self._place.sampling, self._indexes)
        except BaseException:
            OPENED.give_back(self._place)
            raise

    def teardown(self) -> None:
        """Let go of the dataset; the last user in the process closes it."""
        if self._sampler is not None:
            self._sampler, self._indexes = None, ()
            OPENED.give_back(self._place)


class _Name(_Opening):
    """Writes raw ids as the dataset has them."""

    def process(self, seed: bytes | tuple[bytes, bytes]) -> Iterable[bytes | tuple[bytes, bytes]]:
        """The name of a seed; sampling raises the error for an unknown node, or for a link where nodes are seeds."""
        if not self._indexes:
            raise RuntimeError("a seed came before setup")
        if isinstance(seed, tuple) != (len(self._indexes) == 2):
            return [seed]
        if not isinstance(seed, tuple):
            return self._indexes[0].names_of([seed])
        [source], [target] = (index.names_of([end]) for index, end in zip(self._indexes, seed, strict=True))
        return [(source, target)]


class _Sample(_Opening):
    """Samples batches."""

    def process(self, batch: list[Numbered]) -> Iterable[tuple[bytes, bytes]]:
        """The samples of a batch."""
        if self._sampler is None:
            raise RuntimeError("a batch came before setup")
        seeds, numbers = zip(*batch, strict=True)
        return self._sampler.sample(seeds, numbers)


class _Opened:
    """The datasets that are open in this process, with the raw ids of seeds, each once however many threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[tuple[Any, ...], int] = {}
        self.held: dict[tuple[Any, ...], tuple[Store, Sequence[RawIndex]]] = {}

    def take(self, place: _Place) -> tuple[Store, Sequence[RawIndex]]:
        """Open a place, or use one that is open; each take wants a ``give_back``."""
        name = _name_of(place)
        with self._lock:
            if name not in self.held:
                store = open_store(place.source)
                try:
                    ends = place.sampling.ends_of(place.sampling.plan_over(store.schema))
                    self.held[name] = store, RawIndex.of_ends(store, ends)
                except BaseException:
                    store.close()
                    raise
            self._users[name] = self._users.get(name, 0) + 1
            return self.held[name]

    def give_back(self, place: _Place) -> None:
        """Close a place that nobody uses any more."""
        name = _name_of(place)
        with self._lock:
            self._users[name] -= 1
            if self._users[name]:
                return
            del self._users[name]
            store, _ = self.held.pop(name)
        store.close()


def _name_of(place: _Place) -> tuple[Any, ...]:
    sampling = place.sampling
    return place.source, sampling.spec, sampling.link_set, sampling.id_feature


OPENED = _Opened()
