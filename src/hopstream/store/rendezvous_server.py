"""What does rank 0 do for ranks that want to find each other?

It keeps what ranks put down, round by round, and answers those who wait when the last value arrives.

Groups of one name follow each other, and may be open at once. Rank 0 opens them, and who comes takes the first free
place of its rank, so nobody has to know how often the others have met before.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from hopstream.errors import FormatError, SettingsError, StoreUnavailable
from hopstream.store.closing import Closing
from hopstream.store.security import Location, ServerSecurity
from hopstream.store.wire import BATCH_SCHEMA, Frame, decode_frame, encode_error, encode_frame, to_batch

LOG = logging.getLogger(__name__)

TURN_S = 1.0
"""How long one call waits for other ranks before it is made again."""
FIRST = "1"
"""The round with which a process joins a group; who asks for another one has been there."""
FAILED = "failed"
"""The round in which a rank says that it gave up, or asks whether any did; nobody waits in it."""
LINGER_S = 3.0
"""How long rank 0 listens on since it knows that a rank gave up, so that those who miss it then hear why."""
CLOSE_S = 2.0
"""How long rank 0 waits for ranks to take their answers when it stops to listen."""
MAX_LEFT = 8
"""How many groups that rank 0 has left are known yet, to ranks that ask late."""
MAX_RANKS = 1 << 20
MAX_MESSAGE_BYTES = 64 << 20


class Member(NamedTuple):
    """Who has a rank of a group.

    Attributes:
        process: What tells its process from others.
        token: What tells its place in this group from those in others.
    """

    process: str
    token: str


@dataclass(slots=True)
class _Room:
    """What is known of one group.

    Attributes:
        group: Its name.
        world_size: How many ranks it has.
        changed: Told when a round is complete, and when the group fails.
        members: Rank to who has it; rank 0 from the start.
        rounds: Name of a round to rank to value: the last complete one, and the one that ranks are at.
        failure: Why the group cannot come together, or empty.
        told: The ranks that have heard of the failure.
        known_at: When rank 0 first heard of it, as ``time.monotonic()`` tells.
        is_left: Rank 0 has left, and nobody new is let in.
    """

    group: str
    world_size: int
    changed: threading.Condition
    members: dict[int, Member]
    rounds: dict[str, dict[int, Any]] = field(default_factory=dict)
    failure: str = ""
    told: set[int] = field(default_factory=set)
    known_at: float = math.inf
    is_left: bool = False

    def has(self, rank: int, process: str) -> bool:
        """A process has a rank."""
        return rank in self.members and self.members[rank].process == process

    def fail(self, why: str) -> None:
        """Let all who wait know that the group cannot come together; the first reason counts."""
        self.failure = self.failure or why
        self.changed.notify_all()

    def tell(self, rank: int) -> dict[str, Any]:
        """The answer that says why the group failed."""
        self.told.add(rank)
        if rank == 0:
            self.known_at = min(self.known_at, time.monotonic())
        self.changed.notify_all()
        return {"failure": self.failure}

    def all_know(self) -> bool:
        """No rank that is here, but rank 0 itself, has yet to hear of a failure."""
        return not self.failure or self.told.union((0,)).issuperset(self.members)

    def put(self, call: _Call) -> dict[int, Any]:
        """Keep a value, and return those of its round."""
        values = self.rounds.setdefault(call.round_name, {})
        is_new = call.rank not in values
        values[call.rank] = call.value
        if is_new and len(values) == self.world_size:
            self.rounds = {call.round_name: values}  # who is in this round has the values of those before
            self.changed.notify_all()
        return values


class RendezvousServer:
    """Where ranks meet. It listens until it is closed.

    Kept are, for each group that is open and the last ones that were left, a member per rank and the values of at most
    two rounds. Others' groups are not known here: who asks for one waits for rank 0 to open it.
    """

    def __init__(self, location: Location, security: ServerSecurity) -> None:
        """Listen at an address.

        Raises:
            AccessDenied: Others could reach the address, and TLS or a token is missing.
            StoreUnavailable: The address cannot be listened at.
        """
        security.check_bind(location)
        self.security = security
        self._rooms: dict[str, _Room] = {}  # token of rank 0 to what it opened, in that order
        self._left: deque[str] = deque()
        self._lock = threading.Lock()
        self._opened = threading.Condition(self._lock)
        try:
            self._flight = _FlightServer(self, str(location), security.flight_options())
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise StoreUnavailable(
                f"rank 0 cannot listen at {location}: {_bind_error(location) or error}; master_addr is an address of "
                "the machine of rank 0, and master_port a free port of its own, not the one of torch.distributed; or "
                "another process says that it is rank 0 too"
            ) from error

    def open(self, group: str, world_size: int, host: Member) -> None:
        """Let the ranks of a group in."""
        with self._lock:
            self._rooms[host.token] = _Room(group, world_size, threading.Condition(self._lock), {0: host})
            self._opened.notify_all()

    def forget(self, token: str) -> None:
        """Let a group go that rank 0 has left, when others were left after it."""
        with self._lock:
            self._rooms[token].is_left = True
            self._left.append(token)
            if len(self._left) > MAX_LEFT:
                del self._rooms[self._left.popleft()]

    def answer(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The record batch that answers a request."""
        try:
            if len(ticket) > MAX_MESSAGE_BYTES:
                raise SettingsError(f"the request has {len(ticket)} bytes; {MAX_MESSAGE_BYTES} are taken")
            yield to_batch(encode_frame(self._answer(_Call.read(decode_frame(ticket)))))
        except Exception as error:  # whatever went wrong is the asker's to hear
            yield to_batch(encode_error(error))

    def linger(self, token: str) -> None:
        """Wait until all ranks of a group that are here know which one gave up, where one did, but not long."""
        with self._lock:
            room = self._rooms[token]
            ends = min(room.known_at, time.monotonic()) + LINGER_S
            room.changed.wait_for(room.all_know, ends - time.monotonic())

    def close(self) -> None:
        """Answer the calls under way, but not for long, and release the port.

        A rank that is frozen, or whose machine is, takes none.
        """
        closing = Closing(self._flight, "hopstream-rendezvous-close")
        if not closing.wait(CLOSE_S):
            LOG.warning("a rank that takes no answers still held a connection %g s after rank 0 left", CLOSE_S)
            closing.give_up()

    def _answer(self, call: _Call) -> dict[str, Any]:
        ends = time.monotonic() + min(call.wait_s, TURN_S)
        with self._lock:
            joins = call.round_name == FIRST
            room = self._opened.wait_for(lambda: self._room_of(call), ends - time.monotonic() if joins else 0)
            if room is None and joins:
                return {"missing": [0], "is_open": False}
            if room is None:
                raise StoreUnavailable(f"rank 0 has left the group {call.group!r} in which this rank {call.rank} was")
            refusal = _refusal(room, call)
            if refusal:
                if len(room.members) < room.world_size:  # a group that has met goes on without the stranger
                    room.fail(refusal)
                raise SettingsError(refusal)
            if call.failure:
                room.fail(f"rank {call.rank} gave up: {call.failure}")
            if room.failure:
                return room.tell(call.rank)
            if call.round_name == FAILED:  # asked, and nobody has
                return {"missing": []}
            room.members[call.rank] = call.member
            values = room.put(call)
            standing = _standing(room, values, call)
            if "missing" not in standing:
                return standing
            room.changed.wait_for(lambda: room.failure or len(values) == room.world_size, ends - time.monotonic())
            standing = _standing(room, values, call)
            return room.tell(call.rank) if "failure" in standing else standing

    def _room_of(self, call: _Call) -> _Room | None:
        """The group in which who calls has a place; else the first one that it may join, or that refuses it.

        None where its process has the rank in all of those that are open: it waits for the next one. None also where it
        was in a group that is forgotten: it has no place in a later one.
        """
        rooms = [room for room in self._rooms.values() if room.group == call.group]
        for room in rooms:
            if room.members.get(call.rank) == call.member:
                return room
        if call.round_name != FIRST:
            return None
        rooms = [room for room in rooms if not room.is_left and not room.has(call.rank, call.member.process)]
        return next((room for room in rooms if not _refusal(room, call)), rooms[0] if rooms else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One request."""

    group: str
    round_name: str
    rank: int
    world_size: int
    member: Member
    value: Any
    wait_s: float
    excused: frozenset[int]
    failure: str

    @classmethod
    def read(cls, frame: Frame) -> _Call:
        header = frame.header
        try:
            call = cls(
                group=frame.text("group"), round_name=frame.text("round"), rank=int(header["rank"]),
                world_size=int(header["world_size"]), value=header["value"],
                member=Member(frame.text("process"), frame.text("token")),
                wait_s=float(header["wait_s"]), excused=frozenset(map(int, header["excused"])),
                failure=frame.text("failure"),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not a request to meet ({error!r}): {str(header)[:200]}") from error
        if not 0 <= call.rank < call.world_size <= MAX_RANKS:
            raise SettingsError(f"rank is {call.rank} of {call.world_size}; ranks are 0..world_size-1")
        return call


def _refusal(room: _Room, call: _Call) -> str:
    """Why a rank does not belong to a group; empty where it does."""
    if call.world_size != room.world_size:
        return (
            f"rank {call.rank} says that world_size is {call.world_size}; rank 0 said {room.world_size}; give all "
            "ranks the same world_size"
        )
    if room.members.get(call.rank, call.member) != call.member:
        return (
            f"two processes say that they are rank {call.rank} of {room.world_size}; give each a rank of its own, and "
            "where one was restarted, restart all"
        )
    return ""


def _standing(room: _Room, values: dict[int, Any], call: _Call) -> dict[str, Any]:
    """How far a round has come: why it failed, which ranks are missing, or the values of all but excused ones."""
    absent = []
    if len(values) < room.world_size:
        if room.failure:  # of a round that is complete all get the values, and hear of a failure in the next one
            return {"failure": room.failure}
        absent = [rank for rank in range(room.world_size) if rank not in values]
        if not call.excused.issuperset(absent):
            return {"missing": absent, "is_open": True}
    return {"values": [values.get(rank) for rank in range(room.world_size)], "absent": absent}


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, server: RendezvousServer, location: str, options: dict[str, Any]) -> None:
        self._server = server
        super().__init__(location, **options)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        return flight.GeneratorStream(BATCH_SCHEMA, self._server.answer(ticket.ticket))


def _bind_error(location: Location) -> str:
    try:
        with socket.socket(socket.AF_INET6 if ":" in location.host else socket.AF_INET) as probe:
            probe.bind((location.host, location.port))
    except OSError as error:
        return str(error)
    return ""


@dataclass(slots=True)
class _Hosted:
    server: RendezvousServer
    num_groups: int = 0


_HOSTED: dict[str, _Hosted] = {}
"""Location to the server there, as long as a group of this process needs it."""
_HOSTING = threading.Lock()


def host_rendezvous(location: Location, security: ServerSecurity, group: str, world_size: int, host: Member) -> None:
    """Let a group meet at an address, where this process listens from now on if it did not.

    Each call is undone by ``leave_rendezvous`` with the host's token.

    Raises:
        AccessDenied: Others could reach the address, and TLS or a token is missing.
        SettingsError: It listens already, with another token or certificate.
        StoreUnavailable: The address cannot be listened at.
    """
    with _HOSTING:
        hosted = _HOSTED.get(str(location))
        if hosted is None:
            hosted = _HOSTED[str(location)] = _Hosted(RendezvousServer(location, security))
        elif hosted.server.security != security:
            raise SettingsError(
                f"rank 0 listens at {location} already, with another token, certificate or is_insecure; give groups "
                "that share master_port the same security, or a port each"
            )
        hosted.num_groups += 1
        hosted.server.open(group, world_size, host)


def leave_rendezvous(location: Location, token: str) -> None:
    """Let a group go when all its ranks know who gave up; stop to listen where no other is left in this process."""
    with _HOSTING:
        hosted = _HOSTED[str(location)]
    hosted.server.linger(token)
    with _HOSTING:
        hosted.num_groups -= 1
        if hosted.num_groups:
            hosted.server.forget(token)
            return
        del _HOSTED[str(location)]
    hosted.server.close()
