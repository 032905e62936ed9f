"""Remote graph: lets the servers that hold a graph make a trainer's batches.

``RemoteGraph`` is a source for every loader. Batches are assigned to servers in turn (round-robin), and every server
makes its share ahead. Any server can make any batch, because a batch is a pure function of its number and the loader's
options. So if a server fails to deliver a batch, another server or the restarted one makes it. Every batch arrives
exactly once.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hopstream.arrays import Array
from hopstream.buffers import Buffers
from hopstream.checks import check_seconds
from hopstream.errors import (
    ChannelLost,
    FormatError,
    HopstreamError,
    ServerBusy,
    SettingsError,
    StateError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.load.batch import MiniBatch, SampledBatch
from hopstream.load.service import BatchService, BatchSession, Recipe
from hopstream.store.cluster import Cluster, open_cluster, parse_locations, read_cluster
from hopstream.store.settings import StoreSettings, check_store_settings
from hopstream.store.sources import read_location
from hopstream.stream.messages import INPUT_OPTIONS, decode_batch, encode_options, recipe_digest
from hopstream.stream.questions import GraphQuestions
from hopstream.transport.connection import Connection, OneFrame
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.uris import local_path

LOG = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 1.0
"""Seconds that a server lets one call wait before it answers that a batch is still being made."""
SLACK_S = 5.0
"""Extra seconds that such a call may take before its server counts as unreachable."""
INPUT_BYTES_PER_S = 10e6
"""Assumed lowest rate at which a server receives the seeds of an input."""
PATIENCE_S = 10.0
"""Seconds of waiting for a batch that is still being made, before another server is asked for it, too."""
LATE_S = 1.0
"""Seconds by which an answer may arrive after a batch's deadline."""
DESTROY_S = 4.0
"""Seconds that a closing loader waits for a server to remove its channel; otherwise the lease expires."""
DESTROY_TRIES = 4
RETRY_S = 0.2
"""Seconds between a failure of every server and the next attempt."""
READY_S = 1.0
"""Seconds of waiting for a batch that is not needed yet."""
AVOID_S = 5.0
"""Seconds for which a failed server is asked last; doubled after every further failure."""
MAX_AVOID_S = 80.0
MAX_TAKEN = 3
"""Times that a server's channel may be registered again in one iteration because another client has moved it."""
MAX_ASKING = 64
"""Servers that are asked in parallel whether they are reachable."""
LEAST_ROW_S = 5.0
"""Shortest deadline of one request for rows, because a new loader makes its first requests with it."""


class RemoteGraph(GraphQuestions, BatchService):
    """Source for loaders whose batches the servers of a cluster make, instead of the cluster's file.

    One ``RemoteGraph`` serves any number of loaders; each has its own channels.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        settings: StoreSettings | None = None,
        timeout_s: float = 120.0,
        wait_s: float = 0.0,
    ) -> None:
        """Keep the servers' addresses; no request is sent before a loader is made.

        Args:
            source: A ``cluster.json``, or addresses of servers joined by commas.
            settings: Deadline of a single request, token, certificates, and ``cache_bytes`` for rows that this process
                keeps; with 0 the servers send whole batches.
            timeout_s: Seconds of retrying one batch, over all servers, while they fail or restart.
            wait_s: Seconds that a new loader waits for servers that have not started. The default 0 fails at once, so
                that a wrong address is noticed.

        Raises:
            SettingsError: ``source`` names no servers, or ``timeout_s`` or ``wait_s`` is not a valid time.
            FormatError: The file is not a cluster file.
        """
        check_seconds("timeout_s", timeout_s)
        if wait_s != 0:
            check_seconds("wait_s", wait_s)
        super().__init__(_read(source), check_store_settings(settings))
        self._timeout_s, self._wait_s = float(timeout_s), float(wait_s)

    def __repr__(self) -> str:
        """Show the servers' addresses."""
        return f"RemoteGraph({', '.join(entry.location for entry in self._cluster.servers)})"

    def open(self, rank: int) -> BatchSession:
        """Open a session for one loader.

        Raises:
            StoreError: A required server is unreachable, or refused to answer.
        """
        ends, settings = time.monotonic() + self._wait_s, replace(self._settings, first_replica=rank)
        while True:
            try:
                return RemoteSession(self._cluster, settings, self._timeout_s, rank)
            except (StoreUnavailable, StoreTimeout) as error:
                if time.monotonic() + RETRY_S > ends:
                    raise
                LOG.info("waiting for servers: %s", error)
            time.sleep(RETRY_S)


