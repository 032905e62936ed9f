"""Beam transform from seeds to ``tf.Example`` messages of sampled subgraphs."""

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
"""The raw id of a node; for plans that start from links, the raw ids of source and target."""


class SeedSampler:
    """Samples ``tf.Example`` messages for raw seeds.

    A sampler is not thread-safe, but samplers of different threads may share stores and indexes.
    """

    def __init__(self, store: Store, sampling: SeedSampling, indexes: Sequence[RawIndex] | None = None) -> None:
        """Check the sampling against the store.

        Args:
            store: Where the graph is.
            sampling: The sampling of each seed.
            indexes: Index of the raw ids of the seeds' node type, or of sources and of targets; None to build it.

        Raises:
            SchemaError: The spec contradicts itself or the dataset.
            FormatError: The spec is invalid.
            UnknownNameError: The dataset has no such feature.
            SettingsError: The dataset does not hold what the spec needs, or ``readout`` is set and seeds are links.
        """
        self._maker = SampleMaker(store, sampling)
        self._indexes = indexes or RawIndex.of_ends(store, self._maker.ends)

    def sample(self, seeds: Sequence[Seed], numbers: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Sample each seed; return the name and the ``tf.Example`` of each sample.

        Args:
            seeds: Raw ids; pairs of them if the spec starts from links.
            numbers: The number of each sample among the samples of its seed, from 0.

        Raises:
            IdRangeError: A seed is not a node.
            SettingsError: A seed is not a raw id, or not a pair of them although the spec starts from links; or the
                count of numbers is not that of seeds; or a number is negative or not an integer.
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
"""A seed, and the number of a sample among the samples of that seed."""


class SampleSubgraphs(beam.PTransform):  # type: ignore[misc]  # Beam is not read by mypy
    """PTransform of raw ids, or pairs of them, to ``tf.Example`` messages as bytes.

    A seed that occurs n times gets n samples, numbered from 0; equal raw ids are counted per window. A sample depends
    only on the dataset, the sampling, the seed and this number, not on bundles or workers.

    Each process of the runner opens the dataset once, so all must have access: to a shared folder, or to servers.
    """

    def __init__(
        self, source: str | os.PathLike[str], sampling: SeedSampling, *, batch_size: int = 64, is_keyed: bool = False
    ) -> None:
        """Configure the transform.

        Args:
            source: Location for ``open_store``: the folder of a dataset, a ``cluster.json``, or a list of servers.
            sampling: The sampling of each seed.
            batch_size: Seeds that are sampled at once, 1 to 4096; memory grows with it.
            is_keyed: Output ``(sample id, message)``. The sample id is the raw id of the seed (``source->target`` for
                links), with the suffix ``:1``, ``:2`` … for its second, third … sample.

        Raises:
            FormatError: The spec is invalid.
            SettingsError: Other processes cannot open the source, or ``batch_size`` is out of range.
        """
        super().__init__()
        check_source(source)
        if not 1 <= batch_size <= MAX_BATCH:
            raise SettingsError(f"batch_size is {batch_size}; give 1 to {MAX_BATCH}")
        parse_spec(sampling.spec)
        self._place = _Place(os.fspath(source), sampling)
        self._batch_size, self._is_keyed = batch_size, is_keyed

    def expand(self, seeds: Any) -> Any:
        """Normalize the names of seeds, count equal seeds, and sample them in batches.

        If raw ids are integers, ``007`` and ``7`` are the same seed. The count also spreads seeds over the workers.
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
    """Convert a seed to bytes, so that equal seeds are equal elements on every worker."""
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
    """A source and a sampling, which a process opens once.

    Attributes:
        source: Location for ``open_store``.
        sampling: The sampling of each seed.
    """

    source: str
    sampling: SeedSampling


class _Opening(beam.DoFn):  # type: ignore[misc]  # Beam is not read by mypy
    """A DoFn that keeps the dataset open from setup to teardown."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._sampler: SeedSampler | None = None
        self._indexes: Sequence[RawIndex] = ()

    def setup(self) -> None:
        """Open the dataset, or share the one that another thread of this process has opened."""
        store, self._indexes = OPENED.take(self._place)
        try:
            self._sampler = SeedSampler(store, self._place.sampling, self._indexes)
        except BaseException:
            OPENED.give_back(self._place)
            raise

    def teardown(self) -> None:
        """Release the dataset; the last user in the process closes it."""
        if self._sampler is not None:
            self._sampler, self._indexes = None, ()
            OPENED.give_back(self._place)


class _Name(_Opening):
    """Replaces raw ids by the dataset's own text of them."""

    def process(self, seed: bytes | tuple[bytes, bytes]) -> Iterable[bytes | tuple[bytes, bytes]]:
        """Return the normalized seed; sampling refuses unknown nodes and seeds of the wrong kind."""
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
        """Return the samples of a batch."""
        if self._sampler is None:
            raise RuntimeError("a batch came before setup")
        seeds, numbers = zip(*batch, strict=True)
        return self._sampler.sample(seeds, numbers)


class _Opened:
    """Reference-counted datasets of this process, with the indexes of seeds' raw ids; threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[tuple[Any, ...], int] = {}
        self.held: dict[tuple[Any, ...], tuple[Store, Sequence[RawIndex]]] = {}

    def take(self, place: _Place) -> tuple[Store, Sequence[RawIndex]]:
        """Open a dataset or reuse an open one; each ``take`` needs one ``give_back``."""
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
        """Release a dataset; the last release closes it."""
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
