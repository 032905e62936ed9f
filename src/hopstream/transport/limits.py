"""Limits: a server's limits on clients, an account of their bytes, and delays for misuse."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

from hopstream.checks import Settings, check_int, check_seconds

DELAY_S = 0.25
"""First delay of an address in seconds; each further misdeed doubles it."""
MAX_DELAY_S = 4.0
MAX_ADDRESSES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits(Settings):
    """Limits on all clients of a server together; the constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    max_connections: int = field(default=1024, metadata={"help": "most connections that have said hello"})
    max_strangers: int = field(
        default=128, metadata={"help": "most connections that have not said hello; one more ends the oldest"}
    )
    max_calls: int = field(default=512, metadata={"help": "most requests in progress"})
    max_request_bytes: int = field(default=256 << 20, metadata={"help": "most bytes in one request"})
    max_bytes: int = field(
        default=1 << 30, metadata={"help": "most bytes of requests and of answers that are being sent, all together"}
    )
    hello_s: float = field(default=5.0, metadata={"help": "seconds within which a connection must say hello"})

    def __post_init__(self) -> None:
        """Check every field."""
        check_int("max_connections", self.max_connections, 1, 1 << 20)
        check_int("max_strangers", self.max_strangers, 1, 1 << 20)
        check_int("max_calls", self.max_calls, 1, 1 << 16)
        check_int("max_request_bytes", self.max_request_bytes, 1, 1 << 62)
        check_int("max_bytes", self.max_bytes, 1 << 20, 1 << 62)
        check_seconds("hello_s", self.hello_s)


class Account:
    """Counter of requests under way and of their bytes, with a limit. Safe to use from many threads."""

    def __init__(self, limit: int) -> None:
        """Start at zero."""
        self.limit = limit
        self._lock = threading.Lock()
        self.taken = self.num_calls = 0
        """Bytes that are reserved, and requests under way."""

    def begin(self, num_bytes: int) -> bool:
        """Count a request and reserve its bytes; return False if there is no room."""
        with self._lock:
            if self.taken + num_bytes > self.limit:
                return False
            self.taken += num_bytes
            self.num_calls += 1
            return True

    def more(self, num_bytes: int, limit: int | None = None) -> bool:
        """Reserve more bytes for a request; return False if that exceeds the limit, or a smaller one."""
        with self._lock:
            if self.taken + num_bytes > (self.limit if limit is None else limit):
                return False
            self.taken += num_bytes
            return True

    def add(self, num_bytes: int) -> None:
        """Count bytes that exist already, beyond the limit if necessary; a negative number frees bytes."""
        with self._lock:
            self.taken += num_bytes

    def end(self, num_bytes: int) -> bool:
        """Free the bytes of a request; return whether no request is left."""
        with self._lock:
            self.taken -= num_bytes
            self.num_calls -= 1
            return not self.num_calls


class Misdeeds:
    """Misdeeds by address, and the delays that follow from them. Safe to use from many threads."""

    def __init__(self, num_free: int, forgiven_s: float) -> None:
        """Start without misdeeds.

        Args:
            num_free: Misdeeds of one address without a delay.
            forgiven_s: Seconds in which ``num_free`` misdeeds are forgiven, evenly over time. At most three times as
                many are counted.
        """
        self._num_free = num_free
        self._forgiven_s = forgiven_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, float]] = {}

    def add(self, address: str, num: int) -> None:
        """Count misdeeds of an address; the address without misdeeds for the longest time is forgotten."""
        with self._lock:
            num_now = min(self._num(address) + num, 3 * self._num_free)
            self._known.pop(address, None)
            self._known[address] = num_now, time.monotonic()
            if len(self._known) > MAX_ADDRESSES:
                del self._known[next(iter(self._known))]

    def delay_s(self, address: str) -> float:
        """Return the seconds by which an answer to an address is delayed now; 0 for none."""
        with self._lock:
            num_delayed = math.ceil(self._num(address) - self._num_free)
        return min(MAX_DELAY_S, DELAY_S * 2.0 ** (num_delayed - 1)) if num_delayed > 0 else 0.0

    def _num(self, address: str) -> float:
        num, since = self._known.get(address, (0.0, 0.0))
        return max(0.0, num - (time.monotonic() - since) * self._num_free / self._forgiven_s)
