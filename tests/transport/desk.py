"""Operations of the listeners in these tests, and listeners of every kind."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopstream.errors import StoreTimeout
from hopstream.transport.calls import Call
from hopstream.transport.limits import TransportLimits
from hopstream.transport.listener import Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.poller import EpollPoller, SelectorPoller
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.store.authority import Authority
from tests.transport.peer import Peer

WAYS = [f"{kind}-{poller}" for kind in ("tcp", "tls", "unix") for poller in ("epoll", "selector")]


class Desk:
    """Answer requests, and count begun, ended and sent ones."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.num_begun = self.num_ended = self.num_frames = 0
        self._lock = threading.Lock()

    def answer(self, call: Call) -> Iterator[Frame]:
        with self._lock:
            self.num_begun += 1
        try:
            yield from getattr(self, f"_{call.text('op')}")(call)
        finally:
            with self._lock:
                self.num_ended += 1

    def _echo(self, call: Call) -> Iterator[Frame]:
        yield Frame(call.header, call.arrays, is_last=True)

    def _hold(self, call: Call) -> Iterator[Frame]:
        """Send a first frame, wait for permission to send the last, and raise if the caller is gone."""
        yield Frame({"begun": True})
        is_over = threading.Event()
        call.on_over(is_over.set)
        ends = time.monotonic() + 20
        while not (self.may_go_on.is_set() or is_over.wait(0.005)):
            assert time.monotonic() < ends
        if not self.may_go_on.is_set():
            raise StoreTimeout("nobody waits any more")
        yield Frame({"done": call.header.get("n")}, is_last=True)

    def _count(self, call: Call) -> Iterator[Frame]:
        """Send the given number of frames of a million bytes."""
        for number in range(call.header["num"]):
            self.num_frames += 1
            yield Frame({"number": number}, [np.full(1_000_000, number % 256, np.uint8)])

    def _nothing(self, call: Call) -> Iterator[Frame]:
        return iter(())

    def _fail(self, call: Call) -> Iterator[Frame]:
        raise ZeroDivisionError("a bug")

    def _drip(self, call: Call) -> Iterator[Frame]:
        """A small frame every few milliseconds."""
        for number in range(10_000):
            yield Frame({"number": number})
            time.sleep(0.005)


@dataclass
class Served:
    """A listener, its desk, and the way to reach it."""

    listener: Listener
    desk: Desk
    context: ssl.SSLContext | None = None
    security: ClientSecurity | None = None

    @property
    def location(self) -> str:
        return str(self.listener.location)

    def connect(self, token: str | None = None, *, says_hello: bool = True) -> Peer:
        return Peer(self.location, token, says_hello=says_hello, context=self.context)


@contextmanager
def serve(
    way: str = "tcp-epoll",
    *,
    authority: Authority | None = None,
    folder: Path | None = None,
    token: str | None = None,
    **limits: float,
) -> Iterator[Served]:
    """Listen in one of the ``WAYS``, and check a clean end."""
    kind, poller = way.split("-")
    desk = Desk()
    security, context, client = ServerSecurity(token=token), None, ClientSecurity(token=token)
    if kind == "tls":
        assert authority is not None
        identity = authority.issue("store.example")
        security = ServerSecurity(token=token, certificate=identity.certificate, private_key=identity.key)
        context = ssl.create_default_context(cadata=authority.root.decode())
        client = ClientSecurity(token=token, roots=authority.root)
    location = f"unix://{folder}/s" if kind == "unix" else f"{kind}://127.0.0.1:0"
    listener = Listener(
        Location.parse(location), desk.answer, security=security, limits=TransportLimits(**limits),  # type: ignore[arg-type]
        poller=EpollPoller() if poller == "epoll" else SelectorPoller(),
    )  # fmt: skip
    try:
        yield Served(listener, desk, context, client)
        desk.may_go_on.set()
        wait_until(lambda: listener.num_calls == 0, "every call has ended", 5)
        assert listener.account.taken == 0
    finally:
        desk.may_go_on.set()
        listener.close(5)


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Poll until a condition holds."""
    ends = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < ends, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.002)
