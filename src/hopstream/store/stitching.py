"""Stitching: splits a request by part, merges the answers in the request's order, and counts traffic.

Neighbours and ragged columns are kept as they arrive, and merged once all lengths are known. ``fetch_stitching`` merges
rows of fixed width.
"""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import ends_of
from hopstream.kernels.halo import split_replicated
from hopstream.kernels.stitch import scatter_runs, split_by_part
from hopstream.store.contract import (
    KINDS,
    Deferred,
    Kind,
    Links,
    Pending,
    SampleReply,
    SampleRequest,
    Store,
    TrafficCounts,
)  # fmt: skip
from hopstream.store.halo import HaloStore
from hopstream.store.remote import RemoteStore
from hopstream.store.requests import (
    check_sample_request,
    neighbor_dtype,
)
from hopstream.store.sample_frames import take_rows

T = TypeVar("T")
Finish = Callable[[], None]


class Traffic:
    """Traffic counters of a routed store. Thread-safe."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: dict[Kind, TrafficCounts] = {kind: TrafficCounts() for kind in KINDS}
        self._failures: Counter[str] = Counter()

    def add(self, kind: Kind, more: TrafficCounts) -> None:
        """Add to the counters."""
        with self._lock:
            self._counts[kind] = TrafficCounts(*map(operator.add, self._counts[kind], more))

    def add_answer(self, kind: Kind, store: Store, num_ids: int, num_bytes: int) -> None:
        """Count the answer of a store, if it is a remote store."""
        if isinstance(store, RemoteStore):
            self.add(kind, TrafficCounts(remote_requests=1, remote_ids=num_ids, remote_bytes=num_bytes))

    def add_failure(self, store: Store) -> None:
        """Count a failed attempt, if it was at a remote store."""
        if isinstance(store, RemoteStore):
            with self._lock:
                self._failures[store.location] += 1

    def counts(self) -> dict[Kind, TrafficCounts]:
        """Return the counters by kind."""
        with self._lock:
            return dict(self._counts)

    def num_failures(self, location: str) -> int:
        """Return the number of failed attempts at a server."""
        with self._lock:
            return self._failures[location]


def reply_bytes(reply: SampleReply) -> int:
    """Return the bytes of the arrays of a reply."""
    return reply.counts.nbytes + sum(column.nbytes for column in reply.columns())


def column_bytes(column: Column, num_rows: int) -> int:
    """Return the bytes of ``num_rows`` rows of a column, or of all rows of a ragged column."""
    if isinstance(column, RaggedArray):
        return column.values.nbytes + column.offsets.nbytes
    return num_rows * (column.nbytes // max(1, len(column)))


@dataclass(frozen=True, slots=True)
class Cut:
    """Ids sorted by piece, followed by the ids that a local halo answers.

    Attributes:
        piece_starts: int64[num_pieces + 2]; piece ``p`` has rows ``[piece_starts[p], piece_starts[p + 1])``. The halo
            is the last piece.
        piece_parts: int64[num_pieces], part of each piece; None if the pieces are the parts.
        positions: int64[n], position of each id in the request.
        ids: int64[n]; rows of the halo instead of ids for the halo's piece.
    """

    piece_starts: IntArray
    piece_parts: IntArray | None
    positions: IntArray
    ids: IntArray

    @classmethod
    def of(
        cls, ids: IntArray, offsets: IntArray, piece_parts: IntArray | None = None, rows: IntArray | None = None
    ) -> Cut:
        """Split checked ids by ranges of pieces.

        Args:
            ids: int64[n].
            offsets: int64[num_pieces + 1], id ranges.
            piece_parts: int64[num_pieces]; None if the pieces are the parts.
            rows: int64[n], row of each id in a halo, negative if the halo lacks it; None without a halo.
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
        """Return the parts that have rows; a part may be repeated."""
        (pieces,) = np.nonzero(self.piece_starts[1:-1] > self.piece_starts[:-2])
        found: list[int] = (pieces if self.piece_parts is None else self.piece_parts[pieces]).tolist()
        return found

    @property
    def halo(self) -> slice:
        """Range of the rows that a halo answers."""
        return slice(int(self.piece_starts[-2]), int(self.piece_starts[-1]))

    def rows(self, parts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Return positions and ids of the rows of some parts."""
        return self.rows_of(parts if self.piece_parts is None else np.flatnonzero(np.isin(self.piece_parts, parts)))

    def rows_of(self, pieces: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
        """Return positions and ids of the rows of some pieces."""
        runs = [slice(self.piece_starts[piece], self.piece_starts[piece + 1]) for piece in pieces]
        if len(runs) == 1:
            return self.positions[runs[0]], self.ids[runs[0]]
        return np.concatenate([self.positions[run] for run in runs]), np.concatenate([self.ids[run] for run in runs])


def _are_all(positions: IntArray, num_rows: int) -> bool:
    """Return whether positions are those of all rows, in order."""
    return len(positions) == num_rows and np.array_equal(positions, np.arange(num_rows))


def busy_parts(cuts: Sequence[Cut]) -> list[int]:
    """Return the parts that have rows in any cut, ascending."""
    return sorted({part for cut in cuts for part in cut.busy()})


class Stitch(ABC, Generic[T]):
    """Request that is split by part, sent for groups of parts, and merged from the answers."""

    @abstractmethod
    def parts(self) -> list[int]:
        """Return the parts to ask."""

    @abstractmethod
    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Ask a store for rows of some of its parts; return a function that waits for the answer and keeps it.

        A local store does its work in that function. A failed answer is not kept.
        """

    def ask_here(self) -> None:
        """Take answers from a halo or a cache; does nothing by default."""

    @abstractmethod
    def result(self) -> T:
        """Return the merged answer; call it after all parts have answered."""

    def fail(self) -> None:
        """Free resources after a part could not be served; does nothing by default."""


class SampleStitch(Stitch[list[SampleReply]]):
    """Split requests for neighbours."""

    def __init__(
        self, store: Store, requests: Sequence[SampleRequest], traffic: Traffic, halo: HaloStore | None = None
    ) -> None:
        """Check and split the requests; ``store`` holds all parts, ``halo`` the local copies of other parts."""
        for request in requests:
            check_sample_request(store, request)
        self._book = store.book
        self._requests = requests
        self._traffic, self._halo = traffic, halo
        self._cuts = [self._cut(request, request.ids) for request in requests]
        self._pairs = [None if r.excluded is None else self._cut(r, r.excluded[0]) for r in requests]
        self._replies: list[list[tuple[IntArray, SampleReply]]] = [[] for _ in requests]

    def parts(self) -> list[int]:
        """Return the parts that own ids of any request."""
        return busy_parts(self._cuts)

    def _cut(self, request: SampleRequest, ids: IntArray) -> Cut:
        entity, ids = (request.edge_type, request.direction), np.ascontiguousarray(ids, np.int64)
        rows = None if self._halo is None else self._halo.find_nodes(entity, ids)
        return Cut.of(ids, self._book.offsets(ends_of(*entity)[0]), rows=rows)

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Draw neighbours of the ids of some parts."""
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
        """Draw neighbours of ids in the halo."""
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
        """Return a request for some rows with their parts' excluded pairs; it keeps all candidates."""
        request, pairs = self._requests[i], self._pairs[i]
        if not _are_all(positions, len(request.ids)):
            request = take_rows(request, positions)
        if request.excluded is None or pairs is None:
            return request
        own, _ = pairs.rows(parts)
        return replace(request, excluded=request.excluded[:, own] if len(own) else None)

    def result(self) -> list[SampleReply]:
        """Return one reply per request, grouped by id in the order of the request."""
        return [self._stitched(*pair) for pair in zip(self._requests, self._replies, strict=True)]

    def _stitched(self, request: SampleRequest, replies: Sequence[tuple[IntArray, SampleReply]]) -> SampleReply:
        if len(replies) == 1 and _are_all(replies[0][0], len(request.ids)):
            return replies[0][1]
        counts = np.zeros(len(request.ids), np.int32)
        for positions, reply in replies:
            counts[positions] = reply.counts
        offsets = offsets_of(counts)
        stored = neighbor_dtype(self._book, request.edge_type, request.direction)
        dtype = replies[0][1].neighbor_ids.dtype if replies else stored
        merged = SampleReply(
            counts=counts, neighbor_ids=np.empty(offsets[-1], dtype),
            edge_ids=np.empty(offsets[-1], np.int64) if request.wants_edge_ids else None,
            edge_keys=np.empty(offsets[-1], np.int64) if request.wants_edge_keys else None,
        )  # fmt: skip
        for positions, reply in replies:
            for values, out in zip(reply.columns(), merged.columns(), strict=True):
                scatter_runs(values, reply.counts, positions, offsets, 1, out)
        return merged


Question = tuple[Any, ...]
"""Name of a store's operation, and its arguments."""


def _submit(store: Store, operation: str, *arguments: Any) -> Pending[Any]:
    """Start an operation; a local store runs it when the result is asked for."""
    if isinstance(store, RemoteStore):
        return store.submit(operation, *arguments)
    return Deferred(partial(getattr(store, operation), *arguments))


class RowsStitch(Stitch[list[IntArray]]):
    """Split request for int64 values: one or several columns, one row per id."""

    def __init__(
        self,
        ids: IntArray,
        offsets: IntArray,
        work: Callable[[IntArray], Question],
        traffic: Traffic,
        width: int = 1,
    ) -> None:
        """Split rows by their checked ids.

        Args:
            ids: int64[n], ids or keys.
            offsets: int64[num_parts + 1], the range of ids or keys of each part.
            work: Maps positions of rows to the operation for them, whose answer has ``width`` columns.
            traffic: Counters of the routed store.
            width: Number of columns of the answer.
        """
        self._cut = Cut.of(ids, offsets)
        self._work, self._traffic = work, traffic
        self._columns: list[IntArray] = [np.empty(len(ids), np.int64) for _ in range(width)]

    def parts(self) -> list[int]:
        """Return the parts whose ranges hold any id."""
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
        """Return the columns, int64[n] each."""
        return self._columns


class SplitStitch(Stitch[IntArray]):
    """Request for the keys of a split; every part keeps a range of keys."""

    def __init__(self, offsets: IntArray, *question: Any) -> None:
        """Prepare to ask every part.

        Args:
            offsets: int64[num_parts + 1], the range of keys of each part.
            question: Operation that returns all keys that a store keeps.
        """
        self._offsets = offsets
        self._question = question
        self._slices: dict[int, IntArray] = {}

    def parts(self) -> list[int]:
        """Return the parts whose range is not empty."""
        return [int(part) for part in np.flatnonzero(np.diff(self._offsets))]

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Ask a store for its keys; keys outside the ranges of ``parts`` are ignored."""
        pending = _submit(store, *self._question)

        def finish() -> None:
            keys = pending.result()
            bounds = np.searchsorted(keys, self._offsets)
            for part in parts:
                self._slices[part] = keys[bounds[part] : bounds[part + 1]]

        return finish

    def result(self) -> IntArray:
        """Return all keys, int64[n], ascending."""
        return np.concatenate([self._slices[part] for part in sorted(self._slices)] or [np.empty(0, np.int64)])
