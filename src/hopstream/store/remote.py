"""How is a store on another machine asked?

Every request is one call with a deadline that the transport itself keeps, so a server that is gone, stopped or cut off
is noticed in time. Calls are made in a few threads of the store, which read the answer as it comes: the transport
cannot end a call that the server has not begun to answer, but who waits for such a thread can be let go.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import flight

from hopstream.arrays import Column, IntArray
from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    RemoteError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.partition.book import ends_of, owner_label
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import KEY, FetchRequest, Pending, SampleReply, SampleRequest, Store
from hopstream.store.facts import StoreFacts
from hopstream.store.replies import FetchReader, RowsReader, SampleReader, SplitReader
from hopstream.store.requests import (
    Piece,
    RowCost,
    check_fetch_request,
    check_keys,
    check_sample_request,
    check_split,
    cut_pieces,
    id_dtype,
)
from hopstream.store.security import Location
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import (
    MAX_FRAME_BYTES,
    Bytes,
    Frame,
    decode_frame,
    encode_frame,
    from_batch,
    owner_to_json,
    raise_error,
)

T = TypeVar("T")
MAX_THREADS = 64
"""Requests of one store that can be under way at once; threads are started as they are needed."""
CANCEL_S = 10.0
"""How long a closing store waits for calls that it has ended to leave; they take milliseconds."""
SLACK_S = 5.0
"""How much later than the transport's deadline a waiting thread gives up."""
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES + (1 << 20)),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]


class FrameReader(Protocol):
    """Takes the frames of an answer, one after the other."""

    def take(self, frame: Frame) -> None:
        """Check a frame and keep what it holds."""
        ...


