"""How does one mini-batch come about, from seed keys to columns?

A batch belongs to one thread from its first to its last step: look up the seeds, run the plan, fetch all columns of all
types in one call of the store. Users see keys only; ids stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import UnknownNameError
from hopstream.graph.subgraph import SampledEdges, Subgraph
from hopstream.load.buffers import Buffers
from hopstream.load.columns import ColumnChoice
from hopstream.load.order import SeedOrder
from hopstream.load.seeds import Seeds
from hopstream.partition.book import Owner
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, Store

Convert = Callable[["MiniBatch"], Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """One sampled subgraph with its columns, as numpy arrays. Every type of the schema is present.

    Arrays belong to whoever holds the batch: they are never written again while a view of them is alive.

    Attributes:
        epoch: The epoch that the batch is part of.
        index: Its number in the epoch, over all ranks.
        seed_type: Node type of the seeds.
        input_ids: int64[batch_size], the places of the seeds in what the loader was given as seeds.
        node_keys: Node type to int64[num_nodes], keys; the seeds come first.
        edge_index: Edge type to int64[2, num_edges], slots (positions in ``node_keys``) of sources and destinations.
        edge_keys: Edge type to int64[num_edges], original edge keys; empty where they were not asked for.
        node_features: Node type to feature name to column of num_nodes rows.
        edge_features: Edge type to feature name to column of num_edges rows.
        num_sampled_nodes: Node type to [seeds, new in hop 1, …].
        num_sampled_edges: Edge type to [drawn in hop 1, …].
    """

    epoch: int
    index: int
    seed_type: str
    input_ids: IntArray
    node_keys: Mapping[str, IntArray]
    edge_index: Mapping[EdgeType, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]
    node_features: Mapping[str, Mapping[str, Column]]
    edge_features: Mapping[EdgeType, Mapping[str, Column]]
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What every batch of a loader has in common.

    Attributes:
        seeds: The seeds of an epoch.
        order: Which of them make which batch.
        columns: Features that are fetched.
        wants_edge_keys: Fetch original edge keys as well.
    """

    seeds: Seeds
    order: SeedOrder
    columns: ColumnChoice
    wants_edge_keys: bool


class Runner(Protocol):
    """Runs a sampling plan; ``sample.hops.PlanRunner`` is one."""

    def run(self, seed_ids: IntArray, rng_seed: int) -> Subgraph:
        """The subgraph of distinct seeds, valid until the next call."""
        ...


