"""Has a trainer's batches made by the servers that hold the graph.

``RemoteGraph`` is a source for every loader. A loader's batches are dealt out to the servers, round and round; every
server makes its share ahead, and any server can make any batch, because a batch is a pure function of its number and
of what the loader was asked. So a batch that one server does not give is asked of another, or of the same one after
it was started again, and every batch comes exactly once.
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
from hopstream.load.batch import Buffers, MiniBatch, SampledBatch
from hopstream.load.service import BatchService, BatchSession, Recipe
from hopstream.store.cluster import Cluster, open_cluster, parse_locations, read_cluster
from hopstream.store.settings import StoreSettings, check_store_settings
from hopstream.store.sources import check_source
from hopstream.stream.messages import INPUT_OPTIONS, decode_batch, encode_options, recipe_digest
from hopstream.stream.questions import GraphQuestions
from hopstream.transport.connection import Connection, OneFrame
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.uris import local_path

LOG = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 1.0
"""How long a server may let one call wait before it says that a batch is still being made."""
SLACK_S = 5.0
"""How much longer than that a call may take before its server counts as gone."""
INPUT_BYTES_PER_S = 10e6
"""How fast, at the least, a server takes the seeds of an input."""
PATIENCE_S = 10.0
"""How long one server may say that a batch is still being made before another one is asked for it, too."""
LATE_S = 1.0
"""How much later than a batch's deadline an answer may come."""
DESTROY_S = 4.0
"""How long a closing loader waits for a server to give its channel up; the lease does it otherwise."""
DESTROY_TRIES = 4
RETRY_S = 0.2
"""How long to wait after every server has failed, before the first is asked again."""
READY_S = 1.0
"""How long a batch that is not needed yet is waited for."""
AVOID_S = 5.0
"""How long a server that has failed is asked last; twice as long after every further failure."""
MAX_AVOID_S = 80.0
MAX_TAKEN = 3
"""How often in one iteration a server's channel may be made anew because somebody else has moved it on."""
MAX_ASKING = 64
"""Servers that are asked at once whether they are there."""


