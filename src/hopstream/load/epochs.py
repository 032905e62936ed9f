"""Base of all loaders: iterates over epochs, runs threads, and saves and restores the position.

Loaders differ only in how one batch is made.

A position is two numbers: the epoch, and how many of its batches the consumer was given. The rest follows from the
loader's settings. A saved state also holds the settings, so that a loader with other batches can refuse the state.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, Protocol, Self

from hopstream.checks import OfOneProcess
from hopstream.errors import FormatError, IdRangeError, StateError
from hopstream.load.load_settings import ConsumerSettings, Transform
from hopstream.load.service import class_name
from hopstream.load.workers import Batches, InlineBatches, ThreadedBatches

STATE_FORMAT = 1
MAX_EPOCH = (1 << 63) - 1
FORM = '{"format": …, "epoch": …, "next_batch": …, "loader": {…}}'
Facts = Mapping[str, str | int | bool | Mapping[str, int] | Mapping[str, str] | None]
"""Settings and inputs that determine a loader's batches, by their names in messages; JSON values only."""
KIND = "kind"
"""Name of the fact that holds the loader's class."""
FINGERPRINTS: Mapping[str, str] = {
    "graph_id": "another graph",
    "seeds": "other seeds=",
    "examples": "other files=",
    "anchors": "other anchors=",
    "labels": "other labels=",
    "input_time": "other times of its seeds (input_time=)",
    "links": "other links (edge_label_index=)",
    "edge_label": "other edge_label=",
    "edge_label_time": "other times of its links (edge_label_time=)",
}
"""Facts whose values are hex digits, to the meaning of a difference for messages."""


@dataclass(slots=True)
class EpochPosition:
    """Position of a loader: the next batch.

    Attributes:
        epoch: The current epoch; the next one if ``next_batch`` is 0.
        next_batch: Batches of that epoch that the consumer was given.
        is_resuming: The position was restored, or an iteration failed at it. The next iteration resumes there.
    """

    epoch: int = 0
    next_batch: int = 0
    is_resuming: bool = field(default=False, repr=False)

    def begin(self) -> None:
        """Begin an iteration; after one that was left early, with the next epoch."""
        if self.next_batch and not self.is_resuming:
            self.epoch += 1
            self.next_batch = 0
        self.is_resuming = False

    def resume(self) -> None:
        """Let the next iteration resume here, because this one failed."""
        self.is_resuming = True

    def end_epoch(self) -> None:
        """Move to the next epoch, after the last batch."""
        self.epoch += 1
        self.next_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; no effect if the next iteration resumes in that epoch.

        Raises:
            StateError: ``epoch`` is not an integer from 0 to 2**63 - 1.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
            raise StateError(f"epoch is {epoch!r}; epochs are 0, 1, … up to 2**63 - 1")
        if not (self.is_resuming and epoch == self.epoch):
            self.epoch, self.next_batch, self.is_resuming = epoch, 0, False

    def to_json(self, facts: Facts) -> dict[str, Any]:
        """Return a JSON value for ``from_json``, with the loader's facts."""
        return {
            "format": STATE_FORMAT,
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "loader": {name: dict(fact) if isinstance(fact, Mapping) else fact for name, fact in facts.items()},
        }

    @classmethod
    def from_json(cls, value: object, facts: Facts, num_steps: int) -> EpochPosition:
        """Read what ``to_json`` wrote.

        Raises:
            StateError: The value is no saved state, or it belongs to a loader with other batches; the message names the
                difference.
        """
        record = _fields_of(value)
        found, epoch, next_batch = record["loader"], record["epoch"], record["next_batch"]
        for name in sorted({**facts, **found}, key=lambda name: name != KIND):
            # States of older versions lack options that came later; those were off.
            if facts.get(name) != found.get(name) and (name in found or facts[name] is not False):
                raise StateError(_difference(name, found.get(name), facts.get(name)))
        for name, number, most in (("epoch", epoch, MAX_EPOCH), ("next_batch", next_batch, num_steps)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
                raise StateError(f"the state's {name} is {number!r}; it must be from 0 to {most}")
        return cls(epoch, next_batch, is_resuming=True)


def _difference(name: str, found: object, own: object) -> str:
    """Return a message about a fact that differs between a state and a loader."""
    if name == KIND and found is not None:
        return f"the state is of a {found}; this is a {own}: load it into a loader of the same kind"
    if name in FINGERPRINTS:
        return f"the state is of a loader over {FINGERPRINTS[name]}; make this loader from the same inputs"
    return f"the state is of a loader with {name} {found!r}; this loader has {own!r}"


def _fields_of(value: object) -> Mapping[str, Any]:
    """Check that a saved state has all fields, and return it."""
    if not isinstance(value, Mapping):
        raise StateError(f"the loader state is a {type(value).__name__}; it must be what state_dict() returned, {FORM}")
    missing = [name for name in ("format", "epoch", "next_batch", "loader") if name not in value]
    if missing:
        raise StateError(
            f"the loader state has no {' and no '.join(missing)}; it must be what state_dict() returned, {FORM}, "
            f"got {str(dict(value))[:200]}"
        )
    if value["format"] != STATE_FORMAT:
        raise StateError(f"the loader state has format {value['format']!r}; this version reads {STATE_FORMAT}")
    if not isinstance(value["loader"], Mapping):
        raise StateError(f"the loader state's loader is {str(value['loader'])[:200]!r}; it must be an object")
    return value


IN_TRANSFORM = "in the transform"
Explain = Callable[[FormatError | IdRangeError], Exception]
"""Returns the error to raise in place of this one if files are damaged, or the same error."""


class Maker(Protocol):
    """Maker of any batch of any epoch. Not thread-safe: each thread has its own maker."""

    stage: str
    """Current step of the work, for messages about slow batches."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch; equal arguments give equal batches."""
        ...


class _Producer:
    """Maker of the batches of one epoch in one thread, which also calls the user's transform."""

    def __init__(self, maker: Maker, transform: Transform | None, epoch: int, explain: Explain | None) -> None:
        self._maker = maker
        self._transform = transform
        self._epoch = epoch
        self._explain = explain

    @property
    def stage(self) -> str:
        return self._maker.stage

    def __call__(self, step: int) -> Any:
        try:
            batch = self._make(step)
            if self._transform is None:
                return batch
            self._maker.stage = IN_TRANSFORM
            return self._transform(batch)
        except BaseException as error:
            _add_place(error, self._epoch, step, self.stage)
            raise

    def _make(self, step: int) -> Any:
        """Make a batch, and explain errors by damaged files.

        User input was checked before, so an id outside its range comes from a damaged file.
        """
        try:
            return self._maker.make(self._epoch, step)
        except (FormatError, IdRangeError) as error:
            explained = error if self._explain is None else self._explain(error)
            if explained is error:
                raise
            raise explained from error


def _add_place(error: BaseException, epoch: int, step: int, stage: str) -> None:
    """Add a note to an error that names its batch.

    Raises:
        RuntimeError: The error is a ``StopIteration``, which would silently end the consumer's loop.
    """
    where = f"while batch {step} of epoch {epoch} was made ({stage})"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"StopIteration was raised {where}") from error
    error.add_note(where)


