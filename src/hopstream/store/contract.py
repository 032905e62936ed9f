"""Contract of all stores: requests, replies and the abstract ``Store``.

Requests and replies are frozen records of arrays. ``LocalStore``, ``RemoteStore`` and ``RoutedStore`` implement the
contract, and one class of tests runs against each of them. A reply is in the order of the request's ids. A routed store
sorts the answers of its servers by position, so the order in which they arrive does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray
from hopstream.checks import OfOneProcess
from hopstream.dataset.book import Entity, PartitionBook
from hopstream.dataset.settings import TimeUnit
from hopstream.errors import FormatError, IdRangeError
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema

KEY = "\x00key"
"""Name of the column of original keys, int64[rows]; no user's feature can have this name."""
KEY_SCHEMA = FeatureSchema(dtype="int64")
"""Schema of the column ``KEY``."""

TREE_SHIFT = 40
"""A node of a tree is one int64: ``tree << TREE_SHIFT | id``. Requests with trees need ids below 2**40."""
MAX_TREES = 1 << 23
MAX_COUNT = (1 << 31) - 1
"""Largest number of neighbours in the answer for one node; counts are int32."""

DATASET_FACTS = (
    "schema", "book", "directions", "dataset_id", "graph_id", "time_attr", "time_unit", "weight_attr",
    "has_neighbor_keys",
)  # fmt: skip
"""Attributes of a store that all stores of one dataset share."""

