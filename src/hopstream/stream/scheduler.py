"""Decides which channel a free sampling thread works for.

It is the one that has had the least sampling time so far, of those that have something to do. Channels of equal cost
take turns batch by batch, and a channel of costly batches gets fewer of them, so every channel gets the same share of
the threads. A channel whose credit is used up is in no list that a thread looks at. No thread waits for a consumer.

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
"""How long a closing scheduler waits for batches under way."""
MAX_WATCH_S = 1.0
"""How often, at the least, leases and slow batches are looked at."""
MAKING_FACTOR = 2
"""Most memory that making a batch takes, as a multiple of the batch."""
MAX_OVERTAKEN = 16
"""Batches of other channels that may start while a requested batch has its turn but no memory."""
HOLD_S = 1.0
"""Seconds for which nothing else starts after that, so that sent batches make room."""
FORGET_S = 5.0
"""Seconds after which a requested batch that is neither fetched nor requested again makes way for others."""
MAX_CALLS = 256
"""Most calls of one channel that wait for batches, or whose answer has not left the server, at once."""


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class _Claim:
    """A batch that a thread has undertaken to make, and since when; without a job the thread makes one first.

    ``is_alone``: it may need all memory, so no other is begun meanwhile; then ``taken_bytes`` is what messages took at
    the start, and ``in_the_way`` what took it.
    """

    channel: SampledChannel
    iteration: tuple[int, int]
    step: int
    job: MessageMaker | None
    paid_s: float
    since_s: float
    reserved_bytes: int = 0
    is_alone: bool = False
    taken_bytes: int = 0
    in_the_way: list[weakref.ref[object]] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether the channel is still there and in the same epoch."""
        return not self.channel.is_destroyed and self.channel.iteration == self.iteration

    @property
    def stage(self) -> str:
        """What the thread is doing."""
        return "starting" if self.job is None else self.job.stage


