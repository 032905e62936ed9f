"""Tests the order of batches that threads sample ahead, and that each batch raises its own error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hopstream.errors import StateError, StoreTimeout
from hopstream.load.ahead import GROUP, SamplingAhead


class Sampler:
    """Samples a batch as its number, and fails at some."""

    def __init__(self, *failing: int) -> None:
        self.groups: list[range] = []
        self._failing = failing

    def __call__(self, steps: range) -> list[int | BaseException]:
        self.groups.append(steps)
        return [KeyError(step) if step in self._failing else step for step in steps]


def ahead(num_ahead: int = 16, stop: int = 50, first: int = 0, timeout_s: float = 20.0) -> SamplingAhead[int]:
    return SamplingAhead(next_step=first, stop=stop, num_ahead=num_ahead, timeout_s=timeout_s)


@pytest.mark.parametrize("num_ahead", [0, 1, 3, 16, 100])
@pytest.mark.parametrize("first", [0, 47])
def test_every_batch_is_sampled_once_in_order_and_no_further_than_was_said(num_ahead: int, first: int) -> None:
    desk, sampler = ahead(num_ahead, first=first), Sampler()
    for step in range(first, 50):
        assert desk.take(step, sampler) == step
        assert sampler.groups[-1].stop <= min(50, step + 1 + num_ahead)
    assert [step for group in sampler.groups for step in group] == list(range(first, 50))


def test_the_first_batch_waits_for_no_other_and_later_ones_come_in_groups() -> None:
    desk, sampler = ahead(), Sampler()
    desk.take(0, sampler)
    assert sampler.groups == [range(1)]
    for step in range(1, 30):
        desk.take(step, sampler)
    assert {len(group) for group in sampler.groups[-4:]} == {GROUP}
    assert sampler.groups[-1].stop > 29 + 16 - GROUP


def test_an_error_is_raised_when_its_batch_is_taken() -> None:
    desk, sampler = ahead(), Sampler(9)
    assert [desk.take(step, sampler) for step in range(9)] == list(range(9))
    with pytest.raises(KeyError, match="9"):
        desk.take(9, sampler)
    assert desk.take(10, sampler) == 10


def test_threads_take_all_batches_between_them() -> None:
    desk, sampler = ahead(), Sampler()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda step: desk.take(step, sampler), range(50))) == list(range(50))
    assert sorted(step for group in sampler.groups for step in group) == list(range(50))


def test_who_waits_for_another_thread_is_woken_at_the_end_or_at_the_deadline() -> None:
    for ends, error in ((True, StateError), (False, StoreTimeout)):
        desk, may_go = ahead(num_ahead=0, timeout_s=20 if ends else 0.1), threading.Event()

        def hang(steps: range, may_go: threading.Event = may_go) -> list[int | BaseException]:
            may_go.wait(20)
            return list(steps)

        with ThreadPoolExecutor(2) as pool:
            working = pool.submit(desk.take, 0, hang)
            while desk.next_step == 0:
                time.sleep(0.001)
            waiting = pool.submit(desk.take, 0, hang)  # the batch of the other thread
            if ends:
                desk.end()
            with pytest.raises(error):
                waiting.result(10)
            may_go.set()
            if ends:
                with pytest.raises(StateError):
                    working.result(10)


def test_a_thread_that_is_interrupted_leaves_an_error_for_each_of_its_batches() -> None:
    desk = ahead()

    def interrupted(steps: range) -> list[int | BaseException]:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            desk.take(0, interrupted)
