"""Do channels of real loaders get equal shares of the sampling, and does nobody pay for a consumer that never reads?"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import ChannelLost
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.write import write_parts
from hopstream.store.connection import Connection
from hopstream.store.local import LocalStore
from hopstream.store.security import Location
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import Frame, decode_frame, encode_frame
from hopstream.stream.messages import encode_options, recipe_digest
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from tests.stream.fakes import Call, settle
from tests.stream.test_fairness import check_fair, jain_index

BATCH_SIZES = (20, 40, 80, 160, 320, 640, 1280, 2560)
CREDIT = 8
WARM_S, MEASURE_S, ROUND_S, NUM_ROUNDS = 3.0, 15.0, 1.0, 11
MOST_SLOWED = 0.05
pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rmat")
    graph = rmat_graph(16, edges_per_node=16, num_features=100, num_classes=4, rng_seed=1)
    write_parts(graph, folder / "parts", num_parts=1)
    return folder / "parts"


class Bench:
    """A server with two sampling threads; channels are made and asked past its transport."""

    def __init__(self, folder: Path) -> None:
        limits = SamplingLimits(threads=2, lease_s=3600.0, slow_s=3600.0)
        self.service = SamplingService(lambda: LocalStore(open_dataset(folder)), limits)
        self._places: dict[int, tuple[int, int]] = {}
        self._store = LocalStore(open_dataset(folder))
        self.server = StoreServer(self._store, operations=self.service.operations)

    def close(self) -> None:
        self.service.close()
        self.server.close()
        self._store.close()

    def ask(self, op: str, arrays: Any = (), **header: Any) -> Frame:
        request = decode_frame(encode_frame(header, arrays))
        (answer,) = self.service.operations[op](request)
        return decode_frame(answer)

    def open_channel(self, batch_size: int, key: str = "") -> int:
        options, arrays = encode_options({"num_neighbors": [15, 10], "batch_size": batch_size, "shuffle": True})
        named = {"backend_key": f"{batch_size}", "loader": "NeighborLoader", "options": options}
        backend_id = self.ask("init_sampling_backend", arrays, **named).header["backend_id"]
        inputs, _ = encode_options({"seeds": None})
        channel_id: int = self.ask(
            "register_sampling_input", backend_id=backend_id, config=recipe_digest("NeighborLoader", options, arrays),
            worker_key=f"{key} {batch_size}", options=inputs, first=0, stride=1, credit=CREDIT,
        ).header["channel_id"]  # fmt: skip
        self.ask("start_new_epoch_sampling", channel_id=channel_id, epoch=0, turn=0)
        return channel_id

    def consume(self, channel_id: int, is_over: Callable[[], bool]) -> int:
        """Take batch after batch, epoch after epoch, from where the last call ended; how many."""
        (known,) = self.service.describe(channel_id)
        num_steps, num_taken = int(str(known["num_steps"])), 0
        turn, first = self._places.get(channel_id, (0, 0))
        while True:
            for step in range(first, num_steps):
                if is_over():
                    self._places[channel_id] = turn, step
                    return num_taken
                header = {"channel_id": channel_id, "turn": turn, "step": step, "lowest": step, "wait_s": 30.0}
                assert "batch" in self.ask("fetch_one_sampled_message", **header).header
                num_taken += 1
            turn, first = turn + 1, 0
            self.ask("start_new_epoch_sampling", channel_id=channel_id, epoch=turn, turn=turn)

    def sampling_s(self) -> dict[int, float]:
        return {int(str(one["channel_id"])): float(str(one["sampling_s"])) for one in self.service.describe()}


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    yield bench
    bench.close()


def test_channels_of_very_different_batches_get_equal_time(bench: Bench) -> None:
    ends = threading.Event()
    channels = [bench.open_channel(batch_size) for batch_size in BATCH_SIZES]
    calls = [Call(lambda c=channel_id: bench.consume(c, ends.is_set)) for channel_id in channels]
    try:
        time.sleep(WARM_S)
        before = bench.sampling_s()
        time.sleep(MEASURE_S)
        after = bench.sampling_s()
    finally:
        ends.set()
        num_taken = [call.result() for call in calls]
    shares = {n: after[channel_id] - before[channel_id] for n, channel_id in enumerate(channels)}
    mean_s = statistics.mean(shares.values())
    spread = [round(share / mean_s, 3) for share in shares.values()]
    costs_ms = [round(1e3 * after[c] / known_made(bench, c), 2) for c in channels]
    print(f"a batch takes {costs_ms} ms")  # noqa: T201
    assert max(costs_ms) > 3 * min(costs_ms)
    print(f"shares {spread}, Jain {jain_index(shares.values()):.4f}, batches {num_taken}")  # noqa: T201
    check_fair(shares)


def known_made(bench: Bench, channel_id: int) -> int:
    (known,) = bench.service.describe(channel_id)
    return int(str(known["num_made"]))


@contextmanager
def never_fetching(bench: Bench) -> Iterator[None]:
    """A channel in an epoch that nobody asks for anything."""
    channel_id = bench.open_channel(640, "never fetched")
    settle(bench.service._scheduler)
    yield
    bench.ask("destroy_sampling_input", channel_id=channel_id)


@contextmanager
def never_draining(bench: Bench) -> Iterator[None]:
    """A stream of an epoch, whose first message is all that is read of it."""
    channel_id = bench.open_channel(640, "never drained")
    has_come, may_end = threading.Event(), threading.Event()

    class Reader:
        def take(self, frame: Frame) -> None:
            has_come.set()
            assert may_end.wait(120)

    header = {"op": "fetch_sampled_messages", "dataset": bench.server._answers._store.dataset_id, "step": 0}
    request = encode_frame({**header, "channel_id": channel_id, "turn": 0, "wait_s": 30.0})
    with ExitStack() as stack:
        channel = Connection(Location.parse(bench.server.location), StoreSettings())
        stack.callback(channel.close)
        call = Call(lambda: channel.call(request, 120.0, "fetch_sampled_messages", Reader()))
        assert has_come.wait(60)
        settle(bench.service._scheduler)  # until the transport takes no more, and the credit is used up
        yield
        bench.ask("destroy_sampling_input", channel_id=channel_id)
        may_end.set()
        with suppress(ChannelLost):  # unless all of the epoch was on its way by then
            call.result()


@pytest.mark.parametrize("idle", [never_fetching, never_draining])
def test_a_consumer_that_never_reads_does_not_slow_the_others(bench: Bench, idle: Callable[[Bench], Any]) -> None:
    """Rounds with and without it alternate, and which comes first; the median of their ratios counts."""
    channels = [bench.open_channel(batch_size) for batch_size in (160, 320, 640)]

    def made_per_s() -> float:
        """Of the processor's seconds, so that what others take of the machine is not laid to anyone."""
        ends = time.monotonic() + ROUND_S
        started, cpu_started = sum(seeds_made()), time.process_time()
        for call in [Call(lambda c=c: bench.consume(c, lambda: time.monotonic() >= ends)) for c in channels]:
            call.result()
        return (sum(seeds_made()) - started) / (time.process_time() - cpu_started)

    def seeds_made() -> list[float]:
        known = {one["channel_id"]: float(str(one["num_made"])) for one in bench.service.describe()}
        return [known[channel_id] * size for channel_id, size in zip(channels, (160, 320, 640), strict=True)]

    made_per_s()
    ratios = []
    for number in range(NUM_ROUNDS):
        speeds = {}
        for is_there in (number % 2 == 0, number % 2 == 1):
            with ExitStack() as stack:
                if is_there:
                    stack.enter_context(idle(bench))
                speeds[is_there] = made_per_s()
        ratios.append(speeds[True] / speeds[False])
    print(f"{idle.__name__}: {statistics.median(ratios):.3f} of {sorted(np.round(ratios, 3).tolist())}")  # noqa: T201
    assert statistics.median(ratios) >= 1 - MOST_SLOWED
