"""Tests of the shared sampling backend: life cycle, errors, and batches of the ring checked by ids."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.graph_store.shared_dist_sampling_producer import (
    SAMPLING_ERROR,
    QueueChannel,
    SharedDistSamplingBackend,
)
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.loading import message_of
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.errors import StoreTimeout
from tests.compat.gigl.channels import CONFIG
from tests.compat.gigl.ring import NUM_NODES, check_ring_batch, write_ring

WAIT_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 2)


@pytest.fixture
def dataset(folder: Path):
    dataset = DistDataset(folder)
    yield dataset
    dataset.close()


def new_backend(
    dataset: DistDataset, options: object = None, config: SamplingConfig = CONFIG
) -> SharedDistSamplingBackend:
    return SharedDistSamplingBackend(
        data=dataset, worker_options=RemoteDistSamplingWorkerOptions(num_workers=2), sampling_config=config,
        sampler_options=options or KHopNeighborSamplerOptions([2, 2]), degree_tensors=None,
    )  # fmt: skip


@pytest.fixture
def backend(dataset: DistDataset):
    backend = new_backend(dataset)
    backend.init_backend()
    yield backend
    backend.shutdown()


def read_epoch(backend: SharedDistSamplingBackend, channel: QueueChannel, num_batches: int) -> list[dict]:
    found = []
    for _ in range(num_batches):
        message = channel.recv(WAIT_S)
        assert message is not None
        found.append(message)
    return found


def test_each_epoch_has_every_seed_once_in_correct_batches(backend: SharedDistSamplingBackend) -> None:
    backend.init_backend()  # a second call does nothing
    channel = QueueChannel(3)
    backend.register_input(5, "rank 0", NodeSamplerInput(torch.arange(NUM_NODES)), CONFIG, channel)
    assert backend.describe_channel(5) == {"epoch": -1, "input_sizes": [20, 20], "completed_workers": 0}
    for epoch in range(2):
        backend.start_new_epoch_sampling(5, epoch)
        backend.start_new_epoch_sampling(5, epoch)  # as does a second start
        found = read_epoch(backend, channel, NUM_NODES // 4)
        assert sorted(torch.cat([m["batch"] for m in found]).tolist()) == list(range(NUM_NODES))
        for message in found:
            check_ring_batch(message["node"], message["edge_index"], message["x"], message["batch"])
        assert backend.is_channel_epoch_done(5, epoch) and channel.recv(WAIT_S) is None
        assert backend.describe_channel(5)["completed_workers"] == 2
    assert backend.is_channel_epoch_done(5, 0) and not backend.is_channel_epoch_done(5, 2)


def test_errors_match_the_documentation(dataset: DistDataset) -> None:
    backend, given = new_backend(dataset), NodeSamplerInput([1, 2])
    with pytest.raises(RuntimeError, match="call init_backend first"):
        backend.register_input(1, "a", given, CONFIG, QueueChannel())
    backend.init_backend()
    backend.register_input(1, "a", given, CONFIG, QueueChannel())
    with pytest.raises(ValueError, match="channel 1 is registered already"):
        backend.register_input(1, "a", given, CONFIG, QueueChannel())
    other = SamplingConfig(SamplingType.NODE, [2, 2], 8, False, False, True, True, False, False, "in", 7)
    with pytest.raises(ValueError, match="its backend samples with"):
        backend.register_input(2, "b", given, other, QueueChannel())
    for ask in (lambda: backend.start_new_epoch_sampling(9, 0), lambda: backend.is_channel_epoch_done(9, 0)):
        with pytest.raises(KeyError, match="channel 9 is not registered"):
            ask()
    with pytest.raises(KeyError, match="channel 9"):
        backend.describe_channel(9)
    backend.unregister_input(9)
    backend.unregister_input(1)
    backend.unregister_input(1)
    backend.shutdown()
    backend.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        backend.init_backend()


def test_a_part_of_a_dataset_alone_needs_its_servers(folder: Path) -> None:
    part = DistDataset(folder, num_partitions=2, partition_idx=1)
    with pytest.raises(RuntimeError, match="call init_server first"):
        new_backend(part).init_backend()
    part.close()


def test_a_stalled_consumer_does_not_block_others(backend: SharedDistSamplingBackend) -> None:
    parked, read = QueueChannel(1), QueueChannel(2)
    for channel_id, channel in ((1, parked), (2, read)):
        backend.register_input(channel_id, f"{channel_id}", NodeSamplerInput(torch.arange(NUM_NODES)), CONFIG, channel)
        backend.start_new_epoch_sampling(channel_id, 0)
    assert len(read_epoch(backend, read, NUM_NODES // 4)) == NUM_NODES // 4
    assert not backend.is_channel_epoch_done(1, 0)
    assert len(read_epoch(backend, parked, NUM_NODES // 4)) == NUM_NODES // 4


def test_a_channel_abandoned_mid_epoch_leaves_no_thread(backend: SharedDistSamplingBackend) -> None:
    channel = QueueChannel(1)
    backend.register_input(1, "a", NodeSamplerInput(torch.arange(NUM_NODES)), CONFIG, channel)
    backend.start_new_epoch_sampling(1, 0)
    assert channel.recv(WAIT_S) is not None
    backend.unregister_input(1)
    assert channel.recv(0.0) is None
    with pytest.raises(KeyError):
        backend.describe_channel(1)


def test_a_call_that_waits_ends_with_its_epoch_or_in_time(backend: SharedDistSamplingBackend, monkeypatch) -> None:
    channel, begun, goes_on, found = QueueChannel(1), threading.Event(), threading.Event(), []
    assert channel.recv(0.0) is None  # the channel is not registered; later, no epoch was started
    backend.register_input(1, "a", NodeSamplerInput(torch.arange(8)), CONFIG, channel)
    assert channel.recv(0.0) is None
    real = producer.message_of

    def slow(batch: Any) -> Any:
        begun.set()
        assert goes_on.wait(WAIT_S)
        return real(batch)

    monkeypatch.setattr(producer, "message_of", slow)
    backend.start_new_epoch_sampling(1, 0)
    assert begun.wait(WAIT_S)
    with pytest.raises(StoreTimeout, match="batch 0 of epoch 0 was not ready"):
        channel.recv(0.01)
    waiter = threading.Thread(target=lambda: found.append(channel.recv(WAIT_S)))
    waiter.start()
    while not backend._scheduler._channels[1].num_waiters:  # type: ignore[union-attr]
        begun.wait(0.001)
    with pytest.raises(StoreTimeout, match=r"another call received messages of channel 1 for 0\.01 s"):
        channel.recv(0.01)
    backend.start_new_epoch_sampling(1, 1)
    waiter.join(WAIT_S)
    assert found == [None]
    goes_on.set()
    assert [m["batch"].tolist() for m in read_epoch(backend, channel, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_batch_is_sampled_ahead_of_a_full_byte_buffer(backend: SharedDistSamplingBackend) -> None:
    narrow, wide = QueueChannel(20, max_bytes=1), QueueChannel(20)
    for channel_id, channel in ((1, narrow), (2, wide)):
        backend.register_input(channel_id, f"{channel_id}", NodeSamplerInput(torch.arange(32)), CONFIG, channel)
        backend.start_new_epoch_sampling(channel_id, 0)
    assert len(read_epoch(backend, wide, 8)) == 8  # so the other channel has had its turns
    (told,) = backend._scheduler.describe(1)  # type: ignore[union-attr]
    assert 1 <= told["num_made"] <= 2  # both threads may have begun a batch before the first one waited
    assert len(read_epoch(backend, narrow, 8)) == 8


@pytest.mark.parametrize(("maker", "error"), [(lambda _: None, "NoneType"), (lambda _: [][1], "IndexError")])
def test_a_sampling_error_is_in_every_message(
    backend: SharedDistSamplingBackend, monkeypatch, maker: Callable[[Any], Any], error: str
) -> None:
    channel = QueueChannel(20)
    backend.register_input(1, "a", NodeSamplerInput(torch.arange(8)), CONFIG, channel)
    monkeypatch.setattr(type(backend._loaders[1]), "maker", maker)
    backend.start_new_epoch_sampling(1, 0)
    for message in read_epoch(backend, channel, 2):
        assert error in bytes(message[SAMPLING_ERROR].tolist()).decode()


def test_messages_have_the_configured_columns(dataset: DistDataset) -> None:
    always = {"#IS_HETERO", "node", "y", "batch", "batch_size", "edge_index", "num_sampled_nodes", "num_sampled_edges"}
    for has_features, has_edges, more in (
        (False, False, set()), (False, True, {"edge"}), (True, False, {"x"}), (True, True, {"x", "edge", "edge_attr"}),
    ):  # fmt: skip
        config = replace(CONFIG, collect_features=has_features, with_edge=has_edges)
        backend, channel = new_backend(dataset, config=config), QueueChannel()
        backend.init_backend()
        backend.register_input(1, "a", NodeSamplerInput([1, 2]), config, channel)
        backend.start_new_epoch_sampling(1, 0)
        assert set(channel.recv(WAIT_S) or ()) == always | more
        backend.shutdown()


def test_a_backend_sends_pagerank_neighbourhoods(dataset: DistDataset) -> None:
    backend = new_backend(dataset, PPRSamplerOptions(max_ppr_nodes=4))
    backend.init_backend()
    channel = QueueChannel(20)
    backend.register_input(1, "a", NodeSamplerInput(torch.arange(8)), CONFIG, channel)
    backend.start_new_epoch_sampling(1, 0)
    for message in read_epoch(backend, channel, 2):
        assert message["edge_index"].shape[1] == 4 * len(message["batch"]) == len(message["edge_attr"])
        assert (message["x"][:, 0] == message["node"]).all()
    backend.shutdown()


def test_a_channel_must_be_a_queue(backend: SharedDistSamplingBackend) -> None:
    with pytest.raises(ValueError, match=r"channel is a object; give a QueueChannel"):
        backend.register_input(1, "a", NodeSamplerInput(torch.arange(8)), CONFIG, object())  # type: ignore[arg-type]
    backend.shutdown()


def test_names_of_types_in_messages_are_whole() -> None:
    data = HeteroData()
    data["user"].node, data["user", "buys", "item"].edge_index = torch.arange(2), torch.zeros(2, 0)
    data.num_sampled_nodes = {"user": torch.tensor([2])}
    data.y_positive = {("user", "buys", "item"): torch.zeros(2, 0)}
    assert set(message_of(data)) == {
        "#IS_HETERO", "user.node", "user__buys__item.edge_index", "num_sampled_nodes.user",
        "y_positive.user__buys__item",
    }  # fmt: skip
