"""Tests of graph-store loaders over servers: the ring by ids, equality, shares, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import hopstream
from hopstream.compat.gigl.distributed.dist_ablp_neighborloader import DistABLPLoader
from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import dist_server
from hopstream.compat.gigl.distributed.graph_store import shared_dist_sampling_producer as producer
from hopstream.compat.gigl.distributed.graph_store.compute import (
    async_request_server,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import FetchNodesRequest
from hopstream.compat.gigl.distributed.graph_store.remote_channel import RemoteReceivingChannel
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions
from hopstream.compat.gigl.types.graph import FeatureInfo
from hopstream.compat.gigl.utils.iterator import InfiniteIterator
from hopstream.compat.glt.distributed import dist_client
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_server import StorageServer
from hopstream.compat.glt.distributed.roster import Meeting
from hopstream.compat.glt.partition_books import GLTPartitionBook, RangePartitionBook
from hopstream.compat.glt.sampler import RemoteNodePathSamplerInput, RemoteNodeSplitSamplerInput
from hopstream.compat.glt.typing import Split
from hopstream.errors import StoreTimeout
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from tests.compat.gigl.channels import CONFIG, Asked, init, read_epoch, register, registration, seeds_of
from tests.compat.gigl.conftest import WAIT_S, Connect, cluster
from tests.compat.gigl.ring import NUM_NODES, SPLITS, check_ring_batch, write_range_ring, write_ring
from tests.ports import free_port

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rings")
    return {"hash": write_ring(folder / "hash", 4), "range": write_range_ring(folder / "range", 4)}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    graph = graph_from_arrays(
        {WRITES: np.stack([rng.integers(0, 20, 90), rng.integers(0, 30, 90)]), CITES: rng.integers(0, 30, (2, 60))},
        num_nodes={"author": 20, "paper": 30},
        node_features={"author": {"x": np.arange(40, dtype=np.float32).reshape(20, 2)},
                       "paper": {"x": np.arange(30, dtype=np.float32)[:, None], "y": np.arange(30) % 3}},
        splits={"paper": {"train": np.arange(20), "val": np.arange(20, 25), "test": np.arange(25, 30)}},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("typed") / "typed"
    write_parts(graph, folder, num_parts=4, method="hash", direction="both")
    return folder


def as_lists(data: Data | HeteroData) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for store in data.stores:
        for name, value in store.items():
            found[f"{store._key}.{name}"] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("num_servers", "method"), [(1, "hash"), (2, "range"), (4, "hash")])
def test_the_ring_from_ids_alone(connect: Connect, rings: dict[str, Path], num_servers: int, method: str) -> None:
    dataset = connect(rings[method], num_servers)
    ids = dataset.fetch_node_ids()
    assert sorted(ids) == list(range(num_servers)) and sorted(torch.cat([*ids.values()]).tolist()) == list(range(40))
    loader = DistNeighborLoader(dataset, [2, 1], ids, batch_size=7, shuffle=True)
    for _ in range(2):
        seen = []
        for data in loader:
            assert isinstance(data, Data) and data.batch_size == len(data.batch)
            check_ring_batch(data.node, data.edge_index, data.x, data.batch)
            assert (data.y == data.node % 4).all()
            src, dst = data.edge_index
            assert (data.edge_attr == torch.stack([data.node[src], data.node[dst]], dim=1)).all()
            assert data.num_sampled_nodes.sum() == len(data.node) and len(data.edge) == data.edge_index.shape[1]
            seen += data.batch.tolist()
        assert sorted(seen) == list(range(NUM_NODES))
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        iter(loader)


def test_batches_are_equal_on_any_number_of_servers(connect: Connect, rings: dict[str, Path], typed: Path) -> None:
    for folder, node_type in ((rings["hash"], None), (typed, "paper")):
        found = []
        for num_servers in (1, 2, 4):
            dataset = connect(folder, num_servers)
            ids: Any = dataset.fetch_node_ids(split="train", node_type=node_type)
            given = ids if node_type is None else (node_type, ids)
            loader = DistNeighborLoader(dataset, [3, 2], given, batch_size=6, shuffle=True, rng_seed=5)
            found.append([[as_lists(data) for data in loader] for _ in range(2)])
            loader.shutdown()
        assert found[0] == found[1] == found[2] and found[0][0] != found[0][1]
        seeds = "train" if node_type is None else (node_type, "train")
        with hopstream.NeighborLoader(folder, [3, 2], seeds, 6, shuffle=True, rng_seed=5) as ours:
            for data, theirs in zip(map(as_lists, ours), found[0][0], strict=True):
                own = {name.replace("n_id", "node").replace("e_id", "edge"): one for name, one in data.items()}
                same = [n for n in own if n in theirs and n.rpartition(".")[2] not in ("y", "num_sampled_edges")]
                assert {n: own[n] for n in same} == {n: theirs[n] for n in same}
                assert {n.rpartition(".")[2] for n in same} >= {"node", "edge_index", "x", "batch_size"}


def test_every_node_is_the_input_of_one_rank(connect: Connect, typed: Path) -> None:
    dataset = connect(typed, 2)
    for split, wanted in ((None, range(30)), ("train", range(20)), ("val", range(20, 25))):
        for world_size in (1, 3, 40):  # a rank may have none
            found = [dataset.fetch_node_ids(rank, world_size, split, "paper") for rank in range(world_size)]
            assert all(sorted(of_rank) == [0, 1] for of_rank in found)
            ids = torch.cat([of_server for of_rank in found for of_server in of_rank.values()])
            assert ids.dtype == torch.int64 and sorted(ids.tolist()) == list(wanted)
    seen: list[int] = []
    for rank in range(3):
        loader = DistNeighborLoader(dataset, [2], ("paper", dataset.fetch_node_ids(rank, 3, "train", "paper")))
        seen += [node for data in loader for node in data["paper"].batch.tolist()]
        loader.shutdown()
    assert sorted(seen) == list(range(20))


def test_a_typed_batch(connect: Connect, typed: Path) -> None:
    dataset = connect(typed, 2)
    loader = DistNeighborLoader(
        dataset, {WRITES: [2, 2], CITES: [3, 1]}, ("paper", dataset.fetch_node_ids(node_type="paper")), batch_size=5
    )
    for data in loader:
        assert isinstance(data, HeteroData)
        paper, author = data["paper"], data["author"]
        assert paper.batch.tolist() == paper.node[: paper.batch_size].tolist()
        assert (paper.x[:, 0] == paper.node).all() and (paper.y == paper.node % 3).all() and "y" not in author
        assert (author.x[:, 0] == 2 * author.node).all() and "batch" not in author
        assert set(data.edge_types) == {WRITES, CITES}
        assert {t: n.tolist() for t, n in data.num_sampled_nodes.items()} == {
            t: data[t].num_sampled_nodes.tolist() for t in ("paper", "author")
        }
        assert set(data.num_sampled_edges) == {WRITES, CITES}
        assert (data[WRITES].edge_index[1] < len(paper.node)).all()
    loader.shutdown()


def test_forward_sampled_edges_point_to_seeds(connect: Connect, typed: Path, rings) -> None:
    dataset = connect(rings["hash"], 2, "out")
    loader = DistNeighborLoader(dataset, [2], dataset.fetch_node_ids(), batch_size=8)
    for data in loader:
        src, dst = data.node[data.edge_index]
        assert (dst < NUM_NODES).all() and all(d in (1, 2) for d in ((src - dst) % NUM_NODES).tolist())
        assert set(data.edge_index[1].tolist()) <= set(range(data.batch_size))
    loader.shutdown()
    dataset = connect(typed, 2, "out")
    assert dataset.fetch_edge_dir() == "out"
    loader = DistNeighborLoader(dataset, [2], ("author", dataset.fetch_node_ids(node_type="author")), batch_size=8)
    data = next(iter(loader))
    assert ("paper", "rev_writes", "author") in data.edge_types and CITES in data.edge_types
    loader.shutdown()


def test_a_remote_dataset_tells_types_and_features(connect: Connect, rings: dict[str, Path], typed: Path) -> None:
    dataset = connect(typed, 2)
    assert dataset.fetch_node_types() == ["author", "paper"] and dataset.fetch_edge_types() == [WRITES, CITES]
    assert dataset.fetch_node_feature_info() == {
        "author": FeatureInfo(2, torch.float32), "paper": FeatureInfo(1, torch.float32)
    }  # fmt: skip
    assert dataset.fetch_edge_feature_info() is None and not dataset.fetch_edge_weights_registered()
    assert dataset.fetch_node_quantization_metadata() is None and dataset.fetch_edge_quantization_metadata() is None
    book = dataset.fetch_node_partition_book("paper")
    assert isinstance(book, GLTPartitionBook)
    ids = dataset.fetch_node_ids(node_type="paper")
    for server, nodes in ids.items():
        assert (book[nodes] == server).all()
    with pytest.raises(ValueError, match="the node type is missing"):
        dataset.fetch_node_ids()
    dataset = connect(rings["range"], 2)
    assert isinstance(dataset.fetch_node_partition_book(), RangePartitionBook)
    assert isinstance(dataset.fetch_edge_partition_book(), GLTPartitionBook | RangePartitionBook)
    assert dataset.fetch_node_feature_info() == FeatureInfo(8, torch.float32)
    for ask in (lambda: dataset.fetch_node_ids(0), lambda: dataset.fetch_node_ids(world_size=2)):
        with pytest.raises(ValueError, match="both rank and world_size"):
            ask()
    with pytest.raises(ValueError, match="compute_rank is 2"):
        dataset.fetch_node_ids(2, 2)
    with pytest.raises(ValueError, match="split is 'all'"):
        dataset.fetch_node_ids(split="all")  # type: ignore[arg-type]


def test_bad_loader_arguments_are_refused(connect: Connect, rings: dict[str, Path], typed: Path) -> None:
    dataset = connect(rings["hash"], 2)
    ids = dataset.fetch_node_ids()

    def refused(message: str, error: type[Exception] = ValueError, **options: Any) -> None:
        with pytest.raises(error, match=message):
            DistNeighborLoader(**{"dataset": dataset, "num_neighbors": [2], "input_nodes": ids, **options})

    refused("in graph-store mode give a mapping", input_nodes=None)
    refused("in graph-store mode give a mapping", input_nodes=torch.arange(3))
    refused("is homogeneous", input_nodes=("node", ids))
    refused("names servers", input_nodes={2: torch.arange(3)})
    refused("counts are integers from 0", num_neighbors=[-1])
    refused("is a mapping", num_neighbors={CITES: [2]})
    refused("has no weights", with_weight=True)
    refused(
        "with_weight cannot be used with", NotImplementedError, with_weight=True, sampler_options=PPRSamplerOptions()
    )
    refused("give both the same", sampler_options=KHopNeighborSamplerOptions([3]))
    refused("prefetch_size is 4", worker_concurrency=2)
    refused("dataset is a str", dataset="parts/ring")
    dataset = connect(typed, 2)
    ids = dataset.fetch_node_ids(node_type="paper")
    refused("the node type is missing", input_nodes=ids)
    refused("must name exactly", input_nodes=("paper", ids), num_neighbors={CITES: [2]})
    refused("different numbers of hops", input_nodes=("paper", ids), num_neighbors={CITES: [2], WRITES: [1, 1]})


def test_a_loader_gives_pagerank_edges_with_weights(connect: Connect, rings: dict[str, Path], typed: Path) -> None:
    dataset = connect(rings["hash"], 2)
    options = PPRSamplerOptions(max_ppr_nodes=5)
    loader = DistNeighborLoader(dataset, [1], dataset.fetch_node_ids(), batch_size=8, sampler_options=options)
    for data in loader:
        assert data.edge_index.shape[1] == 5 * data.batch_size == len(data.edge_attr)
        assert (data.x == data.node[:, None]).all() and set(data.edge_index[0].tolist()) == set(range(data.batch_size))
    loader.shutdown()
    dataset = connect(typed, 2)
    seeds = ("paper", dataset.fetch_node_ids(node_type="paper"))
    loader = DistNeighborLoader(dataset, [1], seeds, batch_size=8, sampler_options=options)
    assert {t[1] for t in next(iter(loader)).edge_types} == {"ppr"}
    loader.shutdown()


def weighted_ring(folder: Path) -> Path:
    """The ring with edges from v to v+1 of weight 9, to v+2 of weight 1, to v+3 of weight 0."""
    src, steps = np.repeat(np.arange(NUM_NODES), 3), np.tile([1, 2, 3], NUM_NODES)
    graph = graph_from_arrays(
        np.stack([src, (src + steps) % NUM_NODES]), num_nodes=NUM_NODES, splits={"train": np.arange(NUM_NODES)},
        edge_features={"weight": np.array([9.0, 1.0, 0.0], np.float32)[steps - 1]},
    )  # fmt: skip
    write_parts(graph, folder, num_parts=4, method="hash", direction="both", weight_attr="weight")
    return folder


def input_of(dataset: Any, loader_class: type) -> tuple[Any, dict[str, Any]]:
    """The split ``train`` as a loader takes it, and options that only loaders of anchors have."""
    if loader_class is DistABLPLoader:
        return dataset.fetch_ablp_input("train"), {"use_label_edge_index_output": True, "exclude_labels": False}
    return dataset.fetch_node_ids(split="train"), {}


@pytest.mark.parametrize("loader_class", [DistNeighborLoader, DistABLPLoader])
def test_edges_are_drawn_by_their_weights(connect: Connect, tmp_path: Path, loader_class: Any) -> None:
    dataset = connect(weighted_ring(tmp_path / "weighted"), 2)
    given, options = input_of(dataset, loader_class)

    def steps_of(num_neighbors: int, with_weight: bool) -> list[int]:
        """Number of draws of the edges of each step, over ten epochs."""
        loader = loader_class(
            dataset, [num_neighbors], given, batch_size=8, with_weight=with_weight, rng_seed=1, **options
        )
        steps = torch.zeros(NUM_NODES, dtype=torch.int64)
        for _ in range(10):
            for data in loader:
                src, dst = data.node[data.edge_index[:, data.edge_index[1] < len(data.batch)]]
                steps += torch.bincount((dst - src) % NUM_NODES, minlength=NUM_NODES)
        loader.shutdown()
        assert steps[4:].sum() == steps[0] == 0
        return steps[1:4].tolist()

    heavy, light, none = steps_of(1, with_weight=True)
    assert none == 0 and heavy + light == 400 and 330 <= heavy <= 385  # 360 +- 6, in five deviations
    assert steps_of(3, with_weight=True) == [400, 400, 0]
    assert min(steps_of(1, with_weight=False)) >= 85  # 133 +- 9.4


@pytest.mark.parametrize("loader_class", [DistNeighborLoader, DistABLPLoader])
def test_a_smaller_last_batch_is_left_out(connect: Connect, rings: dict[str, Path], loader_class: Any) -> None:
    dataset = connect(rings["hash"], 2)
    given, options = input_of(dataset, loader_class)
    for drop_last, sizes in ((True, [6, 6, 6]), (False, [6, 6, 6, 2])):
        loader = loader_class(dataset, [2], given, batch_size=6, drop_last=drop_last, **options)
        assert len(loader) == len(sizes) and [len(data.batch) for data in loader] == sizes
        loader.shutdown()


SOON_S = 5.0
"""Seconds within which errors come; calls of the tests' sessions may take ``WAIT_S``."""


