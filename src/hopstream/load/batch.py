"""Mini-batches: the columns that they bring along, the memory that they use, and how sampled subgraphs become them.

All columns of all types are fetched in one call of the store. Users see keys only; ids stay here.

A fresh 36 MB array costs more than filling it, because the system maps and clears its pages one by one. So blocks of
memory go round: a block is lent as an array, everything made of that array (views, tensors) keeps the array alive, and
when the last of them is gone the block comes back.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.checks import known_names
from hopstream.dataset.book import Entity
from hopstream.errors import (
    FormatError,
    NoRoomError,
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


NO_IDS = np.empty(0, np.int64)
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
V = TypeVar("V")
Convert = Callable[["MiniBatch"], Any]
Attributes = Mapping[str | EdgeType | None, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchFrame:
    """What a batch is known to be before its columns are fetched; see ``MiniBatch`` for the attributes."""

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

    node_keys: Mapping[str, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]
    node_features: Mapping[str, Mapping[str, Column]]
    edge_features: Mapping[EdgeType, Mapping[str, Column]]


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


Runner = PlanRunner | PPRRunner
"""What samples the subgraphs of batches, one or several at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledBatch(BatchFrame):
    """A batch whose columns are not fetched yet.

    Attributes:
        node_ids: Node type to int64[num_nodes], ids.
        edge_ids: Edge type to int64[num_edges], ids; empty where nothing is fetched by them.
        directions: Edge type to the direction whose id space ``edge_ids`` belong to.
        seed_keys: As of ``SeedBatch``.
    """

    node_ids: Mapping[str, IntArray]
    edge_ids: Mapping[EdgeType, IntArray]
    directions: Mapping[EdgeType, Direction]
    seed_keys: IntArray | None = None


class SubgraphReader:
    """Brings the columns of sampled subgraphs. One thread uses one reader."""

    def __init__(self, store: Store, columns: ColumnChoice, wants_edge_keys: bool, buffers: Buffers) -> None:
        """Read ``columns``, and edge keys if they are wanted, from ``store`` into arrays of ``buffers``."""
        self._store = store
        self._columns = columns
        self._wants_edge_keys = wants_edge_keys
        self.buffers = buffers
        # With one part the format says that id equals key, which saves two round trips to look keys up.
        self._has_one_part = store.book.num_parts == 1
        self._known: dict[str, tuple[IntArray, IntArray]] = {}

    def look_up(self, seeds: Sequence[tuple[str, IntArray]]) -> None:
        """Look up the ids of several batches' seeds in one request per node type, for ``ids_of`` to find.

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
        """int64[n] ids of nodes given by key."""
        if self._has_one_part:
            return keys
        if node_type in self._known:
            known_keys, known_ids = self._known[node_type]
            at = np.searchsorted(known_keys, keys).clip(max=len(known_keys) - 1)
            if np.array_equal(known_keys[at], keys):
                return cast(IntArray, known_ids[at])
        ids = self._store.lookup(node_type, keys)
        # A store of files compares the keys of what it finds; a client of servers does not have all keys.
        if not isinstance(self._store, LocalStore) and len(np.unique(ids)) != len(np.unique(keys)):
            raise FormatError(
                f"several keys of {node_type} have one id; id_of_key.npy of a part is damaged: run hopstream verify "
                "where its parts are"
            )
        return ids

    def start(self, subgraph: Subgraph, epoch: int, about: SeedBatch, is_kept: bool = False) -> SampledBatch:
        """The batch of a subgraph, without its columns.

        Args:
            subgraph: What was sampled.
            epoch: The batch's epoch.
            about: What the batch started from.
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
            seed_keys=about.seed_keys,
        )

    def announce(self, sampled: SampledBatch) -> Fetch:
        """Tell the store which rows a batch will need; its ids must stay as they are."""
        fetch = self.fetch_of(sampled)
        fetch.announce(self._store)
        return fetch

    def finish(self, fetch: Fetch) -> MiniBatch:
        """The batch with its columns, in new arrays; all columns of all types in one call of the store.

        Raises:
            FormatError: Seeds were looked up and have other keys.
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
            edge_keys={t: cast(IntArray, of_type.pop(KEY)) for t, of_type in edges.items() if KEY in of_type},
            node_features=nodes,
            edge_features=edges,
        )

    def fetch_of(self, sampled: SampledBatch) -> Fetch:
        """What fetches the columns of a batch."""
        schema = self._store.schema
        wanted: list[_Wanted] = []
        for t, names in self._columns.nodes.items():
            features = _features_of(schema.nodes[t], names if self._has_one_part else (KEY, *names))
            wanted.append(_Wanted(t, t, features, sampled.node_ids[t]))
        for e in self._columns.edges:
            features = _features_of(schema.edges[e], self._edge_columns(e))
            wanted.append(_Wanted(e, (e, sampled.directions[e]), features, sampled.edge_ids[e]))
        return Fetch(sampled, wanted)

    def _edge_columns(self, edge_type: EdgeType) -> tuple[str, ...]:
        names = self._columns.edges[edge_type]
        return (KEY, *names) if self._wants_edge_keys else names

    def _edge_ids(self, edge_type: EdgeType, edges: SampledEdges) -> IntArray:
        """The ids by which columns of edges are fetched."""
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
    """Columns of one type that a batch brings along."""

    of_type: str | EdgeType
    entity: Entity
    features: Mapping[str, FeatureSchema]
    ids: IntArray


@dataclass(slots=True, eq=False)
class Fetch:
    """What one batch fetches: one call of the store for all columns of all types."""

    sampled: SampledBatch
    wanted: list[_Wanted]
    _announced: list[Any] | None = None

    def announce(self, store: Store) -> None:
        """Tell the store what will be asked for."""
        self._announced = store.announce_fetch(
            [FetchRequest(entity=one.entity, names=tuple(one.features), ids=one.ids) for one in self._asked()]
        )

    def run(self, store: Store, buffers: Buffers) -> dict[str | EdgeType, dict[str, Column]]:
        """Make the call, if there is anything to ask: the columns of each type, in arrays of ``buffers``."""
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
    """Finishes batches that are sampled here or elsewhere, ahead of their turn or in it. One thread uses one."""

    def __init__(self, reader: SubgraphReader, convert: Convert) -> None:
        """Bring together what finishes a batch."""
        self._reader, self._convert = reader, convert
        self.stage = "idle"
        """What is being done, for messages about batches that take too long."""
        self.ahead: SamplingAhead[Fetch] | None = None
        """Shared by the makers of an iteration that samples ahead."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch, and bring it into the form that the user wants; equal arguments give equal batches."""
        self.stage = "sampling"
        return self._finish(self._take(epoch, step))

    def _take(self, epoch: int, step: int) -> Fetch | MiniBatch:
        """One batch, whose columns may be left to fetch."""
        if self.ahead is None:
            return self._sample_now(epoch, step)
        return self.ahead.take(step, partial(self._sample_ahead, epoch, step))

    @abstractmethod
    def _sample_now(self, epoch: int, step: int) -> Fetch | MiniBatch:
        """Sample one batch in its turn."""

    @abstractmethod
    def _sample_ahead(self, epoch: int, step: int, steps: range) -> list[Fetch | BaseException]:
        """Sample some batches in the turn of one; each, or the error that it ended with. See ``SamplingAhead.take``."""

    def _finish(self, taken: Fetch | MiniBatch) -> Any:
        """Fetch the columns that a batch lacks, and bring it into the form that the user wants."""
        self.stage = "fetching features"
        batch = self._read(taken) if isinstance(taken, Fetch) else taken
        self.stage = "collating"
        return self._convert(batch)

    def _read(self, fetch: Fetch) -> MiniBatch:
        return self._reader.finish(fetch)


