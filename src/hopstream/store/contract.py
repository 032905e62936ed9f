"""Contract of all stores, near or far.

Requests and replies are frozen records of arrays. ``LocalStore``, ``RemoteStore`` and ``RoutedStore`` all honour this
contract, and one class of tests runs against each of them. Replies answer the ids of a request in the order of the
request; a routed store carries positions to keep that true, so the order of arrival means nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Column, IntArray
from hopstream.checks import OfOneProcess
from hopstream.dataset.book import Entity, PartitionBook
from hopstream.errors import FormatError, IdRangeError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema

KEY = "\x00key"
"""The column of original keys, fetched like a feature: int64[rows]. No user's feature can have this name."""
KEY_SCHEMA = FeatureSchema(dtype="int64")
"""The schema of that column."""

TREE_SHIFT = 40
"""A node of a tree is one int64: ``tree << TREE_SHIFT | id``. So ids of a node type stay below 2**40 there."""
MAX_TREES = 1 << 23
MAX_COUNT = (1 << 31) - 1
"""The most neighbours that one node can be answered with; counts are int32."""

DATASET_FACTS = (
    "schema", "book", "directions", "dataset_id", "graph_id", "time_attr", "weight_attr", "has_neighbor_keys",
)  # fmt: skip
"""Attributes of a store that all stores of one dataset share."""

