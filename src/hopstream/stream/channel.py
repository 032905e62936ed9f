"""Channel of a sampling server: state of one compute rank's input, and the choice of its next batch.

The state is soft. A channel can be restored from its registration, and its batches can be made again: a batch is a
pure function of the input, the epoch and its number.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hopstream.transport.messages import Frame

COST_WEIGHT = 0.3
"""Weight of the last batch in the moving average of a batch's cost."""


class MessageMaker(Protocol):
    """Maker of batches as messages, for one thread."""

    @property
    def stage(self) -> str:
        """Name of the current stage."""
        ...

    def __call__(self, epoch: int, step: int) -> Frame:
        """Make one batch; a failure is also a message."""
        ...

    def together(self, epoch: int, steps: Sequence[int]) -> list[Frame]:
        """Make several batches; called only for a channel whose ``group`` is larger than one."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Made:
    """Outcome of making a batch: a message with the batch or with an error."""

    message: Frame
    has_failed: bool = False
    num_bytes: int = field(init=False)
    """Bytes of the message's arrays."""

    def __post_init__(self) -> None:
        """Sum the bytes once."""
        self.num_bytes = self.message.num_bytes


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryWait:
    """Facts about the memory that a channel's next batch lacks.

    Attributes:
        taken_bytes: Bytes of messages when the batch failed. It is retried when messages take less.
        in_the_way: Weak references to messages and claims that held the memory; dead once the memory is free.
        num_overtaken: Batches of other channels that started while this channel had its turn but no memory.
        held_since_s: Time since which no other batch may start, by the scheduler's clock; None if others may start.
        has_failed_alone: A batch found no room although no message took memory.
    """

    taken_bytes: float = math.inf
    in_the_way: list[weakref.ref[object]] = field(default_factory=list)
    num_overtaken: int = 0
    held_since_s: float | None = None
    has_failed_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Batches of an epoch that a server makes ahead: every ``stride``-th from ``first`` on.

    Attributes:
        first: Number of the first batch.
        stride: Distance between batches.
        num_steps: Batches of the epoch, including those of other servers.
    """

    first: int
    stride: int
    num_steps: int

    def from_step(self, step: int) -> int:
        """Return the first batch of the share at or after ``step``."""
        step = max(step, self.first)
        return step + (self.first - step) % self.stride

    @property
    def num_own(self) -> int:
        """Number of batches in the share."""
        return max(0, -(-(self.num_steps - self.first) // self.stride))


@dataclass(slots=True, kw_only=True)
class ChannelStats:
    """Counters of a channel since its registration.

    Attributes:
        num_made: Batches made, including failed and repeated ones.
        num_failed: Batches that failed.
        num_fetched: Batches handed out, including repeated ones.
        num_bytes: Bytes of the batches handed out.
        sampling_s: Time of sampling threads, in seconds.
    """

    num_made: int = 0
    num_failed: int = 0
    num_fetched: int = 0
    num_bytes: int = 0
    sampling_s: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class SampledChannel:
    """Channel of one input of one compute rank. Every access to a field needs the scheduler's lock.

    Attributes:
        channel_id: Secret key of the channel; only the compute rank receives it.
        backend_id: Backend of the channel.
        worker_key: Secret key that the compute rank chose.
        worker: Readable name of the compute rank.
        number: Readable number of the channel on this server.
        input_bytes: Bytes of the registered input.
        payer: Account for sampling time; time that the channel still owes when it ends passes to the payer's next one.
        loader: Class name of the loader that makes the batches.
        share: Batches that are made ahead.
        credit: Largest number of batches that are being made or wait.
        group: Number of batches that one thread makes together, once it is not the epoch's first.
        max_bytes: Bytes of waiting messages above which no batch is made ahead.
        new_job: Constructor of makers; called once per thread that works for the channel.
        arrived: Condition that wakes calls waiting for a batch.
        turn: Number of the iteration, ascending; -1 before the first.
        epoch: Current epoch; -1 before the first.
        cursor: Next batch of the share to make ahead.
        lowest: The consumer has all batches before this one.
        asked: Requested batches, in the order of requests.
        made_early: Requested batches at or after the cursor, which are not made ahead again.
        late: Batches that were not ready when requested, and have not been fetched since; with the time of the last
            request or completion, by the scheduler's clock.
        in_flight: Batches being made.
        done: Messages that wait to be fetched.
        idle_jobs: Makers that no thread uses.
        virtual_s: Virtual time of the fair queue, in seconds of sampling.
        cost_s: Estimated seconds per batch.
        batch_bytes: Bytes of the largest batch so far.
        needs_all: A batch found no room, so the next one is made alone.
        wait: State of waiting for memory.
        used_at: Time of the last request, by the scheduler's clock.
        num_waiters: Calls that wait for a batch now.
        num_sending: Messages handed out that have not left the server.
        is_destroyed: The channel is closed; batches under way are dropped.
        num_epoch_fetched: Fetched batches of the current epoch, including repeated ones.
        made_at: Time of registration, by the scheduler's clock.
        stats: Counters since registration.
    """

    channel_id: int
    backend_id: int
    worker_key: str
    share: Share
    credit: int
    new_job: Callable[[], MessageMaker]
    arrived: threading.Condition
    worker: str = ""
    number: int = 0
    input_bytes: int = 0
    payer: str = ""
    loader: str = ""
    group: int = 1
    max_bytes: float = math.inf
    turn: int = -1
    epoch: int = -1
    cursor: int = 0
    lowest: int = 0
    asked: dict[int, None] = field(default_factory=dict)
    made_early: set[int] = field(default_factory=set)
    late: dict[int, float] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    done: dict[int, Made] = field(default_factory=dict)
    idle_jobs: list[MessageMaker] = field(default_factory=list)
    virtual_s: float = 0.0
    cost_s: float = 0.0
    batch_bytes: int = 0
    needs_all: bool = False
    wait: MemoryWait = field(default_factory=MemoryWait)
    used_at: float = 0.0
    num_waiters: int = 0
    num_sending: int = 0
    is_destroyed: bool = False
    num_epoch_fetched: int = 0
    made_at: float = 0.0
    stats: ChannelStats = field(default_factory=ChannelStats)

    def begin(self, turn: int, epoch: int, first_step: int) -> None:
        """Start an epoch at one of its batches, and drop the rest of the epoch before."""
        self.turn, self.epoch, self.num_epoch_fetched = turn, epoch, 0
        self.cursor, self.lowest = self.share.from_step(first_step), 0
        self.asked.clear()
        self.made_early.clear()
        self.late.clear()
        self.in_flight.clear()
        self.done.clear()
        self.end_wait()
        self.arrived.notify_all()

    def ask(self, step: int) -> None:
        """Request a batch; requested batches are made before all batches made ahead."""
        if step in self.done or step in self.in_flight or step in self.asked:
            return
        self.asked[step] = None
        if step >= self.cursor and self.share.from_step(step) == step:
            self.made_early.add(step)

    def skip_to(self, lowest: int) -> None:
        """Drop batches before ``lowest``, and make none of them unless requested by number."""
        for step in [step for step in self.done if step < lowest]:
            self.take(step)
        self.lowest = max(self.lowest, lowest)
        self.cursor = max(self.cursor, self.share.from_step(lowest))
        self.made_early = {step for step in self.made_early if step >= self.cursor}
        self.late = {step: at_s for step, at_s in self.late.items() if step >= lowest}

    def has_work(self, *, may_hoard: bool) -> bool:
        """Return whether there is a batch to make; ``may_hoard`` allows ``credit`` unfetched ones, not just 1."""
        if self.is_destroyed or self.epoch < 0:
            return False
        if self.asked:
            return True
        if self._next_ahead() is None:
            return False
        num_held = len(self.done) + len(self.in_flight)
        if not may_hoard or self.num_buffered_bytes >= self.max_bytes:
            return num_held < 1
        return num_held + self.num_together <= self.credit

    def take_work(self) -> int:
        """Take the next batch to make, and mark it in flight; there must be one."""
        if self.asked:
            step = next(iter(self.asked))
            del self.asked[step]
        else:
            ahead = self._next_ahead()
            assert ahead is not None  # noqa: S101 - has_work said so
            step = ahead
            self.cursor = step + self.share.stride
        self.in_flight.add(step)
        return step

    def take_group(self, most: int) -> list[int]:
        """Take the next batch to make, and the others to make with it, ``most`` at most."""
        most = min(most, self.num_together, self.credit - len(self.done) - len(self.in_flight))
        steps = [self.take_work()]
        while len(steps) < most and (self.asked or self._next_ahead() is not None):
            steps.append(self.take_work())
        return steps

    @property
    def num_together(self) -> int:
        """Number of batches to make together: 1 with little credit, and fewer while an epoch begins."""
        return min(self.group, 1 + self.num_epoch_fetched) if self.credit >= 2 * self.group else 1

    def put_back(self, step: int) -> None:
        """Schedule a batch again that was dropped or could not be made; a requested batch comes first."""
        self.in_flight.discard(step)
        if step in self.late:
            self.asked = {step: None, **self.asked}
        elif step >= self.lowest and self.share.from_step(step) == step:
            if step < self.cursor:
                self.made_early.update(range(step + self.share.stride, self.cursor, self.share.stride))
                self.cursor = step
            self.made_early.discard(step)

    def end_wait(self) -> None:
        """Clear the state of waiting for memory."""
        self.needs_all = False
        self.wait = MemoryWait()

    def spare(self, forgotten_before_s: float) -> list[int]:
        """Return the batches that may be dropped to make room for requested batches.

        First come batches that were not requested, the last needed first. Then come batches that were requested, but
        neither fetched nor requested again since ``forgotten_before_s``.
        """
        ahead = sorted((step for step in self.done if step not in self.late), reverse=True)
        return ahead + [step for step, at_s in self.late.items() if at_s < forgotten_before_s and step in self.done]

    def take(self, step: int) -> Made | None:
        """Take a waiting batch; None if it does not wait."""
        made = self.done.pop(step, None)
        if made is not None:
            self.late.pop(step, None)
        return made

    def forgotten(self) -> int | None:
        """Return the oldest unfetched requested batch, if there are more such batches than waiting calls."""
        late = [step for step in self.done if step in self.late]
        return late[0] if len(late) > self.num_waiters and len(self.done) > 1 else None

    def charge(self, seconds: float) -> None:
        """Record the time that a batch took."""
        known = self.stats.num_made
        self.cost_s = seconds if not known else (1 - COST_WEIGHT) * self.cost_s + COST_WEIGHT * seconds
        self.stats.num_made += 1
        self.stats.sampling_s += seconds

    @property
    def iteration(self) -> tuple[int, int]:
        """Turn and epoch; a batch for another iteration is dropped."""
        return self.turn, self.epoch

    @property
    def is_epoch_done(self) -> bool:
        """Whether every batch of the share has been made."""
        return self.epoch >= 0 and self._next_ahead() is None and not self.in_flight and not self.asked

    @property
    def is_mid_epoch(self) -> bool:
        """Whether some batch of the current epoch has not been made or not been fetched."""
        return self.epoch >= 0 and not (self.is_epoch_done and not self.done)

    @property
    def num_buffered_bytes(self) -> int:
        """Bytes of waiting messages."""
        return sum(made.num_bytes for made in self.done.values())

    def _next_ahead(self) -> int | None:
        """Return the next batch of the share that was not requested early; None after the last."""
        while self.cursor in self.made_early:
            self.made_early.discard(self.cursor)
            self.cursor += self.share.stride
        return self.cursor if self.cursor < self.share.num_steps else None
