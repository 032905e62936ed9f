"""Shared sampling backend: samples for many channels with one pool of threads, which all channels share fairly.

Threads of Hopstream's scheduler stand in for worker processes: a batch is a pure function of its number, so nothing is
lost where they are fewer or more. A bounded number of batches waits for the consumer of a channel, so a consumer that
does not read delays no other channel.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch

from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput, label_form, make_ablp_loader
from hopstream.compat.gigl.distributed.sampler_options import SamplerOptions, ppr_settings_of
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.loading import form_of, make_loader, message_of
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.names import find_name
from hopstream.compat.glt.sampler import SamplerInput, SamplingConfig
from hopstream.errors import ChannelLost, StoreTimeout
from hopstream.load.epochs import Maker
from hopstream.load.setup import SubgraphLoader
from hopstream.store.wire import Bytes
from hopstream.stream.channel import Share
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits

logger = logging.getLogger(__name__)
SampleMessage = dict[str, torch.Tensor]
SCHEDULER_TICK_SECS = 0.05
"""How often a start looks whether the thread of the last epoch has ended."""
SCHEDULER_SLOW_SUBMIT_SECS = 1.0
"""Seconds after which a batch that is not made is logged as slow."""
SAMPLING_ERROR = "#SAMPLING_ERROR"
"""The key of a message that tells of a failure: uint8[n], the traceback."""
_NO_COMMANDS = "threads sample, without queues of commands; call register_input and start_new_epoch_sampling, and ask "
_NO_LOG = "states of the scheduler are not logged; ask "
_REFUSED = {
    **dict.fromkeys(("SharedMpCommand", "StartEpochCmd", "CommandPayload"), f"{_NO_COMMANDS}describe_channel"),
    "EPOCH_DONE_EVENT": "threads send no events; ask is_channel_epoch_done or describe_channel",
    **dict.fromkeys(
        ("SCHEDULER_STATE_LOG_INTERVAL_SECS", "SCHEDULER_STATE_MAX_CHANNELS"), f"{_NO_LOG}describe_channel"
    ),
}
JOIN_S = 5.0
"""How long a backend that shuts down waits for its threads."""
DRAIN_S = 60.0
"""How long a start waits for the thread of the last epoch."""
TURN_S = 1.0
"""How long one look for the next batch waits."""
MAX_THREADS = 64
"""Threads of one backend, at most; more workers are taken for as many."""
NO_LEASE_S = 1e9
"""Channels end when they are unregistered, and not by themselves."""


def __getattr__(name: str) -> object:
    """Say why a name of GiGL is not here.

    Raises:
        ImportError: GiGL has the name; the error says what to use instead.
        AttributeError: There is no such name.
    """
    return find_name(__name__, name, {}, _REFUSED, ImportError)


class Channel(Protocol):
    """Where messages go: a ``QueueChannel``, or anything with ``send``."""

    def send(self, message: SampleMessage) -> None:
        """Take a message; waits for room as long as the consumer takes."""
        ...


@dataclass(frozen=True, slots=True)
class RegisterInputCmd:
    """What registers a channel.

    Attributes:
        channel_id: Its number.
        worker_key: What the compute rank calls it.
        sampler_input: All its seeds.
        sampling_config: How it is sampled.
        channel: Where its messages go.
    """

    channel_id: int
    worker_key: str
    sampler_input: SamplerInput
    sampling_config: SamplingConfig
    channel: Channel


@dataclass(slots=True)
class ActiveEpochState:
    """How far an epoch of a channel is.

    Attributes:
        channel_id: The channel.
        epoch: Its number.
        input_len: Seeds.
        batch_size: Seeds per batch.
        drop_last: A last batch with fewer seeds is left out.
        seeds_index: int64[n], places among the channel's seeds; None for all in order.
        total_batches: Batches of the epoch.
        submitted_batches: Batches that were asked for.
        completed_batches: Batches that were sent to the channel.
        cancelled: The channel was unregistered meanwhile.
    """

    channel_id: int
    epoch: int
    input_len: int
    batch_size: int
    drop_last: bool
    seeds_index: torch.Tensor | None
    total_batches: int
    submitted_batches: int = 0
    completed_batches: int = 0
    cancelled: bool = False

    @property
    def is_done(self) -> bool:
        """Every batch was sent."""
        return self.completed_batches == self.total_batches


class QueueChannel:
    """Queue of messages in one process, bounded in number and in bytes. Safe to use from many threads."""

    def __init__(self, capacity: int = 16, max_bytes: float = math.inf) -> None:
        """Hold at most ``capacity`` messages of ``max_bytes`` together; one message always fits."""
        self.capacity, self._max_bytes = capacity, max_bytes
        self._messages: deque[SampleMessage] = deque()
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self.generation = 0
        """How often all messages were dropped."""

    def send(self, message: SampleMessage) -> None:
        """Add a message. Waits for room without a deadline, as a consumer may pause; ``clear`` and ``close`` end it.

        Raises:
            ChannelLost: The channel was closed.
        """
        num_bytes = _num_bytes(message)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(num_bytes))
            if self._is_closed:
                raise ChannelLost("the channel was closed")
            self._messages.append(message)
            self._num_bytes += num_bytes
            self._changed.notify_all()

    def recv(self, timeout_s: float | None = None, generation: int | None = None) -> SampleMessage | None:
        """Take the first message.

        Args:
            timeout_s: How long to wait for one; None to wait until one comes or the channel is closed.
            generation: Take none where the channel is of another generation.

        Returns:
            None where no message came in time, the channel was closed, or is of another generation.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._messages), timeout_s)
            if not self._messages or generation not in (None, self.generation):
                return None
            message = self._messages.popleft()
            self._num_bytes -= _num_bytes(message)
            self._changed.notify_all()
            return message

    def empty(self) -> bool:
        """Whether no message waits."""
        return not self._messages

    def clear(self) -> None:
        """Drop all messages; what is sent from now on is of the next generation."""
        with self._changed:
            self._messages.clear()
            self._num_bytes = 0
            self.generation += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all messages, and end all waits of ``send`` and ``recv``."""
        with self._changed:
            self._is_closed = True
            self.clear()

    def _has_room(self, num_bytes: int) -> bool:
        has_space = len(self._messages) < self.capacity and self._num_bytes + num_bytes <= self._max_bytes
        return has_space or not self._messages


def _num_bytes(message: SampleMessage) -> int:
    return sum(tensor.nbytes for tensor in message.values())


@dataclass(slots=True, eq=False)
class _Registered:
    """One channel of a backend.

    Attributes:
        command: What registered it.
        loader: What makes its batches; None where there are no seeds.
        state: The last epoch that was started.
        pump: The thread that sends its batches.
        starting: Held while an epoch is started.
        failure: Why not all batches of the epoch were sent.
    """

    command: RegisterInputCmd
    loader: SubgraphLoader | None
    state: ActiveEpochState | None = None
    pump: threading.Thread | None = None
    starting: Any = field(default_factory=threading.Lock)
    failure: Exception | None = None

    @property
    def epoch(self) -> int:
        """The last epoch that was started; -1 before the first."""
        return -1 if self.state is None else self.state.epoch


class SharedDistSamplingBackend:
    """Samples a dataset for many channels. Safe to use from many threads."""

    def __init__(
        self,
        *,
        data: DistDataset,
        worker_options: RemoteDistSamplingWorkerOptions,
        sampling_config: SamplingConfig,
        sampler_options: SamplerOptions,
        degree_tensors: torch.Tensor | Mapping[Any, torch.Tensor] | None = None,
    ) -> None:
        """Keep what is sampled and how; no thread is started before ``init_backend``.

        Args:
            data: What is sampled.
            worker_options: ``num_workers`` threads, each of ``worker_concurrency`` batches ahead per channel.
            sampling_config: How all channels are sampled.
            sampler_options: Hop by hop, or by personalised PageRank.
            degree_tensors: No effect; degrees are asked of the dataset.
        """
        self.data, self.worker_options = data, worker_options
        self.num_workers = worker_options.num_workers
        self._config, self.sampler_options = sampling_config, sampler_options
        self._ppr = ppr_settings_of(sampler_options, sampling_config.edge_dir, data.facts)
        self._lock = threading.RLock()
        self._channels: dict[int, _Registered] = {}
        self._scheduler: Scheduler | None = None
        self._is_shut_down = False

    def init_backend(self) -> None:
        """Start the threads; a second call does nothing.

        Raises:
            RuntimeError: Parts of the dataset are elsewhere and no server is known for them, or the backend was shut
                down.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("the backend was shut down; make another one")
            if not self.data.has_graph:
                raise RuntimeError("parts of the dataset are on other servers; call init_server first")
            if self._scheduler is None:
                self.data.graph()
                credit = self.worker_options.buffer_capacity
                threads = min(self.num_workers, MAX_THREADS)
                limits = SamplingLimits(
                    threads=threads, credit=credit, lease_s=NO_LEASE_S, slow_s=SCHEDULER_SLOW_SUBMIT_SECS
                )
                self._scheduler = Scheduler(limits)

    def register_input(
        self,
        channel_id: int,
        worker_key: str,
        sampler_input: SamplerInput,
        sampling_config: SamplingConfig,
        channel: Channel,
    ) -> None:
        """Take a channel on.

        Args:
            channel_id: Its number.
            worker_key: What the compute rank calls it.
            sampler_input: Its seeds.
            sampling_config: Equal to the backend's.
            channel: Where its messages go.

        Raises:
            RuntimeError: ``init_backend`` was not called.
            ValueError: The number is taken, or the configuration is another one.
        """
        self._running()
        loader, form = self._new_loader(sampler_input) if len(sampler_input) else (None, None)
        command = RegisterInputCmd(channel_id, worker_key, sampler_input, sampling_config, channel)
        with self._lock:
            scheduler = self._running()
            self._check_new(channel_id, sampling_config, channel)
            num_batches = 0 if loader is None else len(loader)
            credit = self.worker_options.buffer_capacity
            if isinstance(channel, QueueChannel):
                credit = min(credit, channel.capacity)
            scheduler.add(
                channel_id, 0, worker_key, Share(first=0, stride=1, num_steps=num_batches),
                credit=credit, loader=type(loader).__name__, payer=worker_key,
                new_job=lambda: _Job(cast(Any, loader), cast(Any, form)),
            )  # fmt: skip
            self._channels[channel_id] = _Registered(command, loader)

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Start an epoch of a channel; one that is no later than the last changes nothing.

        What is left of the last epoch is dropped where the channel is a ``QueueChannel``; another one must have been
        read to the end.

        Raises:
            KeyError: There is no such channel.
            StoreTimeout: The thread of the last epoch did not end within ``DRAIN_S``.
        """
        scheduler = self._running()
        with self._lock:
            known = self._known(channel_id)
        with known.starting:
            with self._lock:
                if epoch <= self._known(channel_id).epoch:
                    return
                if known.state is not None:
                    known.state.cancelled = True
                num_seeds, num_batches = len(known.command.sampler_input), len(known.loader or ())
                state = known.state = ActiveEpochState(
                    channel_id, epoch, num_seeds, self._config.batch_size, self._config.drop_last, None, num_batches
                )
                known.failure = None
                scheduler.begin(channel_id, 0, epoch, 0)
            if isinstance(known.command.channel, QueueChannel):
                try:
                    _drain(known.command.channel, known.pump)
                except StoreTimeout as error:
                    known.failure = error
                    raise
            known.pump = threading.Thread(
                target=self._pump, args=(scheduler, known, state), name=f"hopstream-channel-{channel_id}", daemon=True
            )
            known.pump.start()

    def unregister_input(self, channel_id: int) -> None:
        """Give a channel up, and close what its messages go to; unknown ones are gone already."""
        with self._lock:
            known = self._channels.pop(channel_id, None)
            if known is None or self._scheduler is None:
                return
            if known.state is not None and not known.state.is_done:
                known.state.cancelled = True
            self._scheduler.remove(channel_id)
        if isinstance(known.command.channel, QueueChannel):
            known.command.channel.close()
        if known.loader is not None:
            known.loader.close()

    def is_channel_epoch_done(self, channel_id: int, epoch: int) -> bool:
        """Whether every batch of an epoch of a channel was sent, or a later one has begun.

        Raises:
            KeyError: There is no such channel.
            RuntimeError: A message could not be sent.
        """
        with self._lock:
            known = self._known(channel_id)
            if known.failure is not None:
                raise RuntimeError(
                    f"a message of channel {channel_id} could not be sent: {known.failure}"
                ) from known.failure
            return known.epoch > epoch or (known.epoch == epoch and known.state is not None and known.state.is_done)

    def describe_channel(self, channel_id: int) -> dict[str, Any]:
        """What is known of a channel: ``epoch``, ``input_sizes`` per worker, and ``completed_workers``.

        Workers share batches as they come, so sizes are what an even share would be.

        Raises:
            KeyError: There is no such channel.
        """
        with self._lock:
            known = self._known(channel_id)
            num_seeds = len(known.command.sampler_input)
            bounds = [num_seeds * worker // self.num_workers for worker in range(self.num_workers + 1)]
            is_done = known.state is not None and known.state.is_done
            return {
                "epoch": known.epoch,
                "input_sizes": [stop - start for start, stop in pairwise(bounds)],
                "completed_workers": self.num_workers if is_done else 0,
            }

    def shutdown(self) -> None:
        """Give up all channels and end the threads; a second call does nothing.

        Raises:
            StoreTimeout: A batch under way, or the ``send`` of a channel, did not end within ``JOIN_S``.
        """
        with self._lock:
            self._is_shut_down = True
            scheduler, known = self._scheduler, list(self._channels.values())
        for one in known:
            self.unregister_input(one.command.channel_id)
        if scheduler is not None:
            scheduler.close(JOIN_S)
        ends = time.monotonic() + JOIN_S
        for one in known:
            with one.starting:
                pump = one.pump
            if pump is None:
                continue
            pump.join(max(0.0, ends - time.monotonic()))
            if pump.is_alive():
                raise StoreTimeout(f"send() of channel {one.command.channel_id} did not return in {JOIN_S:g} s")

    def _check_new(self, channel_id: int, config: SamplingConfig, channel: Channel) -> None:
        if not callable(getattr(channel, "send", None)):
            raise ValueError(f"channel is a {type(channel).__name__}; give a QueueChannel, or anything with send()")
        if channel_id in self._channels:
            raise ValueError(
                f"channel {channel_id} is registered already; unregister it first, or choose another number"
            )
        if config != self._config:
            raise ValueError(f"channel {channel_id} has {config}; its backend samples with {self._config}")

    def _known(self, channel_id: int) -> _Registered:
        if channel_id not in self._channels:
            raise KeyError(f"channel {channel_id} is not registered; call register_input first")
        return self._channels[channel_id]

    def _running(self) -> Scheduler:
        with self._lock:
            if self._scheduler is None or self._is_shut_down:
                raise RuntimeError("the backend is not running; call init_backend first")
            return self._scheduler

    def _new_loader(self, given: SamplerInput) -> tuple[SubgraphLoader, Callable[[Any], Any]]:
        """What makes batches of an input, and what renames their attributes."""
        graph, facts = self.data.graph(), self.data.facts
        make: Callable[..., SubgraphLoader] = make_loader
        form: Callable[[Any], Any] = form_of(facts, self._config, self._ppr)
        if isinstance(given, ABLPNodeSamplerInput):
            make, form = make_ablp_loader, label_form(facts, self._config, given, self._ppr, as_index=True)
        options = {"weight_attr": graph.weight_attr, "ppr": self._ppr, "num_threads": 0}
        return make(graph, facts, self._config, given, **options), form

    def _pump(self, scheduler: Scheduler, known: _Registered, state: ActiveEpochState) -> None:
        """Send the batches of an epoch to the channel, in order; the life of a thread.

        It ends after the last batch, or when the channel is unregistered or a later epoch begins.
        """
        try:
            for step in range(state.total_batches):
                state.submitted_batches = step + 1
                message = _wait_for(scheduler, state, step)
                if state.cancelled:
                    return
                known.command.channel.send(message)
                with self._lock:
                    state.completed_batches = step + 1
        except ChannelLost:
            logger.debug("channel %d was unregistered, or a later epoch began", state.channel_id)
        except Exception as error:
            logger.exception("a message of channel %d could not be sent", state.channel_id)
            if not state.cancelled:
                known.failure = error


def _drain(channel: QueueChannel, pump: threading.Thread | None) -> None:
    """Wait for the thread of the last epoch to end, and drop what it has sent.

    Raises:
        StoreTimeout: It did not end within ``DRAIN_S``.
    """
    ends = time.monotonic() + DRAIN_S
    while pump is not None and pump.is_alive():
        if time.monotonic() > ends:
            raise StoreTimeout(f"the last epoch of the channel did not end in {DRAIN_S:g} s; make the loader again")
        channel.clear()  # it may wait for room, for at most one more message
        pump.join(SCHEDULER_TICK_SECS)
    channel.clear()


class _Message:
    """A message as the scheduler keeps it, which counts its bytes."""

    def __init__(self, message: SampleMessage) -> None:
        self.message = message
        self._num_bytes = _num_bytes(message)

    def __len__(self) -> int:
        return self._num_bytes


class _Job:
    """Makes the batches of a loader as messages, in one thread."""

    def __init__(self, loader: SubgraphLoader, form: Callable[[Any], Any]) -> None:
        self._loader, self._form, self.stage = loader, form, "sampling"
        self._maker: Maker | None = None

    def __call__(self, epoch: int, step: int) -> Bytes:
        try:
            self._maker = self._maker or self._loader.maker()
            message = message_of(self._form(self._maker.make(epoch, step)))
        except Exception:
            lines = f"batch {step} of epoch {epoch}:\n{traceback.format_exc()}".encode()
            logger.exception("a batch failed")
            message = {SAMPLING_ERROR: torch.from_numpy(np.frombuffer(lines, np.uint8).copy())}
        return cast(Bytes, _Message(message))


def _wait_for(scheduler: Scheduler, state: ActiveEpochState, step: int) -> SampleMessage:
    """Wait for a batch as long as its making takes, which deadlines of stores bound.

    Raises:
        ChannelLost: The channel was unregistered, or a later epoch began.
    """
    while True:
        with (
            suppress(StoreTimeout),
            scheduler.fetched(state.channel_id, step, TURN_S, turn=0, epoch=state.epoch) as made,
        ):
            assert made is not None  # noqa: S101 - the step is one of the epoch
            return cast(_Message, made.message).message
