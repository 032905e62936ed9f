"""Every channel of a server gets the same share of the threads, whatever others cost, and if one is parked.

Channels are those of a DistServer that is called in its process, or of loaders that ask servers over the network.
Sampling takes a time of its own, in which a batch takes exactly what it is said to take.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.glt.distributed import dist_server as dist_server_of_parts
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.stream import service
from hopstream.stream.messages import encode_batch
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits
from tests.compat.gigl.conftest import Connect
from tests.compat.gigl.ring import write_ring
from tests.stream.fakes import DEADLINE_S, FakeTime
from tests.stream.test_fairness import jain_index

CONFIG = SamplingConfig(SamplingType.NODE, [2], 1, False, False, True, True, False, False, "in", 7)
CAPACITY = 4
COSTS_S = (0.002, 0.003, 0.005, 0.008, 0.013, 0.025, 0.040)
"""What batches of the channels of one backend take."""
NUM_BATCHES = (200, 100, 40, 60, 20, 30, 10)
"""Their epochs; one begins anew when it ends."""
PARKED = len(COSTS_S)
NUM_BATCHES_OF = (*NUM_BATCHES, 101)
"""As above, and of the parked one; numbers differ, so that they name channels."""
FOR_S = 4.0


class FakeInput:
    """Stands in for the loader of a channel: its batches only take time."""

    def __init__(self, world: FakeWorld, given: NodeSamplerInput) -> None:
        self.world, (self.backend, self.number), self.stage = world, given.node[:2].tolist(), "pretending"
        self.num_batches = len(given)

    def __len__(self) -> int:
        return self.num_batches

    def close(self) -> None:
        """There is nothing to close."""

    def __call__(self, epoch: int, step: int) -> Any:
        self.world.work(self.backend, self.number)
        return producer._Message({"batch": torch.tensor([step])})


class FakeWorld:
    """Which batches were made and read. A backend has one thread, which begins no batch before readers have all."""

    def __init__(self, num_backends: int) -> None:
        self.time = FakeTime(num_backends, FOR_S)
        self.changed = threading.Condition()
        self.num_made: Counter[tuple[int, int]] = Counter()
        self.num_read: Counter[tuple[int, int]] = Counter()
        self.is_over = False

    def work(self, backend: int, number: int) -> None:
        with self.changed:
            readers = [(backend, reader) for reader in range(PARKED)]
            assert self.changed.wait_for(
                lambda: self.is_over or all(self.num_read[r] == self.num_made[r] for r in readers), DEADLINE_S
            )
        self.time.sleep(COSTS_S[number % PARKED])
        with self.changed:
            self.num_made[backend, number] += 1

    def read(self, server: DistServer, backend: int, number: int, channel: int) -> None:
        """Read epoch after epoch; a batch counts as read when the next one can be made."""
        for epoch in range(1_000_000):
            server.start_new_epoch_sampling(channel, epoch)
            for step in range(NUM_BATCHES[number]):
                if step or epoch:
                    self.has_read(backend, number)
                message, _ = server.fetch_one_sampled_message(channel)
                if message is None:
                    assert self.is_over
                    return
                assert message["batch"].tolist() == [step]
            assert self.is_over or server.fetch_one_sampled_message(channel) == (None, True)

    def has_read(self, backend: int, number: int) -> None:
        with self.changed:
            self.num_read[backend, number] += 1
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        self.time.release()


@pytest.mark.parametrize("num_backends", [1, 3])
def test_a_parked_consumer_and_unequal_inputs(tmp_path: Path, monkeypatch, num_backends: int) -> None:
    world = FakeWorld(num_backends)
    monkeypatch.setattr(producer, "Scheduler", partial(Scheduler, clock=world.time))
    monkeypatch.setattr(
        producer.SharedDistSamplingBackend, "_new_loader", lambda _, given: (FakeInput(world, given), None)
    )
    monkeypatch.setattr(producer, "_Job", lambda loader, form: loader)
    server = DistServer(DistDataset(write_ring(tmp_path / "ring", 1)))
    options = RemoteDistSamplingWorkerOptions(num_workers=1, worker_concurrency=CAPACITY)
    readers: list[threading.Thread] = []
    channels: dict[int, tuple[int, int]] = {}
    backends = []
    for backend in range(num_backends):
        backend_id = server.init_sampling_backend(
            InitSamplingBackendRequest(f"loader {backend}", options, KHopNeighborSamplerOptions([2]), CONFIG)
        )
        backends.append(server._backends[backend_id].runtime)
        for number in (PARKED, *range(PARKED)):
            nodes = torch.zeros(100 if number == PARKED else NUM_BATCHES[number], dtype=torch.int64)
            nodes[:2] = torch.tensor([backend, number])
            given = NodeSamplerInput(nodes)
            channel = server.register_sampling_input(
                RegisterBackendRequest(backend_id, f"rank {number}", given, CONFIG, CAPACITY, "1MB")
            )
            channels[channel] = backend, number
            if number == PARKED:
                server.start_new_epoch_sampling(channel, 0)
            else:
                readers.append(threading.Thread(target=world.read, args=(server, backend, number, channel)))
    for reader in readers:
        reader.start()
    world.time.run()
    known = [one for backend in backends for one in backend._scheduler.describe()]
    shares = {channels[int(str(one["channel_id"]))]: float(str(one["sampling_s"])) for one in known}
    world.end()
    server.shutdown()
    for reader in readers:
        reader.join(DEADLINE_S)
    server.dataset.close()
    assert not any(reader.is_alive() for reader in readers)
    others = [share for (_, number), share in shares.items() if number != PARKED]
    assert len(others) == num_backends * PARKED and jain_index(others) >= 0.97, shares
    for backend in range(num_backends):
        assert sum(share for (of, _), share in shares.items() if of == backend) > 0.95 * FOR_S
        assert world.num_made[backend, PARKED] >= CAPACITY
        assert shares[backend, PARKED] <= (CAPACITY + 1) * COSTS_S[0]  # what waits on the server, then no more


class LoaderWorld:
    """A server whose only thread begins a batch when all loaders but the parked one want more of theirs.

    Loader ``n`` samples around node ``n`` alone, so a batch tells whose it is.
    """

    def __init__(self) -> None:
        self.time = FakeTime(1, FOR_S)
        self.scheduler: Scheduler | None = None
        self.is_over = False

    def new_scheduler(self, limits: SamplingLimits) -> Scheduler:
        """The scheduler of the server, in fake time."""
        assert self.scheduler is None
        self.scheduler = Scheduler(limits, self.time)
        return self.scheduler

    def work(self, number: int) -> None:
        """Make a batch of a loader."""
        scheduler, ends, pause = self.scheduler, time.monotonic() + DEADLINE_S, threading.Event()
        assert scheduler is not None
        while not self.is_over:
            with scheduler._lock:
                wanted = {NUM_BATCHES_OF.index(one.share.num_steps) for one in scheduler._runnable.values()}
                has_parked = PARKED in (NUM_BATCHES_OF.index(c.share.num_steps) for c in scheduler._channels.values())
            if has_parked and wanted | {number, PARKED} == set(range(PARKED + 1)):
                break
            assert time.monotonic() < ends, wanted
            pause.wait(0.0005)
        self.time.sleep(COSTS_S[number % PARKED])

    def read(self, loader: DistNeighborLoader) -> None:
        """Read epoch after epoch."""
        while not self.is_over:
            for _ in loader:
                if self.is_over:
                    break

    def shares(self) -> dict[int, float]:
        """Seconds of sampling of every loader."""
        assert self.scheduler is not None
        return {
            NUM_BATCHES_OF.index(one["num_steps"]): float(str(one["sampling_s"])) for one in self.scheduler.describe()
        }

    def end(self) -> None:
        """Let everything go on without taking time, to its end."""
        self.is_over = True
        self.time.release()


def test_loaders_of_unequal_inputs_and_a_parked_one(tmp_path: Path, monkeypatch, connect: Connect) -> None:
    world = LoaderWorld()

    def call(job: Any, epoch: int, step: int) -> Any:
        batch = job._maker.make(epoch, step)
        world.work(int(batch.node_keys["node"][0]))
        return encode_batch(batch)

    monkeypatch.setattr(service, "Scheduler", world.new_scheduler)
    monkeypatch.setattr(service._BatchJob, "__call__", call)
    limits = SamplingLimits(threads=1, lease_s=1e9, slow_s=1e9)
    monkeypatch.setattr(dist_server_of_parts, "SamplingLimits", lambda: limits)
    dataset = connect(write_ring(tmp_path / "ring", 1), 1)
    loaders = [
        DistNeighborLoader(dataset, [2], {0: torch.full((NUM_BATCHES_OF[number],), number)}, prefetch_size=CAPACITY)
        for number in range(PARKED + 1)
    ]
    parked = threading.Thread(target=lambda: next(iter(loaders[PARKED])))
    readers = [threading.Thread(target=world.read, args=(loader,)) for loader in loaders[:PARKED]]
    for thread in (parked, *readers):
        thread.start()
    try:
        world.time.run()
        shares = world.shares()
    finally:
        world.end()
        for thread in (parked, *readers):
            thread.join(DEADLINE_S)
        for loader in loaders:
            loader.shutdown()
    assert not any(thread.is_alive() for thread in (parked, *readers))
    assert set(shares) == set(range(PARKED + 1))
    assert jain_index(shares[number] for number in range(PARKED)) >= 0.97, shares
    assert sum(shares.values()) > 0.95 * FOR_S
    assert CAPACITY * COSTS_S[0] <= shares[PARKED] <= 3 * CAPACITY * COSTS_S[0]  # what waits here and there