@contextmanager
def refused_soon(error: type[Exception], message: str) -> Iterator[None]:
    """Check that the block raises an error within its deadline."""
    started = time.monotonic()
    with pytest.raises(error, match=message):
        yield
    assert time.monotonic() - started < SOON_S


def test_request_server_takes_methods_and_their_names(connect: Connect, rings: dict[str, Path]) -> None:
    connect(rings["hash"], 2)
    assert request_server(1, DistServer.get_dataset_meta) == (2, 1, None, None)
    assert request_server(1, "get_edge_dir") == "in"
    futures = [async_request_server(s, DistServer.get_node_ids, FetchNodesRequest(split="train")) for s in range(2)]
    assert sorted(torch.cat([future.wait() for future in futures]).tolist()) == list(range(0, 40, 2))
    for func in (len, "shutdown", lambda server: 1, dict.get):
        with pytest.raises(ValueError, match="is not a method of DistServer"):
            request_server(0, func)
    with pytest.raises(ValueError, match=r"'shutdown' is not a .* that clients may call; these are exit, .*fetch_one_"):
        async_request_server(1, DistServer.shutdown).wait()


def test_errors_are_raised_within_their_deadline(connect: Connect, rings: dict[str, Path]) -> None:
    dataset = connect(rings["hash"], 2)
    server = Asked(0)
    with refused_soon(KeyError, "backend 5 does not exist; call init_sampling_backend"):
        register(server, 5, [1, 2])
    backend = init(server)
    with refused_soon(ValueError, "its backend samples with"):
        register(server, backend, [1, 2], config=replace(CONFIG, batch_size=9))
    with refused_soon(ValueError, "choose another backend_key"):
        init(server, sampler=PPRSamplerOptions())
    channel = register(server, backend, [1, 2])
    with refused_soon(RuntimeError, "channel .* does not exist"):
        server.start_new_epoch_sampling(channel + 1, 0)
    server.start_new_epoch_sampling(channel, 0)
    started = time.monotonic()
    assert seeds_of(read_epoch(server, channel)) == [1, 2]
    assert server.fetch_one_sampled_message(channel) == (None, True)  # after the end
    server.destroy_sampling_input(channel)
    assert server.fetch_one_sampled_message(channel) == (None, True)
    assert time.monotonic() - started < SOON_S
    with refused_soon(ValueError, "compute_rank is 3"):
        dataset.fetch_node_ids(3, 3)
    with refused_soon(ValueError, r"server_rank is 2; servers are numbered 0\.\.1"):
        request_server(2, DistServer.get_edge_dir)
    with refused_soon(ValueError, "split is 'later'; 'node' has the splits: "):
        dataset.fetch_node_ids(split="later")  # type: ignore[arg-type]
    for method, rest in (("get_edge_index", ["csc"]), ("get_node_feature", [torch.arange(3)])):
        with refused_soon(ValueError, "is homogeneous|layout is 'csc'"):
            request_server(1, method, "paper", *rest)
    with refused_soon(ValueError, "is homogeneous"):
        DistNeighborLoader(dataset, [2], ("paper", dataset.fetch_node_ids()))
    with refused_soon(ValueError, "this process has a session already; call shutdown_compute_process first"):
        init_compute_process(0, cluster(2))


