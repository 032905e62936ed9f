"""Beam transform from seeds to ``tf.Example`` messages of sampled subgraphs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hopstream.dataset.raw_ids import as_bytes
from hopstream.errors import MissingDependencyError, SettingsError, quoted
from hopstream.export.raw_ids import RawIndex
from hopstream.export.samples import SeedSampling
from hopstream.export.seed_sampler import Seed, SeedSampler
from hopstream.store import open_store
from hopstream.store.contract import Store
from hopstream.store.sources import read_location
from hopstream.tfgnn.sampling_spec import parse_spec

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
        location = read_location(source)
        if not 1 <= batch_size <= MAX_BATCH:
            raise SettingsError(f"batch_size is {batch_size}; give 1 to {MAX_BATCH}")
        parse_spec(sampling.spec)
        self._place = _Place(location, sampling)
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
    """Stage that replaces raw ids by the dataset's own text of them."""

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
    """Stage that samples batches."""

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
