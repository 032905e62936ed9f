"""Sampler of ``tf.Example`` messages for seeds given by raw id; it needs no Beam."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.raw_ids import RawId
from hopstream.errors import SettingsError, quoted
from hopstream.export.raw_ids import RawIndex, link_name
from hopstream.export.samples import SampleMaker, SeedSampling, distinct_stretches, sample_id_of, trees_of
from hopstream.store.contract import Store
from hopstream.tfgnn.graph_tensor import encode_graphs

Seed = RawId | tuple[RawId, RawId]
"""The raw id of a node; for plans that start from links, the raw ids of source and target."""


class SeedSampler:
    """Sampler of ``tf.Example`` messages for raw seeds.

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
        raise SettingsError(f"seed {quoted(seed)} is not a pair; the spec starts from links: give source and target")
    return seed[0], seed[1]
