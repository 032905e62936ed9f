"""Samples batches ahead of the fetching of their columns, so that a cache of rows knows what is needed next.

The threads of one iteration share a ``SamplingAhead``. A thread that wants a batch first samples what is missing of the
batches in front of it, then fetches the columns of its own. Batches are the same in any case: what a batch draws does
not depend on when it is drawn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hopstream.errors import StateError, StoreTimeout

T = TypeVar("T")
GROUP = 4
"""Batches that one thread samples together, where their seeds are looked up in one request."""


@dataclass(slots=True, kw_only=True, eq=False)
class SamplingAhead(Generic[T]):
    """Batches of an iteration that are sampled, and those whose turn it is. Safe to use from many threads.

    Attributes:
        next_step: The first batch that nobody samples yet.
        stop: One past the last.
        num_ahead: How many batches are sampled ahead of the one that is fetched, at most.
        timeout_s: How long to wait for a batch that another thread samples.
        group: How many batches one thread samples together.
    """

    next_step: int
    stop: int
    num_ahead: int
    timeout_s: float
    group: int = GROUP
    _late: set[int] = field(default_factory=set)
    _num_taken: int = 0
    _done: dict[int, T | BaseException] = field(default_factory=dict)
    _is_ended: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, step: int, sample: Callable[[range], list[T | BaseException]]) -> T:
        """The sampled batch of a step, after sampling what is missing ahead of it.

        Args:
            step: The batch; every batch is taken once.
            sample: Samples some batches, and gives each, or the error that it ended with; fewer where the others would
                keep the caller waiting. Whoever takes one of these samples it then.

        Raises:
            StateError: The iteration was ended meanwhile.
            StoreTimeout: Another thread did not finish sampling it in time.
            BaseException: The error that its sampling ended with.
        """
        while True:
            with self._changed:
                steps = range(0) if self._is_ended else self._claim(step)
                if not steps:
                    self._wait_for(step)
                    if step in self._late:
                        continue
                    self._num_taken += 1
                    found = self._done.pop(step)
                    break
            try:
                sampled = sample(steps)
            except BaseException as error:
                self._put(steps, [error] * len(steps))
                raise
            self._put(steps, sampled)
        if isinstance(found, BaseException):
            raise found
        return found

    def _wait_for(self, step: int) -> None:
        """Wait until another thread has sampled a batch, or left it; called with the lock."""
        is_over = self._changed.wait_for(
            lambda: self._is_ended or step in self._done or step in self._late, self.timeout_s
        )
        if self._is_ended:
            raise StateError("the iteration was ended while a batch was sampled")
        if not is_over:
            raise StoreTimeout(f"batch {step} was not sampled in {self.timeout_s:g} s by another thread")

    def _put(self, steps: range, sampled: Sequence[T | BaseException]) -> None:
        with self._changed:
            if not self._is_ended:
                self._done.update(zip(steps, sampled, strict=False))
                self._late.update(steps[len(sampled) :])
            self._changed.notify_all()

    def end(self) -> None:
        """Let go of all batches; threads that wait for one get ``StateError``."""
        with self._changed:
            self._is_ended = True
            self._done.clear()
            self._changed.notify_all()

    def _claim(self, step: int) -> range:
        """The batches that the caller is to sample now, perhaps none; the first batches do not wait for many others."""
        if step in self._late:
            self._late.remove(step)
            return range(step, step + 1)
        stop = min(self.stop, step + 1 + min(self.num_ahead, 2 * self._num_taken))
        first, last = self.next_step, min(stop, self.next_step + self.group)
        if first > step and last - first < self.group and last < self.stop:
            return range(0)
        self.next_step = max(first, last)
        return range(first, self.next_step)
