"""Checks that the scheduler keeps its word over any sequence of calls, batches and crashes.

Two clients act at random on real threads, beside a model that says which batch must come. After every step the
scheduler's state of its channels is compared with what it must be.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from hopstream.errors import ChannelLost, RemoteError, StateError, StoreTimeout
from hopstream.stream.channel import SampledChannel, Share
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.messages import Frame
from tests.stream.fakes import FETCH_S, MESSAGE_BYTES, Call, Gate, batch_of, message_of, settle, take

MAX_STEPS = 12
NUM_THREADS = 2
EPOCHS = 1000
"""A message's epoch also says which channel it is of: ``channel_id * EPOCHS + epoch``."""
STEPS = st.integers(0, MAX_STEPS - 1)


class CrashError(Exception):
    """Error in the making of a batch."""


class Crashes:
    """Batches that fail, and how often they still will."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_left: dict[tuple[int, int, int], int] = {}

    def plan(self, channel_id: int, epoch: int, step: int, times: int) -> None:
        with self._lock:
            self._num_left[channel_id, epoch, step] = times

    def is_planned(self, channel_id: int, epoch: int, step: int) -> bool:
        with self._lock:
            return self._num_left.get((channel_id, epoch, step), 0) > 0

    def strike(self, channel_id: int, epoch: int, step: int) -> None:
        with self._lock:
            num_left = self._num_left.get((channel_id, epoch, step), 0)
            self._num_left[channel_id, epoch, step] = max(0, num_left - 1)
        if num_left:
            raise CrashError(f"batch {channel_id * EPOCHS + epoch}/{step} crashed")


@dataclass(eq=False)
class Model:
    """A client's view of its channel."""

    client: int
    channel: SampledChannel
    turn: int = -1
    epoch: int = -1
    next_out: int = 0
    asked: set[int] = field(default_factory=set)
    is_there: bool = True

    @property
    def channel_id(self) -> int:
        return self.channel.channel_id

    @property
    def share(self) -> Share:
        return self.channel.share

    def own_from(self, step: int) -> int:
        """The first own batch from a step on, found by counting."""
        while step < self.share.first or (step - self.share.first) % self.share.stride:
            step += 1
        return step

    def message(self, step: int) -> tuple[int, int]:
        return self.channel_id * EPOCHS + self.epoch, step


class Job:
    """Make a channel's messages, unless the gate is closed or a crash is planned."""

    stage = "pretending"

    def __init__(self, channel_id: int, gate: Gate, crashes: Crashes) -> None:
        self._channel_id, self._gate, self._crashes = channel_id, gate, crashes

    def __call__(self, epoch: int, step: int) -> Frame:
        self._gate(epoch, step)
        self._crashes.strike(self._channel_id, epoch, step)
        return message_of(self._channel_id * EPOCHS + epoch, step)

    def together(self, epoch: int, steps: list[int]) -> list[Frame]:
        self._gate(epoch, steps[0])
        if any(self._crashes.is_planned(self._channel_id, epoch, step) for step in steps):
            raise CrashError("one of the batches would crash")
        return [message_of(self._channel_id * EPOCHS + epoch, step) for step in steps]


