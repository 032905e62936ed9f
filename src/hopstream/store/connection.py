"""Sends requests to a server, and says in plain words why one did not reach it.

Every request is one call with a deadline that the transport itself keeps, so a server that is gone, stopped or cut off
is noticed in time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    RemoteError,
    StateError,
    StoreBusy,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.store.security import Location
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import MAX_FRAME_BYTES, Bytes, Frame, decode_frame, from_batch, raise_error

CANCEL_S = 10.0
"""How long a closing store waits for calls that it has ended to leave; they take milliseconds."""
REASONS = (
    (
        ("wrong version number",),
        "it speaks no TLS; write grpc:// instead of grpc+tls://, or give the server a certificate",
    ),
    (
        ("ssl", "handshake", "certificate"),
        "no TLS connection could be made ({detail}); check the roots, the certificates and the name that they are for",
    ),
    (("refused",), "nothing listens there; start the server, or check host and port"),
    (
        ("resolving", "resolution", "name not found", "name or service"),
        "the host's name is not known; check the address, or write the machine's IP address",
    ),
    (("http",), "what listens there is no hopstream server; check the port"),
    (
        ("connect to all addresses; last error: unavailable",),
        "the connection was closed before an answer: the server has ended, is another program, or has TLS; start it "
        "again, check the port, or write grpc+tls://",
    ),
    (("unreachable", "no route"), "no network leads there; check the address, the network and the firewall"),
    (
        ("socket closed", "stream removed", "reset", "rst_stream", "goaway", "broken pipe", "cancelled", "end of file"),
        "the connection was lost; see what ended the server, and start the server again",
    ),
)
"""Words of the transport, any of which stands for a reason with its remedy; the first that fits is told."""
BROKEN_OFF = ("stream removed", "rst_stream", "connection reset")
"""What the transport says of a connection that ended in mid-answer where it calls that an internal error."""
EXHAUSTED = "resource exhausted"
"""What the transport says where a server can start no thread for a call, and of a message that is too large."""
BUSY_S = 0.05
"""How long to wait before a server that is too busy is asked again; twice as long after every further time."""
MAX_BUSY_S = 1.0
CONNECTION_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES + (1 << 20)),
    # A connection of its own for every client: those that are shared stay refused for a while after a server came back.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class FrameReader(Protocol):
    """Takes the frames of an answer, one after the other."""

    def take(self, frame: Frame) -> None:
        """Check a frame and keep what it holds."""
        ...


class Connection:
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
        self._options = security.flight_options(location)
        self._process = os.getpid()
        self._client = self._new_client()
        self._is_new = True
        self._changed = threading.Condition()
        self._streams: set[Any] = set()
        self._num_calls = 0
        self._is_closed = False
        _CONNECTIONS.add(self)

    def call(
        self, request: Bytes, timeout_s: float, what: str, reader: FrameReader, *, is_patient: bool = True
    ) -> None:
        """Send a request and hand the frames of the answer to a reader.

        Where an old connection turns out to be lost before anything was answered, the request is sent once more over a
        new one: the server may have been started again.

        Args:
            request: The frame to send.
            timeout_s: How long all of it may take.
            what: The operation, as messages name it.
            reader: Takes the frames.
            is_patient: Ask a server that is too busy again until the time is over. False where the caller has other
                servers to ask.

        Raises:
            StoreTimeout: The answer was not complete in time.
            StoreBusy: The server is too busy to answer.
            StoreUnavailable: The server cannot be reached, or went away.
            AccessDenied: The server refused the token or certificate.
            RemoteError: The server failed.
            FormatError: The answer makes no sense.
            StateError: The process was forked since the connection was made.
        """
        self.check_process()
        ends = time.monotonic() + timeout_s
        with self._changed:
            self.check_open(what)
            self._num_calls += 1
            client, was_new, self._is_new = self._client, self._is_new, False
        try:
            taker = _Taker(reader)
            error = self._try(client, request, timeout_s, what, taker)
            if _is_lost(error) and not was_new and not taker.has_taken and not self._is_closed:
                error = self._try(self._renewed(client), request, max(1e-3, ends - time.monotonic()), what, taker)
            wait_s = BUSY_S
            while is_patient and _is_busy(error) and time.monotonic() + wait_s < ends:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, wait_s)
                    self.check_open(what)
                error = self._try(self._client, request, ends - time.monotonic(), what, taker)
                wait_s = min(2 * wait_s, MAX_BUSY_S)
            if error is not None:
                raise self._explained(error, timeout_s, what) from error
        finally:
            self._leave()

    def ask(self, request: Bytes, timeout_s: float, what: str, *, is_patient: bool = True) -> Frame:
        """Send a request that is answered with one frame, and return that; see ``call`` for the rest.

        Raises:
            FormatError: The answer has no frame, or several.
        """
        reader = _OneFrame()
        self.call(request, timeout_s, what, reader, is_patient=is_patient)
        if reader.frame is None:
            raise FormatError(f"{self.name} gave an empty answer to {what}; it must be one frame")
        return reader.frame

    def _try(
        self, client: flight.FlightClient, request: Bytes, timeout_s: float, what: str, reader: FrameReader
    ) -> Exception | None:
        """Make one attempt; an error of the transport is returned."""
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        try:
            self._read(client.do_get(flight.Ticket(request.tobytes()), options), what, reader)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if isinstance(error, HopstreamError):
                raise
            return error
        return None

    def _new_client(self) -> flight.FlightClient:
        return flight.FlightClient(str(self.location), generic_options=CONNECTION_OPTIONS, **self._options)

    def _renewed(self, lost: flight.FlightClient) -> flight.FlightClient:
        """A new connection in place of a lost one, which whoever still reads from it keeps until they are done."""
        with self._changed:
            if self._client is lost and not self._is_closed:
                self._client = self._new_client()
            return self._client

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that made the connection: the transport's threads stayed there."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise ``StateError`` in a fork of the connection's process. Takes no lock, which may be held there."""
        if self.is_foreign:
            raise StateError(
                f"the connection to {self.name} was made in process {self._process} and used in its fork "
                f"{os.getpid()}; "
                "make the loader or the store there, or start workers with spawn"
            )

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
        if self.is_foreign:
            return False
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
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
        if _is_busy(error):
            return StoreBusy(
                f"{self.name} is too busy for {what}: it can start no thread for the call; allow it more threads and "
                "memory, or serve its parts from more servers"
            )
        if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | OSError) or _is_lost(error):
            return StoreUnavailable(f"{self.name} cannot be reached for {what}: {_reason(text)}")
        return RemoteError(f"{self.name} failed in {what}: {text}; is it a hopstream server?", str(error))


