"""Roster of the servers and clients of one session, kept by server 0.

A server joins with its own address, and waits until all have joined. A client requests the addresses. Both send a
heartbeat every ``PRESENT_S``. So no process waits for one that has ended, and servers know the live clients.

A client that leaves waits for all clients of the session, as in GLT, including clients that have not joined yet. After
the deadline of a waiting client, clients that have not joined count as gone for all. A member that was live counts as
gone after ``GONE_S`` without a heartbeat.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopstream.errors import FormatError, HopstreamError, SettingsError, StoreError, StoreTimeout, StoreUnavailable
from hopstream.store.answer import Operation
from hopstream.store.settings import StoreSettings
from hopstream.stream.service import integer_of
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.security import ServerSecurity

LOG = logging.getLogger(__name__)
MAX_RANKS = 1 << 20
TURN_S = 1.0
"""Duration of one long-polling call; the caller then repeats it."""
SLACK_S = 5.0
"""Extra deadline of a call, beyond its duration."""
RETRY_S = 0.1
PRESENT_S = 2.0
"""Interval between heartbeats."""
GONE_S = 20.0
"""Time without a heartbeat after which a member counts as gone."""
ABANDONED_S = 60.0
"""Time without a heartbeat of any client after which the servers end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Rendezvous of the servers and clients of one session.

    Attributes:
        master_addr: A host name or IP address of the machine of server 0.
        master_port: The port at which server 0 listens.
        timeout_s: Deadline in seconds for other members, and for answers.
        security: Certificate and requirements of servers; required unless ``master_addr`` is loopback.
        settings: Credentials of this process for servers, and its trusted roots.
    """

    master_addr: str
    master_port: int
    timeout_s: float = 180.0
    security: ServerSecurity | None = None
    settings: StoreSettings | None = None

    @property
    def location(self) -> Location:
        """Address of server 0, with or without TLS.

        A server uses TLS if it has a certificate. A client uses TLS if it has roots or a certificate, or a token that
        must not be sent to another machine in plain text.
        """
        own = (self.settings or StoreSettings()).security
        plain = Location(self.master_addr, self.master_port)
        shows_certificate = self.security is not None and self.security.certificate is not None
        hides_token = own.has_token and not (plain.is_loopback or own.is_insecure)
        has_tls = shows_certificate or own.roots is not None or own.certificate is not None or hides_token
        return replace(plain, has_tls=has_tls)

    def connection(self, location: Location | None = None) -> Connection:
        """Open a connection to server 0, or to another server."""
        return Connection(location or self.location, (self.settings or StoreSettings()).security)


@dataclass(slots=True)
class _Known:
    """Record of a member: rank in its role, address, time of its last message, and whether it has left."""

    role: str
    rank: int
    location: str = ""
    seen_at: float = 0.0
    has_left: bool = False

    @property
    def is_gone(self) -> bool:
        return self.seen_at <= time.monotonic() - GONE_S


class Roster:
    """Roster of the servers and clients of a session, on server 0. Thread-safe."""

    def __init__(self, num_servers: int, num_clients: int = 0) -> None:
        """Start without members.

        With a number of clients, the session is abandoned when all that joined are gone.
        """
        self._num_servers, self._num_clients = num_servers, num_clients
        self._is_over = self._is_late = False
        self._changed = threading.Condition()
        self._named: dict[str, _Known] = {}
        self._ranked: dict[str, dict[int, _Known]] = {"server": {}, "client": {}}
        """Role to rank to the member that sent the latest message with this rank."""
        self.operations: Mapping[str, Operation] = {"roster": self._answer}
        """Operations by name, for ``StoreServer``."""

    def _answer(self, frame: Frame) -> Iterator[Frame]:
        ends = time.monotonic() + TURN_S
        role, step = frame.text("role"), frame.text("step")
        if role not in self._ranked:
            raise FormatError(f"header field 'role' is {role[:50]!r}; it must be server or client")
        with self._changed:
            rank = self._hear(role, step, frame)
            self._changed.notify_all()
            if step == "join":
                self._changed.wait_for(lambda: not self._unjoined(), ends - time.monotonic())
            elif step == "leave":
                self._changed.wait_for(lambda: not self._staying(role, frame), ends - time.monotonic())
                self._is_late |= frame.header.get("is_last_turn") is True
            missing = self._staying(role, frame) if step == "leave" else self._unjoined()
            tells = step == "leave" and role == "client" and not missing and rank == self._teller(frame)
            self._is_over |= tells
            told = {
                "locations": [known.location for _, known in sorted(self._ranked["server"].items())],
                "missing": missing, "tells": tells, "is_abandoned": self._is_abandoned(),
                "clients": self._present() if role == "server" else [],
            }  # fmt: skip
        yield Frame(told)

    def _hear(self, role: str, step: str, frame: Frame) -> int:
        """Record a member's message; return its rank."""
        name, rank = frame.text("name"), integer_of(frame, "rank", 0, MAX_RANKS)
        known = self._named.get(name, _Known(role, rank))
        if step == "join":
            self._check_new(known, frame)
        if step != "present" or name in self._named:
            known.seen_at = time.monotonic()
            self._named[name] = self._ranked[role][rank] = known
        if step == "leave":
            known.has_left = True
            self._is_over |= role == "server"
        return rank

    def _check_new(self, known: _Known, frame: Frame) -> None:
        """Refuse a member if another member has its rank.

        A client repeats its request until its deadline, because the other client may have been killed.
        """
        if self._is_over:  # a new member belongs to the next session, whose server 0 listens here soon
            raise StoreUnavailable("the session has ended; wait for the next one, or start servers again")
        rank, other = known.rank, self._ranked[known.role].get(known.rank, known)
        if known.role == "client":
            if self._num_clients and other is not known and not (other.has_left or other.is_gone):
                raise StoreUnavailable(
                    f"another client is client {rank}; give each a rank of its own. One that was killed counts as gone "
                    f"after {GONE_S:g} s"
                )
            return
        known.location, num_servers = frame.text("location"), integer_of(frame, "num_servers", 0, MAX_RANKS)
        if num_servers != self._num_servers or rank >= num_servers:
            raise SettingsError(
                f"server {rank} of {num_servers} joined a session of {self._num_servers} servers; start all servers "
                "with the same num_servers, and ranks from 0"
            )
        if other.location != known.location:
            raise SettingsError(
                f"two servers have rank {rank}: {other.location} and {known.location}; give each a rank of its own"
            )

    def _unjoined(self) -> list[int]:
        return [rank for rank in range(self._num_servers) if rank not in self._ranked["server"]]

    def _staying(self, role: str, frame: Frame) -> list[int]:
        """Return the ranks that have not left and are not gone.

        After the first deadline, ranks that never joined count as gone.
        """
        if self._is_over and role == "client":
            return []
        ranked = self._ranked[role]
        wanted = range(self._num_servers if role == "server" else integer_of(frame, "num_clients", 0, MAX_RANKS))
        return [
            rank
            for rank in wanted
            if (not self._is_late if rank not in ranked else not (ranked[rank].has_left or ranked[rank].is_gone))
        ]

    def _teller(self, frame: Frame) -> int:
        """Return the client that stops the servers: the first one that is live at the end."""
        there = [rank for rank, known in self._ranked["client"].items() if known.has_left and not known.is_gone]
        return min(there, default=0) if integer_of(frame, "num_clients", 0, MAX_RANKS) else 0

    def _present(self) -> list[str]:
        """Return the names of the live clients, and drop records of members that are gone."""
        self._named = {name: known for name, known in self._named.items() if not known.is_gone}
        return [name for name, known in self._named.items() if known.role == "client"]

    def _is_abandoned(self) -> bool:
        seen = [known.seen_at for known in self._ranked["client"].values()]
        return bool(self._num_clients and seen) and max(seen) < time.monotonic() - ABANDONED_S