class Scheduler:
    """One pool of threads that makes the batches of all channels of a server."""

    def __init__(self, limits: SamplingLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the threads.

        Args:
            limits: How much is sampled at once, and how long is waited.
            clock: Seconds by which sampling time, leases and slow batches are measured.
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
        """Told of every channel whose lease ran out, without the lock."""
        self.on_made: Callable[[float], None] | None = None
        """Told how many seconds every batch took, failed ones included, without the lock."""
        self.on_watch: Callable[[], None] = lambda: None
        """Called whenever leases are looked at, without the lock."""
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
        """Take a channel on; see ``SampledChannel`` for ``worker``, ``credit`` and ``new_job``.

        Raises:
            StoreUnavailable: The scheduler is closed, or refuses new channels, or has as many as it may have.
            ServerBusy: The inputs of all channels are as large as they may be.
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
            StoreUnavailable: It may not; as ``add``.
        """
        with self._lock:
            if all(channel.worker_key != worker_key for channel in self._channels.values()):
                self._check_room()

    def begin(self, channel_id: int, turn: int, epoch: int, first_step: int) -> tuple[int, int]:
        """Start an epoch of a channel; one that is no later than the current one changes nothing.

        Returns:
            The turn and epoch that the channel is at; other ones than were asked for where nothing was changed.

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
        """Wait for one batch and take it; it is made again where it was taken before.

        Its bytes count as long as the context lasts: until the message has left the server.

        Args:
            channel_id: The channel.
            step: The batch.
            timeout_s: How long to wait.
            iteration: Turn and epoch that are asked about; None for the current ones.
            lowest: The consumer has all batches before this one; what waits of them is thrown away.
            is_over: Whether the consumer has gone; whoever waits for the batch is to be told by ``wake``.

        Returns:
            What was made; None after the last batch of the epoch.

        Raises:
            ChannelLost: There is no such channel, or it was destroyed, or a later iteration was started on it.
            StateError: No epoch was started, or not yet the one that is asked about.
            SettingsError: So many calls of the channel are unanswered that no more may wait.
            StoreTimeout: It was not ready in time.
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
                    f"a batch of iteration {asked[0]}, epoch {asked[1]}, was asked for; the channel is at iteration "
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
        """Wake the threads that wait for a channel's batches, to check that their consumers are still there."""
        with self._lock:
            channel = self._channels.get(channel_id)
            if channel is not None:
                channel.arrived.notify_all()

    def remove(self, channel_id: int) -> SampledChannel | None:
        """Give a channel up; who waits for it is told, and what is being made for it is thrown away.

        Returns:
            The channel, or None where there is none (any more).
        """
        with self._lock:
            channel = self._channels.get(channel_id)
            if channel is not None:
                self._give_up(channel)
            return channel

    def ids_of(self, worker_key: str) -> list[int]:
        """The channels of a compute rank, by what it calls itself."""
        with self._lock:
            return [one.channel_id for one in self._channels.values() if one.worker_key == worker_key]

    def share_of(self, channel_id: int) -> Share:
        """The batches of a channel that are made ahead.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            return self._channel(channel_id).share

    def is_epoch_done(self, channel_id: int, epoch: int) -> bool:
        """Whether every batch of a channel's share of an epoch was made, or a later epoch began.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            channel = self._channel(channel_id)
            return channel.epoch > epoch or (channel.epoch == epoch and channel.is_epoch_done)

    def describe(self, channel_id: int | None = None) -> list[dict[str, object]]:
        """What is known of one channel, or of all, as JSON objects.

        Raises:
            ChannelLost: There is no such channel.
        """
        with self._lock:
            channels = list(self._channels.values()) if channel_id is None else [self._channel(channel_id)]
            return [_described(channel, self._clock()) for channel in channels]

    @property
    def totals(self) -> dict[str, float]:
        """Numbers of the scheduler as a whole."""
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
        """How many fetched batches had been made when they were asked for, and how many had not."""
        with self._lock:
            return self._num_ready, self._num_late

    def refuse(self) -> None:
        """Take no new channels from now on; those that are there go on."""
        with self._lock:
            self._is_refusing = True

    def close(self, join_s: float = JOIN_S) -> list[dict[str, object]]:
        """End the threads and all channels; a second call does nothing.

        Args:
            join_s: How long batches under way may take to end.

        Returns:
            What is known of the channels that were left.

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
        """Refuse a new channel where there is no room for it; called with the lock."""
        if self._is_closed or self._is_refusing:
            raise StoreUnavailable("the server is shutting down")
        if len(self._channels) >= self._limits.max_channels:
            raise StoreUnavailable(
                f"the server has {len(self._channels)} channels, as many as it may have (--max-channels); close "
                "loaders that are not needed, or start it with more"
            )

    def _check_inputs(self, num_bytes: int) -> None:
        """Refuse an input for which there is no memory; called with the lock."""
        limit = self._limits.input_bytes
        taken = sum(channel.input_bytes for channel in self._channels.values())
        if limit is not None and num_bytes > limit:
            raise SettingsError(
                f"the input has {num_bytes} bytes; all inputs may have {limit} (--memory-bytes); give fewer seeds to a "
                "loader, or allow more"
            )
        if limit is not None and taken + num_bytes > limit:
            raise ServerBusy(f"the inputs of channels have {taken} of the {limit} bytes that they may have")

    def _channel(self, channel_id: int) -> SampledChannel:
        channel = self._channels.get(channel_id)
        if channel is None:
            raise ChannelLost(
                f"there is no channel {channel_id}: it was destroyed, its lease of {self._limits.lease_s:g} s ran out, "
                "or the server was started again; register the input again"
            )
        channel.used_at = self._clock()
        return channel

    def _give_up(self, channel: SampledChannel) -> None:
        """Forget a channel and tell whoever waits for it; called with the lock."""
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
        """Take the batch when it is there; called with the lock."""
        iteration = channel.iteration
        if channel.num_waiters + channel.num_sending >= MAX_CALLS:
            raise SettingsError(
                f"{MAX_CALLS} calls of channel {channel.number} wait for batches or have not read theirs; read "
                "them, or end them, before more are made"
            )
        while True:
            if channel.is_destroyed:
                raise ChannelLost(f"channel {channel.channel_id} was destroyed while batch {step} was waited for")
            if channel.iteration != iteration:
                raise ChannelLost(
                    f"a batch of iteration {iteration[0]}, epoch {iteration[1]}, was waited for; the channel has gone "
                    f"on to iteration {channel.turn}, epoch {channel.epoch}"
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
                raise StoreTimeout(f"nobody waits for batch {step} of epoch {channel.epoch} any more")
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
        """Let a channel go on where its consumer is, which other servers have brought there; called with the lock."""
        self._buffered_bytes -= channel.num_buffered_bytes
        channel.skip_to(lowest)
        self._buffered_bytes += channel.num_buffered_bytes
        self._update(channel)
        self._let_go_on()

    def _update(self, channel: SampledChannel) -> None:
        """Put a channel among those that threads look at, or take it away; called with the lock."""
        if channel.has_work(may_hoard=True):
            if channel.channel_id not in self._runnable:
                # Time that it did not use is not saved up.
                channel.virtual_s = max(channel.virtual_s, self._clock_s)
                self._runnable[channel.channel_id] = channel
            self._work.notify()
        else:
            self._runnable.pop(channel.channel_id, None)

    def _let_go_on(self) -> None:
        """Wake the threads where less waits now, and batches may be made ahead again; called with the lock."""
        if self._runnable and (self._may_hoard or self._limits.batch_bytes is not None):
            self._work.notify_all()

    @property
    def _may_hoard(self) -> bool:
        return self._buffered_bytes + self._sending_bytes <= self._limits.buffer_bytes

    def _serve(self) -> None:
        """The life of a sampling thread."""
        while (claimed := self._claim()) is not None:
            outcome = _make(claimed)
            took_s = self._clock() - claimed.since_s
            made = self._wait_for_memory(claimed, outcome, took_s) if isinstance(outcome, NoRoomError) else outcome
            if made is not None:
                if (on_made := self.on_made) is not None:
                    _tell(on_made, took_s)
                self._put(claimed, made, took_s)
            del outcome, made, claimed  # while this thread waits, it holds nothing

    def _claim(self) -> _Claim | None:
        """Wait for a batch to make; None when the scheduler is closed."""
        with self._lock:
            while (channel := self._next_channel()) is None:
                if self._is_closed:
                    return None
                self._work.wait()
            self._clock_s = max(self._clock_s, channel.virtual_s)
            channel.virtual_s += channel.cost_s  # paid beforehand, so that other threads turn to other channels
            claim = self._new_claim(channel)
            self._claims.add(claim)
            self._runnable[channel.channel_id] = self._runnable.pop(channel.channel_id)  # of equals, the others first
            self._update(channel)
            return claim

    def _new_claim(self, channel: SampledChannel) -> _Claim:
        """Undertake to make a channel's next batch; called with the lock."""
        limit, needed = self._limits.batch_bytes, self._needed_bytes(channel)
        is_alone = limit is not None and (channel.needs_all or self._taken_bytes + self._making_bytes + needed > limit)
        channel.wait.num_overtaken, channel.wait.held_since_s = 0, None
        return _Claim(
            channel=channel, iteration=channel.iteration, step=channel.take_work(),
            job=channel.idle_jobs.pop() if channel.idle_jobs else None, paid_s=channel.cost_s, since_s=self._clock(),
            reserved_bytes=needed, is_alone=is_alone, taken_bytes=self._taken_bytes,
            in_the_way=self._in_the_way() if is_alone else [],
        )  # fmt: skip

    def _next_channel(self) -> SampledChannel | None:
        """The channel whose turn it is, if any; called with the lock."""
        if not self._may_hoard:
            for channel in self._runnable.values():
                channel.virtual_s = max(channel.virtual_s, self._clock_s)  # a channel that must wait saves up no time
        able = self._able()
        if self._limits.batch_bytes is None:
            return min(able, key=lambda one: one.virtual_s, default=None)
        if any(claim.is_alone for claim in self._claims):
            return None
        able.sort(key=lambda one: one.virtual_s)
        return self._first_with_memory(able, self._limits.batch_bytes)

    def _first_with_memory(self, able: list[SampledChannel], limit: int) -> SampledChannel | None:
        """The first channel that has memory for its next batch; it overtakes those before it. Called with the lock.

        One that was overtaken by many goes on as soon as it can, before any other begins.
        """
        spare_bytes = self._spare_bytes() if self._buffered_bytes else 0
        overdue = next((channel for channel in able if self._is_overdue(channel)), None)
        if overdue is not None:
            return overdue if self._has_memory(overdue, limit, spare_bytes) else None
        for number, channel in enumerate(able):
            if self._has_memory(channel, limit, spare_bytes):
                for one in able[:number]:
                    one.wait.num_overtaken += 1
                    one.virtual_s = max(one.virtual_s, channel.virtual_s)  # a channel that must wait saves up no time
                return channel
        return None

    def _is_overdue(self, channel: SampledChannel) -> bool:
        """Whether others have to wait for a channel that waits for memory; called with the lock.

        They do once enough of them were begun before it, unless all that left it no room is still there: then nothing
        is won by their waiting. Nor do they wait longer than ``HOLD_S`` for what does not go.
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
        """Everything that takes memory now; called with the lock."""
        waiting = (made for channel in self._channels.values() for made in channel.done.values())
        return [weakref.ref(one) for one in (*waiting, *self._sending, *self._claims)]

    def _needed_bytes(self, channel: SampledChannel) -> int:
        """Estimated bytes for making a channel's next batch."""
        return MAKING_FACTOR * (channel.batch_bytes or self._largest_bytes)

    @property
    def _taken_bytes(self) -> int:
        """Bytes of messages that wait or are being sent."""
        return self._buffered_bytes + self._sending_bytes

    @property
    def _making_bytes(self) -> int:
        """Estimated bytes of the batches that are being made."""
        return sum(claim.reserved_bytes for claim in self._claims)

    def _has_memory(self, channel: SampledChannel, limit: int, spare_bytes: int) -> bool:
        """Whether a channel's next batch may be made now; if somebody asked for it, others make way. With the lock.

        What nobody has asked for is made where it fits. What somebody has asked for and what does not fit is made
        alone, so a bound that is too small shows as an error and not as a wait; where it found no room, it is made
        again when messages take less than they did.
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
        """Bytes of messages that make way for batches that are asked for; called with the lock."""
        since_s = self._clock() - FORGET_S
        return sum(one.done[step].num_bytes for one in self._channels.values() for step in one.spare(since_s))

    def _drop_spare(self, left_bytes: int) -> None:
        """Throw batches away that make way for others, until messages take no more than ``left_bytes``.

        They are made again when there is room, or when they are asked for. Called with the lock.
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

    def _wait_for_memory(self, claim: _Claim, error: NoRoomError, took_s: float) -> Made | None:
        """Make a batch that found no room again later; return the consumer's error if it can never fit.

        There is none where it failed twice though nothing else took any: a message that has just left the server may
        hold its memory for a moment more.
        """
        channel = claim.channel
        with self._lock:
            wait = channel.wait
            if claim.is_needed and claim.is_alone and not claim.taken_bytes and wait.has_failed_alone:
                return Made(_failure(self._never_fits(claim, error)), has_failed=True)
            self._claims.discard(claim)
            channel.virtual_s += max(0.0, took_s - claim.paid_s)
            channel.stats.sampling_s += took_s
            if claim.is_needed:
                channel.needs_all = True
                if claim.is_alone:
                    wait.has_failed_alone |= not claim.taken_bytes
                    if claim.taken_bytes < wait.taken_bytes:
                        wait.taken_bytes, wait.in_the_way = claim.taken_bytes, claim.in_the_way
                channel.put_back(claim.step)
                channel.arrived.notify_all()  # a consumer that is not counted as waiting asks again
                self._update(channel)
            self._let_go_on()
            return None

    def _never_fits(self, claim: _Claim, error: NoRoomError) -> SettingsError:
        return SettingsError(
            f"batch {claim.step} of epoch {claim.iteration[1]} does not fit into the {self._limits.batch_bytes} bytes "
            f"that --memory-bytes leaves to batches: {error}; make batches smaller, or allow more"
        )

    def _able(self) -> list[SampledChannel]:
        """The channels that have a batch to make now; called with the lock."""
        may_hoard = self._may_hoard
        return [channel for channel in self._runnable.values() if channel.has_work(may_hoard=may_hoard)]

    def _put(self, claim: _Claim, made: Made, took_s: float) -> None:
        """Put a finished batch down."""
        channel = claim.channel
        with self._lock:
            self._claims.discard(claim)
            channel.virtual_s += took_s - claim.paid_s
            channel.charge(took_s)
            channel.end_wait()
            channel.batch_bytes = max(channel.batch_bytes, made.num_bytes)
            self._largest_bytes = max(self._largest_bytes, made.num_bytes)
            channel.stats.num_failed += made.has_failed
            if channel.is_destroyed:
                return
            if claim.job is not None and not made.has_failed:
                channel.idle_jobs.append(claim.job)
            if claim.iteration == channel.iteration:
                channel.in_flight.discard(claim.step)
                channel.done[claim.step] = made
                if claim.step in channel.late:
                    channel.late[claim.step] = self._clock()
                self._buffered_bytes += made.num_bytes
                self._drop_forgotten(channel)
                channel.arrived.notify_all()
            self._update(channel)
            if self._limits.batch_bytes is not None:
                self._let_go_on()

    def _drop_forgotten(self, channel: SampledChannel) -> None:
        """Where too much waits, throw away what was asked for and not fetched, the oldest first; called with the lock.

        Batches that are asked for are made whatever waits already, so a client that asks and goes away would fill the
        memory without this. They are made again where somebody asks again.
        """
        while not self._may_hoard and (step := channel.forgotten()) is not None:
            made = channel.take(step)
            self._buffered_bytes -= 0 if made is None else made.num_bytes
        self._let_go_on()

    def _watch(self) -> None:
        """Look at leases and at batches that take long, until the scheduler is closed."""
        turn_s = min(MAX_WATCH_S, self._limits.lease_s / 4, self._limits.slow_s / 2)
        while not self._stop_watching.wait(turn_s):
            for channel in self._expire():
                LOG.warning(
                    "channel %d (%s) was not asked for in %g s and is given up", channel.number, channel.worker,
                    self._limits.lease_s,
                )  # fmt: skip
                _tell(self.on_expired, channel)
            self._report_slow()
            self._look_again()
            _tell(self.on_watch)

    def _expire(self) -> list[SampledChannel]:
        """Give up the channels whose lease has run out."""
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
        """Retry batches that wait for memory that may have become free without a notice."""
        with self._lock:
            for channel in self._runnable.values():
                if channel.wait.taken_bytes == 0:
                    channel.wait.taken_bytes = math.inf
            if self._limits.batch_bytes is not None:
                self._let_go_on()

    def _report_slow(self) -> None:
        """Log every batch once that is not done after a long time, also where nobody wants it any more."""
        with self._lock:
            slow_before = self._clock() - self._limits.slow_s
            slow = {claim for claim in self._claims if claim.since_s < slow_before}
            new = [(claim, claim.is_needed) for claim in slow - self._reported]
            self._reported = slow
        for claim, is_needed in new:
            LOG.warning(
                "batch %d of epoch %d of channel %d (%s, %s)%s is not done after %g s; its stage: %s",
                claim.step, claim.iteration[1], claim.channel.number, claim.channel.loader, claim.channel.worker,
                "" if is_needed else ", which nobody needs any more,", self._limits.slow_s, claim.stage,
            )  # fmt: skip


def _tell(listener: Callable[..., None], *news: object) -> None:
    """Tell a listener, whose mistakes are no reason to stop the thread that tells."""
    try:
        listener(*news)
    except Exception:
        LOG.exception("%r failed; the thread that told it goes on", listener)


def _make(claim: _Claim) -> Made | NoRoomError:
    """Make a batch without the lock; errors go to the consumer, except lack of memory."""
    try:
        job = claim.job = claim.job or claim.channel.new_job()
        return Made(job(claim.iteration[1], claim.step))
    except NoRoomError as error:
        claim.job = None  # what it holds is freed
        return error.with_traceback(None)
    except BaseException as error:
        error.add_note(f"while batch {claim.step} of epoch {claim.iteration[1]} was made on a server ({claim.stage})")
        LOG.info("batch %d of channel %d failed", claim.step, claim.channel.number, exc_info=True)
        return Made(_failure(error), has_failed=True)


def _failure(error: BaseException) -> Frame:
    """The message that tells of an error, also where the error cannot be put into words: the thread must go on."""
    try:
        return encode_error(error)
    except Exception:
        return encode_error(RemoteError(f"{type(error).__name__}, which cannot say what it is about"))


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
