"""Remote store: sends requests to one server and reads its answers.

Every operation is a generator: the first step sends a request, the next steps read the answer. So a thread that needs
several stores sends all requests before it waits for an answer; no extra threads are needed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np

from hopstream.arrays import Column, IntArray
from hopstream.buffers import BufferPool
from hopstream.dataset.book import ends_of, entity_label, number_dtype
from hopstream.errors import StoreTimeout
from hopstream.schema import Direction, EdgeType, type_label
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
)
from hopstream.store.sample_frames import sample_calls, write_samples
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import Piece, RowCost, cut_pieces, entity_to_json
from hopstream.transport.connection import TIMEOUT_REMEDY, Connection
from hopstream.transport.link import Sink
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame

T = TypeVar("T")
IDLE_BYTES = 32 << 20
"""Most memory that is kept for the next answers."""
Steps = Generator[None, None, T]
"""Generator of an operation: yields after each request sent, returns the result."""


class _Started(Generic[T]):
    """Operation whose first request has been sent."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._error: Exception | None = None
        self._has_ended = False
        self._value: T | None = None
        try:
            self._go_on()
        except Exception as error:  # raised in result(), so that requests to other stores can start first
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        while not self._has_ended:
            self._go_on()
        return cast(T, self._value)

    def _go_on(self) -> None:
        try:
            next(self._steps)
        except StopIteration as stop:
            self._has_ended, self._value = True, stop.value