class RemoteGraph(GraphQuestions, BatchService):
    """A cluster whose servers sample: give it to a loader in place of the cluster's file.

    One ``RemoteGraph`` may be given to any number of loaders; each has channels of its own.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        settings: StoreSettings | None = None,
        timeout_s: float = 120.0,
        wait_s: float = 0.0,
    ) -> None:
        """Remember where the servers are; nothing is asked before a loader is made.

        Args:
            source: A ``cluster.json``, or addresses of servers joined by commas.
            settings: Deadline of a single request, token, certificates, and ``cache_bytes`` for rows that this process
                keeps; 0 has whole batches sent.
            timeout_s: How long to go on asking for a batch, over all servers, while they fail or are started again.
            wait_s: How long a new loader waits for servers that are not up yet. By default it fails at once, so that
                a wrong address is noticed.

        Raises:
            SettingsError: ``source`` names no servers, or ``timeout_s`` or ``wait_s`` is no time.
            FormatError: The file is no cluster file.
        """
        check_seconds("timeout_s", timeout_s)
        if wait_s != 0:
            check_seconds("wait_s", wait_s)
        super().__init__(_read(source), check_store_settings(settings))
        self._timeout_s, self._wait_s = float(timeout_s), float(wait_s)

    def __repr__(self) -> str:
        """The graph in one line."""
        return f"RemoteGraph({', '.join(entry.location for entry in self._cluster.servers)})"

    def open(self, rank: int) -> BatchSession:
        """Open what one loader needs.

        Raises:
            StoreError: A server that is needed cannot be reached, or refused to answer.
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
    """One server, and the channel that a session has there.

    Attributes:
        number: Its place among the servers, which is its share of the batches.
        connection: To the server.
        channel_id: The session's channel, or None where there is none (any more).
        turn: The iteration that was started there last.
        was_asked: A channel was asked for there; it may have been made although the answer did not come.
        avoided_until: When it may be asked first again, after it failed.
        num_failures: How often it has failed since it last gave a batch.
        num_taken: How often somebody else has moved the channel on in this iteration.
        lock: Held while a channel is made or an epoch started.
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
        """It did not do what it was asked."""
        self.avoided_until = time.monotonic() + min(MAX_AVOID_S, AVOID_S * 2**self.num_failures)
        self.num_failures = min(self.num_failures + 1, 30)

    def has_answered(self) -> None:
        """It gave a batch."""
        self.avoided_until, self.num_failures = 0.0, 0


class _Progress:
    """Which batches of one iteration have come. Safe to use from many threads."""

    def __init__(self, first_step: int) -> None:
        """Before the first batch."""
        self._lock = threading.Lock()
        self._lowest = first_step
        self._come: set[int] = set()

    @property
    def lowest(self) -> int:
        """The first batch that has not come; all before it have, whichever server gave them."""
        return self._lowest

    def add(self, step: int) -> None:
        """A batch has come."""
        with self._lock:
            self._come.add(step)
            while self._lowest in self._come:
                self._come.remove(self._lowest)
                self._lowest += 1


class RemoteSession(BatchSession):
    """The channels of one loader on all servers of a cluster. Safe to use from many threads."""

    def __init__(self, cluster: Cluster, settings: StoreSettings, timeout_s: float, rank: int) -> None:
        """Connect to the cluster; channels are made when batches are asked for.

        Raises:
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        self._cluster, self._settings, self._rank = cluster, settings, rank
        self._timeout_s = timeout_s
        self.store = open_cluster(cluster, settings)
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
        """Take over what decides over the batches, and check that some server has room for another loader."""
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
        """An iteration begins; servers hear of it when the first batch is asked for."""
        self._turn += 1
        self._num_ahead = num_ahead
        self._progress = _Progress(step)
        for server in self._servers:
            server.num_taken = 0

    def end(self) -> None:
        """Whoever waits for a batch hears within a poll that it is not wanted any more."""
        self._ended = self._turn

    def beside(self) -> RemoteSession:
        """Another session for the same batches."""
        session = RemoteSession(self._cluster, self._settings, self._timeout_s, self._rank)
        session.prepare(self._recipe)
        return session

    def ready_batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch | None:
        """The batch if the server whose share it is in gives it within ``READY_S``."""
        progress, server = self._progress, self._by_preference(step)[0]
        try:
            batch = self._ask(server, (self._turn, epoch, step), time.monotonic() + READY_S, buffers)
        except (StoreUnavailable, StoreTimeout, ChannelLost) as error:
            if not isinstance(error, ServerBusy | ChannelLost):
                server.has_failed()
            LOG.debug("batch %d is asked for again when its turn comes", step, exc_info=True)
            return None
        if batch is not None:
            server.has_answered()
            progress.add(step)
        return batch

    def repeat(self, epoch: int, step: int, fetch: Callable[[], T]) -> T:
        """Ask for the rows of a batch, again while their server is gone."""
        turn, ends = self._turn, time.monotonic() + self._timeout_s
        while True:
            try:
                return fetch()
            except (StoreUnavailable, StoreTimeout) as error:
                self._check_wanted(turn, step, error)
                if time.monotonic() > ends:
                    locations = [str(server.connection.location) for server in self._servers]
                    where = next((where for where in locations if where in str(error)), "its rows")
                    raise self._given_up(step, epoch, {where: error}) from error
                LOG.warning("rows of batch %d of epoch %d: %s; asking again", step, epoch, error)
            self._closing.wait(RETRY_S)

    def batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Wait for one batch, from whichever server can give it."""
        ends = time.monotonic() + self._timeout_s
        progress = self._progress
        batch = self._from_anyone((self._turn, epoch, step), ends, buffers)
        progress.add(step)
        return batch

    def _from_anyone(self, wanted: tuple[int, int, int], ends: float, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Ask the servers in turn, as long as it takes.

        One that is still making the batch is left for the next one after a while: it may wait for something that the
        next one has. It keeps what it makes, so it is asked again, and longer, when its turn comes.
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
                    failures.setdefault(name, StoreTimeout("it is still making the batch"))
                if time.monotonic() > ends:
                    raise self._given_up(step, epoch, failures)
            patience_s *= 2
            if failures and self._closing.wait(RETRY_S):
                self._check_wanted(turn, step)

    def _check_wanted(self, turn: int, step: int, cause: BaseException | None = None) -> None:
        """Give up a batch whose iteration has ended."""
        if self._closing.is_set():
            raise StoreUnavailable(f"batch {step} will not come; the loader was closed") from cause
        if turn != self._turn or turn <= self._ended:
            raise StateError(f"batch {step} is not wanted any more; its iteration has ended") from cause

    def close(self) -> None:
        """Give the channels up and disconnect; a second call does nothing."""
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
        """Destroy a server's channel, if it can be done in time, and disconnect."""
        ends = time.monotonic() + DESTROY_S
        is_mine = server.lock.acquire(timeout=DESTROY_S / 2)  # a channel that is being made is there a moment later
        try:
            for _ in range(DESTROY_TRIES if server.was_asked else 0):
                try:
                    left_s = max(LATE_S, ends - time.monotonic())
                    self._call(server, "destroy_sampling_input", {"worker_key": self._key}, timeout_s=left_s)
                    break
                except StoreUnavailable:  # a connection that broke is made again; a server that is gone stays gone
                    time.sleep(RETRY_S)
                except HopstreamError:
                    break
        finally:
            if is_mine:
                server.lock.release()
            server.connection.close()

    def _by_preference(self, step: int) -> list[_Server]:
        """The server whose share a batch is in, then the others; those that have just failed last."""
        first, now = step % len(self._servers), time.monotonic()
        order = [*self._servers[first:], *self._servers[:first]]
        return sorted(order, key=lambda server: server.avoided_until > now)

    def _ask(
        self, server: _Server, wanted: tuple[int, int, int], ends: float, buffers: Buffers
    ) -> MiniBatch | SampledBatch | None:
        """Ask one server for a batch until it is there; None where the server is still making it at the end."""
        turn, epoch, step = wanted
        while True:
            channel_id = self._channel_at(server, wanted, ends)
            wait_s = max(0.0, min(POLL_S, ends - time.monotonic()))
            # A server that was passed over holds batches that others gave meanwhile, and no room for those to come.
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
                self._check_wanted(turn, step, error)  # a later iteration of this loader is no loss
                self._lost(server, channel_id)
                if time.monotonic() > ends:
                    raise
                continue
            if frame.header.get("pending") is not True:
                batch = decode_batch(frame, buffers)
                self._check_columns(server, batch)
                if batch.epoch != epoch:
                    raise FormatError(
                        f"{server.connection.name} gave a batch of epoch {batch.epoch}; batch {step} of epoch {epoch} "
                        "was asked for"
                    )
                return batch
            self._check_wanted(turn, step)
            if time.monotonic() > ends:
                return None

    def _check_columns(self, server: _Server, batch: MiniBatch | SampledBatch) -> None:
        """Raise ``FormatError`` where a server gave another kind of batch, or ids that fetch no columns of it."""
        schema, is_sampled = self.store.schema, isinstance(batch, SampledBatch)
        is_right = is_sampled == self.store.keeps_rows
        if isinstance(batch, SampledBatch) and is_right:
            ids = [*batch.node_ids.values(), *batch.edge_ids.values()]
            ids += [] if batch.seed_keys is None else [batch.seed_keys]
            is_right = (
                set(batch.node_ids) == set(schema.nodes)
                and set(batch.edge_ids) == set(batch.directions) == set(schema.edges) <= set(batch.edge_index)
                and batch.seed_type in {*schema.nodes, *schema.edges}
                and set(batch.directions.values()) <= set(self.store.directions)
                and all(one.ndim == 1 for one in ids)
                and all(len(of) in (0, batch.edge_index[t].shape[-1]) for t, of in batch.edge_ids.items())
            )
        if not is_right:
            raise FormatError(
                f"{server.connection.name} gave a batch with other types, ids or columns than were asked for"
            )

    def _channel_at(self, server: _Server, wanted: tuple[int, int, int], ends: float) -> int:
        """The session's channel at a server, with the iteration started."""
        turn, epoch, step = wanted
        if not server.lock.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise StoreTimeout(f"{server.connection.name} is still registering the input for another batch")
        try:
            self._check_wanted(turn, step)
            if server.channel_id is None:
                server.channel_id, server.turn = self._register(server), -1
            if server.turn != turn:
                # What all others have given out by now is not made ahead, where this server comes (back) later.
                first_step = min(step, self._progress.lowest)
                header = {"channel_id": server.channel_id, "turn": turn, "epoch": epoch, "first_step": first_step}
                self._start(server, server.channel_id, header)
                server.turn = turn
            return server.channel_id
        finally:
            server.lock.release()

    def _start(self, server: _Server, channel_id: int, header: dict[str, Any]) -> None:
        """Start an iteration on a channel, which is given up where somebody else has started a later one on it.

        Raises:
            ChannelLost: The channel is to be made anew.
            StateError: It was made anew ``MAX_TAKEN`` times in this iteration.
        """
        try:
            answer = self._call(server, "start_new_epoch_sampling", header, timeout_s=POLL_S + SLACK_S)
            found = {name: answer.header.get(name, header[name]) for name in ("turn", "epoch")}
            if found != {name: header[name] for name in found}:
                told = f"channel {channel_id} at {server.connection.name} was taken to {found} by somebody else"
                if server.num_taken == MAX_TAKEN:
                    raise StateError(
                        f"{told}, after it was made anew {MAX_TAKEN} times in one iteration; end the client that uses "
                        "the same worker_key"
                    )
                self._call(server, "destroy_sampling_input", {"channel_id": channel_id}, timeout_s=POLL_S + SLACK_S)
                server.num_taken += 1
                raise ChannelLost(f"{told}; it is made anew")
        except ChannelLost:
            server.channel_id = None
            raise

    def _lost(self, server: _Server, channel_id: int) -> None:
        """A server has no such channel any more: the next batch is asked of a new one."""
        with server.lock:
            if server.channel_id == channel_id:
                server.channel_id = None

    def _init(self, server: _Server, *, is_patient: bool = False) -> int:
        """Make or find the backend at a server that has room for the session's channel."""
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
        """Make the session's channel at a server."""
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
        """Make one call and return its only frame; a busy server is asked again if ``is_patient``, or the only one."""
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
        """Fails where a server does not answer now: it may be what one that was asked for a batch waited for."""
        server.connection.ping(LATE_S)

    def _failures(self, servers: Sequence[_Server], ask: Callable[[_Server], object]) -> dict[str, StoreError]:
        """Why some servers cannot answer a question that is put to all of them at once, by their location."""

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
    """What servers said, by location: a line each, which begins with the location."""
    return "".join(
        f"\n  {error}" if str(error).startswith((f"{where}:", f"{where} ")) else f"\n  {where}: {error}"
        for where, error in errors.items()
    )


def _read(source: str | os.PathLike[str]) -> Cluster:
    check_source(source)
    if isinstance(source, str) and "://" in source:
        return parse_locations(source)
    path = local_path(source)
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; a RemoteGraph has servers: give their cluster.json, or the folder")
    return read_cluster(path)
