"""Serves parts to other machines, and ends in time though a client never takes its answer.

A ``StoreServer`` is an Arrow Flight server around a local store. It keeps nothing about its clients: a request is one
call, a call that ends leaves no trace, and a restarted server goes on where the last one stopped.

The transport waits half a minute for frozen clients, and again when the process ends. Both waits are bounded here.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyarrow import flight

from hopstream.checks import OfOneProcess
from hopstream.errors import SettingsError, StoreUnavailable
from hopstream.store.answer import Operation, StoreAnswers, warm_up
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
from hopstream.store.security import Location, ServerSecurity
from hopstream.store.settings import ServerLimits
from hopstream.store.wire import (
    BATCH_SCHEMA,
    Frame,
    decode_frame,
    encode_error,
    encode_frame,
    is_askers_fault,
    to_batch,
)


class Closing:
    """The end of a server, which has begun: new calls are refused, and those under way are answered."""

    def __init__(self, server: flight.FlightServerBase, name: str) -> None:
        """Begin.

        Args:
            server: What ends.
            name: What the thread that waits is called.
        """
        self._server = server
        self._thread = threading.Thread(target=server.shutdown, name=name, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the server has ended, but not longer; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Let the process end without the server, where it has not ended yet."""
        if self._thread.is_alive():
            for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # that of pyarrow has no other name
                if (finalizer.peek() or (None,))[0] is self._server:
                    finalizer.atexit = False


LOG = logging.getLogger(__name__)
ABORT_S = 2.0
"""How long calls have to notice that the server gives them up."""
SIGNAL_TURN_S = 0.25
"""How late a signal may be noticed."""

UNKNOWN = "unknown"
"""The operation of a request that names none that the server knows, or cannot be read."""
Outcome = Literal["ok", "refused", "failed", "abandoned"]
"""Answered; the asker was wrong; the server was, or could not; the asker left before the end."""


