"""How does a server answer one request, frame by frame?

Every answer is a stream of frames of about ``frame_bytes``. A frame carries pieces: runs of rows of the requests, each
with the position at which it starts. The next frame is gathered only when the last one is on its way, so a server's
memory does not grow with the answer, and gathering overlaps sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, SettingsError, VersionMismatch
from hopstream.partition.book import Owner
from hopstream.schema import EdgeType, FeatureSchema
from hopstream.store.contract import FetchRequest, SampleRequest, Store
from hopstream.store.facts import StoreFacts
from hopstream.store.requests import (
    Piece,
    RowCost,
    check_fetch_request,
    check_keys,
    check_sample_request,
    check_split,
    column_feature,
    cut_pieces,
)
from hopstream.store.settings import ServerLimits
from hopstream.store.wire import (
    MAX_FRAME_BYTES,
    ArraySpec,
    Bytes,
    Frame,
    encode_frame,
    owner_from_json,
    reserve_frame,
)

ID_DTYPES = ("uint32", "int64")
MAX_REQUESTS = 1 << 14
FEW_NEIGHBORS = 64
"""Up to this count an answer is taken to be full; above it, degrees tell how large it will be."""
FIRST_RAGGED_BYTES = 256
"""What a ragged row is taken to weigh before any has been seen."""

RequestT = TypeVar("RequestT", SampleRequest, FetchRequest)
Operation = Callable[[Frame], Iterator[Bytes]]
"""Answers a request's frame with frames."""