Strategy = Literal["uniform", "weighted", "top_k", "last", "labor"]
"""How neighbours are chosen among a node's eligible edges; see ``SampleRequest``."""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
BY_WEIGHT: tuple[Strategy, ...] = ("weighted", "top_k")
"""Strategies that need the weights of edges."""
REPLACING: tuple[Strategy, ...] = ("uniform", "weighted")
"""Strategies that can draw with replacement."""
STORED_ORDER: tuple[Strategy, ...] = ("uniform", "last", "labor")
"""Strategies that answer all eligible edges, in stored order, where no fewer are wanted; they look at no weights."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaborSeeds:
    """Where the variates of layer-neighbour sampling come from.

    Every node has one variate per seed, shared by all nodes that it is a neighbour of. With ``share`` 0 it is the
    first seed's; with a larger share it moves smoothly towards the second seed's, and stays uniform in [0, 1).

    Attributes:
        first: 64 bits.
        second: 64 bits.
        share: In [0, 1).
    """

    first: int
    second: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Draw neighbours of some nodes along one edge type.

    A node's *eligible* edges are its edges in stored order without those after its time, without those to its excluded
    neighbours, and without those to neighbours that are no candidates (of its tree). Of these the strategy draws:

    - ``uniform``: any ``count`` of them with equal chances; all of them, in stored order, where there are no more.
    - ``weighted``: by successive draws, each in proportion to the weights of the edges not drawn yet (with replacement:
      of all edges). Edges of weight 0 are never drawn; where no more than ``count`` have weight, all of those, in
      stored order.
    - ``top_k``: the ``count`` of largest weight, largest first, equal weights in stored order; never weight 0.
    - ``last``: the last ``count`` in stored order, which is the order of time. Needs an edge type with times.
    - ``labor``: the ``count`` whose neighbours have the smallest variates under ``labor``, in stored order; of
      parallel edges, which share a variate, any with equal chances.

    Attributes:
        edge_type: The edge type to follow.
        direction: ``in``: ids are of the destination type and neighbours are sources; ``out``: the other way round.
        ids: int64[n], node ids to expand; a node may be there several times.
        count: Neighbours per id; ``-1`` means all that are eligible (and have weight, where weights count).
        is_replacing: Draw exactly ``count`` with replacement (none where nothing is eligible). Ignored for ``-1``. Only
            with ``uniform`` and ``weighted``.
        rng_seed: 64 random bits of this batch, hop and edge type. Draws depend on it, on the node's key, its tree and
            the turn, and on nothing else.
        wants_edge_ids: Also answer the ids of the edges drawn.
        strategy: See above.
        trees: int64[n] in [0, MAX_TREES), or None for one tree: a node draws anew in every tree.
        times: int64[n], or None: only edges at that time or before it are eligible. Ignored where the edge type has
            no times.
        is_inclusive: Edges at exactly that time are eligible.
        excluded: int64[2, m] pairs of an expanded node's id and a neighbour's id, any order: no edge between the two is
            eligible. Or None.
        candidates: int64[c], ascending and distinct: only edges to these neighbours are eligible. Or None for all.
            They are ids; with ``trees`` they are pairs ``tree << TREE_SHIFT | id``, and a node's are those of its tree.
        labor: Seeds of the variates; with ``labor`` only.
    """

    edge_type: EdgeType
    direction: Direction
    ids: IntArray
    count: int
    is_replacing: bool = False
    rng_seed: int = 0
    wants_edge_ids: bool = False
    strategy: Strategy = "uniform"
    trees: IntArray | None = None
    times: IntArray | None = None
    is_inclusive: bool = True
    excluded: IntArray | None = None
    candidates: IntArray | None = None
    labor: LaborSeeds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReply:
    """Neighbours drawn, grouped by the request's ids in their order.

    Attributes:
        counts: int32[n], neighbours drawn for each id.
        neighbor_ids: uint32 or int64[counts.sum()], in the dtype in which the dataset stores them.
        edge_ids: int64[counts.sum()], or None where the request did not want them.
    """

    counts: NDArray[np.int32]
    neighbor_ids: IntArray
    edge_ids: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    r"""Read rows of some columns of one node type, or of one edge type and direction.

    Attributes:
        entity: A node type, or an (edge type, direction).
        names: Feature names; ``KEY`` asks for original keys.
        ids: int64[n], any order, repetitions allowed.
        out: Name to a C-contiguous array of the column's dtype, shape (m, \*row shape). Row ``i`` of the answer is
            written to row ``positions[i]``. Fixed-width columns without an entry are answered in new arrays. Ragged
            and string columns never have one.
        positions: int64[n] rows of ``out`` to write, or None for 0..n-1. Only with ``out`` for every name.
        announced: What ``Store.announce_fetch`` gave for the same entity, names and ids, which serves once; or None.
    """

    entity: Entity
    names: tuple[str, ...]
    ids: IntArray
    out: Mapping[str, NDArray[Any]] | None = None
    positions: IntArray | None = None
    announced: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Edges by their ends.

    Attributes:
        src_keys: int64[n], keys of the source type.
        dst_keys: int64[n], keys of the destination type.
        times: int64[n], the edges' own times, or None where the edge type has none of its own.
    """

    src_keys: IntArray
    dst_keys: IntArray
    times: IntArray | None = None

    @classmethod
    def of(cls, columns: list[IntArray]) -> Links:
        """Links of two or three columns."""
        src_keys, dst_keys, *times = columns
        return cls(src_keys=src_keys, dst_keys=dst_keys, times=times[0] if times else None)

    def columns(self) -> list[IntArray]:
        """The columns that are there."""
        return [self.src_keys, self.dst_keys, *([] if self.times is None else [self.times])]


class Pending(Protocol[T_co]):
    """An answer under way."""

    def result(self) -> T_co:
        """Wait for the answer, no longer than the store's deadline. Call it once.

        Raises:
            StoreTimeout: No answer within the deadline.
            StoreUnavailable: No replica can be reached.
            RemoteError: A server failed while answering.
        """
        ...


class Deferred(Generic[T_co]):
    """Work that is done by whoever asks for its result."""

    def __init__(self, work: Callable[[], T_co]) -> None:
        """Remember what is to be done."""
        self._work = work

    def result(self) -> T_co:
        """Do it."""
        return self._work()


class Store(OfOneProcess, ABC):
    """Topology and columns of some or all parts of one dataset. Safe to use from many threads."""

    _remedy = "open one in each process, from the folder, the cluster.json or the addresses"

    schema: GraphSchema
    book: PartitionBook
    directions: tuple[Direction, ...]
    dataset_id: str
    """Fingerprint of the dataset's manifest; two stores of one dataset agree on it."""
    graph_id: str
    """Fingerprint of the graph; all datasets cut from one graph agree on it."""
    parts: tuple[int, ...]
    """The parts this store can answer for."""
    time_attr: str | None
    """The feature that says when a node or edge came to be, if the dataset was written with one; see
    ``schema.timed_edge_types``."""
    weight_attr: str | None
    """The edge feature that edges can be drawn by, if the dataset was written with one; edge types that have it."""
    asks_servers: bool = False
    """Servers are asked for some parts, so it helps to sample several batches with one request."""
    keeps_rows: bool = False
    """Rows of servers are kept in a cache, so it helps to say ahead which will be fetched."""
    has_neighbor_keys: bool
    """Edges carry the keys of neighbours, which ``labor`` needs; always True with one part, where ids are keys."""

    def take_facts(self, known: object) -> None:
        """Say of the dataset what a manifest, another store or a server's answer says of it."""
        for name in DATASET_FACTS:
            setattr(self, name, getattr(known, name))

    @abstractmethod
    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Start drawing neighbours; ids must be owned by ``parts``. See ``sample``."""

    @abstractmethod
    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Start reading columns; ids must be owned by ``parts``. See ``fetch``."""

    @abstractmethod
    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """int64[n] ids of nodes given by key; ``parts`` must keep the keys (``PartitionBook.key_offsets``).

        Raises:
            IdRangeError: A key outside 0..n-1 of its type.
        """

    @abstractmethod
    def split(self, node_type: str, name: str) -> IntArray:
        """int64[n] keys of a split, ascending, as far as ``parts`` keep them.

        Raises:
            UnknownNameError: The dataset has no such node type or split.
        """

    @abstractmethod
    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """int64[n], edges of each id in the given direction."""

    @abstractmethod
    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """int64[n], the id of the first edge in stored order between ``ids[i]`` and ``neighbor_ids[i]``; -1 for none.

        Args:
            edge_type: The edge type.
            direction: ``in``: ids are of the destination type and neighbours are sources; ``out``: the other way round.
            ids: int64[n], owned by ``parts``.
            neighbor_ids: int64[n], ids of the other end's type.
        """

    @abstractmethod
    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Ends and times of edges given by edge key; ``parts`` must keep the keys (``PartitionBook.link_offsets``).

        Raises:
            UnknownNameError: The dataset keeps no links of this edge type.
            IdRangeError: A key outside 0..m-1 of its type.
        """

    @abstractmethod
    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """int64[n] edge keys of a split of an edge type, ascending, as far as ``parts`` keep them.

        Raises:
            UnknownNameError: The dataset has no such edge type or split.
        """

    def explain_damage(self, error: FormatError | IdRangeError) -> FormatError | IdRangeError:
        """What to raise where only a damaged file can have led to an error: one that names the file, if it is found.

        Args:
            error: An id or a row that is outside its range, though all that was asked for had been checked.
        """
        if isinstance(error, FormatError):
            return error
        return FormatError(
            f"{error}; what was asked for was checked, so a file of the dataset is damaged: run hopstream verify where "
            "its parts are"
        )

    @abstractmethod
    def close(self) -> None:
        """End requests under way at once and release connections and maps; a second call does nothing.

        Safe to call while other threads are inside the store: they get ``StoreUnavailable``, or their answer.
        """

    def announce_fetch(self, requests: Sequence[FetchRequest]) -> list[Any]:
        """Tell a store which rows a later call of ``fetch`` will ask for; a cache keeps them, if there is one.

        Args:
            requests: What one batch will ask for, without ``out``.

        Returns:
            What to give with each request as ``announced``. Where it is lost instead, the announcement is taken back.
        """
        return [None] * len(requests)

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleReply]:
        """Draw neighbours for several edge types in one round trip per owner; replies are in request order."""
        return self.submit_sample(requests).result()

    def fetch(self, requests: Sequence[FetchRequest]) -> list[dict[str, Column]]:
        """Read columns of several owners in one round trip per part; one name-to-column dict per request."""
        return self.submit_fetch(requests).result()

    def __enter__(self) -> Store:
        """Use the store as a context that closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the store."""
        self.close()