class BatchMaker(BatchFinisher, Generic[Inputs]):
    """Makes the batches of a loader by their numbers; a loader says what each starts from. One thread uses one."""

    def __init__(self, runner: Runner, reader: SubgraphReader, inputs: Inputs, convert: Convert) -> None:
        """Bring together what makes a batch."""
        super().__init__(reader, convert)
        self._runner, self._inputs = runner, inputs
        self._slot_map = SlotMap()

    def _sample_now(self, epoch: int, step: int) -> Fetch:
        return self._reader.fetch_of(*self._sample(epoch, [self._start(epoch, step)], is_kept=False))

    def sampled(self, epoch: int, step: int) -> SampledBatch:
        """Sample one batch and do not fetch its columns; another process fetches them."""
        return self._sample(epoch, [self._start(epoch, step)])[0]

    def _sample_ahead(self, epoch: int, step: int, steps: range) -> list[Fetch | BaseException]:
        if len(steps) > 1:
            try:
                self._reader.look_up([keys for step in steps if (keys := self._seed_keys(epoch, step))])
                batches = self._sample(epoch, [self._start(epoch, step) for step in steps])
                return [self._reader.announce(batch) for batch in batches]
            except ServerBusy:
                LOG.debug("batches %s are sampled one by one: a server has no room for all", steps, exc_info=True)
            except (StoreTimeout, StoreUnavailable) as error:  # each would wait for the same server
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
        """Sample some batches together; see ``SubgraphReader.start``."""
        self.stage = "sampling"
        subgraphs = self._runner.run_group([start.seeds for start in starts])
        return [
            self._reader.start(_arranged(subgraph, start), epoch, start, is_kept)
            for subgraph, start in zip(subgraphs, starts, strict=True)
        ]

    def _seed_keys(self, epoch: int, step: int) -> tuple[str, IntArray] | None:
        """The node type and the keys that a batch will look up, where they are known before it is sampled."""
        return None

    @abstractmethod
    def _start(self, epoch: int, step: int) -> SeedBatch:
        """What a batch starts from."""


def _arranged(subgraph: Subgraph, start: SeedBatch) -> Subgraph:
    return subgraph if start.arrange is None else start.arrange(subgraph)


def _check_seeds(node_keys: IntArray, seed_keys: IntArray, seed_type: str) -> None:
    if not np.array_equal(node_keys[: len(seed_keys)], seed_keys):
        raise FormatError(
            f"seeds of {seed_type} were looked up and have other keys; id_of_key.npy or key.npy of a part is "
            "damaged: run hopstream verify where its parts are"
        )


def _features_of(features: Mapping[str, FeatureSchema], names: Sequence[str]) -> dict[str, FeatureSchema]:
    return {name: KEY_SCHEMA if name == KEY else features[name] for name in names}


def as_it_is(value: V) -> V:
    """The value as it is: what ``collate="numpy"`` converts a batch to."""
    return value
