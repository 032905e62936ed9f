"""Tests of GLT's loaders, servers and clients: the ring by ids, equal batches, partition files."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import hopstream.compat.glt as glt
from hopstream.compat.glt.distributed import dist_client, dist_context, glt_dataset
from hopstream.compat.glt.distributed.roster import Meeting
from hopstream.compat.glt.partition import write_partitions
from hopstream.compat.glt.sampler import (
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplingConfig,
    SamplingType,
)
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from tests.compat.gigl.conftest import WAIT_S, serving
from tests.compat.gigl.ring import NUM_NODES, ring_graph, write_range_ring, write_ring
from tests.compat.gigl.test_loaders import as_lists
from tests.ports import free_port

NUM_SERVERS = 2
U2I, I2I = ("user", "u2i", "item"), ("item", "i2i", "item")
REV_U2I = ("item", "rev_u2i", "user")
HOME = "127.0.0.1"


def open_part(folder: Path, part: int = 0, edge_dir: str = "out", **options: Any):
    dataset = glt.distributed.DistDataset(edge_dir=edge_dir)
    dataset.load(folder, part, **options)
    return dataset


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rings")
    return {"hash": write_ring(folder / "hash", 2), "range": write_range_ring(folder / "range", 2)}


def typed_graph():
    """GLT's ring with types: user v leads to items v+1 and v+2, item v to items v+2 and v+3.

    Feature ``x`` is the id of a user, and twice the id of an item.
    """
    src = np.repeat(np.arange(NUM_NODES), 2)
    ids = np.arange(NUM_NODES, dtype=np.float32)[:, None]
    return graph_from_arrays(
        {U2I: np.stack([src, (src + np.tile([1, 2], NUM_NODES)) % NUM_NODES]),
         I2I: np.stack([src, (src + np.tile([2, 3], NUM_NODES)) % NUM_NODES])},
        num_nodes={"user": NUM_NODES, "item": NUM_NODES},
        node_features={"user": {"x": ids, "y": np.arange(NUM_NODES) % 3}, "item": {"x": 2 * ids}},
        edge_features={U2I: {"edge_attr": np.arange(2 * NUM_NODES, dtype=np.float32)[:, None]}},
        splits={"user": {"train": np.arange(0, NUM_NODES, 2), "val": np.arange(1, NUM_NODES, 2)}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed") / "typed"
    write_parts(typed_graph(), folder, num_parts=2, method="hash", direction="both")
    return folder


def serve_part(folder: Path, rank: int, _: int, edge_dir: str) -> Any:
    """GLT's server of one part of a dataset."""
    return glt.distributed.DistServer(open_part(folder, rank, edge_dir))


