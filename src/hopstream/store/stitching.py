"""Splits a request by part, puts the parts' answers back in the request's order, and counts what is asked of others.

Rows of fixed width are never put back: whoever answers writes them straight to the rows they belong to. Neighbours and
ragged columns are kept as they come and put back once, when all lengths are known.
"""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import ends_of
from hopstream.kernels.halo import split_replicated
from hopstream.kernels.stitch import scatter_runs, split_by_part
from hopstream.store.contract import Deferred, Links, Pending, SampleReply, SampleRequest, Store
from hopstream.store.halo import HaloStore
from hopstream.store.remote import RemoteStore
from hopstream.store.requests import (
    check_sample_request,
    neighbor_dtype,
)
from hopstream.store.sample_frames import take_rows

Kind = Literal["sample", "fetch", "other"]
T = TypeVar("T")
Finish = Callable[[], None]
KINDS: tuple[Kind, ...] = ("sample", "fetch", "other")


class TrafficCounts(NamedTuple):
    """What was asked of one kind: ``sample``, ``fetch``, or anything else (degrees, keys, links).

    Attributes:
        remote_requests: Requests to other servers; one asks for all parts and types that a server is asked for at once.
        remote_ids: Nodes and edges they were asked for; one that is asked for in several columns counts once.
        remote_bytes: Bytes of the arrays that they answered.
        halo_ids: Nodes and edges of other parts that a halo here answered for; a node whose key a halo has and
            not the features that were asked for as well counts here and there.
        halo_bytes: Bytes of the arrays that it answered.
        cache_ids: Nodes and edges of other servers whose rows were in the cache of rows.
        cache_bytes: Bytes of these rows.
        cache_evictions: Rows that the cache gave up for others.
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
        """Share of the nodes and edges of other servers whose rows were in the cache; 0 where there were none."""
        total = self.remote_ids + self.cache_ids
        return self.cache_ids / total if total else 0.0

    @property
    def halo_share(self) -> float:
        """Share of the nodes and edges of other parts that halos answered for; 0 where there were none."""
        total = self.remote_ids + self.halo_ids
        return self.halo_ids / total if total else 0.0


class Traffic:
    """Counts what a routed store asks of others and of halos. Safe to use from many threads."""

    def __init__(self) -> None:
        """Count from nothing."""
        self._lock = threading.Lock()
        self._counts: dict[Kind, TrafficCounts] = {kind: TrafficCounts() for kind in KINDS}
        self._failures: Counter[str] = Counter()

    def add(self, kind: Kind, more: TrafficCounts) -> None:
        """Count some more."""
        with self._lock:
            self._counts[kind] = TrafficCounts(*map(operator.add, self._counts[kind], more))

    def add_answer(self, kind: Kind, store: Store, num_ids: int, num_bytes: int) -> None:
        """Count what a store answered, if it is another server's."""
        if isinstance(store, RemoteStore):
            self.add(kind, TrafficCounts(remote_requests=1, remote_ids=num_ids, remote_bytes=num_bytes))

    def add_failure(self, store: Store) -> None:
        """Count an attempt that failed, if it was at another server."""
        if isinstance(store, RemoteStore):
            with self._lock:
                self._failures[store.location] += 1

    def counts(self) -> dict[Kind, TrafficCounts]:
        """What was counted so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def num_failures(self, location: str) -> int:
        """How many attempts at a server failed so far."""
        with self._lock:
            return self._failures[location]


def reply_bytes(reply: SampleReply) -> int:
    """Bytes of the arrays of an answer."""
    return reply.counts.nbytes + reply.neighbor_ids.nbytes + (0 if reply.edge_ids is None else reply.edge_ids.nbytes)


def column_bytes(column: Column, num_rows: int) -> int:
    """Bytes of some rows of a column; all of a ragged one."""
    if isinstance(column, RaggedArray):
        return column.values.nbytes + column.offsets.nbytes
    return num_rows * (column.nbytes // max(1, len(column)))


@dataclass(frozen=True, slots=True)
class Cut:
    """Ids sorted by the piece that they belong to, and those that a halo here answers for at the end.

    Attributes:
        piece_starts: int64[num_pieces + 2]; piece ``p`` has rows ``[piece_starts[p], piece_starts[p + 1])`` of the
            others, and the halo counts as one piece more.
        piece_parts: int64[num_pieces], the part that each piece belongs to, or None where the pieces are the parts.
        positions: int64[n], where each id was in the request.
        ids: int64[n]; of the halo's, their rows in it.
    """

    piece_starts: IntArray
    piece_parts: IntArray | None
    positions: IntArray
    ids: IntArray

    @classmethod
    def of(
        cls, ids: IntArray, offsets: IntArray, piece_parts: IntArray | None = None, rows: IntArray | None = None
    ) -> Cut:
        """Cut checked ids by ranges of pieces.

        Args:
            ids: int64[n].
            offsets: int64[num_pieces + 1], id ranges.
            piece_parts: int64[num_pieces]; None where the pieces are the parts.
            rows: int64[n], their rows in a halo, negative where it has them not; None where there is none.
        """
        ids, starts = np.ascontiguousarray(ids, np.int64), np.zeros(len(offsets) + 1, np.int64)
        cut = cls(starts, piece_parts, np.empty(len(ids), np.int64), np.empty(len(ids), np.int64))
        if rows is None:
            split_by_part(ids, offsets, starts[:-1], cut.positions, cut.ids)
            starts[-1] = len(ids)
        else:
            split_replicated(ids, offsets, rows, starts, cut.positions, cut.ids)
        return cut

    def busy(self) -> list[int]:
        """The parts that have rows; one may come several times."""
        (pieces,) = np.nonzero(self.piece_starts[1:-1] > self.piece_starts[:-2])
        found: list[int] = (pieces if self.piece_parts is None else self.piece_parts[pieces]).tolist()
        return found

    @property
    def halo(self) -> slice:
        """The rows that a halo answers for."""
        return slice(int(self.piece_starts[-2]), int(self.piece_starts[-1]))

    def rows(self, parts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Positions and ids of the rows of some parts."""
        return self.rows_of(parts if self.piece_parts is None else np.flatnonzero(np.isin(self.piece_parts, parts)))

    def rows_of(self, pieces: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
        """Positions and ids of the rows of some pieces."""
        runs = [slice(self.piece_starts[piece], self.piece_starts[piece + 1]) for piece in pieces]
        if len(runs) == 1:
            return self.positions[runs[0]], self.ids[runs[0]]
        return np.concatenate([self.positions[run] for run in runs]), np.concatenate([self.ids[run] for run in runs])


def busy_parts(cuts: Sequence[Cut]) -> list[int]:
    """The parts that have rows of any cut, ascending."""
    return sorted({part for cut in cuts for part in cut.busy()})


class Stitch(ABC, Generic[T]):
    """A request that is cut by part, asked in groups of parts, and put together from their answers."""

    @abstractmethod
    def parts(self) -> list[int]:
        """The parts that have something to do."""

    @abstractmethod
    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Ask a store for the rows of some of its parts; what is returned waits for the answer and keeps it.

        A store that is here does its work when the answer is waited for. Where that fails nothing is kept.
        """

    def ask_here(self) -> None:
        """Take the answers that are here already, in a halo or a cache; some requests have none."""

    @abstractmethod
    def result(self) -> T:
        """The answer, once all parts have been asked."""


class SampleStitch(Stitch[list[SampleReply]]):
    """Draws of neighbours."""

    def __init__(
        self, store: Store, requests: Sequence[SampleRequest], traffic: Traffic, halo: HaloStore | None = None
    ) -> None:
        """Check and cut the requests; ``store`` is the one that holds all parts, ``halo`` what is here of others."""
        for request in requests:
            check_sample_request(store, request)
        self._book = store.book
        self._requests = requests
        self._traffic, self._halo = traffic, halo
        self._cuts = [self._cut(request, request.ids) for request in requests]
        self._pairs = [None if r.excluded is None else self._cut(r, r.excluded[0]) for r in requests]
        self._replies: list[list[tuple[IntArray, SampleReply]]] = [[] for _ in requests]

    def parts(self) -> list[int]:
        """The parts that own ids of any request."""
        return busy_parts(self._cuts)

    def _cut(self, request: SampleRequest, ids: IntArray) -> Cut:
        entity, ids = (request.edge_type, request.direction), np.ascontiguousarray(ids, np.int64)
        rows = None if self._halo is None else self._halo.find_nodes(entity, ids)
        return Cut.of(ids, self._book.offsets(ends_of(*entity)[0]), rows=rows)

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Draw the neighbours of ids of some parts."""
        rows = [cut.rows(parts) for cut in self._cuts]
        busy = [i for i, (positions, _) in enumerate(rows) if len(positions)]
        pending = store.submit_sample([self._request(i, rows[i][0], parts) for i in busy])

        def finish() -> None:
            replies = pending.result()
            for i, reply in zip(busy, replies, strict=True):
                self._replies[i].append((rows[i][0], reply))
            num_ids, num_bytes = sum(len(rows[i][0]) for i in busy), sum(map(reply_bytes, replies))
            self._traffic.add_answer("sample", store, num_ids, num_bytes)

        return finish

    def ask_here(self) -> None:
        """Draw the neighbours of ids that the halo has."""
        if self._halo is None:
            return
        num_ids = num_bytes = 0
        for i, cut in enumerate(self._cuts):
            positions, rows = cut.positions[cut.halo], cut.ids[cut.halo]
            if not len(positions):
                continue
            request, pairs = replace(take_rows(self._requests[i], positions), ids=rows), self._pairs[i]
            if request.excluded is not None and pairs is not None:
                others = request.excluded[1, pairs.positions[pairs.halo]]
                request = replace(request, excluded=np.stack([pairs.ids[pairs.halo], others]) if len(others) else None)
            reply = self._halo.sample(request)
            self._replies[i].append((positions, reply))
            num_ids += len(positions)
            num_bytes += reply_bytes(reply)
        self._traffic.add("sample", TrafficCounts(halo_ids=num_ids, halo_bytes=num_bytes))

    def _request(self, i: int, positions: IntArray, parts: Sequence[int]) -> SampleRequest:
        """A request of some rows, with the excluded pairs of nodes of their parts; candidates may be of any part."""
        request, pairs = take_rows(self._requests[i], positions), self._pairs[i]
        if request.excluded is None or pairs is None:
            return request
        own, _ = pairs.rows(parts)
        return replace(request, excluded=request.excluded[:, own] if len(own) else None)

    def result(self) -> list[SampleReply]:
        """One reply per request, grouped by its ids in their order."""
        return [self._stitched(*pair) for pair in zip(self._requests, self._replies, strict=True)]

    def _stitched(self, request: SampleRequest, replies: Sequence[tuple[IntArray, SampleReply]]) -> SampleReply:
        counts = np.zeros(len(request.ids), np.int32)
        for positions, reply in replies:
            counts[positions] = reply.counts
        offsets = offsets_of(counts)
        stored = neighbor_dtype(self._book, request.edge_type, request.direction)
        dtype = replies[0][1].neighbor_ids.dtype if replies else stored
        neighbor_ids = np.empty(offsets[-1], dtype)
        edge_ids = np.empty(offsets[-1] if request.wants_edge_ids else 0, np.int64)
        for positions, reply in replies:
            scatter_runs(reply.neighbor_ids, reply.counts, positions, offsets, 1, neighbor_ids)
            if reply.edge_ids is not None and request.wants_edge_ids:
                scatter_runs(reply.edge_ids, reply.counts, positions, offsets, 1, edge_ids)
        return SampleReply(
            counts=counts, neighbor_ids=neighbor_ids, edge_ids=edge_ids if request.wants_edge_ids else None
        )


Question = tuple[Any, ...]
"""An operation of stores by its name, and its arguments."""


def _submit(store: Store, operation: str, *arguments: Any) -> Pending[Any]:
    """Start an operation of a store; one that is here does it when the result is asked for."""
    if isinstance(store, RemoteStore):
        return store.submit(operation, *arguments)
    return Deferred(partial(getattr(store, operation), *arguments))


class RowsStitch(Stitch[list[IntArray]]):
    """One int64 per row, in one column or in several."""

    def __init__(
        self,
        ids: IntArray,
        offsets: IntArray,
        work: Callable[[IntArray], Question],
        traffic: Traffic,
        width: int = 1,
    ) -> None:
        """Cut rows by their checked ids.

        Args:
            ids: int64[n], ids or keys, of which ranges belong to parts.
            offsets: int64[num_parts + 1], those ranges.
            traffic: Counts what others are asked for.
            work: Gives the question for some of the rows, given by their positions; its answer has ``width`` columns.
            width: Columns of the answer.
        """
        self._cut = Cut.of(ids, offsets)
        self._work, self._traffic = work, traffic
        self._columns: list[IntArray] = [np.empty(len(ids), np.int64) for _ in range(width)]

    def parts(self) -> list[int]:
        """The parts whose ranges hold any id."""
        return busy_parts([self._cut])

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Ask for the ids of some parts."""
        positions, _ = self._cut.rows(parts)
        pending = _submit(store, *self._work(positions))

        def finish() -> None:
            answer = pending.result()
            columns = answer.columns() if isinstance(answer, Links) else [answer]
            for column, values in zip(self._columns, columns, strict=True):
                column[positions] = values
            self._traffic.add_answer("other", store, len(positions), sum(values.nbytes for values in columns))

        return finish

    def result(self) -> list[IntArray]:
        """int64[n] per column."""
        return self._columns


class SplitStitch(Stitch[IntArray]):
    """The keys of a split, of which every part keeps a slice."""

    def __init__(self, offsets: IntArray, *question: Any) -> None:
        """Prepare to ask every part.

        Args:
            offsets: int64[num_parts + 1], the ranges of keys that parts keep.
            question: Asks a store for all keys that it keeps.
        """
        self._offsets = offsets
        self._question = question
        self._slices: dict[int, IntArray] = {}

    def parts(self) -> list[int]:
        """All parts whose slice has keys."""
        return [int(part) for part in np.flatnonzero(np.diff(self._offsets))]

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Ask for the keys a store keeps; those of its other parts come as well and are left to other stores."""
        pending = _submit(store, *self._question)

        def finish() -> None:
            keys = pending.result()
            bounds = np.searchsorted(keys, self._offsets)
            for part in parts:
                self._slices[part] = keys[bounds[part] : bounds[part + 1]]

        return finish

    def result(self) -> IntArray:
        """int64[n], ascending."""
        return np.concatenate([self._slices[part] for part in sorted(self._slices)] or [np.empty(0, np.int64)])
