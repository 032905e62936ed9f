"""Which ``tf.Example`` belongs to a seed, whoever samples it, when, and with which others?

A seed's tree, which its draws depend on, is made of its key and of the sample's number, so that neither the batch that
it comes in nor its place there shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.export.context import SAMPLE_ID, SEED_ID, declare_ids, sample_id_of, with_seed_ids
from hopstream.export.plan import plan_of_spec, starts_from_links
from hopstream.export.raw_index import RawId, RawIndex, as_bytes
from hopstream.export.readout import add_seed_readout, declare_link_readout, declare_seed_readout
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.kernels.hashing import hash_keys
from hopstream.sample.plan import SubgraphType
from hopstream.schema import EdgeType, GraphSchema
from hopstream.store.contract import MAX_TREES, Store
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.graph_tensor import GraphPieces, encode_graphs
from hopstream.tfgnn.sampling_spec import parse_spec

Seed = RawId | tuple[RawId, RawId]
"""The raw id of a node, or, where a plan starts from links, those of source and target."""
SEED_STOP = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSampling:
    """What is made of each seed.

    Attributes:
        spec: A ``SamplingSpec`` in text form.
        rng_seed: 64 bits; other draws come of another one.
        features: Which features are written of each node type and edge type; None for all.
        id_feature: The feature that holds the raw ids of the seeds' node type; None for ``#id`` or ``id``, and where
            there is neither, raw ids are keys.
        link_set: The node set of links' ends, where the spec does not say it; see ``plan_of_spec``.
        subgraph_type: ``directional``: the edges that were drawn; ``induced``: all between the nodes found.
        reads_seeds: Graphs have a readout of their seed. Links always have one of their ends.
        labels: Features of the seeds' node set that move to the readout.
        has_seed_ids: Graphs have ``context/seed_id`` and ``context/sample_id``.
    """

    spec: str
    rng_seed: int = 0
    features: Mapping[str | EdgeType, Sequence[str]] | None = None
    id_feature: str | None = None
    link_set: str | None = None
    subgraph_type: SubgraphType = "directional"
    reads_seeds: bool = False
    labels: tuple[str, ...] = ()
    has_seed_ids: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if not 0 <= self.rng_seed < SEED_STOP:
            raise SettingsError(f"rng_seed is {self.rng_seed}; give 0 to 2**64 - 1")
        if self.labels and not self.reads_seeds:
            raise SettingsError(
                f"labels are {list(self.labels)}, and there is no readout to move them to; set reads_seeds"
            )


def schema_of_samples(sampling: SeedSampling, schema: GraphSchema) -> Any:
    """The ``GraphSchema`` message of the graphs that a sampling of a dataset gives.

    Raises:
        SchemaError: The spec contradicts the schema, or a label is not there.
        FormatError: The spec is none.
    """
    message = schema_message(_kept(sampling, schema))
    plan = plan_of_spec(
        parse_spec(sampling.spec), schema, subgraph_type=sampling.subgraph_type, link_set=sampling.link_set
    )
    if starts_from_links(plan):
        declare_link_readout(message, *plan.seed_types)
    elif sampling.reads_seeds:
        declare_seed_readout(message, plan.seed_types[0], sampling.labels)
    if sampling.has_seed_ids:
        declare_ids(message, SEED_ID, SAMPLE_ID)
    return message


class SeedSampler:
    """Makes ``tf.Example`` messages of raw seeds. One thread uses one sampler; stores and indexes may be shared."""

    def __init__(self, store: Store, sampling: SeedSampling, index: RawIndex | None = None) -> None:
        """Check the sampling against the store.

        Args:
            store: Where the graph is.
            sampling: What is made of each seed.
            index: The raw ids of the seeds' node type; read if None.

        Raises:
            SchemaError: The spec contradicts itself or the dataset.
            FormatError: The spec is none.
            UnknownNameError: The dataset has no such feature.
            SettingsError: The dataset does not hold what the spec needs, or links are asked for a readout of seeds.
        """
        spec = parse_spec(sampling.spec)
        plan = plan_of_spec(spec, store.schema, subgraph_type=sampling.subgraph_type, link_set=sampling.link_set)
        self._is_of_links = starts_from_links(plan)
        if self._is_of_links and sampling.reads_seeds:
            raise SettingsError("reads_seeds is for specs that start from nodes; links are read out at their ends")
        self._seed_type, self._sampling = plan.seed_types[0], sampling
        self._index = index or RawIndex.of(store, self._seed_type, sampling.id_feature)
        features = _features_of(sampling, store.schema)
        _check_labels(sampling, store.schema, self._seed_type, features.get(self._seed_type, ()))
        self._maker = SubgraphMaker(store, plan, features)

    def sample(self, seeds: Sequence[Seed], numbers: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """The sample of each seed: its name and its ``tf.Example``.

        Args:
            seeds: Raw ids, or pairs of them where the spec starts from links.
            numbers: The number of each sample among those of its seed, from 0.

        Raises:
            IdRangeError: A seed is no node.
            SettingsError: A seed is no raw id, or not a pair of them where the spec starts from links.
            StoreError: The store failed.
        """
        seed_ids, keys = self._names_and_keys(seeds)
        sample_ids = [sample_id_of(one, number) for one, number in zip(seed_ids, numbers, strict=True)]
        trees = _trees_of(keys, np.array(numbers, np.int64))
        found: list[tuple[bytes, bytes]] = [(b"", b"")] * len(seeds)
        for rows in _of_distinct_trees(trees):
            pieces = self._maker.make_trees(keys[rows], self._sampling.rng_seed, trees[rows])
            places = rows.tolist()
            encoded = encode_graphs(
                self._finished(pieces, [seed_ids[i] for i in places], [sample_ids[i] for i in places])
            )
            for number, place in enumerate(places):
                found[place] = (sample_ids[place], encoded[number])
        return found

    def _finished(self, pieces: GraphPieces, seed_ids: list[bytes], sample_ids: list[bytes]) -> GraphPieces:
        if self._sampling.reads_seeds:
            pieces = add_seed_readout(pieces, self._seed_type, self._sampling.labels)
        return with_seed_ids(pieces, seed_ids, sample_ids=sample_ids) if self._sampling.has_seed_ids else pieces

    def _names_and_keys(self, seeds: Sequence[Seed]) -> tuple[list[bytes], IntArray]:
        if not self._is_of_links:
            nodes = [_one(seed) for seed in seeds]
            return [as_bytes(node) for node in nodes], self._index.keys_of(nodes)
        links = [_pair(seed) for seed in seeds]
        keys = self._index.keys_of([end for link in links for end in link])
        return [b"%s->%s" % (as_bytes(source), as_bytes(target)) for source, target in links], keys.reshape(-1, 2)


def _one(seed: Seed) -> RawId:
    if isinstance(seed, tuple | list):
        raise SettingsError(f"seed {seed!r} is a pair; the spec starts from nodes")
    return seed


def _pair(seed: Seed) -> tuple[RawId, RawId]:
    if not isinstance(seed, tuple | list) or len(seed) != 2:
        raise SettingsError(f"seed {seed!r} is no pair; the spec starts from links: give source and target")
    return seed[0], seed[1]


def _trees_of(keys: IntArray, numbers: IntArray) -> IntArray:
    """int64[n], the tree of each sample; those of one seed have different ones, as there are fewer than trees."""
    mixed = np.zeros(len(keys), np.uint64)
    for column in keys.reshape(len(keys), -1).T:
        hash_keys(column ^ mixed.view(np.int64), np.uint64(0), mixed)
    trees: IntArray = ((mixed >> np.uint64(1)).view(np.int64) + numbers) % MAX_TREES
    return trees


def _of_distinct_trees(trees: IntArray) -> list[IntArray]:
    """Rows with trees of their own, as few lists as can be; nearly always one."""
    order = np.argsort(trees, kind="stable")
    in_order = trees[order]
    starts = np.searchsorted(in_order, in_order)
    turns = np.empty(len(trees), np.int64)
    turns[order] = np.arange(len(trees)) - starts
    return [np.flatnonzero(turns == turn) for turn in range(int(turns.max(initial=-1)) + 1)]


def _check_labels(sampling: SeedSampling, schema: GraphSchema, seed_type: str, written: Sequence[str]) -> None:
    for name in sampling.labels:
        held = schema.feature(seed_type, name)
        if name not in written:
            raise SettingsError(f"label {name!r} is not among the features of {seed_type!r}: {', '.join(written)}")
        if held.is_ragged:
            raise SettingsError(f"label {name!r} holds lists of different lengths; labels have one shape")


def _features_of(sampling: SeedSampling, schema: GraphSchema) -> dict[str | EdgeType, tuple[str, ...]]:
    if sampling.features is not None:
        return {owner: tuple(names) for owner, names in sampling.features.items()}
    names: dict[str | EdgeType, tuple[str, ...]] = {t: tuple(of) for t, of in schema.nodes.items()}
    names.update({t: tuple(of) for t, of in schema.edges.items()})
    return names


def _kept(sampling: SeedSampling, schema: GraphSchema) -> GraphSchema:
    """The schema with the features alone that are written."""
    names = _features_of(sampling, schema)
    return replace(
        schema,
        nodes={t: {n: f for n, f in of.items() if n in names.get(t, ())} for t, of in schema.nodes.items()},
        edges={t: {n: f for n, f in of.items() if n in names.get(t, ())} for t, of in schema.edges.items()},
    )