Serve = Callable[[Path], tuple[Meeting, list[Any]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a dataset from threads of this process; where servers meet, and the servers."""
    with ExitStack() as stack:

        def run(folder: Path) -> tuple[Meeting, list[Any]]:
            served = stack.enter_context(serving(folder, NUM_SERVERS, "out", serve_part))
            return served.meeting, served.servers

        yield run


@pytest.fixture
def connect(serve: Serve) -> Iterator[Callable[[Path], None]]:
    """Serve a dataset, and be its only client."""

    def run(folder: Path) -> None:
        meeting, servers = serve(folder)
        glt.distributed.init_client(NUM_SERVERS, 1, 0, HOME, meeting.master_port, request_timeout=WAIT_S)
        started.extend(servers)

    started: list[Any] = []
    yield run
    if started:
        glt.distributed.shutdown_client()
        for server in started:
            server.wait_for_exit()
    assert glt.distributed.get_context() is None


def remote(**options: Any):
    return glt.distributed.RemoteDistSamplingWorkerOptions(**{"server_rank": [0, 1], **options})


def taken(loader: Any) -> list[dict[str, Any]]:
    found = [as_lists(data) for _ in range(2) for data in loader]
    loader.shutdown()
    return found


def check_edges(data: Any) -> None:
    """Check forward edges of the ring, which lead from found nodes to the nodes they were found for."""
    found, sought = data.node[data.edge_index]
    assert len(found) and set(data.batch.tolist() if "batch" in data else []) <= set(sought.tolist())
    assert set(((found - sought) % NUM_NODES).tolist()) <= {1, 2}
    assert (data.edge == sought * 2 + (found - sought) % NUM_NODES - 1).all()
    assert (data.edge_attr == torch.stack([sought, found], dim=1)).all()
    assert (data.x == data.node[:, None]).all() and len(set(data.node.tolist())) == len(data.node)


ALL = {"with_edge": True, "collect_features": True}


@pytest.mark.parametrize("method", ["hash", "range"])
def test_nodes_of_the_ring_over_servers(connect, rings, method: str) -> None:
    connect(rings[method])
    loader = glt.distributed.DistNeighborLoader(
        None, [2, 1], torch.arange(NUM_NODES), 7, shuffle=True, **ALL, worker_options=remote()
    )
    assert len(loader) == 6
    for _ in range(2):
        seen = []
        for data in loader:
            check_edges(data)
            assert data.batch.tolist() == data.node[: data.batch_size].tolist() and (data.y == data.node % 4).all()
            assert data.num_sampled_nodes.sum() == len(data.node) and data.num_sampled_edges.sum() == len(data.edge)
            seen += data.batch.tolist()
        assert sorted(seen) == list(range(NUM_NODES))
    loader.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        iter(loader)


@pytest.mark.parametrize(("method", "neg"), [("hash", "binary"), ("range", "triplet"), ("hash", None)])
def test_links_of_the_ring_over_servers(connect, rings, method: str, neg: str | None) -> None:
    connect(rings[method])
    src = torch.arange(NUM_NODES)
    how = None if neg is None else glt.sampler.NegativeSampling(neg, 2 if neg == "triplet" else 1)
    loader = glt.distributed.DistLinkNeighborLoader(
        None, [2, 1], 5, torch.stack([src, (src + 1) % NUM_NODES]), neg_sampling=how, shuffle=True, **ALL,
        worker_options=remote(server_rank=0),
    )  # fmt: skip
    seen = []
    for data in loader:
        check_edges(data)
        assert "y" not in data and "batch" not in data and data.batch_size == 0
        if neg == "triplet":
            pairs = torch.stack([data.node[data.src_index], data.node[data.dst_pos_index]])
            assert data.dst_neg_index.shape == (5, 2) and int(data.dst_neg_index.max()) < len(data.node)
        else:
            pairs = data.node[data.edge_label_index.flip(0)][:, :5]
            assert data.edge_label_index.shape == (2, 10 if neg else 5)
            assert neg is None or data.edge_label.tolist() == [1.0] * 5 + [0.0] * 5
        assert ((pairs[1] - pairs[0]) % NUM_NODES == 1).all()
        seen += pairs[0].tolist()
    assert sorted(seen) == list(range(NUM_NODES))
    loader.shutdown()
    if neg is None:
        loader = glt.distributed.DistLinkNeighborLoader(None, [2], 16, worker_options=remote())
        pairs = torch.cat([data.node[data.edge_label_index.flip(0)] for data in loader], dim=1)
        assert sorted(map(tuple, pairs.t().tolist())) == sorted((v, (v + d) % 40) for v in range(40) for d in (1, 2))
        loader.shutdown()


def test_subgraphs_of_the_ring_over_servers(connect, rings) -> None:
    connect(rings["range"])
    loader = glt.distributed.DistSubGraphLoader(
        None, torch.arange(NUM_NODES), [-1, -1], 3, **ALL, worker_options=remote()
    )
    first = 0
    for data in loader:
        check_edges(data)
        seeds = [v for v in range(first, first + 3) if v < NUM_NODES]
        assert data.node[data.mapping].tolist() == seeds
        inside = {(v + d) % NUM_NODES for v in seeds for d in range(5)}
        assert set(data.node.tolist()) == inside and "num_sampled_edges" not in data
        wanted = {((v + d) % NUM_NODES, v) for v in inside for d in (1, 2) if (v + d) % NUM_NODES in inside}
        found = list(map(tuple, data.node[data.edge_index].t().tolist()))
        assert len(found) == len(set(found)) and set(found) == wanted
        first += 3
    loader.shutdown()
    loader = glt.distributed.DistSubGraphLoader(None, torch.arange(4), batch_size=4, worker_options=remote())
    (data,) = loader
    assert data.node.tolist() == [0, 1, 2, 3] and data.edge_index.shape == (2, 5) and "edge" not in data
    loader.shutdown()


def test_loaders_of_one_client_fetch_the_schema_once(connect, rings) -> None:
    connect(rings["hash"])
    loaders = [make(data=None, worker_options=remote()) for make in makers_of(None)]
    schemas = [loader._source.facts.schema for loader in loaders]
    assert schemas[0] is schemas[1] is schemas[2]
    for loader in loaders:
        loader.shutdown()
    later = makers_of(None)[0](data=None, worker_options=remote())
    assert next(iter(later)).batch_size == 7
    later.shutdown()


def makers_of(node_type: str | None) -> list[Callable[..., Any]]:
    """A loader of each kind, of a dataset or of servers."""
    src = torch.arange(NUM_NODES)
    pairs = torch.stack([src, (src + 1) % NUM_NODES])
    nodes, links = (src, pairs) if node_type is None else ((node_type, src), (U2I, pairs))
    return [
        partial(
            glt.distributed.DistNeighborLoader, num_neighbors=[1, 1], input_nodes=nodes, batch_size=7, shuffle=True,
            **ALL,
        ),
        partial(
            glt.distributed.DistLinkNeighborLoader, num_neighbors=[1], edge_label_index=links, batch_size=7,
            neg_sampling="binary", shuffle=True,
        ),
        partial(
            glt.distributed.DistSubGraphLoader, input_nodes=nodes, num_neighbors=[1], batch_size=7, shuffle=True,
            random_seed=4,
        ),
    ]  # fmt: skip


def test_batches_do_not_depend_on_the_sampling_process(connect, rings, typed) -> None:
    """Each kind of loader gives the same batches collocated, by threads, and on servers."""
    for folder, of in ((rings["hash"], None), (typed, "user")):
        makers = makers_of(of)
        data = open_part(folder, 1)
        ways: list[dict[str, Any]] = [
            {"data": data}, {"data": data, "worker_options": glt.distributed.CollocatedDistSamplingWorkerOptions()},
            {"data": data, "worker_options": glt.distributed.MpDistSamplingWorkerOptions(2)},
        ]  # fmt: skip
        here = [[taken(make(**way)) for way in ways] for make in makers]
        for found in here:
            assert found[0] == found[1] == found[2] and found[0][0] != found[0][len(found[0]) // 2]
        data.close()
        if of is not None:
            connect(folder)
            for make, found in zip(makers, here, strict=True):
                assert taken(make(data=None, worker_options=remote())) == found[0]


@pytest.mark.parametrize("edge_dir", ["out", "in"])
def test_typed_loaders_name_types_as_glt_does(typed: Path, edge_dir: str) -> None:
    data = open_part(typed, 0, edge_dir)
    assert set(data.get_node_types()) == {"user", "item"} and set(data.get_edge_types()) == {U2I, I2I}
    shown = REV_U2I if edge_dir == "out" else U2I
    around = "user" if edge_dir == "out" else "item"
    loader = glt.distributed.DistNeighborLoader(
        data, {U2I: [2, 2], I2I: [1, 1]}, (around, torch.arange(NUM_NODES)), 5, edge_dir=edge_dir, **ALL
    )
    for batch in loader:
        user, item = batch["user"], batch["item"]
        assert isinstance(batch, HeteroData) and batch[around].batch.tolist() == batch[around].node[:5].tolist()
        assert (user.x[:, 0] == user.node).all() and (item.x[:, 0] == 2 * item.node).all()
        assert ("y" in user) == (around == "user") and set(batch.edge_types) == {shown, I2I}
        items, users = batch[shown].edge_index if edge_dir == "out" else batch[shown].edge_index.flip(0)
        step = (item.node[items] - user.node[users]) % NUM_NODES
        assert set(step.tolist()) <= {1, 2} and (batch[shown].edge == 2 * user.node[users] + step - 1).all()
        assert (batch[shown].edge_attr[:, 0] == batch[shown].edge).all() and "edge_attr" not in batch[I2I]
        assert len(batch[I2I].edge) == batch[I2I].edge_index.shape[1]
        assert batch.num_sampled_nodes["user"].sum() == len(user.node)
        assert set(batch.num_sampled_edges) == {shown, I2I}
    loader.shutdown()
    src = torch.arange(NUM_NODES)
    links = (U2I, torch.stack([src, (src + 1) % NUM_NODES]))
    loader = glt.distributed.DistLinkNeighborLoader(data, [2, 1], 5, links, neg_sampling="binary", edge_dir=edge_dir)
    for batch in loader:
        index = batch[shown].edge_label_index
        items, users = index if edge_dir == "out" else index.flip(0)
        step = (batch["item"].node[items] - batch["user"].node[users]) % NUM_NODES
        assert (step[:5] == 1).all() and batch[shown].edge_label.tolist() == [1.0] * 5 + [0.0] * 5
        assert "y" not in batch["user"] and "x" not in batch["user"] and "edge" not in batch[shown]
    triplets = glt.distributed.DistLinkNeighborLoader(data, [2], 5, links, neg_sampling="triplet", edge_dir=edge_dir)
    batch = next(iter(triplets))
    step = batch["item"].node[batch["item"].dst_pos_index] - batch["user"].node[batch["user"].src_index]
    assert (step % NUM_NODES == 1).all() and "dst_neg_index" in batch["item"]
    own = glt.distributed.DistLinkNeighborLoader(data, [1], 8, U2I, edge_dir=edge_dir)
    assert own.input_data.row.tolist() == data.own_edges(U2I)[0].tolist()
    only = glt.distributed.DistNeighborLoader(data, {I2I: [2]}, ("user", data.train_idx["user"]), 8, edge_dir=edge_dir)
    assert all(not batch[shown].edge_index.size(1) for batch in only)
    for one in (loader, triplets, own, only):
        one.shutdown()
    data.close()


def test_files_of_ids_and_splits_are_shared_by_clients(serve, rings, typed, tmp_path, monkeypatch) -> None:
    """Clients whose loaders share a key share the seeds; without a key each client has all."""
    meeting, _ = serve(rings["hash"])
    paths = [str(tmp_path / f"partition{part}.pt") for part in range(2)]
    for part, path in enumerate(paths):
        torch.save(torch.arange(part, 30, 2), path)
    seen: dict[str | None, list[list[int]]] = {"train": [], None: []}
    for rank in range(2):
        glt.distributed.init_client(2, 2, rank, HOME, meeting.master_port, request_timeout=WAIT_S)
        context = glt.distributed.get_context()
        assert context is not None and context.is_client() and (context.rank, context.world_size) == (rank, 2)
        assert (context.num_servers(), context.num_clients(), context.global_rank) == (2, 2, 2 + rank)
        for key, found in seen.items():
            loader = glt.distributed.DistNeighborLoader(
                None, [1], paths, 4, shuffle=True, worker_options=remote(worker_key=key)
            )
            found.append([node for data in loader for node in data.batch.tolist()])
            loader.shutdown()
        if rank == 0:  # leaving waits for the other client
            dist_client.session().close()
            dist_client.set_session(None)
            dist_context.set_context(None)
    assert sorted(seen["train"][0] + seen["train"][1]) == list(range(30)) and len(seen["train"][0]) == 15
    assert sorted(seen[None][0]) == sorted(seen[None][1]) == list(range(30))
    torch.save(torch.arange(30), tmp_path / "ids.pt")
    by_path = RemoteNodePathSamplerInput(str(tmp_path / "ids.pt"), None)
    by_split = RemoteNodeSplitSamplerInput(glt.Split.valid, None)
    config = SamplingConfig(SamplingType.NODE, [1], 4, False, False, False, False, False, False, "out")
    for given, wanted in ((by_split, range(1, 40, 4)), (by_path, range(30)), ([by_path, by_path], range(30))):
        for loader in (
            glt.distributed.DistNeighborLoader(None, [1], given, 4, worker_options=remote()),
            glt.distributed.DistLoader(None, given, config, worker_options=remote()),
        ):
            assert sorted(node for data in loader for node in data.batch.tolist()) == list(wanted)
            loader.shutdown()
    with pytest.raises(ValueError, match=r"input_nodes have the types None and 'user'; give"):
        glt.distributed.DistLoader(None, [by_path, replace(by_path, input_type="user")], config, None, remote())
    dist_client.session().close()
    dist_client.set_session(None)
    dist_context.set_context(None)
    with pytest.raises(ValueError, match=r"torn\.pt"):
        (tmp_path / "torn.pt").write_bytes(b"no")
        data = open_part(typed)
        glt.distributed.DistNeighborLoader(data, [1], ("user", str(tmp_path / "torn.pt")))


@pytest.mark.parametrize("kind", ["ring", "typed"])
def test_partition_files_of_glt(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are converted once for all loaders, and again after they were written again."""
    graph = ring_graph() if kind == "ring" else typed_graph()
    write_partitions(graph, tmp_path / "glt", num_parts=2, method="hash", edge_assign_strategy="by_src")
    labels = tmp_path / "label.pt"
    torch.save(torch.arange(NUM_NODES) % 7, labels)
    files: Any = str(labels) if kind == "ring" else {"user": str(labels)}
    read, times = glt_dataset.read_partitions, []
    monkeypatch.setattr(glt_dataset, "read_partitions", lambda *a, **k: (times.append(1), read(*a, **k))[1])
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda part: open_part(tmp_path / "glt", part, whole_node_label_file=files), range(2)))
    assert len(times) == 1 and parts[0].folder == parts[1].folder
    assert parts[0].folder.name.startswith("glt.hopstream-") and parts[0].folder.parent == tmp_path
    of = None if kind == "ring" else "user"
    name = "node" if of is None else of
    _, _, _, _, _, book, _ = glt.partition.load_partition(tmp_path / "glt", 0)
    book = book if of is None else book[of]
    for rank, dataset in enumerate(parts):
        assert (dataset.num_partitions, dataset.partition_idx) == (2, rank)
        assert dataset.own_keys(name).tolist() == torch.nonzero(book == rank)[:, 0].tolist()
        train = dataset.train_idx if of is None else dataset.train_idx[of]
        assert set(train.tolist()) == {v for v in dataset.own_keys(name).tolist() if v % 2 == 0}
        loader = glt.distributed.DistNeighborLoader(dataset, [2], train if of is None else (of, train), 4, **ALL)
        for data in loader:
            user = data if of is None else data[of]
            assert (user.y == user.node % 7).all() and (user.x[:, 0] == user.node).all()
        loader.shutdown()
        dataset.close()
    torch.save(torch.zeros(NUM_NODES, dtype=torch.int64), labels)
    again = open_part(tmp_path / "glt", 1, whole_node_label_file=files)
    assert len(times) == 2 and again.folder != parts[0].folder
    assert again.label_tensor(name, np.arange(3)).tolist() == [0, 0, 0]
    again.close()


