"""Checks that the scheduler gives every consumer its batches, whatever consumers and batches do."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import count
from typing import Any

import numpy as np
import pytest

from hopstream.buffers import SMALL_BYTES, BufferPool
from hopstream.errors import (
    ChannelLost,
    HopstreamError,
    NoRoomError,
    RemoteError,
    ServerBusy,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.stream.channel import SampledChannel, Share
from hopstream.stream.scheduler import FORGET_S, MAX_CALLS, MAX_OVERTAKEN, Scheduler
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.messages import Frame
from tests.stream.fakes import (
    DEADLINE_S,
    FETCH_S,
    MESSAGE_BYTES,
    Call,
    FakeJob,
    Gate,
    HandClock,
    add,
    batch_of,
    fetch,
    no_work,
    scheduling,
    settle,
    take,
    until,
    wait_until_waiting,
)


def waiting_in(scheduler: Scheduler, channel_id: int) -> int:
    """Waiting batches of a channel, once all threads are idle."""
    settle(scheduler)
    waiting = scheduler.describe(channel_id)[0]["num_waiting"]
    assert isinstance(waiting, int)
    return waiting


class TestFetching:
    def test_batches_are_in_order_up_to_the_end(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=5)
            scheduler.begin(1, 0, 3, 0)
            assert [fetch(scheduler, 1) for _ in range(5)] == [(3, step) for step in range(5)]
            assert fetch(scheduler, 1) is None
            assert fetch(scheduler, 1) is None

    def test_only_batches_of_the_share_are_sent_unrequested(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=8, first=1, stride=3)
            scheduler.begin(1, 0, 0, 2)
            assert [fetch(scheduler, 1) for _ in range(3)] == [(0, 4), (0, 7), None]

    def test_any_batch_of_the_epoch_can_be_requested(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=8, first=1, stride=3)
            scheduler.begin(1, 0, 0, 0)
            assert [fetch(scheduler, 1, step) for step in (6, 0, 7, 3)] == [(0, 6), (0, 0), (0, 7), (0, 3)]

    def test_a_batch_that_was_fetched_is_made_again(self):
        made = []
        with scheduling() as scheduler:
            add(scheduler, 1, lambda *batch: made.append(batch), num_steps=2)
            scheduler.begin(1, 0, 0, 0)
            settle(scheduler)
            assert [fetch(scheduler, 1, 1) for _ in range(3)] == [(0, 1)] * 3
            assert sorted(made) == [(0, 0), (0, 1), (0, 1), (0, 1)]

    def test_each_batch_is_made_once_where_each_is_fetched_once(self):
        made = []
        with scheduling(threads=2) as scheduler:
            add(scheduler, 1, lambda *batch: made.append(batch), num_steps=40, credit=3)
            scheduler.begin(1, 0, 0, 0)
            for step in [*range(20, 40), *range(20)]:
                assert fetch(scheduler, 1, step) == (0, step)
            assert sorted(made) == [(0, step) for step in range(40)]

    def test_fetching_by_number_does_not_move_the_cursor(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=3)
            scheduler.begin(1, 0, 0, 0)
            assert fetch(scheduler, 1) == (0, 0)
            assert fetch(scheduler, 1, 1) == (0, 1)
            assert [fetch(scheduler, 1) for _ in range(3)] == [(0, 1), (0, 2), None]

    def test_concurrent_callers_share_the_next_batches(self):
        with scheduling(threads=2) as scheduler:
            add(scheduler, 1, num_steps=200, credit=2)
            scheduler.begin(1, 0, 0, 0)

            def consume() -> list[tuple[int, int]]:
                return list(iter(lambda: fetch(scheduler, 1), None))

            consumers = [Call(consume) for _ in range(4)]
            assert sorted(batch for one in consumers for batch in one.result()) == [(0, step) for step in range(200)]

    def test_callers_that_wait_for_one_batch_all_get_it(self):
        gate = Gate()
        with scheduling() as scheduler:
            channel = add(scheduler, 1, gate, num_steps=2)
            scheduler.begin(1, 0, 0, 0)
            consumers = [Call(lambda: fetch(scheduler, 1, 1)) for _ in range(3)]
            wait_until_waiting(channel, 3)
            gate.open()
            assert [one.result() for one in consumers] == [(0, 1)] * 3

    def test_zero_batches_end_at_once(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=0)
            scheduler.begin(1, 0, 0, 0)
            assert fetch(scheduler, 1) is None
            assert scheduler.is_epoch_done(1, 0)

    def test_a_batch_that_timed_out_is_still_made(self):
        gate = Gate()
        with scheduling() as scheduler:
            add(scheduler, 1, gate, num_steps=2)
            scheduler.begin(1, 0, 0, 0)
            with pytest.raises(StoreTimeout, match=r"batch 1 of epoch 0 was not ready in 0\.01 s"):
                take(scheduler, 1, 1, 0.01)
            gate.open()
            assert fetch(scheduler, 1, 1) == (0, 1)

    def test_no_epoch_was_started(self):
        with scheduling() as scheduler:
            add(scheduler, 1)
            with pytest.raises(StateError, match="call start_new_epoch_sampling first"):
                fetch(scheduler, 1)

    @pytest.mark.parametrize("step", [10, 11, 1 << 40])
    def test_fetching_after_the_last_batch_returns_the_end(self, step):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=10)
            scheduler.begin(1, 0, 0, 0)
            assert fetch(scheduler, 1, step) is None

    def test_an_unknown_channel_is_refused(self):
        with scheduling(lease_s=7) as scheduler:
            for call in (
                lambda: scheduler.begin(5, 0, 0, 0),
                lambda: fetch(scheduler, 5),
                lambda: scheduler.is_epoch_done(5, 0),
                lambda: scheduler.describe(5),
            ):
                with pytest.raises(
                    ChannelLost, match=r"channel 5 does not exist: .* its lease of 7 s expired, .* register"
                ):
                    call()


class TestEpochs:
    def test_an_iteration_that_is_not_later_is_ignored(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=4)
            scheduler.begin(1, 2, 5, 0)
            assert fetch(scheduler, 1) == (5, 0)
            for turn, epoch in ((2, 5), (2, 4), (1, 9), (0, 0)):
                scheduler.begin(1, turn, epoch, 0)
            assert [fetch(scheduler, 1) for _ in range(4)] == [(5, 1), (5, 2), (5, 3), None]

    def test_a_later_iteration_may_go_back_to_an_earlier_epoch(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=4)
            scheduler.begin(1, 0, 5, 0)
            assert fetch(scheduler, 1) == (5, 0)
            scheduler.begin(1, 1, 2, 3)
            assert [fetch(scheduler, 1) for _ in range(2)] == [(2, 3), None]

    def test_a_batch_of_the_previous_epoch_is_discarded(self):
        """Also if the client does not number its iterations."""
        gates = [Gate(), Gate()]
        with scheduling() as scheduler:
            channel = add(scheduler, 1, lambda epoch, step: gates[epoch](epoch, step), num_steps=4)
            scheduler.begin(1, 0, 0, 0)
            gates[0].wait_reached()
            scheduler.begin(1, 0, 1, 0)
            gates[0].open()
            gates[1].wait_reached()
            assert not channel.done
            gates[1].open()
            assert [fetch(scheduler, 1) for _ in range(5)] == [(1, 0), (1, 1), (1, 2), (1, 3), None]

    def test_waiters_for_the_previous_epoch_get_an_error(self):
        gate = Gate()
        with scheduling() as scheduler:
            channel = add(scheduler, 1, gate, num_steps=4)
            scheduler.begin(1, 0, 0, 0)
            consumer = Call(lambda: fetch(scheduler, 1))
            wait_until_waiting(channel)
            scheduler.begin(1, 0, 1, 0)
            with pytest.raises(
                ChannelLost, match=r"waited for a batch of iteration 0, epoch 0; .* iteration 0, epoch 1"
            ):
                consumer.result()
            gate.open()

    @pytest.mark.parametrize("step", [None, 2])
    @pytest.mark.parametrize("num_steps", [0, 4])
    def test_calls_for_another_iteration_are_refused(self, step, num_steps):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=num_steps)
            scheduler.begin(1, 3, 0, 0)
            for turn, error in ((2, ChannelLost), (4, StateError)):
                with pytest.raises(error, match=rf"of iteration {turn}, epoch 0, was requested; .* at iteration 3"):
                    fetch(scheduler, 1, step, turn)

    def test_an_epoch_is_done_when_its_share_was_made(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=6, credit=2)
            assert not scheduler.is_epoch_done(1, 0)
            scheduler.begin(1, 0, 1, 0)
            assert scheduler.is_epoch_done(1, 0)  # a later one began
            for step in range(6):
                assert not scheduler.is_epoch_done(1, 1) or step >= 4
                fetch(scheduler, 1)
            settle(scheduler)
            assert scheduler.is_epoch_done(1, 1)
            assert not scheduler.is_epoch_done(1, 2)


class TestCredit:
    def test_an_unread_channel_stops_at_its_credit(self):
        with scheduling(threads=2) as scheduler:
            add(scheduler, 1, num_steps=100, credit=3)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 3
            assert fetch(scheduler, 1) == (0, 0)
            assert waiting_in(scheduler, 1) == 3
            assert scheduler.describe(1)[0]["num_made"] == 4

    def test_a_channel_at_its_credit_is_not_runnable(self):
        with scheduling() as scheduler:
            for channel_id in range(50):
                add(scheduler, channel_id, num_steps=100, credit=1)
                scheduler.begin(channel_id, 0, 0, 0)
            totals = settle(scheduler)
            assert (totals["num_channels"], totals["num_runnable"], totals["num_waiting"]) == (50, 0, 50)

    def test_requested_batches_exceed_the_credit(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=100, credit=2)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 2
            assert fetch(scheduler, 1, 50) == (0, 50)
            assert waiting_in(scheduler, 1) == 2


class TestGroups:
    def test_batches_are_made_together_once_some_were_fetched(self, monkeypatch: pytest.MonkeyPatch):
        groups: list[list[int]] = []
        together = FakeJob.together
        monkeypatch.setattr(FakeJob, "together", lambda *asked: groups.append(asked[2]) or together(*asked))
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=17, credit=8, group=4)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 8
            assert not groups, "the first batches do not wait for each other"
            for step in range(17):
                assert fetch(scheduler, 1) == (0, step)
                settle(scheduler)
            assert fetch(scheduler, 1) is None
            assert scheduler.describe(1)[0]["num_made"] == 17
        assert groups == [[8, 9, 10, 11], [12, 13, 14, 15]]

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize(
        "error", [ZeroDivisionError("by nothing"), ServerBusy("by nothing"), SystemExit("by nothing")]
    )
    def test_a_failing_batch_of_a_group_fails_alone(self, threads: int, error: BaseException):
        is_own = isinstance(error, HopstreamError)
        kind, told = (type(error), "by nothing") if is_own else (RemoteError, f"{type(error).__name__}: by nothing")
        tried: list[int] = []

        def fail_once_more(epoch: int, step: int) -> None:
            tried.append(step)
            if step == 9:
                raise error

        with scheduling(threads=threads) as scheduler:
            add(scheduler, 1, fail_once_more, num_steps=12, credit=8, group=4)
            scheduler.begin(1, 0, 0, 0)
            for step in range(12):
                settle(scheduler)
                if step == 9:
                    with pytest.raises(kind, match=told):
                        fetch(scheduler, 1)
                else:
                    assert fetch(scheduler, 1) == (0, step)
            assert scheduler.describe(1)[0]["num_failed"] == 1
        assert tried[8:] == [8, 9, 8, 9, 10, 11], "together up to the failure, then one by one"

    def test_an_unreachable_server_fails_the_whole_group_at_once(self):
        def wait_in_vain(epoch: int, step: int) -> None:
            if step >= 8:
                tried.append(step)
                raise StoreTimeout("no answer")

        tried: list[int] = []
        with scheduling() as scheduler:
            add(scheduler, 1, wait_in_vain, num_steps=12, credit=8, group=4)
            scheduler.begin(1, 0, 0, 0)
            for step in range(12):
                settle(scheduler)
                if step >= 8:
                    with pytest.raises(StoreTimeout, match="no answer"):
                        fetch(scheduler, 1)
                else:
                    assert fetch(scheduler, 1) == (0, step)
        assert tried == [8]

    def test_a_group_fits_the_memory_for_batches(self, monkeypatch: pytest.MonkeyPatch):
        groups: list[tuple[list[int], int]] = []
        together = FakeJob.together
        with scheduling(memory_bytes=64 << 20) as scheduler:

            def watched(job: FakeJob, epoch: int, steps: list[int]) -> Any:
                with scheduler._lock:
                    groups.append((steps, scheduler._making_bytes))
                return together(job, epoch, steps)

            monkeypatch.setattr(FakeJob, "together", watched)
            limit = scheduler._limits.batch_bytes
            assert limit is not None
            channel = add(scheduler, 1, num_steps=40, credit=16, group=4)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 16
            with scheduler._lock:
                channel.batch_bytes = limit // 5
            for step in range(20):
                assert fetch(scheduler, 1) == (0, step)
                settle(scheduler)
        assert groups and {len(steps) for steps, _ in groups} == {2}
        assert all(num_bytes >= len(steps) * (limit // 5) for steps, num_bytes in groups)


class TestSkipping:
    """Batches that a consumer got from other servers are not kept for it."""

    def test_batches_below_lowest_are_dropped_and_the_share_skips_ahead(self):
        made: list[int] = []
        with scheduling() as scheduler:
            add(scheduler, 1, lambda _, step: made.append(step), num_steps=100, stride=2, credit=3)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 3
            assert fetch(scheduler, 1, 40, lowest=37) == (0, 40)
            assert waiting_in(scheduler, 1) == 3
            assert made[:3] == [0, 2, 4]
            assert sorted(made[3:]) == [38, 40, 42, 44]
            assert scheduler.totals["num_buffered_bytes"] == 3 * MESSAGE_BYTES

    def test_batches_from_lowest_on_are_kept(self):
        made: list[int] = []
        with scheduling() as scheduler:
            add(scheduler, 1, lambda _, step: made.append(step), num_steps=6, credit=6)
            scheduler.begin(1, 0, 0, 0)
            assert waiting_in(scheduler, 1) == 6
            assert [fetch(scheduler, 1, step, lowest=3) for step in (5, 4, 3)] == [(0, 5), (0, 4), (0, 3)]
            assert made == [0, 1, 2, 3, 4, 5]
            assert waiting_in(scheduler, 1) == 0

    def test_a_requested_batch_below_lowest_is_still_made(self):
        with scheduling() as scheduler:
            add(scheduler, 1, num_steps=20, credit=2)
            scheduler.begin(1, 0, 0, 0)
            assert fetch(scheduler, 1, 9, lowest=9) == (0, 9)
            assert fetch(scheduler, 1, 1) == (0, 1)
            assert fetch(scheduler, 1, 2, lowest=15) == (0, 2)  # a consumer that asks for it does not have it
            assert fetch(scheduler, 1, 10, lowest=10) == (0, 10)

    def test_prefetch_starts_after_lowest(self):
        with scheduling() as scheduler:
            channel = add(scheduler, 1, num_steps=30, first=1, stride=3, credit=2)
            scheduler.begin(1, 0, 0, 0)
            assert fetch(scheduler, 1, 10, lowest=8) == (0, 10)
            settle(scheduler)
            assert sorted(channel.done) == [13, 16]

    def test_a_batch_in_progress_below_lowest_is_dropped(self):
        gate = Gate()
        with scheduling() as scheduler:
            add(scheduler, 1, lambda epoch, step: step or gate(epoch, step), num_steps=50, credit=1)
            scheduler.begin(1, 0, 0, 0)
            gate.wait_reached()
            consumer = Call(lambda: fetch(scheduler, 1, 20, lowest=20))
            gate.open()
            assert consumer.result() == (0, 20)
            settle(scheduler)
            assert fetch(scheduler, 1, 21, lowest=21) == (0, 21)
            settle(scheduler)
            assert list(scheduler._channels[1].done) == [22]

    def test_other_channels_use_the_space_of_dropped_batches(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            for channel_id in (1, 2):
                add(scheduler, channel_id, num_steps=9, credit=8)
                scheduler.begin(channel_id, 0, 0, 0)
                settle(scheduler)
            assert [waiting_in(scheduler, channel_id) for channel_id in (1, 2)] == [3, 1]
            assert fetch(scheduler, 1, 8, lowest=9) == (0, 8)
            assert [waiting_in(scheduler, channel_id) for channel_id in (1, 2)] == [0, 3]


class TestLookups:
    def test_repeated_requests_count_one_hit_or_miss(self):
        gate = Gate()
        with scheduling() as scheduler:
            add(scheduler, 1, lambda epoch, step: step < 2 or gate(epoch, step), num_steps=4, credit=4)
            scheduler.begin(1, 0, 0, 0)
            gate.wait_reached()
            assert [fetch(scheduler, 1) for _ in range(2)] == [(0, 0), (0, 1)]
            assert scheduler.lookups == (2, 0)
            for _ in range(3):
                with pytest.raises(StoreTimeout):
                    take(scheduler, 1, 2, 0.0)
            gate.open()
            settle(scheduler)
            assert [fetch(scheduler, 1, step) for step in (2, 3)] == [(0, 2), (0, 3)]
            assert scheduler.lookups == (3, 1)
            assert [fetch(scheduler, 1, step) for step in (3, 3)] == [(0, 3), (0, 3)]
            assert scheduler.lookups == (3, 3)
            assert not scheduler._channels[1].late


class TestBufferBytes:
    def test_channels_stop_hoarding_and_keep_one_batch_each(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            for channel_id in (1, 2, 3):
                add(scheduler, channel_id, num_steps=9, credit=8)
                scheduler.begin(channel_id, 0, 0, 0)
                settle(scheduler)
            # The first one stops when more than two wait; the others begin when it is so.
            assert [waiting_in(scheduler, channel_id) for channel_id in (1, 2, 3)] == [3, 1, 1]
            assert scheduler.totals["num_buffered_bytes"] == 5 * MESSAGE_BYTES
            assert [fetch(scheduler, 2) for _ in range(10)] == [*((0, step) for step in range(9)), None]
            assert [waiting_in(scheduler, channel_id) for channel_id in (1, 2, 3)] == [3, 0, 1]

    def test_channels_about_to_hoard_stop_too(self):
        """A channel that was ready at the last check is no longer so when its turn comes."""
        gate = Gate()
        with scheduling(buffer_bytes=0) as scheduler:
            add(scheduler, 9, gate, num_steps=1)
            scheduler.begin(9, 0, 0, 0)
            gate.wait_reached()
            for channel_id in (1, 2, 3):
                add(scheduler, channel_id, num_steps=9, credit=8)
                scheduler.begin(channel_id, 0, 0, 0)
            gate.open()
            assert [waiting_in(scheduler, channel_id) for channel_id in (9, 1, 2, 3)] == [1, 1, 1, 1]

    def test_channels_resume_when_another_is_removed(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            self.crowd(scheduler)
            scheduler.remove(1)
            assert waiting_in(scheduler, 2) + waiting_in(scheduler, 3) == 3

    def test_channels_resume_when_an_epoch_ends(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            self.crowd(scheduler)
            scheduler.begin(1, 1, 0, 9)
            assert waiting_in(scheduler, 2) + waiting_in(scheduler, 3) == 3

    def test_channels_resume_when_abandoned_batches_are_discarded(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            add(scheduler, 1, num_steps=9, first=9)
            scheduler.begin(1, 0, 0, 0)
            for step in range(6):
                with suppress(StoreTimeout):
                    take(scheduler, 1, step, 0)
            add(scheduler, 2, num_steps=9)
            scheduler.begin(2, 0, 0, 0)
            assert (waiting_in(scheduler, 1), waiting_in(scheduler, 2)) == (1, 2)

    def test_batches_that_have_not_left_the_server_count(self):
        with scheduling(buffer_bytes=MESSAGE_BYTES) as scheduler:
            add(scheduler, 1, num_steps=1)
            scheduler.begin(1, 0, 0, 0)
            add(scheduler, 2, num_steps=9)
            with scheduler.fetched(1, 0, FETCH_S), scheduler.fetched(1, 0, FETCH_S):
                assert scheduler.totals["num_sending_bytes"] == 2 * MESSAGE_BYTES
                scheduler.begin(2, 0, 0, 0)
                assert waiting_in(scheduler, 2) == 1
            assert waiting_in(scheduler, 2) == 2
            assert scheduler.totals["num_sending_bytes"] == 0

    def test_only_so_many_calls_may_leave_their_batches_unread(self):
        with scheduling() as scheduler, ExitStack() as unread:
            add(scheduler, 1, num_steps=MAX_CALLS + 1)
            scheduler.begin(1, 0, 0, 0)
            for step in range(MAX_CALLS):
                unread.enter_context(scheduler.fetched(1, step, FETCH_S))
            with pytest.raises(SettingsError, match="whose answers have not been read"):
                take(scheduler, 1, MAX_CALLS, FETCH_S)
            unread.close()
            assert fetch(scheduler, 1, MAX_CALLS) == (0, MAX_CALLS)

    def test_channels_resume_when_batches_are_fetched(self):
        with scheduling(buffer_bytes=2 * MESSAGE_BYTES) as scheduler:
            self.crowd(scheduler)
            assert [fetch(scheduler, 1) for _ in range(10)] == [*((0, step) for step in range(9)), None]
            assert waiting_in(scheduler, 2) + waiting_in(scheduler, 3) == 3

    def test_unfetched_requested_batches_are_bounded(self):
        """A client that requests every batch without waiting gets its credit at most, and can ask again."""
        with scheduling(buffer_bytes=4 * MESSAGE_BYTES) as scheduler:
            add(scheduler, 1, num_steps=60, credit=2)
            scheduler.begin(1, 0, 0, 0)
            for _ in range(3):
                for step in range(60):
                    with pytest.raises(StoreTimeout):
                        while True:  # until it must be made again
                            take(scheduler, 1, step, 0)
                settle(scheduler)
                assert scheduler.totals["num_buffered_bytes"] <= 5 * MESSAGE_BYTES
            assert [fetch(scheduler, 1, step) for step in range(60)] == [(0, step) for step in range(60)]

    def crowd(self, scheduler: Scheduler) -> None:
        """Three channels; the first takes all the room."""
        for channel_id in (1, 2, 3):
            add(scheduler, channel_id, num_steps=9, credit=8)
            scheduler.begin(channel_id, 0, 0, 0)
            settle(scheduler)
        assert [waiting_in(scheduler, channel_id) for channel_id in (1, 2, 3)] == [3, 1, 1]


class Failing:
    """Work that fails for the first few times."""

    def __init__(self, num_failures: int, error: BaseException) -> None:
        self.num_left = num_failures
        self._error = error

    def __call__(self, epoch: int, step: int) -> None:
        if step == 2 and self.num_left:
            self.num_left -= 1
            raise self._error


class Unspeakable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no words")


class TestFailures:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_the_caller_gets_the_error_and_other_batches_continue(self, threads):
        with scheduling(threads=threads) as scheduler:
            add(scheduler, 1, Failing(1, ZeroDivisionError("by nothing")), num_steps=4)
            add(scheduler, 2, num_steps=4)
            for channel_id in (1, 2):
                scheduler.begin(channel_id, 0, 0, 0)
            assert [fetch(scheduler, 1) for _ in range(2)] == [(0, 0), (0, 1)]
            with pytest.raises(RemoteError, match="ZeroDivisionError: by nothing") as told:
                fetch(scheduler, 1)
            assert "in __call__" in str(told.value)  # the server's traceback
            assert "while batch 2 of epoch 0 was made on a server (pretending)" in str(told.value)
            assert fetch(scheduler, 1) == (0, 3)
            assert fetch(scheduler, 1, 2) == (0, 2)
            assert [fetch(scheduler, 2) for _ in range(5)] == [*((0, step) for step in range(4)), None]
            assert [one["num_failed"] for one in scheduler.describe()] == [1, 0]

    def test_the_same_batch_may_fail_again(self):
        with scheduling() as scheduler:
            add(scheduler, 1, Failing(3, MemoryError()), num_steps=4)
            scheduler.begin(1, 0, 0, 0)
            for _ in range(3):
                with pytest.raises(RemoteError, match="MemoryError"):
                    fetch(scheduler, 1, 2)
            assert fetch(scheduler, 1, 2) == (0, 2)

    def test_errors_of_the_client_keep_their_class(self):
        with scheduling() as scheduler:
            add(scheduler, 1, Failing(1, SettingsError("no such seeds")), num_steps=4)
            scheduler.begin(1, 0, 0, 0)
            with pytest.raises(SettingsError, match="no such seeds"):
                fetch(scheduler, 1, 2)

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Unspeakable()], ids=repr)
    def test_no_error_ends_a_thread(self, error):
        with scheduling() as scheduler:
            add(scheduler, 1, Failing(1, error), num_steps=4)
            scheduler.begin(1, 0, 0, 0)
            with pytest.raises(RemoteError, match=type(error).__name__):
                fetch(scheduler, 1, 2)
            assert fetch(scheduler, 1, 2) == (0, 2)

    def test_a_job_that_fails_to_start_is_retried(self):
        attempts = []

        def new_job() -> FakeJob:
            attempts.append(0)
            if len(attempts) < 3:
                raise KeyboardInterrupt("not now")
            return FakeJob(lambda epoch, step: None)

        with scheduling() as scheduler:
            scheduler.add(1, 1, "rank 1", Share(first=0, stride=1, num_steps=3), credit=1, new_job=new_job)
            scheduler.begin(1, 0, 0, 0)
            for _ in range(2):
                with pytest.raises(RemoteError, match="KeyboardInterrupt: not now") as told:
                    fetch(scheduler, 1, 0)
                assert "while batch 0 of epoch 0 was made on a server" in str(told.value)
            assert fetch(scheduler, 1, 0) == (0, 0)

    def test_a_job_that_failed_is_not_used_again(self):
        jobs = []
        failing = Failing(1, ZeroDivisionError())

        def new_job() -> FakeJob:
            jobs.append(FakeJob(failing))
            return jobs[-1]

        with scheduling() as scheduler:
            scheduler.add(1, 1, "rank 1", Share(first=0, stride=1, num_steps=9), credit=9, new_job=new_job)
            scheduler.begin(1, 0, 0, 0)
            settle(scheduler)
            assert len(jobs) == 2  # one up to the failure, one from there on


class TestRemoving:
    def test_removal_wakes_waiters_at_once(self):
        gate = Gate()
        with scheduling() as scheduler:
            channel = add(scheduler, 1, gate)
            scheduler.begin(1, 0, 0, 0)
            gate.wait_reached()
            consumers = [Call(lambda step=step: fetch(scheduler, 1, step)) for step in (None, 0, 5)]
            wait_until_waiting(channel, 3)
            assert scheduler.remove(1) is channel
            for consumer in consumers:
                with pytest.raises(ChannelLost, match="channel 1 was destroyed while a call waited for batch"):
                    consumer.result()  # while the batch is still being made
            gate.open()

    def test_batches_under_way_are_discarded(self):
        gate = Gate()
        with scheduling() as scheduler:
            channel = add(scheduler, 1, gate)
            scheduler.begin(1, 0, 0, 0)
            gate.wait_reached()
            scheduler.remove(1)
            gate.open()
            add(scheduler, 2)
            scheduler.begin(2, 0, 0, 0)
            assert fetch(scheduler, 2) == (0, 0)  # so the thread is done with the other
            assert not channel.done
            assert not channel.idle_jobs

    def test_bytes_return_to_zero(self):
        with scheduling(threads=2) as scheduler:
            for channel_id in range(4):
                add(scheduler, channel_id, num_steps=9, credit=channel_id + 1)
                scheduler.begin(channel_id, 0, 0, 0)
            assert settle(scheduler)["num_buffered_bytes"] == 10 * MESSAGE_BYTES
            for channel_id in range(4):
                scheduler.remove(channel_id)
            totals = settle(scheduler)
            assert (totals["num_channels"], totals["num_waiting"], totals["num_buffered_bytes"]) == (0, 0, 0)

    def test_removing_is_idempotent(self):
        with scheduling() as scheduler:
            add(scheduler, 1)
            assert scheduler.remove(1) is not None
            assert scheduler.remove(1) is None
            assert scheduler.remove(77) is None


class TestLeases:
    def test_an_unused_channel_expires(self):
        clock, expired, told = HandClock(), [], threading.Event()

        def on_expired(channel: SampledChannel) -> None:
            expired.append(channel.channel_id)
            told.set()

        with scheduling(clock, lease_s=0.04) as scheduler:
            scheduler.on_expired = on_expired
            for channel_id in (1, 2, 3):
                add(scheduler, channel_id)
                scheduler.begin(channel_id, 0, 0, 0)
            clock.now += 0.03
            fetch(scheduler, 2)
            scheduler.begin(3, 0, 0, 0)  # a repeated one is a sign of life too
            clock.wait_watched()
            assert not expired
            clock.now += 0.03
            assert told.wait(DEADLINE_S)
            clock.wait_watched()
            assert expired == [1]
            assert scheduler.totals["num_expired"] == 1
            with pytest.raises(ChannelLost, match=r"its lease of 0\.04 s expired"):
                fetch(scheduler, 1)
            assert fetch(scheduler, 2) == (0, 1)

    def test_describing_all_channels_does_not_renew_leases(self):
        clock = HandClock()
        with scheduling(clock, lease_s=0.04) as scheduler:
            add(scheduler, 1)
            clock.now += 0.1
            scheduler.describe()
            clock.wait_watched()
            assert scheduler.totals["num_channels"] == 0

    def test_a_channel_with_a_waiter_does_not_expire(self):
        clock, gate = HandClock(), Gate()
        with scheduling(clock, lease_s=0.04) as scheduler:
            channel = add(scheduler, 1, gate)
            scheduler.begin(1, 0, 0, 0)
            consumer = Call(lambda: fetch(scheduler, 1))
            wait_until_waiting(channel)
            clock.now += 100
            clock.wait_watched()
            gate.open()
            assert consumer.result() == (0, 0)
            clock.wait_watched()
            assert fetch(scheduler, 1) == (0, 1)  # the wait itself was a sign of life


class TestSlowBatches:
    def test_each_slow_batch_is_reported_once(self, caplog):
        clock, gate = HandClock(), Gate()
        caplog.set_level(logging.WARNING, "hopstream.stream.scheduler")
        with scheduling(clock, slow_s=0.05) as scheduler:
            add(scheduler, 1, gate)
            scheduler.begin(1, 0, 0, 6)
            gate.wait_reached()
            clock.wait_watched()
            assert not caplog.messages
            clock.now += 0.06
            clock.wait_watched(6)
            clock.now += 10
            clock.wait_watched(6)
            assert caplog.messages == [
                "batch 6 of epoch 0 of channel 1 (NeighborLoader, rank 1) is not done after 0.05 s; "
                "its stage: pretending"
            ]
            gate.open()
            assert fetch(scheduler, 1) == (0, 6)

    @pytest.mark.parametrize("change", ["destroyed", "next epoch"])
    def test_slow_batches_no_longer_needed_are_reported_too(self, caplog, change):
        clock, gate = HandClock(), Gate()
        caplog.set_level(logging.WARNING, "hopstream.stream.scheduler")
        with scheduling(clock, slow_s=0.05) as scheduler:
            add(scheduler, 1, gate)
            scheduler.begin(1, 0, 0, 6)
            gate.wait_reached()
            if change == "destroyed":
                scheduler.remove(1)
            else:
                scheduler.begin(1, 0, 1, 0)
            clock.now += 0.06
            clock.wait_watched(6)
            told = "rank 1), which is not needed any more, is not done after 0.05 s; its stage: pretending"
            assert [told in message for message in caplog.messages] == [True]
            gate.open()
            add(scheduler, 2)
            scheduler.begin(2, 0, 0, 0)
            assert fetch(scheduler, 2) == (0, 0)
            settle(scheduler)
            assert not scheduler._claims


class TestListeners:
    def test_a_failing_listener_ends_no_sampling_thread(self, caplog):
        def fail(seconds: float) -> None:
            raise ZeroDivisionError(f"after {seconds >= 0}")

        with scheduling() as scheduler:
            scheduler.on_made = fail
            add(scheduler, 1, num_steps=3)
            scheduler.begin(1, 0, 0, 0)
            assert [fetch(scheduler, 1) for _ in range(4)] == [(0, 0), (0, 1), (0, 2), None]
        assert len(caplog.messages) == 3 and "after True" in caplog.text

    def test_a_failing_listener_does_not_end_the_watch_thread(self, caplog):
        clock, told = HandClock(), []

        def fail(channel: SampledChannel) -> None:
            told.append(channel.channel_id)
            raise ZeroDivisionError("at the end of a lease")

        with scheduling(clock, lease_s=0.04) as scheduler:
            scheduler.on_expired = fail
            for number in (1, 2):
                add(scheduler, number)
                clock.now += 0.1
                clock.wait_watched()
                assert told == list(range(1, number + 1))
        assert caplog.text.count("ZeroDivisionError: at the end of a lease") == 2


class TestLimits:
    def test_the_number_of_channels_is_limited(self):
        with scheduling(max_channels=2) as scheduler:
            add(scheduler, 1)
            add(scheduler, 2)
            with pytest.raises(StoreUnavailable, match=r"the server has 2 channels, .* \(--max-channels\)"):
                add(scheduler, 3)
            scheduler.remove(1)
            add(scheduler, 3)

    def test_describe_lists_facts_of_a_channel(self):
        clock = HandClock()
        with scheduling(clock, lease_s=1e6) as scheduler:
            add(scheduler, 1, num_steps=7, first=1, stride=2, credit=2)
            scheduler.begin(1, 0, 4, 0)
            fetch(scheduler, 1)
            settle(scheduler)
            clock.now += 5
            (known,) = scheduler.describe()
            wanted = {
                "channel": 1, "worker": "rank 1", "loader": "NeighborLoader", "epoch": 4, "num_steps": 7,
                "num_own_steps": 3, "is_epoch_done": True, "credit": 2, "num_in_flight": 0, "num_waiting": 2,
                "num_buffered_bytes": 2 * MESSAGE_BYTES, "num_made": 3, "num_failed": 0, "num_fetched": 1,
                "num_bytes": MESSAGE_BYTES, "sampling_s": 0.0, "idle_s": 5.0,
            }  # fmt: skip
            assert {name: known[name] for name in wanted} == wanted
            assert scheduler.describe(1)[0]["idle_s"] == 0.0


UNIT = 2 * SMALL_BYTES
"""Unit of message sizes in tests of memory."""
LIMIT = 10 * UNIT


class Memory:
    """A pool of ten units, and jobs that allocate from it; counts the attempts of each batch."""

    def __init__(self, limit_bytes: int = LIMIT + LIMIT // 4) -> None:  # blocks are an eighth larger than messages
        self.pool = BufferPool(0, limit_bytes)
        self.tries: list[tuple[int, int]] = []

    def job(self, channel_id: int, units: float, work: Callable[[int, int], None] = no_work) -> type:
        memory = self

        class Job:
            stage = "taking memory"

            def __call__(self, epoch: int, step: int) -> Frame:
                memory.tries.append((channel_id, step))
                array = memory.pool.take((int(units * UNIT),), np.uint8)
                work(epoch, step)
                return Frame({"batch": [epoch, step]}, [array])

        return Job

    def tried(self, channel_id: int) -> list[int]:
        return [step for one, step in self.tries if one == channel_id]


def bounded(**limits: Any) -> AbstractContextManager[Scheduler]:
    return scheduling(**{"memory_bytes": LIMIT * 8 // 5, "lease_s": 1000, **limits})


def add_of(scheduler: Scheduler, channel_id: int, job: type, num_steps: int = 100, **more: Any) -> SampledChannel:
    """A channel whose epoch has begun, and which makes nothing ahead unless ``first`` says so."""
    share = Share(first=more.pop("first", num_steps), stride=1, num_steps=num_steps)
    channel = scheduler.add(channel_id, 1, f"rank {channel_id}", share, credit=4, new_job=job, **more)
    scheduler.begin(channel_id, 0, 0, 0)
    return channel


class TestMemory:
    """With --memory-bytes, batches wait for memory and hold up no batch that has it."""

    def test_a_batch_waiting_for_memory_blocks_no_other(self):
        memory = Memory()
        with bounded(threads=2, clock=HandClock()) as scheduler:  # time stands still: none is held up for it
            add_of(scheduler, 1, memory.job(1, 6))
            add_of(scheduler, 2, memory.job(2, 1))
            waiting = add_of(scheduler, 3, memory.job(3, 6))
            with scheduler.fetched(1, 0, FETCH_S):
                call = Call(lambda: fetch(scheduler, 3, 7))
                wait_until_waiting(waiting)
                for step in range(3 * MAX_OVERTAKEN):
                    assert batch_of(take(scheduler, 2, step, DEADLINE_S)) == (0, step)
                assert not call.has_ended
                assert 1 <= len(memory.tried(3)) <= 4
                assert not waiting.done
            assert call.result() == (0, 7)
            assert len(memory.tried(3)) <= 5

    def test_a_batch_without_room_waits_until_memory_is_freed(self):
        memory = Memory()
        with bounded() as scheduler:
            add_of(scheduler, 1, memory.job(1, 6))
            waiting = add_of(scheduler, 2, memory.job(2, 6))
            with ExitStack() as reader:
                reader.enter_context(scheduler.fetched(1, 0, FETCH_S))
                call = Call(lambda: fetch(scheduler, 2, 0))
                until(lambda: waiting.needs_all)
                for _ in range(100):
                    with pytest.raises(StoreTimeout):
                        take(scheduler, 2, 0, 0)
                assert memory.tried(2) == [0]
                reader.close()
            assert call.result() == (0, 0)
            assert memory.tried(2) == [0, 0]
            assert not waiting.needs_all

    def test_a_large_batch_is_not_starved_by_small_ones(self):
        """Small batches would never leave it all the memory, unless the next ones waited for it."""
        memory = Memory()
        is_over = threading.Event()
        with bounded(threads=3) as scheduler:
            for channel_id in (1, 2, 3):
                add_of(scheduler, channel_id, memory.job(channel_id, 2, lambda *_: time.sleep(0.002)), 1 << 20)

            def read(channel_id: int) -> int:
                for step in count():
                    if is_over.is_set():
                        return step
                    assert fetch(scheduler, channel_id, step) == (0, step)
                raise AssertionError

            readers = [Call(lambda n=n: read(n)) for n in (1, 2, 3)]
            try:
                until(lambda: len(memory.tries) > 20)
                add_of(scheduler, 4, memory.job(4, 9.9))
                before = len(memory.tries)
                assert fetch(scheduler, 4, 0) == (0, 0)
                assert len(memory.tries) - before < 10 * MAX_OVERTAKEN
            finally:
                is_over.set()
            assert all(reader.result() > 0 for reader in readers)

    def test_a_failed_attempt_is_charged_to_its_channel(self):
        memory = Memory()
        with bounded() as scheduler:
            add_of(scheduler, 1, memory.job(1, 6))
            waiting = add_of(scheduler, 2, memory.job(2, 6))
            with scheduler.fetched(1, 0, FETCH_S):
                waiting.cost_s, waiting.virtual_s = 5.0, scheduler._clock_s
                before = waiting.virtual_s
                with pytest.raises(StoreTimeout):
                    take(scheduler, 2, 0, 0)
                until(lambda: waiting.needs_all)
                assert waiting.virtual_s >= before + 5.0
                assert not scheduler._claims and waiting.asked == {0: None}
                assert waiting.stats.num_made == 0

    def test_a_batch_that_never_fits_is_an_error_and_others_continue(self):
        memory = Memory()
        with bounded() as scheduler:
            add_of(scheduler, 1, memory.job(1, 20))
            add_of(scheduler, 2, memory.job(2, 1))
            with pytest.raises(
                SettingsError, match=rf"batch 3 .* the {LIMIT} bytes that --memory-bytes leaves .* 0 by"
            ):
                fetch(scheduler, 1, 3)
            # With others, alone, and alone once more: a removed channel may hold its memory for a moment.
            assert memory.tried(1) == [3, 3, 3]
            assert fetch(scheduler, 2, 0) == (0, 0)

    def test_a_recently_sent_message_does_not_fail_a_batch(self):
        memory = Memory()
        with bounded() as scheduler:
            held = [memory.pool.take((6 * UNIT,), np.uint8)]  # it is not counted
            waiting = add_of(scheduler, 1, memory.job(1, 9))
            call = Call(lambda: fetch(scheduler, 1, 0))
            until(lambda: waiting.needs_all)
            held.clear()
            assert call.result() == (0, 0)

    def test_two_batches_without_room_are_made_in_turn(self):
        memory, both = Memory(), threading.Barrier(2, timeout=DEADLINE_S)
        first = {1, 2}

        def job(channel_id: int) -> type:
            def meet(_: int, __: int) -> None:
                if channel_id in first:
                    first.discard(channel_id)
                    both.wait()
                    memory.pool.take((3 * UNIT,), np.uint8)  # of a batch's memory, the second half
                    raise NoRoomError("each has half of what it needs")

            return memory.job(channel_id, 4, meet)

        with bounded(threads=2) as scheduler:
            for channel_id in (1, 2):
                add_of(scheduler, channel_id, job(channel_id))
            calls = [Call(lambda n=n: fetch(scheduler, n, 0)) for n in (1, 2)]
            assert [call.result() for call in calls] == [(0, 0), (0, 0)]
            assert sorted(memory.tries) == [(1, 0), (1, 0), (2, 0), (2, 0)]

    def test_no_batch_starts_while_one_is_made_alone(self):
        memory, gate = Memory(), Gate()
        with bounded(threads=2) as scheduler:
            alone = add_of(scheduler, 1, memory.job(1, 1, gate))
            alone.needs_all = True
            small = add_of(scheduler, 2, memory.job(2, 1))
            calls = [Call(lambda: fetch(scheduler, 1, 0))]
            gate.wait_reached()
            calls.append(Call(lambda: fetch(scheduler, 2, 0)))
            wait_until_waiting(small)
            with scheduler._lock:
                assert small.asked and scheduler._next_channel() is None
            assert not memory.tried(2)
            gate.open()
            assert [call.result() for call in calls] == [(0, 0), (0, 0)]
            assert not alone.needs_all

    def test_prefetched_batches_are_evicted_and_made_again(self):
        memory = Memory()
        with bounded() as scheduler:
            ahead = add_of(scheduler, 1, memory.job(1, 2), num_steps=3, first=0)
            until(lambda: set(ahead.done) == {0, 1, 2})
            big = add_of(scheduler, 2, memory.job(2, 3))
            with scheduler.fetched(2, 0, FETCH_S):  # it is taken to need twice the largest: 4 of 10, and 6 wait
                assert set(ahead.done) == {0, 1, 2}
            with scheduler.fetched(2, 1, FETCH_S):  # now twice 3
                assert set(ahead.done) == {0, 1}, "what is needed last makes way, and no more than must"
            until(lambda: set(ahead.done) == {0, 1, 2})
            assert memory.tried(1) == [0, 1, 2, 2]
            assert [fetch(scheduler, 1, step) for step in range(3)] == [(0, step) for step in range(3)]
            assert big.batch_bytes == 3 * UNIT

    def test_idle_channels_do_not_evict_each_other(self):
        """Two channels, each with more than half of all memory, and no request."""
        memory = Memory()
        with bounded(threads=2) as scheduler:
            channels = [add_of(scheduler, n, memory.job(n, 6), first=0) for n in (1, 2)]
            until(lambda: any(channel.done for channel in channels) and not scheduler._claims)
            before = len(memory.tries)
            time.sleep(0.2)
            assert len(memory.tries) == before <= 3
            assert sorted(fetch(scheduler, n, 0) for n in (2, 1)) == [(0, 0), (0, 0)]

    def test_abandoned_requested_batches_are_evicted_eventually(self):
        clock, memory = HandClock(), Memory()
        with bounded(clock=clock) as scheduler:
            forgotten = add_of(scheduler, 1, memory.job(1, 6))
            with pytest.raises(StoreTimeout):
                take(scheduler, 1, 0, 0)
            until(lambda: forgotten.done)
            add_of(scheduler, 2, memory.job(2, 6))
            call = Call(lambda: fetch(scheduler, 2, 0))
            until(lambda: memory.tried(2))
            assert not call.has_ended and forgotten.done
            clock.now += FORGET_S + 1
            assert call.result() == (0, 0)
            assert not forgotten.done
            assert fetch(scheduler, 1, 0) == (0, 0)

    def test_inputs_have_their_share_of_memory(self):
        with bounded(memory_bytes=8000) as scheduler:
            job = Memory().job(0, 1)
            with pytest.raises(SettingsError, match=r"1001 bytes; all inputs may have 1000 \(--memory-bytes\)"):
                add_of(scheduler, 1, job, input_bytes=1001)
            add_of(scheduler, 1, job, input_bytes=600)
            with pytest.raises(ServerBusy, match="600 bytes of at most 1000"):
                add_of(scheduler, 2, job, input_bytes=401)
            add_of(scheduler, 3, job, input_bytes=400)
            scheduler.remove(1)
            add_of(scheduler, 2, job, input_bytes=401)


class TestClosing:
    def test_closing_ends_threads_wakes_waiters_and_lists_open_channels(self):
        gate = Gate()
        threads_before = set(threading.enumerate())
        scheduler = Scheduler(SamplingLimits(threads=2))
        channel = add(scheduler, 1, gate)
        add(scheduler, 2)
        scheduler.begin(1, 0, 0, 0)
        gate.wait_reached()
        consumer = Call(lambda: fetch(scheduler, 1))
        wait_until_waiting(channel)
        closing = Call(scheduler.close)
        with pytest.raises(ChannelLost):
            consumer.result()
        gate.open()
        assert [one["channel"] for one in closing.result()] == [1, 2]
        assert set(threading.enumerate()) == threads_before
        assert scheduler.totals["num_buffered_bytes"] == 0
        assert scheduler.close() == []
        with pytest.raises(StoreUnavailable, match="shutting down"):
            add(scheduler, 3)
        with pytest.raises(ChannelLost):
            scheduler.begin(1, 1, 0, 0)

    def test_closing_reports_a_batch_that_does_not_end(self):
        gate = Gate()
        scheduler = Scheduler(SamplingLimits(threads=1))
        add(scheduler, 1, gate)
        scheduler.begin(1, 0, 0, 0)
        gate.wait_reached()
        with pytest.raises(StoreTimeout, match=r"hopstream-sampling-0 did not end in 0\.01 s"):
            scheduler.close(0.01)
        gate.open()
        assert scheduler.close() == []


class Maker:
    """The job factory of a channel; it lives as long as the channel."""

    def __init__(self, jobs: list[weakref.ref[FakeJob]]) -> None:
        self._jobs = jobs

    def __call__(self) -> FakeJob:
        job = FakeJob(no_work)
        self._jobs.append(weakref.ref(job))
        return job


def test_channels_and_jobs_are_released():
    """Also by idle threads that last worked for them."""
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
