"""Sampling service: the operations of a server that samples for compute ranks.

Each operation is one call of the store server. Operations that GiGL's graph store also has have the same names. A
*backend* is a way to sample batches. A *channel* is one input of one compute rank on a backend.
"""

from __future__ import annotations

import logging
import reprlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from hopstream.buffers import BufferPool
from hopstream.errors import (
    AccessDenied,
    ChannelLost,
    FormatError,
    HopstreamError,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.load.ablp import ABLPLoader
from hopstream.load.ahead import GROUP
from hopstream.load.batch import BatchMaker
from hopstream.load.clusters import ClusterLoader
from hopstream.load.epochs import Maker
from hopstream.load.hgt import HGTLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader, RandomNodeLoader
from hopstream.load.ppr import PPRLoader
from hopstream.load.setup import SubgraphLoader
from hopstream.store.answer import Operation
from hopstream.store.contract import Store
from hopstream.store.routed import RoutedStore, own_refusal
from hopstream.stream.channel import SampledChannel, Share
from hopstream.stream.messages import INPUT_OPTIONS, decode_options, encode_batch, recipe_digest
from hopstream.stream.scheduler import JOIN_S, Scheduler
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.calls import Call
from hopstream.transport.messages import Frame

LOG = logging.getLogger(__name__)
LOADERS: Mapping[str, type[SubgraphLoader]] = {
    one.__name__: one
    for one in (NeighborLoader, LinkNeighborLoader, ABLPLoader, PPRLoader, RandomNodeLoader, ClusterLoader, HGTLoader)
}
BUFFER_BYTES = 64 << 20
"""Memory of past batches kept for reuse, per sampling thread."""
MAX_WAIT_S = 30.0
"""Longest wait of one fetch in seconds; a client that wants to wait longer repeats the call."""
INIT_WAIT_S = 60.0
"""Seconds that a caller waits while another caller opens the graph."""
MAX_BACKENDS = 1024
MAX_OPTION_BYTES = 16 << 20
"""Largest request for a backend; options take kilobytes."""
MAX_KEY_LENGTH = 1000
MAX_STREAMED = 1 << 20
Answer = tuple[dict[str, Any], list[Any]]


@dataclass(slots=True, kw_only=True, eq=False)
class Backend:
    """Way to sample batches, shared by channels.

    Attributes:
        backend_id: Number of the backend.
        backend_key: Name that clients gave it.
        loader: Class name of the loader.
        options: Options of the loader, without the inputs of channels.
        digest: Digest of loader and options.
        store: Store to sample from.
        channels: Digest of the input and id of each channel, by the ``worker_key`` of its compute rank.
        used_at: Time of the last request; a backend without channels is dropped after a lease.
    """

    backend_id: int
    backend_key: str
    loader: str
    options: Mapping[str, Any]
    digest: str
    store: Store
    channels: dict[str, tuple[str, int]] = field(default_factory=dict)
    used_at: float = field(default_factory=time.monotonic)


class SamplingService:
    """Sampling for compute ranks on a server. Safe to use from many threads."""

    def __init__(self, open_graph: Callable[[], Store], limits: SamplingLimits | None = None) -> None:
        """Start the sampling threads.

        Args:
            open_graph: Opens the whole graph. It is called when the first backend needs it, because other servers of
                the cluster may start later. The service closes the graph.
            limits: Number of threads, and limits on memory and times.
        """
        self._limits = limits or SamplingLimits()
        self._open_graph = open_graph
        self._scheduler = Scheduler(self._limits)
        self._scheduler.on_expired = self._forget
        self._scheduler.on_watch = self._drop_unused
        self._buffers = _new_pool(self._limits)
        self._lock = threading.Lock()
        self._graph: Store | None = None
        self._opening: Future[Store] | None = None
        self._is_refusing = False
        self._is_closed = False
        self._backends: dict[int, Backend] = {}
        self.operations: Mapping[str, Operation] = {
            name: _answering(getattr(self, name))
            for name in (
                "init_sampling_backend", "register_sampling_input", "start_new_epoch_sampling",
                "destroy_sampling_input", "describe_channel", "describe_channels", "is_channel_epoch_done",
            )
        } | {
            "fetch_one_sampled_message": self.fetch_one_sampled_message,
            "fetch_sampled_messages": self.fetch_sampled_messages,
        }  # fmt: skip
        """Operations for ``StoreServer``, by name."""

    def init_sampling_backend(self, frame: Frame) -> Answer:
        """Make or find a backend by its key: ``{backend_key, loader, options}`` to ``{backend_id}``.

        With ``worker_key`` the call fails if that compute rank could not get a channel.

        Raises:
            SettingsError: The loader is unknown, or a backend with the same key has other options.
            StoreTimeout: Another caller took too long to open the graph.
            StoreUnavailable: The server is shutting down, or has no room for another backend or channel.
            HopstreamError: Any error of opening the graph, for every caller that waited for it.
        """
        if self._is_refusing:
            raise StoreUnavailable("the server is shutting down")
        _check_size(frame, MAX_OPTION_BYTES, "the options of a loader are small; seeds go to register_sampling_input")
        key, loader = _key(frame, "backend_key"), frame.text("loader")
        if loader not in LOADERS:
            raise SettingsError(f"{loader[:100]!r} is not a loader; a server samples for {', '.join(LOADERS)}")
        options = decode_options(frame.header.get("options"), frame.arrays)
        digest = recipe_digest(loader, frame.header.get("options"), frame.arrays)
        if frame.header.get("worker_key") is not None:
            self._scheduler.check_room(_key(frame, "worker_key"))
        if named := sorted(INPUT_OPTIONS & set(options)):
            raise SettingsError(f"{', '.join(named)} is an input of a channel; give it to register_sampling_input")
        backend = self._known_or(
            Backend(
                backend_id=_new_id(), backend_key=key, loader=loader, options=options, digest=digest,
                store=self._graph_of_all(),
            )
        )  # fmt: skip
        if backend.digest != digest:
            raise SettingsError(f"backend {key[:100]!r} has other options; choose another backend_key")
        return {"backend_id": backend.backend_id}, []

    def register_sampling_input(self, frame: Frame) -> Answer:
        """Make a channel.

        ``{backend_id, config, worker_key, worker, options, first, stride, credit, has_columns}`` to ``{channel_id}``.

        ``channel_id`` is a secret: it allows a client to use, move and destroy the channel. ``worker_key`` is a secret
        that the rank chose, with the same rights. ``worker`` is a readable name of the rank.

        ``options`` are the inputs of the rank. ``config`` is the digest of the backend's options. If ``has_columns`` is
        false, batches hold ids instead of columns, and the rank fetches the columns. A repeated call with the same
        ``worker_key`` and the same input returns the same channel.

        Raises:
            ChannelLost: There is no such backend.
            SettingsError: The options do not match the backend, another input has the same key, or the input is too
                large.
            StoreUnavailable: The server has as many channels as allowed, or is shutting down.
            HopstreamError: Any error of the loader about its options.
        """
        backend = self._backend(integer_of(frame, "backend_id"))
        key = _key(frame, "worker_key")
        first, stride = integer_of(frame, "first", 0), integer_of(frame, "stride", 1)
        credit = min(integer_of(frame, "credit", 1), self._limits.credit)
        has_columns = frame.header.get("has_columns", True)
        if not isinstance(has_columns, bool):
            raise FormatError(f"header field 'has_columns' is {reprlib.repr(has_columns)}; it must be true or false")
        digest = recipe_digest(str([first, stride, credit, has_columns]), frame.header.get("options"), frame.arrays)
        options = decode_options(frame.header.get("options"), frame.arrays)
        if frame.text("config") != backend.digest:
            raise SettingsError(
                "the input's options of sampling differ from its backend's; register it with a backend of the same "
                "loader and options"
            )
        if others := sorted(set(options) - INPUT_OPTIONS):
            raise SettingsError(f"{', '.join(others)} is an option of the backend, not of an input")
        with self._lock:
            known = backend.channels.get(key)
        if known is not None:
            if known[0] != digest:
                raise SettingsError("worker_key is taken by another input; choose another")
            return {"channel_id": known[1]}, []
        self._scheduler.check_room(key)
        loader = self._new_loader(backend, options)
        channel_id = _new_id()
        share = Share(first=first, stride=stride, num_steps=len(loader))
        self._scheduler.add(
            channel_id, backend.backend_id, key, share, credit=credit, loader=backend.loader, payer=backend.backend_key,
            worker=_worker(frame), input_bytes=frame.num_bytes, group=1 if has_columns else GROUP,
            new_job=lambda: _BatchJob(loader.maker(), has_columns),
        )  # fmt: skip
        with self._lock:
            is_there = self._backends.get(backend.backend_id) is backend and key not in backend.channels
            if is_there:
                backend.channels[key] = (digest, channel_id)
        if not is_there:
            self._scheduler.remove(channel_id)
            raise ChannelLost(
                f"backend {backend.backend_id} was removed, or another call registered the same input; register it "
                "again"
            )
        return {"channel_id": channel_id}, []

    def start_new_epoch_sampling(self, frame: Frame) -> Answer:
        """Start an epoch: ``{channel_id, epoch, turn, first_step}`` to the channel's ``{turn, epoch}``.

        ``turn`` numbers the iterations of a client that goes back to earlier epochs; the default is 0. The call does
        nothing unless the iteration is later than the current one. If another client has started a later iteration, the
        caller must register its input again.

        Raises:
            ChannelLost: There is no such channel.
        """
        epoch, turn = integer_of(frame, "epoch", 0), integer_of(frame, "turn", 0, default=0)
        first_step = integer_of(frame, "first_step", 0, default=0)
        turn, epoch = self._scheduler.begin(integer_of(frame, "channel_id"), turn, epoch, first_step)
        return {"turn": turn, "epoch": epoch}, []

    def fetch_one_sampled_message(self, frame: Frame) -> Iterator[Frame]:
        """Wait for a batch: ``{channel_id, turn, epoch, step, lowest, wait_s}`` to its message.

        The answer is ``{"end_of_epoch": true}`` after the last batch of the epoch, and ``{"pending": true}`` if the
        batch is not ready within ``wait_s`` seconds. Batches before ``lowest`` may be dropped. The call may be
        repeated.

        Raises:
            ChannelLost: There is no such channel, or it is at a later iteration.
            StateError: No epoch was started, or the requested iteration has not been started.
            SettingsError: The channel has too many unanswered calls.
            HopstreamError: Any error of making the batch.
        """
        step = integer_of(frame, "step", 0)
        for message, _ in self._messages(frame, range(step, step + 1)):
            yield replace(message, is_last=True)

    def fetch_sampled_messages(self, frame: Frame) -> Iterator[Frame]:
        """Stream batches: ``{channel_id, turn, epoch, step, max_messages, lowest, wait_s}`` to messages.

        Batches of the channel's share come in order, from ``step`` on. The stream ends after ``max_messages`` messages,
        after a failed batch, with ``{"end_of_epoch": true}`` after the last batch, or with ``{"pending": true}`` if the
        next batch is not ready within ``wait_s`` seconds. After a broken stream, call again from the first missing
        batch.
        """
        step, num_messages = (
            integer_of(frame, "step", 0),
            integer_of(frame, "max_messages", 1, MAX_STREAMED, MAX_STREAMED),
        )
        stride = self._scheduler.share_of(integer_of(frame, "channel_id")).stride
        for message, is_last in self._messages(frame, range(step, step + num_messages * stride, stride)):
            yield replace(message, is_last=is_last)
            if is_last:
                return

    def destroy_sampling_input(self, frame: Frame) -> Answer:
        """Remove a channel: ``{channel_id}``; removes its backend with the last channel; ignores unknown ids.

        ``{worker_key}`` instead removes all channels of a compute rank, even one whose id the rank never received.
        """
        is_by_key = frame.header.get("worker_key") is not None
        ids = self._scheduler.ids_of(_key(frame, "worker_key")) if is_by_key else [integer_of(frame, "channel_id")]
        removed = [channel for channel in map(self._scheduler.remove, ids) if channel is not None]
        for channel in removed:
            self._forget(channel)
        return {"was_there": bool(removed)}, []

    def describe_channel(self, frame: Frame) -> Answer:
        """Describe a channel: ``{channel_id}`` to ``{channel: {…}}``."""
        return {"channel": self.describe(integer_of(frame, "channel_id"))[0]}, []

    def describe_channels(self, _: Frame) -> Answer:
        """Describe all channels and the scheduler."""
        return self.report(), []

    def is_channel_epoch_done(self, frame: Frame) -> Answer:
        """Tell whether every batch of a channel's share was made: ``{channel_id, epoch}`` to ``{is_done}``."""
        return {
            "is_done": self._scheduler.is_epoch_done(integer_of(frame, "channel_id"), integer_of(frame, "epoch", 0))
        }, []

    def report(self) -> dict[str, Any]:
        """Return ``channels``, ``totals``, ``caches`` and ``traffic``; renews no lease."""
        lookups = {"batches": self._scheduler.lookups}
        traffic = self._graph.traffic() if isinstance(self._graph, RoutedStore) else {}
        for kind in ("sample", "fetch"):
            if kind in traffic:
                lookups[f"halo_{kind}"] = (traffic[kind].halo_ids, traffic[kind].remote_ids)
        if "fetch" in traffic:
            lookups["rows_fetch"] = (traffic["fetch"].cache_ids, traffic["fetch"].remote_ids)
        caches = {name: {"hits": hits, "misses": misses} for name, (hits, misses) in lookups.items()}
        return {
            "channels": self.describe(), "totals": self._scheduler.totals, "caches": caches,
            "traffic": {kind: counts._asdict() for kind, counts in traffic.items()},
        }  # fmt: skip

    def observe_batches(self, on_made: Callable[[float], None] | None) -> None:
        """Set a function that receives the seconds of each batch, in its thread; None removes it."""
        self._scheduler.on_made = on_made

    @property
    def has_graph(self) -> bool:
        """Whether the graph has been opened. Never waits."""
        return self._graph is not None

    @property
    def graph(self) -> Store | None:
        """The graph, if it has been opened. Never waits."""
        return self._graph

    def open_graph(self) -> None:
        """Open the graph unless it is open; takes as long as other servers take to answer.

        Raises:
            StoreUnavailable: The service is closed.
            HopstreamError: Any error of opening.
        """
        self._graph_of_all()

    def describe(self, channel_id: int | None = None) -> list[dict[str, object]]:
        """Describe one channel or all channels as JSON objects.

        Raises:
            ChannelLost: There is no such channel.
        """
        return self._scheduler.describe(channel_id)

    def refuse(self) -> None:
        """Refuse new backends and channels from now on; existing channels go on."""
        self._is_refusing = True
        self._scheduler.refuse()

    def close(self, join_s: float = JOIN_S) -> list[dict[str, object]]:
        """End all channels, the sampling threads and the graph.

        Args:
            join_s: Seconds that batches under way have to finish.

        Returns:
            Descriptions of the channels that were still open.

        Raises:
            StoreTimeout: A thread did not end in time; everything else was closed.
        """
        try:
            return self._scheduler.close(join_s)
        finally:
            with self._lock:  # never held while the graph is opened, which may take long
                self._is_closed = True
                graph, self._graph = self._graph, None
            if graph is not None:
                graph.close()

    def _messages(self, frame: Frame, steps: Iterable[int]) -> Iterator[tuple[Frame, bool]]:
        """Yield the messages of some batches, each with a flag that is True for the last one.

        The scheduler counts the bytes of a batch until its message has left the server.
        """
        channel_id, lowest, wait_s = (
            integer_of(frame, "channel_id"),
            integer_of(frame, "lowest", 0, default=0),
            _wait_s(frame),
        )
        turn, epoch = (
            None if frame.header.get(name) is None else integer_of(frame, name, 0) for name in ("turn", "epoch")
        )
        is_over = None
        if isinstance(frame, Call):
            frame.on_over(partial(self._scheduler.wake, channel_id))
            is_over = partial(getattr, frame, "is_over")
        for step in steps:
            try:
                fetched = self._scheduler.fetched(
                    channel_id, step, wait_s, iteration=(turn, epoch), lowest=lowest, is_over=is_over
                )
                with fetched as made:
                    if made is None:
                        yield Frame({"end_of_epoch": True}), True
                    else:
                        yield replace(made.message, is_counted=not made.has_failed), made.has_failed
            except StoreTimeout:
                yield Frame({"pending": True}), True

    def _known_or(self, made: Backend) -> Backend:
        """Return the backend with the same key if there is one, else add the new one."""
        with self._lock:
            for backend in self._backends.values():
                if backend.backend_key == made.backend_key:
                    backend.used_at = time.monotonic()
                    return backend
            if len(self._backends) >= MAX_BACKENDS:
                raise StoreUnavailable(
                    f"the server has {MAX_BACKENDS} backends, the maximum; close loaders that are not needed"
                )
            self._backends[made.backend_id] = made
            return made

    def _graph_of_all(self) -> Store:
        """Return the graph; callers during its opening wait for it, and get its error."""
        with self._lock:
            self._check_open()
            if self._graph is not None:
                return self._graph
            opening, is_first = self._opening or Future(), self._opening is None
            self._opening = opening
        if not is_first:
            try:
                return opening.result(INIT_WAIT_S)
            except TimeoutError:
                if opening.done():  # the opening itself raised a TimeoutError
                    raise
                raise StoreTimeout(
                    f"another caller has been opening the graph for {INIT_WAIT_S:g} s; call again, or see the server's "
                    "log"
                ) from None
        try:
            with _own_access("open the graph"):
                graph = self._open_graph()
        except BaseException as error:
            told = error
            if isinstance(error, Exception) and not isinstance(error, HopstreamError):
                told = StateError(f"the graph could not be opened: {type(error).__name__}: {error}")
            with self._lock:
                self._opening = None
            opening.set_exception(told)
            raise told from (None if told is error else error)
        with self._lock:
            self._opening = None
            is_closed = self._is_closed
            self._graph = None if is_closed else graph
        if is_closed:
            graph.close()
            opening.set_exception(StoreUnavailable("the server is shutting down"))
            self._check_open()
        opening.set_result(graph)
        return graph

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the server is shutting down")

    def _new_loader(self, backend: Backend, inputs: Mapping[str, Any]) -> SubgraphLoader:
        new_loader: Any = LOADERS[backend.loader]
        options = {**backend.options, **inputs}
        try:
            with _own_access("read the input"):
                loader: SubgraphLoader = new_loader(
                    backend.store, **options, collate="numpy", num_threads=0, buffer_bytes=self._buffers
                )
        except TypeError as error:
            raise SettingsError(f"{backend.loader} cannot be made with these options: {error}") from error
        return loader

    def _backend(self, backend_id: int) -> Backend:
        with self._lock:
            backend = self._backends.get(backend_id)
        if backend is None:
            raise ChannelLost(f"backend {backend_id} does not exist; call init_sampling_backend first")
        backend.used_at = time.monotonic()
        return backend

    def _drop_unused(self) -> None:
        """Drop backends that have had no channel for a lease, and memory of batches that have left."""
        self._buffers.collect()
        unused_since = time.monotonic() - self._limits.lease_s
        with self._lock:
            for backend in list(self._backends.values()):
                if not backend.channels and backend.used_at < unused_since:
                    del self._backends[backend.backend_id]

    def _forget(self, channel: SampledChannel) -> None:
        """Remove a closed channel from its backend, and the backend with its last channel."""
        with self._lock:
            backend = self._backends.get(channel.backend_id)
            if backend is None:
                return
            backend.channels.pop(channel.worker_key, None)
            if not backend.channels:
                del self._backends[backend.backend_id]


class _BatchJob:
    """Maker of a loader's batches as messages."""

    def __init__(self, maker: Maker, has_columns: bool) -> None:
        self._maker, self._has_columns = maker, has_columns

    @property
    def stage(self) -> str:
        return self._maker.stage

    def __call__(self, epoch: int, step: int) -> Frame:
        with _own_access("make the batch"):
            if self._has_columns:
                return encode_batch(self._maker.make(epoch, step))
            return encode_batch(cast(BatchMaker[Any], self._maker).sampled(epoch, step))

    def together(self, epoch: int, steps: Sequence[int]) -> list[Frame]:
        with _own_access("make the batches"):
            maker = cast(BatchMaker[Any], self._maker)
            return [encode_batch(batch) for batch in maker.sampled_together(epoch, steps)]


@contextmanager
def _own_access(what: str) -> Iterator[None]:
    """Turn an ``AccessDenied`` by a peer into ``StoreUnavailable`` inside the context.

    ``AccessDenied`` would end trainers whose own token is valid. At ``StoreUnavailable`` they ask another server, or
    retry.
    """
    try:
        yield
    except AccessDenied as error:
        raise StoreUnavailable(own_refusal(error, what)) from error


def _new_pool(limits: SamplingLimits) -> BufferPool:
    """Make a pool of memory for batches, within the server's limit."""
    idle_bytes, limit = BUFFER_BYTES * limits.num_threads, limits.batch_bytes
    return BufferPool(idle_bytes if limit is None else min(idle_bytes, limit // 4), limit)


def _answering(method: Callable[[Frame], Answer]) -> Operation:
    def operation(frame: Frame) -> Iterator[Frame]:
        header, arrays = method(frame)
        yield Frame(header, arrays, is_last=True)

    return operation


def _new_id() -> int:
    """Draw a random number that no other server and no other run has used."""
    return secrets.randbits(62)


def integer_of(frame: Frame, name: str, low: int = 0, high: int = (1 << 63) - 1, default: int | None = None) -> int:
    """Return an integer of a request's header.

    Raises:
        FormatError: The field is missing, not an integer, or out of range.
    """
    value = frame.header.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise FormatError(f"header field {name!r} is {reprlib.repr(value)}; it must be an integer from {low} to {high}")
    return value


def _check_size(frame: Frame, max_bytes: int, remedy: str) -> None:
    num_bytes = sum(array.nbytes for array in frame.arrays)
    if num_bytes > max_bytes:
        raise SettingsError(
            f"the request brings {num_bytes} bytes of arrays; it may have at most {max_bytes}; {remedy}"
        )


def _key(frame: Frame, name: str) -> str:
    """Return a client's name from the header; names are logged, so control characters are refused."""
    value = frame.text(name)
    if not value.strip() or not value.isprintable():
        raise FormatError(f"header field {name!r} is {reprlib.repr(value)}; it must be printable characters")
    if len(value) > MAX_KEY_LENGTH:
        raise FormatError(f"header field {name!r} has {len(value)} characters; it may have at most {MAX_KEY_LENGTH}")
    return value


def _worker(frame: Frame) -> str:
    """Return the readable name of a compute rank; empty if there is none."""
    return "" if frame.header.get("worker") is None else _key(frame, "worker")


def _wait_s(frame: Frame) -> float:
    value = frame.header.get("wait_s", MAX_WAIT_S)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise FormatError(f"header field 'wait_s' is {reprlib.repr(value)}; it must be a number of seconds from 0")
    return float(min(value, MAX_WAIT_S))
