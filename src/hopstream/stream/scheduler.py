"""Scheduler of a sampling server: chooses the channel that a free sampling thread works for.

It chooses the channel with the least sampling time so far among those with a batch to make. Channels of equal cost
alternate batch by batch, and a channel with costly batches gets fewer batches. So every channel gets the same share of
the threads. Threads skip channels whose credit is used up. No thread waits for a consumer.

Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with batches in place of packets.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from hopstream.errors import (
    ChannelLost,
    NoRoomError,
    RemoteError,
    ServerBusy,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.stream.channel import Made, MessageMaker, SampledChannel, Share
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.failures import encode_error
from hopstream.transport.messages import Frame

LOG = logging.getLogger(__name__)
JOIN_S = 10.0
"""Seconds that ``close`` waits for batches under way."""
MAX_WATCH_S = 1.0
"""Longest time in seconds between two checks of leases and slow batches."""
MAKING_FACTOR = 2
"""Upper bound of the memory for making a batch, as a multiple of the batch."""
MAX_OVERTAKEN = 16
"""Batches of other channels that may start while a channel with a requested batch has its turn but no memory."""
HOLD_S = 1.0
"""Seconds for which no other batch starts after that, so that sent batches free memory."""
FORGET_S = 5.0
"""Seconds after which a requested batch that is neither fetched nor requested again may be dropped."""
MAX_CALLS = 256
"""Largest number of calls of one channel that wait for batches or whose answer has not left the server."""


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class _Claim:
    """Batches that a thread has started to make; without a job the thread makes a job first.

    With ``is_alone`` the batch may need all memory, so no other batch starts meanwhile. ``taken_bytes`` are the bytes
    of messages at its start, and ``in_the_way`` refers to what held memory then.
    """

    channel: SampledChannel
    iteration: tuple[int, int]
    steps: list[int]
    job: MessageMaker | None
    paid_s: float
    since_s: float
    reserved_bytes: int = 0
    is_alone: bool = False
    taken_bytes: int = 0
    in_the_way: list[weakref.ref[object]] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether the channel still exists and is in the same epoch."""
        return not self.channel.is_destroyed and self.channel.iteration == self.iteration

    @property
    def stage(self) -> str:
        """Current stage of the thread."""
        return "starting" if self.job is None else self.job.stage


