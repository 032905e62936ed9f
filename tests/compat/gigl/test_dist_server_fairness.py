"""Every channel of a DistServer gets the same share of the threads, whatever others cost, and if one is parked.

Sampling takes a time of its own, in which a batch takes exactly what it is said to take.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hopstream.compat.gigl.distributed.graph_store import dist_server
from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.stream.scheduler import Scheduler
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
    monkeypatch.setattr(producer.SharedDistSamplingBackend, "_new_loader", lambda _, given: FakeInput(world, given))
    monkeypatch.setattr(producer, "_Job", lambda loader, form: loader)
    monkeypatch.setattr(dist_server, "FETCH_POLL_S", 0.001)
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
        assert shares[backend, PARKED] <= (2 * CAPACITY + 2) * COSTS_S[0]  # what waits on the server, then no more
