"""Asks a store on another machine.

Calls are made in a few threads of the store, which read the answer as it comes: the transport cannot end a call that
the server has not begun to answer, but who waits for such a thread can be let go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from hopstream.arrays import Column, IntArray
from hopstream.dataset.book import ends_of, entity_label
from hopstream.errors import HopstreamError, StoreTimeout, StoreUnavailable
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store.connection import Connection, FrameReader
from hopstream.store.contract import KEY, FetchRequest, Links, Pending, SampleReply, SampleRequest, Store
from hopstream.store.facts import StoreFacts
from hopstream.store.replies import FetchReader, PieceReader, RowsReader, SampleReader, SplitReader
from hopstream.store.requests import (
    check_edge_split,
    check_entity,
    check_fetch_request,
    check_find_edges,
    check_keys,
    check_links,
    check_sample_request,
    check_split,
    has_own_times,
    id_dtype,
)
from hopstream.store.sample_frames import sample_calls, write_samples
from hopstream.store.security import Location
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import Piece, RowCost, cut_pieces, encode_frame, entity_to_json

T = TypeVar("T")
MAX_THREADS = 64
"""Requests of one store that can be under way at once; threads are started as they are needed."""
SLACK_S = 5.0
"""How much later than the transport's deadline a waiting thread gives up."""


class _Submitted(Generic[T]):
    """An answer that a thread of the store is waiting for."""

    def __init__(self, future: Future[T], timeout_s: float, where: str, describe: Callable[[], str]) -> None:
        self._future = future
        self._ends = time.monotonic() + timeout_s + SLACK_S
        self._timeout_s = timeout_s
        self._where = where
        self._describe = describe

    def result(self) -> T:
        try:
            return self._future.result(max(0.0, self._ends - time.monotonic()))
        except TimeoutError as error:
            if isinstance(error, HopstreamError):
                raise
            raise StoreTimeout(
                f"{self._where} gave no answer in {self._timeout_s:.3g} s to {self._describe()}"
            ) from error


