"""Meeting of ranks that know the address of one of them.

Rank 0 listens at the address that all were given. Each rank joins a group and puts values down, round by round; when
all have, each gets the values of all in the order of ranks. Nothing else passes here: what ranks want of each other
they ask each other, at addresses that they exchange.

A rank that waits asks again and again, and is answered at once when the last value arrives, so every wait ends at the
deadline of whoever waits, and a restarted call does no harm.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from hopstream.checks import check_int, check_seconds
from hopstream.errors import SettingsError, StoreTimeout, StoreUnavailable
from hopstream.store.channel import Channel
from hopstream.store.rendezvous_server import (
    FAILED,
    MAX_RANKS,
    TURN_S,
    Member,
    host_rendezvous,
    leave_rendezvous,
)
from hopstream.store.security import Location, ServerSecurity
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import encode_frame

LOG = logging.getLogger(__name__)
_START = "start all ranks with the same master_addr, master_port, group_name and world_size"
_TOGETHER = "it is busy, stopped or waits elsewhere: let ranks make, use and close the same things in the same order"
SLACK_S = 5.0
"""How much longer than its turn a call may take before rank 0 is taken to be gone."""
RETRY_S = 0.1
"""How long to wait before trying again to reach a rank 0 that does not listen yet."""
PROBE_S = 3.0
"""How long a rank may take to accept a connection: longer than it takes to send a lost packet again."""
NUM_PROBES = 2
"""How many times a rank must not accept before it is taken to be gone."""
MAX_PROBING = 256
"""How many ranks are probed at once."""
TELL_S = 2.0
"""How long a rank that gives up tries to say so."""
LAST_S = 0.2
"""How long leaving takes at least, so that the others see it."""
_OWN = secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Who wants to meet whom, and where.

    Attributes:
        group: Name of the group. Several may meet at one address, also of one name: a process that comes takes its
            rank in the first one that rank 0 opened in which it has not.
        rank: This process.
        world_size: How many ranks the group has.
        master_addr: A host name or IP address of the machine of rank 0.
        master_port: The port at which rank 0 listens.
        timeout_s: How long to wait for the other ranks, in each round.
    """

    group: str
    rank: int
    world_size: int
    master_addr: str
    master_port: int
    timeout_s: float = 180.0

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for name, low, high in (("world_size", 1, MAX_RANKS), ("master_port", 1, 65535)):
            check_int(name, getattr(self, name), low, high)
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or not 0 <= self.rank < self.world_size:
            raise SettingsError(
                f"rank is {self.rank!r}; of world_size {self.world_size} it is 0..{self.world_size - 1}"
            )
        if not isinstance(self.master_addr, str) or not self.master_addr:
            raise SettingsError(f"master_addr is {self.master_addr!r}; it must be a host name or IP address of rank 0")
        check_seconds("the time to wait", self.timeout_s)


