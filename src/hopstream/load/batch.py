"""Mini-batches: chooses and fetches columns of sampled subgraphs.

One call of the store fetches all columns of all types. Users see keys only; ids are internal.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.buffers import Buffers
from hopstream.checks import known_names
from hopstream.dataset.book import Entity
from hopstream.errors import (
    FormatError,
    ServerBusy,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
    UnknownNameError,
)
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.load.ahead import SamplingAhead
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr import PPRRunner
from hopstream.sample.slots import SlotMap
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, Store
from hopstream.store.local import LocalStore

LOG = logging.getLogger(__name__)
NO_IDS = np.empty(0, np.int64)
T = TypeVar("T", str, EdgeType)
NodeFeatures = Sequence[str] | Mapping[str, Sequence[str]] | None
EdgeFeatures = Sequence[str] | Mapping[EdgeType, Sequence[str]] | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Chosen columns of each type. Every type of the schema is present.

    Attributes:
        nodes: Node type to feature names.
        edges: Edge type to feature names.
    """

    nodes: Mapping[str, tuple[str, ...]]
    edges: Mapping[EdgeType, tuple[str, ...]]

    @property
    def has_edge_features(self) -> bool:
        """Whether any edge type has chosen features."""
        return any(self.edges.values())


def choose_columns(schema: GraphSchema, node_features: NodeFeatures, edge_features: EdgeFeatures) -> ColumnChoice:
    """Check a choice of features.

    Args:
        schema: The graph's schema.
        node_features: None for all features of all node types; names, for every node type that has them; or node type
            to names, and nothing for other types.
        edge_features: The same for edge types, named by a tuple or as ``src__rel__dst``.

    Raises:
        UnknownNameError: The schema has no such type or feature.
        SettingsError: A name is given instead of a list of names, or a name is given twice.
    """
    labels: dict[str | EdgeType, EdgeType] = {type_label(t): t for t in schema.edges} | {t: t for t in schema.edges}
    by_edge_type = _resolve(edge_features, labels)
    return ColumnChoice(
        nodes=_choose("node_features", schema.nodes, node_features),
        edges=_choose("edge_features", schema.edges, by_edge_type),
    )


def _resolve(
    edge_features: EdgeFeatures, labels: Mapping[str | EdgeType, EdgeType]
) -> Sequence[str] | Mapping[EdgeType, Sequence[str]] | None:
    if not isinstance(edge_features, Mapping):
        return edge_features
    resolved: dict[EdgeType, Sequence[str]] = {}
    for given, names in edge_features.items():
        edge_type = labels.get(tuple(given) if isinstance(given, list) else given)
        if edge_type is None:
            known = [t for t in labels if isinstance(t, tuple)]
            raise UnknownNameError(f"edge_features: unknown edge type {given!r}; {known_names(given, known)}")
        if edge_type in resolved:
            raise SettingsError(f"edge_features names {edge_type!r} twice")
        resolved[edge_type] = names
    return resolved


def _choose(
    setting: str,
    known: Mapping[T, Mapping[str, FeatureSchema]],
    choice: Sequence[str] | Mapping[T, Sequence[str]] | None,
) -> dict[T, tuple[str, ...]]:
    if choice is None:
        return {t: tuple(features) for t, features in known.items()}
    if isinstance(choice, Mapping):
        for t, names in choice.items():
            if t not in known:
                raise UnknownNameError(f"{setting}: unknown type {t!r}; {known_names(t, known)}")
            _check_known(f"{setting}[{t!r}]", names, known[t])
        return {t: tuple(choice.get(t, ())) for t in known}
    _check_known(setting, choice, {name for features in known.values() for name in features})
    return {t: tuple(name for name in choice if name in features) for t, features in known.items()}


