"""Checks that worker threads deliver in order, run ahead within bounds, pass on failures, and end."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from hopstream.errors import StateError, StoreTimeout
from hopstream.load.load_settings import ConsumerSettings
from hopstream.load.workers import InlineBatches, ThreadedBatches

DEADLINE_S = 20.0
"""Seconds that a test waits for an event that must come soon."""


class Producer:
    """Makes ``("batch", step)``; waits at each step for the gate of that step, if there is one."""

    def __init__(self, gates=None, failures=None, started=None):
        self.gates = gates or {}
        self.failures = failures or {}
        self.started = started if started is not None else {}
        self.made = []
        self.stage = "testing"

    def __call__(self, step):
        self.made.append(step)
        if step in self.started:
            self.started[step].set()
        if step in self.gates:
            assert self.gates[step].wait(DEADLINE_S)
        if step in self.failures:
            raise self.failures[step]
        return ("batch", step)


def threaded(producers, stop, prefetch=2, timeout_s=DEADLINE_S, is_cold=False, start=0):
    settings = ConsumerSettings(num_threads=len(producers), prefetch=prefetch, timeout_s=timeout_s)
    return ThreadedBatches(producers, range(start, stop), settings, is_cold=is_cold)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("is_cold", [True, False])
def test_batches_come_in_order(num_threads, is_cold):
    batches = threaded([Producer() for _ in range(num_threads)], 50, is_cold=is_cold, start=3)
    assert [batches.take() for _ in range(47)] == [("batch", step) for step in range(3, 50)]
    batches.close()


def test_a_late_batch_is_waited_for():
    gate = threading.Event()
    producers = [Producer(gates={0: gate}), Producer(gates={0: gate})]
    batches = threaded(producers, 3)
    threading.Timer(0, gate.set).start()
    assert [batches.take()[1] for _ in range(3)] == [0, 1, 2]
    batches.close()


@pytest.mark.parametrize(("num_threads", "prefetch"), [(1, 0), (1, 2), (3, 0), (3, 4)])
def test_workers_run_ahead_by_a_bounded_number_of_batches(num_threads, prefetch):
    started = {num_threads + prefetch - 1: threading.Event(), num_threads + prefetch: threading.Event()}
    producers = [Producer(started=started) for _ in range(num_threads)]
    batches = threaded(producers, 100, prefetch=prefetch)
    assert started[num_threads + prefetch - 1].wait(DEADLINE_S)
    wait_until_credit_is_spent(batches, num_threads + prefetch)
    assert not started[num_threads + prefetch].is_set()
    batches.take()
    assert started[num_threads + prefetch].wait(DEADLINE_S)
    batches.close()


def wait_until_credit_is_spent(batches, num_ahead):
    desk = batches._desk
    with desk.changed:
        assert desk.changed.wait_for(lambda: len(desk.done) == num_ahead, DEADLINE_S)
        assert desk.next_claim == num_ahead


def test_the_first_batch_is_made_alone_while_kernels_are_cold():
    gate = threading.Event()
    started = {0: threading.Event(), 1: threading.Event()}
    producers = [Producer(gates={0: gate}, started=started) for _ in range(4)]
    batches = threaded(producers, 10, is_cold=True)
    assert started[0].wait(DEADLINE_S)
    assert [step for producer in producers for step in producer.made] == [0]
    gate.set()
    assert started[1].wait(DEADLINE_S)
    batches.close()


def wait_until_failed(batches, step):
    desk = batches._desk
    with desk.changed:
        assert desk.changed.wait_for(lambda: desk.failure is not None and desk.stop == step, DEADLINE_S)


def test_only_batches_before_a_failure_are_delivered():
    gates, failure = {step: threading.Event() for step in range(3)}, KeyError("broken")
    started = {2: threading.Event()}
    producers = [Producer(gates=gates, failures={1: failure}, started=started) for _ in range(3)]
    batches = threaded(producers, 10)
    assert started[2].wait(DEADLINE_S)
    gates[1].set()
    wait_until_failed(batches, 1)
    gates[2].set()  # finished after the failure, and not wanted any more
    gates[0].set()
    assert batches.take() == ("batch", 0)
    for _ in range(2):
        with pytest.raises(KeyError, match="broken") as raised:
            batches.take()
        assert raised.value is failure
    assert "__call__" in [entry.name for entry in raised.traceback]  # the place in the worker
    for thread in batches.threads:  # they end by themselves
        thread.join(DEADLINE_S)
    assert not batches._desk.done
    assert sorted(step for producer in producers for step in producer.made) == [0, 1, 2]
    batches.close()


@pytest.mark.parametrize("first", [1, 2])
def test_the_failure_of_the_earliest_batch_is_raised(first):
    gates = {step: threading.Event() for step in range(3)}
    failures = {1: ValueError("lower"), 2: KeyboardInterrupt("higher")}
    batches = threaded([Producer(gates=gates, failures=failures) for _ in range(3)], 10)
    for step in (first, 3 - first):
        gates[step].set()
        wait_until_failed(batches, min(step, first))
    gates[0].set()
    assert batches.take() == ("batch", 0)
    with pytest.raises(ValueError, match="lower"):
        batches.take()
    batches.close()


def test_a_failure_behind_a_batch_that_hangs_is_a_note_of_the_timeout():
    gate = threading.Event()
    producers = [Producer(gates={0: gate}, failures={1: KeyError("broken")}) for _ in range(2)]
    batches = threaded(producers, 3, timeout_s=0.2)
    wait_until_failed(batches, 1)
    with pytest.raises(StoreTimeout, match=r"batch 0 was not ready in 0.2 s: .*at batch 0, testing") as raised:
        batches.take()
    assert raised.value.__notes__ == ["batch 1, which comes later, has failed: KeyError('broken')"]
    gate.set()
    batches.close()


def test_timeout_of_a_batch_describes_each_worker():
    gate = threading.Event()
    producers = [Producer(gates={0: gate}), Producer(gates={0: gate})]
    batches = threaded(producers, 2, timeout_s=0.05)
    threads = batches.threads
    with pytest.raises(StoreTimeout, match=r"batch 0 was not ready in 0.05 s: .*at batch 0, testing"):
        batches.take()
    with pytest.raises(StoreTimeout, match=r"did not end in 0.05 s: .*at batch 0, testing"):
        batches.close()
    gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)


def test_closing_ends_all_threads_and_taking_afterwards_is_refused():
    batches = threaded([Producer() for _ in range(4)], 10**9)
    batches.take()
    batches.close()
    batches.close()
    assert not any(thread.is_alive() for thread in batches.threads)
    with pytest.raises(StateError, match="closed"):
        batches.take()


def test_losing_the_last_reference_ends_all_threads():
    batches = threaded([Producer() for _ in range(4)], 10**9)
    batches.take()
    threads = batches.threads
    del batches
    assert not any(thread.is_alive() for thread in threads)


def test_garbage_collection_in_a_worker_does_not_deadlock():
    """A cycle may be collected in any thread; there it must not join the thread it runs in."""
    gate, collected = threading.Event(), threading.Event()

    class Collecting(Producer):
        def __call__(self, step):
            batch = super().__call__(step)
            if step == 2:
                assert gate.wait(DEADLINE_S)
                gc.collect()
                collected.set()
            return batch

    gc.disable()
    try:
        batches = threaded([Collecting()], 10, prefetch=5)
        threads = batches.threads
        cycle = [batches]
        cycle.append(cycle)
        del batches, cycle
        gate.set()
        assert collected.wait(DEADLINE_S)
    finally:
        gc.enable()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_worker_releases_a_batch_before_the_next():
    class Batch:
        pass

    class Making(Producer):
        def __call__(self, step):
            super().__call__(step)
            return Batch()

    gate = threading.Event()
    started = {1: threading.Event()}
    batches = threaded([Making(gates={1: gate}, started=started)], 2, prefetch=0)
    reference = weakref.ref(batches.take())
    assert started[1].wait(DEADLINE_S)
    assert reference() is None
    gate.set()
    batches.close()


def test_inline_batches_are_made_when_they_are_taken():
    producer = Producer()
    batches = InlineBatches(producer, range(4, 7))
    assert producer.made == []
    assert batches.take() == ("batch", 4)
    assert producer.made == [4]
    batches.close()
