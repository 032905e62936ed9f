"""Checks that all loaders of a server get the same share of its threads, whatever batches cost.

One loader is parked: its consumer takes one batch and no more. Sampling runs in fake time, in which a batch takes
exactly its configured cost.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch

from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.glt.distributed import dist_server as dist_server_of_parts
from hopstream.stream import service
from hopstream.stream.messages import encode_batch
from hopstream.stream.scheduler import Scheduler
from hopstream.stream.settings import SamplingLimits
from tests.compat.gigl.conftest import Connect
from tests.compat.gigl.ring import write_ring
from tests.stream.fakes import DEADLINE_S, FakeTime
from tests.stream.test_fairness import jain_index

CAPACITY = 4
COSTS_S = (0.002, 0.003, 0.005, 0.008, 0.013, 0.025, 0.040)
"""Seconds per batch of each loader."""
NUM_BATCHES = (200, 100, 40, 60, 20, 30, 10)
"""Batches per epoch of each loader; a loader that reaches its end starts the next epoch."""
PARKED = len(COSTS_S)
NUM_BATCHES_OF = (*NUM_BATCHES, 101)
"""Batches per epoch, with the parked loader; all differ, so that they identify loaders."""
FOR_S = 4.0


class LoaderWorld:
    """A server with one thread, which begins a batch when all loaders but the parked one want more.

    Loader ``n`` samples around node ``n`` alone, so a batch names its loader.
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
        """End fake time: let all remaining work run without waiting."""
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
    assert CAPACITY * COSTS_S[0] <= shares[PARKED] <= 3 * CAPACITY * COSTS_S[0]  # batches that wait here and there
