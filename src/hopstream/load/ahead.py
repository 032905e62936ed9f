"""Samples batches before their columns are fetched, so that a cache of rows knows the next accesses.

The threads of one iteration share a ``SamplingAhead``. A thread that needs a batch first samples the missing batches
ahead of it, then fetches the columns of its own batch. The content of a batch does not depend on when it is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hopstream.errors import StateError, StoreTimeout

T = TypeVar("T")
GROUP = 4
"""Batches that one thread samples together; their seeds are looked up in one request."""


@dataclass(slots=True, kw_only=True, eq=False)
class SamplingAhead(Generic[T]):
    """Sampled batches of an iteration, and the next batches to sample. Thread-safe.

    Attributes:
        next_step: The first batch that no thread samples yet.
        stop: One past the last batch.
        num_ahead: Most batches that are sampled ahead of the batch that is fetched.
        timeout_s: Seconds to wait for a batch that another thread samples.
        group: Batches that one thread samples together.
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
        """Return the sampled batch of a step, after sampling the missing batches ahead of it.

        Args:
            step: The batch; every batch is taken once.
            sample: Samples a range of batches and returns one batch or error per step. It may return fewer, so that
                the caller does not wait for the rest; each of these is sampled later, when its step is taken.

        Raises:
            StateError: The iteration was ended meanwhile.
            StoreTimeout: Another thread did not sample the batch in time.
            BaseException: The sampling of the batch failed with this error.
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
        """Wait until another thread has sampled a batch or left it out; the caller holds the lock."""
        is_over = self._changed.wait_for(
            lambda: self._is_ended or step in self._done or step in self._late, self.timeout_s
        )
        if self._is_ended:
            raise StateError("the iteration ended while a batch was sampled")
        if not is_over:
            raise StoreTimeout(f"batch {step} was not sampled in {self.timeout_s:g} s by another thread")

    def _put(self, steps: range, sampled: Sequence[T | BaseException]) -> None:
        with self._changed:
            if not self._is_ended:
                self._done.update(zip(steps, sampled, strict=False))
                self._late.update(steps[len(sampled) :])
            self._changed.notify_all()

    def end(self) -> None:
        """Drop all batches; waiting threads get ``StateError``."""
        with self._changed:
            self._is_ended = True
            self._done.clear()
            self._changed.notify_all()

    def _claim(self, step: int) -> range:
        """Claim the batches that the caller must sample now; perhaps none. The caller holds the lock.

        The window grows with the number of taken batches, so that the first batches do not wait for many others.
        """
        if step in self._late:
            self._late.remove(step)
            return range(step, step + 1)
        stop = min(self.stop, step + 1 + min(self.num_ahead, 2 * self._num_taken))
        first, last = self.next_step, min(stop, self.next_step + self.group)
        if first > step and last - first < self.group and last < self.stop:
            return range(0)
        self.next_step = max(first, last)
        return range(first, self.next_step)