class ClientsOfAScheduler(RuleBasedStateMachine):
    """Two clients, two sampling threads, and room for four batches before channels stop hoarding."""

    channels: Bundle[Model] = Bundle("channels")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(SamplingLimits(threads=NUM_THREADS, buffer_bytes=4 * MESSAGE_BYTES))
        self.gate = Gate()
        self.gate.open()
        self.crashes = Crashes()
        self.models: list[Model] = []

    def teardown(self) -> None:
        self.gate.open()
        for model in self.models:
            self.scheduler.remove(model.channel_id)
        totals = settle(self.scheduler)
        assert (totals["num_channels"], totals["num_waiting"], totals["num_buffered_bytes"]) == (0, 0, 0)
        assert self.scheduler.close() == []

    @rule(
        target=channels,
        client=st.integers(0, 1),
        share=st.builds(
            Share, first=st.integers(0, 3), stride=st.integers(1, 3), num_steps=st.integers(0, MAX_STEPS)
        ),
        credit=st.integers(1, 4),
        group=st.sampled_from([1, 2, 4]),
    )  # fmt: skip
    def register(self, client: int, share: Share, credit: int, group: int) -> Model:
        channel_id = len(self.models) + 1
        channel = self.scheduler.add(
            channel_id, client, f"client {client}", share,
            credit=credit, group=group, new_job=lambda: Job(channel_id, self.gate, self.crashes),
        )  # fmt: skip
        self.models.append(Model(client, channel))
        return self.models[-1]

    @rule(model=channels, turns=st.integers(-1, 1), epoch=st.integers(0, 3), first_step=st.integers(0, MAX_STEPS + 1))
    def start(self, model: Model, turns: int, epoch: int, first_step: int) -> None:
        turn = max(0, model.turn + turns)
        if not model.is_there:
            with pytest.raises(ChannelLost):
                self.scheduler.begin(model.channel_id, turn, epoch, first_step)
            return
        self.scheduler.begin(model.channel_id, turn, epoch, first_step)
        if (turn, epoch) > (model.turn, model.epoch):
            model.turn, model.epoch = turn, epoch
            model.next_out = model.own_from(first_step)
            model.asked = set()

    @rule(model=channels)
    def fetch_next(self, model: Model) -> None:
        if self.is_refused(model, None):
            return
        step = model.next_out
        if step >= model.share.num_steps:
            assert take(self.scheduler, model.channel_id, step, FETCH_S, model.turn) is None
            return
        model.asked.add(step)
        model.next_out += model.share.stride
        self.take(model, step)

    @rule(model=channels, step=STEPS)
    def fetch_step(self, model: Model, step: int) -> None:
        if not self.is_refused(model, step):
            model.asked.add(step)
            self.take(model, step)

    @rule(model=channels, step=STEPS, ahead=st.integers(0, MAX_STEPS))
    def fetch_from_elsewhere_and_go_on(self, model: Model, step: int, ahead: int) -> None:
        """Other servers gave all batches below ``ahead``, which is below, at or above the requested step."""
        if self.is_refused(model, step):
            return
        model.asked.add(step)
        lowest = min(step, ahead)
        model.next_out = max(model.next_out, model.own_from(lowest)) if lowest else model.next_out
        message = take(self.scheduler, model.channel_id, step, FETCH_S, model.turn, ahead)
        with self.scheduler._lock:
            late = {kept for kept in model.channel.done if kept < lowest}
        assert len(late - model.asked) <= NUM_THREADS, "no more than were under way"
        if self.check(model, step, message):
            self.take(model, step)

    @rule(model=channels, num_fetches=st.integers(1, 6))
    def fetch_some(self, model: Model, num_fetches: int) -> None:
        for _ in range(num_fetches):
            self.fetch_next(model)

    @rule(model=channels, step=STEPS)
    def abandon(self, model: Model, step: int) -> None:
        """A client asks and leaves; its batch is made, or was there already and is lost."""
        if self.is_refused(model, step):
            return
        model.asked.add(step)
        try:
            message = take(self.scheduler, model.channel_id, step, 0.0)
        except StoreTimeout:
            return
        self.check(model, step, message)

    @rule(model=channels)
    def stall(self, model: Model) -> None:
        """Send no request until the scheduler is idle."""
        totals = settle(self.scheduler)
        if model.is_there:
            known = self.scheduler.describe(model.channel_id)[0]
            assert known["num_in_flight"] == 0
            is_full = totals["num_buffered_bytes"] > 4 * MESSAGE_BYTES
            num_waiting = known["num_waiting"]
            assert isinstance(num_waiting, int)
            num_least = 1 if is_full else model.channel.credit + 1 - model.channel.num_together
            assert model.epoch < 0 or known["is_epoch_done"] or num_waiting >= num_least, known

    @rule(model=channels, epoch=st.integers(0, 3), step=STEPS, times=st.integers(1, 2))
    def crash(self, model: Model, epoch: int, step: int, times: int) -> None:
        self.crashes.plan(model.channel_id, epoch, step, times)

    @rule(model=channels)
    def destroy(self, model: Model) -> None:
        assert (self.scheduler.remove(model.channel_id) is not None) == model.is_there
        model.is_there = False

    @rule(client=st.integers(0, 1))
    def disconnect(self, client: int) -> None:
        """A client dies, and its leases run out."""
        for model in self.models:
            if model.client == client and model.is_there:
                self.destroy(model)

    @precondition(lambda self: any(model.is_there and model.epoch >= 0 for model in self.models))
    @rule(
        model=channels,
        steps=st.lists(STEPS, min_size=1, max_size=3),
        change=st.sampled_from(["destroyed", "next epoch", "next iteration"]),
    )
    def change_under_waiters(self, model: Model, steps: list[int], change: str) -> None:
        """While clients wait for batches, their channel is removed or starts another epoch."""
        if not model.is_there or model.epoch < 0:
            return
        self.gate.close()
        steps = [step for step in steps if step < model.share.num_steps]
        model.asked.update(steps)
        epoch = model.channel_id * EPOCHS + model.epoch
        calls = [Call(lambda step=step: take(self.scheduler, model.channel_id, step, FETCH_S)) for step in steps]
        pause = threading.Event()
        while model.channel.num_waiters < sum(not call.has_ended for call in calls):
            pause.wait(0.001)
        if change == "destroyed":
            self.destroy(model)
        elif change == "next epoch":
            self.start(model, 0, model.epoch + 1, 0)
        else:
            self.start(model, 1, 0, 0)
        for call, step in zip(calls, steps, strict=True):
            self.check_outcome(call, epoch, step)
        self.gate.open()

    def check_outcome(self, call: Call, epoch: int, step: int) -> None:
        """Check that a call ended with a batch of the old epoch before the change, or with the change."""
        try:
            batch = batch_of(call.result())
        except ChannelLost:
            return
        except RemoteError as error:
            assert f"batch {epoch}/" in str(error)
            return
        assert batch == (epoch, step)

    @invariant()
    def what_is_kept_is_true(self) -> None:
        with self.scheduler._lock:
            there = {model.channel_id: model.channel for model in self.models if model.is_there}
            assert self.scheduler._channels == there
            assert self.scheduler._buffered_bytes == sum(one.num_buffered_bytes for one in there.values())
            assert self.scheduler._sending_bytes == 0
            for channel_id, channel in there.items():
                assert channel.has_work(may_hoard=True) == (channel_id in self.scheduler._runnable)
                assert channel.num_sending == 0
            assert set(self.scheduler._runnable) <= set(there)
            under_way = {
                (one.channel.channel_id, step) for one in self.scheduler._claims if one.is_needed for step in one.steps
            }
            assert under_way == {(one.channel_id, step) for one in there.values() for step in one.in_flight}

    @invariant()
    def channels_keep_to_their_credit(self) -> None:
        with self.scheduler._lock:
            for model in self.models:
                channel = model.channel
                done, in_flight, asked = set(channel.done), set(channel.in_flight), set(channel.asked)
                assert channel.num_waiters == 0
                if model.is_there:
                    assert len(channel.asked) == len(asked)
                    assert not done & in_flight
                    assert not (done | in_flight) & asked
                    assert len((done | in_flight) - model.asked) <= channel.credit
                    assert asked <= model.asked
                else:
                    assert not done

    def is_refused(self, model: Model, step: int | None) -> bool:
        """Whether there is no batch to fetch; check the error or result of such a call."""
        wanted: type[Exception]
        if not model.is_there:
            wanted = ChannelLost
        elif model.epoch < 0:
            wanted = StateError
        elif step is not None and step >= model.share.num_steps:
            assert take(self.scheduler, model.channel_id, step, FETCH_S) is None
            return True
        else:
            return False
        with pytest.raises(wanted):
            take(self.scheduler, model.channel_id, step or 0, FETCH_S)
        return True

    def take(self, model: Model, step: int) -> None:
        """Fetch a batch, again and again while it crashes."""
        message = take(self.scheduler, model.channel_id, step, FETCH_S, model.turn)
        num_crashes = 0
        while self.check(model, step, message):
            num_crashes += 1
            assert num_crashes <= 3  # a batch from before two more crashes were planned
            message = take(self.scheduler, model.channel_id, step, FETCH_S, model.turn)

    def check(self, model: Model, step: int, message: Any) -> bool:
        """Check that a message is the requested one; return whether it reports its crash."""
        try:
            assert batch_of(message) == model.message(step)
        except RemoteError as error:
            epoch, _ = model.message(step)
            assert f"batch {epoch}/{step} crashed" in str(error)
            return True
        return False


TestClientsOfAScheduler = ClientsOfAScheduler.TestCase
TestClientsOfAScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