def test_weighted_loaders_never_draw_edges_of_weight_zero(tmp_path: Path) -> None:
    graph = graph_from_arrays(
        {("node", "to", "node"): np.array([[0, 0, 0, 1], [1, 2, 3, 2]])}, num_nodes={"node": 4},
        edge_features={("node", "to", "node"): {"weight": np.array([0, 0, 1, 1], np.float32)}},
    )  # fmt: skip
    write_partitions(graph, tmp_path / "glt", num_parts=2, method="hash")
    data = open_part(tmp_path / "glt")
    loader = glt.distributed.DistNeighborLoader(data, [1], [0, 0, 0], 1, with_weight=True, **ALL)
    for batch in loader:
        assert batch.node.tolist() == [0, 3] and "edge_attr" not in batch and "x" not in batch
    loader.shutdown()
    data.close()


def test_uncounted_clients_may_join_and_leave(serve, rings) -> None:
    meeting, servers = serve(rings["hash"])
    for rank in (1, 2, 1, 0):
        glt.distributed.init_client(2, 9, rank, HOME, meeting.master_port, is_dynamic=True, request_timeout=WAIT_S)
        context = glt.distributed.get_context()
        assert context is not None and context.num_clients() == 0 and context.num_servers() == 2
        assert glt.distributed.request_server(1, glt.distributed.DistServer.get_dataset_meta) == (2, 1, None, None)
        loader = glt.distributed.DistNeighborLoader(None, [1], [rank], worker_options=remote(worker_key="a"))
        assert [data.batch.tolist() for data in loader] == [[rank]]
        loader.shutdown()
        assert not any(server._exit.is_set() for server in servers)
        glt.distributed.shutdown_client()
    for server in servers:
        server.wait_for_exit()


