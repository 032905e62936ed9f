"""Answers of a store server: one request in, a stream of frames out.

A frame has about ``frame_bytes``, and one of features ``ROWS_FACTOR`` times as many while there is room. It holds
pieces: ranges of rows of the requests, each with its start position. The server gathers the next frame only after it
has passed on the last one. So its memory does not grow with the answer, and gathering overlaps sending. The server
computes the bytes of every row before it gathers any: it splits the edges of a node with very many edges into ranges,
and refuses any other row that is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.buffers import BufferPool
from hopstream.dataset.book import Entity, ends_of
from hopstream.errors import AccessDenied, FormatError, SettingsError, VersionMismatch
from hopstream.schema import Direction, EdgeType, FeatureSchema
from hopstream.store.contract import MAX_COUNT, FetchRequest, SampleReply, SampleRequest
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
from hopstream.store.requests import (
    answers_ranges,
    check_edge_split,
    check_entity,
    check_fetch_request,
    check_find_edges,
    check_keys,
    check_links,
    check_sample_request,
    check_split,
    has_times,
)
from hopstream.store.sample_frames import ID_DTYPES, as_int64, cut_request, edge_entity, num_others, read_sample
from hopstream.store.settings import ServerLimits
from hopstream.store.wire import Piece, RowCost, cut_pieces, edge_type_from_json, entity_from_json, with_last
from hopstream.transport.calls import Call, identity_of
from hopstream.transport.messages import MAX_MESSAGE_BYTES, Frame
from hopstream.transport.tokens import Identity

MAX_REQUESTS = 1 << 14
ROW_BYTES = 4
"""Bytes of a row of an answer to ``sample``, without its neighbours."""
LENGTH_BYTES = 8
"""Bytes of a ragged row, without its elements."""
FEW_NEIGHBORS = 64
"""Up to this ``count`` the size of an answer is estimated as ``count`` edges per node, above it from degrees."""
FETCH_FIELDS = frozenset(("owner", "names", "ids"))
GATHER_FACTOR = 2
"""Memory of a frame while it is made, as a multiple of its size."""
ROWS_FACTOR = 4
"""Size of a frame of features in ``frame_bytes``, if most of the memory for answers is free at its start."""
IDLE_BYTES = 16 << 20
"""Most memory that is kept for the next frames."""
SEARCHED_EDGES = 16
"""Cost model: reading 16 edges takes at most as long as sending one byte."""


Operation = Callable[[Frame], Iterator[Frame]]
"""Function from a request to frames of the answer; the request of a client is a ``Call``."""
ADMIN_OPERATIONS = frozenset({"stats", "describe_channels"})
"""Operations that need admin rights, because their answers describe other clients."""


class StoreAnswers:
    """Operations of a store server."""

    def __init__(self, store: LocalStore, limits: ServerLimits, facts: StoreFacts) -> None:
        """Answer requests for ``store`` within ``limits``."""
        self._store = store
        self._limits = limits
        self._facts = facts
        self._buffers = BufferPool(IDLE_BYTES)
        self._operations: Mapping[str, Operation] = {
            "sample": self._sample,
            "fetch": self._fetch,
            "lookup": self._lookup,
            "split": self._split,
            "degrees": self._degrees,
            "find_edges": self._find_edges,
            "links": self._links,
            "edge_split": self._edge_split,
        }

    @property
    def names(self) -> frozenset[str]:
        """Names of the store's own operations."""
        return frozenset({"describe", *self._operations})

    def answer(self, frame: Frame, more: Mapping[str, Operation]) -> Iterator[Frame]:
        """Return an iterator over the frames of an answer.

        Args:
            frame: The request.
            more: Operations that the store does not have, by name.

        Raises:
            FormatError: The request is malformed or names an unknown operation.
            AccessDenied: The token lacks the rights that the operation needs.
            VersionMismatch: The request is for another dataset.
            SettingsError: The request exceeds a limit.
            HopstreamError: Any error that the store raises.
        """
        name = frame.text("op")
        identity = identity_of(frame)
        if name == "describe":
            return iter([self._facts.to_frame(has_path=identity.is_admin)])
        operation = self._operations.get(name)
        if operation is None and name not in more:
            if name == "init_sampling_backend":  # the first call of a RemoteGraph
                raise SettingsError(
                    "the server does not sample; start it with --cluster (or --sample if it serves all parts; in "
                    "Python with the operations of a SamplingService), or give the loader the cluster file, not a "
                    "RemoteGraph"
                )
            raise FormatError(f"unknown operation {name[:50]!r}; known: {['describe', *self._operations, *more]}")
        _check_rights(name, identity)
        is_for_any = operation is None and frame.header.get("dataset") is None
        if not is_for_any and frame.text("dataset") != self._store.dataset_id:
            raise VersionMismatch(
                f"the server serves dataset {self._store.dataset_id}; the request is for "
                f"{frame.text('dataset')[:100]}; restart the server with that dataset, or open the store again"
            )
        return self._bounded((operation or more[name])(frame))

    def _bounded(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Pass frames on until the answer exceeds a limit; some operations cannot tell its size before."""
        num_bytes = 0
        for frame in frames:
            frame_bytes = frame.num_bytes
            if frame_bytes > MAX_MESSAGE_BYTES:
                raise SettingsError(
                    f"one row of the answer has {frame_bytes} bytes; a frame has {MAX_MESSAGE_BYTES} at most"
                )
            num_bytes += frame_bytes
            self._check_reply_bytes(num_bytes)
            yield frame

    def _sample(self, frame: Frame) -> Iterator[Frame]:
        requests = self._sample_requests(frame)
        for request in requests:
            check_sample_request(self._store, request)
        searched = [self._searched_by(request) for request in requests]
        self._check_searched(searched)
        costs = [self._sample_cost(request) for request in requests]
        self._check_costs(costs, frame)
        work = [_with_search(cost, weights) for cost, weights in zip(costs, searched, strict=True)]
        for pieces, is_last in with_last(cut_pieces(work, self._limits.frame_bytes)):
            cut = [as_int64(cut_request(requests[piece.request], piece)) for piece in pieces]
            run = pieces[0].run
            replies = [self._store.sample_run(cut[0], run.first, run.num)] if run else map(self._store.draw, cut)
            arrays = [array for reply in replies for array in _sample_arrays(reply, is_run=run is not None)]
            yield Frame(_pieces_header(pieces), arrays, is_last)

    def _sample_requests(self, frame: Frame) -> list[SampleRequest]:
        requests = [read_sample(frame, record) for record in self._records(frame)]
        num_brought = sum(map(num_others, requests))
        if num_brought > self._limits.max_ids:
            raise SettingsError(
                f"{num_brought} excluded pairs and candidates in one request; the maximum is {self._limits.max_ids}"
            )
        return requests

    def _sample_cost(self, request: SampleRequest) -> RowCost:
        """Return the bytes of each node's neighbours; a node whose edges are all drawn can be split anywhere."""
        num_ids = len(request.ids)
        edge_bytes = 8 * (1 + request.wants_edge_ids + request.wants_edge_keys)
        if 0 <= request.count <= FEW_NEIGHBORS:
            return RowCost(num_ids, ROW_BYTES + request.count * edge_bytes)
        num_drawn = self._store.num_drawn_bound(as_int64(request))
        is_cut = answers_ranges(request) and (request.count < 0 or request.count >= num_drawn.max(initial=0))
        if is_cut and request.count >= 0:  # count must cover all edges of every node
            most = self._store.num_drawn_bound(replace(as_int64(request), count=-1)).max(initial=0)
            is_cut = request.count >= most
        return RowCost(num_ids, 0, offsets_of(num_drawn * edge_bytes + ROW_BYTES), edge_bytes if is_cut else 0)

    def _searched_by(self, request: SampleRequest) -> IntArray | None:
        """Return ``_searched_bytes``, or None if the draw reads no more edges than it returns."""
        if request.strategy == "labor" or request.excluded is not None or request.candidates is not None:
            return self._searched_bytes(request.edge_type, request.direction, request.ids)
        steps = 0
        if request.strategy == "top_k" and request.times is not None:  # the heaviest edges may be after the time
            steps = (request.count if request.count >= 0 else MAX_COUNT).bit_length()
        elif request.strategy == "weighted" and request.count > FEW_NEIGHBORS and not request.is_replacing:
            steps = 1  # one pass over all edges
        if not steps:
            return None
        num_read = self._store.degrees_in_time(as_int64(request)) * steps // SEARCHED_EDGES
        return np.minimum(num_read, self._searched_bytes(request.edge_type, request.direction, request.ids))

    def _searched_bytes(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Return the cost of reading all edges of each id, int64[n], in bytes of an answer.

        Frames are split by this cost, too. So a frame takes bounded time even if it holds few edges, and the server
        notices after one frame that the client of a call has left.
        """
        return self._store.degrees(edge_type, direction, ids.astype(np.int64)) // SEARCHED_EDGES

    def _check_searched(self, searched: Sequence[IntArray | None]) -> None:
        num_bytes = sum(int(weights.sum()) for weights in searched if weights is not None)
        if num_bytes > self._limits.max_reply_bytes:
            raise SettingsError(
                f"answering would read at least {num_bytes * SEARCHED_EDGES} edges; this server reads at most "
                f"{self._limits.max_reply_bytes * SEARCHED_EDGES} per request; request fewer nodes at a time"
            )

    def _fetch(self, frame: Frame) -> Iterator[Frame]:
        requests = [self._fetch_request(frame, record) for record in self._records(frame)]
        features = [check_fetch_request(self._store, request) for request in requests]
        costs = [self._fetch_cost(r, fs) for r, fs in zip(requests, features, strict=True)]
        frame_bytes = self._check_costs(costs, frame, ROWS_FACTOR)
        readers = [
            self._store.reader(r, self._buffers) if all(f.is_fixed_width for f in fs.values()) else None
            for r, fs in zip(requests, features, strict=True)
        ]
        for pieces, is_last in with_last(cut_pieces(costs, frame_bytes)):
            arrays: list[Array] = []
            for piece in pieces:
                request, read = requests[piece.request], readers[piece.request]
                if read is not None:
                    arrays += read(piece.rows)
                    continue
                cut = replace(request, ids=request.ids[piece.rows].astype(np.int64))
                arrays += _column_arrays(self._store.fetch([cut])[0], request.names)
            yield Frame(_pieces_header(pieces), arrays, is_last)

    def _fetch_cost(self, request: FetchRequest, features: Mapping[str, FeatureSchema]) -> RowCost:
        """Return the bytes of each row; lengths of ragged rows are computed from offsets, without values."""
        row_bytes = sum(feature.row_bytes for feature in features.values() if feature.is_fixed_width)
        ragged = [(name, feature) for name, feature in features.items() if not feature.is_fixed_width]
        if not ragged:
            return RowCost(len(request.ids), row_bytes)
        weights = np.full(len(request.ids), row_bytes, np.int64)
        for name, feature in ragged:
            lengths = self._store.row_lengths(request.entity, name, request.ids)
            weights += lengths * feature.row_bytes + LENGTH_BYTES
        return RowCost(len(request.ids), 0, offsets_of(weights))

    def _lookup(self, frame: Frame) -> Iterator[Frame]:
        node_type, keys = frame.text("node_type"), self._ids(frame, 0)
        check_keys(self._store, node_type, keys)
        return self._answer_rows(keys, lambda some: self._store.lookup(node_type, some))

    def _degrees(self, frame: Frame) -> Iterator[Frame]:
        edge_type, direction = edge_entity(frame.header)
        ids = self._ids(frame, 0)
        check_entity(self._store, (edge_type, direction))
        self._store.book.check_ids(ends_of(edge_type, direction)[0], ids)
        return self._answer_rows(ids, lambda some: self._store.degrees(edge_type, direction, some))

    def _find_edges(self, frame: Frame) -> Iterator[Frame]:
        edge_type, direction = edge_entity(frame.header)
        ids, neighbor_ids = self._ids(frame, 0), self._ids(frame, 1)
        check_find_edges(self._store, edge_type, direction, ids, neighbor_ids)
        searched = self._searched_bytes(edge_type, direction, ids)
        self._check_searched([searched])
        cost = RowCost(len(ids), 0, offsets_of(8 + searched))
        for pieces, is_last in with_last(cut_pieces([cost], self._limits.frame_bytes)):
            some, neighbors = (of[pieces[0].rows].astype(np.int64) for of in (ids, neighbor_ids))
            found = self._store.find_edges(edge_type, direction, some, neighbors)
            yield Frame(_pieces_header(pieces), [found], is_last)

    def _links(self, frame: Frame) -> Iterator[Frame]:
        edge_type, edge_keys = edge_type_from_json(frame.header.get("edge_type")), self._ids(frame, 0)
        check_links(self._store, edge_type, edge_keys)
        for pieces, is_last in with_last(cut_pieces([RowCost(len(edge_keys), 24)], self._limits.frame_bytes)):
            some = edge_keys[pieces[0].rows].astype(np.int64)
            yield Frame(_pieces_header(pieces), self._store.links(edge_type, some).columns(), is_last)

    def _answer_rows(self, ids: IntArray, work: Callable[[IntArray], IntArray]) -> Iterator[Frame]:
        for pieces, is_last in with_last(cut_pieces([RowCost(len(ids), 8)], self._limits.frame_bytes)):
            yield Frame(_pieces_header(pieces), [work(ids[pieces[0].rows].astype(np.int64))], is_last)

    def _split(self, frame: Frame) -> Iterator[Frame]:
        node_type, name = frame.text("node_type"), frame.text("name")
        check_split(self._store, node_type, name)
        return self._answer_runs(self._store.split_runs(node_type, name))

    def _edge_split(self, frame: Frame) -> Iterator[Frame]:
        edge_type, name = edge_type_from_json(frame.header.get("edge_type")), frame.text("name")
        check_edge_split(self._store, edge_type, name)
        return self._answer_runs(self._store.edge_split_runs(edge_type, name))

    def _answer_runs(self, runs: Sequence[IntArray]) -> Iterator[Frame]:
        yield Frame({"num_keys": sum(len(run) for run in runs)})
        done = 0
        for run in runs:
            for (piece,) in cut_pieces([RowCost(len(run), 8)], self._limits.frame_bytes):
                yield Frame(_pieces_header([replace(piece, start=done + piece.start)]), [run[piece.rows]])
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

    def _check_costs(self, costs: Sequence[RowCost], frame: Frame, factor: int = 1) -> int:
        """Refuse an answer or a row that is too large before anything is gathered; reserve memory for a frame.

        Args:
            costs: Bytes of the rows of each request.
            frame: The request.
            factor: Size of a frame, as a multiple of ``frame_bytes``, if most memory is free.

        Returns:
            Bytes of a frame.
        """
        num_bytes = sum(cost.total for cost in costs)
        self._check_reply_bytes(num_bytes)
        heaviest = max((cost.heaviest for cost in costs if not cost.element_bytes), default=0)
        if heaviest > self._limits.max_row_bytes:
            raise SettingsError(
                f"one row of the answer has up to {heaviest:.0f} bytes; this server sends at most "
                f"{self._limits.max_row_bytes} (max_row_bytes); draw fewer neighbours per node, or all of them with "
                "count -1 and neither excluded pairs nor candidates nor weights, or serve the parts with larger "
                "max_row_bytes, or open the dataset's folder itself"
            )
        frame_bytes = self._limits.frame_bytes
        if not isinstance(frame, Call):
            return frame_bytes
        most = [min(num_bytes, max(heaviest, times * frame_bytes)) for times in (1, factor)]
        if factor > 1 and frame.reserve_spare(int(GATHER_FACTOR * most[1])):
            return factor * frame_bytes
        frame.reserve(int(GATHER_FACTOR * most[0]))
        return frame_bytes

    def _check_reply_bytes(self, num_bytes: float) -> None:
        limit = self._limits.max_reply_bytes
        if num_bytes > limit:
            raise SettingsError(
                f"the answer has {num_bytes:.0f} bytes or more; this server sends at most {limit}; request less"
            )

    def _fetch_request(self, frame: Frame, record: dict[str, Any]) -> FetchRequest:
        if unknown := sorted(record.keys() - FETCH_FIELDS):
            raise FormatError(
                f"a request has the unknown fields {str(unknown)[:100]}; install one version on servers and clients"
            )
        names = record.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"'names' must be a list of strings, got {str(names)[:100]}")
        if len(set(names)) < len(names):
            raise FormatError(f"'names' holds a name twice: {str(names)[:100]}")
        ids = frame.array(record.get("ids"), ID_DTYPES)
        return FetchRequest(entity=entity_from_json(record.get("owner")), names=tuple(names), ids=ids)


def _check_rights(name: str, identity: Identity) -> None:
    if name in ADMIN_OPERATIONS and not identity.is_admin:
        raise AccessDenied(
            f"{name} needs admin rights, and the token of {identity.name!r} has {identity.rights} rights"
        )


def warm_up(store: LocalStore) -> None:
    """Run the most frequent requests once, so that clients do not wait for the compilation of kernels.

    Kernels of other strategies, and of draws with ``excluded`` or ``candidates``, are compiled when a client first
    needs them. This takes some seconds per kernel, and longer in total than the kernels compiled here.
    """
    none = np.empty(0, np.int64)
    for node_type in store.book.node_offsets:
        store.lookup(node_type, none)
    for edge_type, direction in store.book.edge_offsets:
        store.find_edges(edge_type, direction, none, none)
        requests = _warm_requests(store, SampleRequest(edge_type=edge_type, direction=direction, ids=none, count=1))
        # Servers that start together begin with different requests, so they compile different kernels in parallel.
        first = store.parts[0] % len(requests)
        for request in requests[first:] + requests[:first]:
            store.sample([request])
            store.num_drawn_bound(request)
    for edge_type in store.schema.edge_splits:
        store.links(edge_type, none)
    entities: list[Entity] = [*store.book.node_offsets, *store.book.edge_offsets]
    for entity in entities:
        first, stop = (int(bound) for bound in store.book.offsets(entity)[store.parts[0] : store.parts[0] + 2])
        features = store.schema.nodes[entity] if isinstance(entity, str) else store.schema.edges[entity[0]]
        row = np.arange(first, min(stop, first + 1), dtype=np.int64)
        store.fetch([FetchRequest(entity=entity, names=tuple(features), ids=row)])


def _warm_requests(store: LocalStore, request: SampleRequest) -> list[SampleRequest]:
    """Return uniform, temporal and weighted draws, as far as the dataset has times and weights."""
    requests = [request]
    if has_times(store, request):
        requests.append(replace(request, times=request.ids))
    if store.weight_attr in store.schema.edges[request.edge_type]:
        requests.append(replace(request, strategy="weighted"))
    return requests


def _with_search(cost: RowCost, searched: IntArray | None) -> RowCost:
    if searched is None or cost.element_bytes:
        return cost
    weights = cost.row_bytes if cost.offsets is None else np.diff(cost.offsets)
    return RowCost(cost.num_rows, 0, offsets_of(searched + np.asarray(weights, np.int64)))


def _pieces_header(pieces: Sequence[Piece]) -> dict[str, Any]:
    return {"pieces": [_piece_entry(piece) for piece in pieces]}


def _piece_entry(piece: Piece) -> list[int]:
    entry = [piece.request, piece.start, piece.num_rows]
    return entry if piece.run is None else [*entry, piece.run.first, piece.run.num, piece.run.total]


def _sample_arrays(reply: SampleReply, *, is_run: bool) -> list[Array]:
    counts: list[Array] = [] if is_run else [reply.counts]
    return [*counts, *reply.columns()]


def _column_arrays(columns: Mapping[str, Column], names: Sequence[str]) -> list[Array]:
    """Return one array per column of fixed width; lengths and values per ragged column."""
    arrays: list[Array] = []
    for name in names:
        column = columns[name]
        arrays += [np.diff(column.offsets), column.values] if isinstance(column, RaggedArray) else [column]
    return arrays
