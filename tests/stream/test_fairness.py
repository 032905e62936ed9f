"""Checks that channels share the sampling threads equally, whatever batches cost or consumers do.

Most tests run in fake time, in which a batch takes exactly its configured cost.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest

from hopstream.stream.channel import SampledChannel, Share
from hopstream.stream.scheduler import Scheduler
from tests.stream.fakes import (
    DEADLINE_S,
    Call,
    FakeJob,
    FakeTime,
    HandClock,
    add,
    fetch,
    scheduling,
    settle,
)

COSTS_S = (0.001, 0.002, 0.003, 0.005, 0.008, 0.013, 0.025, 0.040)
"""Seconds per batch of eight channels: the costliest take forty times as long as the cheapest."""
PLUG = 99
START_S = 1.0
"""Start of the measurement in seconds: until then all threads are held up."""
ENDLESS = 60_000
Cost = Callable[[int], float]


class FakeWorld:
    """A scheduler in fake time, and a record of the use of its threads."""

    def __init__(self, threads: int, for_s: float) -> None:
        self.num_threads = threads
        self.time = FakeTime(threads, START_S + for_s)
        self.made: list[tuple[int, float, float]] = []
        """Channel, start and end of every batch, in the order of their ends."""
        self._costs: dict[int, Cost] = {}

    def run(self, channels: Iterable[Callable[[Scheduler], None]]) -> dict[int, float]:
        """Start channels while all threads are held up, let time pass, and return sampling seconds of each."""
        with scheduling(self.time, threads=self.num_threads, lease_s=1e9, slow_s=1e9) as scheduler:
            try:
                self.channel(PLUG, lambda _: START_S, num_steps=self.num_threads, credit=self.num_threads)(scheduler)
                self.time.wait_all_asleep()
                for start in channels:
                    start(scheduler)
                self.time.run()
                return self.sampling_s()
            finally:
                for channel_id in list(scheduler._channels):
                    scheduler.remove(channel_id)
                self.time.release()

    def channel(
        self, channel_id: int, cost_s: Cost, *, num_steps: int = ENDLESS, credit: int = ENDLESS
    ) -> Callable[[Scheduler], None]:
        """A function that adds a channel whose batch ``step`` takes ``cost_s(step)`` seconds."""

        def work(epoch: int, step: int) -> None:
            started = self.time.now
            if self.time.sleep(cost_s(step)):
                self.made.append((channel_id, started, self.time.now))

        def start(scheduler: Scheduler) -> None:
            add(scheduler, channel_id, work, num_steps=num_steps, credit=credit)
            scheduler.begin(channel_id, 0, 0, 0)

        return start

    def sampling_s(self, from_s: float = START_S) -> dict[int, float]:
        """Sampling seconds of every channel since ``from_s``."""
        total: dict[int, float] = defaultdict(float)
        for channel_id, started, ended in self.made:
            if channel_id != PLUG and ended > from_s:
                total[channel_id] += ended - max(started, from_s)
        return dict(total)

    def num_made(self) -> dict[int, int]:
        """Number of batches of every channel."""
        ids = [channel_id for channel_id, _, _ in self.made if channel_id != PLUG]
        return {one: ids.count(one) for one in set(ids)}


def jain_index(shares: Iterable[float]) -> float:
    """Jain's index: 1 if all shares are equal, 1/n if one of n has all."""
    x = np.array(list(shares))
    return float(x.sum() ** 2 / (len(x) * (x**2).sum()))


def check_fair(sampling_s: Mapping[int, float], num_channels: int = len(COSTS_S)) -> None:
    assert len(sampling_s) == num_channels
    mean_s = sum(sampling_s.values()) / num_channels
    assert all(0.9 * mean_s <= one <= 1.1 * mean_s for one in sampling_s.values()), sampling_s
    assert jain_index(sampling_s.values()) >= 0.97


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order", [COSTS_S, COSTS_S[::-1]], ids=["cheap first", "costly first"])
def test_channels_of_different_cost_get_equal_time(threads, order):
    world = FakeWorld(threads, for_s=6.0)
    sampling_s = world.run(world.channel(n, lambda _, c=cost_s: c) for n, cost_s in enumerate(order))
    check_fair(sampling_s)
    num_made = world.num_made()
    assert num_made[order.index(0.001)] > 30 * num_made[order.index(0.040)]