def test_request_server_takes_methods_and_their_names(connect, rings) -> None:
    connect(rings["range"])
    server, ask = glt.distributed.DistServer, glt.distributed.request_server
    index = torch.tensor([3, 25])
    assert ask(0, server.get_node_partition_id, None, index).tolist() == [0, 1]
    assert ask(1, server.get_node_feature, None, index)[:, 0].tolist() == [3.0, 25.0]
    assert ask(1, "get_node_label", None, index).tolist() == [3, 1]
    assert tuple(ask(0, server.get_tensor_size, None)) == (20, 8)
    rows, cols = glt.distributed.async_request_server(1, server.get_edge_index, None, "coo").wait()
    assert sorted(rows.tolist()) == sorted(2 * list(range(20, 40))) and len(cols) == 40
    assert tuple(ask(0, server.get_edge_size, None, "coo")) == (40, 40)
    for func in (len, "methods", server.wait_for_exit):
        with pytest.raises(ValueError, match="is not a method of DistServer"):
            ask(0, func)
    with pytest.raises(ValueError, match="layout is 'csr'"):
        ask(0, server.get_edge_index, None, "csr")
    with pytest.raises(ValueError, match="the dataset is homogeneous"):
        ask(0, server.get_node_feature, "user", index)
    with pytest.raises(ValueError, match="server_rank is 2"):
        ask(2, server.get_dataset_meta)
    with pytest.raises(ValueError, match="has a session already"):
        glt.distributed.init_client(2, 1, 0, HOME, 1)
    with pytest.raises(ValueError, match=r"server_rank is \[0, 2\]"):
        glt.distributed.DistNeighborLoader(None, [1], [0], worker_options=remote(server_rank=[0, 2]))


