"""Store server: answers requests for the parts of a local store over TCP, TLS or Unix sockets.

A ``StoreServer`` is a listener around a local store. It keeps no state of its clients, so a restarted server continues
where the last one stopped.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from hopstream.checks import OfOneProcess
from hopstream.errors import SettingsError
from hopstream.store.answer import Operation, StoreAnswers, warm_up
from hopstream.store.contract import Store
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
from hopstream.store.settings import ServerLimits
from hopstream.transport.calls import Call, identity_of
from hopstream.transport.failures import encode_error, is_askers_fault, without_paths
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.security import ServerSecurity

LOG = logging.getLogger(__name__)
SIGNAL_TURN_S = 0.25
"""Longest delay in seconds until a signal is noticed."""

UNKNOWN = "unknown"
"""Name of the operation for requests that are unreadable or name an unknown operation."""
Outcome = Literal["ok", "refused", "failed", "abandoned"]
"""Outcome of a request: answered, refused as wrong, failed on the server, or abandoned by the client."""


class Observer(Protocol):
    """Receiver of the outcome of every request."""

    def observe(self, operation: str, outcome: Outcome, seconds: float, num_bytes: int) -> None:
        """Take note of a finished request. Called in the thread that answered it; must not raise.

        Args:
            operation: One of the server's ``operation_names``, or ``UNKNOWN``.
            outcome: How the request ended.
            seconds: Time from arrival to the last frame, waiting for a slow reader included.
            num_bytes: Bytes of the frames of the answer.
        """
        ...


class ServerStats(NamedTuple):
    """Counters of a server since its start.

    Attributes:
        num_requests: Finished requests.
        num_failures: Requests whose outcome is ``failed``: the server failed, or could not ask another server.
        num_bytes: Bytes of all answers.
        num_refusals: Requests whose outcome is ``refused``: the request was wrong, or the client lacks the rights.
    """

    num_requests: int = 0
    num_failures: int = 0
    num_bytes: int = 0
    num_refusals: int = 0


class StoreServer(OfOneProcess):
    """Server of mapped parts. The caller owns the store, and closes it after the server."""

    _remedy = "start one in each process, or give others its location"

    def __init__(
        self,
        store: Store,
        location: str = "tcp://127.0.0.1:0",
        *,
        security: ServerSecurity | None = None,
        limits: ServerLimits | None = None,
        path: Path | None = None,
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        """Start to listen and to answer, in threads of the listener.

        Args:
            store: The parts to serve: a ``LocalStore``, which ``open_store`` returns for a folder.
            location: ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``; port 0 lets the system choose.
            security: Certificates and token; without them only a loopback address is allowed.
            limits: Limits on one request, and on all clients together.
            path: The dataset's folder. Clients with admin rights receive it; on the same machine they map the folder.
            operations: Further operations by name.

        Raises:
            AccessDenied: Other machines can reach the address, and TLS or a token is missing.
            SettingsError: The store asks servers itself.
            StoreUnavailable: The server cannot listen at the address, for example because the port is in use.
        """
        if not isinstance(store, LocalStore):
            raise SettingsError(
                f"a {type(store).__name__} cannot be served, because it is a client of servers; open a folder, for "
                "example with LocalStore(open_dataset(folder), parts)"
            )
        security = security or ServerSecurity()
        limits = limits or ServerLimits()
        wanted = Location.parse(location)
        security.check_bind(wanted)
        warm_up(store)
        self._folders = {str(store.folder.absolute()), str(store.folder.resolve())}
        facts = StoreFacts.of(store, max_ids=limits.max_ids, path=None if path is None else path.resolve())
        self._answers = StoreAnswers(store, limits, facts)
        self._operations: dict[str, Operation] = {**(operations or {}), "stats": self._answer_stats}
        self.observer: Observer | None = None
        """Receives the outcome of requests that arrive after it is set."""
        self._stats, self._started_at = ServerStats(), time.monotonic()
        self._lock = threading.Lock()
        self._is_closing = False
        self._stopping: SimpleQueue[None] = SimpleQueue()  # unlike an Event, safe to use from a signal handler
        self.listener = Listener(wanted, self.answer, security=security, limits=limits)
        self.location = str(self.listener.location)
        """Where the server listens, with the port that the system chose."""
        LOG.info("serving parts %s at %s", list(store.parts), self.location)

    @property
    def stats(self) -> ServerStats:
        """Counters since the start."""
        with self._lock:
            return self._stats

    @property
    def is_serving(self) -> bool:
        """Whether the server accepts requests: True until ``close``."""
        return not self._is_closing

    @property
    def operation_names(self) -> frozenset[str]:
        """Names of all operations."""
        return self._answers.names | self._operations.keys()

    def answer(self, call: Call) -> Iterator[Frame]:
        """Yield the frames of an answer; after a failure the last frame holds the error."""
        observer = self.observer
        course = _Course(str(call.header.get("op")))
        started = 0.0 if observer is None else time.perf_counter()
        try:
            for frame in self._answers.answer(call, self._operations):
                course.num_bytes += frame.num_bytes
                if frame.is_last:
                    course.outcome = "ok"
                yield self._shown(frame, call)
            course.outcome = "ok"
        except Exception as error:  # every error is sent to the client
            course.outcome = "refused" if is_askers_fault(error) else "failed"
            LOG.info("a request failed", exc_info=True)
            yield self._shown(encode_error(error), call)
        finally:
            if call.is_over and course.outcome == "ok":
                course.outcome = "abandoned"
            self._count(course)
            if observer is not None:
                name = course.operation if course.operation in self.operation_names else UNKNOWN
                observer.observe(name, course.outcome, time.perf_counter() - started, course.num_bytes)

    def _shown(self, frame: Frame, call: Frame) -> Frame:
        """Remove the server's paths from errors for clients without admin rights."""
        if identity_of(call).is_admin:
            return frame
        operation = str(call.header.get("op"))
        return without_paths(frame, self._folders, operation if operation in self.operation_names else UNKNOWN)

    def stop(self) -> None:
        """Make ``wait`` and ``serve_forever`` return; safe to call from a signal handler or another thread."""
        self._stopping.put(None)

    def close(self, grace_s: float = 10.0, *, is_final: bool = True) -> bool:
        """Refuse new calls, wait for calls under way, and release the port; a second call only waits.

        Args:
            grace_s: Time limit for calls under way, in seconds; then they end with ``StoreUnavailable``.
            is_final: Tell clients not to wait for a server at this address.

        Returns:
            True if every call under way was answered, False if some were ended.
        """
        self._is_closing = True
        is_clean = self.listener.close(grace_s, is_final=is_final)
        self._stopping.put(None)
        return is_clean

    def wait(self) -> None:
        """Return after ``stop`` or ``close``; the caller handles signals."""
        while not self._was_stopped():
            pass

    def serve_forever(self, grace_s: float = 10.0) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``, then close; meant for the main thread of its own process.

        If calls are still under way after ``grace_s`` seconds, the process ends at once with exit status 1.
        """
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for received in (signal.SIGTERM, signal.SIGINT):
                previous[received] = signal.signal(received, self._on_signal)
        try:
            self.wait()
            LOG.info("closing %s; calls under way have %g s", self.location, grace_s)
            if not self.close(grace_s, is_final=False):
                LOG.error("calls were still under way %g s after the server began to stop", grace_s)
                logging.shutdown()
                os._exit(1)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def __enter__(self) -> StoreServer:
        """Return the server; the ``with`` block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()

    def _was_stopped(self) -> bool:
        """Wait for ``SIGNAL_TURN_S``; waits are short, because a signal just before a wait does not end it."""
        try:
            self._stopping.get(timeout=SIGNAL_TURN_S)
        except Empty:
            return False
        return True

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.stop()

    def _answer_stats(self, _: Frame) -> Iterator[Frame]:
        stats = self.stats
        yield Frame({**stats._asdict(), "uptime_s": time.monotonic() - self._started_at}, is_last=True)

    def _count(self, course: _Course) -> None:
        with self._lock:
            stats = self._stats
            self._stats = ServerStats(
                num_requests=stats.num_requests + 1,
                num_failures=stats.num_failures + (course.outcome == "failed"),
                num_bytes=stats.num_bytes + course.num_bytes,
                num_refusals=stats.num_refusals + (course.outcome == "refused"),
            )


@dataclass(slots=True)
class _Course:
    """Progress of a request."""

    operation: str
    outcome: Outcome = "abandoned"
    num_bytes: int = 0