class Channel:
    """One connection to a server; the transport opens it when it is first used, and again after it broke."""

    def __init__(self, location: Location, settings: StoreSettings) -> None:
        """Prepare to connect.

        Raises:
            AccessDenied: A token would be sent in the clear.
        """
        security = settings.security
        security.check_location(location)
        self.location = location
        self.name = str(location)
        """The server as messages name it; with its parts once they are known."""
        self._headers = security.headers()
        self._client = flight.FlightClient(
            str(location), generic_options=CHANNEL_OPTIONS, **security.flight_options(location)
        )
        self._changed = threading.Condition()
        self._streams: set[Any] = set()
        self._num_calls = 0
        self._is_closed = False

    def call(self, request: Bytes, timeout_s: float, what: str, reader: FrameReader) -> None:
        """Send a request and hand the frames of the answer to a reader.

        Raises:
            StoreTimeout: The answer was not complete in time.
            StoreUnavailable: The server cannot be reached, or went away.
            AccessDenied: The server refused the token or certificate.
            RemoteError: The server failed.
            FormatError: The answer makes no sense.
        """
        with self._changed:
            self.check_open(what)
            self._num_calls += 1
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        try:
            stream = self._client.do_get(flight.Ticket(request.tobytes()), options)
            self._read(stream, what, reader)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if isinstance(error, HopstreamError):
                raise
            raise self._explained(error, timeout_s, what) from error
        finally:
            self._leave()

    def check_open(self, what: str) -> None:
        """Raise ``StoreUnavailable`` after the connection was closed."""
        if self._is_closed:
            raise StoreUnavailable(f"{self.name} was asked to {what}; the store is closed")

    def close(self) -> bool:
        """Refuse calls, end those that are being answered and wait until their threads have left; twice is once.

        A call that the server has not begun to answer cannot be ended: its thread leaves at the deadline and then hands
        nothing to its reader. The connection is freed by whoever leaves last.

        Returns:
            True where no thread is inside a call any more.
        """
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            for stream in self._streams:
                stream.cancel()
            self._changed.wait_for(lambda: not self._streams, CANCEL_S)
            is_idle = self._num_calls == 0
        if is_idle and not was_closed:
            self._client.close()
        return is_idle

    def _leave(self) -> None:
        with self._changed:
            self._num_calls -= 1
            is_last = self._is_closed and self._num_calls == 0
        if is_last:
            self._client.close()

    def _read(self, stream: Any, what: str, reader: FrameReader) -> None:
        with self._changed:
            if self._is_closed:  # after the call began, so ``close`` did not see it
                stream.cancel()
                self.check_open(what)
            self._streams.add(stream)
        try:
            while (chunk := _next_chunk(stream)) is not None:
                frame = decode_frame(from_batch(chunk.data))
                raise_error(frame, self.name, what)
                reader.take(frame)
        except HopstreamError as error:
            stream.cancel()
            if not hasattr(error, "__notes__"):
                error.add_note(f"answered by {self.name} to {what}")
            raise
        finally:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify_all()

    def _explained(self, error: Exception, timeout_s: float, what: str) -> HopstreamError:
        """A transport's error in our words."""
        text = _first_sentence(str(error))
        if self._is_closed:
            return StoreUnavailable(f"{self.name} was asked to {what}; the store was closed meanwhile")
        if isinstance(error, flight.FlightTimedOutError):
            return StoreTimeout(f"{self.name} gave no answer in {timeout_s:.3g} s to {what}")
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return AccessDenied(f"{self.name} refused {what}: {text}; give the token that the server was started with")
        if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | OSError):
            return StoreUnavailable(
                f"{self.name} cannot be reached for {what} ({text}); "
                "start the server, or check the address, the certificates and the firewall"
            )
        return RemoteError(f"{self.name} failed in {what}: {text}; is it a hopstream server?", str(error))


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
        self._channel = Channel(Location.parse(location), settings)
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"hopstream {location}")
        self._is_inside = False
        self._lock = threading.Lock()
        self._waited_for: set[Future[Any]] = set()
        try:
            self.facts = facts or _ask_facts(self._channel, settings.timeout_s)
        except BaseException:
            self.close()
            raise
        self.schema = self.facts.schema
        self.book = self.facts.book
        self.directions = self.facts.directions
        self.dataset_id = self.facts.dataset_id
        self.graph_id = self.facts.graph_id
        self.parts = self.facts.parts
        self._channel.name = f"{parts_label(self.parts)} at {self._channel.location}"

    @property
    def location(self) -> str:
        """Where the server is."""
        return str(self._channel.location)

    @property
    def label(self) -> str:
        """The store as messages name it, with its parts."""
        return self._channel.name

    def with_timeout(self, timeout_s: float) -> RemoteStore:
        """The same store and connection with another deadline."""
        store = copy.copy(self)
        store.timeout_s = timeout_s
        return store

    def start(self, work: Callable[[RemoteStore], T], describe: Callable[[], str]) -> Pending[T]:
        """Let a thread of this store do something that asks it.

        Args:
            work: What to do with this store, as seen from its own thread; it must ask once, within the deadline.
            describe: Gives the operation as messages name it.
        """
        inside = copy.copy(self)
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
        for pieces in self._calls([len(request.ids) for request in requests]):
            reader.expect(pieces)
            header = {"requests": [_sample_record(requests[p.request], row) for row, p in enumerate(pieces)]}
            types = [(requests[p.request].edge_type, requests[p.request].direction) for p in pieces]
            ids = [
                self._wire_ids(requests[p.request].ids, p, self.book.num_ids(ends_of(*t)[0]))
                for p, t in zip(pieces, types, strict=True)
            ]
            self._call("sample", header, ids, describe_sample(requests), (reader, ends))
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
                    {"owner": owner_to_json(request.owner), "names": request.names, "ids": row}
                    for row, request in enumerate(asked)
                ]
            }
            ids = [
                self._wire_ids(request.ids, piece, self.book.num_ids(request.owner))
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
        reader = SplitReader(self.book.num_ids(node_type))
        ends = time.monotonic() + self.timeout_s
        header = {"node_type": node_type, "name": name}
        self._call("split", header, [], f"split({node_type}, {name})", (reader, ends))
        return reader.result()

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Edges of each id; see ``Store.degrees``."""
        ids = np.asarray(ids, np.int64)
        check_sample_request(self, SampleRequest(edge_type=edge_type, direction=direction, ids=ids, count=0))
        owner = (edge_type, direction)
        num_nodes = self.book.num_ids(ends_of(*owner)[0])
        what = f"degrees({owner_label(owner)}, {len(ids)} ids)"
        limits = (num_nodes, self.book.num_ids(owner) + 1)
        return self._ask_rows("degrees", {"owner": owner_to_json(owner)}, ids, limits, what)

    def close(self) -> None:
        """End calls under way, let go who waits for one, and disconnect; a second call does nothing.

        Safe to call while other threads are inside. It takes milliseconds, and no array of a caller is written after
        it; only a thread of the store that waits for a server which says nothing ends later, at the call's deadline.
        """
        is_idle = self._channel.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            answers = list(self._waited_for)
        for answer in answers:
            self._let_go(answer)
        self._pool.shutdown(wait=is_idle)

    def _ask_rows(self, op: str, header: dict[str, Any], ids: IntArray, limits: tuple[int, int], what: str) -> IntArray:
        """Ask for one int64 per id; ``limits`` are those of the ids and of the answers."""
        reader = RowsReader(len(ids), limits[1])
        ends = time.monotonic() + self.timeout_s
        for pieces in self._calls([len(ids)]):
            reader.expect(pieces)
            self._call(op, header, [self._wire_ids(ids, pieces[0], limits[0])], what, (reader, ends))
        return reader.result()

    def _calls(self, num_ids: Sequence[int]) -> list[list[Piece]]:
        """Cut requests into as many calls as the server's limit needs; no ids, no call."""
        return list(cut_pieces([RowCost(n, 1) for n in num_ids], self.facts.max_ids))

    def _wire_ids(self, ids: IntArray, piece: Piece, num_ids: int) -> IntArray:
        return ids[piece.start : piece.start + piece.num_rows].astype(id_dtype(num_ids), copy=False)

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
        left_s = max(1e-3, ends - time.monotonic())
        try:
            if self._is_inside:
                self._channel.call(request, left_s, what, reader)
            else:
                self.start(lambda inside: inside._channel.call(request, left_s, what, reader), lambda: what).result()
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


class _HelloReader:
    def __init__(self) -> None:
        self.facts: StoreFacts | None = None

    def take(self, frame: Frame) -> None:
        self.facts = StoreFacts.from_frame(frame)


def parts_label(parts: Sequence[int]) -> str:
    """Parts as messages name them: ``part 2``, ``parts 0, 1`` or ``parts 0..63 (64)``."""
    if len(parts) == 1:
        return f"part {parts[0]}"
    return f"parts {', '.join(map(str, parts))}" if len(parts) <= 8 else f"parts {parts[0]}..{parts[-1]} ({len(parts)})"


def describe_sample(requests: Sequence[SampleRequest]) -> str:
    """A sample operation as messages name it."""
    labels = [f"{owner_label((r.edge_type, r.direction))}, {len(r.ids)} ids" for r in requests[:3]]
    return f"sample({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def describe_fetch(requests: Sequence[FetchRequest]) -> str:
    """A fetch operation as messages name it."""
    labels = [f"{owner_label(r.owner)} {_names_label(r.names)}, {len(r.ids)} rows" for r in requests[:3]]
    return f"fetch({'; '.join(labels)}{'; …' if len(requests) > 3 else ''})"


def _names_label(names: Sequence[str]) -> str:
    shown = ["key" if name == KEY else repr(name) for name in names[:3]]
    return ", ".join([*shown, "…"] if len(names) > 3 else shown)


def _sample_record(request: SampleRequest, row: int) -> dict[str, Any]:
    return {
        "owner": owner_to_json((request.edge_type, request.direction)),
        "ids": row,
        "count": int(request.count),
        "is_replacing": bool(request.is_replacing),
        "rng_seed": int(request.rng_seed),
        "wants_edge_ids": bool(request.wants_edge_ids),
    }


def _ask_facts(channel: Channel, timeout_s: float) -> StoreFacts:
    reader = _HelloReader()
    channel.call(encode_frame({"op": "hello"}), timeout_s, "hello()", reader)
    if reader.facts is None:
        raise FormatError(f"{channel.name} gave an empty answer to hello()")
    return reader.facts


def _next_chunk(stream: Any) -> Any:
    try:
        return stream.read_chunk()
    except StopIteration:
        return None


def _first_sentence(text: str) -> str:
    """The transport's message without its debugging context."""
    return text.split(". gRPC client debug context")[0].strip() or "the call was cut off"