@pytest.mark.parametrize("threads", [1, 2])
def test_channels_whose_cost_varies_get_equal_time(threads):
    """Costs vary from nothing to several times the mean, so the last batch tells little of the next."""
    draws = np.random.default_rng(4).exponential(1.0, (len(COSTS_S), 8192))
    world = FakeWorld(threads, for_s=12.0)
    check_fair(
        world.run(
            world.channel(n, lambda step, n=n, c=cost_s: c * draws[n, step % 8192]) for n, cost_s in enumerate(COSTS_S)
        )
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_channels_whose_cost_changes_get_equal_time(threads):
    world = FakeWorld(threads, for_s=8.0)
    check_fair(
        world.run(
            world.channel(n, lambda step, a=cost_s, b=COSTS_S[-1 - n]: a if step < 20 else b)
            for n, cost_s in enumerate(COSTS_S)
        )
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_no_channel_is_ever_far_behind(threads):
    """At each batch, not only in the end, channels differ by at most a few of the costliest batches."""
    world = FakeWorld(threads, for_s=4.0)
    world.run(world.channel(n, lambda _, c=cost_s: c) for n, cost_s in enumerate(COSTS_S))
    total = dict.fromkeys(range(len(COSTS_S)), 0.0)
    for channel_id, started, ended in world.made:
        if channel_id != PLUG:
            total[channel_id] += ended - started
            assert max(total.values()) - min(total.values()) <= (1 + threads) * max(COSTS_S)


def test_channels_of_equal_cost_take_turns():
    world = FakeWorld(threads=1, for_s=2.0)
    world.run(world.channel(n, lambda _: 1 / 128) for n in range(4))
    order = [channel_id for channel_id, _, _ in world.made if channel_id != PLUG]
    assert len(order) == 255
    assert order == [n % 4 for n in range(len(order))]


def test_channels_whose_batches_take_no_time_take_turns():
    turns = []
    blocked, go = threading.Event(), threading.Event()

    def hold_up(epoch: int, step: int) -> None:
        blocked.set()
        assert go.wait(DEADLINE_S)

    with scheduling(clock=lambda: 0.0) as scheduler:
        add(scheduler, PLUG, hold_up, num_steps=1)
        scheduler.begin(PLUG, 0, 0, 0)
        assert blocked.wait(DEADLINE_S)
        for n in range(3):
            add(scheduler, n, lambda epoch, step, n=n: turns.append(n), num_steps=20, credit=20)
            scheduler.begin(n, 0, 0, 0)
        go.set()
        settle(scheduler)
    assert turns == [n % 3 for n in range(60)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_new_channel_gets_no_share_of_past_time(threads):
    world = FakeWorld(threads, for_s=10.0)
    comes_at = START_S + 5.0

    def start_all(scheduler: Scheduler) -> None:
        for n in range(3):
            world.channel(n, lambda _: 0.010)(scheduler)
        world.time.plan(comes_at, lambda: world.channel(3, lambda _: 0.010)(scheduler))

    world.run([start_all])
    check_fair(world.sampling_s(comes_at), 4)
    first = next(started for channel_id, started, _ in world.made if channel_id == 3)
    assert first - comes_at <= 0.021  # it is among the next, behind the batches in progress
    soon = dict.fromkeys(range(4), 0)
    for channel_id, started, _ in world.made:
        if comes_at <= started < comes_at + 0.4 and channel_id != PLUG:
            soon[channel_id] += 1
    assert max(soon.values()) - min(soon.values()) <= 1 + threads, soon  # no channel yields to it


def test_debt_of_a_removed_channel_passes_to_its_successor():
    clock = HandClock()

    def work(epoch: int, step: int) -> None:
        clock.now += 10.0

    def add_of(channel_id: int, payer: str) -> SampledChannel:
        share = Share(first=0, stride=1, num_steps=3)
        return scheduler.add(
            channel_id, 1, "rank 0", share, credit=1, payer=payer, new_job=lambda: FakeJob(work)
        )  # fmt: skip

    with scheduling(clock) as scheduler:
        add_of(1, "hasty")
        scheduler.begin(1, 0, 0, 0)
        assert fetch(scheduler, 1, 0) == (0, 0)
        settle(scheduler)
        owed = scheduler.remove(1).virtual_s - scheduler._clock_s
        assert owed >= 10.0
        assert add_of(2, "another").virtual_s == 0.0
        assert add_of(3, "hasty").virtual_s - scheduler._clock_s == owed
        assert add_of(4, "hasty").virtual_s == 0.0  # it is owed once


@pytest.mark.parametrize("threads", [1, 2])
def test_a_paused_channel_saves_no_time(threads):
    world = FakeWorld(threads, for_s=10.0)
    resumes_at = START_S + 5.0

    def start_all(scheduler: Scheduler) -> None:
        for n in range(3):
            world.channel(n, lambda _: 0.010)(scheduler)
        world.channel(3, lambda _: 0.010, num_steps=10)(scheduler)
        world.time.plan(resumes_at, lambda: world.channel(4, lambda _: 0.010)(scheduler))
        world.time.plan(resumes_at, lambda: scheduler.begin(3, 1, 0, 0))

    world.run([start_all])
    resumed = [started for channel_id, started, _ in world.made if channel_id == 3 and started >= resumes_at]
    assert len(resumed) == 10
    assert resumed[-1] - resumes_at >= 0.7 * 10 * 0.010 * 5 / threads  # in turns with the four others


class TestAConsumerThatNeverReads:
    CREDIT = 8

    @pytest.mark.parametrize("threads", [1, 2])
    def test_it_uses_its_credit_and_then_no_time(self, threads):
        def run(is_there: bool) -> tuple[dict[int, int], list[int]]:
            world, runnable = FakeWorld(threads, for_s=4.0), []

            def start_all(scheduler: Scheduler) -> None:
                if is_there:
                    world.channel(8, lambda _: 0.010, credit=self.CREDIT)(scheduler)
                for n, cost_s in enumerate(COSTS_S[:7]):
                    world.channel(n, lambda _, c=cost_s: c)(scheduler)
                for at_s in (2.0, 3.0, 4.0):
                    world.time.plan(START_S + at_s, lambda: runnable.append(int(scheduler.totals["num_runnable"])))

            world.run([start_all])
            return world.num_made(), runnable

        (alone, looked_at_alone), (beside, looked_at_beside) = run(is_there=False), run(is_there=True)
        assert beside.pop(8) == self.CREDIT
        assert looked_at_alone == looked_at_beside == [7, 7, 7]
        assert sum(beside.values()) >= 0.95 * sum(alone.values())
        assert all(beside[n] >= 0.95 * alone[n] - 1 for n in range(7))

    @pytest.mark.bench
    def test_it_does_not_slow_other_channels(self):
        """In real time: rounds with and without it alternate, and the best of each kind are compared."""

        def num_fetched(is_there: bool) -> int:
            with scheduling(threads=2) as scheduler:
                if is_there:
                    add(scheduler, 8, lambda epoch, step: time.sleep(0.002), num_steps=ENDLESS, credit=self.CREDIT)
                    scheduler.begin(8, 0, 0, 0)
                    settle(scheduler)
                for n in range(3):
                    add(scheduler, n, lambda epoch, step: time.sleep(0.002), num_steps=ENDLESS)
                    scheduler.begin(n, 0, 0, 0)
                ends = time.monotonic() + 1.0

                def consume(n: int) -> int:
                    count = 0
                    while time.monotonic() < ends:
                        fetch(scheduler, n)
                        count += 1
                    return count

                consumers = [Call(lambda n=n: consume(n)) for n in range(3)]
                return sum(one.result() for one in consumers)

        rounds = [(num_fetched(is_there=False), num_fetched(is_there=True)) for _ in range(5)]
        alone, beside = (max(one) for one in zip(*rounds, strict=True))
        assert beside >= 0.95 * alone
