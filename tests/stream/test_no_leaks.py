"""Do hundreds of channels that came and went leave anything behind?"""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator

import psutil
import pytest

from hopstream.errors import RemoteError
from hopstream.stream.channel import Share
from tests.stream.fakes import FakeJob, add, fetch, no_work, scheduling, settle

NUM_WARM = 40
"""Cycles after which everything that is kept for good is there."""
NUM_CYCLES = 200
MAX_GROWTH_BYTES = 64 << 10
"""Far less than a single byte of each of the messages that pass would add up to."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def check_flat(cycle: Callable[[int], None]) -> None:
    """Go through many cycles, and compare threads, files and memory after the first few and in the end."""
    process = psutil.Process()
    for n in range(NUM_WARM):
        cycle(n)
    before = threading.active_count(), process.num_fds()
    bytes_before = traced_bytes()
    for n in range(NUM_WARM, NUM_WARM + NUM_CYCLES):
        cycle(n)
    assert threading.active_count() <= before[0]
    assert process.num_fds() <= before[1]
    assert traced_bytes() - bytes_before < MAX_GROWTH_BYTES


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_channels_leave_nothing():
    """One is read to its end, one is given up in mid-epoch, one fails, and one is never read."""

    def fail(epoch: int, step: int) -> None:
        raise ZeroDivisionError

    with scheduling(threads=2) as scheduler:

        def cycle(n: int) -> None:
            ids = range(4 * n, 4 * n + 4)
            for channel_id, work, num_steps in zip(ids, (no_work, no_work, fail, no_work), (6, 6, 1, 6), strict=True):
                add(scheduler, channel_id, work, num_steps=num_steps)
            for epoch in range(2):
                for channel_id in ids:
                    scheduler.begin(channel_id, 0, epoch, 0)
                assert [fetch(scheduler, ids[0]) for _ in range(7)][-1] is None
                assert fetch(scheduler, ids[1]) == (epoch, 0)
                with pytest.raises(RemoteError):
                    fetch(scheduler, ids[2])
            for channel_id in ids:
                scheduler.remove(channel_id)

        check_flat(cycle)
        totals = settle(scheduler)
        assert (totals["num_channels"], totals["num_buffered_bytes"]) == (0, 0)
        assert not scheduler._runnable
        assert not scheduler._claims
        assert not scheduler._reported


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_schedulers_leave_nothing():
    def cycle(n: int) -> None:
        with scheduling(threads=2) as scheduler:
            add(scheduler, n, num_steps=6)
            scheduler.begin(n, 0, 0, 0)
            fetch(scheduler, n)

    check_flat(cycle)


class Maker:
    """What a channel makes its jobs with; it lives as long as the channel."""

    def __init__(self, jobs: list[weakref.ref[FakeJob]]) -> None:
        self._jobs = jobs

    def __call__(self) -> FakeJob:
        job = FakeJob(no_work)
        self._jobs.append(weakref.ref(job))
        return job


def test_channels_and_jobs_are_let_go_of():
    """Also by threads that worked for them last and have nothing else to do."""
    makers: list[weakref.ref[Maker]] = []
    jobs: list[weakref.ref[FakeJob]] = []
    with scheduling(threads=2) as scheduler:
        for n in range(20):
            maker = Maker(jobs)
            makers.append(weakref.ref(maker))
            share = Share(first=0, stride=1, num_steps=50)
            scheduler.add(n, 1, f"rank {n}", share, credit=20, new_job=maker)
            del maker
            scheduler.begin(n, 0, 0, 0)
            fetch(scheduler, n)
        settle(scheduler)
        for n in range(20):
            scheduler.remove(n)
        gc.collect()
        assert len(jobs) >= 20
        assert not [one for one in (*makers, *jobs) if one() is not None]