class Member:
    """Server or client of a session; sends requests to server 0."""

    def __init__(self, connection: Connection, role: str, rank: int) -> None:
        """Use ``connection``, which the member closes."""
        self.connection, self._role, self._rank = connection, role, rank
        self.name = secrets.token_hex(8)
        """Random name that is unique among all members of all sessions."""
        self.clients: frozenset[str] = frozenset()
        """For a server: names of the live clients."""
        self._ending = threading.Event()
        self._presence: threading.Thread | None = None
        self._answered_at = time.monotonic()
        self._is_abandoned = False

    @property
    def trouble(self) -> str | None:
        """Reason why no client can stop this server; None while a client may."""
        silent_s = time.monotonic() - self._answered_at
        if silent_s > GONE_S + TURN_S + SLACK_S:
            return f"server 0 at {self.connection.location} has not answered for {silent_s:.0f} s"
        return "all compute processes are gone, and none of them left the session" if self._is_abandoned else None

    def join(self, timeout_s: float, **more: Any) -> list[str]:
        """Wait until all servers have joined; return their addresses in the order of ranks.

        Raises:
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: Server 0 cannot be reached.
            SettingsError: Servers disagree about their number, or two servers have the same rank.
        """
        what = "for all servers to start"
        return list(self._wait("join", timeout_s, what, **more)["locations"])

    def leave(self, timeout_s: float, **more: Any) -> bool:
        """Announce that this member leaves, and wait until all others of its role leave or are gone.

        After ``timeout_s``, members that never joined count as gone, for all members.

        Returns:
            Whether this client must stop all servers.

        Raises:
            StoreTimeout: Some members did not leave in time.
            StoreUnavailable: Server 0 cannot be reached.
        """
        return bool(self._wait("leave", timeout_s, f"for the other {self._role}s to leave", **more)["tells"])

    def stay_present(self) -> None:
        """Send heartbeats from a thread."""
        self._presence = threading.Thread(target=self._say, name="hopstream-presence", daemon=True)
        self._presence.start()

    def close(self) -> None:
        """Stop the heartbeats and close the connection; a second call does nothing."""
        self._ending.set()
        if self._presence is not None:
            self._presence.join(TURN_S + SLACK_S)
        self.connection.close()

    def _say(self) -> None:
        while not self._ending.wait(PRESENT_S):
            try:
                told = self._ask("present", TURN_S + SLACK_S)
                self._is_abandoned, self.clients = bool(told["is_abandoned"]), frozenset(told["clients"])
                self._answered_at = time.monotonic()
            except HopstreamError as error:  # requests to the server report the failure; the next heartbeat may succeed
                LOG.info("the heartbeat of %s %d failed: %s", self._role, self._rank, error)

    def _wait(self, step: str, timeout_s: float, what: str, **more: Any) -> dict[str, Any]:
        ends = time.monotonic() + timeout_s
        missing: list[int] = []
        has_met = False
        failure: StoreError | None = None
        while (left_s := ends - time.monotonic()) > 0:
            try:
                header = self._ask(step, min(left_s, TURN_S) + SLACK_S, is_last_turn=left_s <= TURN_S, **more)
            except (StoreUnavailable, StoreTimeout) as error:
                if step == "leave" and has_met and isinstance(error, StoreUnavailable):
                    LOG.info("server 0 ended while %s %d waited %s: %s", self._role, self._rank, what, error)
                    return {"tells": False}
                if has_met or step == "leave" or left_s < RETRY_S:
                    raise
                failure = error
                self._ending.wait(RETRY_S)
                continue
            has_met, missing = True, list(header["missing"])
            if not missing:
                return header
        if failure is not None and not has_met:  # says more than a list of all members
            raise failure
        raise StoreTimeout(
            f"{self._role} {self._rank} waited {timeout_s:.3g} s {what}; missing: "
            f"{', '.join(map(str, missing)) or 'all'}; server 0 is to listen at {self.connection.location}: start all "
            "with the same master address and port"
        )

    def _ask(self, step: str, timeout_s: float, **more: Any) -> dict[str, Any]:
        who = {"role": self._role, "rank": self._rank, "name": self.name}
        request = Frame({"op": "roster", **who, "step": step, **more})
        return self.connection.ask(request, timeout_s, f"roster {step}").header
