"""Worker threads: make numbered batches ahead of the consumer, in order.

Each worker takes the next number, makes the whole batch and stores it; the consumer takes batches in order. Workers run
ahead by a bounded number of batches, which bounds the memory. A failed batch ends the series: the consumer first gets
all batches before it, then the error. Later batches are not made.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from hopstream.errors import StateError, StoreTimeout
from hopstream.load.load_settings import ConsumerSettings

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Producer(Protocol[T_co]):
    """Maker of the batch of a number; one thread uses one producer."""

    @property
    def stage(self) -> str:
        """Current step of the work, for messages about slow batches."""
        ...

    def __call__(self, step: int) -> T_co:
        """Make one batch."""
        ...


class Batches(Protocol[T_co]):
    """Batches of consecutive numbers, in order."""

    def take(self) -> T_co:
        """Return the next batch; must not be called after the last."""
        ...

    def stop(self) -> None:
        """Tell the workers to end, without waiting for them."""
        ...

    def close(self) -> None:
        """End the workers and wait for them; a second call does nothing."""
        ...


class InlineBatches(Generic[T]):
    """Batches that are made when they are taken, in the caller's thread."""

    def __init__(self, producer: Producer[T], steps: range, on_end: Callable[[], None] = lambda: None) -> None:
        """Make the batches of ``steps``; call ``on_end`` once at the end."""
        self._producer = producer
        self.stop = weakref.finalize(self, on_end)  # runs too when this object is collected
        self.stop.atexit = False
        self._steps = iter(steps)

    def take(self) -> T:
        """Make the next batch."""
        return self._producer(next(self._steps))

    def close(self) -> None:
        """Call ``on_end``, unless it was called before."""
        self.stop()


@dataclass(slots=True, kw_only=True, eq=False)
class _Desk(Generic[T]):
    """State shared by workers and consumer; every field is read and written under ``changed``.

    Attributes:
        producers: One per worker.
        stop: One past the last number; after a failure, the number of the failed batch.
        num_ahead: Most batches that are unfinished or waiting at once.
        is_cold: No batch is finished yet, so kernels may have to be compiled: one worker starts alone.
        next_claim: The number that the next free worker takes.
        next_out: The number that the consumer takes next.
        done: Finished batches by number.
        making: Per worker, the number of the batch that it makes; None for an idle worker.
        failure: The error of batch ``stop``, the failed batch with the lowest number.
        is_closing: Workers end when they have finished their current batch.
        on_end: Called once by ``end``, so that threads stop waiting for batches that are not wanted any more.
    """

    producers: Sequence[Producer[T]]
    stop: int
    num_ahead: int
    is_cold: bool
    next_claim: int
    next_out: int
    making: list[int | None]
    done: dict[int, T] = field(default_factory=dict)
    failure: BaseException | None = None
    is_closing: bool = False
    on_end: Callable[[], None] = lambda: None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def claim(self, worker: int) -> int | None:
        """Wait for the number of a batch to make; None if there is nothing left to do.

        This wait has no deadline: the consumer may take any time over a batch. It ends when the consumer closes the
        batches, is collected, or ends the program.
        """
        with self.changed:
            self.making[worker] = None
            self.changed.wait_for(lambda: self.is_closing or self.next_claim >= self.stop or self._has_credit())
            if self.is_closing or self.next_claim >= self.stop:
                return None
            step = self.next_claim
            self.next_claim += 1
            self.making[worker] = step
            return step

    def put(self, step: int, batch: T) -> None:
        """Store a finished batch."""
        with self.changed:
            self.is_cold = False
            if not self.is_closing and step < self.stop:
                self.done[step] = batch
            self.changed.notify_all()

    def fail(self, step: int, failure: BaseException) -> None:
        """Store the error of a batch, and drop the batches after it.

        Numbers are claimed in order, so every earlier batch is finished or claimed by another worker.
        """
        with self.changed:
            if step < self.stop:
                self.stop, self.failure = step, failure
                self.done = {number: batch for number, batch in self.done.items() if number < step}
            self.changed.notify_all()

    def end(self) -> None:
        """Tell the workers to end, and drop finished batches."""
        with self.changed:
            self.is_closing = True
            self.done.clear()
            self.changed.notify_all()
            on_end, self.on_end = self.on_end, lambda: None
        on_end()

    def take(self, timeout_s: float) -> T:
        """Wait for the next batch in order; see ``ThreadedBatches.take``."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.is_closing or self.next_out in self.done or self.next_out == self.stop, timeout_s
            )
            if self.failure is not None and self.next_out == self.stop:
                raise self.failure
            if self.is_closing:
                raise StateError("the loader was closed while a batch was awaited")
            if self.next_out not in self.done:
                late = StoreTimeout(f"batch {self.next_out} was not ready in {timeout_s:g} s: {self.describe()}")
                if self.failure is not None:
                    late.add_note(f"batch {self.stop}, which comes later, has failed: {self.failure!r}")
                raise late
            batch = self.done.pop(self.next_out)
            self.next_out += 1
            self.changed.notify_all()
            return batch

    def describe(self) -> str:
        """Return each worker's batch and current step, for messages."""
        return "; ".join(
            f"worker {worker} is idle" if step is None else f"worker {worker} is at batch {step}, {producer.stage}"
            for worker, (step, producer) in enumerate(zip(self.making, self.producers, strict=True))
        )

    def _has_credit(self) -> bool:
        return self.next_claim < self.next_out + (1 if self.is_cold else self.num_ahead)


