"""Epochs of batches: a consumer goes through them, leaves them early, saves its place and comes back.

Loaders differ in how one batch is made; iteration, threads, saved states and closing are the same for all of them.

Two numbers say where: the epoch, and how many of its batches the consumer was given. Everything else follows from the
loader's settings, so a saved state carries those only to refuse a loader that would go on with other batches.
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
"""What decides over a loader's batches, by the name that a message uses; JSON values only."""
KIND = "kind"
"""The fact that says what kind of loader it is."""
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
"""Facts that say nothing to a reader, and what it means that they differ."""


@dataclass(slots=True)
class EpochPosition:
    """The next batch of a loader.

    Attributes:
        epoch: The epoch under way, or the next one where ``next_batch`` is 0.
        next_batch: Batches of that epoch which the consumer was given.
        is_resuming: The place was restored, or an iteration failed at it, so the next iteration goes on from it.
    """

    epoch: int = 0
    next_batch: int = 0
    is_resuming: bool = field(default=False, repr=False)

    def begin(self) -> None:
        """Begin an iteration: where the last one was left early, with the next epoch."""
        if self.next_batch and not self.is_resuming:
            self.epoch += 1
            self.next_batch = 0
        self.is_resuming = False

    def resume(self) -> None:
        """Let the next iteration go on from here, because this one failed."""
        self.is_resuming = True

    def end_epoch(self) -> None:
        """The consumer has had all batches of the epoch."""
        self.epoch += 1
        self.next_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; where the next iteration would go on in that very epoch, it still does.

        Raises:
            StateError: ``epoch`` is not an integer from 0 to 2**63 - 1.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
            raise StateError(f"epoch is {epoch!r}; epochs are 0, 1, … up to 2**63 - 1")
        if not (self.is_resuming and epoch == self.epoch):
            self.epoch, self.next_batch, self.is_resuming = epoch, 0, False

    def to_json(self, facts: Facts) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back, with what decides over the batches."""
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
            StateError: The value is no saved state, or one of a loader that makes other batches; the message names what
                differs.
        """
        record = _fields_of(value)
        found, epoch, next_batch = record["loader"], record["epoch"], record["next_batch"]
        for name in sorted({**facts, **found}, key=lambda name: name != KIND):
            # An option that was not there when the state was saved was off.
            if facts.get(name) != found.get(name) and (name in found or facts[name] is not False):
                raise StateError(_difference(name, found.get(name), facts.get(name)))
        for name, number, most in (("epoch", epoch, MAX_EPOCH), ("next_batch", next_batch, num_steps)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
                raise StateError(f"the state's {name} is {number!r}; it is 0 to {most}")
        return cls(epoch, next_batch, is_resuming=True)


def _difference(name: str, found: object, own: object) -> str:
    """What a message says about a fact in which a state and a loader differ."""
    if name == KIND and found is not None:
        return f"the state is of a {found}; this is a {own}: load it into a loader of the kind that saved it"
    if name in FINGERPRINTS:
        return f"the state is of a loader over {FINGERPRINTS[name]}; make this one from what that one was made from"
    return f"the state is of a loader with {name} {found!r}; this loader has {own!r}"


def _fields_of(value: object) -> Mapping[str, Any]:
    """The fields of a saved state, all of them there."""
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
"""Gives the error to raise where damage led to this one, or the same."""


class Maker(Protocol):
    """Makes any batch of any epoch; one thread uses one maker."""

    stage: str
    """What it is doing, for messages about batches that take too long."""

    def make(self, epoch: int, step: int) -> Any:
        """Make one batch; equal arguments give equal batches."""
        ...


class _Producer:
    """Makes the batches of one epoch in one thread, and calls the user's transform."""

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
        """Make a batch; what a user gives was checked before, so ids outside their ranges come from damaged files."""
        try:
            return self._maker.make(self._epoch, step)
        except (FormatError, IdRangeError) as error:
            explained = error if self._explain is None else self._explain(error)
            if explained is error:
                raise
            raise explained from error


def _add_place(error: BaseException, epoch: int, step: int, stage: str) -> None:
    """Add to an error which batch it belongs to.

    Raises:
        RuntimeError: The error is a ``StopIteration``, which would end the consumer's loop without a word.
    """
    where = f"while batch {step} of epoch {epoch} was made ({stage})"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"StopIteration was raised {where}") from error
    error.add_note(where)