class Scheduler:
    """Pool of threads that makes the batches of all channels of a server."""

    def __init__(self, limits: SamplingLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the threads.

        Args:
            limits: Number of threads, and limits on memory and times.
            clock: Clock in seconds for sampling time, leases and slow batches.
        """
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._channels: dict[int, SampledChannel] = {}
        self._runnable: dict[int, SampledChannel] = {}
        self._claims: set[_Claim] = set()
        self._debts: dict[str, float] = {}
        self._clock_s = 0.0
        self._numbers = itertools.count(1)
        self._largest_bytes = 0
        self._buffered_bytes = self._sending_bytes = 0
        self._sending: set[Made] = set()
        self._reported: set[_Claim] = set()
        self._num_expired = self._num_ready = self._num_late = 0
        self._is_refusing = self._is_closed = False
        self._stop_watching = threading.Event()
        self.on_expired: Callable[[SampledChannel], None] = lambda channel: None
        """Called with every channel whose lease has expired, without the lock."""
        self.on_made: Callable[[float], None] | None = None
        """Called with the seconds that each batch took, failed batches included, without the lock."""
        self.on_watch: Callable[[], None] = lambda: None
        """Called at every check of leases, without the lock."""
        self._threads = [
            threading.Thread(target=self._serve, name=f"hopstream-sampling-{n}", daemon=True)
            for n in range(limits.num_threads)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="hopstream-leases", daemon=True))
        for thread in self._threads:
            thread.start()

    def add(
        self, channel_id: int, backend_id: int, worker_key: str, share: Share, *, input_bytes: int = 0, **more: object
    ) -> SampledChannel:
        """Add a channel; ``more`` are fields of ``SampledChannel`` such as ``credit`` and ``new_job``.

        Raises:
            StoreUnavailable: The scheduler is closed, refuses new channels, or has as many channels as allowed.
            ServerBusy: The inputs of all channels together are too large now.
            SettingsError: The input alone exceeds the limit of all inputs.
        """
        with self._lock:
            self._check_room()
            self._check_inputs(input_bytes)
            arrived = threading.Condition(self._lock)
            channel = SampledChannel(
                channel_id=channel_id, backend_id=backend_id, worker_key=worker_key, share=share, arrived=arrived,
                number=next(self._numbers), input_bytes=input_bytes, **more,  # type: ignore[arg-type]
            )  # fmt: skip
            channel.used_at = channel.made_at = self._clock()
            channel.virtual_s = self._debts.pop(channel.payer, 0.0)
            self._channels[channel_id] = channel
            return channel

    def check_room(self, worker_key: str) -> None:
        """Check that a compute rank has a channel, or may have one.

        Raises:
            StoreUnavailable: There is no room for another channel; see ``add``.
        """
        with self._lock:
            if all(channel.worker_key != worker_key for channel in self._channels.values()):
                self._check_room()

    def begin(self, channel_id: int, turn: int, epoch: int, first_step: int) -> tuple[int, int]:
        """Start an epoch of a channel; does nothing unless ``(turn, epoch)`` is later than the current one.

        Returns:
            The current turn and epoch of the channel; they differ from the requested ones if nothing was started.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            channel = self._channel(channel_id)
            if (turn, epoch) > channel.iteration:
                self._buffered_bytes -= channel.num_buffered_bytes
                channel.begin(turn, epoch, first_step)
                self._update(channel)
                self._let_go_on()
            return channel.iteration

    @contextmanager
    def fetched(
        self, channel_id: int, step: int, timeout_s: float, *, iteration: tuple[int | None, int | None] = (None, None),
        lowest: int = 0, is_over: Callable[[], bool] | None = None,
    ) -> Iterator[Made | None]:  # fmt: skip
        """Wait for one batch and take it; a batch that was taken before is made again.

        Its bytes count until the context ends, when the message has left the server.

        Args:
            channel_id: The channel.
            step: Number of the batch.
            timeout_s: Time limit in seconds.
            iteration: Turn and epoch of the batch; None for the current ones.
            lowest: The consumer has all batches before this one; they are dropped.
            is_over: Whether the consumer has left; ``wake`` makes waiting threads check it.

        Returns:
            The outcome of the batch; None after the last batch of the epoch.

        Raises:
            ChannelLost: There is no such channel, it was destroyed, or a later iteration was started on it.
            StateError: No epoch was started, or the requested iteration has not been started.
            SettingsError: The channel has too many unanswered calls.
            StoreTimeout: The batch was not ready in time, or the consumer has left.
        """
        ends = time.monotonic() + timeout_s
        with self._lock:
            channel = self._channel(channel_id)
            if channel.epoch < 0:
                raise StateError("no epoch was started on the channel; call start_new_epoch_sampling first")
            turn, epoch = iteration
            asked = channel.turn if turn is None else turn, channel.epoch if epoch is None else epoch
            if asked != channel.iteration:
                raise (ChannelLost if asked < channel.iteration else StateError)(
                    f"a batch of iteration {asked[0]}, epoch {asked[1]}, was requested; the channel is at iteration "
                    f"{channel.turn}, epoch {channel.epoch}"
                )
            if lowest:
                self._skip_to(channel, min(step, lowest))
            made = self._wait_for(channel, step, ends, timeout_s, is_over) if step < channel.share.num_steps else None
            if made is not None:
                channel.stats.num_fetched += 1
                channel.num_epoch_fetched += 1
                channel.stats.num_bytes += made.num_bytes
                channel.num_sending += 1
                self._sending.add(made)
                self._sending_bytes += made.num_bytes
        try:
            yield made
        finally:
            if made is not None:
                with self._lock:
                    channel.num_sending -= 1
                    self._sending.discard(made)
                    self._sending_bytes -= made.num_bytes
                    self._let_go_on()

    def wake(self, channel_id: int) -> None:
        """Wake the calls that wait for a channel's batches, to check whether their consumers have left."""
        with self._lock:
            channel = self._channels.get(channel_id)
            if channel is not None:
                channel.arrived.notify_all()

    def remove(self, channel_id: int) -> SampledChannel | None:
        """Remove a channel: calls that wait for it fail, and batches under way are dropped.

        Returns:
            The channel, or None if it does not exist.
        """
        with self._lock:
            channel = self._channels.get(channel_id)
            if channel is not None:
                self._give_up(channel)
            return channel

    def ids_of(self, worker_key: str) -> list[int]:
        """Return the ids of a compute rank's channels."""
        with self._lock:
            return [one.channel_id for one in self._channels.values() if one.worker_key == worker_key]

    def share_of(self, channel_id: int) -> Share:
        """Return the batches of a channel that are made ahead.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            return self._channel(channel_id).share

    def is_epoch_done(self, channel_id: int, epoch: int) -> bool:
        """Return whether all batches of a channel's share of an epoch were made, or a later epoch began.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            channel = self._channel(channel_id)
            return channel.epoch > epoch or (channel.epoch == epoch and channel.is_epoch_done)

    def describe(self, channel_id: int | None = None) -> list[dict[str, object]]:
        """Describe one channel or all channels as JSON objects.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            channels = list(self._channels.values()) if channel_id is None else [self._channel(channel_id)]
            return [_described(channel, self._clock()) for channel in channels]

    @property
    def totals(self) -> dict[str, float]:
        """Counters and gauges of the whole scheduler."""
        with self._lock:
            return {
                "num_channels": len(self._channels),
                "num_runnable": len(self._able()),
                "num_in_flight": len(self._claims),
                "num_waiting": sum(len(channel.done) for channel in self._channels.values()),
                "num_buffered_bytes": self._buffered_bytes,
                "num_sending_bytes": self._sending_bytes,
                "num_expired": self._num_expired,
                "num_threads": self._limits.num_threads,
            }

    @property
    def lookups(self) -> tuple[int, int]:
        """Number of fetched batches that were ready when requested, and of those that were not."""
        with self._lock:
            return self._num_ready, self._num_late

    def refuse(self) -> None:
        """Refuse new channels from now on; existing channels go on."""
        with self._lock:
            self._is_refusing = True

    def close(self, join_s: float = JOIN_S) -> list[dict[str, object]]:
        """End the threads and all channels; a second call does nothing.

        Args:
            join_s: Seconds that batches under way have to finish.

        Returns:
            Descriptions of the channels that were still open.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        with self._lock:
            self._is_closed = True
            left = [_described(channel, self._clock()) for channel in self._channels.values()]
            for channel in list(self._channels.values()):
                self._give_up(channel)
            self._work.notify_all()
        self._stop_watching.set()
        ends = time.monotonic() + join_s
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise StoreTimeout(f"{', '.join(alive)} did not end in {join_s:g} s")
        return left

    def _check_room(self) -> None:
        """Raise ``StoreUnavailable`` if no further channel is allowed; called with the lock."""
        if self._is_closed or self._is_refusing:
            raise StoreUnavailable("the server is shutting down")
        if len(self._channels) >= self._limits.max_channels:
            raise StoreUnavailable(
                f"the server has {len(self._channels)} channels, the maximum (--max-channels); close loaders "
                "that are not needed, or raise the maximum"
            )

    def _check_inputs(self, num_bytes: int) -> None:
        """Refuse an input that exceeds the memory for inputs; called with the lock."""
        limit = self._limits.input_bytes
        taken = sum(channel.input_bytes for channel in self._channels.values())
        if limit is not None and num_bytes > limit:
            raise SettingsError(
                f"the input has {num_bytes} bytes; all inputs may have {limit} (--memory-bytes); give fewer seeds to a "
                "loader, or raise --memory-bytes"
            )
        if limit is not None and taken + num_bytes > limit:
            raise ServerBusy(f"the inputs of channels take {taken} bytes of at most {limit} (--memory-bytes)")

    def _channel(self, channel_id: int) -> SampledChannel:
        channel = self._channels.get(channel_id)
        if channel is None:
            raise ChannelLost(
                f"channel {channel_id} does not exist: it was destroyed, its lease of {self._limits.lease_s:g} s "
                "expired, or the server restarted; register the input again"
            )
        channel.used_at = self._clock()
        return channel

    def _give_up(self, channel: SampledChannel) -> None:
        """Remove a channel and wake the calls that wait for it; called with the lock."""
        del self._channels[channel.channel_id]
        channel.is_destroyed = True
        self._buffered_bytes -= channel.num_buffered_bytes
        channel.done.clear()
        channel.asked.clear()
        self._runnable.pop(channel.channel_id, None)
        self._debts = {payer: owed for payer, owed in self._debts.items() if owed > self._clock_s}
        if channel.virtual_s > self._clock_s:
            self._debts[channel.payer] = max(channel.virtual_s, self._debts.get(channel.payer, 0.0))
        channel.arrived.notify_all()
        self._let_go_on()

    def _wait_for(
        self, channel: SampledChannel, step: int, ends: float, timeout_s: float, is_over: Callable[[], bool] | None
    ) -> Made:
        """Wait for a batch and take it; called with the lock."""
        iteration = channel.iteration
        if channel.num_waiters + channel.num_sending >= MAX_CALLS:
            raise SettingsError(
                f"channel {channel.number} has {MAX_CALLS} calls that wait for batches or whose answers have not been "
                "read; read or cancel them before you send more"
            )
        while True:
            if channel.is_destroyed:
                raise ChannelLost(f"channel {channel.channel_id} was destroyed while a call waited for batch {step}")
            if channel.iteration != iteration:
                raise ChannelLost(
                    f"a call waited for a batch of iteration {iteration[0]}, epoch {iteration[1]}; the channel is now "
                    f"at iteration {channel.turn}, epoch {channel.epoch}"
                )
            was_late = step in channel.late
            made = channel.take(step)
            if made is not None:
                self._num_late += was_late
                self._num_ready += not was_late
                self._buffered_bytes -= made.num_bytes
                self._update(channel)
                self._let_go_on()
                return made
            if is_over is not None and is_over():
                raise StoreTimeout(
                    f"batch {step} of epoch {channel.epoch} is dropped because no call waits for it any more"
                )
            channel.ask(step)
            channel.late[step] = self._clock()
            self._update(channel)
            left_s = ends - time.monotonic()
            if left_s <= 0:
                raise StoreTimeout(f"batch {step} of epoch {channel.epoch} was not ready in {timeout_s:g} s")
            channel.num_waiters += 1
            try:
                channel.arrived.wait(left_s)
            finally:
                channel.num_waiters -= 1
                channel.used_at = self._clock()
                if step in channel.late and channel.iteration == iteration:
                    channel.late[step] = channel.used_at

    def _skip_to(self, channel: SampledChannel, lowest: int) -> None:
        """Skip batches that the consumer has received from other servers; called with the lock."""
        self._buffered_bytes -= channel.num_buffered_bytes
        channel.skip_to(lowest)
        self._buffered_bytes += channel.num_buffered_bytes
        self._update(channel)
        self._let_go_on()

    def _update(self, channel: SampledChannel) -> None:
        """Add a channel to the runnable ones, or remove it; called with the lock."""
        if channel.has_work(may_hoard=True):
            if channel.channel_id not in self._runnable:
                # A channel does not save up time that it did not use.
                channel.virtual_s = max(channel.virtual_s, self._clock_s)
                self._runnable[channel.channel_id] = channel
            self._work.notify()
        else:
            self._runnable.pop(channel.channel_id, None)

    def _let_go_on(self) -> None:
        """Wake sampling threads if batches may be made ahead again; called with the lock."""
        if self._runnable and (self._may_hoard or self._limits.batch_bytes is not None):
            self._work.notify_all()

    @property
    def _may_hoard(self) -> bool:
        return self._buffered_bytes + self._sending_bytes <= self._limits.buffer_bytes

    def _serve(self) -> None:
        """Run the main loop of a sampling thread."""
        while (claimed := self._claim()) is not None:
            outcome = _make(claimed)
            took_s = self._clock() - claimed.since_s
            made = self._wait_for_memory(claimed, outcome, took_s) if isinstance(outcome, NoRoomError) else outcome
            if (on_made := self.on_made) is not None:
                for _ in range(len(made)):
                    _tell(on_made, took_s / len(made))
            if made:
                self._put(claimed, made, took_s)
            del outcome, made, claimed  # free their memory while this thread waits

    def _claim(self) -> _Claim | None:
        """Wait for a batch to make; return None once the scheduler is closed."""
        with self._lock:
            while (channel := self._next_channel()) is None:
                if self._is_closed:
                    return None
                self._work.wait()
            self._clock_s = max(self._clock_s, channel.virtual_s)
            claim = self._new_claim(channel)
            channel.virtual_s += claim.paid_s  # paid in advance, so that other threads choose other channels
            self._claims.add(claim)
            self._runnable[channel.channel_id] = self._runnable.pop(channel.channel_id)  # last among equals
            self._update(channel)
            return claim

    def _new_claim(self, channel: SampledChannel) -> _Claim:
        """Claim a channel's next batches; called with the lock."""
        limit, needed = self._limits.batch_bytes, self._needed_bytes(channel)
        is_alone = limit is not None and (channel.needs_all or self._taken_bytes + self._making_bytes + needed > limit)
        channel.wait.num_overtaken, channel.wait.held_since_s = 0, None
        steps = channel.take_group(1 if is_alone or not self._may_hoard else self._group_size(channel))
        return _Claim(
            channel=channel, iteration=channel.iteration, steps=steps,
            job=channel.idle_jobs.pop() if channel.idle_jobs else None, paid_s=channel.cost_s * len(steps),
            since_s=self._clock(), reserved_bytes=needed * len(steps), is_alone=is_alone,
            taken_bytes=self._taken_bytes, in_the_way=self._in_the_way() if is_alone else [],
        )  # fmt: skip

    def _group_size(self, channel: SampledChannel) -> int:
        """Return the number of batches that fit the memory together; called with the lock."""
        if self._limits.batch_bytes is None:
            return channel.group
        free_bytes = self._limits.batch_bytes - self._taken_bytes - self._making_bytes
        return free_bytes // max(1, self._needed_bytes(channel))

    def _next_channel(self) -> SampledChannel | None:
        """Return the channel whose turn it is, or None; called with the lock."""
        if not self._may_hoard:
            for channel in self._runnable.values():
                channel.virtual_s = max(channel.virtual_s, self._clock_s)  # a waiting channel does not save up time
        able = self._able()
        if self._limits.batch_bytes is None:
            return min(able, key=lambda one: one.virtual_s, default=None)
        if any(claim.is_alone for claim in self._claims):
            return None
        able.sort(key=lambda one: one.virtual_s)
        return self._first_with_memory(able, self._limits.batch_bytes)

    def _first_with_memory(self, able: list[SampledChannel], limit: int) -> SampledChannel | None:
        """Return the first channel with memory for its next batch; called with the lock.

        This channel overtakes the channels before it. A channel that was overtaken too often is next, before any other
        batch starts.
        """
        spare_bytes = self._spare_bytes() if self._buffered_bytes else 0
        overdue = next((channel for channel in able if self._is_overdue(channel)), None)
        if overdue is not None:
            return overdue if self._has_memory(overdue, limit, spare_bytes) else None
        for number, channel in enumerate(able):
            if self._has_memory(channel, limit, spare_bytes):
                for one in able[:number]:
                    one.wait.num_overtaken += 1
                    one.virtual_s = max(one.virtual_s, channel.virtual_s)  # a waiting channel does not save up time
                return channel
        return None

    def _is_overdue(self, channel: SampledChannel) -> bool:
        """Return whether other channels must wait for a channel that waits for memory; called with the lock.

        The others must wait once ``MAX_OVERTAKEN`` of their batches have overtaken the channel, for ``HOLD_S`` at most.
        They need not wait while everything that held the memory still exists, because waiting would free no memory.
        """
        wait = channel.wait
        if not channel.asked or wait.num_overtaken < MAX_OVERTAKEN:
            return False
        if wait.in_the_way and all(one() is not None for one in wait.in_the_way):
            return False
        now = self._clock()
        wait.held_since_s = now if wait.held_since_s is None else wait.held_since_s
        if now - wait.held_since_s < HOLD_S:
            return True
        wait.num_overtaken, wait.held_since_s, wait.in_the_way = 0, None, self._in_the_way()
        return False

    def _in_the_way(self) -> list[weakref.ref[object]]:
        """Return weak references to everything that holds memory now; called with the lock."""
        waiting = (made for channel in self._channels.values() for made in channel.done.values())
        return [weakref.ref(one) for one in (*waiting, *self._sending, *self._claims)]

    def _needed_bytes(self, channel: SampledChannel) -> int:
        """Estimate the bytes for making a channel's next batch."""
        return MAKING_FACTOR * (channel.batch_bytes or self._largest_bytes)

    @property
    def _taken_bytes(self) -> int:
        """Bytes of messages that wait or are being sent."""
        return self._buffered_bytes + self._sending_bytes

    @property
    def _making_bytes(self) -> int:
        """Estimated bytes of the batches being made."""
        return sum(claim.reserved_bytes for claim in self._claims)

    def _has_memory(self, channel: SampledChannel, limit: int, spare_bytes: int) -> bool:
        """Return whether a channel's next batch may be made now; drops spare batches for a requested one.

        Called with the lock.

        A batch that was not requested is made if it fits. A requested batch that does not fit is made alone; so a limit
        that is too small causes an error instead of an endless wait. If it found no room, it is retried when messages
        take less memory than they did.
        """
        needed = self._making_bytes + self._needed_bytes(channel)
        if not channel.needs_all and self._taken_bytes + needed <= limit:
            return True
        if not channel.asked:
            return not self._taken_bytes and not self._claims and channel.wait.taken_bytes > 0
        if not channel.needs_all and self._taken_bytes - spare_bytes + needed <= limit:
            self._drop_spare(limit - needed)
            return True
        if self._claims or self._taken_bytes - spare_bytes >= channel.wait.taken_bytes:
            return False
        self._drop_spare(0)
        return True

    def _spare_bytes(self) -> int:
        """Return the bytes of messages that may be dropped for requested batches; called with the lock."""
        since_s = self._clock() - FORGET_S
        return sum(one.done[step].num_bytes for one in self._channels.values() for step in one.spare(since_s))

    def _drop_spare(self, left_bytes: int) -> None:
        """Drop spare batches until messages take no more than ``left_bytes``; called with the lock.

        They are made again when there is room, or when they are requested.
        """
        since_s = self._clock() - FORGET_S
        for channel in sorted(self._channels.values(), key=lambda one: one.num_buffered_bytes, reverse=True):
            for step in channel.spare(since_s):
                if self._taken_bytes <= left_bytes:
                    return
                was_late = step in channel.late
                made = channel.take(step)
                self._buffered_bytes -= 0 if made is None else made.num_bytes
                if not was_late:
                    channel.put_back(step)
                self._update(channel)

    def _wait_for_memory(self, claim: _Claim, error: NoRoomError, took_s: float) -> list[Made]:
        """Schedule batches again that found no room; return an error message if a batch can never fit.

        A batch can never fit if it fails twice while no message takes memory. One failure is not enough: a message that
        has just left the server may hold its memory for a moment.
        """
        channel = claim.channel
        with self._lock:
            wait = channel.wait
            if claim.is_needed and claim.is_alone and not claim.taken_bytes and wait.has_failed_alone:
                return [Made(_failure(self._never_fits(claim, error)), has_failed=True)]
            self._claims.discard(claim)
            channel.virtual_s += max(0.0, took_s - claim.paid_s)
            channel.stats.sampling_s += took_s
            if claim.is_needed:
                channel.needs_all = True
                if claim.is_alone:
                    wait.has_failed_alone |= not claim.taken_bytes
                    if claim.taken_bytes < wait.taken_bytes:
                        wait.taken_bytes, wait.in_the_way = claim.taken_bytes, claim.in_the_way
                for step in reversed(claim.steps):
                    channel.put_back(step)
                channel.arrived.notify_all()  # waiting calls request the batch again
                self._update(channel)
            self._let_go_on()
            return []

    def _never_fits(self, claim: _Claim, error: NoRoomError) -> SettingsError:
        return SettingsError(
            f"batch {claim.steps[0]} of epoch {claim.iteration[1]} does not fit into the {self._limits.batch_bytes} "
            f"bytes that --memory-bytes leaves to batches: {error}; make batches smaller, or raise --memory-bytes"
        )

    def _able(self) -> list[SampledChannel]:
        """Return the channels that have a batch to make now; called with the lock."""
        may_hoard = self._may_hoard
        return [channel for channel in self._runnable.values() if channel.has_work(may_hoard=may_hoard)]

    def _put(self, claim: _Claim, made: list[Made], took_s: float) -> None:
        """Store finished batches and wake the calls that wait for them."""
        channel = claim.channel
        with self._lock:
            self._claims.discard(claim)
            channel.virtual_s += took_s - claim.paid_s
            for one in made:
                channel.charge(took_s / len(made))
                channel.batch_bytes = max(channel.batch_bytes, one.num_bytes)
                self._largest_bytes = max(self._largest_bytes, one.num_bytes)
                channel.stats.num_failed += one.has_failed
            channel.end_wait()
            if channel.is_destroyed:
                return
            if claim.job is not None and not any(one.has_failed for one in made):
                channel.idle_jobs.append(claim.job)
            if claim.iteration == channel.iteration:
                for step, one in zip(claim.steps, made, strict=True):
                    channel.in_flight.discard(step)
                    channel.done[step] = one
                    if step in channel.late:
                        channel.late[step] = self._clock()
                    self._buffered_bytes += one.num_bytes
                self._drop_forgotten(channel)
                channel.arrived.notify_all()
            self._update(channel)
            if self._limits.batch_bytes is not None:
                self._let_go_on()

    def _drop_forgotten(self, channel: SampledChannel) -> None:
        """Drop unfetched requested batches, the oldest first, while too much waits; called with the lock.

        Requested batches are made regardless of what waits already. Without this, a client that requests batches and
        leaves would fill the memory. Dropped batches are made again if they are requested again.
        """
        while not self._may_hoard and (step := channel.forgotten()) is not None:
            made = channel.take(step)
            self._buffered_bytes -= 0 if made is None else made.num_bytes
        self._let_go_on()

    def _watch(self) -> None:
        """Check leases and slow batches until the scheduler is closed."""
        turn_s = min(MAX_WATCH_S, self._limits.lease_s / 4, self._limits.slow_s / 2)
        while not self._stop_watching.wait(turn_s):
            for channel in self._expire():
                LOG.warning(
                    "channel %d (%s) was not used in %g s and is given up", channel.number, channel.worker,
                    self._limits.lease_s,
                )  # fmt: skip
                _tell(self.on_expired, channel)
            self._report_slow()
            self._look_again()
            _tell(self.on_watch)

    def _expire(self) -> list[SampledChannel]:
        """Remove the channels whose lease has expired."""
        with self._lock:
            expired_before = self._clock() - self._limits.lease_s
            expired = [
                channel
                for channel in self._channels.values()
                if channel.used_at < expired_before and not channel.num_waiters
            ]
            for channel in expired:
                self._give_up(channel)
            self._num_expired += len(expired)
            return expired

    def _look_again(self) -> None:
        """Retry batches that wait for memory, which may have been freed without notice."""
        with self._lock:
            for channel in self._runnable.values():
                if channel.wait.taken_bytes == 0:
                    channel.wait.taken_bytes = math.inf
            if self._limits.batch_bytes is not None:
                self._let_go_on()

    def _report_slow(self) -> None:
        """Log each batch once that takes longer than ``slow_s``, even if it is no longer needed."""
        with self._lock:
            slow_before = self._clock() - self._limits.slow_s
            slow = {claim for claim in self._claims if claim.since_s < slow_before}
            new = [(claim, claim.is_needed) for claim in slow - self._reported]
            self._reported = slow
        for claim, is_needed in new:
            LOG.warning(
                "batch %d of epoch %d of channel %d (%s, %s)%s is not done after %g s; its stage: %s",
                claim.steps[0], claim.iteration[1], claim.channel.number, claim.channel.loader, claim.channel.worker,
                "" if is_needed else ", which is not needed any more,", self._limits.slow_s, claim.stage,
            )  # fmt: skip


def _tell(listener: Callable[..., None], *news: object) -> None:
    """Call a listener; its errors are logged and do not end the calling thread."""
    try:
        listener(*news)
    except Exception:
        LOG.exception("%r failed; the thread that called it continues", listener)


def _make(claim: _Claim) -> list[Made] | NoRoomError:
    """Make batches without the lock; errors become messages, except lack of memory."""
    if len(claim.steps) > 1:
        try:
            job = claim.job = claim.job or claim.channel.new_job()
            return [Made(message) for message in job.together(claim.iteration[1], claim.steps)]
        except ServerBusy:
            LOG.debug("batches %s are made one by one: a server has no room for all", claim.steps, exc_info=True)
        except (StoreTimeout, StoreUnavailable) as error:  # each batch would wait for the same server
            error.add_note(f"while batches {claim.steps} of epoch {claim.iteration[1]} were made on a server")
            return [Made(_failure(error), has_failed=True) for _ in claim.steps]
        except BaseException:  # ``_make_one`` turns it into a message, so the thread goes on
            LOG.debug("batches %s are made one by one, to find which of them fails", claim.steps, exc_info=True)
    made: list[Made] = []
    for step in claim.steps:
        outcome = _make_one(claim, step)
        if isinstance(outcome, NoRoomError):
            return outcome
        made.append(outcome)
    return made


def _make_one(claim: _Claim, step: int) -> Made | NoRoomError:
    try:
        job = claim.job = claim.job or claim.channel.new_job()
        return Made(job(claim.iteration[1], step))
    except NoRoomError as error:
        claim.job = None  # frees the job's memory
        return error.with_traceback(None)
    except BaseException as error:
        error.add_note(f"while batch {step} of epoch {claim.iteration[1]} was made on a server ({claim.stage})")
        LOG.info("batch %d of channel %d failed", step, claim.channel.number, exc_info=True)
        return Made(_failure(error), has_failed=True)


def _failure(error: BaseException) -> Frame:
    """Encode an error as a message; an error that cannot be formatted is replaced, so the thread goes on."""
    try:
        return encode_error(error)
    except Exception:
        return encode_error(RemoteError(f"{type(error).__name__}, whose message could not be formatted"))


def _described(channel: SampledChannel, now: float) -> dict[str, object]:
    return {
        "channel": channel.number,
        "worker": channel.worker,
        "loader": channel.loader,
        "epoch": channel.epoch,
        "num_steps": channel.share.num_steps,
        "num_own_steps": channel.share.num_own,
        "is_epoch_done": channel.is_epoch_done,
        "is_mid_epoch": channel.is_mid_epoch,
        "num_epoch_fetched": channel.num_epoch_fetched,
        "credit": channel.credit,
        "num_in_flight": len(channel.in_flight),
        "num_waiting": len(channel.done),
        "num_buffered_bytes": channel.num_buffered_bytes,
        **asdict(channel.stats),
        "idle_s": now - channel.used_at,
        "age_s": now - channel.made_at,
    }
