"""Checks that a sampling server keeps its word over any sequence of calls, leases and crashes.

Two clients act at random on a service with real loaders over a small graph, beside a model that says which batch must
come. After every step the state of the service is compared with what it must be.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from hopstream.buffers import BufferPool
from hopstream.dataset.layout import open_dataset
from hopstream.errors import ChannelLost, StateError, StoreUnavailable
from hopstream.load.loader import NeighborLoader
from hopstream.store.local import LocalStore
from hopstream.stream.messages import decode_batch, encode_options, recipe_digest
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.failures import raise_error
from hopstream.transport.messages import Frame
from tests.load.graphs import flat
from tests.stream.fakes import settle
from tests.stream.frames import sent
from tests.stream.serving import write_timed_parts

NUM_STEPS, NUM_EPOCHS, WORLD_SIZE = 6, 3, 2
CONFIGS = tuple({"num_neighbors": [fanout, 2], "batch_size": 10, "rng_seed": 3, "shuffle": True} for fanout in (2, 3))
BUFFER_BYTES = 20_000
"""Room for a few batches, so that channels stop hoarding now and then."""
LEASE_S = 1000.0
STEPS = st.integers(0, NUM_STEPS - 1)
Batches = list[list[dict[str, object]]]


class World:
    """A dataset, and the batches that its loaders give when nothing disturbs them."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self.path = write_timed_parts(Path(self._folder.name), [1])[1]

    def open(self) -> LocalStore:
        return LocalStore(open_dataset(self.path))

    @cache  # noqa: B019 - one world for all examples
    def wanted(self, config: int, rank: int) -> Batches:
        """Batches of each epoch."""
        with NeighborLoader(
            self.path, seeds=("paper", None), rank=rank, world_size=WORLD_SIZE, collate="numpy", num_threads=0,
            **CONFIGS[config],
        ) as loader:  # fmt: skip
            assert len(loader) == NUM_STEPS
            return [[flat(batch) for batch in loader] for _ in range(NUM_EPOCHS)]


WORLDS: list[World] = []


@pytest.fixture(scope="module", autouse=True)
def world():
    WORLDS.append(World())
    yield
    WORLDS.pop()._folder.cleanup()


@dataclass(eq=False)
class Model:
    """A client's view of its channel."""

    client: int
    config: int
    channel_id: int
    backend_id: int
    key: str
    first: int
    stride: int
    credit: int
    turn: int = -1
    epoch: int = -1
    asked: set[int] = field(default_factory=set)
    is_there: bool = True

    @property
    def own(self) -> list[int]:
        return list(range(self.first, NUM_STEPS, self.stride))