Strategy = Literal["uniform", "weighted", "top_k", "last", "labor"]
"""Ways to choose neighbours among a node's eligible edges; see ``SampleRequest``."""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
BY_WEIGHT: tuple[Strategy, ...] = ("weighted", "top_k")
"""Strategies that need the weights of edges."""
REPLACING: tuple[Strategy, ...] = ("uniform", "weighted")
"""Strategies that can draw with replacement."""
STORED_ORDER: tuple[Strategy, ...] = ("uniform", "last", "labor")
"""Strategies that ignore weights and return all eligible edges in stored order where ``count`` covers them."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaborSeeds:
    """Seeds of the random variates of layer-neighbour sampling.

    Each neighbour has one variate per seed; all nodes with this neighbour share it. With ``share`` 0 the variate is
    that of the first seed. A larger share moves it smoothly towards the variate of the second seed. It stays uniform in
    [0, 1).

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
    """Request for neighbours of some nodes along one edge type.

    A node's *eligible* edges are its edges in stored order, without edges after its time, edges to excluded neighbours
    and edges to neighbours that are no candidates (of its tree). The strategy draws among the eligible edges:

    - ``uniform``: any ``count`` edges with equal chances; all edges in stored order if there are no more than
      ``count``.
    - ``weighted``: successive draws, each in proportion to the weights of the edges not drawn yet (with replacement: of
      all edges). Edges of weight 0 are never drawn. If no more than ``count`` edges have weight, all of them are drawn,
      in stored order.
    - ``top_k``: the ``count`` edges of largest weight, largest first, ties in stored order; never edges of weight 0.
    - ``last``: the last ``count`` edges in stored order, which is the order of time. Needs an edge type with times.
    - ``labor``: the ``count`` edges whose neighbours have the smallest variates under ``labor``, in stored order.
      Parallel edges share a variate; ties among them are broken with equal chances.

    Attributes:
        edge_type: The edge type to follow.
        direction: ``in``: ids are of the destination type and neighbours are sources; ``out``: the other way round.
        ids: int64[n], node ids to expand, with repetitions.
        count: Neighbours per id; ``-1`` returns all eligible edges (of weight above 0, if the strategy uses weights).
        is_replacing: Draw exactly ``count`` edges with replacement, or none if no edge is eligible. Ignored if
            ``count`` is -1. Only with ``uniform`` and ``weighted``.
        rng_seed: 64 random bits of this batch, hop and edge type. Draws depend only on ``rng_seed`` and on the node's
            key, tree and turn.
        wants_edge_ids: Also return the ids of the drawn edges.
        wants_edge_keys: Also return the original keys of the drawn edges.
        strategy: Way to choose among eligible edges, see above.
        trees: int64[n] in [0, MAX_TREES), or None for one tree. Draws of one node in different trees are independent.
        times: int64[n], or None. Only edges at or before the time of the id are eligible. Ignored if the edge type has
            no times.
        is_inclusive: Edges exactly at the time of the id are eligible.
        excluded: int64[2, m], any order, or None: pairs of an expanded node's id and a neighbour's id. Edges between
            the two nodes are not eligible.
        candidates: int64[c], ascending and distinct, or None for all. Only edges to these neighbours are eligible. With
            ``trees``, a candidate is ``tree << TREE_SHIFT | id`` and counts for nodes of its tree only; else it is an
            id.
        labor: Seeds of the variates; only with strategy ``labor``.
    """

    edge_type: EdgeType
    direction: Direction
    ids: IntArray
    count: int
    is_replacing: bool = False
    rng_seed: int = 0
    wants_edge_ids: bool = False
    wants_edge_keys: bool = False
    strategy: Strategy = "uniform"
    trees: IntArray | None = None
    times: IntArray | None = None
    is_inclusive: bool = True
    excluded: IntArray | None = None
    candidates: IntArray | None = None
    labor: LaborSeeds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReply:
    """Drawn neighbours, grouped by id in the order of the request.

    Attributes:
        counts: int32[n], neighbours drawn for each id.
        neighbor_ids: uint32 or int64[counts.sum()]; the dtype is that of the dataset's files.
        edge_ids: int64[counts.sum()], or None if the request did not want them.
        edge_keys: int64[counts.sum()], or None if the request did not want them.
    """

    counts: NDArray[np.int32]
    neighbor_ids: IntArray
    edge_ids: IntArray | None = None
    edge_keys: IntArray | None = None

    def columns(self) -> list[Array]:
        """Return the arrays with an item per drawn edge: neighbours, and edge ids and keys if wanted."""
        found = (self.neighbor_ids, self.edge_ids, self.edge_keys)
        return [column for column in found if column is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    r"""Request for rows of some columns of one node type, or of one edge type and direction.

    Attributes:
        entity: A node type, or an (edge type, direction).
        names: Feature names; ``KEY`` is the column of original keys.
        ids: int64[n], any order, repetitions allowed.
        out: Maps a name to a C-contiguous array of the column's dtype and shape (m, \*row shape), with at least n rows,
            to write to; further rows stay as they are. Fixed-width columns without an array get a new one. Ragged and
            string columns have none.
        announced: Result of ``Store.announce_fetch`` for the same entity, names and ids, usable once; or None.
    """

    entity: Entity
    names: tuple[str, ...]
    ids: IntArray
    out: Mapping[str, NDArray[Any]] | None = None
    announced: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """End nodes and times of edges.

    Attributes:
        src_keys: int64[n], keys of the source type.
        dst_keys: int64[n], keys of the destination type.
        times: int64[n], the edges' own times, or None if the edge type has no times of its own.
    """

    src_keys: IntArray
    dst_keys: IntArray
    times: IntArray | None = None

    @classmethod
    def of(cls, columns: list[IntArray]) -> Links:
        """Make links from two or three columns."""
        src_keys, dst_keys, *times = columns
        return cls(src_keys=src_keys, dst_keys=dst_keys, times=times[0] if times else None)

    def columns(self) -> list[IntArray]:
        """Return two columns, or three with times."""
        return [self.src_keys, self.dst_keys, *([] if self.times is None else [self.times])]


class Pending(Protocol[T_co]):
    """Answer to a request that is under way."""

    def result(self) -> T_co:
        """Wait for the answer, no longer than the store's deadline. Call it once.

        Raises:
            StoreTimeout: No answer within the deadline.
            StoreUnavailable: No replica can be reached.
            RemoteError: A server failed while answering.
        """
        ...


class Deferred(Generic[T_co]):
    """Work that runs in the thread that calls ``result``."""

    def __init__(self, work: Callable[[], T_co]) -> None:
        """Keep the function to call."""
        self._work = work

    def result(self) -> T_co:
        """Run the work; every call runs it again."""
        return self._work()


Kind = Literal["sample", "fetch", "other"]
KINDS: tuple[Kind, ...] = ("sample", "fetch", "other")


class TrafficCounts(NamedTuple):
    """Traffic of one kind of operation: ``sample``, ``fetch`` or ``other`` (degrees, keys, links).

    Attributes:
        remote_requests: Requests to other servers; one request covers all parts and types asked of a server at once.
        remote_ids: Nodes and edges in these requests; an id requested for several columns counts once.
        remote_bytes: Bytes of the arrays in the servers' answers.
        halo_ids: Nodes and edges of other parts answered from a local halo. A node whose key comes from a halo and
            whose features come from a server counts in ``remote_ids``, too.
        halo_bytes: Bytes of the arrays in answers of halos.
        cache_ids: Nodes and edges of other servers whose rows were cache hits.
        cache_bytes: Bytes of the rows of cache hits.
        cache_evictions: Rows that the cache evicted.
    """

    remote_requests: int = 0
    remote_ids: int = 0
    remote_bytes: int = 0
    halo_ids: int = 0
    halo_bytes: int = 0
    cache_ids: int = 0
    cache_bytes: int = 0
    cache_evictions: int = 0

    @property
    def cache_share(self) -> float:
        """Cache hits as a share of nodes and edges of other servers; 0 if there were none."""
        total = self.remote_ids + self.cache_ids
        return self.cache_ids / total if total else 0.0

    @property
    def halo_share(self) -> float:
        """Share of nodes and edges of other parts that halos answered; 0 if there were none."""
        total = self.remote_ids + self.halo_ids
        return self.halo_ids / total if total else 0.0


class Store(OfOneProcess, ABC):
    """Topology and columns of some or all parts of one dataset. Safe to use from many threads."""

    _remedy = "open one in each process, from the folder, the cluster.json or the addresses"

    schema: GraphSchema
    book: PartitionBook
    directions: tuple[Direction, ...]
    dataset_id: str
    """Fingerprint of the dataset's manifest, equal for all stores of one dataset."""
    graph_id: str
    """Fingerprint of the graph, equal for all datasets cut from one graph."""
    parts: tuple[int, ...]
    """Parts that this store can answer for."""
    time_attr: str | None
    """Feature that holds the times of nodes or edges; None if there is none. See ``schema.timed_edge_types``."""
    time_unit: TimeUnit | None
    """Unit of ``time_attr`` since 1970; None if the dataset does not state it."""
    weight_attr: str | None
    """Edge feature that holds the weights of edges, for edge types that have it; None if there is none."""
    asks_servers: bool = False
    """True if servers answer for some parts: then one request for several batches saves round trips."""
    keeps_rows: bool = False
    """True if a cache keeps rows of servers: then announced fetches get more cache hits."""
    has_neighbor_keys: bool
    """True if edges store the keys of neighbours, as ``labor`` needs; always True with one part, whose ids are keys."""

    def take_facts(self, known: object) -> None:
        """Copy the attributes ``DATASET_FACTS`` from a manifest, another store or a server's answer."""
        for name in DATASET_FACTS:
            setattr(self, name, getattr(known, name))

    @abstractmethod
    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Start drawing neighbours; ``parts`` must own the ids. See ``sample``."""

    @abstractmethod
    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Start reading columns; ``parts`` must own the ids. See ``fetch``."""

    @abstractmethod
    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the ids of nodes, int64[n]; ``parts`` must keep the keys (``PartitionBook.key_offsets``).

        Raises:
            IdRangeError: A key outside 0..n-1 of its type.
        """

    @abstractmethod
    def split(self, node_type: str, name: str) -> IntArray:
        """Return the keys of a split that ``parts`` keep, int64[n], ascending.

        Raises:
            UnknownNameError: The dataset has no such node type or split.
        """

    @abstractmethod
    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Return the number of edges of each id in a direction, int64[n]."""

    @abstractmethod
    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Find the first edge in stored order between ``ids[i]`` and ``neighbor_ids[i]``.

        Args:
            edge_type: The edge type.
            direction: ``in``: ids are of the destination type and neighbours are sources; ``out``: the other way round.
            ids: int64[n], owned by ``parts``.
            neighbor_ids: int64[n], ids of the other end's type.

        Returns:
            int64[n], edge ids; -1 where there is no edge.
        """

    @abstractmethod
    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Return end nodes and times of edges; ``parts`` must keep the keys (``PartitionBook.link_offsets``).

        Raises:
            UnknownNameError: The dataset keeps no links of this edge type.
            IdRangeError: A key outside 0..m-1 of its type.
        """

    @abstractmethod
    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """Return the edge keys of a split of an edge type that ``parts`` keep, int64[n], ascending.

        Raises:
            UnknownNameError: The dataset has no such edge type or split.
        """

    def traffic(self) -> dict[Kind, TrafficCounts]:
        """Return counters of what other servers and caches answered, by kind; zeros if every part is local."""
        return {kind: TrafficCounts() for kind in KINDS}

    def explain_damage(self, error: FormatError | IdRangeError) -> FormatError | IdRangeError:
        """Return the error to raise for a failure that only a damaged file can cause.

        The error names the file if the store can find it.

        Args:
            error: An id or a row outside its range, although the request was checked.
        """
        if isinstance(error, FormatError):
            return error
        return FormatError(
            f"{error}; the request was valid, so a file of the dataset is damaged: run hopstream verify where its "
            "parts are"
        )

    @abstractmethod
    def close(self) -> None:
        """End requests under way at once, and release connections and maps; a second call does nothing.

        Safe to call while other threads use the store: they get ``StoreUnavailable`` or their answer.
        """

    def announce_fetch(self, requests: Sequence[FetchRequest]) -> list[Any]:
        """Announce rows that a later ``fetch`` will read, so that a cache can keep them.

        Args:
            requests: Requests of one batch, without ``out``.

        Returns:
            One value per request, to be passed as ``FetchRequest.announced``. The store withdraws the announcement when
            the value is garbage-collected.
        """
        return [None] * len(requests)

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleReply]:
        """Draw neighbours along several edge types, one round trip per server; return a reply per request."""
        return self.submit_sample(requests).result()

    def fetch(self, requests: Sequence[FetchRequest]) -> list[dict[str, Column]]:
        """Read columns, one round trip per server; return one dict from name to column per request."""
        return self.submit_fetch(requests).result()

    def __enter__(self) -> Store:
        """Return the store; the ``with`` block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the store."""
        self.close()
