"""Makes the ``tf.Example`` of a seed that is given by raw id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError, quoted
from hopstream.export.context import sample_id_of
from hopstream.export.raw_ids import RawId, link_name
from hopstream.export.raw_index import RawIndex
from hopstream.export.samples import SampleMaker, SeedSampling, distinct_stretches, trees_of
from hopstream.store.contract import Store
from hopstream.tfgnn.graph_tensor import encode_graphs

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