@dataclass(slots=True, eq=False)
class _Server:
    """Server, and a session's channel on it.

    Attributes:
        number: Position among the servers; it determines the server's share of the batches.
        connection: Connection to the server.
        channel_id: The session's channel; None if it has none.
        turn: Last iteration that was started on the channel.
        was_asked: A registration was sent; the channel may exist even if the answer was lost.
        avoided_until: After a failure, time until which the server is asked last.
        num_failures: Failures since the server last delivered a batch.
        num_taken: Times that another client has moved the channel in this iteration.
        lock: Held while a channel is registered or an epoch is started.
    """

    number: int
    connection: Connection
    channel_id: int | None = None
    turn: int = -1
    was_asked: bool = False
    avoided_until: float = 0.0
    num_failures: int = 0
    num_taken: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_failed(self) -> None:
        """Record a failure."""
        self.avoided_until = time.monotonic() + min(MAX_AVOID_S, AVOID_S * 2**self.num_failures)
        self.num_failures = min(self.num_failures + 1, 30)

    def has_answered(self) -> None:
        """Record a delivered batch."""
        self.avoided_until, self.num_failures = 0.0, 0


class _Progress:
    """Record of the batches that have arrived in one iteration. Safe to use from many threads."""

    def __init__(self, first_step: int) -> None:
        """Start before the first batch."""
        self._lock = threading.Lock()
        self._lowest = first_step
        self._come: set[int] = set()

    @property
    def lowest(self) -> int:
        """First batch that has not arrived; all batches before it have."""
        return self._lowest

    def add(self, step: int) -> None:
        """Record that a batch has arrived."""
        with self._lock:
            self._come.add(step)
            while self._lowest in self._come:
                self._come.remove(self._lowest)
                self._lowest += 1