def _check_known(where: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    if isinstance(names, str):
        raise SettingsError(f"{where} is the name {names!r}; give a list of names: [{names!r}]")
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{where} is {names!r}; give a list of names, such as {known[:2]}")
    if len(set(names)) != len(names):
        raise SettingsError(f"{where} names a feature twice: {list(names)}")
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{where}: feature {name!r} does not exist; {known_names(name, sorted(known))}")


Inputs = TypeVar("Inputs")
V = TypeVar("V")
Convert = Callable[["MiniBatch"], Any]
Attributes = Mapping[str | EdgeType | None, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchFrame:
    """Fields of a batch that are known before its columns are fetched; see ``MiniBatch``."""

    epoch: int
    index: int
    seed_type: str | EdgeType
    input_ids: IntArray
    edge_index: Mapping[EdgeType, IntArray]
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    trees: Mapping[str, IntArray] | None = None
    attributes: Attributes = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return len(self.input_ids)


FRAME_FIELDS = tuple(one.name for one in fields(BatchFrame))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch(BatchFrame):
    """Sampled subgraph with its columns, as numpy arrays. Every type of the schema is present.

    The consumer owns the arrays: the loader never writes to them while a view of them is alive.

    Attributes:
        epoch: The batch's epoch.
        index: Number of the batch in the epoch, over all ranks.
        seed_type: Node type of the seeds, or edge type if the seeds are links.
        input_ids: int64[batch_size], positions of the seeds in the loader's input.
        node_keys: Node type to int64[num_nodes], keys; the seeds come first.
        edge_index: Edge type to int64[2, num_edges], slots (positions in ``node_keys``) of sources and destinations.
        edge_keys: Edge type to int64[num_edges], original edge keys; an empty mapping if they were not requested.
        node_features: Node type to feature name to column of num_nodes rows.
        edge_features: Edge type to feature name to column of num_edges rows.
        num_sampled_nodes: Node type to [seeds, new in hop 1, …].
        num_sampled_edges: Edge type to [drawn in hop 1, …], or None if edges are not in the order of hops.
        trees: Node type to int64[num_nodes], the tree of each node, if trees are disjoint; else None.
        attributes: Further attributes that a loader attaches: node type, edge type or None (the whole batch), to name,
            to value.
    """

    node_keys: Mapping[str, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]
    node_features: Mapping[str, Mapping[str, Column]]
    edge_features: Mapping[EdgeType, Mapping[str, Column]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedBatch:
    """Seeds of one batch, and attributes that do not depend on the subgraph.

    Attributes:
        index: Number of the batch in its epoch, over all ranks.
        seeds: Ids of the seeds, and the settings of their draws.
        seed_type: Node type of the seeds, or edge type if the seeds are links.
        input_ids: int64[batch_size], positions of the seeds in the loader's input.
        attributes: As in ``MiniBatch``.
        seed_keys: int64[batch_size], keys that the first nodes of ``seed_type`` must have; None if unknown.
        arrange: Changes the subgraph before its columns are fetched; None changes nothing.
    """

    index: int
    seeds: SeedNodes
    seed_type: str | EdgeType
    input_ids: IntArray
    attributes: Attributes = field(default_factory=dict)
    seed_keys: IntArray | None = None
    arrange: Callable[[Subgraph], Subgraph] | None = None


Runner = PlanRunner | PPRRunner
"""Sampler of the subgraphs of one batch or of several batches at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledBatch(BatchFrame):
    """A batch whose columns are not fetched yet.

    Attributes:
        node_ids: Node type to int64[num_nodes], ids.
        edge_ids: Edge type to int64[num_edges], ids; empty if no column is fetched by them.
        directions: Edge type to the direction whose id space ``edge_ids`` belong to.
        edge_keys: Edge type to int64[num_edges], keys of the types whose keys came with the draws.
        seed_keys: As in ``SeedBatch``.
    """

    node_ids: Mapping[str, IntArray]
    edge_ids: Mapping[EdgeType, IntArray]
    directions: Mapping[EdgeType, Direction]
    edge_keys: Mapping[EdgeType, IntArray]
    seed_keys: IntArray | None = None


class SubgraphReader:
    """Reader of the columns of sampled subgraphs. Not thread-safe."""

    def __init__(self, store: Store, columns: ColumnChoice, wants_edge_keys: bool, buffers: Buffers) -> None:
        """Read ``columns``, and edge keys if wanted, from ``store`` into arrays of ``buffers``."""
        self._store = store
        self._columns = columns
        self._wants_edge_keys = wants_edge_keys
        self.buffers = buffers
        # With one part, ids equal keys by the dataset format; this saves two round trips that look up keys.
        self._has_one_part = store.book.num_parts == 1
        self._known: dict[str, tuple[IntArray, IntArray]] = {}

    def look_up(self, seeds: Sequence[tuple[str, IntArray]]) -> None:
        """Look up the ids of several batches' seeds, one request per node type; ``ids_of`` finds them.

        Args:
            seeds: Node type and int64[n] keys of each batch.
        """
        self._known = {}
        if self._has_one_part or isinstance(self._store, LocalStore):
            return
        for node_type in {node_type for node_type, _ in seeds}:
            keys = np.unique(np.concatenate([keys for of_type, keys in seeds if of_type == node_type]))
            self._known[node_type] = keys, self.ids_of(node_type, keys)

    def ids_of(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the int64[n] ids of nodes given by key.

        Raises:
            FormatError: Several keys have one id, so a part is damaged.
        """
        if self._has_one_part:
            return keys
        if node_type in self._known:
            known_keys, known_ids = self._known[node_type]
            at = np.searchsorted(known_keys, keys).clip(max=len(known_keys) - 1)
            if np.array_equal(known_keys[at], keys):
                return cast(IntArray, known_ids[at])
        ids = self._store.lookup(node_type, keys)
        # A local store compares the keys of the rows that it finds; a client of servers does not have all keys.
        if not isinstance(self._store, LocalStore) and len(np.unique(ids)) != len(np.unique(keys)):
            raise FormatError(
                f"several keys of {node_type} have one id; id_of_key.npy of a part is damaged; run hopstream verify "
                "where its parts are"
            )
        return ids

    def keys_of(self, node_type: str, ids: IntArray) -> IntArray:
        """Return int64[n], the keys of nodes given by id."""
        if self._has_one_part:
            return ids
        (columns,) = self._store.fetch([FetchRequest(entity=node_type, names=(KEY,), ids=ids)])
        return cast(IntArray, columns[KEY])

    def start(self, subgraph: Subgraph, epoch: int, about: SeedBatch, is_kept: bool = False) -> SampledBatch:
        """Make the batch of a subgraph, without its columns.

        Args:
            subgraph: The sampled subgraph.
            epoch: The batch's epoch.
            about: The batch's seeds.
            is_kept: Copy ids, because other subgraphs are sampled before the columns are fetched.
        """
        keep = self._copy if is_kept else as_it_is
        edges, trees = subgraph.edges, subgraph.trees
        return SampledBatch(
            epoch=epoch,
            index=about.index,
            seed_type=about.seed_type,
            input_ids=about.input_ids,
            edge_index={t: self._edge_index(sampled) for t, sampled in edges.items()},
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
            trees=None if trees is None else {t: self._copy(of) for t, of in trees.items()},
            attributes={**about.attributes, **cast(Attributes, subgraph.attributes)},
            node_ids={t: keep(ids) for t, ids in subgraph.node_ids.items()},
            edge_ids={t: keep(self._edge_ids(t, edges[t])) for t in self._columns.edges},
            directions={t: edges[t].direction for t in self._columns.edges},
            edge_keys={t: self._copy(keys) for t, of in edges.items() if (keys := of.edge_keys) is not None},
            seed_keys=about.seed_keys,
        )

    def announce(self, sampled: SampledBatch) -> Fetch:
        """Tell the store which rows a batch will need; the batch's ids must not change afterwards."""
        fetch = self.fetch_of(sampled)
        fetch.announce(self._store)
        return fetch

    def finish(self, fetch: Fetch) -> MiniBatch:
        """Fetch the columns in one call of the store; return the batch, in arrays of its own.

        Raises:
            FormatError: The seeds' ids have other keys than the seeds, so a part is damaged.
        """
        columns, sampled = fetch.run(self._store, self.buffers), fetch.sampled
        nodes = {t: columns[t] for t in self._columns.nodes}
        edges = {t: columns[t] for t in self._columns.edges}
        for node_type, of_type in nodes.items():
            if self._has_one_part:
                of_type[KEY] = self._copy(sampled.node_ids[node_type])
        node_keys = {t: cast(IntArray, of_type.pop(KEY)) for t, of_type in nodes.items()}
        if sampled.seed_keys is not None and isinstance(sampled.seed_type, str):
            _check_seeds(node_keys[sampled.seed_type], sampled.seed_keys, sampled.seed_type)
        return MiniBatch(
            **{name: getattr(sampled, name) for name in FRAME_FIELDS},
            node_keys=node_keys,
            edge_keys={
                **sampled.edge_keys,
                **{t: cast(IntArray, of_type.pop(KEY)) for t, of_type in edges.items() if KEY in of_type},
            },
            node_features=nodes,
            edge_features=edges,
        )

    def fetch_of(self, sampled: SampledBatch) -> Fetch:
        """Make the fetch of a batch's columns."""
        schema = self._store.schema
        wanted: list[_Wanted] = []
        for t, names in self._columns.nodes.items():
            features = _features_of(schema.nodes[t], names if self._has_one_part else (KEY, *names))
            wanted.append(_Wanted(t, t, features, sampled.node_ids[t]))
        for e in self._columns.edges:
            names = self._columns.edges[e] if e in sampled.edge_keys else self._edge_columns(e)
            features = _features_of(schema.edges[e], names)
            wanted.append(_Wanted(e, (e, sampled.directions[e]), features, sampled.edge_ids[e]))
        return Fetch(sampled, wanted)

    def _edge_columns(self, edge_type: EdgeType) -> tuple[str, ...]:
        names = self._columns.edges[edge_type]
        return (KEY, *names) if self._wants_edge_keys else names

    def _edge_ids(self, edge_type: EdgeType, edges: SampledEdges) -> IntArray:
        """Return the edge ids for fetching columns; empty if there are none to fetch."""
        return NO_IDS if edges.edge_ids is None or not self._edge_columns(edge_type) else edges.edge_ids

    def _edge_index(self, edges: SampledEdges) -> IntArray:
        edge_index = self.buffers.take((2, len(edges.src_slots)), np.int64)
        edge_index[0] = edges.src_slots
        edge_index[1] = edges.dst_slots
        return edge_index

    def _copy(self, values: IntArray) -> IntArray:
        copied = self.buffers.take(values.shape, np.int64)
        copied[:] = values
        return copied


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Columns of one type to fetch for a batch."""

    of_type: str | EdgeType
    entity: Entity
    features: Mapping[str, FeatureSchema]
    ids: IntArray


@dataclass(slots=True, eq=False)
class Fetch:
    """Fetch of one batch's columns: one call of the store for all columns of all types."""

    sampled: SampledBatch
    wanted: list[_Wanted]
    _announced: list[Any] | None = None

    def announce(self, store: Store) -> None:
        """Tell the store which rows ``run`` will fetch."""
        self._announced = store.announce_fetch(
            [FetchRequest(entity=one.entity, names=tuple(one.features), ids=one.ids) for one in self._asked()]
        )

    def run(self, store: Store, buffers: Buffers) -> dict[str | EdgeType, dict[str, Column]]:
        """Fetch the columns of each type into arrays of ``buffers``; no call if there is nothing to fetch."""
        found: dict[str | EdgeType, dict[str, Column]] = {}
        for wanted in self.wanted:
            columns: dict[str, Column] = {}
            found[wanted.of_type] = columns
            for name, feature in wanted.features.items():
                if feature.is_fixed_width:
                    columns[name] = buffers.take((len(wanted.ids), *feature.shape), feature.numpy_dtype)
                elif not len(wanted.ids):
                    empty = np.empty((0, *feature.shape), feature.numpy_dtype)
                    columns[name] = RaggedArray(empty, np.zeros(1, np.int64), feature.is_string)
        asked = self._asked()
        if not asked:
            return found
        announced, self._announced = self._announced or [None] * len(asked), None
        requests = [
            FetchRequest(
                entity=one.entity, names=tuple(one.features), ids=one.ids, announced=known,
                out={name: column for name, column in found[one.of_type].items() if isinstance(column, np.ndarray)},
            )
            for one, known in zip(asked, announced, strict=True)
        ]  # fmt: skip
        for one, answer in zip(asked, store.fetch(requests), strict=True):
            columns = found[one.of_type]
            columns.update({name: column for name, column in answer.items() if name not in columns})
        return found

    def _asked(self) -> list[_Wanted]:
        return [one for one in self.wanted if one.features and len(one.ids)]


class BatchFinisher(ABC):
    """Base class of makers: fetches the columns of sampled batches, and converts them. Not thread-safe."""

    def __init__(self, reader: SubgraphReader, convert: Convert) -> None:
        """Fetch columns with ``reader``, and convert batches to the user's format with ``convert``."""
        self._reader, self._convert = reader, convert
        self.stage = "idle"
        """Current step of the work, for messages about slow batches."""
        self.ahead: SamplingAhead[Fetch] | None = None
        """Set if the iteration samples ahead; all its makers share it."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch in the user's format; equal arguments give equal batches."""
        self.stage = "sampling"
        return self._finish(self._take(epoch, step))

    def _take(self, epoch: int, step: int) -> Fetch | MiniBatch:
        """Take one sampled batch; its columns may be still to fetch."""
        if self.ahead is None:
            return self._sample_now(epoch, step)
        return self.ahead.take(step, partial(self._sample_ahead, epoch, step))

    @abstractmethod
    def _sample_now(self, epoch: int, step: int) -> Fetch | MiniBatch:
        """Sample one batch, without sampling ahead."""

    @abstractmethod
    def _sample_ahead(self, epoch: int, step: int, steps: range) -> list[Fetch | BaseException]:
        """Sample the batches ``steps`` for the caller that needs ``step``; see ``SamplingAhead.take``."""

    def _finish(self, taken: Fetch | MiniBatch) -> Any:
        """Fetch a batch's missing columns, and convert the batch to the user's format."""
        self.stage = "fetching features"
        batch = self._read(taken) if isinstance(taken, Fetch) else taken
        self.stage = "collating"
        return self._convert(batch)

    def _read(self, fetch: Fetch) -> MiniBatch:
        return self._reader.finish(fetch)


class BatchMaker(BatchFinisher, Generic[Inputs]):
    """Maker of a loader's batches by number; subclasses give each batch's seeds. Not thread-safe."""

    def __init__(self, runner: Runner, reader: SubgraphReader, inputs: Inputs, convert: Convert) -> None:
        """Sample with ``runner`` from ``inputs``; the rest is as for ``BatchFinisher``."""
        super().__init__(reader, convert)
        self._runner, self._inputs = runner, inputs
        self._slot_map = SlotMap()
        self.num_chosen = 0
        """Number of nodes and edges of the last batch of ``make_of``."""

    def make_of(self, inputs: Inputs, epoch: int) -> Any:
        """Make the first batch of other inputs, and note its size; equal arguments give equal batches."""
        self._inputs, self.stage = inputs, "sampling"
        fetch = self._sample_now(epoch, 0)
        nodes, edges = fetch.sampled.node_ids.values(), fetch.sampled.edge_index.values()
        self.num_chosen = sum(map(len, nodes)) + sum(of.shape[1] for of in edges)
        return self._finish(fetch)

    def _sample_now(self, epoch: int, step: int) -> Fetch:
        return self._reader.fetch_of(*self._sample(epoch, [self._start(epoch, step)], is_kept=False))

    def sampled(self, epoch: int, step: int) -> SampledBatch:
        """Sample one batch without fetching its columns; another process may fetch them."""
        return self._sample(epoch, [self._start(epoch, step)])[0]

    def sampled_together(self, epoch: int, steps: Sequence[int]) -> list[SampledBatch]:
        """Sample several batches as ``sampled`` does, with one call of the store per hop for all of them."""
        self._reader.look_up([keys for step in steps if (keys := self._seed_keys(epoch, step))])
        return self._sample(epoch, [self._start(epoch, step) for step in steps])

    def _sample_ahead(self, epoch: int, step: int, steps: range) -> list[Fetch | BaseException]:
        if len(steps) > 1:
            try:
                return [self._reader.announce(batch) for batch in self.sampled_together(epoch, steps)]
            except ServerBusy:
                LOG.debug("batches %s are sampled one by one: a server has no room for all", steps, exc_info=True)
            except (StoreTimeout, StoreUnavailable) as error:  # each batch would wait for the same server
                return [error, *(type(error)(*error.args) for _ in steps[1:])]
            except Exception:
                LOG.debug("batches %s are sampled one by one, to find which of them fails", steps, exc_info=True)
        fetches: list[Fetch | BaseException] = []
        for one in steps:
            try:
                fetches.append(self._reader.announce(self.sampled(epoch, one)))
            except Exception as error:
                fetches.append(error)
        return fetches

    def _sample(self, epoch: int, starts: Sequence[SeedBatch], is_kept: bool = True) -> list[SampledBatch]:
        """Sample several batches together; see ``SubgraphReader.start``."""
        self.stage = "sampling"
        subgraphs = self._runner.run_group([start.seeds for start in starts])
        return [
            self._reader.start(_arranged(subgraph, start), epoch, start, is_kept)
            for subgraph, start in zip(subgraphs, starts, strict=True)
        ]

    def _seed_keys(self, epoch: int, step: int) -> tuple[str, IntArray] | None:
        """Return node type and keys that a batch will look up, or None if unknown before sampling."""
        return None

    @abstractmethod
    def _start(self, epoch: int, step: int) -> SeedBatch:
        """Find the seeds of a batch."""


def _arranged(subgraph: Subgraph, start: SeedBatch) -> Subgraph:
    return subgraph if start.arrange is None else start.arrange(subgraph)


def _check_seeds(node_keys: IntArray, seed_keys: IntArray, seed_type: str) -> None:
    if not np.array_equal(node_keys[: len(seed_keys)], seed_keys):
        raise FormatError(
            f"the ids of the seeds of {seed_type} belong to other keys: id_of_key.npy or key.npy of a part is damaged; "
            "run hopstream verify where its parts are"
        )


def _features_of(features: Mapping[str, FeatureSchema], names: Sequence[str]) -> dict[str, FeatureSchema]:
    return {name: KEY_SCHEMA if name == KEY else features[name] for name in names}


def as_it_is(value: V) -> V:
    """Return the value itself; ``collate="numpy"`` uses it as its conversion."""
    return value
