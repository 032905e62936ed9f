"""Rendezvous of ranks through a ``TCPStore`` on rank 0: meet, exchange JSON values, leave together.

Rank 0 listens at ``master_addr:master_port``. In each round, every rank writes a value and reads the values of all
ranks. Only JSON text is exchanged. Ranks exchange the addresses of their servers here, and then request rows from each
other's servers.

Rank 0 gives each group a random token, and all keys of the group start with it. So groups that use one port in
sequence, and groups of restarted processes, never share a key.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist

from hopstream.checks import check_int, check_seconds
from hopstream.errors import SettingsError, StoreTimeout, StoreUnavailable
from hopstream.transport.location import Location

LOG = logging.getLogger(__name__)
_START = "start all ranks with the same master_addr, master_port, group_name and world_size"
_TOGETHER = "it is busy, stopped or waits elsewhere: let ranks make, use and close the same things in the same order"
MAX_RANKS = 1 << 20
POLL_S = 0.005
"""First interval between two polls of the store."""
MAX_POLL_S = 0.05
"""Longest interval between two polls of the store; polls back off to it."""
CALL_S = 15.0
"""Deadline of one call of the store; after it, rank 0 counts as gone.

Torch's store looks up the host name of every address that connects to it, and answers no request meanwhile. The C
library waits 2 x 5 s for a name server that does not answer (measured: 8 of 120 meetings on a host that loses DNS
packets).
"""
TELL_S = 2.0
"""Deadline for a rank that gives up to report its failure."""
LINGER_S = 3.0
"""Time that rank 0 keeps hosting for ranks that have not read the last values."""
PROBE_S = 3.0
"""Deadline of one probe connection: longer than a TCP retransmission of the first packet."""
PROBE_EVERY_S = 1.0
"""Interval at which a rank that waits to leave probes the missing ranks."""
NUM_PROBES = 2
"""Number of failed probes after which a rank counts as gone."""
LAST_S = 0.2
"""Shortest deadline for leaving, so that the other ranks can see it."""
_OWN = secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A rank, the group that it joins, and the address at which the group meets.

    Attributes:
        group: Name of the group. Several groups may meet at one address; groups of one name must follow each other.
        rank: Rank of this process.
        world_size: Number of ranks in the group.
        master_addr: A host name or IP address of the machine of rank 0.
        master_port: The port at which rank 0 listens.
        timeout_s: Deadline in seconds for the other ranks, in each round.
    """

    group: str
    rank: int
    world_size: int
    master_addr: str
    master_port: int
    timeout_s: float = 180.0

    def __post_init__(self) -> None:
        """Check the ranges of all fields."""
        for name, low, high in (("world_size", 1, MAX_RANKS), ("master_port", 1, 65535)):
            check_int(name, getattr(self, name), low, high)
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or not 0 <= self.rank < self.world_size:
            raise SettingsError(
                f"rank is {self.rank!r}; with world_size {self.world_size} it must be in 0..{self.world_size - 1}"
            )
        if not isinstance(self.master_addr, str) or not self.master_addr:
            raise SettingsError(f"master_addr is {self.master_addr!r}; it must be a host name or IP address of rank 0")
        check_seconds("the time to wait", self.timeout_s)