class RemoteSession(BatchSession):
    """The channels of one loader on all servers of a cluster. Safe to use from many threads."""

    def __init__(self, cluster: Cluster, settings: StoreSettings, timeout_s: float, rank: int) -> None:
        """Connect to the cluster; channels are registered when batches are requested.

        Raises:
            StoreError: A required server is unreachable, or refused to answer.
        """
        self._cluster, self._settings, self._rank = cluster, settings, rank
        self._timeout_s = timeout_s
        row_s = min(settings.timeout_s, max(timeout_s, LEAST_ROW_S))  # else a dead owner outlasts the batch's deadline
        self.store = open_cluster(cluster, replace(settings, timeout_s=row_s))
        self._servers = [
            _Server(number, Connection(Location.parse(entry.location), settings.security))
            for number, entry in enumerate(cluster.servers)
        ]
        self._key = secrets.token_hex(16)
        self._worker = f"rank {rank} at {socket.gethostname()[:64]}:{os.getpid()}"
        self._turn, self._ended, self._num_ahead = -1, -1, 1
        self._progress = _Progress(0)
        self._closing = threading.Event()

    def prepare(self, recipe: Recipe) -> None:
        """Keep the loader's options, and check that some server has room for another loader."""
        self._recipe = recipe
        config = {name: value for name, value in recipe.options.items() if name not in INPUT_OPTIONS}
        inputs = {name: value for name, value in recipe.options.items() if name in INPUT_OPTIONS}
        self._loader = recipe.loader
        self._config: tuple[dict[str, Any], list[Array]] = encode_options(config)
        self._inputs: tuple[dict[str, Any], list[Array]] = encode_options(inputs)
        self._digest = recipe_digest(recipe.loader, *self._config)
        refusals = self._failures(self._servers, lambda server: self._init(server, is_patient=True))
        if len(refusals) == len(self._servers) and not any(isinstance(e, StoreTimeout) for e in refusals.values()):
            raise StoreUnavailable(f"no server can take the loader:{_listed(refusals)}")

    def begin(self, num_ahead: int, epoch: int, step: int) -> None:
        """Begin an iteration; the request for the first batch starts it on the servers."""
        self._turn += 1
        self._num_ahead = num_ahead
        self._progress = _Progress(step)
        for server in self._servers:
            server.num_taken = 0

    def end(self) -> None:
        """End the iteration; calls that wait for its batches fail within ``POLL_S``."""
        self._ended = self._turn

    def beside(self) -> RemoteSession:
        """Open another session for the same batches."""
        session = RemoteSession(self._cluster, self._settings, self._timeout_s, self._rank)
        session.prepare(self._recipe)
        return session

    def ready_batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch | None:
        """Return the batch if its server delivers it within ``READY_S``, else None."""
        progress, server = self._progress, self._by_preference(step)[0]
        try:
            batch = self._ask(server, (self._turn, epoch, step), time.monotonic() + READY_S, buffers)
        except (StoreUnavailable, StoreTimeout, ChannelLost) as error:
            if not isinstance(error, ServerBusy | ChannelLost):
                server.has_failed()
            LOG.debug("batch %d is requested again when its turn comes", step, exc_info=True)
            return None
        if batch is not None:
            server.has_answered()
            progress.add(step)
        return batch

    def repeat(self, epoch: int, step: int, fetch: Callable[[], T]) -> T:
        """Fetch the rows of a batch, with retries while their server is unreachable."""
        turn, ends = self._turn, time.monotonic() + self._timeout_s
        level = logging.WARNING
        while True:
            try:
                return fetch()
            except (StoreUnavailable, StoreTimeout) as error:
                self._check_wanted(turn, step, error)
                if time.monotonic() > ends:
                    locations = [str(server.connection.location) for server in self._servers]
                    where = next((where for where in locations if where in str(error)), "its rows")
                    raise self._given_up(step, epoch, {where: error}) from error
                LOG.log(level, "rows of batch %d of epoch %d: %s; asking again", step, epoch, error)
                level = logging.INFO
            self._closing.wait(RETRY_S)

    def batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Wait for one batch, from any server."""
        ends = time.monotonic() + self._timeout_s
        progress = self._progress
        batch = self._from_anyone((self._turn, epoch, step), ends, buffers)
        progress.add(step)
        return batch

    def _from_anyone(self, wanted: tuple[int, int, int], ends: float, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Ask the servers in turn until the deadline.

        A server that is still making the batch after a while is passed over: it may wait for a resource that the next
        server has. It keeps the batch when it is done. Each round waits twice as long.
        """
        turn, epoch, step = wanted
        failures: dict[str, StoreError] = {}
        patience_s = PATIENCE_S
        while True:
            for server in self._by_preference(step):
                self._check_wanted(turn, step)
                name = str(server.connection.location)
                try:
                    batch = self._ask(server, wanted, min(ends, time.monotonic() + patience_s), buffers)
                except (StoreUnavailable, StoreTimeout, ChannelLost) as error:
                    self._check_wanted(turn, step, error)
                    if not isinstance(error, ServerBusy):
                        server.has_failed()
                    failures[name] = error
                    level = logging.INFO if server.num_failures > 1 else logging.WARNING
                    LOG.log(level, "batch %d of epoch %d: %s; asking again", step, epoch, error)
                else:
                    if batch is not None:
                        server.has_answered()
                        return batch
                    failures.setdefault(name, StoreTimeout("the server is still making the batch"))
                if time.monotonic() > ends:
                    raise self._given_up(step, epoch, failures)
            patience_s *= 2
            if failures and self._closing.wait(RETRY_S):
                self._check_wanted(turn, step)

    def _check_wanted(self, turn: int, step: int, cause: BaseException | None = None) -> None:
        """Raise an error if the session was closed or the batch's iteration has ended."""
        if self._closing.is_set():
            raise StoreUnavailable(f"batch {step} will not come; the loader was closed") from cause
        if turn != self._turn or turn <= self._ended:
            raise StateError(f"batch {step} is outdated: its iteration has ended") from cause

    def close(self) -> None:
        """Remove the channels and disconnect; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        threads = [threading.Thread(target=self._leave, args=(server,), daemon=True) for server in self._servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * DESTROY_S)
        self.store.close()

    def _leave(self, server: _Server) -> None:
        """Remove a server's channel if that is possible in time, and disconnect."""
        ends = time.monotonic() + DESTROY_S
        is_mine = server.lock.acquire(timeout=DESTROY_S / 2)  # a channel that is being registered exists soon
        try:
            for _ in range(DESTROY_TRIES if server.was_asked else 0):
                try:
                    left_s = max(LATE_S, ends - time.monotonic())
                    self._call(server, "destroy_sampling_input", {"worker_key": self._key}, timeout_s=left_s)
                    break
                except StoreUnavailable:  # retry: a broken connection is opened again, a stopped server stays down
                    time.sleep(RETRY_S)
                except HopstreamError:
                    break
        finally:
            if is_mine:
                server.lock.release()
            server.connection.close()

    def _by_preference(self, step: int) -> list[_Server]:
        """Return the server whose share holds a batch, then the others; recently failed servers come last."""
        first, now = step % len(self._servers), time.monotonic()
        order = [*self._servers[first:], *self._servers[:first]]
        return sorted(order, key=lambda server: server.avoided_until > now)

    def _ask(
        self, server: _Server, wanted: tuple[int, int, int], ends: float, buffers: Buffers
    ) -> MiniBatch | SampledBatch | None:
        """Request a batch from one server until it is ready; None if it is still being made at the deadline."""
        turn, epoch, step = wanted
        while True:
            channel_id = self._channel_at(server, wanted, ends)
            wait_s = max(0.0, min(POLL_S, ends - time.monotonic()))
            # A server that was passed over may hold batches that other servers have delivered, and lack room.
            lowest = min(step, self._progress.lowest)
            header = {
                "channel_id": channel_id, "turn": turn, "epoch": epoch, "step": step, "lowest": lowest,
                "wait_s": wait_s,
            }  # fmt: skip
            try:
                op = "fetch_one_sampled_message"
                frame = server.connection.ask(
                    self._request(op, header), wait_s + SLACK_S, op, OneFrame(buffers.take),
                    is_patient=len(self._servers) == 1,
                )  # fmt: skip
            except ChannelLost as error:
                self._check_wanted(turn, step, error)  # a later iteration of this loader explains the error
                self._lost(server, channel_id)
                if time.monotonic() > ends:
                    raise
                continue
            if frame.header.get("pending") is not True:
                batch = decode_batch(frame, buffers)
                self._check_columns(server, batch)
                if batch.epoch != epoch:
                    raise FormatError(
                        f"{server.connection.name} sent a batch of epoch {batch.epoch}; batch {step} of epoch {epoch} "
                        "was requested"
                    )
                return batch
            self._check_wanted(turn, step)
            if time.monotonic() > ends:
                return None

    def _check_columns(self, server: _Server, batch: MiniBatch | SampledBatch) -> None:
        """Raise ``FormatError`` if a batch is of the wrong kind, or its ids or types do not fit the schema."""
        schema, is_sampled = self.store.schema, isinstance(batch, SampledBatch)
        is_right = is_sampled == self.store.keeps_rows
        if isinstance(batch, SampledBatch) and is_right:
            ids = [*batch.node_ids.values(), *batch.edge_ids.values(), *batch.edge_keys.values()]
            ids += [] if batch.seed_keys is None else [batch.seed_keys]
            is_right = (
                set(batch.node_ids) == set(schema.nodes)
                and set(batch.edge_ids) == set(batch.directions) == set(schema.edges) <= set(batch.edge_index)
                and batch.seed_type in {*schema.nodes, *schema.edges}
                and set(batch.directions.values()) <= set(self.store.directions)
                and all(one.ndim == 1 for one in ids)
                and set(batch.edge_keys) <= set(batch.edge_ids)
                and all(len(of) in (0, batch.edge_index[t].shape[-1]) for t, of in batch.edge_ids.items())
                and all(len(of) == batch.edge_index[t].shape[-1] for t, of in batch.edge_keys.items())
            )
        if not is_right:
            raise FormatError(
                f"{server.connection.name} sent a batch whose types, ids or columns differ from the request; install "
                "one version on servers and trainers"
            )

    def _channel_at(self, server: _Server, wanted: tuple[int, int, int], ends: float) -> int:
        """Return the session's channel at a server, registered and in the right iteration."""
        turn, epoch, step = wanted
        if not server.lock.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise StoreTimeout(f"{server.connection.name} is still registering the input for another batch")
        try:
            self._check_wanted(turn, step)
            if server.channel_id is None:
                server.channel_id, server.turn = self._register(server), -1
            if server.turn != turn:
                # The server skips batches that other servers have delivered before it joins (again).
                first_step = min(step, self._progress.lowest)
                header = {"channel_id": server.channel_id, "turn": turn, "epoch": epoch, "first_step": first_step}
                self._start(server, server.channel_id, header)
                server.turn = turn
            return server.channel_id
        finally:
            server.lock.release()

    def _start(self, server: _Server, channel_id: int, header: dict[str, Any]) -> None:
        """Start an iteration on a channel; give the channel up if another client has started a later one.

        Raises:
            ChannelLost: The channel must be registered again.
            StateError: The channel was already registered again ``MAX_TAKEN`` times in this iteration.
        """
        try:
            answer = self._call(server, "start_new_epoch_sampling", header, timeout_s=POLL_S + SLACK_S)
            found = {name: answer.header.get(name, header[name]) for name in ("turn", "epoch")}
            if found != {name: header[name] for name in found}:
                told = f"channel {channel_id} at {server.connection.name} was taken to {found} by another client"
                if server.num_taken == MAX_TAKEN:
                    raise StateError(
                        f"{told}; it was registered again {MAX_TAKEN} times in one iteration; end the client that uses "
                        "the same worker_key"
                    )
                self._call(server, "destroy_sampling_input", {"channel_id": channel_id}, timeout_s=POLL_S + SLACK_S)
                server.num_taken += 1
                raise ChannelLost(f"{told}; it is registered again")
        except ChannelLost:
            server.channel_id = None
            raise

    def _lost(self, server: _Server, channel_id: int) -> None:
        """Forget a channel that no longer exists, so that the next batch registers a new one."""
        with server.lock:
            if server.channel_id == channel_id:
                server.channel_id = None

    def _init(self, server: _Server, *, is_patient: bool = False) -> int:
        """Make or find the backend at a server, and check that the server has room for the session's channel."""
        options, arrays = self._config
        header = {
            "backend_key": f"{self._loader} {self._digest}", "loader": self._loader, "options": options,
            "worker_key": self._key,
        }  # fmt: skip
        answer = self._call(
            server, "init_sampling_backend", header, arrays, timeout_s=POLL_S + SLACK_S, is_patient=is_patient
        )
        return int(answer.header["backend_id"])

    def _register(self, server: _Server) -> int:
        """Register the session's channel at a server."""
        server.was_asked = True
        backend_id = self._init(server)
        options, arrays = self._inputs
        header: dict[str, Any] = {
            "backend_id": backend_id, "config": self._digest, "worker_key": self._key,
            "worker": self._worker, "options": options,
            "first": server.number, "stride": len(self._servers),
            "credit": max(1, -(-self._num_ahead // len(self._servers))),
            "has_columns": not self.store.keeps_rows,
        }  # fmt: skip
        timeout_s = POLL_S + SLACK_S + sum(array.nbytes for array in arrays) / INPUT_BYTES_PER_S
        answer = self._call(server, "register_sampling_input", header, arrays, timeout_s=timeout_s)
        return int(answer.header["channel_id"])

    def _call(
        self,
        server: _Server,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[Array] = (),
        timeout_s: float | None = None,
        *,
        is_patient: bool = False,
    ) -> Frame:
        """Make one call and return its only frame; retry a busy server if ``is_patient`` or there is no other."""
        is_patient = is_patient or len(self._servers) == 1
        timeout_s = timeout_s or self._settings.timeout_s
        return server.connection.ask(self._request(op, header, arrays), timeout_s, op, is_patient=is_patient)

    def _request(self, op: str, header: dict[str, Any], arrays: Sequence[Array] = ()) -> Frame:
        return Frame({"op": op, "dataset": self.store.dataset_id, **header}, arrays)

    def _given_up(self, step: int, epoch: int, failures: dict[str, StoreError]) -> StoreError:
        found = {
            **failures,
            **self._failures(
                [one for one in self._servers if str(one.connection.location) not in failures], self._greet
            ),
        }
        return StoreUnavailable(
            f"no server gave batch {step} of epoch {epoch} in {self._timeout_s:g} s:{_listed(found)}"
        )

    def _greet(self, server: _Server) -> None:
        """Raise an error if a server does not answer a ping; another server may have waited for it."""
        server.connection.ping(LATE_S)

    def _failures(self, servers: Sequence[_Server], ask: Callable[[_Server], object]) -> dict[str, StoreError]:
        """Ask servers in parallel; return the errors of those that failed, by location."""

        def failure(server: _Server) -> StoreError | None:
            try:
                ask(server)
            except (StoreUnavailable, StoreTimeout) as error:
                return error
            return None

        if not servers:
            return {}
        with ThreadPoolExecutor(min(len(servers), MAX_ASKING)) as pool:
            found = zip(servers, pool.map(failure, servers), strict=True)
            return {str(server.connection.location): error for server, error in found if error is not None}


def _listed(errors: Mapping[str, StoreError]) -> str:
    """Format errors of servers, one line each that begins with the location."""
    return "".join(
        f"\n  {error}" if str(error).startswith((f"{where}:", f"{where} ")) else f"\n  {where}: {error}"
        for where, error in errors.items()
    )


def _read(source: str | os.PathLike[str]) -> Cluster:
    location = read_location(source)
    if "://" in location:
        return parse_locations(location)
    path = local_path(location)
    if path.is_dir():
        raise SettingsError(
            f"{path} is a folder; a RemoteGraph has servers: give their cluster.json or their addresses, or give the "
            "folder to a loader"
        )
    return read_cluster(path, instead="the addresses of servers")
