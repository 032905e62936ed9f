"""Checks that any two concurrent calls of clients have the outcomes of one order or of the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.graph_store.shared_dist_sampling_producer import SharedDistSamplingBackend
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.errors import StoreUnavailable
from tests.compat.gigl.ring import check_ring_batch, write_ring

CONFIGS = [
    SamplingConfig(SamplingType.NODE, [2], 4, is_shuffled, False, True, True, False, False, "in", 7)
    for is_shuffled in (False, True)
]
OPTIONS = RemoteDistSamplingWorkerOptions(num_workers=1, prefetch_size=2, worker_concurrency=2)
DEADLINE_S = 10.0
NUM_PLACES = 8
"""More releases of locks than any call makes."""
BLOCKED_S = 0.02
"""Seconds that a call pauses for another one, which may be waiting for its lock."""
DATASETS: list[DistDataset] = []
There = dict[int, tuple[int, set[int]]]
"""Backend id to its key and the ids of its channels."""


@pytest.fixture(scope="module", autouse=True)
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = write_ring(tmp_path_factory.mktemp("ring") / "ring", 1)
    DATASETS.append(DistDataset(folder))
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads meet in more places
    real = SharedDistSamplingBackend.__init__

    def make(backend: SharedDistSamplingBackend, **options: Any) -> None:
        real(backend, **options)
        backend._lock = PausingLock(backend._lock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedDistSamplingBackend, "__init__", make)
        yield
    sys.setswitchinterval(interval_s)
    DATASETS.pop().close()


@dataclass(eq=False)
class Backend:
    """Backend facts that clients know."""

    backend_id: int
    key: int
    is_there: bool = True
    channels: list[Channel] = field(default_factory=list)


@dataclass(eq=False)
class Channel:
    """A client's view of its channel; ``left`` holds the seeds of the epoch that have not come."""

    channel_id: int
    backend: Backend
    num_seeds: int
    epoch: int = -1
    left: set[int] = field(default_factory=set)
    is_there: bool = True


@dataclass(eq=False)
class Operation:
    """One call of a client, and its outcome.

    Attributes:
        kind: The call.
        key: Key of the requested backend.
        backend: The backend at which an input is registered.
        channel: The channel that is started, read or destroyed.
        number: Number of registered seeds, or the started epoch.
        outcome: The answer, or the error.
    """

    kind: str
    key: int
    backend: Backend | None
    channel: Channel | None
    number: int
    outcome: Any = None

    def after(self, there: There, may_fail: bool) -> There | None:
        """The server's state after this call, or None if the call may not have this outcome."""
        there = {number: (key, set(channels)) for number, (key, channels) in there.items()}
        outcome = self.outcome
        if may_fail and isinstance(outcome, (KeyError, RuntimeError, StoreUnavailable)):
            return there if self.kind in ("init", "register") else None
        if self.kind == "init":
            known = [number for number, (key, _) in there.items() if key == self.key]
            there.setdefault(outcome, (self.key, set()))
            return there if known in ([], [outcome]) else None
        if self.kind == "register":
            if self.backend is None or self.backend.backend_id not in there:
                return there if isinstance(outcome, KeyError) else None
            there[self.backend.backend_id][1].add(outcome)
            return there
        if isinstance(outcome, Exception):
            return None
        if self.kind == "destroy" and self.channel is not None:
            number = self.channel.backend.backend_id
            if number in there and self.channel.channel_id in there[number][1]:
                there[number][1].discard(self.channel.channel_id)
                if not there[number][1]:
                    del there[number]
        return {} if self.kind == "shut_down" else there


KINDS = ("init", "register", "start", "fetch", "destroy", "shut_down")


class Pause:
    """The point at which the first call waits for the second: after a number of lock releases."""

    def __init__(self, num_released: int) -> None:
        self.left, self.first = num_released, threading.current_thread()
        self.is_reached, self.has_other_ended = threading.Event(), threading.Event()

    def released(self) -> None:
        if threading.current_thread() is self.first:
            self.left -= 1
            if self.left == 0:
                self.is_reached.set()
                self.has_other_ended.wait(BLOCKED_S)