class RemoteStore(Store):
    """Asks one server. Safe to use from many threads."""

    def __init__(
        self, location: str, settings: StoreSettings | None = None, *, facts: StoreFacts | None = None
    ) -> None:
        """Connect and ask what the server serves.

        Args:
            location: ``grpc://host:port`` or ``grpc+tls://host:port``.
            settings: Deadline and security.
            facts: What the server serves, where that is known already; then it is not asked.

        Raises:
            StoreTimeout: The server gave no answer in time.
            StoreUnavailable: The server cannot be reached.
            AccessDenied: The server refused the token or certificate, or the token would be sent in the clear.
            VersionMismatch: The server speaks another version of the protocol.
        """
        settings = settings or StoreSettings()
        self.timeout_s = settings.timeout_s
        self._connection = Connection(Location.parse(location), settings)
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"hopstream {location}")
        self._is_inside = False
        self._is_patient = True
        self._lock = threading.Lock()
        self._waited_for: set[Future[Any]] = set()
        try:
            hello = encode_frame({"op": "hello"})
            self.facts = facts or StoreFacts.from_frame(self._connection.ask(hello, settings.timeout_s, "hello()"))
        except BaseException:
            self.close()
            raise
        self.take_facts(self.facts)
        self.parts = self.facts.parts
        self._connection.name = f"{parts_label(self.parts)} at {self._connection.location}"

    @property
    def location(self) -> str:
        """Where the server is."""
        return str(self._connection.location)

    @property
    def label(self) -> str:
        """The store as messages name it, with its parts."""
        return self._connection.name

    def with_timeout(self, timeout_s: float, *, is_patient: bool = True) -> RemoteStore:
        """The same store and connection with another deadline; see ``Connection.call`` for ``is_patient``."""
        store = self._view()
        store.timeout_s, store._is_patient = timeout_s, is_patient
        return store

    def start(self, work: Callable[[RemoteStore], T], describe: Callable[[], str]) -> Pending[T]:
        """Let a thread of this store do something that asks it.

        Args:
            work: What to do with this store, as seen from its own thread; it must ask once, within the deadline.
            describe: Gives the operation as messages name it.

        Raises:
            StateError: The process was forked since the store was opened.
        """
        self._connection.check_process()
        inside = self._view()
        inside._is_inside = True
        answer: Future[T] = Future()
        answer.add_done_callback(self._forget)
        with self._lock:
            self._waited_for.add(answer)
        try:
            self._pool.submit(_settle, answer, partial(work, inside))
        except RuntimeError:  # the pool takes no more work after it was shut down
            self._let_go(answer)
        return _Submitted(answer, self.timeout_s, self.label, describe)

    def _view(self) -> RemoteStore:
        """The same store and connection, with attributes that may differ."""
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        return view

    def _let_go(self, answer: Future[Any]) -> None:
        """Tell who waits for an answer that it will not come."""
        with suppress(InvalidStateError):
            answer.set_exception(StoreUnavailable(f"{self.label} will not answer; the store is closed"))

    def _forget(self, answer: Future[Any]) -> None:
        with self._lock:
            self._waited_for.discard(answer)

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Start drawing neighbours; see ``Store.sample``."""
        return self.start(lambda inside: inside.sample(requests), lambda: describe_sample(requests))

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Start reading columns; see ``Store.fetch``."""
        return self.start(lambda inside: inside.fetch(requests), lambda: describe_fetch(requests))

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleReply]:
        """Draw neighbours; see ``Store.sample``."""
        for request in requests:
            check_sample_request(self, request)
        reader = SampleReader(self, requests)
        ends = time.monotonic() + self.timeout_s
        for pieces, cut in sample_calls(requests, self.facts.max_ids):
            reader.expect(pieces)
            records, arrays = write_samples(cut, self.book)
            self._call("sample", {"requests": records}, arrays, describe_sample(requests), (reader, ends))
        return reader.result()

    def fetch(self, requests: Sequence[FetchRequest]) -> list[dict[str, Column]]:
        """Read columns; see ``Store.fetch``."""
        for request in requests:
            check_fetch_request(self, request)
        reader = FetchReader(self, requests)
        ends = time.monotonic() + self.timeout_s
        for pieces in self._calls([len(request.ids) if request.names else 0 for request in requests]):
            reader.expect(pieces)
            asked = [requests[piece.request] for piece in pieces]
            header = {
                "requests": [
                    {"owner": entity_to_json(request.entity), "names": request.names, "ids": row}
                    for row, request in enumerate(asked)
                ]
            }
            ids = [
                self._wire_ids(request.ids, piece, self.book.num_ids(request.entity))
                for request, piece in zip(asked, pieces, strict=True)
            ]
            self._call("fetch", header, ids, describe_fetch(requests), (reader, ends))
        return reader.result()

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Ids of nodes given by key; see ``Store.lookup``."""
        keys = np.asarray(keys, np.int64)
        check_keys(self, node_type, keys)
        num_nodes = self.book.num_ids(node_type)
        what = f"lookup({node_type}, {len(keys)} keys)"
        return self._ask_rows("lookup", {"node_type": node_type}, keys, (num_nodes, num_nodes), what)

    def split(self, node_type: str, name: str) -> IntArray:
        """Keys of a split; see ``Store.split``."""
        check_split(self, node_type, name)
        header = {"node_type": node_type, "name": name}
        return self._ask_split("split", header, self.book.num_ids(node_type), f"split({node_type}, {name})")

    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """Edge keys of a split; see ``Store.edge_split``."""
        check_edge_split(self, edge_type, name)
        header, what = {"edge_type": edge_type, "name": name}, f"edge_split({type_label(edge_type)}, {name})"
        return self._ask_split("edge_split", header, self.book.num_edges(edge_type), what)

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Edges of each id; see ``Store.degrees``."""
        ids = np.asarray(ids, np.int64)
        entity = (edge_type, direction)
        check_entity(self, entity)
        near = ends_of(*entity)[0]
        self.book.check_ids(near, ids)
        what = f"degrees({entity_label(entity)}, {len(ids)} ids)"
        limits = (self.book.num_ids(near), self.book.num_ids(entity) + 1)
        return self._ask_rows("degrees", {"owner": entity_to_json(entity)}, ids, limits, what)

    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Ids of edges between pairs of nodes; see ``Store.find_edges``."""
        ids, neighbor_ids = np.asarray(ids, np.int64), np.asarray(neighbor_ids, np.int64)
        check_find_edges(self, edge_type, direction, ids, neighbor_ids)
        entity = (edge_type, direction)
        near, far = (self.book.num_ids(node_type) for node_type in ends_of(*entity))
        reader = RowsReader(len(ids), self.book.num_ids(entity), first=-1)
        what = f"find_edges({entity_label(entity)}, {len(ids)} pairs)"
        self._ask_calls(
            "find_edges", {"owner": entity_to_json(entity)}, [(ids, near), (neighbor_ids, far)], what, reader
        )
        return reader.result()[0]

    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Ends and times of edges given by key; see ``Store.links``."""
        edge_keys = np.asarray(edge_keys, np.int64)
        check_links(self, edge_type, edge_keys)
        limits = [self.book.num_ids(edge_type[0]), self.book.num_ids(edge_type[2])]
        reader = RowsReader(len(edge_keys), *limits, *[None] * has_own_times(self, edge_type), what="node")
        what = f"links({type_label(edge_type)}, {len(edge_keys)} edges)"
        keys = (edge_keys, self.book.num_edges(edge_type))
        self._ask_calls("links", {"edge_type": edge_type}, [keys], what, reader)
        return Links.of(reader.result())

    def close(self) -> None:
        """End calls under way, let go who waits for one, and disconnect; a second call does nothing.

        Safe to call while other threads are inside. It takes milliseconds, and no array of a caller is written after
        it; only a thread of the store that waits for a server which says nothing ends later, at the call's deadline.
        In a process that was forked since the store was opened it does nothing.
        """
        if self._connection.is_foreign:
            return
        is_idle = self._connection.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            answers = list(self._waited_for)
        for answer in answers:
            self._let_go(answer)
        self._pool.shutdown(wait=is_idle)

    def _ask_split(self, op: str, header: dict[str, Any], num_keys: int, what: str) -> IntArray:
        """Ask for ascending keys below ``num_keys``."""
        reader = SplitReader(num_keys)
        self._call(op, header, [], what, (reader, time.monotonic() + self.timeout_s))
        return reader.result()

    def _ask_rows(self, op: str, header: dict[str, Any], ids: IntArray, limits: tuple[int, int], what: str) -> IntArray:
        """Ask for one int64 per id; ``limits`` are those of the ids and of the answers."""
        reader = RowsReader(len(ids), limits[1])
        self._ask_calls(op, header, [(ids, limits[0])], what, reader)
        return reader.result()[0]

    def _ask_calls(
        self,
        op: str,
        header: dict[str, Any],
        columns: Sequence[tuple[IntArray, int]],
        what: str,
        reader: PieceReader,
    ) -> None:
        """Ask for rows that are named by columns of ids, each with how many of its ids there are."""
        ends = time.monotonic() + self.timeout_s
        for pieces in self._calls([len(columns[0][0])]):
            reader.expect(pieces)
            arrays = [self._wire_ids(ids, pieces[0], num_ids) for ids, num_ids in columns]
            self._call(op, header, arrays, what, (reader, ends))

    def _calls(self, num_ids: Sequence[int]) -> list[list[Piece]]:
        """Cut requests into as many calls as the server's limit needs; no ids, no call."""
        return list(cut_pieces([RowCost(n, 1) for n in num_ids], self.facts.max_ids))

    def _wire_ids(self, ids: IntArray, piece: Piece, num_ids: int) -> IntArray:
        return ids[piece.rows].astype(id_dtype(num_ids), copy=False)

    def _call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[IntArray],
        what: str,
        answer: tuple[FrameReader, float],
    ) -> None:
        """Make one call of a request; ``answer`` is who takes the frames, and when all calls must have ended."""
        reader, ends = answer
        request = encode_frame({"op": op, "dataset": self.dataset_id, **header}, arrays)
        left_s, is_patient = max(1e-3, ends - time.monotonic()), self._is_patient

        def call(store: RemoteStore) -> None:
            store._connection.call(request, left_s, what, reader, is_patient=is_patient)

        try:
            if self._is_inside:
                call(self)
            else:
                self.start(call, lambda: what).result()
        except StoreTimeout as error:
            raise StoreTimeout(f"{self.label} gave no answer in {self.timeout_s:.3g} s to {what}") from error


