"""Checks that hundreds of channels that came and went leave nothing behind."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import psutil
import pytest

from hopstream.errors import RemoteError
from tests.stream.fakes import add, fetch, no_work, scheduling, settle

NUM_WARM = 40
"""Cycles after which all permanent memory is allocated."""
NUM_CYCLES = 200
MAX_GROWTH_BYTES = 64 << 10
"""Far less than one leaked byte per message would add up to."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def check_flat(cycle: Callable[[int], None]) -> None:
    """Run many cycles; compare threads, files and memory after the first few and at the end."""
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
