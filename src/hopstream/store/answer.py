"""How does a server answer one request, frame by frame?

Every answer is a stream of frames of about ``frame_bytes``. A frame carries pieces: runs of rows of the requests, each
with the position at which it starts. The next frame is gathered only when the last one is on its way, so a server's
memory does not grow with the answer, and gathering overlaps sending. What every row weighs is known before any is
gathered: the edges of a node of very many are sent in runs, and any other row that is too heavy is refused.
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
from hopstream.store.contract import FetchRequest, SampleReply, SampleRequest
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
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
ROW_BYTES = 4
"""What a row of an answer to ``sample`` weighs beside its neighbours."""
LENGTH_BYTES = 8
"""What a ragged row weighs beside its elements."""
FEW_NEIGHBORS = 64
"""Up to this count an answer is taken to be full; above it, degrees tell how large it will be."""

RequestT = TypeVar("RequestT", SampleRequest, FetchRequest)
Operation = Callable[[Frame], Iterator[Bytes]]
"""Answers a request's frame with frames."""


class StoreAnswers:
    """Answers what clients ask of a store."""

    def __init__(self, store: LocalStore, limits: ServerLimits, facts: StoreFacts) -> None:
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
        self._check_costs(costs)
        for pieces in cut_pieces(costs, self._limits.frame_bytes):
            cut = [_cut_ids(requests[p.request], p) for p in pieces]
            run = pieces[0].run
            replies = self._store.sample(cut) if run is None else [self._store.sample_run(cut[0], run.first, run.num)]
            arrays: list[Array] = []
            for reply in replies:
                arrays += _sample_arrays(reply, is_run=run is not None)
            yield encode_frame(_pieces_header(pieces), arrays)

    def _sample_cost(self, request: SampleRequest) -> RowCost:
        """What each node's draws weigh. All edges of a node need no draws, so they can be cut anywhere."""
        num_ids = len(request.ids)
        edge_bytes = 16 if request.wants_edge_ids else 8
        if 0 <= request.count <= FEW_NEIGHBORS:
            return RowCost(num_ids, ROW_BYTES + request.count * edge_bytes)
        degrees = self._store.degrees(request.edge_type, request.direction, request.ids.astype(np.int64))
        wants_all = request.count < 0 or (not request.is_replacing and request.count >= degrees.max(initial=0))
        num_drawn = degrees
        if not wants_all:
            num_drawn = (
                np.where(degrees > 0, request.count, 0) if request.is_replacing else degrees.clip(max=request.count)
            )
        return RowCost(num_ids, 0, offsets_of(num_drawn * edge_bytes + ROW_BYTES), edge_bytes if wants_all else 0)

    def _fetch(self, frame: Frame) -> Iterator[Bytes]:
        requests = [self._fetch_request(frame, record) for record in self._records(frame)]
        for request in requests:
            check_fetch_request(self._store, request)
        features = [[column_feature(self._store, r.owner, name) for name in r.names] for r in requests]
        costs = [self._fetch_cost(r, fs) for r, fs in zip(requests, features, strict=True)]
        self._check_costs(costs)
        is_fixed = [all(feature.is_fixed_width for feature in fs) for fs in features]
        for pieces in cut_pieces(costs, self._limits.frame_bytes):
            cut = [_cut_ids(requests[p.request], p) for p in pieces]
            if all(is_fixed[p.request] for p in pieces):
                yield self._gather_in_place(pieces, cut, features)
                continue
            arrays: list[Array] = []
            for piece, columns in zip(pieces, self._store.fetch(cut), strict=True):
                arrays += _column_arrays(columns, requests[piece.request].names)
            yield encode_frame(_pieces_header(pieces), arrays)

    def _fetch_cost(self, request: FetchRequest, features: Sequence[FeatureSchema]) -> RowCost:
        """What each row weighs, with the lengths of ragged rows, which are told by their offsets alone."""
        row_bytes = sum(feature.row_bytes for feature in features if feature.is_fixed_width)
        ragged = [(n, f) for n, f in zip(request.names, features, strict=True) if not f.is_fixed_width]
        if not ragged:
            return RowCost(len(request.ids), row_bytes)
        weights = np.full(len(request.ids), row_bytes, np.int64)
        for name, feature in ragged:
            lengths = self._store.row_lengths(request.owner, name, request.ids)
            weights += lengths * feature.row_bytes + LENGTH_BYTES
        return RowCost(len(request.ids), 0, offsets_of(weights))

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
        runs = self._store.split_runs(node_type, name)
        yield encode_frame({"num_keys": sum(len(run) for run in runs)})
        done = 0
        for run in runs:
            for (piece,) in cut_pieces([RowCost(len(run), 8)], self._limits.frame_bytes):
                keys = run[piece.start : piece.start + piece.num_rows]
                yield encode_frame(_pieces_header([replace(piece, start=done + piece.start)]), [keys])
            done += len(run)

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

    def _check_costs(self, costs: Sequence[RowCost]) -> None:
        """Refuse an answer that is too large, or has a row that is, before anything is gathered."""
        self._check_reply_bytes(sum(cost.total for cost in costs))
        heaviest = max((cost.heaviest for cost in costs if not cost.element_bytes), default=0)
        if heaviest > self._limits.max_row_bytes:
            raise SettingsError(
                f"one row of the answer has up to {heaviest:.0f} bytes; this server sends {self._limits.max_row_bytes} "
                "(max_row_bytes); draw fewer neighbours per node, or all of them with count -1, or open the dataset's "
                "folder itself"
            )

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


def warm_up(store: LocalStore) -> None:
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
    return {"pieces": [_piece_entry(piece) for piece in pieces]}


def _piece_entry(piece: Piece) -> list[int]:
    entry = [piece.request, piece.start, piece.num_rows]
    return entry if piece.run is None else [*entry, piece.run.first, piece.run.num, piece.run.total]


def _sample_arrays(reply: SampleReply, *, is_run: bool) -> list[Array]:
    counts: list[Array] = [] if is_run else [reply.counts]
    return [*counts, reply.neighbor_ids, *([] if reply.edge_ids is None else [reply.edge_ids])]


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