def test_wrong_method_arguments_are_refused(connect: Connect, rings: dict[str, Path]) -> None:
    connect(rings["hash"], 1)
    for method in ("get_node_ids", "get_ablp_input", "init_sampling_backend", "register_sampling_input"):
        with pytest.raises(ValueError, match=r"(request|opts) is 'train'; give \w+Request"):
            request_server(0, method, "train")
    for method, rest in (
        ("fetch_one_sampled_message", []),
        ("start_new_epoch_sampling", [0]),
        ("destroy_sampling_input", []),
    ):
        for channel in ("x", None, 1.5, True):
            with pytest.raises(ValueError, match=f"channel_id is {channel!r}; it must be an integer"):
                request_server(0, method, channel, *rest)
    with pytest.raises(ValueError, match="epoch is 'x'; it must be an integer"):
        request_server(0, "start_new_epoch_sampling", 1, "x")
    with pytest.raises(ValueError, match=r"sampler_input is 'x'; give NodeSamplerInput"):
        request_server(0, "register_sampling_input", replace(registration(5, [1]), sampler_input="x"))
    with pytest.raises(ValueError, match=r"server_slice is 'x'; give ServerSlice"):
        request_server(0, "get_node_ids", FetchNodesRequest(server_slice="x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"get_edge_index\(\) missing 1 required positional argument: 'layout'"):
        request_server(0, "get_edge_index", None)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'color'"):
        request_server(0, "get_edge_dir", color=1)


def test_a_split_is_the_input_of_a_channel(connect: Connect, rings: dict[str, Path]) -> None:
    connect(rings["hash"], 2)
    seen: list[int] = []
    for server in (Asked(0), Asked(1)):
        given = replace(registration(init(server), [1]), sampler_input=RemoteNodeSplitSamplerInput(Split.valid, None))
        channel = server.register_sampling_input(given)
        server.start_new_epoch_sampling(channel, 0)
        seen += seeds_of(read_epoch(server, channel))
        server.destroy_sampling_input(channel)
    assert sorted(seen) == list(SPLITS["val"])
    given = replace(given, sampler_input=RemoteNodePathSamplerInput("ids.pt", None))
    with pytest.raises(ValueError, match=r"RemoteNodePathSamplerInput .*, which cannot be sent to a server"):
        Asked(0).register_sampling_input(given)


def test_join_timeout_names_the_missing_server(rings: dict[str, Path], tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    ready = tmp_path / "ready"
    ready.write_text("ready")
    meeting = Meeting(master_addr="127.0.0.1", master_port=free_port(), timeout_s=1.0)
    first = DistDataset(rings["hash"], num_partitions=2, partition_idx=0)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(StorageServer, first, {}, meeting)
        with refused_soon(StoreTimeout, f"client 0 waited 0.5 s for .*; missing: 1; .*127.0.0.1:{meeting.master_port}"):
            init_compute_process(0, cluster(2, meeting.master_port, ready=str(ready)), "gloo", rpc_timeout=0.5)  # type: ignore[arg-type]
        with pytest.raises(StoreTimeout, match="missing: 1"):
            starting.result(WAIT_S)
    first.close()
    assert dist_client._SESSION is None and not torch.distributed.is_initialized()


def test_reading_a_loader_after_shutdown_raises_an_error(connect: Connect, rings: dict[str, Path]) -> None:
    """The loader does not wait for servers that were told to end."""
    dataset = connect(rings["hash"], 2)
    loader = DistNeighborLoader(dataset, [2], dataset.fetch_node_ids(), batch_size=1)
    batches = iter(loader)
    next(batches)
    shutdown_compute_process()
    for read in (lambda: next(batches), lambda: iter(loader), loader.state_dict):
        with refused_soon(RuntimeError, "this process has left the servers"):
            read()
    loader.shutdown()
    with refused_soon(RuntimeError, "call init_compute_process first"):
        DistNeighborLoader(dataset, [2], {})


def test_loaders_of_one_kind_may_have_different_settings(connect: Connect, rings: dict[str, Path]) -> None:
    """Ranks may give their n-th loaders different settings; GiGL's shared backend refuses that."""
    dataset = connect(rings["hash"], 2)
    of_rank = [
        DistNeighborLoader(dataset, fanout, dataset.fetch_node_ids(rank, 2), batch_size=size)
        for rank, (fanout, size) in enumerate([([2], 3), ([2, 1], 4)])
    ]
    found = [list(loader) for loader in of_rank]
    assert [max(data.batch_size for data in batches) for batches in found] == [3, 4]
    assert [len(batches[0].num_sampled_nodes) for batches in found] == [2, 3]
    assert sorted(node for batches in found for data in batches for node in data.batch.tolist()) == list(range(40))
    for loader in of_rank:
        loader.shutdown()


def test_several_loaders_at_once_and_made_again(connect: Connect, rings: dict[str, Path]) -> None:
    dataset = connect(rings["hash"], 2)
    for _ in range(3):
        train, val = (
            DistNeighborLoader(dataset, [2, 2], dataset.fetch_node_ids(split=split), batch_size=4, shuffle=True)
            for split in ("train", "val")
        )
        pairs = zip(train, InfiniteIterator(val), strict=False)
        found = [(one.batch.tolist(), other.batch.tolist()) for one, other in pairs]
        assert sorted(node for one, _ in found for node in one) == list(range(0, 40, 2))
        assert {node for _, other in found for node in other} == set(range(1, 40, 4))
        train.shutdown()
        val.shutdown()


def test_a_rank_without_seeds_has_no_batches(connect: Connect, rings: dict[str, Path]) -> None:
    dataset = connect(rings["hash"], 2)
    loader = DistNeighborLoader(dataset, [2], {0: torch.empty(0, dtype=torch.int64)}, batch_size=4)
    assert list(loader) == [] and len(loader) == 0
    loader.shutdown()


def test_without_a_session() -> None:
    assert dist_client._SESSION is None
    with pytest.raises(RuntimeError, match="call init_compute_process first"):
        request_server(0, "get_edge_dir")


def new_channels(dataset: RemoteDistDataset, batch_size: int = 4) -> dict[int, int]:
    """Server to a channel of all its nodes."""
    config = replace(CONFIG, batch_size=batch_size)
    return {s: register(Asked(s), init(Asked(s), config=config), ids, config=config)
            for s, ids in dataset.fetch_node_ids().items()}  # fmt: skip


def received(receiving: RemoteReceivingChannel) -> list[int]:
    """The seeds of the rest of an epoch, whose messages are checked."""
    seen: list[int] = []
    with suppress(StopIteration):
        while message := receiving.recv():
            check_ring_batch(message["node"], message["edge_index"], message["x"], message["batch"])
            seen += message["batch"].tolist()
    return seen


def test_messages_of_several_servers_are_received_ahead(connect: Connect, rings: dict[str, Path]) -> None:
    """An abandoned epoch takes no message of the next one."""
    channels = new_channels(connect(rings["hash"], 2), batch_size=1)
    receiving = RemoteReceivingChannel([*channels], [*channels.values()], prefetch_size=24)
    for epoch in range(6):
        receiving.reset()
        for server, channel in channels.items():
            Asked(server).start_new_epoch_sampling(channel, epoch)
        if epoch % 2 == 0:
            receiving.recv()
        else:
            assert sorted(received(receiving)) == list(range(NUM_NODES))
    with pytest.raises(StopIteration):
        RemoteReceivingChannel([0, 1], [*channels.values()], active_mask=[False, False]).recv()
    with pytest.raises(RuntimeError, match="only receives"):
        receiving.send({})
    with pytest.raises(ValueError, match="give as many"):
        RemoteReceivingChannel([0, 1], 3)


def test_a_batch_that_takes_longer_than_a_call_is_not_lost(
    connect: Connect, rings: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, goes_on = producer.message_of, threading.Event()

    def slow(batch: Any) -> Any:
        assert goes_on.wait(WAIT_S)
        return real(batch)

    monkeypatch.setattr(producer, "message_of", slow)
    monkeypatch.setattr(dist_server, "WAIT_SHARE", 0.2 / WAIT_S)
    channels = new_channels(connect(rings["hash"], 1))
    Asked(0).start_new_epoch_sampling(channels[0], 0)
    assert Asked(0).fetch_one_sampled_message(channels[0]) == (None, False)
    goes_on.set()
    assert sorted(received(RemoteReceivingChannel([0], [channels[0]]))) == list(range(NUM_NODES))


def test_batches_without_rows_of_a_type_have_empty_tensors(connect: Connect, tmp_path: Path) -> None:
    """Items have features, as have their edges; the neighbourhoods of some users have none of either."""
    graph = graph_from_arrays(
        {("u", "f", "u"): (np.arange(5), np.arange(1, 6)), ("i", "r", "u"): (np.array([0, 1]), np.array([5, 5]))},
        num_nodes={"u": 6, "i": 3},
        node_features={"u": {"x": np.ones((6, 2), np.float32)}, "i": {"x": np.ones((3, 2), np.float32)}},
        edge_features={("i", "r", "u"): {"edge_attr": np.ones((2, 2), np.float32)}},
    )
    write_parts(graph, tmp_path / "graph", num_parts=1, direction="both")
    dataset = connect(tmp_path / "graph", 1)
    for options in (None, PPRSamplerOptions(), PPRSamplerOptions(include_sampled_edges=True)):
        loader = DistNeighborLoader(dataset, [2, 2], ("u", {0: torch.tensor([1, 5])}), sampler_options=options)
        first, second = loader
        assert first["u"].x.shape[1] == second["i"].x.shape[1] == 2
        assert "i" not in first.node_types or first["i"].x.shape == (0, 2)
        loader.shutdown()
