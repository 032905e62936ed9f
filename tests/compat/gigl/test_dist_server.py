"""Tests of every documented method of DistServer, in its process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopstream.compat.gigl.distributed.graph_store import dist_server
from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer, get_server, wait_and_shutdown_server
from hopstream.compat.gigl.distributed.graph_store.messages import (
    FetchABLPInputRequest,
    FetchNodesRequest,
    InitSamplingBackendRequest,
    RegisterBackendRequest,
)
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions
from hopstream.compat.gigl.types.graph import FeatureInfo
from hopstream.compat.glt.distributed import dist_dataset
from hopstream.compat.glt.distributed.calls import CALLER
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.partition_books import GLTPartitionBook, RangePartitionBook
from hopstream.compat.glt.sampler import NodeSamplerInput
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import StoreTimeout
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE
from hopstream.store.local import LocalStore
from tests.compat.gigl.channels import CONFIG, OPTIONS, init, read_epoch, register, seeds_of
from tests.compat.gigl.ring import NUM_NODES, write_range_ring, write_ring

WAIT_S = 60.0
BUYS, LIKED, DISLIKED = ("user", "buys", "item"), ("user", "buys_gigl_positive", "item"), (
    "user", "buys_gigl_negative", "item",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 2)


@pytest.fixture
def server(folder: Path):
    server = DistServer(DistDataset(folder))
    yield server
    server.shutdown()
    server.dataset.close()


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory):
    """Six users with labels of their own edge types, four items."""
    graph = graph_from_arrays(
        {BUYS: np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1]]), LIKED: np.array([[0, 0, 2], [2, 3, 1]]),
         DISLIKED: np.array([[1], [3]])},
        num_nodes={"user": 6, "item": 4},
        node_features={"user": {"x": np.arange(12, dtype=np.float32).reshape(6, 2)},
                       "item": {"a": np.arange(4), "b": np.ones((4, 2), np.float32)}},
        splits={"user": {"train": [0, 1, 2], "val": [3], "test": [4, 5]}},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("typed") / "typed"
    write_parts(graph, folder, num_parts=2, method="hash", direction="both")
    server = DistServer(DistDataset(folder))
    yield server
    server.dataset.close()


def test_facts_of_a_homogeneous_dataset(server: DistServer) -> None:
    assert server.get_dataset_meta() == (1, 0, None, None)
    assert server.get_node_types() is None and server.get_edge_types() is None
    assert server.get_edge_dir() == "in" and not server.get_edge_weights_registered()
    assert server.get_node_feature_info() == FeatureInfo(8, torch.float32)
    assert server.get_edge_feature_info() == FeatureInfo(2, torch.float32)
    assert server.get_node_quantization_metadata() is None and server.get_edge_quantization_metadata() is None
    assert server.get_tensor_size(None) == torch.Size([NUM_NODES, 8])
    index = torch.tensor([7, 3, 7])
    assert server.get_node_feature(None, index)[:, 0].tolist() == [7, 3, 7]
    assert server.get_node_label(None, index).tolist() == [3, 3, 3]
    src, dst = server.get_edge_index(None, "coo")
    assert sorted(zip(src.tolist(), dst.tolist(), strict=True)) == sorted(
        (v, (v + step) % NUM_NODES) for v in range(NUM_NODES) for step in (1, 2)
    )
    assert server.get_edge_size(None, "coo") == (NUM_NODES, NUM_NODES)
    for ask in (server.get_edge_index, server.get_edge_size):
        with pytest.raises(ValueError, match="layout is 'csr'"):
            ask(None, "csr")


def test_facts_of_a_typed_dataset(typed: DistServer) -> None:
    assert typed.get_node_types() == ["user", "item"] and typed.get_edge_types() == [BUYS, LIKED, DISLIKED]
    assert typed.get_node_feature_info() == {
        "user": FeatureInfo(2, torch.float32), "item": FeatureInfo(3, torch.float32)
    }  # fmt: skip
    assert typed.get_edge_feature_info() is None
    assert typed.get_node_feature("item", torch.tensor([3])).tolist() == [[3, 1, 1]]
    with pytest.raises(ValueError, match="the node type is missing"):
        typed.get_node_feature(None, torch.tensor([0]))
    with pytest.raises(ValueError, match="has no labels"):
        typed.get_node_label("user", torch.tensor([0]))
    with pytest.raises(ValueError, match="the node type is missing"):
        typed.get_node_ids(FetchNodesRequest(split="train"))


def test_books_map_ids_to_parts_as_the_dataset_does(folder: Path, tmp_path: Path) -> None:
    for path, kind in ((folder, GLTPartitionBook), (write_range_ring(tmp_path / "range", 2), RangePartitionBook)):
        parts = [DistDataset(path, num_partitions=2, partition_idx=rank) for rank in range(2)]
        whole = DistDataset(path)
        for part in parts:
            part.attach(whole.graph)
        ids = torch.arange(NUM_NODES)
        servers = [DistServer(part) for part in parts]
        book = servers[0].get_node_partition_book(None)
        assert isinstance(book, kind)
        owners = servers[1].get_node_partition_id(None, ids)
        assert owners is not None and book[ids].tolist() == owners.tolist() and set(owners.tolist()) == {0, 1}
        for rank, server in enumerate(servers):
            own = server.get_node_ids(FetchNodesRequest())
            assert own.tolist() == ids[owners == rank].tolist()
            assert server.get_tensor_size(None)[0] == len(own)
            _, dst = server.get_edge_index(None, "coo")
            assert (owners[dst] == rank).all() and len(dst) == 2 * len(own)
            edges = server.get_edge_partition_book(None)
            assert edges is not None and (edges[torch.arange(2 * NUM_NODES)] == rank).sum() == len(dst)
            with pytest.raises(ValueError, match="is homogeneous"):
                server.get_node_partition_id("node", ids)
            with pytest.raises(ValueError, match="is homogeneous"):
                server.get_edge_partition_book(("a", "to", "b"))
        for part in (*parts, whole):
            part._graph = None if part is not whole else part._graph
            part.close()


def test_node_ids_by_split_and_slice(server: DistServer) -> None:
    ids = server.get_node_ids(FetchNodesRequest(split="train"))
    assert ids.tolist() == list(range(0, NUM_NODES, 2))
    sliced = [server.get_node_ids(FetchNodesRequest("train", None, ServerSlice(0, r, r + 1, 3))) for r in range(3)]
    assert torch.cat(sliced).tolist() == ids.tolist()
    with pytest.raises(ValueError, match="split is 'later'"):
        server.get_node_ids(FetchNodesRequest(split="later"))
    with pytest.raises(ValueError, match="is homogeneous"):
        server.get_node_ids(FetchNodesRequest(node_type="node"))


def test_concurrent_ranks_share_one_read_of_keys(server: DistServer, monkeypatch) -> None:
    reads: list[int] = []
    real, together = dist_dataset._keys_of, threading.Barrier(4)

    def counted(store: Any, owner: Any, ids: np.ndarray) -> np.ndarray:
        reads.append(len(ids))
        return real(store, owner, ids)

    def ask(rank: int) -> list[int]:
        together.wait(WAIT_S)
        return server.get_node_ids(FetchNodesRequest("train", None, ServerSlice(0, rank, rank + 1, 4))).tolist()

    monkeypatch.setattr(dist_dataset, "_keys_of", counted)
    with ThreadPoolExecutor(4) as pool:
        assert [one for of_rank in pool.map(ask, range(4)) for one in of_rank] == list(range(0, NUM_NODES, 2))
    ids = server.get_node_ids(FetchNodesRequest())
    assert reads == [NUM_NODES] and ids.tolist() == list(range(NUM_NODES))
    ids.zero_()  # the caller's own
    assert server.get_node_ids(FetchNodesRequest()).tolist() == list(range(NUM_NODES))
    monkeypatch.setattr(dist_dataset, "KEPT_BYTES", 8 * NUM_NODES)
    book = server.get_node_partition_book(None)
    assert book is not None and len(book[torch.arange(NUM_NODES)]) == NUM_NODES
    assert sum(one.nbytes for one in server.dataset._kept.values()) <= 8 * NUM_NODES
    assert server.get_node_ids(FetchNodesRequest("train")).tolist() == list(range(0, NUM_NODES, 2))


class KeysOnly:
    """A store of all parts that answers look-ups of keys, and fails where edges are read."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        assert name not in ("sample", "degrees"), f"{name} was asked of all parts"
        return getattr(self._store, name)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_are_read_from_the_parts_that_own_them(tmp_path: Path, edge_dir: str) -> None:
    folder = write_ring(tmp_path / "ring", 3)
    for step in (3, 4):  # edges of known nodes, and of a new one
        new = np.array([7, NUM_NODES, 7]), np.array([7 + step, 7, NUM_NODES])
        features = {"edge_attr": np.stack(new, axis=1).astype(np.float32)}
        nodes = {"x": np.full((1, 8), NUM_NODES, np.float32), "y": np.zeros(1, np.int64)} if step == 3 else None
        append(folder, nodes=nodes, edges=(*new, features))
    whole = LocalStore(open_dataset(folder))
    graph = read_dataset(folder).edges[EDGE]
    wanted = list(zip(graph.src_keys.tolist(), graph.dst_keys.tolist(), strict=True))
    seen: list[tuple[int, int]] = []
    for rank in range(2):
        dataset = DistDataset(folder, num_partitions=2, partition_idx=rank, edge_dir=edge_dir)
        dataset.attach(lambda: KeysOnly(whole))  # type: ignore[arg-type, return-value]
        server = DistServer(dataset)
        src, dst = (ends.tolist() for ends in server.get_edge_index(None, "coo"))
        book = server.get_edge_partition_book(None)
        assert book is not None
        own = [
            edge for edge, owner in zip(wanted, book[torch.arange(len(wanted))].tolist(), strict=True) if owner == rank
        ]
        assert sorted(zip(src, dst, strict=True)) == sorted(own)
        seen += own
        anchors, labels, _ = server.get_ablp_input(FetchABLPInputRequest("train", None, None))  # type: ignore[arg-type]
        of = [sorted(d for s, d in wanted if s == anchor) for anchor in anchors.tolist()]
        assert [sorted(v for v in row if v >= 0) for row in labels.tolist()] == of
        dataset._graph = None
        dataset.close()
    assert sorted(seen) == sorted(wanted)
    whole.close()