def _settle(answer: Future[T], work: Callable[[], T]) -> None:
    """Do work and hand its outcome to who waits for it, unless they have been let go."""
    try:
        result = work()
    except BaseException as error:
        with suppress(InvalidStateError):
            answer.set_exception(error)
    else:
        with suppress(InvalidStateError):
            answer.set_result(result)


def parts_label(parts: Sequence[int]) -> str:
    """Parts as messages name them: ``part 2``, ``parts 0, 1`` or ``parts 0..63 (64)``."""
    if len(parts) == 1:
        return f"part {parts[0]}"
    return f"parts {', '.join(map(str, parts))}" if len(parts) <= 8 else f"parts {parts[0]}..{parts[-1]} ({len(parts)})"


def describe_sample(requests: Sequence[SampleRequest]) -> str:
    """A sample operation as messages name it."""
    labels = [f"{entity_label((r.edge_type, r.direction))}, {len(r.ids)} ids" for r in requests[:3]]
    return f"sample({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def describe_fetch(requests: Sequence[FetchRequest]) -> str:
    """A fetch operation as messages name it."""
    labels = [f"{entity_label(r.entity)} {_names_label(r.names)}, {len(r.ids)} rows" for r in requests[:3]]
    return f"fetch({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def _names_label(names: Sequence[str]) -> str:
    shown = ["key" if name == KEY else repr(name) for name in names[:3]]
    return ", ".join([*shown, "…"] if len(names) > 3 else shown)
