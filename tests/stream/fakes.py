"""Fakes of sampling, of its consumers and of time, for tests of the scheduler."""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hopstream.stream.channel import SampledChannel, Share
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.failures import raise_error
from hopstream.transport.messages import Frame

DEADLINE_S = 30.0
"""How long a test waits for what must happen at once, before it fails."""
FETCH_S = 10 * DEADLINE_S
"""How long a fetch waits: longer than the test, so that no test passes because a fetch gave up."""
Work = Callable[[int, int], None]


def message_of(epoch: int, step: int, num_bytes: int = 64) -> Frame:
    """Message with the number of its batch and ``num_bytes`` in place of the batch."""
    return Frame({"batch": [epoch, step]}, [np.zeros(num_bytes, np.uint8)])


MESSAGE_BYTES = message_of(0, 0).num_bytes


def batch_of(message: Frame | None) -> tuple[int, int] | None:
    """Which batch a message holds; raises the error that it tells of."""
    if message is None:
        return None
    raise_error(message, "a server", "fetch_one_sampled_message")
    epoch, step = message.header["batch"]
    return epoch, step


class FakeJob:
    """Make messages; ``work`` is called for each of them."""

    stage = "pretending"

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, epoch: int, step: int) -> Frame:
        self._work(epoch, step)
        return message_of(epoch, step)

    def together(self, epoch: int, steps: list[int]) -> list[Frame]:
        for step in steps:
            self._work(epoch, step)
        return [message_of(epoch, step) for step in steps]


def no_work(epoch: int, step: int) -> None:
    """Do nothing, in no time."""


class Gate:
    """Work that is held up until the gate is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._reached = threading.Semaphore(0)

    def __call__(self, epoch: int, step: int) -> None:
        self._reached.release()
        assert self._opened.wait(DEADLINE_S)

    def wait_reached(self) -> None:
        """Return when one more batch is being made."""
        assert self._reached.acquire(timeout=DEADLINE_S)

    def open(self) -> None:
        """Let all batches through."""
        self._opened.set()

    def close(self) -> None:
        """Hold up batches again."""
        self._opened.clear()


@contextmanager
def scheduling(clock: Callable[[], float] = time.monotonic, **limits: Any) -> Iterator[Scheduler]:
    """Open a scheduler, with one thread by default, and close it at the end."""
    scheduler = Scheduler(SamplingLimits(**{"threads": 1, **limits}), clock)
    try:
        yield scheduler
    finally:
        scheduler.close()


def add(
    scheduler: Scheduler,
    channel_id: int,
    work: Work = no_work,
    *,
    num_steps: int = 10,
    first: int = 0,
    stride: int = 1,
    credit: int = 4,
    group: int = 1,
) -> SampledChannel:
    """A channel of fake jobs; by default all batches of the epoch are its own."""
    share = Share(first=first, stride=stride, num_steps=num_steps)
    return scheduler.add(
        channel_id,
        1,
        f"rank {channel_id}",
        share,
        credit=credit,
        group=group,
        loader="NeighborLoader",
        worker=f"rank {channel_id}",
        new_job=lambda: FakeJob(work),
    )


NEXT: weakref.WeakKeyDictionary[Scheduler, dict[int, tuple[tuple[int, int], int]]] = weakref.WeakKeyDictionary()
"""The next step and the iteration of a consumer, per scheduler and channel."""
NEXT_LOCK = threading.Lock()


def next_step(scheduler: Scheduler, channel_id: int) -> int:
    """The first batch of the share that was not asked for this way."""
    channel = scheduler._channels.get(channel_id)
    if channel is None:
        return 0
    with NEXT_LOCK, scheduler._lock:
        known = NEXT[scheduler] = {
            one: known for one, known in NEXT.get(scheduler, {}).items() if one in scheduler._channels
        }
        iteration, step = known.get(channel_id, ((-2, -2), 0))
        if iteration != channel.iteration:
            there = [*channel.done, *channel.in_flight, *channel.asked]
            step = min([channel.cursor, *(one for one in there if channel.share.from_step(one) == one)])
        known[channel_id] = (channel.iteration, step + channel.share.stride)
        return step


def take(
    scheduler: Scheduler, channel_id: int, step: int, timeout_s: float, turn: int | None = None, lowest: int = 0
) -> Frame | None:
    """The message of a batch, or None at the end of the epoch."""
    with scheduler.fetched(channel_id, step, timeout_s, iteration=(turn, None), lowest=lowest) as made:
        return None if made is None else made.message


def fetch(
    scheduler: Scheduler, channel_id: int, step: int | None = None, turn: int | None = None, lowest: int = 0
) -> Any:
    """Fetch a batch, the next one by default: its ``(epoch, step)``, or None at the end of the epoch."""
    step = next_step(scheduler, channel_id) if step is None else step
    return batch_of(take(scheduler, channel_id, step, FETCH_S, turn, lowest))


def settle(scheduler: Scheduler) -> dict[str, float]:
    """Wait until no batch is being made and none can be; the scheduler's totals then."""
    ends = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while (totals := scheduler.totals)["num_runnable"] or totals["num_in_flight"]:
        assert time.monotonic() < ends, totals
        pause.wait(0.001)
    return totals


class Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="waiting consumer")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def has_ended(self) -> bool:
        """Whether there is a result."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Return the call's result or raise its error."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def wait_until_waiting(channel: SampledChannel, num_waiters: int = 1) -> None:
    """Return when so many calls wait for a batch of the channel."""
    ends = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while channel.num_waiters < num_waiters:
        assert time.monotonic() < ends
        pause.wait(0.001)


def until(is_so: Callable[[], object]) -> None:
    """Return when something is so."""
    ends = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.001)


class HandClock:
    """A clock that a test moves, and that knows how often the scheduler's watch has looked at it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._looked = threading.Condition()
        self._num_looks = 0

    def __call__(self) -> float:
        if threading.current_thread().name == "hopstream-leases":
            with self._looked:
                self._num_looks += 1
                self._looked.notify_all()
        return self.now

    def wait_watched(self, num_rounds: int = 3) -> None:
        """Return when the watch has gone over all channels that often, from now on."""
        with self._looked:
            # A round reads the clock twice, and a round in progress may have read it before the move.
            wanted = self._num_looks + 2 * num_rounds + 2
            assert self._looked.wait_for(lambda: self._num_looks >= wanted, DEADLINE_S)


class FakeTime:
    """Time that stands still while any of a number of threads works.

    When all of them sleep, it jumps to the earliest wake-up, and only that thread goes on. So runs are deterministic,
    and work takes exactly as long as the threads say.
    """

    def __init__(self, num_threads: int, until_s: float) -> None:
        self.now = 0.0
        self._num_threads = num_threads
        self._until_s = until_s
        self._changed = threading.Condition()
        self._sleeping: list[tuple[float, int]] = []
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._num_sleeps = 0
        self._is_running = self._is_over = self._is_released = False

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> bool:
        """Let time pass; False where it ends before."""
        with self._changed:
            self._num_sleeps += 1
            me = (self.now + seconds, self._num_sleeps)
            heapq.heappush(self._sleeping, me)
            self._pass()
            assert self._changed.wait_for(lambda: me not in self._sleeping or self._is_released, DEADLINE_S)
            return me not in self._sleeping

    def plan(self, at_s: float, call: Callable[[], None]) -> None:
        """Call something when time gets to ``at_s``, while every thread sleeps."""
        heapq.heappush(self._planned, (at_s, len(self._planned), call))

    def wait_all_asleep(self) -> None:
        """Return when every thread sleeps; before ``run``."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._sleeping) == self._num_threads, DEADLINE_S)

    def run(self) -> None:
        """Let time pass up to ``until_s``."""
        with self._changed:
            self._is_running = True
            self._pass()
            assert self._changed.wait_for(lambda: self._is_over, 2 * DEADLINE_S)

    def release(self) -> None:
        """Let all threads go."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()

    def _pass(self) -> None:
        self._changed.notify_all()
        if not self._is_running or len(self._sleeping) < self._num_threads or self._is_over:
            return
        wakes_at = self._sleeping[0][0]
        while self._planned and self._planned[0][0] <= wakes_at:
            self.now, _, call = heapq.heappop(self._planned)
            call()
        self.now = min(wakes_at, self._until_s)
        if wakes_at >= self._until_s:
            self._is_over = True
        else:
            heapq.heappop(self._sleeping)