class ClientsOfAService(RuleBasedStateMachine):
    """Two clients, two ways of sampling, two sampling threads, and a clock that a rule moves."""

    channels: Bundle[Model] = Bundle("channels")

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []
        self.now = 0.0
        self.numbers = itertools.count()

    @initialize()
    def begin_service(self) -> None:
        limits = SamplingLimits(threads=2, buffer_bytes=BUFFER_BYTES, lease_s=LEASE_S, max_channels=6)
        self.service = SamplingService(WORLDS[0].open, limits)
        self.scheduler = self.service._scheduler
        self.scheduler._clock = lambda: self.now

    def teardown(self) -> None:
        if not hasattr(self, "service"):
            return
        for model in self.models:
            if model.is_there:
                self.destroy(model)
        assert settle(self.scheduler)["num_buffered_bytes"] == 0
        assert not any(backend.channels for backend in self.service._backends.values())
        assert self.service.close() == []

    def ask(self, op: str, arrays: Any = (), **header: Any) -> list[Frame]:
        """The service's answer; raises the error that it holds."""
        request = sent(Frame(header, arrays))
        frames = [sent(answer) for answer in self.service.operations[op](request)]
        for frame in frames:
            raise_error(frame, "the service", op)
        return frames

    @rule(
        target=channels, client=st.integers(0, 1), config=st.integers(0, 1), first=st.integers(0, 2),
        stride=st.integers(1, 3), credit=st.integers(1, 3),
    )  # fmt: skip
    def register(self, client: int, config: int, first: int, stride: int, credit: int) -> Model:
        options, arrays = encode_options(CONFIGS[config])
        named = {"backend_key": f"config {config}", "loader": "NeighborLoader", "options": options}
        backend_id = self.ask("init_sampling_backend", arrays, **named)[0].header["backend_id"]
        inputs, _ = encode_options({"seeds": ("paper", None), "rank": client, "world_size": WORLD_SIZE})
        key = f"{client} {next(self.numbers)}"
        header = {
            "backend_id": backend_id, "config": recipe_digest("NeighborLoader", options, arrays), "worker_key": key,
            "options": inputs, "first": first, "stride": stride, "credit": credit,
        }  # fmt: skip
        model = Model(client, config, -1, backend_id, key, first, stride, credit)
        if sum(one.is_there for one in self.models) == 6:
            with pytest.raises(StoreUnavailable, match=r"the maximum \("):
                self.ask("register_sampling_input", **header)
            model.is_there = False
        else:
            model.channel_id = self.ask("register_sampling_input", **header)[0].header["channel_id"]
            again = self.ask("register_sampling_input", **header)[0].header["channel_id"]
            assert again == model.channel_id
        self.models.append(model)
        return model

    @rule(
        model=channels, turns=st.integers(-1, 1), epoch=st.integers(0, NUM_EPOCHS - 1), first=st.integers(0, NUM_STEPS)
    )
    def start(self, model: Model, turns: int, epoch: int, first: int) -> None:
        turn = max(0, model.turn + turns)
        header = {"channel_id": max(0, model.channel_id), "turn": turn, "epoch": epoch, "first_step": first}
        if not model.is_there:
            with pytest.raises(ChannelLost):
                self.ask("start_new_epoch_sampling", **header)
            return
        self.ask("start_new_epoch_sampling", **header)
        if (turn, epoch) > (model.turn, model.epoch):
            model.turn, model.epoch, model.asked = turn, epoch, set()

    @rule(model=channels, step=STEPS, lowest=st.integers(0, NUM_STEPS))
    def fetch(self, model: Model, step: int, lowest: int) -> None:
        header = {
            "channel_id": max(0, model.channel_id), "turn": max(0, model.turn), "step": step, "lowest": lowest,
            "wait_s": 20.0,
        }  # fmt: skip
        if not model.is_there or model.epoch < 0:
            with pytest.raises(StateError if model.is_there else ChannelLost):
                self.ask("fetch_one_sampled_message", **header)
            return
        before = self.described(model)
        (frame,) = self.ask("fetch_one_sampled_message", **header)
        model.asked.add(step)
        wanted = WORLDS[0].wanted(model.config, model.client)[model.epoch][step]
        assert flat(decode_batch(frame, BufferPool(0))) == wanted
        after = self.described(model)
        assert after["num_fetched"] == before["num_fetched"] + 1
        assert after["num_epoch_fetched"] == before["num_epoch_fetched"] + 1

    @rule(model=channels)
    def take_the_epoch(self, model: Model) -> None:
        """Take the share from its first to its last batch by number; then the epoch is done."""
        if not model.is_there or model.epoch < 0:
            return
        for step in model.own:
            self.fetch(model, step, step)
        done = {"channel_id": model.channel_id, "epoch": model.epoch}
        settle(self.scheduler)
        assert self.ask("is_channel_epoch_done", **done)[0].header == {"is_done": True}

    @rule(model=channels, turn=st.integers(0, 3))
    def fetch_of_another_iteration(self, model: Model, turn: int) -> None:
        if model.is_there and model.epoch >= 0 and turn != model.turn:
            with pytest.raises(ChannelLost if turn < model.turn else StateError):
                self.ask("fetch_one_sampled_message", channel_id=model.channel_id, turn=turn, step=0, wait_s=20.0)

    @rule(model=channels)
    def stall(self, model: Model) -> None:
        """Send no request until the scheduler is idle."""
        totals = settle(self.scheduler)
        if model.is_there:
            known = self.described(model)
            has_room = totals["num_buffered_bytes"] <= BUFFER_BYTES
            if model.epoch >= 0 and has_room and not known["is_epoch_done"]:
                assert known["num_waiting"] >= model.credit
            ahead = known["num_waiting"] - len(model.asked)
            assert ahead <= model.credit

    @rule(model=channels)
    def destroy(self, model: Model) -> None:
        found = self.ask("destroy_sampling_input", channel_id=max(0, model.channel_id))[0].header
        assert found == {"was_there": model.is_there}
        model.is_there = False

    @rule(client=st.integers(0, 1))
    def disconnect(self, client: int) -> None:
        """One client goes silent: its leases expire, and those of the other client, which asks, do not."""
        self.now += 0.6 * LEASE_S
        for model in self.models:
            if model.client != client and model.is_there:
                self.ask("describe_channel", channel_id=model.channel_id)
                self.ask("is_channel_epoch_done", channel_id=model.channel_id, epoch=0)
        self.now += 0.6 * LEASE_S
        self.expire()
        for model in self.models:
            model.is_there = model.is_there and model.client != client

    @rule()
    def let_all_leases_run_out(self) -> None:
        self.now += 2 * LEASE_S
        self.expire()
        for model in self.models:
            model.is_there = False

    @rule()
    def crash(self) -> None:
        """Kill and restart the server, which forgets all channels."""
        self.service.close()
        self.begin_service()
        for model in self.models:
            model.is_there = False

    def expire(self) -> None:
        """Do the work of the scheduler's watch thread."""
        for channel in self.scheduler._expire():
            self.scheduler.on_expired(channel)

    def described(self, model: Model) -> dict[str, Any]:
        (frame,) = self.ask("describe_channel", channel_id=model.channel_id)
        found: dict[str, Any] = frame.header["channel"]
        return found

    @invariant()
    def what_is_kept_is_true(self) -> None:
        if not hasattr(self, "service"):
            return
        there = {model.channel_id: model for model in self.models if model.is_there}
        with self.scheduler._lock:
            channels = dict(self.scheduler._channels)
            waiting = sum(made.message.num_bytes for one in channels.values() for made in one.done.values())
            assert self.scheduler._buffered_bytes == waiting
            for channel_id, channel in channels.items():
                model = there[channel_id]
                assert (channel.turn, channel.epoch) == (model.turn, model.epoch)
                held = set(channel.done) | set(channel.in_flight)
                assert len(held - model.asked) <= channel.credit
                assert held <= set(model.own) | model.asked
                is_done = channel.cursor >= NUM_STEPS and not channel.in_flight and not channel.asked
                assert not (channel.epoch >= 0 and is_done) or channel.is_epoch_done
                assert channel.num_waiters == 0
        assert set(channels) == set(there)
        of_backends: dict[int, dict[str, int]] = {}
        for model in there.values():
            of_backends.setdefault(model.backend_id, {})[model.key] = model.channel_id
        with self.service._lock:
            known = {
                backend_id: {key: channel_id for key, (_, channel_id) in backend.channels.items()}
                for backend_id, backend in self.service._backends.items()
                if backend.channels
            }
        assert known == of_backends


TestClientsOfAService = ClientsOfAService.TestCase
TestClientsOfAService.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