class StoreAnswers:
    """Answers what clients ask of a store."""

    def __init__(self, store: Store, limits: ServerLimits, facts: StoreFacts) -> None:
        """Answer for ``store`` within ``limits``."""
        self._store = store
        self._limits = limits
        self._facts = facts
        self._operations: Mapping[str, Operation] = {
            "hello": self._hello,
            "sample": self._sample,
            "fetch": self._fetch,
            "lookup": self._lookup,
            "split": self._split,
            "degrees": self._degrees,
        }

    def answer(self, frame: Frame, more: Mapping[str, Operation]) -> Iterator[Bytes]:
        """The frames of an answer.

        Args:
            frame: The request.
            more: Operations beside the store's own, by name.

        Raises:
            FormatError: The request makes no sense.
            VersionMismatch: The request is for another dataset.
            SettingsError: The request is over a limit.
            HopstreamError: Whatever the store raises.
        """
        name = frame.text("op")
        operation = self._operations.get(name) or more.get(name)
        if operation is None:
            raise FormatError(f"unknown operation {name[:50]!r}; known: {[*self._operations, *more]}")
        if name != "hello" and frame.text("dataset") != self._store.dataset_id:
            raise VersionMismatch(
                f"the server serves dataset {self._store.dataset_id}; the request is for "
                f"{frame.text('dataset')[:100]}; open the store again"
            )
        return self._bounded(operation(frame))

    def _bounded(self, frames: Iterator[Bytes]) -> Iterator[Bytes]:
        """Stop an answer whose size could not be told beforehand."""
        num_bytes = 0
        for frame in frames:
            if len(frame) > MAX_FRAME_BYTES:
                raise SettingsError(
                    f"one row of the answer has {len(frame)} bytes; a frame has {MAX_FRAME_BYTES} at most"
                )
            num_bytes += len(frame)
            self._check_reply_bytes(num_bytes)
            yield frame

    def _hello(self, _: Frame) -> Iterator[Bytes]:
        yield self._facts.to_frame()

    def _sample(self, frame: Frame) -> Iterator[Bytes]:
        requests = [self._sample_request(frame, record) for record in self._records(frame)]
        for request in requests:
            check_sample_request(self._store, request)
        costs = [self._sample_cost(request) for request in requests]
        self._check_reply_bytes(sum(cost.total for cost in costs))
        for pieces in cut_pieces(costs, self._limits.frame_bytes):
            replies = self._store.sample([_cut_ids(requests[p.request], p) for p in pieces])
            arrays: list[Array] = []
            for reply in replies:
                arrays += [reply.counts, reply.neighbor_ids]
                arrays += [] if reply.edge_ids is None else [reply.edge_ids]
            yield encode_frame(_pieces_header(pieces), arrays)

    def _sample_cost(self, request: SampleRequest) -> RowCost:
        num_ids = len(request.ids)
        edge_bytes = 16 if request.wants_edge_ids else 8
        if request.count >= 0 and (request.is_replacing or request.count <= FEW_NEIGHBORS):
            return RowCost(num_ids, 4 + request.count * edge_bytes)
        degrees = self._store.degrees(request.edge_type, request.direction, request.ids.astype(np.int64))
        num_drawn = degrees if request.count < 0 else np.minimum(degrees, request.count)
        return RowCost(num_ids, 0, offsets_of(num_drawn * edge_bytes + 4))

    def _fetch(self, frame: Frame) -> Iterator[Bytes]:
        requests = [self._fetch_request(frame, record) for record in self._records(frame)]
        for request in requests:
            check_fetch_request(self._store, request)
        features = [[column_feature(self._store, r.owner, name) for name in r.names] for r in requests]
        costs = [RowCost(len(r.ids), _row_bytes(fs)) for r, fs in zip(requests, features, strict=True)]
        self._check_reply_bytes(sum(cost.total for cost in costs))
        is_fixed = [all(feature.is_fixed_width for feature in fs) for fs in features]
        for pieces in cut_pieces(costs, self._limits.frame_bytes):
            cut = [_cut_ids(requests[p.request], p) for p in pieces]
            if all(is_fixed[p.request] for p in pieces):
                yield self._gather_in_place(pieces, cut, features)
                continue
            arrays: list[Array] = []
            for piece, columns in zip(pieces, self._store.fetch(cut), strict=True):
                found = _column_arrays(columns, requests[piece.request].names)
                costs[piece.request].row_bytes = max(1.0, sum(a.nbytes for a in found) / piece.num_rows)
                arrays += found
            yield encode_frame(_pieces_header(pieces), arrays)

    def _gather_in_place(
        self, pieces: list[Piece], cut: Sequence[FetchRequest], features: list[list[FeatureSchema]]
    ) -> Bytes:
        """Let the store write rows of fixed width straight into the frame that will be sent."""
        specs: list[ArraySpec] = [
            (f.numpy_dtype, (piece.num_rows, *f.shape)) for piece in pieces for f in features[piece.request]
        ]
        frame, targets = reserve_frame(_pieces_header(pieces), specs)
        rest = iter(targets)
        self._store.fetch([replace(request, out={name: next(rest) for name in request.names}) for request in cut])
        return frame

    def _lookup(self, frame: Frame) -> Iterator[Bytes]:
        node_type, keys = frame.text("node_type"), self._ids(frame, 0)
        check_keys(self._store, node_type, keys)
        return self._answer_rows(keys, lambda some: self._store.lookup(node_type, some))

    def _degrees(self, frame: Frame) -> Iterator[Bytes]:
        edge_type, direction = _edge_owner(frame.header)
        request = SampleRequest(edge_type=edge_type, direction=direction, ids=self._ids(frame, 0), count=0)
        check_sample_request(self._store, request)
        return self._answer_rows(request.ids, lambda some: self._store.degrees(edge_type, direction, some))

    def _answer_rows(self, ids: IntArray, work: Callable[[IntArray], IntArray]) -> Iterator[Bytes]:
        for pieces in cut_pieces([RowCost(len(ids), 8)], self._limits.frame_bytes):
            piece = pieces[0]
            some = ids[piece.start : piece.start + piece.num_rows].astype(np.int64)
            yield encode_frame(_pieces_header(pieces), [work(some)])

    def _split(self, frame: Frame) -> Iterator[Bytes]:
        node_type, name = frame.text("node_type"), frame.text("name")
        check_split(self._store, node_type, name)
        keys = self._store.split(node_type, name)
        yield encode_frame({"num_keys": len(keys)})
        for pieces in cut_pieces([RowCost(len(keys), 8)], self._limits.frame_bytes):
            piece = pieces[0]
            yield encode_frame(_pieces_header(pieces), [keys[piece.start : piece.start + piece.num_rows]])

    def _records(self, frame: Frame) -> list[dict[str, Any]]:
        records = frame.records("requests")
        if len(records) > MAX_REQUESTS:
            raise SettingsError(f"{len(records)} requests in one frame; this server takes {MAX_REQUESTS}")
        named = [record.get("ids") for record in records]
        num_ids = sum(len(frame.array(index, ID_DTYPES)) for index in named)
        if num_ids > self._limits.max_ids:
            raise SettingsError(f"{num_ids} ids in one request; this server takes {self._limits.max_ids}")
        return records

    def _ids(self, frame: Frame, index: object) -> IntArray:
        ids = frame.array(index, ID_DTYPES)
        if len(ids) > self._limits.max_ids:
            raise SettingsError(f"{len(ids)} ids in one request; this server takes {self._limits.max_ids}")
        return ids

    def _check_reply_bytes(self, num_bytes: float) -> None:
        limit = self._limits.max_reply_bytes
        if num_bytes > limit:
            raise SettingsError(
                f"the answer has {num_bytes:.0f} bytes or more; this server sends {limit}; ask for less"
            )

    def _sample_request(self, frame: Frame, record: dict[str, Any]) -> SampleRequest:
        edge_type, direction = _edge_owner(record)
        return SampleRequest(
            edge_type=edge_type,
            direction=direction,
            ids=frame.array(record.get("ids"), ID_DTYPES),
            count=_integer(record, "count", -1, (1 << 31) - 1),
            is_replacing=record.get("is_replacing") is True,
            rng_seed=_integer(record, "rng_seed", 0, (1 << 64) - 1),
            wants_edge_ids=record.get("wants_edge_ids") is True,
        )

    def _fetch_request(self, frame: Frame, record: dict[str, Any]) -> FetchRequest:
        names = record.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"'names' must be a list of strings, got {str(names)[:100]}")
        if len(set(names)) < len(names):
            raise FormatError(f"'names' holds a name twice: {str(names)[:100]}")
        ids = frame.array(record.get("ids"), ID_DTYPES)
        return FetchRequest(owner=owner_from_json(record.get("owner")), names=tuple(names), ids=ids)


