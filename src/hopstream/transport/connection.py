"""Connection: sends requests to one server over a few links, retries them, and explains failures.

A request uses an idle link or a new one; it shares a link if the maximum number is reached. Within the request's
deadline the connection replaces lost links, and retries while the server is busy.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    ServerBusy,
    StateError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.transport.failures import raise_error
from hopstream.transport.link import LEAVE_S, Answer, Link, LinkGivenUp, LinkLost, Opening, ServerLeaving, Sink
from hopstream.transport.location import Location
from hopstream.transport.messages import ArraySpec, Frame, empty_arrays
from hopstream.transport.security import ClientSecurity

MAX_LINKS = 8
"""Largest number of links to one server; further requests share them."""
BUSY_S = 0.05
"""Seconds before the first retry at a busy server; each further wait is twice as long."""
MAX_BUSY_S = 1.0

TOKEN_REMEDY = "give a token that is in the server's --token-file now"
TIMEOUT_REMEDY = "it is busy, stopped or not a hopstream server; look at its log, check the port, or raise timeout_s"


class Connection:
    """A client's connection to one server. Safe to use from many threads."""

    def __init__(self, location: Location, security: ClientSecurity) -> None:
        """Prepare to connect; the first request connects.

        Raises:
            AccessDenied: A token would be sent unencrypted.
        """
        security.check_location(location)
        self.location = location
        self.name = str(location)
        """Name of the server in messages, with its parts once they are known."""
        self._security = security
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._idle: list[Link] = []
        self._users: dict[Link, int] = {}
        self._left: deque[Link] = deque()
        self._opening: set[Opening] = set()
        self._is_closed = False
        self.has_left = False
        """Whether the server has announced that it stops for a while, and is not back yet."""

    def start(self, frame: Frame, timeout_s: float, what: str, sink: Sink, *, is_patient: bool = True) -> UnderWay:
        """Send a request; ``UnderWay.result`` reads its answer.

        Args:
            frame: The request.
            timeout_s: Time limit in total, in seconds.
            what: Name of the operation in messages.
            sink: Receives the frames of the answer.
            is_patient: Retry until the deadline while the server is busy or restarting. False if the caller has other
                servers to ask.

        Raises:
            StateError: The process was forked since the connection was made.
        """
        self.check_process()
        return UnderWay(self, frame, timeout_s, what, sink, is_patient=is_patient)

    def call(self, frame: Frame, timeout_s: float, what: str, sink: Sink, *, is_patient: bool = True) -> None:
        """Send a request and wait until a sink has received its answer; see ``start``.

        Raises:
            StoreTimeout: The answer was not complete in time.
            ServerBusy: The server has no room for the request.
            StoreUnavailable: The server is unreachable, or has stopped.
            AccessDenied: The server refused the token or certificate.
            RemoteError: The server failed.
            FormatError: The answer is malformed.
            StateError: The process was forked since the connection was made.
        """
        self.start(frame, timeout_s, what, sink, is_patient=is_patient).result()

    def ask(
        self, frame: Frame, timeout_s: float, what: str, sink: OneFrame | None = None, *, is_patient: bool = True
    ) -> Frame:
        """Send a request whose answer is one frame, and return the frame; see ``call`` for other errors.

        Raises:
            FormatError: The answer has no frame, or several.
        """
        sink = sink or OneFrame()
        self.call(frame, timeout_s, what, sink, is_patient=is_patient)
        if sink.frame is None:
            raise FormatError(f"{self.name} gave an empty answer to {what}; it must be one frame")
        return sink.frame

    def ping(self, timeout_s: float) -> None:
        """Wait until the server answers a ping.

        Raises:
            StoreTimeout: The server did not answer in time.
            StoreUnavailable: The server is unreachable.
            AccessDenied: The server refused the token or certificate.
        """
        self.check_process()
        ends = time.monotonic() + timeout_s
        try:
            try:
                self._ping(ends, is_new=False)
            except LinkLost:  # maybe of an older link: the server may have been restarted
                self._ping(ends, is_new=True)
        except Exception as error:
            raise self._explained(error, timeout_s, "ping") from error

    def _ping(self, ends: float, *, is_new: bool) -> None:
        links: list[Link] = []
        taking = _Taking(self, ends, "ping", lambda link, _: links.append(link), is_new=is_new)
        error = taking.wait(ends)
        if error is not None:
            raise error
        (link,) = links
        try:
            link.ping(ends)
        finally:
            self._give_link(link)

    def check_process(self) -> None:
        """Raise ``StateError`` in a forked process; takes no lock, because a lock may be held there forever."""
        if self.is_foreign:
            raise StateError(
                f"the connection to {self.name} was made in process {self._process} and used in its fork "
                f"{os.getpid()}; "
                "make the loader or the store there, or start workers with spawn"
            )

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that made the connection."""
        return os.getpid() != self._process

    def check_open(self, what: str) -> None:
        """Raise ``StoreUnavailable`` if the connection is closed."""
        if self._is_closed:
            raise StoreUnavailable(f"cannot {what} at {self.name}: the store is closed")

    def close(self) -> None:
        """Refuse requests, end those under way, and wait until no thread reads; a second call does nothing.

        No array of a caller is written afterwards. In a forked process the call does nothing.
        """
        if self.is_foreign:
            return
        with self._changed:
            self._is_closed = True
            links, openings = [*self._users, *self._idle], list(self._opening)
            self._idle.clear()
            self._changed.notify_all()
        for opening in openings:
            opening.give_up()
        for link in links:
            link.close()
        ends = time.monotonic() + LEAVE_S
        for link in links:
            link.wait_until_left(ends)

    def _find_link(self, what: str, *, is_new: bool) -> Link | None:
        """Return an existing link, to be used until ``_give_link``; None if one must be made or awaited.

        Args:
            what: Name of the operation in messages.
            is_new: Use no link that existed before.

        Raises:
            StoreUnavailable: The connection is closed.
        """
        with self._lock:
            return self._found(what, is_new=is_new)

    def _found(self, what: str, *, is_new: bool) -> Link | None:
        """Return a link as ``_find_link`` does; called with the lock."""
        self.check_open(what)
        self._take_back()
        now = time.monotonic()
        while self._idle:
            link = self._idle.pop()
            if not is_new and link.is_fresh(now):
                self._users[link] = 1
                return link
            self._retire(link)
        if is_new or not self._is_full:
            return None
        shared = [link for link in self._users if link.is_usable]
        if not shared:
            return None
        link = min(shared, key=lambda one: one.num_under_way)
        self._users[link] += 1
        return link

    @property
    def _is_full(self) -> bool:
        """Whether links are shared instead of made; called with the lock."""
        return len(self._users) + len(self._opening) >= MAX_LINKS

    def _make_link(self, opening: Opening, ends: float, what: str, *, is_new: bool) -> tuple[Link, bool]:
        """Return a link, to be used until ``_give_link``, and whether it was made by this call.

        Args:
            opening: Lets another thread cancel it.
            ends: Deadline.
            what: Name of the operation in messages.
            is_new: Use no link that existed before.

        Raises:
            LinkLost: No link can be made.
            StoreError: See ``Link``.
        """
        with self._changed:
            link = self._found(what, is_new=is_new)
            while link is None and self._opening and self._is_full and not (is_new or opening.is_given_up):
                if not self._changed.wait(ends - time.monotonic()):
                    raise StoreTimeout("no connection was free in time: other requests are waiting for one")
                link = self._found(what, is_new=is_new)
            if link is not None:
                return link, False
            self._opening.add(opening)
        try:
            link = Link(self.location, self._security, ends, opening)
        except ServerLeaving:
            self.has_left = True
            raise
        finally:
            with self._changed:
                self._opening.discard(opening)
                self._changed.notify_all()
        with self._changed:
            is_left = self._is_closed or opening.is_given_up
            if not is_left:
                self._users[link] = 1
                self.has_left = False
                self._changed.notify_all()
        if is_left:
            link.close()
            self.check_open(what)
            raise LinkLost("it was closed")
        return link, True

    def _give_link(self, link: Link) -> None:
        """Give back a link that is no longer used."""
        self._left.append(link)
        with self._lock:
            self._take_back()

    def _give_link_soon(self, link: Link) -> None:
        """Give back a link in a finalizer, which may run in a thread that holds the lock."""
        self._left.append(link)
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        """Process returned links; called with the lock."""
        while self._left:
            link = self._left.popleft()
            self._users[link] -= 1
            if self._users[link]:
                continue
            del self._users[link]
            if link.is_usable and not self._is_closed:
                self._idle.append(link)
            else:
                self._retire(link)

    def _retire(self, link: Link) -> None:
        """Close a link for good; called with the lock."""
        self.has_left = self.has_left or link.comes_back
        link.close()

    def _wait(self, seconds: float, what: str) -> None:
        """Wait before a retry."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)
            self.check_open(what)

    def _explained(self, error: Exception, timeout_s: float, what: str) -> HopstreamError:
        """Add server and operation to an error."""
        if self._is_closed:
            return StoreUnavailable(f"cannot {what} at {self.name}: the store was closed meanwhile")
        if isinstance(error, HopstreamError) and hasattr(error, "__notes__"):  # an error from the server
            return error
        sent = "" if self._security.has_token else ", and none was sent"
        texts: dict[type[HopstreamError], str] = {
            StoreTimeout: f"{self.name} gave no answer in {timeout_s:.3g} s to {what}; {TIMEOUT_REMEDY}",
            AccessDenied: f"{self.name} refused {what}: {error}{sent}; {TOKEN_REMEDY}",
            ServerBusy: f"{self.name} is too busy for {what}: {error}",
        }
        kind = next((kind for kind in texts if isinstance(error, kind)), None)
        if kind is not None:
            return kind(texts[kind])
        if isinstance(error, HopstreamError):
            return error
        said = str(error) if isinstance(error, LinkLost) else f"{type(error).__name__}: {error}"
        return StoreUnavailable(f"{self.name} cannot be reached for {what}: {said}")