PAUSES: list[Pause] = []


class PausingLock:
    """A lock whose releases are places for a pause."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        for pause in PAUSES:
            pause.released()


def at_once(*works: Callable[[], Any], num_released: int = 0) -> list[Any]:
    """Run each function in a thread of its own; return their answers or errors.

    They start together. With ``num_released``, the second starts when the first has released locks that often, and the
    first continues when the second has ended or waits for a lock.
    """
    barrier = threading.Barrier(len(works), timeout=DEADLINE_S)
    outcomes: list[Any] = [None] * len(works)
    pause = Pause(num_released)
    PAUSES[:] = [pause] if num_released else []

    def run(place: int) -> None:
        if place == 0:
            pause.first = threading.current_thread()
        barrier.wait()
        if place and num_released:
            pause.is_reached.wait(DEADLINE_S)
        try:
            outcomes[place] = works[place]()
        except Exception as error:
            outcomes[place] = error
        (pause.has_other_ended if place else pause.is_reached).set()

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a call did not return"
    return outcomes


class Clients:
    """Loaders of two kinds, on any number of ranks."""

    def __init__(self) -> None:
        self.known: list[Backend] = []
        self.ids: set[int] = set()
        self.server = DistServer(DATASETS[0], log_every_n=3)
        self.server._lock = PausingLock(self.server._lock)

    def init(self, key: int) -> Backend:
        self.known.append(Backend(self.server.init_sampling_backend(self.asking(key)), key))
        return self.known[-1]

    def register(self, backend: Backend, num_seeds: int) -> Channel:
        request = self.registration(backend, range(num_seeds))
        channel = Channel(self.server.register_sampling_input(request), backend, num_seeds)
        self.ids.add(channel.channel_id)
        backend.channels.append(channel)
        return channel

    def asking(self, key: int) -> InitSamplingBackendRequest:
        return InitSamplingBackendRequest(f"{key}", OPTIONS, KHopNeighborSamplerOptions([2]), CONFIGS[key])

    def registration(self, backend: Backend, seeds: Any) -> RegisterBackendRequest:
        given = NodeSamplerInput(torch.tensor(list(seeds), dtype=torch.int64))
        return RegisterBackendRequest(backend.backend_id, "rank", given, CONFIGS[backend.key], 2, "1MB")

    def start(self, channel: Channel, epoch: int) -> None:
        self.server.start_new_epoch_sampling(channel.channel_id, epoch)
        channel.epoch, channel.left = epoch, set(range(channel.num_seeds))

    def fetch_all(self, channel: Channel) -> None:
        assert sorted(self.read_all(channel)) == (sorted(channel.left) if channel.is_there else [])

    def two_at_once(self, one: tuple[str, int, int, int], other: tuple[str, int, int, int], num_released: int) -> None:
        """Check that outcomes and state are those of one order of the calls or of the other."""
        operations = [self.operation(*one), self.operation(*other)]
        before = self.there()
        outcomes = at_once(*[lambda o=operation: self.run(o) for operation in operations], num_released=num_released)
        for operation, outcome in zip(operations, outcomes, strict=True):
            operation.outcome = outcome
        found = {
            number: (int(state.backend_key), set(state.active_channels))
            for number, state in self.server._backends.items()
        }
        assert found in [self.after(before, operations), self.after(before, operations[::-1])], operations
        for operation in operations:
            self.note(operation)
        for backend in self.known:
            backend.is_there = backend.backend_id in found
            for channel in backend.channels:
                channel.is_there = backend.is_there and channel.channel_id in found[backend.backend_id][1]
        self.check_messages(*operations)

    def operation(self, kind: str, key: int, place: int, number: int) -> Operation:
        channels = [channel for backend in self.known for channel in backend.channels]
        backend = self.known[place % len(self.known)] if self.known else None
        channel = channels[place % len(channels)] if channels else None
        if kind in ("start", "fetch", "destroy") and channel is None:
            kind = "init"
        return Operation(kind, key, backend, channel, number)

    def run(self, given: Operation) -> Any:
        channel_id = -1 if given.channel is None else given.channel.channel_id
        if given.kind == "init":
            return self.server.init_sampling_backend(self.asking(given.key))
        if given.kind == "register":
            backend = given.backend or Backend(99, given.key)
            request = self.registration(backend, range(given.number))
            return self.server.register_sampling_input(request)
        if given.kind == "start":
            return self.server.start_new_epoch_sampling(channel_id, given.number)
        if given.kind == "fetch":
            return self.server.fetch_one_sampled_message(channel_id)
        if given.kind == "destroy":
            return self.server.destroy_sampling_input(channel_id)
        return self.server.shutdown()

    def after(self, there: There | None, operations: list[Operation]) -> There | None:
        ends = any(operation.kind in ("destroy", "shut_down") for operation in operations)
        for operation in operations:
            there = None if there is None else operation.after(there, ends)
        return there

    def note(self, given: Operation) -> None:
        """Record the backend or channel that a call has made."""
        if isinstance(given.outcome, Exception):
            return
        if given.kind == "init" and given.outcome not in {one.backend_id for one in self.known}:
            self.known.append(Backend(given.outcome, given.key))
        if given.kind == "register":
            assert given.backend is not None and given.outcome not in self.ids
            self.ids.add(given.outcome)
            given.backend.channels.append(Channel(given.outcome, given.backend, given.number))

    def check_messages(self, *operations: Operation) -> None:
        """Check that a fetch returns a batch of a known epoch, and that seeds of the last one come once."""
        for channel in {one.channel for one in operations if one.kind in ("start", "fetch")} - {None}:
            ours = [one for one in operations if one.channel is channel or one.kind == "shut_down"]
            messages = [one.outcome[0] for one in ours if one.kind == "fetch" and one.outcome[0] is not None]
            taken = [seed for message in messages for seed in message["batch"].tolist()]
            for message in messages:
                check_ring_batch(message["node"], message["edge_index"], message["x"], message["batch"])
            started = max([one.number for one in ours if one.kind == "start"], default=-1)
            is_new = started > channel.epoch
            seeds = set(range(channel.num_seeds)) if is_new else set()
            assert len(set(taken)) == len(taken) and set(taken) <= channel.left | seeds
            if is_new:
                channel.epoch = started
            if not channel.is_there:
                continue
            rest = self.read_all(channel)
            assert len(set(rest)) == len(rest)
            if is_new:
                assert seeds - set(rest) in (set(), set(taken))  # the fetch was of the last epoch, or of this one
            else:
                assert set(rest) == channel.left - set(taken) and not set(rest) & set(taken)
            channel.left = set()

    def read_all(self, channel: Channel) -> list[int]:
        found: list[int] = []
        while (message := self.server.fetch_one_sampled_message(channel.channel_id)[0]) is not None:
            found += message["batch"].tolist()
        return found

    def there(self) -> There:
        """The backends and channels that clients know of."""
        return {
            backend.backend_id: (backend.key, {one.channel_id for one in backend.channels if one.is_there})
            for backend in self.known
            if backend.is_there
        }

    def check_what_is_kept(self) -> None:
        there = {number: channels for number, (_, channels) in self.there().items()}
        assert {key: state.active_channels for key, state in self.server._backends.items()} == there
        assert self.server.left == sorted(set().union(*there.values()))


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_call_in_the_middle_of_another(first: str, second: str) -> None:
    """At each release of a lock by the first call, with one channel or two of the backend."""
    for num_channels, num_released in product((1, 2), range(1, NUM_PLACES)):
        clients = Clients()
        backend = clients.init(0)
        for _ in range(num_channels):
            clients.start(clients.register(backend, 9), 1)
        clients.two_at_once((first, 0, 0, 3), (second, 0, num_channels - 1, 5), num_released)
        clients.check_what_is_kept()
        for channel in backend.channels:
            clients.fetch_all(channel)
        clients.server.shutdown()