@pytest.mark.parametrize(("key", "message"), [(0, "key 5, and 0 more, are in no part"), (80, "keys are 0..79")])
def test_a_damaged_edge_key_column_is_reported(tmp_path: Path, key: int, message: str) -> None:
    folder = write_ring(tmp_path / "ring", 1)
    (path,) = folder.glob("part-00000/edge/*/in/key.npy")
    keys = np.load(path)
    keys[keys == 5] = key
    np.save(path, keys)
    dataset = DistDataset(folder)
    with pytest.raises(ValueError, match=message):
        DistServer(dataset).get_edge_partition_book(None)
    dataset.close()


def test_a_large_answer_is_not_cached_and_blocks_no_other(server: DistServer, monkeypatch) -> None:
    train = FetchNodesRequest("train")
    monkeypatch.setattr(dist_dataset, "KEPT_BYTES", 8 * (NUM_NODES // 2))
    server.get_node_ids(train)
    assert list(server.dataset._kept) == [("node", "train")]
    server.get_node_ids(FetchNodesRequest())
    assert list(server.dataset._kept) == [("node", "train")]
    monkeypatch.setattr(dist_dataset, "READ_S", 0.05)
    real, begun, goes_on = dist_dataset._keys_of, threading.Event(), threading.Event()

    def slow_once(*args: Any) -> np.ndarray:
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(WAIT_S)
        return real(*args)

    monkeypatch.setattr(dist_dataset, "_keys_of", slow_once)
    with ThreadPoolExecutor(3) as pool:
        try:
            slow = pool.submit(server.get_node_partition_book, None)
            assert begun.wait(WAIT_S)
            assert len(pool.submit(server.get_node_ids, FetchNodesRequest()).result(5.0)) == NUM_NODES
            with pytest.raises(StoreTimeout, match="node: another caller has been reading the partition book for 0"):
                pool.submit(server.get_node_partition_book, None).result(5.0)
        finally:
            goes_on.set()
        assert slow.result(WAIT_S) is not None


def test_anchors_and_labels(typed: DistServer) -> None:
    anchors, positives, negatives = typed.get_ablp_input(FetchABLPInputRequest("train", "user", BUYS))
    assert anchors.tolist() == [0, 1, 2]
    assert [sorted(row) for row in positives.tolist()] == [[2, 3], [-1, -1], [-1, 1]]
    assert negatives is not None and negatives.tolist() == [[-1], [3], [-1]]
    with pytest.raises(ValueError, match="split is 'later'"):
        typed.get_ablp_input(FetchABLPInputRequest("later", "user", BUYS))
    with pytest.raises(ValueError, match="supervision_edge_type is"):
        typed.get_ablp_input(FetchABLPInputRequest("train", "user", ("user", "sells", "item")))
    with pytest.raises(ValueError, match="anchors of"):
        typed.get_ablp_input(FetchABLPInputRequest("train", "item", BUYS))


@pytest.mark.parametrize("is_destroyed", [False, True])
def test_a_fetch_ends_with_its_epoch_or_its_channel(server: DistServer, monkeypatch, is_destroyed: bool) -> None:
    begun, goes_on, answers = threading.Event(), threading.Event(), []
    real = producer.message_of

    def slow(batch: Any) -> Any:
        begun.set()
        assert goes_on.wait(WAIT_S)
        return real(batch)

    monkeypatch.setattr(producer, "message_of", slow)
    channel = register(server, init(server), range(NUM_NODES))
    server.start_new_epoch_sampling(channel, 0)
    thread = threading.Thread(target=lambda: answers.append(server.fetch_one_sampled_message(channel)))
    thread.start()
    assert begun.wait(WAIT_S)
    if is_destroyed:
        goes_on_after = threading.Timer(0.1, goes_on.set)  # the thread that samples is waited for
        goes_on_after.start()
        server.destroy_sampling_input(channel)
        goes_on_after.join()
    else:
        server.start_new_epoch_sampling(channel, 1)
    thread.join(WAIT_S)
    assert answers == [(None, True)]
    goes_on.set()
    assert seeds_of(read_epoch(server, channel)) == ([] if is_destroyed else list(range(NUM_NODES)))


def test_client_requests_are_bounded(server: DistServer, monkeypatch) -> None:
    backend = init(server)
    for wanted, given in ((10**9, OPTIONS.buffer_capacity), (0, 1), (-1, 1)):
        request = RegisterBackendRequest(backend, f"{wanted}", NodeSamplerInput([1]), CONFIG, wanted, "1MB")
        assert server._channels[server.register_sampling_input(request)].channel.capacity == given
    for size, num_bytes in (("64MB", 64 * 10**6), (1000, 1000)):
        request = RegisterBackendRequest(backend, f"{size}", NodeSamplerInput([1]), CONFIG, 4, size)
        assert server._channels[server.register_sampling_input(request)].channel.max_bytes == num_bytes
    for size in ("many", -1, True):
        request = RegisterBackendRequest(backend, f"{size}", NodeSamplerInput([1]), CONFIG, 4, size)
        with pytest.raises(ValueError, match=f"buffer_size is '{size}'; it must be a size such as"):
            server.register_sampling_input(request)
    other = InitSamplingBackendRequest("loader_0", OPTIONS, PPRSamplerOptions(), CONFIG)
    with pytest.raises(ValueError, match="choose another backend_key"):
        server.init_sampling_backend(other)
    monkeypatch.setattr(dist_server, "MAX_BACKENDS", 1)
    with pytest.raises(RuntimeError, match="has 1 backends, the maximum"):
        init(server, "loader_1")
    assert init(server) == backend


def test_prefetch_depth_equals_the_queue_capacity(server: DistServer) -> None:
    options = RemoteDistSamplingWorkerOptions(num_workers=2, worker_concurrency=16)
    config = replace(CONFIG, batch_size=1)
    backend = server.init_sampling_backend(
        InitSamplingBackendRequest("many", options, KHopNeighborSamplerOptions([2]), config)
    )
    request = RegisterBackendRequest(backend, "rank", NodeSamplerInput(range(NUM_NODES)), config, 1, "1MB")
    channel = server.register_sampling_input(request)
    (known,) = server._backends[backend].runtime._scheduler.describe(channel)
    assert known["credit"] == 1


@contextmanager
def client(name: str) -> Iterator[None]:
    """Call a method as a client does."""
    before = CALLER.set(name)
    yield
    CALLER.reset(before)


def pass_a_lease(server: DistServer) -> None:
    """Let more than a lease pass without any request."""
    for state in (*server._channels.values(), *server._backends.values()):
        state.used_at -= dist_server.LEASE_S + 1.0


def test_channels_of_lost_clients_are_destroyed(server: DistServer, caplog) -> None:
    channels = []
    for rank, name in enumerate(("gone", "idle", "busy")):
        with client(name):
            channels.append(register(server, init(server), range(rank, NUM_NODES, 4), f"rank_{rank}"))
    channels.append(register(server, init(server), [3], "own"))
    gone, idle, busy, own = channels
    for channel in channels:
        server.start_new_epoch_sampling(channel, 0)
    server.give_up_abandoned(())
    assert server.left == channels  # leases have not run out
    pass_a_lease(server)
    assert server.fetch_one_sampled_message(busy)[0] is not None
    server.give_up_abandoned({"idle", "another"})
    assert server.left == [idle, busy, own]
    assert f"channel {gone} (rank_0) is dropped: it was not used for 120 s, and its client is gone" in caplog.text
    for use in (server.fetch_one_sampled_message, lambda channel: server.start_new_epoch_sampling(channel, 1)):
        with pytest.raises(RuntimeError, match=f"channel {gone} was dropped"):
            use(gone)
    server.destroy_sampling_input(gone)
    assert seeds_of(read_epoch(server, idle)) == list(range(1, NUM_NODES, 4))
    pass_a_lease(server)
    server.start_new_epoch_sampling(busy, 1)
    server.give_up_abandoned(())
    assert server.left == [busy, own]
    server.destroy_sampling_input(own)
    pass_a_lease(server)
    server.give_up_abandoned(())
    assert server.left == [] and not server._backends


def test_a_backend_lives_as_long_as_its_requesters(server: DistServer) -> None:
    own = init(server, "own")
    with client("maker"):
        backend = init(server)
    pass_a_lease(server)
    server.give_up_abandoned({"maker"})
    assert set(server._backends) == {own, backend}
    with client("other"):
        assert init(server) == backend
    pass_a_lease(server)
    server.give_up_abandoned({"other"})
    assert set(server._backends) == {own, backend}
    with client("maker"):
        channel = register(server, backend, [1])
    pass_a_lease(server)
    server.give_up_abandoned({"other"})  # it has not registered yet
    assert server.left == [] and set(server._backends) == {own, backend}
    with client("other"):
        server.destroy_sampling_input(register(server, backend, [channel]))
        again = init(server)
    pass_a_lease(server)
    server.give_up_abandoned({"maker"})
    assert set(server._backends) == {own} and again != backend
    with pytest.raises(KeyError, match=f"backend {again} does not exist"):
        register(server, again, [1])


def test_unissued_channel_numbers_are_unknown(server: DistServer) -> None:
    backends = [init(server, f"loader_{number}") for number in range(3)]
    channel = register(server, backends[0], [1])
    with pytest.raises(IndexError):
        register(server, backends[0], [NUM_NODES])
    server.destroy_sampling_input(channel)
    server.start_new_epoch_sampling(channel, 0)
    for number in (*range(channel + 1, channel + 5), 0, -1):
        with pytest.raises(RuntimeError, match=f"channel {number} does not exist;"):
            server.start_new_epoch_sampling(number, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_callers_of_one_key_get_one_backend(server: DistServer, monkeypatch, fails: bool) -> None:
    """If the first call fails, the next one tries again."""
    failures = [OSError("no threads are left")] if fails else []
    real = DistDataset.graph

    def failing(dataset: DistDataset) -> Any:
        if failures:
            raise failures.pop()
        return real(dataset)

    monkeypatch.setattr(DistDataset, "graph", failing)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(init, server) for _ in range(4)]
        errors = [str(call.exception(WAIT_S)) for call in calls if call.exception(WAIT_S)]
    assert errors == ["no threads are left"] * fails
    (backend,) = server._backends
    assert {call.result() for call in calls if not call.exception()} == {backend}
    server.start_new_epoch_sampling(channel := register(server, backend, [1]), 0)
    assert seeds_of(read_epoch(server, channel)) == [1]


def test_shutdown_warns_of_open_loaders(server: DistServer, caplog) -> None:
    register(server, init(server), [1])
    assert server.left
    server.shutdown()
    assert "were left by loaders that were not shut down" in caplog.text and server.left == []


def test_exit_ends_the_wait(server: DistServer) -> None:
    thread = threading.Thread(target=server.wait_for_exit)
    thread.start()
    assert server.exit() is True
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_without_a_server(caplog) -> None:
    with pytest.raises(RuntimeError, match=r"DistServer not initialized! Call init_server\(\) first\."):
        get_server()
    wait_and_shutdown_server()
    assert "no server in this process" in caplog.text
    assert dist_server.SERVER_EXIT_STATUS_CHECK_INTERVAL == 5.0 and dist_server.FETCH_SLOW_LOG_SECS == 1.0