class BatchMaker:
    """Makes batches of one loader. One thread uses one maker."""

    def __init__(
        self, store: Store, runner: Runner, settings: BatchSettings, buffers: Buffers, convert: Convert
    ) -> None:
        """Bring together where batches come from (``store``, ``runner``) and go to (``buffers``, ``convert``)."""
        self._store = store
        self._runner = runner
        self._settings = settings
        self._buffers = buffers
        self._convert = convert
        # With one part the format says that id equals key, which saves two round trips to look keys up.
        self._has_one_part = store.book.num_parts == 1
        self.stage = "idle"
        """What the maker is doing, for messages about batches that take too long."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch, and bring it into the form that the user wants; equal arguments give equal batches."""
        batch = self._make(epoch, step)
        self.stage = "collating"
        return self._convert(batch)

    def _make(self, epoch: int, step: int) -> MiniBatch:
        settings = self._settings
        span = settings.order.span(step)
        positions = settings.order.positions(epoch, span)
        self.stage = "looking up seeds"
        seed_ids, slots = self._distinct_ids(settings.seeds.keys_at(positions))
        self.stage = "sampling"
        subgraph = self._runner.run(seed_ids, settings.order.batch_seed(epoch, span))
        if slots is not None:
            subgraph = repeat_seeds(subgraph, settings.seeds.node_type, slots)
        self.stage = "fetching features"
        node_columns, edge_columns = self._fetch(subgraph)
        return MiniBatch(
            epoch=epoch,
            index=span.index,
            seed_type=settings.seeds.node_type,
            input_ids=settings.seeds.input_ids_at(positions),
            node_keys={t: cast(IntArray, columns.pop(KEY)) for t, columns in node_columns.items()},
            edge_index={t: self._edge_index(edges) for t, edges in subgraph.edges.items()},
            edge_keys={t: cast(IntArray, c.pop(KEY)) for t, c in edge_columns.items() if KEY in c},
            node_features=node_columns,
            edge_features=edge_columns,
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
        )

    def _distinct_ids(self, seed_keys: IntArray) -> tuple[IntArray, IntArray | None]:
        """Ids of the distinct seeds, and per seed its place among them, or None where no seed is repeated."""
        slots = None
        if self._settings.seeds.may_repeat:
            distinct, first, inverse = np.unique(seed_keys, return_index=True, return_inverse=True)
            if len(distinct) < len(seed_keys):
                by_occurrence = np.argsort(first)
                slots = np.argsort(by_occurrence)[inverse]
                seed_keys = distinct[by_occurrence]
        ids = seed_keys if self._has_one_part else self._store.lookup(self._settings.seeds.node_type, seed_keys)
        return ids, slots

    def _fetch(self, subgraph: Subgraph) -> tuple[dict[str, dict[str, Column]], dict[EdgeType, dict[str, Column]]]:
        """All columns of all types, in one call of the store."""
        schema = self._store.schema
        settings = self._settings
        fetch = _Fetch(self._buffers)
        nodes: dict[str, dict[str, Column]] = {}
        for node_type, names in settings.columns.nodes.items():
            ids = subgraph.node_ids[node_type]
            if self._has_one_part:
                keys = self._buffers.take((len(ids),), np.int64)
                keys[:] = ids
                nodes[node_type] = fetch.add(node_type, _features_of(schema.nodes[node_type], names), ids)
                nodes[node_type][KEY] = keys
            else:
                nodes[node_type] = fetch.add(node_type, _features_of(schema.nodes[node_type], (KEY, *names)), ids)
        edges: dict[EdgeType, dict[str, Column]] = {}
        for edge_type, names in settings.columns.edges.items():
            sampled = subgraph.edges[edge_type]
            wanted = (KEY, *names) if settings.wants_edge_keys else names
            ids = np.empty(0, np.int64) if sampled.edge_ids is None else sampled.edge_ids
            features = _features_of(schema.edges[edge_type], wanted)
            edges[edge_type] = fetch.add((edge_type, sampled.direction), features, ids)
        fetch.run(self._store)
        return nodes, edges

    def _edge_index(self, edges: SampledEdges) -> IntArray:
        edge_index = self._buffers.take((2, len(edges.src_slots)), np.int64)
        edge_index[0] = edges.src_slots
        edge_index[1] = edges.dst_slots
        return edge_index