class _Taking:
    """Acquisition of a link for one use: an existing link at once, else a new one made by a thread.

    With the thread, a client can start requests at several servers in parallel. The thread also looks up the host's
    name. A lookup cannot be interrupted, so callers could miss their deadlines without the thread.
    """

    __slots__ = ("_arguments", "_connection", "_error", "_is_done", "_is_using", "_opening", "_use")

    def __init__(
        self, connection: Connection, ends: float, what: str, use: Callable[[Link, bool], None], *, is_new: bool
    ) -> None:
        """Take an existing link, or start a thread that makes one.

        Args:
            connection: The connection.
            ends: Deadline.
            what: Name of the operation in messages.
            use: Called with the link, and with whether it was just made; must keep the deadline, too.
            is_new: Use no link that existed before.
        """
        self._connection, self._arguments, self._use = connection, (ends, what, is_new), use
        self._error: BaseException | None = None
        self._is_done = self._is_using = False
        try:
            link = connection._find_link(what, is_new=is_new)
            if link is not None:
                use(link, False)
        except (LinkLost, HopstreamError) as error:
            self._error = error
        else:
            if link is None:
                self._opening = Opening()
                try:
                    threading.Thread(target=self._run, name="hopstream-connect", daemon=True).start()
                except RuntimeError:  # the system cannot start another thread
                    self._run()
                return
        self._is_done = True
        del self._use

    def wait(self, ends: float) -> Exception | None:
        """Wait until the link was used; return the error, if any. At the deadline the link is cancelled."""
        if not self._is_done:
            try:
                self._wait(ends)
            except BaseException:  # an interruption of this thread, such as KeyboardInterrupt
                self._opening.give_up()
                raise
        if self._error is not None and not isinstance(self._error, LinkLost | HopstreamError):
            raise self._error
        return self._error

    def _wait(self, ends: float) -> None:
        connection, changed = self._connection, self._connection._changed
        with changed:
            changed.wait_for(
                lambda: self._is_done or (connection._is_closed and not self._is_using), ends - time.monotonic()
            )
            if self._is_using:  # ``use`` keeps the deadline; its answer must be known before it can be cancelled
                changed.wait_for(lambda: self._is_done)
            elif not self._is_done:
                self._error = LinkLost("it was closed") if connection._is_closed else StoreTimeout("the time is over")
                self._is_done = True
                self._opening.give_up()

    def _run(self) -> None:
        error: BaseException | None = None
        ends, what, is_new = self._arguments
        changed = self._connection._changed
        try:
            link, is_made = self._connection._make_link(self._opening, ends, what, is_new=is_new)
            with changed:
                self._is_using = not self._is_done
            if self._is_using:
                self._use(link, is_made)
            else:
                self._connection._give_link(link)
        except BaseException as caught:  # ``wait`` raises it
            error = caught
        with changed:
            if not self._is_done or self._is_using:
                self._error, self._is_done, self._is_using = error, True, False
            changed.notify_all()
        del self._use  # breaks a reference cycle with the request


