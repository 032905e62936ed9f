"""Mini-batches: the columns that they bring along, the memory that they use, and how sampled subgraphs become them.

All columns of all types are fetched in one call of the store. Users see keys only; ids stay here.

A fresh 36 MB array costs more than filling it, because the system maps and clears its pages one by one. So blocks of
memory go round: a block is lent as an array, everything made of that array (views, tensors) keeps the array alive, and
when the last of them is gone the block comes back.
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.checks import known_names
from hopstream.dataset.book import Entity
from hopstream.errors import FormatError, NoRoomError, SettingsError, UnknownNameError
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.sample.plan import SeedNodes
from hopstream.sample.slots import SlotMap
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, Store
from hopstream.store.local import LocalStore

SMALL_BYTES = 1 << 16
"""Arrays below this size are not worth a block."""
MAX_SLACK = 2
"""A block is lent for arrays of no less than this fraction of its size."""


class Buffers(Protocol):
    """Where the arrays of a batch come from."""

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array whose content is undefined and which nobody else holds."""
        ...


class BufferPool:
    """Blocks of memory that come back when nobody holds an array made of them. Safe to use from many threads."""

    def __init__(self, capacity_bytes: int, limit_bytes: int | None = None) -> None:
        """Make no block before it is needed.

        Args:
            capacity_bytes: Bytes of idle blocks that are kept; blocks that are lent do not count.
            limit_bytes: Bytes of all blocks; None for no limit.
        """
        self._capacity_bytes, self._limit_bytes = capacity_bytes, limit_bytes
        self._lock = threading.Lock()
        self._idle: list[NDArray[np.uint8]] = []  # the block that came back last is at the end
        self._idle_bytes = self._lent_bytes = 0
        self._lent: dict[int, weakref.ref[Array]] = {}
        self._returned: deque[tuple[int, NDArray[np.uint8]]] = deque()
        self._num_lent = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array whose content is undefined; its memory comes back to the pool when nobody holds it any more.

        Raises:
            NoRoomError: There is a limit, and the blocks that are lent leave no room for it.
        """
        dtype = np.dtype(dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            self._collect()
            block = self._pick(num_bytes)
            return self._lend(block, num_bytes).view(dtype).reshape(shape)

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait for the next batch."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    def collect(self) -> None:
        """Free the blocks that came back and are too many; without it they wait for the next ``take``."""
        with self._lock:
            self._collect()

    def _pick(self, num_bytes: int) -> NDArray[np.uint8]:
        """The smallest idle block that fits, or a new one with room for a somewhat larger batch."""
        fitting = [b for b in self._idle if num_bytes <= b.nbytes <= MAX_SLACK * num_bytes]
        if not fitting:
            size = num_bytes + num_bytes // 8
            self._make_room(size)
            return np.empty(size, np.uint8)
        block = min(fitting, key=len)
        self._lent_bytes += block.nbytes
        self._idle = [b for b in self._idle if b is not block]
        self._idle_bytes -= block.nbytes
        return block

    def _make_room(self, num_bytes: int) -> None:
        """Forget idle blocks until a new one stays within the limit; called with the lock."""
        if self._limit_bytes is not None:
            while self._idle and self._lent_bytes + self._idle_bytes + num_bytes > self._limit_bytes:
                self._idle_bytes -= self._idle.pop(0).nbytes
            if self._lent_bytes + num_bytes > self._limit_bytes:
                raise NoRoomError(
                    f"an array of {num_bytes} bytes is needed; arrays of {self._lent_bytes} bytes are in use, and "
                    f"{self._limit_bytes} may be"
                )
        self._lent_bytes += num_bytes

    def _lend(self, block: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        # numpy makes a view's base the array that owns the memory, except across types: an array over a memoryview is
        # the base of every view of it, so its end is the end of all of them.
        loan = np.frombuffer(block.data, np.uint8, num_bytes)
        number, returned = self._num_lent, self._returned
        self._num_lent += 1
        # The callback runs in whichever thread lets go of the array, perhaps inside take(): it takes no lock.
        self._lent[number] = weakref.ref(loan, lambda _: returned.append((number, block)))
        return loan

    def _collect(self) -> None:
        """Move the blocks that came back to the idle ones; forget the oldest where they are too many."""
        while self._returned:
            number, block = self._returned.popleft()
            del self._lent[number]
            self._idle.append(block)
            self._idle_bytes += block.nbytes
            self._lent_bytes -= block.nbytes
        while self._idle_bytes > self._capacity_bytes:
            self._idle_bytes -= self._idle.pop(0).nbytes


T = TypeVar("T", str, EdgeType)
NodeFeatures = Sequence[str] | Mapping[str, Sequence[str]] | None
EdgeFeatures = Sequence[str] | Mapping[EdgeType, Sequence[str]] | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Columns per type; every type of the schema is present, if only with none.

    Attributes:
        nodes: Node type to feature names.
        edges: Edge type to feature names.
    """

    nodes: Mapping[str, tuple[str, ...]]
    edges: Mapping[EdgeType, tuple[str, ...]]

    @property
    def has_edge_features(self) -> bool:
        """Some edge type brings features."""
        return any(self.edges.values())


