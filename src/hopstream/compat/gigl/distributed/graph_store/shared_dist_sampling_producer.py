"""Shared sampling backend: one thread pool samples for many channels in fair shares.

Threads of Hopstream's scheduler replace worker processes. A batch is a pure function of its number, so the number of
threads does not change it. A bounded number of batches waits for the consumer of a channel, so a slow consumer delays
no other channel.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput, label_form, make_ablp_loader
from hopstream.compat.gigl.distributed.sampler_options import SamplerOptions, ppr_settings_of
from hopstream.compat.glt.distributed.calls import WAIT_S, WAIT_SHARE
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.loading import form_of, make_loader, message_of
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.names import find_name
from hopstream.compat.glt.sampler import SamplerInput, SamplingConfig
from hopstream.errors import ChannelLost, StoreTimeout
from hopstream.load.epochs import Maker
from hopstream.load.setup import SubgraphLoader
from hopstream.stream.channel import Share
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.messages import Frame

logger = logging.getLogger(__name__)
SampleMessage = dict[str, torch.Tensor]
SCHEDULER_SLOW_SUBMIT_SECS = 1.0
"""Seconds after which an unfinished batch is logged as slow."""
SAMPLING_ERROR = "#SAMPLING_ERROR"
"""Key of a message about a failure: uint8[n], the traceback."""
_NO_COMMANDS = "threads sample, without queues of commands; call register_input and start_new_epoch_sampling, and ask "
_NO_LOG = "states of the scheduler are not logged; ask "
_REFUSED = {
    **dict.fromkeys(("SharedMpCommand", "StartEpochCmd", "CommandPayload"), f"{_NO_COMMANDS}describe_channel"),
    **dict.fromkeys(
        ("ActiveEpochState", "SCHEDULER_TICK_SECS"), "the scheduler keeps the state of epochs; ask describe_channel"
    ),
    "EPOCH_DONE_EVENT": "threads send no events; ask is_channel_epoch_done or describe_channel",
    **dict.fromkeys(
        ("SCHEDULER_STATE_LOG_INTERVAL_SECS", "SCHEDULER_STATE_MAX_CHANNELS"), f"{_NO_LOG}describe_channel"
    ),
}
JOIN_S = 5.0
"""Deadline in seconds for the threads of a backend that shuts down."""
MAX_THREADS = 64
"""Limit of threads per backend; a higher number of workers is reduced to it."""
NO_LEASE_S = 1e9
"""Lease without expiry: channels end only when they are unregistered."""


def __getattr__(name: str) -> object:
    """Raise an error that says why a name of GiGL is missing.

    Raises:
        ImportError: GiGL has the name; the error names the alternative.
        AttributeError: There is no such name.
    """
    return find_name(__name__, name, {}, _REFUSED, ImportError)


class QueueChannel:
    """Messages of a registered input, in the order of the epoch. Thread-safe.

    Messages wait in the backend's scheduler until they are received.
    """

    def __init__(self, capacity: int = 16, max_bytes: float = math.inf) -> None:
        """Set how far batches are prefetched.

        Args:
            capacity: Limit of batches that are in progress or waiting.
            max_bytes: Bytes of waiting messages above which no batch is prefetched.
        """
        self.capacity, self.max_bytes = capacity, max_bytes
        self._receiving = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._channel_id, self._epoch, self._step = -1, -1, 0

    def attach(self, scheduler: Scheduler, channel_id: int) -> None:
        """Receive from now on the messages of a channel of a scheduler."""
        self._scheduler, self._channel_id = scheduler, channel_id

    def begin(self, epoch: int) -> None:
        """Receive the messages of a started epoch from the first; ignore an epoch before the current one."""
        with self._receiving:  # the scheduler has started the epoch, which ends a call that waits for the last one
            if epoch > self._epoch:
                self._epoch, self._step = epoch, 0

    def recv(self, timeout_s: float) -> SampleMessage | None:
        """Wait for the next message.

        Returns:
            The message; or None after the last message of the epoch, if neither this epoch nor a later one was started,
            or if the input is no longer registered.

        Raises:
            StoreTimeout: The deadline passed; the next call waits for the same message.
        """
        ends = time.monotonic() + timeout_s
        if not self._receiving.acquire(timeout=timeout_s):
            raise StoreTimeout(f"another call received messages of channel {self._channel_id} for {timeout_s:g} s")
        try:
            if self._scheduler is None or self._epoch < 0:
                return None
            left_s = max(0.0, ends - time.monotonic())
            with self._scheduler.fetched(self._channel_id, self._step, left_s, iteration=(0, self._epoch)) as made:
                if made is None:
                    return None
                self._step += 1
                return cast(_Message, made.message).message
        except ChannelLost:
            return None
        finally:
            self._receiving.release()


@dataclass(frozen=True, slots=True)
class RegisterInputCmd:
    """Arguments that register a channel.

    Attributes:
        channel_id: Number of the channel.
        worker_key: The compute rank's name of the channel.
        sampler_input: All seeds of the channel.
        sampling_config: The channel's settings of sampling.
        channel: Receiver of the channel's messages.
    """

    channel_id: int
    worker_key: str
    sampler_input: SamplerInput
    sampling_config: SamplingConfig
    channel: QueueChannel


class SharedDistSamplingBackend:
    """Sampler of a dataset for many channels. Thread-safe."""

    def __init__(
        self,
        *,
        data: DistDataset,
        worker_options: RemoteDistSamplingWorkerOptions,
        sampling_config: SamplingConfig,
        sampler_options: SamplerOptions,
        degree_tensors: torch.Tensor | Mapping[Any, torch.Tensor] | None = None,
    ) -> None:
        """Keep the settings; ``init_backend`` starts the threads.

        Args:
            data: The dataset.
            worker_options: ``num_workers`` threads, and ``worker_concurrency`` prefetched batches each, per channel.
            sampling_config: Settings of all channels.
            sampler_options: Hop by hop, or by personalised PageRank.
            degree_tensors: No effect; the dataset gives degrees.
        """
        self.data, self.worker_options = data, worker_options
        self.num_workers = worker_options.num_workers
        self._config, self.sampler_options = sampling_config, sampler_options
        self._ppr = ppr_settings_of(sampler_options, sampling_config.edge_dir, data.facts)
        self._lock, self._starting = threading.RLock(), threading.Lock()
        self._channels: dict[int, RegisterInputCmd] = {}
        self._loaders: dict[int, SubgraphLoader] = {}
        """Loaders of the channels with seeds."""
        self._scheduler: Scheduler | None = None
        self._is_shut_down = False

    def init_backend(self) -> None:
        """Start the threads; a second call does nothing.

        Raises:
            RuntimeError: Parts of the dataset are on other servers and no server is known; the backend was shut down;
                or another caller's start did not end in time.
        """
        wait_s = min(WAIT_SHARE * WAIT_S.get(), threading.TIMEOUT_MAX)
        if not self._starting.acquire(timeout=wait_s):
            raise RuntimeError(f"another caller has been making the backend for {wait_s:g} s; call again")
        try:
            self._start()
        finally:
            self._starting.release()

    def _start(self) -> None:
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
        channel: QueueChannel,
    ) -> None:
        """Register a channel.

        Args:
            channel_id: Its number.
            worker_key: The compute rank's name for it.
            sampler_input: Its seeds.
            sampling_config: Equal to the backend's.
            channel: Receiver of its messages.

        Raises:
            RuntimeError: ``init_backend`` was not called.
            ValueError: The number is taken, the configuration differs, or ``channel`` is no ``QueueChannel``.
        """
        self._running()
        if not isinstance(channel, QueueChannel):
            raise ValueError(f"channel is a {type(channel).__name__}; give a QueueChannel")
        loader, form = self._new_loader(sampler_input) if len(sampler_input) else (None, None)
        command = RegisterInputCmd(channel_id, worker_key, sampler_input, sampling_config, channel)
        with self._lock:
            scheduler = self._running()
            self._check_new(channel_id, sampling_config)
            num_batches = 0 if loader is None else len(loader)
            scheduler.add(
                channel_id, 0, worker_key, Share(first=0, stride=1, num_steps=num_batches),
                credit=min(self.worker_options.buffer_capacity, channel.capacity), max_bytes=channel.max_bytes,
                loader=type(loader).__name__, payer=worker_key, worker=worker_key,
                new_job=lambda: _Job(cast(Any, loader), cast(Any, form)),
            )  # fmt: skip
            channel.attach(scheduler, channel_id)
            self._channels[channel_id] = command
            if loader is not None:
                self._loaders[channel_id] = loader

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Start an epoch of a channel, and drop messages of the last one; ignore an epoch before it.

        Raises:
            KeyError: There is no such channel.
        """
        with self._lock:
            known = self._known(channel_id)
            self._running().begin(channel_id, 0, epoch, 0)
        known.channel.begin(epoch)

    def unregister_input(self, channel_id: int) -> None:
        """Remove a channel with its messages; ignore an unknown channel."""
        with self._lock:
            if self._channels.pop(channel_id, None) is None or self._scheduler is None:
                return
            self._scheduler.remove(channel_id)
            loader = self._loaders.pop(channel_id, None)
        if loader is not None:
            loader.close()

    def is_channel_epoch_done(self, channel_id: int, epoch: int) -> bool:
        """Return whether every batch of an epoch of a channel was made, or a later epoch has begun.

        Raises:
            KeyError: There is no such channel.
        """
        with self._lock:
            self._known(channel_id)
            return self._running().is_epoch_done(channel_id, epoch)

    def describe_channel(self, channel_id: int) -> dict[str, Any]:
        """Return the state of a channel: ``epoch``, ``input_sizes`` per worker, and ``completed_workers``.

        Workers take batches dynamically, so the sizes are those of equal shares.

        Raises:
            KeyError: There is no such channel.
        """
        with self._lock:
            num_seeds = len(self._known(channel_id).sampler_input)
            bounds = [num_seeds * worker // self.num_workers for worker in range(self.num_workers + 1)]
            (told,) = self._running().describe(channel_id)
            return {
                "epoch": told["epoch"],
                "input_sizes": [stop - start for start, stop in pairwise(bounds)],
                "completed_workers": self.num_workers if told["is_epoch_done"] else 0,
            }

    def shutdown(self) -> None:
        """Remove all channels and end the threads; a second call does nothing.

        Raises:
            StoreTimeout: A running batch did not end within ``JOIN_S``.
        """
        with self._lock:
            self._is_shut_down = True
            scheduler, known = self._scheduler, list(self._channels)
        for channel_id in known:
            self.unregister_input(channel_id)
        if scheduler is not None:
            scheduler.close(JOIN_S)

    def _check_new(self, channel_id: int, config: SamplingConfig) -> None:
        if channel_id in self._channels:
            raise ValueError(
                f"channel {channel_id} is registered already; unregister it first, or choose another number"
            )
        if config != self._config:
            raise ValueError(f"channel {channel_id} has {config}; its backend samples with {self._config}")

    def _known(self, channel_id: int) -> RegisterInputCmd:
        if channel_id not in self._channels:
            raise KeyError(f"channel {channel_id} is not registered; call register_input first")
        return self._channels[channel_id]

    def _running(self) -> Scheduler:
        with self._lock:
            if self._scheduler is None or self._is_shut_down:
                raise RuntimeError("the backend is not running; call init_backend first")
            return self._scheduler

    def _new_loader(self, given: SamplerInput) -> tuple[SubgraphLoader, Callable[[Any], Any]]:
        """Return a loader of an input, and the function that renames attributes of its batches."""
        graph, facts = self.data.graph(), self.data.facts
        make: Callable[..., SubgraphLoader] = make_loader
        form: Callable[[Any], Any] = form_of(facts, self._config, self._ppr)
        if isinstance(given, ABLPNodeSamplerInput):
            make, form = make_ablp_loader, label_form(facts, self._config, given, self._ppr, as_index=True)
        options = {"weight_attr": graph.weight_attr, "ppr": self._ppr, "num_threads": 0}
        return make(graph, facts, self._config, given, **options), form


class _Message:
    """Message in the scheduler, with its size in bytes."""

    def __init__(self, message: SampleMessage) -> None:
        self.message = message
        self.num_bytes = sum(tensor.nbytes for tensor in message.values())


class _Job:
    """Maker of a loader's batches as messages, in one thread."""

    def __init__(self, loader: SubgraphLoader, form: Callable[[Any], Any]) -> None:
        self._loader, self._form, self.stage = loader, form, "sampling"
        self._maker: Maker | None = None

    def __call__(self, epoch: int, step: int) -> Frame:
        try:
            self._maker = self._maker or self._loader.maker()
            message = message_of(self._form(self._maker.make(epoch, step)))
        except Exception:
            lines = f"batch {step} of epoch {epoch}:\n{traceback.format_exc()}".encode()
            logger.exception("a batch failed")
            message = {SAMPLING_ERROR: torch.from_numpy(np.frombuffer(lines, np.uint8).copy())}
        return cast(Frame, _Message(message))