def warm_up(store: Store) -> None:
    """Do a little of everything, so that no client waits while kernels are compiled or loaded."""
    none = np.empty(0, np.int64)
    for node_type in store.book.node_offsets:
        store.lookup(node_type, none)
    store.sample([SampleRequest(edge_type=e, direction=d, ids=none, count=1) for e, d in store.book.edge_offsets])
    owners: list[Owner] = [*store.book.node_offsets, *store.book.edge_offsets]
    for owner in owners:
        first, stop = (int(bound) for bound in store.book.offsets(owner)[store.parts[0] : store.parts[0] + 2])
        features = store.schema.nodes[owner] if isinstance(owner, str) else store.schema.edges[owner[0]]
        row = np.arange(first, min(stop, first + 1), dtype=np.int64)
        store.fetch([FetchRequest(owner=owner, names=tuple(features), ids=row)])


def _cut_ids(request: RequestT, piece: Piece) -> RequestT:
    return replace(request, ids=request.ids[piece.start : piece.start + piece.num_rows].astype(np.int64))


def _pieces_header(pieces: Sequence[Piece]) -> dict[str, Any]:
    return {"pieces": [[piece.request, piece.start, piece.num_rows] for piece in pieces]}


def _row_bytes(features: Sequence[FeatureSchema]) -> float:
    return sum(feature.row_bytes if feature.is_fixed_width else FIRST_RAGGED_BYTES for feature in features)


def _column_arrays(columns: Mapping[str, Column], names: Sequence[str]) -> list[Array]:
    """One array per column of fixed width; lengths and values per ragged column."""
    arrays: list[Array] = []
    for name in names:
        column = columns[name]
        arrays += [np.diff(column.offsets), column.values] if isinstance(column, RaggedArray) else [column]
    return arrays


def _edge_owner(record: Mapping[str, Any]) -> tuple[EdgeType, Any]:
    owner = owner_from_json(record.get("owner"))
    if isinstance(owner, str):
        raise FormatError(f"'owner' is node type {owner[:100]!r}; it must be an edge type with a direction")
    return owner


def _integer(record: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise FormatError(f"{name!r} is {str(value)[:100]}; it must be an integer from {low} to {high}")
    return value