def test_bad_client_and_server_arguments_are_refused(serve, rings, caplog) -> None:
    meeting, _ = serve(rings["hash"])
    with pytest.raises(ValueError, match="num_servers is 3; 2 servers meet"):
        glt.distributed.init_client(3, 1, 0, HOME, meeting.master_port, request_timeout=WAIT_S)
    with pytest.raises(ValueError, match="client_rank is 2 of 2"):
        glt.distributed.init_client(2, 2, 2, HOME, meeting.master_port)
    for call in (lambda: glt.distributed.request_server(0, "exit"),
                 lambda: glt.distributed.DistNeighborLoader(None, [1], [0], worker_options=remote())):  # fmt: skip
        with pytest.raises(RuntimeError, match="call init_client first"):
            call()
    glt.distributed.shutdown_client()
    glt.distributed.wait_and_shutdown_server()
    assert "not a client" in caplog.text and "no server in this process" in caplog.text
    glt.distributed.init_worker_group(4, 3)
    context = glt.distributed.get_context()
    assert context is not None and context.is_worker() and context.worker_name == "_default_worker-3"
    assert context.num_servers() == context.num_clients() == 0 and not context.is_server()
    with pytest.raises(RuntimeError, match="this process is a worker"):
        glt.distributed.shutdown_client()
    dist_context.set_context(None)
    with pytest.raises(ValueError, match="rank is 4 of 4"):
        glt.distributed.init_worker_group(4, 4)
    data = open_part(rings["hash"], 1)
    with pytest.raises(ValueError, match="server 0 of 2 has partition 1 of 2"):
        glt.distributed.init_server(2, 0, data, HOME, free_port())
    with pytest.raises(RuntimeError, match="Call init_server"):
        glt.distributed.get_server()
    data.close()