def _next_chunk(stream: Any) -> Any:
    try:
        return stream.read_chunk()
    except StopIteration:
        return None


def _first_sentence(text: str) -> str:
    """The transport's message without its debugging context."""
    return text.split(". gRPC client debug context")[0].strip() or "the call was cut off"


def _reason(text: str) -> str:
    """Why a server cannot be reached and what to do about it, in words that need no knowledge of the transport."""
    for words, reason in REASONS:
        if any(word in text.lower() for word in words):
            return reason.format(detail=text.rsplit(":", 1)[-1].strip())
    return f"{text}; start the server, or check the address, the certificates and the firewall"


def _is_lost(error: Exception | None) -> bool:
    """Whether a call found no connection, or lost it; another may be found now."""
    if isinstance(error, flight.FlightInternalError):
        return any(words in str(error).lower() for words in BROKEN_OFF)
    return isinstance(error, flight.FlightUnavailableError)


def _is_busy(error: Exception | None) -> bool:
    """Whether a server had no room for a call; a message that is too large stays so."""
    return isinstance(error, pa.ArrowInvalid) and EXHAUSTED in str(error) and "larger than max" not in str(error)


def ask_again_if_busy(error: Exception, server: int, untried: list[int], were_busy: set[int]) -> None:
    """Put a server that was too busy behind those that are untried, once; the last one asked was asked patiently."""
    if isinstance(error, StoreBusy) and untried and server not in were_busy:
        were_busy.add(server)
        untried.append(server)


def _keep_clients() -> None:
    """Never free what a fork inherited: the transport would wait for threads that are not there, or abort."""
    for connection in list(_CONNECTIONS):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection._client))


_CONNECTIONS: weakref.WeakSet[Connection] = weakref.WeakSet()
"""All connections of this process, those of the process that it was forked from included."""
os.register_at_fork(after_in_child=_keep_clients)


class _OneFrame:
    """Keeps the only frame of an answer."""

    frame: Frame | None = None

    def take(self, frame: Frame) -> None:
        if self.frame is not None:
            raise FormatError("an answer has more than one frame; it must be one")
        self.frame = frame


class _Taker:
    """Hands frames on, and knows whether there were any."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self.has_taken = False

    def take(self, frame: Frame) -> None:
        self.has_taken = True
        self._reader.take(frame)