class _Fetch:
    """The requests of one batch, and the columns that their answers go to."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._requests: list[FetchRequest] = []
        self._targets: list[dict[str, Column]] = []

    def add(self, owner: Owner, features: Mapping[str, FeatureSchema], ids: IntArray) -> dict[str, Column]:
        """Ask for columns; the dict that is returned holds all of them after ``run``."""
        columns: dict[str, Column] = {}
        out: dict[str, Array] = {}
        for name, feature in features.items():
            if feature.is_fixed_width:
                out[name] = self._buffers.take((len(ids), *feature.shape), feature.numpy_dtype)
                columns[name] = out[name]
            elif not len(ids):
                empty = np.empty((0, *feature.shape), feature.numpy_dtype)
                columns[name] = RaggedArray(empty, np.zeros(1, np.int64), feature.is_string)
        if features and len(ids):
            self._requests.append(FetchRequest(owner=owner, names=tuple(features), ids=ids, out=out))
            self._targets.append(columns)
        return columns

    def run(self, store: Store) -> None:
        """Make the one call, if there is anything to ask."""
        if not self._requests:
            return
        for columns, answer in zip(self._targets, store.fetch(self._requests), strict=True):
            columns.update({name: column for name, column in answer.items() if name not in columns})


def _features_of(features: Mapping[str, FeatureSchema], names: Sequence[str]) -> dict[str, FeatureSchema]:
    return {name: KEY_SCHEMA if name == KEY else features[name] for name in names}


def repeat_seeds(subgraph: Subgraph, seed_type: str, slots: IntArray) -> Subgraph:
    """Give every seed of a batch its own slot, with its own copy of the edges drawn for it in the first hop.

    That is what a model needs to see a seed twice: row ``i`` of its output is seed ``i``. A repeated seed that another
    node reaches is reached in its first slot.

    Args:
        subgraph: The subgraph of the distinct seeds.
        seed_type: Node type of the seeds.
        slots: int64[num_seeds], place of each seed among the distinct ones, which are numbered by first occurrence.

    Returns:
        A subgraph of new arrays whose first ``num_seeds`` slots of the seed type are the seeds, repetitions included.
    """
    num_distinct = subgraph.num_sampled_nodes[seed_type][0]
    num_repeats = len(slots) - num_distinct
    node_ids = subgraph.node_ids[seed_type]
    _, first = np.unique(slots, return_index=True)
    moved = np.concatenate([first, np.arange(num_distinct, len(node_ids)) + num_repeats])
    is_repeat = np.ones(len(slots), np.bool_)
    is_repeat[first] = False
    repeats = np.flatnonzero(is_repeat)
    edges = {
        edge_type: _repeat_edges(edges, (seed_type == edge_type[0], seed_type == edge_type[2]), moved)
        for edge_type, edges in subgraph.edges.items()
    }
    num_edges = {t: list(counts) for t, counts in subgraph.num_sampled_edges.items()}
    for edge_type, sampled in edges.items():
        expanded = edge_type[2] if sampled.direction == "in" else edge_type[0]
        if expanded == seed_type and num_edges[edge_type]:
            edges[edge_type], num_added = _copy_first_hop(
                sampled, num_edges[edge_type][0], first[slots[repeats]], repeats
            )
            num_edges[edge_type][0] += num_added
    num_nodes = {t: list(counts) for t, counts in subgraph.num_sampled_nodes.items()}
    num_nodes[seed_type][0] = len(slots)
    seed_ids = node_ids[:num_distinct][slots]
    return Subgraph(
        node_ids={**subgraph.node_ids, seed_type: np.concatenate([seed_ids, node_ids[num_distinct:]])},
        edges=edges,
        num_sampled_nodes=num_nodes,
        num_sampled_edges=num_edges,
    )


def _repeat_edges(edges: SampledEdges, is_seed_type: tuple[bool, bool], moved: IntArray) -> SampledEdges:
    """The edges with slots of the seed type moved to make room for repeated seeds."""
    return replace(
        edges,
        src_slots=moved[edges.src_slots] if is_seed_type[0] else edges.src_slots,
        dst_slots=moved[edges.dst_slots] if is_seed_type[1] else edges.dst_slots,
    )


def _copy_first_hop(
    edges: SampledEdges, num_first: int, originals: IntArray, repeats: IntArray
) -> tuple[SampledEdges, int]:
    """Add, after the first hop's edges, a copy of each edge that was drawn for ``originals[i]``, for ``repeats[i]``."""
    anchors = (edges.dst_slots if edges.direction == "in" else edges.src_slots)[:num_first]
    order = np.argsort(anchors, kind="stable")
    starts = np.searchsorted(anchors[order], originals, side="left")
    counts = np.searchsorted(anchors[order], originals, side="right") - starts
    ends = np.cumsum(counts)
    copied = order[np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)]
    taken = np.concatenate([np.arange(num_first), copied, np.arange(num_first, len(edges.src_slots))])
    src_slots, dst_slots = edges.src_slots[taken], edges.dst_slots[taken]
    anchor_slots = dst_slots if edges.direction == "in" else src_slots
    anchor_slots[num_first : num_first + len(copied)] = np.repeat(repeats, counts)
    edge_ids = None if edges.edge_ids is None else edges.edge_ids[taken]
    return replace(edges, src_slots=src_slots, dst_slots=dst_slots, edge_ids=edge_ids), len(copied)


def keeps_edge_keys(store: Store, direction: Direction) -> bool:
    """Whether a store can answer original edge keys; a dataset keeps them for all edge types or for none."""
    for edge_type in store.schema.edges:
        if store.book.num_ids((edge_type, direction)):
            request = FetchRequest(owner=(edge_type, direction), names=(KEY,), ids=np.zeros(1, np.int64))
            try:
                store.fetch([request])
            except UnknownNameError:
                return False
            return True
    return True
