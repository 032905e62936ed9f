"""What can any store be asked, near or far?

Requests and replies are frozen records of arrays. ``LocalStore``, ``RemoteStore`` and ``RoutedStore`` all honour this
contract, and one class of tests runs against each of them. Replies answer the ids of a request in the order of the
request; a routed store carries positions to keep that true, so the order of arrival means nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Column, IntArray
from hopstream.partition.book import Owner, PartitionBook
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema

KEY = "\x00key"
"""The column of original keys, fetched like a feature: int64[rows]. No user's feature can have this name."""
KEY_SCHEMA = FeatureSchema(dtype="int64")
"""The schema of that column."""

MAX_COUNT = (1 << 31) - 1
"""The most neighbours that one node can be answered with; counts are int32."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Draw neighbours of some nodes along one edge type.

    Attributes:
        edge_type: The edge type to follow.
        direction: ``in``: ids are of the destination type and neighbours are sources; ``out``: the other way round.
        ids: int64[n], node ids to expand.
        count: Neighbours per id; ``-1`` means all of them. Below ``count`` edges, all of them in stored order.
        is_replacing: Draw exactly ``count`` with replacement (none where there are no edges). Ignored for ``-1``.
        rng_seed: 64 random bits of this batch, hop and edge type. Draws depend on it, on the node's key and on the
            turn, and on nothing else.
        wants_edge_ids: Also answer the ids of the edges drawn.
    """

    edge_type: EdgeType
    direction: Direction
    ids: IntArray
    count: int
    is_replacing: bool = False
    rng_seed: int = 0
    wants_edge_ids: bool = False


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
        owner: A node type, or an (edge type, direction).
        names: Feature names; ``KEY`` asks for original keys.
        ids: int64[n], any order, repetitions allowed.
        out: Name to a C-contiguous array of the column's dtype, shape (m, \*row shape). Row ``i`` of the answer is
            written to row ``positions[i]``. Fixed-width columns without an entry are answered in new arrays. Ragged
            and string columns never have one.
        positions: int64[n] rows of ``out`` to write, or None for 0..n-1. Only with ``out`` for every name.
    """

    owner: Owner
    names: tuple[str, ...]
    ids: IntArray
    out: Mapping[str, NDArray[Any]] | None = None
    positions: IntArray | None = None


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


class Store(ABC):
    """Topology and columns of some or all parts of one dataset. Safe to use from many threads."""

    schema: GraphSchema
    book: PartitionBook
    directions: tuple[Direction, ...]
    dataset_id: str
    """Fingerprint of the dataset's manifest; two stores of one dataset agree on it."""
    graph_id: str
    """Fingerprint of the graph; all datasets cut from one graph agree on it."""
    parts: tuple[int, ...]
    """The parts this store can answer for."""

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
    def close(self) -> None:
        """End requests under way at once and release connections and maps; a second call does nothing.

        Safe to call while other threads are inside the store: they get ``StoreUnavailable``, or their answer.
        """

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
