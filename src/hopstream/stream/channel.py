"""State that a server keeps of one input of one compute rank, and the choice of its next batch.

A channel is soft state: it can be made anew from the request that registered it, and any of its batches can be made
again, because a batch is a pure function of the input, the epoch and its number.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hopstream.transport.messages import Frame

COST_WEIGHT = 0.3
"""How much the last batch says about what the next one will take."""


class MessageMaker(Protocol):
    """Makes batches as messages; one thread uses one."""

    @property
    def stage(self) -> str:
        """What it is doing."""
        ...

    def __call__(self, epoch: int, step: int) -> Frame:
        """Make one batch; a failure is a message too."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Made:
    """What came of the making of a batch: its message, or that of its failure."""

    message: Frame
    has_failed: bool = False
    num_bytes: int = field(init=False)
    """Bytes of the message's arrays."""

    def __post_init__(self) -> None:
        """Count the bytes once."""
        self.num_bytes = self.message.num_bytes


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryWait:
    """What a channel knows of the memory that its next batch found no room in, or still waits for.

    Attributes:
        taken_bytes: The batch is made again when messages take less than this; they did not leave it enough.
        in_the_way: Messages, and batches being made, that did not leave it enough; dead when they are gone.
        num_overtaken: Batches of other channels that were begun while it had its turn and no memory.
        held_since_s: Since when nothing else is begun, by the scheduler's clock; None where others go on.
        has_failed_alone: A batch found no room though no message took any.
    """

    taken_bytes: float = math.inf
    in_the_way: list[weakref.ref[object]] = field(default_factory=list)
    num_overtaken: int = 0
    held_since_s: float | None = None
    has_failed_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The batches of an epoch that a server makes without being asked for each: every ``stride``-th from ``first`` on.

    Attributes:
        first: Number of the first; no batch before it is in the share.
        stride: Distance to the next.
        num_steps: Batches of the epoch, those of other servers included.
    """

    first: int
    stride: int
    num_steps: int

    def from_step(self, step: int) -> int:
        """The first batch of the share that is not before ``step``."""
        step = max(step, self.first)
        return step + (self.first - step) % self.stride

    @property
    def num_own(self) -> int:
        """Batches of the share."""
        return max(0, -(-(self.num_steps - self.first) // self.stride))


@dataclass(slots=True, kw_only=True)
class ChannelStats:
    """What a channel has had done since it was registered.

    Attributes:
        num_made: Batches, failures and repetitions included.
        num_failed: Batches that failed.
        num_fetched: Batches that were given out, repetitions included.
        num_bytes: Their bytes.
        sampling_s: Seconds of sampling threads.
    """

    num_made: int = 0
    num_failed: int = 0
    num_fetched: int = 0
    num_bytes: int = 0
    sampling_s: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class SampledChannel:
    """One input of one compute rank. Every field is read and written under the scheduler's lock.

    Attributes:
        channel_id: Its key, which nobody but the compute rank is told and nobody can guess.
        backend_id: The backend it belongs to.
        worker_key: The compute rank's own key of it, which nobody else is told.
        worker: Whose it is, for people.
        number: Its number on this server, for people.
        input_bytes: Bytes of the input that was registered.
        payer: Who answers for the time it takes: what it owes when it goes is owed by the payer's next channel.
        loader: Name of the loader's class that makes its batches.
        share: Batches that are made ahead.
        credit: Most batches that are being made or wait.
        max_bytes: Bytes of waiting messages above which no batch is made ahead.
        new_job: Makes what makes batches; called once per thread that works for the channel.
        arrived: Tells whoever waits for a batch.
        turn: Number of the iteration, ascending; -1 before the first.
        epoch: The epoch under way; -1 before the first.
        cursor: The next batch of the share that is made ahead.
        lowest: The consumer has all batches before this one.
        asked: Batches that somebody asked for, in the order of asking.
        made_early: Batches past the cursor that were asked for, and so are not made ahead.
        late: Batches that were not there when they were asked for, and have not been fetched since; to when they were
            asked for or made last, by the scheduler's clock.
        in_flight: Batches being made.
        done: Messages that wait to be fetched.
        idle_jobs: Jobs that no thread uses.
        virtual_s: Seconds of sampling that it was given, as the scheduler compares them.
        cost_s: What a batch takes.
        batch_bytes: Bytes of the largest batch so far.
        needs_all: A batch found no room, so the next one is made alone.
        wait: What is known of the memory that it waits for.
        used_at: When it was asked for last, by the scheduler's clock.
        num_waiters: Calls that wait for a batch now.
        num_sending: Messages that were given out and have not left the server.
        is_destroyed: It is gone; batches under way are thrown away.
        num_epoch_fetched: Batches of the epoch under way that were fetched, repetitions included.
        made_at: When it was registered, by the scheduler's clock.
        stats: What it has had done.
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
        """Start an epoch at one of its batches; what is left of the epoch before is thrown away."""
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
        """See to it that a batch is made, before all that is made ahead."""
        if step in self.done or step in self.in_flight or step in self.asked:
            return
        self.asked[step] = None
        if step >= self.cursor and self.share.from_step(step) == step:
            self.made_early.add(step)

    def skip_to(self, lowest: int) -> None:
        """Throw away what waits before ``lowest``, and make nothing before it that nobody asks for by its number."""
        for step in [step for step in self.done if step < lowest]:
            self.take(step)
        self.lowest = max(self.lowest, lowest)
        self.cursor = max(self.cursor, self.share.from_step(lowest))
        self.made_early = {step for step in self.made_early if step >= self.cursor}
        self.late = {step: at_s for step, at_s in self.late.items() if step >= lowest}

    def has_work(self, *, may_hoard: bool) -> bool:
        """Whether there is a batch to make now; ``may_hoard`` allows for more than one that waits."""
        if self.is_destroyed or self.epoch < 0:
            return False
        if self.asked:
            return True
        may_hoard = may_hoard and self.num_buffered_bytes < self.max_bytes
        num_held = len(self.done) + len(self.in_flight)
        return self._next_ahead() is not None and num_held < (self.credit if may_hoard else 1)

    def take_work(self) -> int:
        """The number of the next batch to make, which is in flight from now on; only where there is one."""
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

    def put_back(self, step: int) -> None:
        """See to it that a batch is made again that could not be made, or kept: first of all, if it was asked for."""
        self.in_flight.discard(step)
        if step in self.late:
            self.asked = {step: None, **self.asked}
        elif step >= self.lowest and self.share.from_step(step) == step:
            if step < self.cursor:
                self.made_early.update(range(step + self.share.stride, self.cursor, self.share.stride))
                self.cursor = step
            self.made_early.discard(step)

    def end_wait(self) -> None:
        """Forget that a batch found no room."""
        self.needs_all = False
        self.wait = MemoryWait()

    def spare(self, forgotten_before_s: float) -> list[int]:
        """Batches that make way for those that are asked for.

        They are those that nobody has asked for, the ones that are needed last first, and then those that were not
        fetched and not asked for since ``forgotten_before_s``.
        """
        ahead = sorted((step for step in self.done if step not in self.late), reverse=True)
        return ahead + [step for step, at_s in self.late.items() if at_s < forgotten_before_s and step in self.done]

    def take(self, step: int) -> Made | None:
        """Take a batch that waits, if it does."""
        made = self.done.pop(step, None)
        if made is not None:
            self.late.pop(step, None)
        return made

    def forgotten(self) -> int | None:
        """The batch that was asked for first and not fetched, where there are more than somebody waits for."""
        late = [step for step in self.done if step in self.late]
        return late[0] if len(late) > self.num_waiters and len(self.done) > 1 else None

    def charge(self, seconds: float) -> None:
        """Remember what a batch took."""
        known = self.stats.num_made
        self.cost_s = seconds if not known else (1 - COST_WEIGHT) * self.cost_s + COST_WEIGHT * seconds
        self.stats.num_made += 1
        self.stats.sampling_s += seconds

    @property
    def iteration(self) -> tuple[int, int]:
        """What a batch must have been made for to be one of those under way."""
        return self.turn, self.epoch

    @property
    def is_epoch_done(self) -> bool:
        """Every batch of the share has been made."""
        return self.epoch >= 0 and self._next_ahead() is None and not self.in_flight and not self.asked

    @property
    def is_mid_epoch(self) -> bool:
        """Some batch of the epoch under way has not been made, or not been fetched."""
        return self.epoch >= 0 and not (self.is_epoch_done and not self.done)

    @property
    def num_buffered_bytes(self) -> int:
        """Bytes of messages that wait."""
        return sum(made.num_bytes for made in self.done.values())

    def _next_ahead(self) -> int | None:
        """The next batch of the share that nobody has asked for already; None after the last."""
        while self.cursor in self.made_early:
            self.made_early.discard(self.cursor)
            self.cursor += self.share.stride
        return self.cursor if self.cursor < self.share.num_steps else None