def choose_columns(schema: GraphSchema, node_features: NodeFeatures, edge_features: EdgeFeatures) -> ColumnChoice:
    """Check a choice of features.

    Args:
        schema: The graph's schema.
        node_features: None for all features of all node types; names, which every node type that has them brings; or
            node type to names, where types left out bring nothing.
        edge_features: The same for edge types, which are named by a tuple or as ``src__rel__dst``.

    Raises:
        UnknownNameError: The schema has no such type or feature.
        SettingsError: A name stands where a list of names is wanted, or a name is given twice.
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
            raise UnknownNameError(f"{where}: there is no feature {name!r}; {known_names(name, sorted(known))}")


Inputs = TypeVar("Inputs")
Convert = Callable[["MiniBatch"], Any]
Attributes = Mapping[str | EdgeType | None, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """One sampled subgraph with its columns, as numpy arrays. Every type of the schema is present.

    Arrays belong to whoever holds the batch: they are never written again while a view of them is alive.

    Attributes:
        epoch: The epoch that the batch is part of.
        index: Its number in the epoch, over all ranks.
        seed_type: Node type of the seeds, or edge type where they are links.
        input_ids: int64[batch_size], the places of the seeds in what the loader was given as seeds.
        node_keys: Node type to int64[num_nodes], keys; the seeds come first.
        edge_index: Edge type to int64[2, num_edges], slots (positions in ``node_keys``) of sources and destinations.
        edge_keys: Edge type to int64[num_edges], original edge keys; empty where they were not asked for.
        node_features: Node type to feature name to column of num_nodes rows.
        edge_features: Edge type to feature name to column of num_edges rows.
        num_sampled_nodes: Node type to [seeds, new in hop 1, …].
        num_sampled_edges: Edge type to [drawn in hop 1, …], or None where edges are not in the order of hops.
        trees: Node type to int64[num_nodes], the tree of each node, where every seed grows its own; else None.
        attributes: More that a loader tells of the batch: node type, edge type or None (the batch as a whole) to the
            name of an attribute to its value.
    """

    epoch: int
    index: int
    seed_type: str | EdgeType
    input_ids: IntArray
    node_keys: Mapping[str, IntArray]
    edge_index: Mapping[EdgeType, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]
    node_features: Mapping[str, Mapping[str, Column]]
    edge_features: Mapping[EdgeType, Mapping[str, Column]]
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    trees: Mapping[str, IntArray] | None = None
    attributes: Attributes = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedBatch:
    """What one batch starts from, and what it tells beside its subgraph.

    Attributes:
        index: The batch's number in its epoch, over all ranks.
        seeds: Ids of the seeds, and what is drawn around them.
        seed_type: Node type of the seeds, or edge type where they are links.
        input_ids: int64[batch_size], the places of the seeds in what the loader was given as seeds.
        attributes: As of ``MiniBatch``.
        seed_keys: int64[batch_size], keys that the first nodes of ``seed_type`` must have; None where nobody knows.
        arrange: Changes the subgraph before its columns are fetched; None leaves it as it is.
    """

    index: int
    seeds: SeedNodes
    seed_type: str | EdgeType
    input_ids: IntArray
    attributes: Attributes = field(default_factory=dict)
    seed_keys: IntArray | None = None
    arrange: Callable[[Subgraph], Subgraph] | None = None


class Runner(Protocol):
    """Runs a sampling plan; ``sample.hops.PlanRunner`` is one."""

    def run(self, seeds: SeedNodes) -> Subgraph:
        """The subgraph of some seeds, valid until the next call."""
        ...


LOOK_UP_IDS = 256
"""Ids that a look-up over a network asks for at least, where several batches need fewer each."""


class SubgraphReader:
    """Brings the columns of sampled subgraphs. One thread uses one reader."""

    def __init__(self, store: Store, columns: ColumnChoice, wants_edge_keys: bool, buffers: Buffers) -> None:
        """Read ``columns``, and edge keys if they are wanted, from ``store`` into arrays of ``buffers``."""
        self._store = store
        self._columns = columns
        self._wants_edge_keys = wants_edge_keys
        self._buffers = buffers
        # With one part the format says that id equals key, which saves two round trips to look keys up.
        self._has_one_part = store.book.num_parts == 1
        self.look_up_ids = 1 if self._has_one_part or isinstance(store, LocalStore) else LOOK_UP_IDS
        """Ids that are worth one look-up: several where each look-up is a round trip."""

    def ids_of(self, node_type: str, keys: IntArray) -> IntArray:
        """int64[n] ids of nodes given by key."""
        if self._has_one_part:
            return keys
        ids = self._store.lookup(node_type, keys)
        # A store of files compares the keys of what it finds; a client of servers does not have all keys.
        if not isinstance(self._store, LocalStore) and len(np.unique(ids)) != len(np.unique(keys)):
            raise FormatError(
                f"several keys of {node_type} have one id; id_of_key.npy of a part is damaged: run hopstream verify "
                "where its parts are"
            )
        return ids

    def read(self, subgraph: Subgraph, epoch: int, about: SeedBatch) -> MiniBatch:
        """The subgraph with its columns, in new arrays; all columns of all types in one call of the store."""
        node_columns, edge_columns = self._fetch(subgraph)
        trees = subgraph.trees
        return MiniBatch(
            epoch=epoch,
            index=about.index,
            seed_type=about.seed_type,
            input_ids=about.input_ids,
            node_keys={t: cast(IntArray, columns.pop(KEY)) for t, columns in node_columns.items()},
            edge_index={t: self._edge_index(edges) for t, edges in subgraph.edges.items()},
            edge_keys={t: cast(IntArray, c.pop(KEY)) for t, c in edge_columns.items() if KEY in c},
            node_features=node_columns,
            edge_features=edge_columns,
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
            trees=None if trees is None else {t: self._copy(of) for t, of in trees.items()},
            attributes={**about.attributes, **cast(Attributes, subgraph.attributes)},
        )

    def _fetch(self, subgraph: Subgraph) -> tuple[dict[str, dict[str, Column]], dict[EdgeType, dict[str, Column]]]:
        schema = self._store.schema
        fetch = _Fetch(self._buffers)
        nodes: dict[str, dict[str, Column]] = {}
        for node_type, names in self._columns.nodes.items():
            ids = subgraph.node_ids[node_type]
            if self._has_one_part:
                nodes[node_type] = fetch.add(node_type, _features_of(schema.nodes[node_type], names), ids)
                nodes[node_type][KEY] = self._copy(ids)
            else:
                nodes[node_type] = fetch.add(node_type, _features_of(schema.nodes[node_type], (KEY, *names)), ids)
        edges: dict[EdgeType, dict[str, Column]] = {}
        for edge_type, names in self._columns.edges.items():
            sampled = subgraph.edges[edge_type]
            wanted = (KEY, *names) if self._wants_edge_keys else names
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

    def _copy(self, values: IntArray) -> IntArray:
        copied = self._buffers.take(values.shape, np.int64)
        copied[:] = values
        return copied


class _Fetch:
    """The requests of one batch, and the columns that their answers go to."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._requests: list[FetchRequest] = []
        self._targets: list[dict[str, Column]] = []

    def add(self, entity: Entity, features: Mapping[str, FeatureSchema], ids: IntArray) -> dict[str, Column]:
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
            self._requests.append(FetchRequest(entity=entity, names=tuple(features), ids=ids, out=out))
            self._targets.append(columns)
        return columns

    def run(self, store: Store) -> None:
        """Make the one call, if there is anything to ask."""
        if not self._requests:
            return
        for columns, answer in zip(self._targets, store.fetch(self._requests), strict=True):
            columns.update({name: column for name, column in answer.items() if name not in columns})