def test_bad_loader_arguments_are_refused(rings, typed) -> None:
    ring, graph = open_part(rings["hash"]), open_part(typed)

    def refused(message: str, error: type[Exception] = ValueError, kind: str = "DistNeighborLoader", **options: Any):
        given = {"data": ring, "num_neighbors": [2], "batch_size": 4}
        if kind != "DistLinkNeighborLoader":
            given["input_nodes"] = torch.arange(4)
        with pytest.raises(error, match=message):
            getattr(glt.distributed, kind)(**{**given, **options})

    refused("data is None", data=None)
    refused("input_nodes is None", input_nodes=None)
    refused("wanted ids", input_nodes=torch.rand(3))
    refused("the dataset is homogeneous", input_nodes=("user", torch.arange(3)))
    refused("the node type is missing", data=graph)
    refused("shop", KeyError, data=graph, input_nodes=("shop", torch.arange(3)))
    refused("counts are integers from -1", num_neighbors=[-2])
    refused("edge_type is .*the dataset is homogeneous", num_neighbors={U2I: [1]})
    refused("has no weights", with_weight=True)
    refused("edge_dir", edge_dir="both")
    refused("40", IndexError, input_nodes=[40])
    refused("worker_options are dict", worker_options={})
    refused("has 3 rows", kind="DistLinkNeighborLoader", edge_label_index=torch.zeros(3, 4, dtype=torch.int64))
    pairs = torch.zeros(2, 4, dtype=torch.int64)
    refused("triplets have no labels", kind="DistLinkNeighborLoader", edge_label_index=pairs, neg_sampling="triplet",
            edge_label=torch.ones(4))  # fmt: skip
    refused("edge_type is missing", data=graph, kind="DistLinkNeighborLoader", edge_label_index=pairs)
    empty = glt.distributed.DistNeighborLoader(ring, [2], torch.empty(0, dtype=torch.int64))
    assert list(empty) == [] and len(empty) == 0 and empty.state_dict() == {}
    empty.shutdown()
    ring.close()
    graph.close()