class EpochLoader(OfOneProcess):
    """Base class of loaders: each iteration is one epoch, and starting one closes the one before."""

    _remedy = (
        "make one in each process, from the same source and settings; its threads replace the workers of a DataLoader, "
        "and load_state_dict(loader.state_dict()) resumes in another process"
    )

    def __init__(
        self, *, num_steps: int, new_maker: Callable[[], Maker], settings: ConsumerSettings,
        explain: Explain | None = None,
    ) -> None:  # fmt: skip
        """Prepare epochs.

        Args:
            num_steps: Batches of one epoch on this rank.
            new_maker: Makes a maker of batches; called once per thread.
            settings: Threads, transform and deadline.
            explain: Replaces errors that damaged files may have caused; None changes no error.
        """
        self._num_steps = num_steps
        self._new_maker = new_maker
        self._settings = settings
        self._explain = explain
        self._place = EpochPosition()
        self._makers: list[Maker] = []
        self._threads: list[threading.Thread] = []
        self._running: weakref.ref[EpochIterator] | None = None
        self._is_cold = True
        self._is_closed = False
        self._process = os.getpid()
        self.in_caller: Transform | None = None
        """A second transform, called in the consumer's thread."""

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches of one epoch on this rank."""
        return self._num_steps

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to give a batch by number, as a ``torch.utils.data.DataLoader`` would ask for it.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{type(self).__name__} cannot be indexed, only iterated: {self._remedy}")

    @property
    def epoch(self) -> int:
        """The current epoch; between iterations, the next one."""
        return self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, and close the current iteration.

        Not required: each iteration is the next epoch by itself. Directly after ``load_state_dict``, or after an error
        in the middle of an epoch, setting that same epoch keeps the position in it.

        Raises:
            StateError: ``epoch`` is not an integer, 0 or above.
        """
        self._end_iteration("set_epoch was called")
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the consumer was given, as a small JSON value.

        It does not depend on the rank, so all ranks may load the state that one of them saved.
        """
        return self._place.to_json(self._all_facts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position, and close the current iteration.

        Raises:
            StateError: ``state`` is no saved state, or it belongs to a loader with other batches.
        """
        place = EpochPosition.from_json(state, self._all_facts, self._num_steps)
        self._end_iteration("load_state_dict was called")
        self._place = place

    def __iter__(self) -> EpochIterator:
        """Start the next epoch, or resume one that was restored or ended by an error.

        Raises:
            StateError: The loader is closed, or this is a fork of its process.
            StoreTimeout: A thread of the iteration before did not end in time; the position is kept.
        """
        if self._is_closed:
            raise StateError("the loader is closed; make a new one")
        self._check_process()
        self._end_iteration("the loader was iterated again")
        self._place.begin()
        try:
            batches = self._start()
        except BaseException:
            self._place.resume()
            raise
        iterator = EpochIterator(self, self._place, batches)
        self._running = weakref.ref(iterator)
        return iterator

    def close(self) -> None:
        """End the current iteration and its threads; a second call does nothing.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self._is_closed = True
        self._end_iteration("the loader was closed")
        self._makers.clear()

    def stop(self, reason: str) -> None:
        """End the current iteration, without waiting for its threads."""
        running = self._running and self._running()
        if running:
            running.stop(reason)

    def maker(self) -> Maker:
        """Make a maker of any batch, independent of iterations; each thread needs its own."""
        return self._new_maker()

    def __enter__(self) -> Self:
        """Enter a context that closes the loader at its end."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the loader."""
        self.close()

    @cached_property
    def _all_facts(self) -> Facts:
        """The facts and the loader's class; cached, because fingerprints of large inputs take seconds."""
        return {KIND: class_name(self), **self.facts()}

    def _check_process(self) -> None:
        """Refuse to work in a forked process, which does not have the loader's threads."""
        if os.getpid() != self._process:
            raise StateError(
                f"the loader was made in process {self._process} and is used in {os.getpid()}; make it there, or start "
                "workers with spawn"
            )

    def _on_begin(self, epoch: int, step: int) -> None:
        """Prepare an iteration that begins with batch ``step``; called before any maker works."""

    def _end_call(self) -> Callable[[], None]:
        """Return the function to call when an iteration ends, so that makers stop waiting."""
        return lambda: None

    def _start(self) -> Batches[Any]:
        """Start to make the batches from the position on."""
        num_makers = max(1, self._settings.num_threads)
        if any(thread.is_alive() for thread in self._threads):
            self._makers.clear()  # a thread that did not end in time still uses them
        while len(self._makers) < num_makers:
            self._makers.append(self._new_maker())
        self._on_begin(self._place.epoch, self._place.next_batch)
        producers = [
            _Producer(maker, self._settings.transform, self._place.epoch, self._explain) for maker in self._makers
        ]
        steps = range(self._place.next_batch, self._num_steps)
        if not self._settings.num_threads:
            return InlineBatches(producers[0], steps, self._end_call())
        batches = ThreadedBatches(producers, steps, self._settings, is_cold=self._is_cold, on_end=self._end_call())
        self._threads = batches.threads
        self._is_cold = False
        return batches

    def _end_iteration(self, reason: str) -> None:
        running = self._running and self._running()
        self._running = None
        if running:
            running.close(reason)


