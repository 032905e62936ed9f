"""What does rank 0 do for ranks that want to find each other?

It keeps what ranks put down, round by round, and answers those who wait when the last value arrives.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from hopstream.errors import FormatError, SettingsError, StoreUnavailable
from hopstream.store.security import Location, ServerSecurity
from hopstream.store.wire import BATCH_SCHEMA, Frame, decode_frame, encode_error, encode_frame, to_batch

TURN_S = 1.0
"""How long one call waits for other ranks before it is made again."""
MAX_RANKS = 1 << 20
MAX_MESSAGE_BYTES = 64 << 20


@dataclass(slots=True)
class _Room:
    """What is known of one group.

    Attributes:
        world_size: How many ranks it has.
        tokens: Rank to what the process that joined as it calls itself.
        rounds: Name of a round to rank to value.
        failure: Why the group cannot come together, or empty.
    """

    world_size: int
    tokens: dict[int, str] = field(default_factory=dict)
    rounds: dict[str, dict[int, Any]] = field(default_factory=dict)
    failure: str = ""


class RendezvousServer:
    """Where ranks meet. It listens until it is closed and keeps a few hundred bytes per rank."""

    def __init__(self, location: Location, security: ServerSecurity) -> None:
        """Listen at an address.

        Raises:
            AccessDenied: Others could reach the address, and TLS or a token is missing.
            StoreUnavailable: The address cannot be listened at.
        """
        security.check_bind(location)
        self._rooms: dict[str, _Room] = {}
        self._changed = threading.Condition()
        try:
            self._flight = _FlightServer(self, str(location), security.flight_options())
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise StoreUnavailable(
                f"rank 0 cannot listen at {location}: {_bind_error(location) or error}; master_addr is an address of "
                "the machine of rank 0, and master_port a free port of its own, not the one of torch.distributed"
            ) from error

    def answer(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The record batch that answers a request."""
        try:
            if len(ticket) > MAX_MESSAGE_BYTES:
                raise SettingsError(f"the request has {len(ticket)} bytes; {MAX_MESSAGE_BYTES} are taken")
            yield to_batch(encode_frame(self._answer(_Call.read(decode_frame(ticket)))))
        except Exception as error:  # whatever went wrong is the asker's to hear
            yield to_batch(encode_error(error))

    def close(self) -> None:
        """Answer the calls under way, and release the port."""
        self._flight.shutdown()

    def _answer(self, call: _Call) -> dict[str, Any]:
        with self._changed:
            room = self._rooms.setdefault(call.group, _Room(call.world_size))
            refusal = _refusal(room, call)
            if refusal and len(room.tokens) == room.world_size:
                raise SettingsError(refusal)  # a group that has met does not fail because of who comes later
            if refusal and not room.failure:
                room.failure = refusal
            if call.failure and not room.failure:
                room.failure = f"rank {call.rank} gave up: {call.failure}"
            if room.failure:
                self._changed.notify_all()
                if refusal:
                    raise SettingsError(refusal)
                return {"failure": room.failure}
            room.tokens[call.rank] = call.token
            values = room.rounds.setdefault(call.round_name, {})
            values[call.rank] = call.value
            if len(values) == room.world_size:  # so all have the values of the rounds before
                room.rounds = {call.round_name: values}
            self._changed.notify_all()
            self._changed.wait_for(lambda: "missing" not in _standing(room, values, call), min(call.wait_s, TURN_S))
            return _standing(room, values, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One request."""

    group: str
    round_name: str
    rank: int
    world_size: int
    token: str
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
                world_size=int(header["world_size"]), token=frame.text("token"), value=header["value"],
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
        known = ", ".join(map(str, sorted(room.tokens))) or "others"
        return (
            f"rank {call.rank} says that world_size is {call.world_size}; rank {known} said {room.world_size}; give "
            "all ranks the same world_size"
        )
    if room.tokens.get(call.rank, call.token) != call.token:
        return f"two processes say that they are rank {call.rank} of {room.world_size}; give each a rank of its own"
    return ""


def _standing(room: _Room, values: dict[int, Any], call: _Call) -> dict[str, Any]:
    """How far a round has come: why it failed, which ranks are missing, or the values of all."""
    if room.failure:
        return {"failure": room.failure}
    missing = set(range(room.world_size)) - values.keys() - call.excused
    if missing:
        return {"missing": sorted(missing)}
    return {"values": [values.get(rank) for rank in range(room.world_size)]}


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
    num_groups: int = 1


_HOSTED: dict[str, _Hosted] = {}
"""Location to the server there, as long as a group of this process needs it."""
_HOSTING = threading.Lock()


def host_rendezvous(location: Location, security: ServerSecurity) -> None:
    """Listen at an address, unless this process does already; each call is undone by ``leave_rendezvous``.

    Raises:
        AccessDenied: Others could reach the address, and TLS or a token is missing.
        StoreUnavailable: The address cannot be listened at.
    """
    with _HOSTING:
        hosted = _HOSTED.get(str(location))
        if hosted is not None:
            hosted.num_groups += 1
            return
        _HOSTED[str(location)] = _Hosted(RendezvousServer(location, security))


def leave_rendezvous(location: Location) -> None:
    """Stop to listen at an address when nobody in this process needs it any more."""
    with _HOSTING:
        hosted = _HOSTED[str(location)]
        hosted.num_groups -= 1
        if hosted.num_groups:
            return
        del _HOSTED[str(location)]
    hosted.server.close()