def test_a_loader_resumes_the_state_of_another(rings) -> None:
    data = open_part(rings["hash"])
    one, other = (
        glt.distributed.DistNeighborLoader(data, [2], torch.arange(40), 8, shuffle=True, random_seed=3)
        for _ in range(2)
    )
    found = [next(iter(one))]
    state = one.state_dict()
    rest = [as_lists(batch) for batch in iter(one._batches)]
    other.load_state_dict(state)
    assert [as_lists(batch) for batch in other] == rest and len(found) + len(rest) == 5
    one.shutdown()
    other.shutdown()
    data.close()


def test_a_dataset_must_be_loaded_before_use(rings, tmp_path) -> None:
    dataset = glt.distributed.DistDataset(2, 1)
    with pytest.raises(AttributeError, match="call load"):
        _ = dataset.num_partitions
    with pytest.raises(ValueError, match="no graphs, features or books in memory"):
        glt.distributed.DistDataset(2, 0, torch.zeros(3))
    with pytest.raises(ValueError, match="is a Hopstream dataset"):
        dataset.load(rings["hash"], 0, whole_node_label_file="label.pt")
    with pytest.raises(ValueError, match=r"partition 2 of 2"):
        dataset.load(rings["hash"], 2)
    with pytest.raises(ValueError, match="manifest"):
        dataset.load(tmp_path, 0)
    with pytest.raises(ValueError, match="'both'"):
        glt.distributed.DistDataset(edge_dir="both")
    dataset.load(rings["hash"], 1)
    with pytest.raises(AttributeError, match="no such attribute"):
        _ = dataset.graph_mode
    assert dataset.get_node_types() is None and set(dataset.val_idx.tolist()) <= set(range(1, 40, 4))
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.own_keys("node").tolist() == dataset.own_keys("node").tolist() and twin.edge_dir == "out"
    whole = open_part(rings["hash"], 0, num_partitions=1)
    assert len(whole.own_keys("node")) == 40 and whole.test_idx.tolist() == list(range(3, 40, 4))
    for one in (dataset, twin, whole):
        one.close()