class SubgraphBatcher:
    """Makes a batch of what it starts from: samples, fetches columns, converts. One thread uses one batcher."""

    def __init__(self, runner: Runner, reader: SubgraphReader, convert: Convert) -> None:
        """Bring together what makes a batch."""
        self._runner, self._reader, self._convert = runner, reader, convert
        self.stage = "idle"
        """What is being done, for messages about batches that take too long."""

    def batch(self, epoch: int, start: SeedBatch) -> Any:
        """One batch, in the form that the user wants.

        Raises:
            FormatError: Seeds were looked up and have other keys.
        """
        self.stage = "sampling"
        subgraph = self._runner.run(start.seeds)
        if start.arrange is not None:
            subgraph = start.arrange(subgraph)
        self.stage = "fetching features"
        batch = self._read(subgraph, epoch, start)
        if start.seed_keys is not None and isinstance(start.seed_type, str):
            _check_seeds(batch.node_keys[start.seed_type], start.seed_keys, start.seed_type)
        self.stage = "collating"
        return self._convert(batch)

    def _read(self, subgraph: Subgraph, epoch: int, start: SeedBatch) -> MiniBatch:
        return self._reader.read(subgraph, epoch, start)


class BatchMaker(SubgraphBatcher, ABC, Generic[Inputs]):
    """Makes the batches of a loader by their numbers; a loader says what each starts from. One thread uses one."""

    def __init__(self, runner: Runner, reader: SubgraphReader, inputs: Inputs, convert: Convert) -> None:
        """Bring together what makes a batch."""
        super().__init__(runner, reader, convert)
        self._inputs = inputs
        self._slot_map = SlotMap()

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch, and bring it into the form that the user wants; equal arguments give equal batches."""
        return self.batch(epoch, self._start(epoch, step))

    @abstractmethod
    def _start(self, epoch: int, step: int) -> SeedBatch:
        """What a batch starts from."""


def _check_seeds(node_keys: IntArray, seed_keys: IntArray, seed_type: str) -> None:
    if not np.array_equal(node_keys[: len(seed_keys)], seed_keys):
        raise FormatError(
            f"seeds of {seed_type} were looked up and have other keys; id_of_key.npy or key.npy of a part is "
            "damaged: run hopstream verify where its parts are"
        )


def _features_of(features: Mapping[str, FeatureSchema], names: Sequence[str]) -> dict[str, FeatureSchema]:
    return {name: KEY_SCHEMA if name == KEY else features[name] for name in names}