class UnderWay:
    """A request under way, which is sent again if that can help."""

    __slots__ = (
        "_answer", "_connection", "_ends", "_frame", "_is_patient", "_link", "_sink", "_taking", "_timeout_s",
        "_was_old", "_what",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, frame: Frame, timeout_s: float, what: str, sink: Sink, *, is_patient: bool
    ) -> None:
        """Start to send the request; ``result`` raises all errors."""
        self._connection, self._frame, self._what, self._sink = connection, frame, what, sink
        self._timeout_s, self._is_patient = timeout_s, is_patient
        self._ends = time.monotonic() + timeout_s
        self._link: Link | None = None
        self._answer: Answer | None = None
        self._send(is_new=False)

    def result(self) -> None:
        """Wait until the answer is complete; see ``Connection.call`` for the errors."""
        was_renewed, wait_s = False, BUSY_S
        while True:
            error = self._taking.wait(self._ends) or self._read()
            if error is None:
                return
            is_renewed = self._was_old or isinstance(error, LinkGivenUp)
            if isinstance(error, LinkLost) and is_renewed and not was_renewed and self._may_repeat:
                was_renewed = True
                self._send(is_new=True)
            elif self._is_patient and self._is_passing(error) and time.monotonic() + wait_s < self._ends:
                self._connection._wait(wait_s, self._what)
                wait_s = min(2 * wait_s, MAX_BUSY_S)
                self._send(is_new=False)
            else:
                raise self._connection._explained(error, self._timeout_s, self._what) from (
                    None if isinstance(error, HopstreamError) else error
                )

    @property
    def _may_repeat(self) -> bool:
        """Whether the request may be repeated: the sink has received nothing, and there is time left."""
        return (self._answer is None or not self._answer.has_begun) and time.monotonic() < self._ends

    def _is_passing(self, error: Exception) -> bool:
        """Return whether the error is temporary: the server is busy or restarting."""
        is_going = isinstance(error, LinkLost | StoreUnavailable) and self._connection.has_left
        is_passing = isinstance(error, ServerBusy) or is_going
        return is_passing and self._may_repeat

    def _send(self, *, is_new: bool) -> None:
        """Take a link and send the request over it."""
        self._was_old = False
        self._taking = _Taking(self._connection, self._ends, self._what, self._send_over, is_new=is_new)

    def _send_over(self, link: Link, is_made: bool) -> None:
        self._link, self._was_old = link, not is_made
        try:
            self._answer = link.start(self._frame, self._sink, self._ends)
        except BaseException:
            self._leave()
            raise

    def _read(self) -> Exception | None:
        """Wait for the answer; return the error, if any."""
        link, answer = self._link, self._answer
        assert link is not None and answer is not None  # noqa: S101 - it was sent
        try:
            if not link.wait(answer, self._ends):
                link.cancel(answer)
                return StoreTimeout("the time is over")
        except BaseException:  # for example KeyboardInterrupt: the rest of the answer would stay unread
            link.close()
            raise
        finally:
            self._leave()
        error = answer.error
        if answer.told is None and error is None:
            return None
        return self._told(answer)

    def _told(self, answer: Answer) -> Exception | None:
        """Return the error of the server or of the sink."""
        name, error = self._connection.name, answer.error
        if answer.told is not None:
            try:
                raise_error(answer.told, name, self._what)
            except HopstreamError as told:
                error = told
        if isinstance(error, HopstreamError) and not hasattr(error, "__notes__"):
            error.add_note(f"answered by {name} to {self._what}")
        return error

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._connection._give_link(link)

    def __del__(self) -> None:
        """Cancel an answer whose result was never asked for."""
        link = getattr(self, "_link", None)
        if link is not None and self._answer is not None and not self._connection.is_foreign:
            link.cancel(self._answer)
            self._connection._give_link_soon(link)


class OneFrame:
    """Sink for an answer of one frame."""

    def __init__(self, take: Callable[[tuple[int, ...], np.dtype[Any]], Array] | None = None) -> None:
        """Wait for the frame.

        Args:
            take: Returns an array of a shape and a dtype; None makes new arrays.
        """
        self.frame: Frame | None = None
        self._take = take

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Return arrays to read the frame into."""
        if self._take is None:
            return empty_arrays(specs)
        return [self._take(shape, dtype) for dtype, shape in specs]

    def take(self, frame: Frame) -> None:
        """Keep the frame."""
        if self.frame is not None:
            raise FormatError("an answer has more than one frame; it must be one")
        self.frame = frame


def ask_again_if_busy(error: Exception, server: int, untried: list[int], were_busy: set[int]) -> None:
    """Retry a busy server after the untried ones, once; without untried ones it was asked with patience."""
    if isinstance(error, ServerBusy) and untried and server not in were_busy:
        were_busy.add(server)
        untried.append(server)