class RemoteStore(Store):
    """Store of the parts that one server serves. Safe to use from many threads."""

    def __init__(
        self, location: str, settings: StoreSettings | None = None, *, facts: StoreFacts | None = None
    ) -> None:
        """Connect, and ask which dataset and parts the server serves.

        Args:
            location: ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``.
            settings: Deadline and security.
            facts: The server's facts if they are known; then the server is not asked. Facts without parts mean that its
                parts are unknown until ``ask_facts``.

        Raises:
            StoreTimeout: The server did not answer in time.
            StoreUnavailable: The server is unreachable.
            AccessDenied: The server refused the token or certificate, or the token would be sent unencrypted.
            VersionMismatch: The server speaks another version of the protocol.
        """
        settings = settings or StoreSettings()
        self.timeout_s = settings.timeout_s
        self._connection = Connection(Location.parse(location), settings.security)
        self._is_patient, self._is_checked = True, False
        self._buffers = BufferPool(IDLE_BYTES)
        try:
            self.ask_facts(settings.timeout_s, facts)
        except BaseException:
            self.close()
            raise
        self.take_facts(self.facts)

    def ask_facts(self, timeout_s: float, facts: StoreFacts | None = None) -> None:
        """Ask the server for its parts and its limit on ids; it answers even if it serves another dataset.

        Raises:
            StoreTimeout: The server did not answer in time.
            StoreUnavailable: The server is unreachable.
        """
        location, describe = self._connection.location, Frame({"op": "describe"})
        self.facts = facts or StoreFacts.from_frame(self._connection.ask(describe, timeout_s, "describe()"))
        self.parts = self.facts.parts
        self._connection.name = f"{parts_label(self.parts)} at {location}" if self.parts else str(location)

    @property
    def location(self) -> str:
        """Address of the server."""
        return str(self._connection.location)

    @property
    def label(self) -> str:
        """Name of the store in messages, with its parts."""
        return self._connection.name

    def with_timeout(self, timeout_s: float, *, is_patient: bool = True, is_checked: bool = False) -> RemoteStore:
        """Return a store with another deadline that shares the connection.

        Args:
            timeout_s: Deadline in seconds.
            is_patient: See ``Connection.start``.
            is_checked: The caller has checked the requests; the server checks them in any case.
        """
        store = object.__new__(type(self))
        vars(store).update(vars(self))
        store.timeout_s, store._is_patient, store._is_checked = timeout_s, is_patient, is_checked
        return store

    def ping(self, timeout_s: float) -> None:
        """Wait until the server answers a ping.

        Raises:
            StoreTimeout: The server did not answer in time.
            StoreUnavailable: The server is unreachable.
            AccessDenied: The server refused the token or certificate.
        """
        self._connection.ping(timeout_s)

    def submit(self, operation: str, *arguments: Any) -> Pending[Any]:
        """Start an operation of this store, given by name.

        Raises:
            StateError: The process was forked since the store was opened.
        """
        self._connection.check_process()
        return _Started(getattr(self, f"_{operation}")(*arguments))

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Start drawing neighbours; see ``Store.sample``."""
        return self.submit("sample", requests)

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Start reading columns; see ``Store.fetch``."""
        return self.submit("fetch", requests)

    def _sample(self, requests: Sequence[SampleRequest]) -> Steps[list[SampleReply]]:
        for request in () if self._is_checked else requests:
            check_sample_request(self, request)
        reader = SampleReader(self, requests)
        ends = time.monotonic() + self.timeout_s
        for pieces, cut in sample_calls(requests, self.facts.max_ids):
            reader.expect(pieces)
            records, arrays = write_samples(cut, self.book)
            yield from self._call("sample", {"requests": records}, arrays, describe_sample(requests), (reader, ends))
        return reader.result()

    def _fetch(self, requests: Sequence[FetchRequest]) -> Steps[list[dict[str, Column]]]:
        for request in () if self._is_checked else requests:
            check_fetch_request(self, request)
        reader = FetchReader(self, requests, self._buffers)
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
            yield from self._call("fetch", header, ids, describe_fetch(requests), (reader, ends))
        return reader.result()

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the ids of nodes given by key; see ``Store.lookup``."""
        return cast(IntArray, self.submit("lookup", node_type, keys).result())

    def _lookup(self, node_type: str, keys: IntArray) -> Steps[IntArray]:
        keys = np.asarray(keys, np.int64)
        check_keys(self, node_type, keys)
        num_nodes = self.book.num_ids(node_type)
        what = f"lookup({node_type}, {len(keys)} keys)"
        return (yield from self._ask_rows("lookup", {"node_type": node_type}, keys, (num_nodes, num_nodes), what))

    def split(self, node_type: str, name: str) -> IntArray:
        """Return the keys of a split; see ``Store.split``."""
        return cast(IntArray, self.submit("split", node_type, name).result())

    def _split(self, node_type: str, name: str) -> Steps[IntArray]:
        check_split(self, node_type, name)
        header = {"node_type": node_type, "name": name}
        what = f"split({node_type}, {name})"
        return (yield from self._ask_split("split", header, self.book.num_ids(node_type), what))

    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """Return the edge keys of a split; see ``Store.edge_split``."""
        return cast(IntArray, self.submit("edge_split", edge_type, name).result())

    def _edge_split(self, edge_type: EdgeType, name: str) -> Steps[IntArray]:
        check_edge_split(self, edge_type, name)
        header, what = {"edge_type": edge_type, "name": name}, f"edge_split({type_label(edge_type)}, {name})"
        return (yield from self._ask_split("edge_split", header, self.book.num_edges(edge_type), what))

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Return the number of edges of each id; see ``Store.degrees``."""
        return cast(IntArray, self.submit("degrees", edge_type, direction, ids).result())

    def _degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> Steps[IntArray]:
        ids = np.asarray(ids, np.int64)
        entity = (edge_type, direction)
        check_entity(self, entity)
        near = ends_of(*entity)[0]
        self.book.check_ids(near, ids)
        what = f"degrees({entity_label(entity)}, {len(ids)} ids)"
        limits = (self.book.num_ids(near), self.book.num_ids(entity) + 1)
        return (yield from self._ask_rows("degrees", {"owner": entity_to_json(entity)}, ids, limits, what))

    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Return the ids of edges between pairs of nodes; see ``Store.find_edges``."""
        return cast(IntArray, self.submit("find_edges", edge_type, direction, ids, neighbor_ids).result())

    def _find_edges(
        self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray
    ) -> Steps[IntArray]:
        ids, neighbor_ids = np.asarray(ids, np.int64), np.asarray(neighbor_ids, np.int64)
        check_find_edges(self, edge_type, direction, ids, neighbor_ids)
        entity = (edge_type, direction)
        near, far = (self.book.num_ids(node_type) for node_type in ends_of(*entity))
        reader = RowsReader(len(ids), self.book.num_ids(entity), first=-1)
        what = f"find_edges({entity_label(entity)}, {len(ids)} pairs)"
        columns = [(ids, near), (neighbor_ids, far)]
        yield from self._ask_calls("find_edges", {"owner": entity_to_json(entity)}, columns, what, reader)
        return reader.result()[0]

    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Return end nodes and times of edges given by key; see ``Store.links``."""
        return cast(Links, self.submit("links", edge_type, edge_keys).result())

    def _links(self, edge_type: EdgeType, edge_keys: IntArray) -> Steps[Links]:
        edge_keys = np.asarray(edge_keys, np.int64)
        check_links(self, edge_type, edge_keys)
        limits = [self.book.num_ids(edge_type[0]), self.book.num_ids(edge_type[2])]
        reader = RowsReader(len(edge_keys), *limits, *[None] * has_own_times(self, edge_type), what="node")
        what = f"links({type_label(edge_type)}, {len(edge_keys)} edges)"
        keys = (edge_keys, self.book.num_edges(edge_type))
        yield from self._ask_calls("links", {"edge_type": edge_type}, [keys], what, reader)
        return Links.of(reader.result())

    def close(self) -> None:
        """End calls under way, wake their waiting threads, and disconnect; a second call does nothing.

        Safe to call while other threads use the store. It takes milliseconds. No array of a caller is written
        afterwards. In a forked process it does nothing.
        """
        self._connection.close()

    def _ask_split(self, op: str, header: dict[str, Any], num_keys: int, what: str) -> Steps[IntArray]:
        """Ask for ascending keys below ``num_keys``."""
        reader = SplitReader(num_keys)
        yield from self._call(op, header, [], what, (reader, time.monotonic() + self.timeout_s))
        return reader.result()

    def _ask_rows(
        self, op: str, header: dict[str, Any], ids: IntArray, limits: tuple[int, int], what: str
    ) -> Steps[IntArray]:
        """Ask for one int64 per id; ``limits`` are the upper bounds of the ids and of the answers."""
        reader = RowsReader(len(ids), limits[1])
        yield from self._ask_calls(op, header, [(ids, limits[0])], what, reader)
        return reader.result()[0]

    def _ask_calls(
        self,
        op: str,
        header: dict[str, Any],
        columns: Sequence[tuple[IntArray, int]],
        what: str,
        reader: PieceReader,
    ) -> Steps[None]:
        """Ask for rows given by columns of ids; each column comes with the upper bound of its ids."""
        ends = time.monotonic() + self.timeout_s
        for pieces in self._calls([len(columns[0][0])]):
            reader.expect(pieces)
            arrays = [self._wire_ids(ids, pieces[0], num_ids) for ids, num_ids in columns]
            yield from self._call(op, header, arrays, what, (reader, ends))

    def _calls(self, num_ids: Sequence[int]) -> list[list[Piece]]:
        """Split requests into calls that respect the server's limit on ids; without ids there is no call."""
        return list(cut_pieces([RowCost(n, 1) for n in num_ids], self.facts.max_ids))

    def _wire_ids(self, ids: IntArray, piece: Piece, num_ids: int) -> IntArray:
        return ids[piece.rows].astype(number_dtype(num_ids), copy=False)

    def _call(
        self, op: str, header: dict[str, Any], arrays: Sequence[IntArray], what: str, answer: tuple[Sink, float]
    ) -> Steps[None]:
        """Make one call of a request; ``answer`` is the sink of the frames and the deadline of all calls."""
        sink, ends = answer
        request = Frame({"op": op, "dataset": self.dataset_id, **header}, arrays)
        left_s = max(1e-3, ends - time.monotonic())
        under_way = self._connection.start(request, left_s, what, sink, is_patient=self._is_patient)
        yield
        try:
            under_way.result()
        except StoreTimeout as error:
            if left_s >= self.timeout_s:
                raise
            text = f"{self.label} gave no answer in {self.timeout_s:.3g} s to {what}; {TIMEOUT_REMEDY}"
            raise StoreTimeout(text) from error


def parts_label(parts: Sequence[int]) -> str:
    """Format parts for messages: ``part 2``, ``parts 0, 1`` or ``parts 0..63 (64)``."""
    if len(parts) == 1:
        return f"part {parts[0]}"
    return f"parts {', '.join(map(str, parts))}" if len(parts) <= 8 else f"parts {parts[0]}..{parts[-1]} ({len(parts)})"


def describe_sample(requests: Sequence[SampleRequest]) -> str:
    """Format a sample operation for messages."""
    labels = [f"{entity_label((r.edge_type, r.direction))}, {len(r.ids)} ids" for r in requests[:3]]
    return f"sample({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def describe_fetch(requests: Sequence[FetchRequest]) -> str:
    """Format a fetch operation for messages."""
    labels = [f"{entity_label(r.entity)} {_names_label(r.names)}, {len(r.ids)} rows" for r in requests[:3]]
    return f"fetch({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def _names_label(names: Sequence[str]) -> str:
    shown = ["key" if name == KEY else repr(name) for name in names[:3]]
    return ", ".join([*shown, "…"] if len(names) > 3 else shown)