class Observer(Protocol):
    """Is told what every request came to."""

    def observe(self, operation: str, outcome: Outcome, seconds: float, num_bytes: int) -> None:
        """Take note of a request that has ended; called in the thread that answered it, and must not raise.

        Args:
            operation: Its name, one of the server's ``operation_names``, or ``UNKNOWN``.
            outcome: How it ended.
            seconds: From its arrival to its last frame, waiting for a slow reader included.
            num_bytes: What was sent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """What a server has done since it started.

    Attributes:
        num_requests: Requests that began to be answered.
        num_failures: Requests answered with an error.
        num_bytes: Bytes of all answers.
    """

    num_requests: int = 0
    num_failures: int = 0
    num_bytes: int = 0


class StoreServer(OfOneProcess):
    """Serves mapped parts until it is closed. The store stays the caller's, to be closed after the server."""

    _remedy = "start one in each process, or give others its location"

    def __init__(
        self,
        store: LocalStore,
        location: str = "grpc://127.0.0.1:0",
        *,
        security: ServerSecurity | None = None,
        limits: ServerLimits | None = None,
        path: Path | None = None,
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        """Listen and answer from now on, in threads of the transport.

        Args:
            store: The parts to serve.
            location: ``grpc://host:port`` or ``grpc+tls://host:port``; port 0 lets the system choose.
            security: Certificates and token; without them only a loopback address is allowed.
            limits: Bounds on one request.
            path: The dataset's folder, told to clients so that those on the same machine map it themselves.
            operations: More operations by name, answered beside the store's own.

        Raises:
            AccessDenied: The address can be reached by others, and TLS or a token is missing.
            StoreUnavailable: The address cannot be listened at, for example because the port is in use.
        """
        security = security or ServerSecurity()
        limits = limits or ServerLimits()
        wanted = Location.parse(location)
        security.check_bind(wanted)
        warm_up(store)
        facts = StoreFacts.of(store, max_ids=limits.max_ids, path=None if path is None else path.resolve())
        self._answers = StoreAnswers(store, limits, facts)
        self._operations = {**(operations or {}), "stats": self._answer_stats}
        self._max_request_bytes = limits.max_request_bytes
        self.observer: Observer | None = None
        """Told of every request from when it is set on."""
        self._stats, self._started_at = ServerStats(), time.monotonic()
        self._lock = threading.Lock()
        self._is_aborting = False
        self._stopping: SimpleQueue[None] = SimpleQueue()  # unlike an Event, safe to use from a signal handler
        self._closing: Closing | None = None
        self._flight = _listen(self, wanted, security)
        self.location = str(replace(wanted, port=self._flight.port))
        """Where the server listens, with the port that the system chose."""
        LOG.info("serving parts %s at %s", list(store.parts), self.location)

    @property
    def stats(self) -> ServerStats:
        """What the server has done so far."""
        with self._lock:
            return self._stats

    @property
    def is_serving(self) -> bool:
        """Whether new requests are taken: from the start until the server is closed."""
        return self._closing is None

    @property
    def operation_names(self) -> frozenset[str]:
        """All that the server can be asked for."""
        return self._answers.names | self._operations.keys()

    def answer(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The record batches that answer a request; a failure is the last of them."""
        observer = self.observer
        if observer is None:
            return self._answer(ticket, _Course())
        return self._observed(ticket, observer)

    def _observed(self, ticket: bytes, observer: Observer) -> Iterator[pa.RecordBatch]:
        started, course = time.perf_counter(), _Course()
        try:
            yield from self._answer(ticket, course)
        finally:
            name = course.operation if course.operation in self.operation_names else UNKNOWN
            observer.observe(name, course.outcome, time.perf_counter() - started, course.num_bytes)

    def _answer(self, ticket: bytes, course: _Course) -> Iterator[pa.RecordBatch]:
        self._count(num_requests=1)
        try:
            if len(ticket) > self._max_request_bytes:
                raise SettingsError(
                    f"the request has {len(ticket)} bytes; the server takes {self._max_request_bytes} "
                    "(--max-request-bytes)"
                )
            request = decode_frame(ticket)
            course.operation = str(request.header.get("op"))
            for frame in self._answers.answer(request, self._operations):
                if self._is_aborting:
                    raise StoreUnavailable("the server is shutting down")
                self._count(num_bytes=len(frame))
                course.num_bytes += len(frame)
                yield to_batch(frame)
            course.outcome = "ok"
        except Exception as error:  # whatever went wrong is the client's to hear
            course.outcome = "refused" if is_askers_fault(error) else "failed"
            self._count(num_failures=1)
            LOG.info("a request failed", exc_info=True)
            yield to_batch(encode_error(error))

    def stop(self) -> None:
        """Make ``wait`` and ``serve_forever`` return; safe to call from a signal handler or another thread."""
        self._stopping.put(None)

    def close(self, grace_s: float = 10.0) -> bool:
        """Refuse new calls, wait for those under way, and release the port; a second call only waits.

        Args:
            grace_s: How long calls under way may take. Those that take longer are ended with ``StoreUnavailable``.

        Returns:
            True where every call under way was answered; False where some were given up.
        """
        if self._closing is None:
            self._closing = Closing(self._flight, "hopstream-server-close")
        is_clean = self._closing.wait(grace_s)
        if not is_clean:
            self._is_aborting = True
            self._closing.wait(ABORT_S)
            self._closing.give_up()
        self._stopping.put(None)
        return is_clean

    def wait(self) -> None:
        """Return when ``stop`` was called, or the server closed; signals are the caller's to handle."""
        while not self._was_stopped():
            pass

    def serve_forever(self, grace_s: float = 10.0) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``, then close. Made for the main thread of a process of its own.

        Where calls are still under way after ``grace_s`` the process ends at once with exit status 1: the transport
        cannot give up a call whose client has stopped reading.
        """
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for received in (signal.SIGTERM, signal.SIGINT):
                previous[received] = signal.signal(received, self._on_signal)
        try:
            self.wait()
            LOG.info("closing %s; calls under way have %g s", self.location, grace_s)
            if not self.close(grace_s):
                LOG.error("calls were still under way %g s after the server was told to stop", grace_s)
                logging.shutdown()
                os._exit(1)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def __enter__(self) -> StoreServer:
        """Use the server as a context that closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()

    def _was_stopped(self) -> bool:
        """Wait a turn: a signal that comes just before the wait begins does not end it, so no wait is long."""
        try:
            self._stopping.get(timeout=SIGNAL_TURN_S)
        except Empty:
            return False
        return True

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.stop()

    def _answer_stats(self, _: Frame) -> Iterator[Any]:
        stats = self.stats
        header = {
            "num_requests": stats.num_requests, "num_failures": stats.num_failures, "num_bytes": stats.num_bytes,
            "uptime_s": time.monotonic() - self._started_at,
        }  # fmt: skip
        yield encode_frame(header)

    def _count(self, *, num_requests: int = 0, num_failures: int = 0, num_bytes: int = 0) -> None:
        with self._lock:
            self._stats = ServerStats(
                num_requests=self._stats.num_requests + num_requests,
                num_failures=self._stats.num_failures + num_failures,
                num_bytes=self._stats.num_bytes + num_bytes,
            )


@dataclass(slots=True)
class _Course:
    """How far a request has come."""

    operation: str = UNKNOWN
    outcome: Outcome = "abandoned"
    num_bytes: int = 0


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """The transport's side of a server: every request is a ``DoGet``."""

    def __init__(self, server: StoreServer, location: str, options: dict[str, Any]) -> None:
        self._server = server
        super().__init__(location, **options)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        return flight.GeneratorStream(BATCH_SCHEMA, self._server.answer(ticket.ticket))


def _listen(server: StoreServer, location: Location, security: ServerSecurity) -> _FlightServer:
    try:
        return _FlightServer(server, str(location), security.flight_options())
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        reason = _bind_error(location) or f"{error}; are the certificate and the key PEM, and do they belong together?"
        raise StoreUnavailable(f"cannot listen at {location}: {reason}") from error


def _bind_error(location: Location) -> str:
    """Why an address cannot be bound; the transport itself says only that it did not start."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {location.port} is in use; choose another, or port 0 to let the system choose"
        return str(error)
    return ""
