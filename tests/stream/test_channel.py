"""Examples of a channel's batches: their numbers, their order, and how many it makes ahead.

The cases are small enough to be read as an explanation.
"""

from __future__ import annotations

import threading
from itertools import product

import pytest

from hopstream.stream.channel import Made, SampledChannel, Share
from tests.stream.fakes import FakeJob, message_of, no_work


def new_channel(share: Share, credit: int = 100) -> SampledChannel:
    channel = SampledChannel(
        channel_id=7, backend_id=1, worker_key="rank 0", share=share, credit=credit,
        new_job=lambda: FakeJob(no_work), arrived=threading.Condition(),
    )  # fmt: skip
    begin(channel)
    return channel


def begin(channel: SampledChannel, turn: int = 0, epoch: int = 0, first_step: int = 0) -> None:
    with channel.arrived:
        channel.begin(turn, epoch, first_step)


def finish(channel: SampledChannel, step: int) -> None:
    channel.in_flight.discard(step)
    channel.done[step] = Made(message_of(channel.epoch, step))


def make_all(channel: SampledChannel) -> list[int]:
    """The batches that are made when nothing is ever fetched."""
    made = []
    while channel.has_work(may_hoard=True):
        made.append(channel.take_work())
        finish(channel, made[-1])
    return made


def steps_of(share: Share) -> list[int]:
    return list(range(share.first, share.num_steps, share.stride))


class TestShare:
    def test_the_second_of_three_servers_has_every_third_batch_from_the_second_on(self):
        share = Share(first=1, stride=3, num_steps=8)
        assert share.num_own == 3  # 1, 4 and 7
        assert [share.from_step(step) for step in range(9)] == [1, 1, 4, 4, 4, 7, 7, 7, 10]

    def test_a_single_server_has_every_batch(self):
        share = Share(first=0, stride=1, num_steps=4)
        assert share.num_own == 4
        assert [share.from_step(step) for step in range(5)] == [0, 1, 2, 3, 4]

    def test_an_epoch_may_be_too_short_for_a_server(self):
        assert Share(first=2, stride=3, num_steps=2).num_own == 0
        assert Share(first=0, stride=3, num_steps=0).num_own == 0

    def test_no_batch_before_the_first_is_in_the_share(self):
        share = Share(first=5, stride=2, num_steps=10)
        assert share.num_own == 3  # 5, 7 and 9
        assert share.from_step(0) == 5
        assert make_all(new_channel(share)) == [5, 7, 9]

    def test_all_shares_agree_with_a_count(self):
        for first, stride, num_steps in product(range(5), range(1, 4), range(9)):
            share = Share(first=first, stride=stride, num_steps=num_steps)
            own = steps_of(share)
            assert share.num_own == len(own)
            for step in range(num_steps):
                later = [one for one in own if one >= step]
                assert share.from_step(step) == later[0] if later else share.from_step(step) >= num_steps
            assert make_all(new_channel(share)) == own


class TestMakingAhead:
    def test_no_batch_is_sampled_before_the_first_epoch(self):
        channel = SampledChannel(
            channel_id=7, backend_id=1, worker_key="rank 0", share=Share(first=0, stride=1, num_steps=4), credit=2,
            new_job=lambda: FakeJob(no_work), arrived=threading.Condition(),
        )  # fmt: skip
        assert not channel.has_work(may_hoard=True)
        assert not channel.is_epoch_done

    def test_batches_of_the_share_are_made_in_order(self):
        assert make_all(new_channel(Share(first=1, stride=2, num_steps=8))) == [1, 3, 5, 7]

    def test_credit_counts_batches_in_progress_and_waiting(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8), credit=2)
        assert channel.take_work() == 0
        assert channel.take_work() == 1
        assert not channel.has_work(may_hoard=True)  # two batches are in progress
        finish(channel, 0)
        assert not channel.has_work(may_hoard=True)  # one waits, one is in progress
        del channel.done[0]  # it was fetched
        assert channel.take_work() == 2

    def test_a_channel_that_may_not_hoard_samples_one_batch(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8), credit=5)
        assert channel.has_work(may_hoard=False)
        finish(channel, channel.take_work())
        assert not channel.has_work(may_hoard=False)
        assert channel.has_work(may_hoard=True)

    def test_a_destroyed_channel_has_no_work(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8))
        channel.ask(3)
        channel.is_destroyed = True
        assert not channel.has_work(may_hoard=True)

    def test_a_batch_is_in_flight_when_it_is_taken(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8))
        assert channel.take_work() == 0
        assert channel.in_flight == {0}