class Group:
    """One rank's place in a group, from when it is made until it is left or closed."""

    def __init__(
        self,
        membership: Membership,
        *,
        security: ServerSecurity | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        """Prepare to meet; rank 0 listens from now on. Nobody is waited for.

        Args:
            membership: Who, whom and where.
            security: What rank 0 shows and asks for; needed where ``master_addr`` is not loopback.
            settings: What this rank shows and trusts.

        Raises:
            SettingsError: ``master_addr`` is not known.
            AccessDenied: Others could reach rank 0, and TLS or a token is missing.
            StoreUnavailable: Rank 0 cannot listen at the address.
        """
        security = security or ServerSecurity()
        self.membership = membership
        host = _resolved(membership.master_addr)
        self._advice = _advice(membership.master_addr, host, membership.rank)
        has_tls = security.certificate is not None
        self._location = Location(host, membership.master_port, has_tls)
        self._channel = Channel(self._location, settings or StoreSettings())
        self._member = Member(own_process(), secrets.token_hex(8))
        self._num_rounds = 0
        self._is_closed = False
        self._has_met = False
        self._are_together = False
        self._has_failed = False
        self._leaves_by = math.inf
        self._is_hosting = membership.rank == 0
        if self._is_hosting:
            host_rendezvous(self._location, security, membership.group, membership.world_size, self._member)

    @property
    def own_location(self) -> str:
        """``grpc://host:0`` of this machine as the machine of rank 0 reaches it."""
        return str(location_towards(self._location))

    def gather(self, value: Any, what: str, timeout_s: float | None = None) -> list[Any]:
        """Put a value down, wait until all ranks have, and return the values of all in the order of ranks.

        Args:
            value: Anything that JSON holds.
            what: What is waited for, as messages name it.
            timeout_s: How long to wait; the group's time if it is not given.

        Raises:
            StoreTimeout: Some ranks did not come in time; the message says which.
            StoreUnavailable: Rank 0 cannot be reached, or a rank gave up; the message says why.
            SettingsError: Ranks disagree about ``world_size``, or two processes have one rank.
        """
        self._num_rounds += 1
        header = self._meet(f"{self._num_rounds}", value, what, timeout_s or self.membership.timeout_s, None)
        self._are_together = True
        return list(header["values"])

    def fail(self, message: str) -> None:
        """Tell the other ranks, who may be waiting, that this one cannot go on; says nothing where nobody listens."""
        try:
            self._ask(FAILED, None, 0.0, TELL_S, failure=message)
        except Exception:  # the error that made this rank give up is the one to be seen
            LOG.debug("nobody heard that rank %d gave up", self.membership.rank, exc_info=True)

    def failure(self) -> str:
        """Which rank gave up, and why; empty where none did, or rank 0 cannot be asked."""
        try:
            return str(self._ask(FAILED, None, 0.0, TELL_S).get("failure", ""))
        except Exception:  # the error for which a reason is looked for is the one to be seen
            LOG.debug("rank 0 does not say whether a rank gave up", exc_info=True)
            return ""

    def leave_by(self, ends: float) -> None:
        """Wait for the others to leave no longer than until a time of ``time.monotonic()``."""
        self._leaves_by = ends

    def leave(self, locations: Sequence[str], timeout_s: float | None = None) -> list[int]:
        """Wait until all ranks leave, so that nobody misses what this one serves; then close.

        Where a rank gave up, the group stays open: end what is served, so that the others ask why, and close then.

        Args:
            locations: Where each rank serves: a rank that does not leave and serves no more is gone. Empty where no
                rank serves yet.
            timeout_s: How long to wait; the group's time if it is not given.

        Returns:
            The ranks that went without leaving; none where rank 0, who would know, has left before.

        Raises:
            StoreTimeout: Some ranks that are there did not leave in time.
            StoreUnavailable: A rank gave up; the message says why. Where rank 0 has left, nobody is waited for.
        """
        if self._is_closed:
            return []
        wait_s = min(timeout_s or self.membership.timeout_s, max(self._leaves_by - time.monotonic(), LAST_S))
        ends = time.monotonic() + wait_s

        def excuse(missing: Sequence[int]) -> frozenset[int]:
            return _silent(missing, locations, ends) if locations else frozenset()

        try:
            return list(self._meet("leave", None, "to leave", wait_s, excuse)["absent"])
        except StoreUnavailable:
            if self._has_failed:
                raise
            LOG.debug("rank 0 has left", exc_info=True)
            return []
        finally:
            if not self._has_failed:
                self.close()

    def close(self) -> None:
        """Leave without waiting for anybody; a second call does nothing.

        Where a rank gave up, rank 0 stays for some seconds, until all know.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._channel.close()
        if self._is_hosting:
            leave_rendezvous(self._location, self._member.token)

    def _meet(
        self,
        round_name: str,
        value: Any,
        what: str,
        timeout_s: float,
        excuse: Callable[[Sequence[int]], frozenset[int]] | None,
    ) -> dict[str, Any]:
        """The answer with the values of all ranks but those that, when they are missing, are excused."""
        ends, excused, who = time.monotonic() + timeout_s, frozenset[int](), self.membership
        missing: list[int] = []
        while (left := ends - time.monotonic()) > 0:
            try:
                header = self._ask(round_name, value, min(left, TURN_S), min(left, TURN_S) + SLACK_S, excused)
            except (StoreUnavailable, StoreTimeout) as error:
                if self._has_met or ends - time.monotonic() < RETRY_S:
                    raise self._unreachable(what, timeout_s, error) from error
                time.sleep(RETRY_S)
                continue
            self._has_met = self._has_met or header.get("is_open", True)
            if "failure" in header:
                self._has_failed = True
                raise StoreUnavailable(f"rank {who.rank} waited {what}: {header['failure']}")
            if "values" in header:
                return header
            missing = list(header["missing"])
            excused = frozenset() if excuse is None else excuse(missing)  # anew: who seemed gone may answer now
        shown = ", ".join(map(str, missing[:20])) or "of others"
        raise StoreTimeout(
            f"rank {who.rank} of {who.world_size} waited {timeout_s:.3g} s {what}; rank {shown} did not come to "
            f"{self._location}; {_TOGETHER if self._are_together else _START}{self._advice}"
        )

    def _unreachable(self, what: str, timeout_s: float, error: Exception) -> StoreUnavailable:
        who = self.membership
        return StoreUnavailable(
            f"rank {who.rank} of {who.world_size} cannot reach rank 0 at {self._location} {what} (tried for up to "
            f"{timeout_s:.3g} s): {error}; start rank 0, and give all ranks its master_addr and master_port"
            f"{self._advice}"
        )

    def _ask(
        self,
        round_name: str,
        value: Any,
        wait_s: float,
        timeout_s: float,
        excused: frozenset[int] = frozenset(),
        failure: str = "",
    ) -> dict[str, Any]:
        who = self.membership
        request = encode_frame(
            {
                "group": who.group, "round": round_name, "rank": who.rank, "world_size": who.world_size,
                "process": self._member.process, "token": self._member.token, "value": value, "wait_s": wait_s,
                "excused": sorted(excused), "failure": failure,
            }
        )  # fmt: skip
        return self._channel.ask(request, timeout_s, "meet").header


def location_towards(location: Location) -> Location:
    """An address of this machine, with port 0, as the machine of a location reaches it."""
    if location.is_loopback:
        return replace(location, port=0)
    family = socket.AF_INET6 if ":" in location.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        probe.connect((location.host, location.port))
        return Location(probe.getsockname()[0], 0, location.has_tls)


def own_process() -> str:
    """What tells this process from others, also from one that it was forked from."""
    return f"{_OWN}.{os.getpid()}"


def is_silent(location: str, ends: float) -> bool:
    """Whether nothing takes connections at a location; False where it cannot be told until ``ends``.

    Args:
        location: ``grpc://host:port``.
        ends: A time of ``time.monotonic()``.
    """
    return bool(_silent([0], [location], ends))


def _silent(ranks: Sequence[int], locations: Sequence[str], ends: float) -> frozenset[int]:
    """Those of some ranks that take no connections, as far as that can be told until a time."""
    silent: set[int] = set()
    for start in range(0, len(ranks), MAX_PROBING):
        chunk = set(ranks[start : start + MAX_PROBING])
        for _ in range(NUM_PROBES):
            wait_s = min(PROBE_S, ends - time.monotonic())
            if wait_s <= 0:
                return frozenset(silent)
            accepting, refusing = _probe({rank: locations[rank] for rank in chunk}, wait_s)
            chunk = chunk & refusing if wait_s < PROBE_S else chunk - accepting
        silent |= chunk
    return frozenset(silent)


def _probe(locations: Mapping[int, str], wait_s: float) -> tuple[set[int], set[int]]:
    """Connect to all at once, without threads, which cannot be had when the process ends.

    Returns:
        Whose port takes connections, and whose does not; who says neither in time is in none of them.
    """
    accepting, refusing, probes = set[int](), set[int](), dict[int, socket.socket]()
    ends = time.monotonic() + wait_s
    with ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        for rank, location in locations.items():
            place = Location.parse(location)
            probe = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET))
            probe.setblocking(False)
            probes[rank] = probe
            if probe.connect_ex((place.host, place.port)) in (0, errno.EINPROGRESS):
                waiting.register(probe, selectors.EVENT_WRITE, rank)
            else:
                refusing.add(rank)
        while waiting.get_map() and (left := ends - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                has_error = probes[key.data].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                (refusing if has_error else accepting).add(key.data)
    return accepting, refusing


def _resolved(host: str) -> str:
    """An IP address, so that all sides mean the same one; the first of version 4 where there are several."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"master_addr {host!r} is not known ({error}); write the IP address of rank 0") from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])


def _advice(name: str, address: str, rank: int) -> str:
    """What to do where a machine may know its own name as an address that leads nowhere else, as Debian's do."""
    if name.split(".", 1)[0] == "localhost" or _is_address(name):
        return ""
    if Location(address, 0, has_tls=False).is_loopback:
        return (
            f"; on the machine of rank {rank} master_addr {name!r} is {address}, a loopback address, which other "
            "machines do not reach (see its /etc/hosts): give all ranks the IP address of the machine of rank 0"
        )
    if rank == 0:
        return ""
    return (
        f"; where the machine of rank 0 knows its name {name!r} as a loopback address such as 127.0.1.1 (see its "
        "/etc/hosts), give all ranks its IP address"
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
