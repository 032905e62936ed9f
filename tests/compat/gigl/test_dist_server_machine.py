"""A DistServer keeps the promises of its documentation over any sequence of calls of several clients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from tests.compat.gigl.ring import check_ring_batch, write_ring

CONFIGS = [
    SamplingConfig(SamplingType.NODE, [2], 4, is_shuffled, False, True, True, False, False, "in", 7)
    for is_shuffled in (False, True)
]
OPTIONS = RemoteDistSamplingWorkerOptions(num_workers=1, prefetch_size=2, worker_concurrency=2)
NUM_THREADS = 3
DATASETS: list[DistDataset] = []


@pytest.fixture(scope="module", autouse=True)
def dataset(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = write_ring(tmp_path_factory.mktemp("ring") / "ring", 1)
    DATASETS.append(DistDataset(folder))
    yield
    DATASETS.pop().close()


@dataclass(eq=False)
class Backend:
    """What clients know of a backend."""

    backend_id: int
    key: int
    is_there: bool = True
    channels: list[Channel] = field(default_factory=list)


@dataclass(eq=False)
class Channel:
    """What a client knows of its channel; ``left`` are the seeds of the epoch that have not come."""

    channel_id: int
    backend: Backend
    num_seeds: int
    epoch: int = -1
    left: set[int] = field(default_factory=set)
    is_there: bool = True


def in_threads(work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return [one.result(60.0) for one in [pool.submit(work) for _ in range(NUM_THREADS)]]


class ClientsOfADistServer(RuleBasedStateMachine):
    """Loaders of two kinds, on any number of ranks; a rank's calls come in order or from several threads at once."""

    backends: Bundle[Backend] = Bundle("backends")
    channels: Bundle[Channel] = Bundle("channels")

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Backend] = []
        self.ids: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self.server = DistServer(DATASETS[0], log_every_n=3)

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.shut_down()

    @rule(target=backends, key=st.integers(0, 1), is_raced=st.booleans())
    def init(self, key: int, is_raced: bool) -> Backend:
        request = InitSamplingBackendRequest(f"{key}", OPTIONS, KHopNeighborSamplerOptions([2]), CONFIGS[key])

        def ask() -> int:
            return self.server.init_sampling_backend(request)

        (found,) = set(in_threads(ask) if is_raced else [ask()])
        for backend in self.known:
            if backend.key == key and backend.is_there:
                assert backend.backend_id == found
                return backend
        assert found not in {backend.backend_id for backend in self.known}
        self.known.append(Backend(found, key))
        return self.known[-1]

    @rule(target=channels, backend=backends, num_seeds=st.integers(0, 11))
    def register(self, backend: Backend, num_seeds: int) -> Channel:
        request = self.registration(backend, CONFIGS[backend.key], range(num_seeds))
        channel = Channel(-1, backend, num_seeds)
        if not backend.is_there:
            with pytest.raises(KeyError, match="call init_sampling_backend"):
                self.server.register_sampling_input(request)
            channel.is_there = False
            return channel
        channel.channel_id = self.server.register_sampling_input(request)
        assert channel.channel_id not in self.ids
        self.ids.add(channel.channel_id)
        backend.channels.append(channel)
        return channel

    @rule(backend=backends)
    def register_what_is_refused(self, backend: Backend) -> None:
        if backend.is_there:
            with pytest.raises(ValueError, match="its backend samples with"):
                self.server.register_sampling_input(self.registration(backend, CONFIGS[1 - backend.key], [1]))
            with pytest.raises(IndexError):
                self.server.register_sampling_input(self.registration(backend, CONFIGS[backend.key], [1000]))

    def registration(self, backend: Backend, config: SamplingConfig, seeds: Any) -> RegisterBackendRequest:
        given = NodeSamplerInput(torch.tensor(list(seeds), dtype=torch.int64))
        return RegisterBackendRequest(backend.backend_id, "rank", given, config, 2, "1MB")

    @rule(channel=channels, later=st.integers(-1, 2))
    def start(self, channel: Channel, later: int) -> None:
        """Also an epoch that has been, which changes nothing, and one in the middle of the last."""
        epoch = channel.epoch + later
        if channel.channel_id < 0:
            with pytest.raises(RuntimeError, match="there is no channel"):
                self.server.start_new_epoch_sampling(channel.channel_id, epoch)
            return
        self.server.start_new_epoch_sampling(channel.channel_id, epoch)
        if channel.is_there and later > 0:
            channel.epoch, channel.left = epoch, set(range(channel.num_seeds))

    @rule(channel=channels)
    def fetch_one(self, channel: Channel) -> None:
        self.fetch(channel)

    def fetch(self, channel: Channel) -> bool:
        """Whether there was a message, which is checked."""
        message, is_done = self.server.fetch_one_sampled_message(channel.channel_id)
        if not channel.is_there or not channel.left:
            assert (message, is_done) == (None, True)
            return False
        assert message is not None and not is_done
        check_ring_batch(message["node"], message["edge_index"], message["x"], message["batch"])
        self.take(channel, message["batch"].tolist())
        return True

    def take(self, channel: Channel, seeds: list[int]) -> None:
        assert set(seeds) <= channel.left and len(set(seeds)) == len(seeds) == min(4, len(channel.left))
        channel.left -= set(seeds)

    @rule(channel=channels)
    def fetch_all(self, channel: Channel) -> None:
        while self.fetch(channel):
            pass
        assert not (channel.is_there and channel.left)

    @rule(channel=channels)
    def fetch_all_from_several_threads(self, channel: Channel) -> None:
        def read() -> list[list[int]]:
            found = []
            while (message := self.server.fetch_one_sampled_message(channel.channel_id)[0]) is not None:
                found.append(message["batch"].tolist())
            return found

        batches = [seeds for of_thread in in_threads(read) for seeds in of_thread]
        found = sorted(seed for seeds in batches for seed in seeds)
        assert found == (sorted(channel.left) if channel.is_there else [])
        channel.left = set()

    @rule(channel=channels, is_raced=st.booleans())
    def destroy(self, channel: Channel, is_raced: bool) -> None:
        def ask() -> None:
            self.server.destroy_sampling_input(channel.channel_id)

        if is_raced:
            in_threads(ask)
        ask()
        if channel.is_there:
            channel.is_there = False
            channel.backend.is_there = any(one.is_there for one in channel.backend.channels)

    @rule()
    def shut_down(self) -> None:
        self.server.shutdown()
        for backend in self.known:
            backend.is_there = False
            for channel in backend.channels:
                channel.is_there = False

    @invariant()
    def what_is_kept_is_true(self) -> None:
        if hasattr(self, "server"):
            there = {
                backend.backend_id: {one.channel_id for one in backend.channels if one.is_there}
                for backend in self.known
                if backend.is_there
            }
            assert {key: state.active_channels for key, state in self.server._backends.items()} == there
            assert self.server.left == sorted(set().union(*there.values()))


TestClientsOfADistServer = ClientsOfADistServer.TestCase
TestClientsOfADistServer.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