class TestAsking:
    def test_requested_batches_are_first_in_request_order(self):
        channel = new_channel(Share(first=0, stride=2, num_steps=8))
        for step in (5, 3, 4):
            channel.ask(step)
        assert make_all(channel) == [5, 3, 4, 0, 2, 6]  # 4 was to come later, and is not made twice

    def test_requested_batches_need_no_credit(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8), credit=1)
        finish(channel, channel.take_work())
        assert not channel.has_work(may_hoard=True)
        channel.ask(5)
        assert channel.has_work(may_hoard=True)
        assert channel.has_work(may_hoard=False)
        assert channel.take_work() == 5

    def test_repeated_requests_count_once(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=8))
        channel.ask(3)
        channel.ask(3)
        assert list(channel.asked) == [3]
        assert channel.take_work() == 3
        channel.ask(3)  # it is being made
        finish(channel, 3)
        channel.ask(3)  # it waits
        assert not channel.asked

    def test_a_batch_that_was_taken_is_made_again(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        assert make_all(channel) == [0, 1, 2]
        channel.done.clear()
        channel.ask(1)
        assert make_all(channel) == [1]

    def test_made_early_holds_batches_ahead_of_the_cursor(self):
        channel = new_channel(Share(first=0, stride=2, num_steps=8))
        channel.ask(4)
        channel.ask(5)  # another server's: the cursor never gets there
        assert channel.made_early == {4}
        assert make_all(channel) == [4, 5, 0, 2, 6]
        assert channel.made_early == set()

    def test_every_batch_of_the_share_may_be_requested(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        for step in (2, 1, 0):
            channel.ask(step)
        assert make_all(channel) == [2, 1, 0]
        assert channel.is_epoch_done


class TestPuttingBack:
    """A batch that could not be made or kept is made again."""

    def test_a_requested_batch_put_back_is_first(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=4))
        for step in (3, 2):
            channel.ask(step)
            channel.late[step] = 0.0
        assert channel.take_work() == 3
        channel.put_back(3)
        assert make_all(channel) == [3, 2, 0, 1]

    @pytest.mark.parametrize("order", [(2, 4), (4, 2)])
    def test_only_unrequested_batches_are_made_ahead_again(self, order):
        channel = new_channel(Share(first=0, stride=2, num_steps=12))
        assert [channel.take_work() for _ in range(4)] == [0, 2, 4, 6]
        for step in order:
            channel.put_back(step)
        assert channel.asked == {}
        assert make_all(channel) == [2, 4, 8, 10]

    def test_a_batch_requested_early_and_put_back_is_in_order(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=4))
        channel.ask(2)
        assert channel.take_work() == 2
        channel.put_back(2)
        assert make_all(channel) == [0, 1, 2, 3]

    def test_a_batch_no_longer_needed_is_not_put_back(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=9))
        assert [channel.take_work() for _ in range(2)] == [0, 1]
        channel.skip_to(7)
        channel.put_back(0)
        assert make_all(channel) == [7, 8]
        begin(channel, 0, 1)
        assert channel.take_work() == 0
        channel.put_back(0)
        assert channel.take_work() == 0

    def test_unrequested_and_late_batches_are_evicted_first(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=9))
        for step in range(5):
            finish(channel, step)
        channel.late = {3: 10.0, 1: 12.0, 7: 0.0}
        assert channel.spare(11.0) == [4, 2, 0, 3]
        assert channel.spare(10.0) == [4, 2, 0]


class TestEpochs:
    def test_an_epoch_begins_anywhere(self):
        channel = new_channel(Share(first=1, stride=3, num_steps=12))
        begin(channel, turn=1, epoch=0, first_step=5)
        assert channel.cursor == 7
        assert make_all(channel) == [7, 10]

    def test_batches_of_the_previous_epoch_are_discarded(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=4))
        finish(channel, channel.take_work())
        channel.take_work()
        channel.ask(3)
        begin(channel, turn=0, epoch=1)
        assert not channel.done
        assert not channel.in_flight
        assert not channel.asked
        assert not channel.made_early
        assert make_all(channel) == [0, 1, 2, 3]

    def test_an_epoch_is_done_when_every_batch_of_the_share_was_made(self):
        channel = new_channel(Share(first=0, stride=2, num_steps=4))
        channel.take_work()
        channel.take_work()
        assert not channel.is_epoch_done
        finish(channel, 0)
        assert not channel.is_epoch_done
        finish(channel, 2)
        assert channel.is_epoch_done
        assert channel.is_mid_epoch  # they were not fetched
        channel.done.clear()
        assert not channel.is_mid_epoch

    def test_an_epoch_is_not_done_while_a_batch_is_awaited(self):
        channel = new_channel(Share(first=0, stride=2, num_steps=4))
        make_all(channel)
        channel.ask(1)
        assert not channel.is_epoch_done
        make_all(channel)
        assert channel.is_epoch_done

    @pytest.mark.parametrize(
        "share", [Share(first=0, stride=1, num_steps=0), Share(first=3, stride=4, num_steps=3)], ids=str
    )
    def test_zero_batches_are_done_at_once(self, share):
        channel = new_channel(share)
        assert channel.is_epoch_done
        assert not channel.has_work(may_hoard=True)

    def test_an_epoch_that_begins_past_its_end_is_done_at_once(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        begin(channel, turn=1, epoch=0, first_step=9)
        assert channel.is_epoch_done
        assert not channel.has_work(may_hoard=True)


class TestCosts:
    def test_the_first_batch_is_all_that_is_known(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        channel.charge(2.0)
        assert channel.cost_s == 2.0
        assert (channel.stats.num_made, channel.stats.sampling_s) == (1, 2.0)

    def test_later_ones_count_for_three_tenths(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        channel.charge(2.0)
        channel.charge(12.0)
        assert channel.cost_s == pytest.approx(0.7 * 2.0 + 0.3 * 12.0)
        assert (channel.stats.num_made, channel.stats.sampling_s) == (2, 14.0)

    def test_bytes_that_wait_are_counted(self):
        channel = new_channel(Share(first=0, stride=1, num_steps=3))
        make_all(channel)
        assert channel.num_buffered_bytes == sum(message_of(0, step).num_bytes for step in range(3))