class EpochLoader(OfOneProcess):
    """Batches of one epoch per iteration; one iteration is alive at a time, and starting another closes it."""

    _remedy = (
        "make one in each process, from the same source and settings; its threads replace the workers of a DataLoader, "
        "and load_state_dict(loader.state_dict()) goes on in another process"
    )

    def __init__(
        self, *, num_steps: int, new_maker: Callable[[], Maker], settings: ConsumerSettings,
        explain: Explain | None = None,
    ) -> None:  # fmt: skip
        """Prepare epochs of ``num_steps`` batches; ``new_maker`` is called once per thread, ``explain`` for errors."""
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
        """A second transform, called in the thread that takes the batch."""

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches of one epoch on this rank."""
        return self._num_steps

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to give a batch by its number, which is what a ``torch.utils.data.DataLoader`` asks for.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{type(self).__name__} is iterated, and gives no batch by number: {self._remedy}")

    @property
    def epoch(self) -> int:
        """The epoch under way; between iterations, the next one."""
        return self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration the given epoch; an iteration that is alive is closed.

        Not needed: each iteration is the next epoch by itself. Directly after ``load_state_dict``, or after an error in
        the middle of an epoch, naming that epoch leaves the place in it as it is.

        Raises:
            StateError: ``epoch`` is not an integer, 0 or above.
        """
        self._end_iteration("set_epoch was called")
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """A small JSON value that says which batches the consumer was given.

        It holds nothing of the rank, so that all ranks may load what one of them saved.
        """
        return self._place.to_json(self._all_facts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the last batch that was given out when ``state`` was saved; a live iteration is closed.

        Raises:
            StateError: ``state`` is no saved state, or that of a loader whose batches would differ.
        """
        place = EpochPosition.from_json(state, self._all_facts, self._num_steps)
        self._end_iteration("load_state_dict was called")
        self._place = place

    def __iter__(self) -> EpochIterator:
        """Start the next epoch, or go on with the one that was restored or that an error ended.

        Raises:
            StateError: The loader is closed.
            StoreTimeout: A thread of the iteration before did not end in time; the place stays as it is.
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
        """End the iteration that is alive, and its threads; a second call does nothing.

        Raises:
            StoreTimeout: A thread did not end in time.
        """
        self._is_closed = True
        self._end_iteration("the loader was closed")
        self._makers.clear()

    def stop(self, reason: str) -> None:
        """End the iteration that is alive, and do not wait for its threads; ``close`` does."""
        running = self._running and self._running()
        if running:
            running.stop(reason)

    def maker(self) -> Maker:
        """What makes any batch in the caller's thread, beside all iterations; one thread uses one."""
        return self._new_maker()

    def __enter__(self) -> Self:
        """Use the loader as a context that closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the loader."""
        self.close()

    @cached_property
    def _all_facts(self) -> Facts:
        """The facts, and the kind of the loader; kept, because fingerprints of large inputs take a while."""
        return {KIND: class_name(self), **self.facts()}

    def _check_process(self) -> None:
        """Refuse to go on in a fork, where the loader's threads are not."""
        if os.getpid() != self._process:
            raise StateError(
                f"the loader was made in process {self._process} and is used in {os.getpid()}; make it there, or start "
                "workers with spawn"
            )

    def _on_begin(self, epoch: int, step: int) -> None:
        """An iteration begins with a batch of an epoch; before any maker makes one."""

    def _end_call(self) -> Callable[[], None]:
        """What to call when an iteration has ended: batches that are being made are not wanted any more."""
        return lambda: None

    def _start(self) -> Batches[Any]:
        """Start making the batches from the place onwards."""
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
    """One iteration of a loader; losing the last reference to it ends its threads."""

    _remedy = "load the loader's state_dict() into another loader, and iterate that one"

    def __init__(self, loader: EpochLoader, place: EpochPosition, batches: Batches[Any]) -> None:
        """Hand out ``batches`` and keep ``place`` up to date."""
        self._loader = loader  # keeps the loader alive, and the store that it closes when it is collected
        self._place = place
        self._batches = batches
        self._end_reason: str | None = None

    def __iter__(self) -> EpochIterator:
        """The iterator itself."""
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: The epoch has ended.
            StateError: The iteration was closed by the loader, or failed before.
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
        """End the iteration, and do not wait for its threads."""
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
            return  # another thread ended this iteration, and the place may be that of another one by now
        self._batches.stop()
        if isinstance(error, Exception):
            self._end_reason = "it raised an error; iterate the loader again to go on with the same batch"
            self._place.resume()
        else:  # an interrupt is the consumer leaving early, wherever it strikes
            self._end_reason = "it was interrupted; iterate the loader again for the next epoch"