class Group:
    """Membership of one rank in a group, until it leaves or closes."""

    def __init__(self, membership: Membership) -> None:
        """Prepare to meet without waiting; rank 0 starts to listen.

        Raises:
            SettingsError: ``master_addr`` cannot be resolved.
            StoreUnavailable: Rank 0 cannot listen at the port.
        """
        self.membership = membership
        self._host = resolved(membership.master_addr)
        self._where = f"{self._host}:{membership.master_port}"
        self._place = f"{own_process()}.{secrets.token_hex(8)}"
        self._opened = ""
        self._prefix = ""
        self._num_rounds = 0
        self._heard = ("", 0)
        self._are_together = self._has_failed = self._has_told = self._is_closed = False
        self._leaves_by = math.inf
        self._reading, self._reason = threading.Lock(), ""
        self._calls = _StoreThread()
        if membership.rank == 0:
            self._open()

    def gather(self, value: Any, what: str, timeout_s: float | None = None) -> list[Any]:
        """Write a value, wait until all ranks have done so, and return all values in the order of ranks.

        Args:
            value: A JSON value.
            what: The purpose of the wait, for messages.
            timeout_s: Deadline in seconds; None for the group's.

        Raises:
            StoreTimeout: Some ranks did not come in time; the message names them.
            StoreUnavailable: Rank 0 cannot be reached, or a rank gave up; the message says why.
            SettingsError: Ranks disagree about ``world_size``, or two processes have the same rank.
        """
        self._num_rounds += 1
        values = self._meet(f"{self._num_rounds}", value, what, timeout_s or self.membership.timeout_s)
        self._are_together = True
        return [values[rank] for rank in range(self.membership.world_size)]

    def fail(self, message: str) -> None:
        """Report to the other ranks that this one cannot go on; do nothing if rank 0 cannot be reached."""
        if self._prefix:
            with suppress(StoreUnavailable):  # the caller reports the original error
                why = f"rank {self.membership.rank} gave up: {message}"  # the first reason counts
                self._calls.call("compare_set", f"{self._prefix}/failure", "", why, timeout_s=TELL_S)
                self._failure(TELL_S)

    def failure(self) -> str:
        """Return which rank gave up, and why; empty if none did, or rank 0 cannot be reached."""
        with suppress(StoreUnavailable):
            return self._failure(TELL_S)
        return ""

    def leave_by(self, ends: float) -> None:
        """Set a deadline, in ``time.monotonic()``, for waiting for the other ranks to leave."""
        self._leaves_by = ends

    def leave(self, locations: Sequence[str], timeout_s: float | None = None) -> list[int]:
        """Wait until all ranks leave, because they may need this rank's server; then close.

        If a rank gave up, the group stays open: stop the server, so that the other ranks read the reason, and then
        close.

        Args:
            locations: Address of each rank's server. A rank that neither leaves nor accepts connections is gone. Empty
                before ranks have servers.
            timeout_s: Deadline in seconds; None for the group's.

        Returns:
            The ranks that ended without leaving; empty if rank 0, which keeps the record, has left before.

        Raises:
            StoreTimeout: Some live ranks did not leave in time.
            StoreUnavailable: A rank gave up; the message says why. If rank 0 has left, this rank does not wait.
        """
        if self._is_closed:
            return []
        wait_s = min(timeout_s or self.membership.timeout_s, max(self._leaves_by - time.monotonic(), LAST_S))
        try:
            left = self._meet("leave", None, "to leave", wait_s, locations)
            return [rank for rank in range(self.membership.world_size) if rank not in left]
        except StoreUnavailable:
            if self._has_failed:
                raise
            LOG.debug("rank 0 has left", exc_info=True)
            return []
        finally:
            if not self._has_failed:
                self.close()

    def close(self) -> None:
        """Leave without waiting for the other ranks to leave; a second call does nothing.

        Rank 0 keeps hosting, at most ``LINGER_S``, until all ranks have read the last values, or the reason of a
        failure.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.membership.rank == 0 and self._prefix:
                self._calls.call("compare_set", _name_key(self.membership.group), self._opened, "")
                self._linger()
                self._calls.call("set", f"{self._prefix}/left", "")
            elif self._prefix:
                self._acknowledge()
        except StoreUnavailable:
            LOG.debug("rank 0 did not hear that rank %d left", self.membership.rank, exc_info=True)
        self._calls.close()

    def _open(self) -> None:
        """Listen, and publish the group."""
        who, port = self.membership, self.membership.master_port
        try:
            self._calls.open(self._host, port, is_master=True, timeout_s=who.timeout_s)
        except StoreUnavailable as error:
            self._calls.close()
            raise StoreUnavailable(
                f"rank 0 cannot listen at port {port}: {error}; master_addr is an address of the "
                "machine of rank 0, and master_port a free port of it; or another process is rank 0 too"
            ) from error
        token = secrets.token_hex(8)
        self._prefix = f"hopstream/{token}"
        self._opened = json.dumps({"group": token, "world_size": who.world_size})
        self._calls.call("set", _name_key(who.group), self._opened)
        self._calls.call("add", f"{self._prefix}/came", 1)
        self._calls.call("set", f"{self._prefix}/place/0", self._place)

    def _join(self, ends: float, what: str) -> None:
        """Join the group that rank 0 has open; wait until rank 0 opens one."""
        who = self.membership
        while True:
            try:
                _await_port(self._host, who.master_port, ends)
                self._calls.open(self._host, who.master_port, is_master=False, timeout_s=_left(ends))
                return self._take_place(ends, what)
            except StoreTimeout:
                raise
            except OSError as error:  # rank 0 does not listen yet, or left meanwhile
                if time.monotonic() + MAX_POLL_S >= ends:
                    raise StoreUnavailable(
                        f"rank {who.rank} of {who.world_size} cannot reach rank 0 at {self._where} {what} (tried for "
                        f"up to {who.timeout_s:.3g} s): {error}; start rank 0, and give all ranks its master_addr and "
                        "master_port"
                    ) from error
                self._calls.close()
                self._calls = _StoreThread()
                time.sleep(MAX_POLL_S)

    def _take_place(self, ends: float, what: str) -> None:
        who = self.membership
        while (left := ends - time.monotonic()) > 0:
            opened = self._read(_name_key(who.group))
            if opened:
                told = json.loads(opened)
                prefix = f"hopstream/{told['group']}"
                refusal, is_own = self._refusal(prefix, int(told["world_size"]))
                if refusal:
                    if self._calls.call("add", f"{prefix}/came", 0) < told["world_size"]:  # complete groups go on
                        self._calls.call("compare_set", f"{prefix}/failure", "", refusal)
                    raise SettingsError(refusal)
                if is_own:
                    self._prefix = prefix
                    self._calls.call("add", f"{prefix}/came", 1)
                    return
            time.sleep(min(MAX_POLL_S, left))
        raise self._late([0], what, who.timeout_s)

    def _refusal(self, prefix: str, world_size: int) -> tuple[str, bool]:
        """Try to take this process's rank in a group; return why it is refused, and whether it has the rank.

        The reason is empty and the rank not taken if another member in this process has the rank: the caller must then
        wait for the next group.
        """
        who, key = self.membership, f"{prefix}/place/{self.membership.rank}"
        if self._read(key).startswith(f"{own_process()}."):
            return "", False
        if world_size != who.world_size:
            return (
                f"rank {who.rank} has world_size {who.world_size}, but rank 0 has {world_size}; give all ranks "
                "the same world_size"
            ), False
        if self._calls.call("compare_set", key, "", self._place).decode() == self._place:
            return "", True
        return (
            f"two processes have rank {who.rank} of {world_size}; give each a rank of its own, and if one was "
            "restarted, restart all"
        ), False

    def _meet(
        self, name: str, value: Any, what: str, timeout_s: float, locations: Sequence[str] = ()
    ) -> Mapping[int, Any]:
        """Return the values of all ranks by rank.

        With locations, ranks that accept no connections may be missing.
        """
        who, ends = self.membership, time.monotonic() + timeout_s
        if not self._prefix:
            self._join(ends, what)
        key, last_key = f"{self._prefix}/{name}", self._heard[0]
        if name != "leave":  # after a failed leave, the last values still have to be read
            self._heard = ("", 0)
        self._calls.call("append", f"{key}/values", json.dumps([who.rank, value]) + "\n")
        self._calls.call("add", f"{key}/num", 1)
        poll_s, probe_at = POLL_S, time.monotonic() + MAX_POLL_S
        while self._calls.call("add", f"{key}/num", 0) < who.world_size:
            self._check_goes_on(what)
            if time.monotonic() >= ends:
                if missing := self._missing(key):
                    raise self._late(missing, what, timeout_s)
                break
            if locations and time.monotonic() >= probe_at:
                missing = self._missing(key)
                if len(_silent(missing, locations, ends)) == len(missing):
                    break
                probe_at = time.monotonic() + PROBE_EVERY_S
            time.sleep(min(poll_s, _left(ends)))
            poll_s = min(MAX_POLL_S, 2 * poll_s)
        values = self._values(key)
        self._heard = (f"{key}/heard", len(values))
        self._calls.call("add", f"{key}/heard", 1)
        if who.rank == 0 and last_key:  # all ranks in this round have read the values of the round before
            for kind in ("values", "num", "heard"):
                self._calls.call("delete_key", last_key.removesuffix("heard") + kind)
        return values

    def _check_goes_on(self, what: str) -> None:
        """Raise ``StoreUnavailable`` if a rank gave up, or rank 0 has left."""
        who = self.membership
        if failure := self._failure(CALL_S):
            self._has_failed = True
            raise StoreUnavailable(f"rank {who.rank} waited {what}: {failure}")
        if self._calls.call("check", [f"{self._prefix}/left"]):
            raise StoreUnavailable(f"rank {who.rank} waited {what}: rank 0 has left the group {who.group!r}")

    def _values(self, key: str) -> dict[int, Any]:
        return dict(json.loads(line) for line in self._read(f"{key}/values").splitlines())

    def _missing(self, key: str) -> list[int]:
        values = self._values(key)
        return [rank for rank in range(self.membership.world_size) if rank not in values]

    def _late(self, missing: Sequence[int], what: str, timeout_s: float) -> StoreTimeout:
        who = self.membership
        return StoreTimeout(
            f"rank {who.rank} of {who.world_size} waited {timeout_s:.3g} s {what}; rank "
            f"{', '.join(map(str, missing[:20]))} did not come to {self._where}; "
            f"{_TOGETHER if self._are_together else _START}"
        )

    def _failure(self, timeout_s: float) -> str:
        """Read the reason of a failure once for all threads; after its acknowledgement, rank 0 may leave."""
        with self._reading:
            if not self._reason and self._prefix:
                self._reason = self._read(f"{self._prefix}/failure", timeout_s)
                if self._reason and self.membership.rank != 0:
                    with suppress(StoreUnavailable):
                        self._acknowledge()
            return self._reason

    def _acknowledge(self) -> None:
        """Report to rank 0 that this rank makes no further calls."""
        if not self._has_told:
            self._has_told = True
            self._calls.call("add", f"{self._prefix}/told", 1, timeout_s=TELL_S)

    def _read(self, key: str, timeout_s: float = CALL_S) -> str:
        """Return the text of a key, or an empty text."""
        if not self._calls.call("check", [key], timeout_s=timeout_s):
            return ""
        return str(self._calls.call("get", key, timeout_s=timeout_s).decode())

    def _linger(self) -> None:
        """Host until all ranks have read the last values; after a failure, until they have read the reason."""
        ends = time.monotonic() + LINGER_S
        key, num_wanted = self._heard
        if self._failure(CALL_S) or not key:
            key, num_wanted = f"{self._prefix}/told", self._calls.call("add", f"{self._prefix}/came", 0) - 1
        while self._calls.call("add", key, 0) < num_wanted and time.monotonic() < ends:
            time.sleep(POLL_S)


class _StoreThread:
    """Daemon thread that calls one ``TCPStore``, so that a hanging call blocks no caller for long.

    The store's own calls have no deadline while the machine of rank 0 is frozen or disconnected. The thread starts
    early, because a process that is exiting cannot start threads.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._asked: SimpleQueue[tuple[str, Any, Future[Any]] | None] = SimpleQueue()
        self._is_lost = False
        self._thread = threading.Thread(target=self._run, name="hopstream-rank-store", daemon=True)
        self._thread.start()

    def open(self, host: str, port: int, *, is_master: bool, timeout_s: float) -> None:
        """Connect to the store at an address, or host it there."""
        options = {"is_master": is_master, "wait_for_workers": False, "multi_tenant": True,
                   "timeout": timedelta(seconds=timeout_s)}  # fmt: skip
        self.call("open", host, port, options, timeout_s=timeout_s)

    def call(self, name: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        """Call one of the store's methods and return its result.

        Raises:
            StoreUnavailable: Rank 0 is gone, or did not answer in time.
        """
        if self._is_lost:
            raise StoreUnavailable("rank 0 is gone, or this rank has left")
        future: Future[Any] = Future()
        self._asked.put((name, args, future))
        try:
            return future.result(timeout_s)
        except (TimeoutError, RuntimeError) as error:
            self._is_lost = True
            why = "rank 0 gave no answer" if isinstance(error, TimeoutError) else str(error).partition("\n")[0]
            raise StoreUnavailable(why) from error

    def close(self) -> None:
        """Release the store, which frees the port that it hosts."""
        self._asked.put(None)
        if not self._is_lost:
            self._is_lost = True
            self._thread.join(TELL_S)

    def _run(self) -> None:
        store = None
        while (asked := self._asked.get()) is not None:
            name, args, future = asked
            try:
                if name == "open":
                    host, port, options = args
                    store = dist.TCPStore(host, port, **options)  # type: ignore[attr-defined]  # public, says torch
                    future.set_result(None)
                else:
                    future.set_result(getattr(store, name)(*args))
            except BaseException as error:
                future.set_exception(error)
        store = None  # a stored error refers to this frame, and would keep the store alive


def own_process() -> str:
    """Return a name of this process that differs from those of other processes, including forks."""
    return f"{_OWN}-{os.getpid()}"


def _name_key(group: str) -> str:
    return f"hopstream-group/{group}"


def _left(ends: float) -> float:
    return max(1e-3, ends - time.monotonic())


def _await_port(host: str, port: int, ends: float) -> None:
    """Wait until a process listens; a ``TCPStore`` that cannot connect writes to stderr.

    Raises:
        OSError: No process listens before the deadline.
    """
    while True:
        try:
            socket.create_connection((host, port), min(PROBE_S, _left(ends))).close()
            return
        except OSError:
            if time.monotonic() + MAX_POLL_S >= ends:
                raise
            time.sleep(MAX_POLL_S)


def _silent(ranks: Iterable[int], locations: Sequence[str], ends: float) -> frozenset[int]:
    """Return the ranks whose servers accept no connections, as far as probes show before the deadline."""
    return frozenset(rank for rank in ranks if _is_silent(Location.parse(locations[rank]), ends))


def _is_silent(location: Location, ends: float) -> bool:
    for _ in range(NUM_PROBES):
        try:
            socket.create_connection((location.host, location.port), min(PROBE_S, _left(ends))).close()
        except OSError:
            if time.monotonic() >= ends:  # the probe had less than its full time
                return False
            continue
        return False
    return True


def resolved(host: str) -> str:
    """Resolve a host to an IP address that all ranks use; prefer version 4."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"master_addr {host!r} is not known ({error}); write the IP address of rank 0") from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])