ARGUMENTS = {
    "init_server": "num_servers server_rank dataset master_addr master_port num_clients=0 num_rpc_threads=16 "
    "request_timeout=180 server_group_name=None is_dynamic=False",
    "init_client": "num_servers num_clients client_rank master_addr master_port num_rpc_threads=4 "
    "client_group_name=None is_dynamic=False",
    "wait_and_shutdown_server": "", "shutdown_client": "", "get_server": "", "get_context": "",
    "init_worker_group": "world_size rank group_name=None",
    "DistNeighborLoader": "data num_neighbors input_nodes=None batch_size=1 shuffle=False drop_last=False "
    "with_edge=False with_weight=False edge_dir='out' collect_features=False to_device=None random_seed=None "
    "worker_options=None",
    "DistLinkNeighborLoader": "data num_neighbors batch_size=1 edge_label_index=None edge_label=None neg_sampling=None "
    "shuffle=False drop_last=False with_edge=False with_weight=False edge_dir='out' collect_features=False "
    "to_device=None random_seed=None worker_options=None",
    "DistSubGraphLoader": "data input_nodes num_neighbors=None batch_size=1 shuffle=False drop_last=False "
    "with_edge=False with_weight=False edge_dir='out' collect_features=False to_device=None worker_options=None",
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_their_order_and_defaults(name: str) -> None:
    found = [
        one.name if one.default is one.empty else f"{one.name}={one.default!r}"
        for one in inspect.signature(getattr(glt.distributed, name)).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    assert found == ARGUMENTS[name].split()


def test_every_name_of_glt_exists_or_is_refused_with_a_remedy() -> None:
    for module in (glt, glt.distributed):
        for name in module.__all__:
            assert getattr(module, name) is not None and name in dir(module)
        for name, hint in module._REFUSED.items():
            with pytest.raises(AttributeError, match="is not available") as raised:
                getattr(module, name)
            assert hint in str(raised.value)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing
    assert glt.reverse_edge_type(U2I) == REV_U2I and glt.as_str(U2I) == "user__u2i__item"
    assert glt.typing.GraphPartitionData is glt.GraphPartitionData and glt.Split.train.value == "train"


def serve_process(folder: Path, rank: int, port: int) -> None:
    dataset = glt.distributed.DistDataset()
    dataset.load(folder, rank)
    glt.distributed.init_server(2, rank, dataset, HOME, port, num_clients=2, request_timeout=60)
    context = glt.distributed.get_context()
    assert context is not None and context.is_server() and context.num_clients() == 2
    assert glt.distributed.get_server().dataset is dataset
    glt.distributed.wait_and_shutdown_server()


def client_process(rank: int, port: int, out: Path, leaves: Any) -> None:
    glt.distributed.init_client(2, 2, rank, HOME, port)
    nodes = torch.arange(NUM_NODES)
    loaders = [
        glt.distributed.DistNeighborLoader(
            None, [2, 1], nodes, 4, shuffle=True, **ALL, worker_options=remote(worker_key="train")
        ),
        glt.distributed.DistLinkNeighborLoader(None, [2], 8, neg_sampling="triplet", **ALL, worker_options=remote()),
        glt.distributed.DistSubGraphLoader(None, nodes, [2], 8, **ALL, worker_options=remote()),
    ]
    seen = []
    for loader in loaders:
        for data in loader:
            check_edges(data)
            seen += data.batch.tolist() if loader is loaders[0] else []
        loader.shutdown()
    torch.save(torch.tensor(seen), out / f"seen{rank}.pt")
    leaves.set()
    glt.distributed.shutdown_client()


@pytest.mark.slow
def test_two_servers_and_two_clients_from_start_to_end(tmp_path: Path) -> None:
    """The second client starts when the first one leaves, and the first one waits for it."""
    write_partitions(ring_graph(), tmp_path / "glt", num_parts=2, method="hash")
    context, port = multiprocessing.get_context("spawn"), free_port()
    leaves = context.Event()
    processes = [
        *(context.Process(target=serve_process, args=(tmp_path / "glt", rank, port)) for rank in range(2)),
        *(context.Process(target=client_process, args=(rank, port, tmp_path, leaves)) for rank in range(2)),
    ]
    try:
        for process in processes[:3]:
            process.start()
        assert leaves.wait(2 * WAIT_S)
        processes[3].start()
        ends = time.monotonic() + 4 * WAIT_S
        for process in processes:
            process.join(ends - time.monotonic())
        assert [process.exitcode for process in processes] == [0] * 4
    finally:
        for process in processes:
            if process.exitcode is None and process.pid is not None:
                process.kill()
                process.join()
    seen = [torch.load(tmp_path / f"seen{rank}.pt").tolist() for rank in range(2)]
    assert sorted(seen[0] + seen[1]) == list(range(NUM_NODES)) and len(seen[0]) == len(seen[1])