class ThreadedBatches(Generic[T]):
    """Batches that worker threads make ahead of the consumer."""

    def __init__(
        self, producers: Sequence[Producer[T]], steps: range, settings: ConsumerSettings, *, is_cold: bool = True,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Start one thread per producer.

        Args:
            producers: Makers of batches, one per thread.
            steps: The numbers of the batches, ascending by one.
            settings: ``prefetch`` and ``timeout_s``.
            is_cold: Make the first batch in one thread before the others start, so that kernels compile once.
            on_end: Called once when the threads are told to end.
        """
        self._timeout_s = settings.timeout_s
        self._desk: _Desk[T] = _Desk(
            producers=producers,
            stop=steps.stop,
            num_ahead=len(producers) + settings.prefetch,
            is_cold=is_cold,
            on_end=on_end,
            next_claim=steps.start,
            next_out=steps.start,
            making=[None] * len(producers),
        )
        # Threads refer to the desk and never to this object: they end when this object is collected.
        self.threads = [
            threading.Thread(target=_work, args=(self._desk, worker), name=f"hopstream-load-{worker}", daemon=True)
            for worker in range(len(producers))
        ]
        self._end = weakref.finalize(self, _end, self._desk, self.threads, self._timeout_s)
        for thread in self.threads:
            thread.start()

    def take(self) -> T:
        """Return the next batch; wait at most ``timeout_s`` for it.

        Raises:
            StoreTimeout: The batch was not ready in time; the message says what each worker is doing.
            StateError: The batches were closed meanwhile.
            BaseException: A worker failed to make this batch with this error.
        """
        return self._desk.take(self._timeout_s)

    def stop(self) -> None:
        """Tell the threads to end."""
        self._desk.end()

    def close(self) -> None:
        """End the threads and wait for them.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self._end()
        alive = [thread.name for thread in self.threads if thread.is_alive()]
        if alive:
            raise StoreTimeout(f"{', '.join(alive)} did not end in {self._timeout_s:g} s: {self._desk.describe()}")


def _work(desk: _Desk[T], worker: int) -> None:
    """Make batches until there are none left; the target of a worker thread."""
    make = desk.producers[worker]
    while (step := desk.claim(worker)) is not None:
        try:
            batch = make(step)
        except BaseException as failure:  # the consumer raises it
            desk.fail(step, failure)
            return
        desk.put(step, batch)
        del batch  # while this thread waits, only the consumer may hold the batch


def _end(desk: _Desk[T], threads: Sequence[threading.Thread], timeout_s: float) -> None:
    """End the threads and wait for them; the garbage collector calls it too."""
    desk.end()
    if threading.current_thread() in threads:
        return  # the collector ran in a worker, which may hold the lock that the others need to end
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
