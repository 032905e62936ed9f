"""Calls and peers: a server's record of its clients' connections and their requests under way."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from hopstream.errors import ServerBusy, SettingsError
from hopstream.transport.limits import Account
from hopstream.transport.messages import Frame
from hopstream.transport.receiver import Receiver
from hopstream.transport.stream import ByteStream
from hopstream.transport.tokens import ANYONE, Identity

CALL_BYTES = 2 << 20
"""Bytes reserved for the answer to a request besides the request itself: a frame and its sources."""
SPARE_SHARE = 8
"""Larger frames are made while all requests and answers take at most the limit divided by this number."""


class Call(Frame):
    """A request that is being answered: its frame and its client.

    Attributes:
        identity: The client.
        ends: Deadline of the answer, by ``time.monotonic``.
        is_over: True when no one waits for the answer any more.
    """

    __slots__ = (
        "_account", "_frames", "_has_ended", "_is_large", "_listeners", "_num_bytes", "_number", "_peer",
        "_request_bytes", "_reserved_bytes", "ends", "identity", "is_over",
    )  # fmt: skip

    def __init__(self, peer: Peer, number: int, frame: Frame, ends: float, num_bytes: int, account: Account) -> None:
        """Start a call for a received request."""
        super().__init__(frame.header, frame.arrays)
        self._account = account
        self.identity = peer.identity or ANYONE
        self.ends = ends
        self.is_over = False
        self._peer, self._number, self._num_bytes = peer, number, num_bytes
        self._request_bytes, self._reserved_bytes = num_bytes - CALL_BYTES, num_bytes
        self._frames: Iterator[Frame] | None = None
        self._has_ended = self._is_large = False
        self._listeners: list[Callable[[], None]] = []

    def reserve_spare(self, num_bytes: int) -> bool:
        """Reserve memory as ``reserve`` does, if ``SPARE_SHARE`` of the server's memory for answers is enough.

        Returns:
            Whether the memory was reserved.
        """
        more = max(0, self._request_bytes + num_bytes - self._num_bytes)
        if not self._account.more(more, self._account.limit // SPARE_SHARE):
            return False
        self._num_bytes += more
        self._reserved_bytes = self._num_bytes
        return True

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory for an answer that needs more than ``CALL_BYTES`` at a time.

        Args:
            num_bytes: Bytes of the largest frame, and of the data that it is made from.

        Raises:
            ServerBusy: There is no room now.
            SettingsError: The answer exceeds the server's limit.
        """
        more = self._request_bytes + num_bytes - self._num_bytes
        if more <= 0:
            return
        if self._request_bytes + num_bytes > self._account.limit:
            raise SettingsError(
                f"the answer needs {num_bytes} bytes at a time; the server has {self._account.limit} for all answers; "
                "request less at once"
            )
        if not self._account.more(more):
            raise ServerBusy(f"the answer needs {num_bytes} bytes at a time, and the server has no room for them now")
        self._num_bytes = self._reserved_bytes = self._num_bytes + more

    def on_over(self, tell: Callable[[], None]) -> None:
        """Call a function once when the answer is no longer wanted; the function must not wait or raise."""
        self._listeners.append(tell)
        if self.is_over:
            self._give_up()

    def _give_up(self) -> None:
        self.is_over = True
        while self._listeners:
            with suppress(IndexError):  # another thread calls the listener
                self._listeners.pop()()


def identity_of(frame: Frame) -> Identity:
    """Return the client that sent a request; a request without a connection has all rights."""
    return frame.identity if isinstance(frame, Call) else ANYONE


class Peer:
    """Connection of a client, with its requests under way."""

    def __init__(self, stream: ByteStream, address: str, *, has_shaken_hands: bool) -> None:
        """Take over a connection before its hello."""
        self.stream, self.address = stream, address
        self.fd = stream.fileno()
        self.lock = threading.Lock()
        self.since = time.monotonic()
        self.has_shaken_hands = has_shaken_hands
        self.hello = bytearray()
        self.identity: Identity | None = None
        self.receiver: Receiver | None = None
        self.out: deque[memoryview] = deque()
        self.calls: dict[int, Call] = {}
        self.parked: dict[int, Call] = {}
        """Calls that resume when the client has read the bytes that wait, by number."""
        self.held_bytes = self.num_cancelled = 0
        """Bytes and number of calls that were cancelled before their frames were sent."""
        self.progress_at = self.since
        """Time of the last write."""
        self.num_untold = 0
        """Pongs and refusals that wait because the client does not read."""
        self.is_reading = self.is_leaving = self.is_closed = self.wants_write = False
        self.answered_at = 0.0
        """Time at which the hello is answered; 0 if the answer is not delayed."""
        self.revoked_at = 0.0
        """Time at which the server noticed that the token was removed; 0 if it is valid."""
        self.coming_bytes = 0
        self.coming_ends = 0.0
        """Bytes reserved for a message that is being received, and its deadline."""