class EpochIterator(OfOneProcess):
    """Iteration of a loader. Its threads end when it is collected."""

    _remedy = "load the loader's state_dict() into another loader, and iterate that one"

    def __init__(self, loader: EpochLoader, place: EpochPosition, batches: Batches[Any]) -> None:
        """Give out ``batches`` and update ``place``."""
        self._loader = loader  # keeps the loader alive, and the store that it closes when it is collected
        self._place = place
        self._batches = batches
        self._end_reason: str | None = None

    def __iter__(self) -> EpochIterator:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: The epoch has ended.
            StateError: The loader closed the iteration, or it failed before.
            StoreTimeout: The batch was not ready in time; the message says what each worker is doing.
        """
        if self._end_reason is not None:
            if not self._end_reason:
                raise StopIteration
            raise StateError(f"this iteration was ended because {self._end_reason}")
        self._loader._check_process()
        if self._place.next_batch == len(self._loader):
            self.close()
            self._place.end_epoch()
            raise StopIteration
        try:
            batch = self._batches.take()
            if self._loader.in_caller is not None:
                batch = self._transformed(self._loader.in_caller, batch)
        except BaseException as error:
            self._fail(error)
            raise
        self._place.next_batch += 1
        return batch

    def close(self, reason: str = "") -> None:
        """End the iteration and its threads.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self.stop(reason)
        self._batches.close()

    def stop(self, reason: str) -> None:
        """End the iteration, without waiting for its threads."""
        if self._end_reason is None:
            self._end_reason = reason
        self._batches.stop()

    def _transformed(self, in_caller: Transform, batch: Any) -> Any:
        try:
            return in_caller(batch)
        except BaseException as error:
            _add_place(error, self._place.epoch, self._place.next_batch, IN_TRANSFORM)
            raise

    def _fail(self, error: BaseException) -> None:
        """End the iteration; the next one begins with the batch that was not given out."""
        if self._end_reason is not None:
            return  # another thread ended this iteration, and another iteration may use the position by now
        self._batches.stop()
        if isinstance(error, Exception):
            self._end_reason = "it raised an error; iterate the loader again to repeat the same batch"
            self._place.resume()
        else:  # an interrupt means that the consumer leaves early
            self._end_reason = "it was interrupted; iterate the loader again for the next epoch"
