"""Checks that a loader over a ``RemoteGraph`` keeps the promises of loaders, or says why it cannot."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError, SettingsError, StateError, StoreTimeout, StoreUnavailable
from hopstream.load.batch import MiniBatch, SampledBatch
from hopstream.load.layerwise import infer_layerwise
from hopstream.load.loader import NeighborLoader
from hopstream.store.cluster import Cluster, ServerEntry, write_cluster
from hopstream.store.routed import RoutedStore
from hopstream.store.settings import StoreSettings
from hopstream.stream import client, messages, service
from hopstream.stream.client import RemoteGraph
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from tests.load.contract import LoaderContract, raise_in_loop
from tests.load.graphs import flat
from tests.ports import free_ports
from tests.store.busy import make_busy
from tests.store.processes import wait_until
from tests.stream.serving import (
    SETTINGS,
    SamplingProcess,
    Served,
    channel_ids_at,
    channels_at,
    locations_of,
    node_loader,
    remote_graph,
    serve_here,
    serve_processes,
)


@pytest.fixture(scope="module")
def two_processes(timed_parts: dict[int, Path]) -> Iterator[list[SamplingProcess]]:
    with serve_processes(timed_parts[2]) as processes:
        yield processes


@pytest.fixture(scope="module", params=[None, 0], ids=["rows kept", "whole batches"])
def graph(request: pytest.FixtureRequest, two_processes: list[SamplingProcess]) -> RemoteGraph:
    return remote_graph(locations_of(two_processes), cache_bytes=request.param)


class TestRemoteLoader(LoaderContract):
    @pytest.fixture
    def new_loader(self, graph: RemoteGraph) -> Any:
        return lambda **settings: node_loader(graph, **{"num_threads": 3, "batch_size": 24, **settings})

    @pytest.mark.parametrize("leave", ["raise", "close", "lose"])
    def test_leaving_early_leaves_no_thread(self, new_loader: Any, leave: str) -> None:
        """Threads of the open store stay until the loader is closed; threads of the iteration end."""
        with new_loader() as loader:
            iterator = iter(loader)
            next(iterator)
            if leave == "raise":
                with pytest.raises(KeyError):
                    raise_in_loop(loader)
                gc.collect()  # the traceback of the error holds the loop
            elif leave == "close":
                loader.close()
            del iterator
            assert [t.name for t in threading.enumerate() if t.name.startswith("hopstream-load")] == []
        assert [t.name for t in threading.enumerate() if t.name.startswith("hopstream")] == []


def test_pickling_and_copying_are_refused_with_a_remedy(graph: RemoteGraph) -> None:
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="RemoteGraph can be neither pickled nor copied: make one in each process"):
            send(graph)


@pytest.mark.parametrize("num_before", [1, 7])
def test_states_are_exchangeable_between_folders_and_servers(
    timed_parts: dict[int, Path], graph: RemoteGraph, num_before: int
) -> None:
    options: dict[str, Any] = {"batch_size": 10, "num_threads": 2}
    with node_loader(timed_parts[1], **options) as whole:
        wanted = [[flat(batch) for batch in whole] for _ in range(3)]
    sources = (graph, timed_parts[1])
    for source, other in ((graph, graph), sources, sources[::-1]):
        with node_loader(source, **options) as one, node_loader(other, **options) as two:
            one.set_epoch(1)
            iterator = iter(one)
            for _ in range(num_before):
                next(iterator)
            two.load_state_dict(json.loads(json.dumps(one.state_dict())))
            assert [flat(batch) for batch in two] == wanted[1][num_before:]
            assert [flat(batch) for batch in two] == wanted[2]


def test_epochs_may_be_taken_in_any_order(timed_parts: dict[int, Path], graph: RemoteGraph) -> None:
    with node_loader(timed_parts[1], batch_size=20) as local, node_loader(graph, batch_size=20) as loader:
        for epoch in (3, 1, 0, 1, 1, 4):
            local.set_epoch(epoch)
            loader.set_epoch(epoch)
            assert [flat(batch) for batch in loader] == [flat(batch) for batch in local]


@pytest.mark.parametrize(("cache_bytes", "look_ahead", "credit"), [(0, 16, 2), (None, 0, 2), (None, 4, 4)])
def test_server_prefetch_is_bounded_by_the_loader(
    timed_parts: dict[int, Path], cache_bytes: int | None, look_ahead: int, credit: int
) -> None:
    with serve_here(timed_parts[2]) as served:
        graph = remote_graph(served.locations, cache_bytes=cache_bytes)
        with node_loader(graph, num_threads=1, prefetch=3, look_ahead=look_ahead) as loader:
            iterator = iter(loader)
            for _ in range(2):
                next(iterator)
            assert served.num_channels == 2
            credits = [channel["credit"] for service in served.services for channel in service._scheduler.describe()]
            assert credits == [credit, credit]
            iterator.close()
        assert (served.num_channels, served.num_backends) == (0, 0)


def test_servers_sample_batches_together(timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches equal those of the folder; servers send fewer requests than without groups."""
    options: dict[str, Any] = {"batch_size": 2, "num_threads": 1, "look_ahead": 16}
    with node_loader(timed_parts[1], **options) as whole:
        wanted = [[flat(batch) for batch in whole] for _ in range(2)]

    def num_requests(group: int) -> int:
        monkeypatch.setattr("hopstream.stream.service.GROUP", group)
        with serve_here(timed_parts[2], SamplingLimits(threads=1)) as served:
            with node_loader(remote_graph(served.locations), **options) as loader:
                assert [[flat(batch) for batch in loader] for _ in range(2)] == wanted
            graphs = [service.graph for service in served.services]
            return sum(graph.traffic()["sample"].remote_requests for graph in graphs if isinstance(graph, RoutedStore))

    together, alone = num_requests(4), num_requests(1)
    assert len(wanted[0]) >= 30
    assert 0 < together < 0.6 * alone


@pytest.mark.parametrize("num_threads", [0, 3])
def test_a_trainer_that_keeps_rows_fetches_those_that_it_lacks(timed_parts: dict[int, Path], num_threads: int) -> None:
    """Its servers fetch no rows for it; without a cache they fetch all, and it fetches none."""
    with serve_here(timed_parts[2]) as served:

        def rows_of(cache_bytes: int | None) -> list[tuple[int, int]]:
            """Rows that each epoch requested of servers, and took from the cache."""
            graph = remote_graph(served.locations, cache_bytes=cache_bytes)
            options: dict[str, Any] = {"node_features": {"paper": ["x"]}, "edge_features": [], "edge_keys": False}
            found = []
            with node_loader(graph, num_threads=num_threads, batch_size=10, **options) as loader:
                assert isinstance(loader.store, RoutedStore)
                for _ in range(2):
                    before = loader.store.traffic()["fetch"]
                    list(loader)
                    after = loader.store.traffic()["fetch"]
                    found.append((after.remote_ids - before.remote_ids, after.cache_ids - before.cache_ids))
            return found

        def served_rows() -> int:
            graphs = [service.graph for service in served.services]
            return sum(graph.traffic()["fetch"].remote_ids for graph in graphs if isinstance(graph, RoutedStore))

        (asked, cached), (asked_again, cached_again) = rows_of(None)
        assert cached > 0 and cached_again > cached
        assert 0 < asked_again < asked  # keys of users, whose rows are too short to be kept
        assert served_rows() == 0
        assert rows_of(0) == [(0, 0), (0, 0)]
        assert served_rows() > 0


@pytest.mark.parametrize("look_ahead", [0, 16])
def test_rows_are_requested_again_while_their_server_is_gone(
    timed_parts: dict[int, Path], graph: RemoteGraph, monkeypatch: pytest.MonkeyPatch, look_ahead: int
) -> None:
    fetch, failures = RoutedStore.submit_fetch, iter([StoreUnavailable("gone"), StoreTimeout("slow")] * 3)

    def failing_at_first(store: RoutedStore, requests: Any) -> Any:
        if store.keeps_rows and (error := next(failures, None)) is not None:
            raise error
        return fetch(store, requests)

    with node_loader(timed_parts[1], batch_size=10) as local:
        wanted = [flat(batch) for batch in local]
    with node_loader(graph, batch_size=10, look_ahead=look_ahead) as loader:
        monkeypatch.setattr(RoutedStore, "submit_fetch", failing_at_first)
        assert [flat(batch) for batch in loader] == wanted


def test_missing_rows_are_an_error_within_the_deadline(
    two_processes: list[SamplingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: RoutedStore, requests: Any) -> Any:
        raise StoreUnavailable("the server of the rows is gone")

    graph = remote_graph(locations_of(two_processes), timeout_s=1.0)
    with node_loader(graph, num_threads=0) as loader:
        monkeypatch.setattr(RoutedStore, "submit_fetch", fail)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no server gave batch 0 of epoch 0 in 1 s(.|\n)*rows is gone"):
            next(iter(loader))
        assert 1 <= time.monotonic() - start < 10


@pytest.mark.parametrize(("timeout_s", "wanted"), [(1.0, 5.0), (8.0, 8.0), (600.0, 30.0)])
def test_a_request_for_rows_ends_with_its_batch(
    two_processes: list[SamplingProcess], timeout_s: float, wanted: float
) -> None:
    settings = StoreSettings(timeout_s=30, prefer_local=False)
    session = RemoteGraph(locations_of(two_processes), settings=settings, timeout_s=timeout_s).open(0)
    assert isinstance(session.store, RoutedStore) and session.store._timeout_s == wanted
    session.close()


WRONG: dict[str, Callable[[SampledBatch], Any]] = {
    "no node type": lambda batch: replace(batch, node_ids={}),
    "no directions": lambda batch: replace(batch, directions={}),
    "another direction": lambda batch: replace(batch, directions=dict.fromkeys(batch.directions, "sideways")),
    "another seed type": lambda batch: replace(batch, seed_type="nobody"),
    "ids of two dimensions": lambda batch: replace(batch, node_ids={t: a[None] for t, a in batch.node_ids.items()}),
    "keys of no dimension": lambda batch: replace(batch, seed_keys=np.array(1)),
    "too few edge ids": lambda batch: replace(batch, edge_ids={t: a[1:] for t, a in batch.edge_ids.items()}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_batch_by_which_no_rows_can_be_fetched_is_refused(
    two_processes: list[SamplingProcess], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def decode(frame: Any, buffers: Any) -> Any:
        return WRONG[wrong](cast(SampledBatch, messages.decode_batch(frame, buffers)))

    monkeypatch.setattr(client, "decode_batch", decode)
    with (
        node_loader(remote_graph(locations_of(two_processes)), batch_size=10) as loader,
        pytest.raises(FormatError, match=r"tcp://.* sent a batch whose types, ids or columns differ"),
    ):
        next(iter(loader))


def test_ranks_of_one_job_share_a_backend(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[2]) as served:
        graph = remote_graph(served.locations)
        options: dict[str, Any] = {"world_size": 4, "remainder": "uneven", "batch_size": 10}
        loaders = [node_loader(graph, rank=rank, **options) for rank in range(4)]
        taken = [batch.input_ids.tolist() for loader in loaders for batch in loader]
        assert sorted(chain.from_iterable(taken)) == list(range(120))
        assert (served.num_channels, served.num_backends) == (8, 2)
        for loader in loaders:
            loader.close()
        assert (served.num_channels, served.num_backends) == (0, 0)


def test_a_channel_with_an_expired_lease_is_recreated(timed_parts: dict[int, Path]) -> None:
    with (
        serve_here(timed_parts[2], SamplingLimits(threads=1, lease_s=0.1)) as served,
        node_loader(timed_parts[1], batch_size=10) as local,
        node_loader(remote_graph(served.locations), batch_size=10, num_threads=0) as loader,
    ):
        wanted = [flat(batch) for batch in local]
        iterator = iter(loader)
        got = [flat(next(iterator)) for _ in range(5)]
        wait_until(lambda: served.num_channels == 0, "the leases run out")
        assert got + [flat(batch) for batch in iterator] == wanted


def test_a_recreated_channel_does_not_repeat_delivered_batches(timed_parts: dict[int, Path]) -> None:
    with (
        serve_here(timed_parts[1], SamplingLimits(threads=1, lease_s=0.1, credit=4)) as served,
        node_loader(remote_graph(served.locations), num_threads=0, prefetch=3) as loader,
    ):
        iterator = iter(loader)
        for _ in range(50):
            next(iterator)
        wait_until(lambda: served.num_channels == 0, "the lease runs out")
        for _ in range(10):
            next(iterator)
        (described,) = served.services[0]._scheduler.describe()
        assert int(str(described["num_made"])) <= 10 + 4


@pytest.mark.slow
def test_too_many_channels_are_an_error(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[1], SamplingLimits(threads=1, max_channels=1)) as served:
        graph = remote_graph(served.locations, timeout_s=1.0)
        with node_loader(graph) as two:
            with node_loader(graph) as one:
                next(iter(one))
                with pytest.raises(StoreUnavailable, match=r"the server has 1 channels, the maximum"):
                    next(iter(two))
            assert len(list(two)) == len(two)  # a loader that closes makes room


def test_a_loader_without_room_on_any_server_is_refused(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[2], SamplingLimits(threads=1, max_channels=1)) as served:
        graph, process = remote_graph(served.locations), psutil.Process()
        with node_loader(graph, batch_size=40) as one:
            assert len(list(one)) == len(one)
            threads, connections = set(threading.enumerate()), process.net_connections()
            message = r"no server can take the loader:\n  .*\(--max-channels\)"
            with pytest.raises(StoreUnavailable, match=message) as error:
                node_loader(graph, batch_size=7)
            assert all(server.location in str(error.value) for server in served.servers)
            del error  # its frames hold the opened stores
            gc.collect()
            assert {one for one in threading.enumerate() if "tcp://" in one.name} <= threads
            wait_until(lambda: len(process.net_connections()) <= len(connections), "the connections are closed")
            assert (served.num_channels, served.num_backends) == (2, 2)
        with node_loader(graph, batch_size=40) as two:  # a loader that closes makes room
            assert len(list(two)) == len(two)


def test_a_loader_is_made_where_one_server_has_room(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[2], SamplingLimits(threads=1, max_channels=1)) as served:
        graph = remote_graph(served.locations)
        with node_loader(graph) as one:
            next(iter(one))
            (channel_id,) = channel_ids_at(served.services[1])
            served.services[1]._scheduler.remove(channel_id)
            with node_loader(graph, batch_size=20) as two:
                assert len(list(two)) == len(two)


def test_temporarily_busy_servers_lose_no_batch(timed_parts: dict[int, Path]) -> None:
    with node_loader(timed_parts[1], batch_size=24) as near:
        wanted = [flat(batch) for batch in near]
    with (
        serve_here(timed_parts[2]) as served,
        node_loader(remote_graph(served.locations), batch_size=24) as far,
    ):
        session: Any = far._setup.session
        attempts = [make_busy(server.connection, 3) for server in session._servers]
        assert [flat(batch) for batch in far] == wanted
        assert [sum(refused) for refused in attempts] == [3, 3]


def test_a_loader_opens_over_initially_busy_servers(
    timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[list[bool]] = []
    init = client.RemoteSession._init

    def busy_at_first(session: Any, server: Any, **options: Any) -> int:
        if len(attempts) < 2:
            attempts.append(make_busy(server.connection, 2))
        return init(session, server, **options)

    monkeypatch.setattr(client.RemoteSession, "_init", busy_at_first)
    with (
        serve_here(timed_parts[2]) as served,
        node_loader(timed_parts[1], batch_size=24) as near,
        node_loader(remote_graph(served.locations), batch_size=24) as far,
    ):
        assert [sum(refused) for refused in attempts] == [2, 2]
        assert [flat(batch) for batch in far] == [flat(batch) for batch in near]


def test_a_channel_started_by_another_client_is_recreated(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[1]) as served:
        with node_loader(timed_parts[1], batch_size=24) as near:
            wanted = [[flat(batch) for batch in near] for _ in range(2)]
        with node_loader(remote_graph(served.locations), batch_size=24) as loader:
            assert [flat(batch) for batch in loader] == wanted[0]
            (channel_id,) = channel_ids_at(served.services[0])
            served.services[0]._scheduler.begin(channel_id, 1 << 62, 5, 0)
            assert [flat(batch) for batch in loader] == wanted[1]
        assert served.num_channels == 0


def move_on(served: Served, turn: int, epoch: int) -> None:
    for one in served.services:
        for channel_id in channel_ids_at(one):
            one._scheduler.begin(channel_id, turn, epoch, 0)


@pytest.mark.parametrize(
    ("turn", "epoch", "num_servers", "num_threads"),
    [(0, 5, 1, 0), (0, 1 << 62, 2, 2), (1 << 62, 0, 2, 0), (1 << 62, 5, 1, 2)],
)
def test_an_iteration_survives_channels_moved_by_another_client(
    timed_parts: dict[int, Path], turn: int, epoch: int, num_servers: int, num_threads: int
) -> None:
    options: dict[str, Any] = {"batch_size": 20, "num_threads": num_threads}
    with (
        serve_here(timed_parts[num_servers]) as served,
        node_loader(timed_parts[1], **options) as near,
        node_loader(remote_graph(served.locations), **options) as far,
    ):
        for _ in range(client.MAX_TAKEN + 2 if num_servers == 1 and turn == 0 else 2):
            found = []
            for batch in far:
                found.append(flat(batch))
                if len(found) == 2:
                    move_on(served, turn, epoch)
            assert found == [flat(batch) for batch in near]


def test_an_iteration_fails_if_its_channel_is_moved_repeatedly(timed_parts: dict[int, Path]) -> None:
    with (
        serve_here(timed_parts[1]) as served,
        node_loader(remote_graph(served.locations), batch_size=4, num_threads=0) as loader,
        pytest.raises(StateError, match="by another client; it was registered again 3 times in one iteration; end the"),
    ):
        for _ in loader:
            move_on(served, 1 << 62, 0)


def test_any_batch_of_any_epoch_can_be_requested_during_iteration(
    graph: RemoteGraph, timed_parts: dict[int, Path]
) -> None:
    with node_loader(graph) as loader, node_loader(timed_parts[1]) as local:
        wanted = local.maker()
        batches = iter(loader)
        next(batches)
        maker = loader.maker()
        for epoch, step in ((3, 2), (0, 1), (3, 0), (0, 0)):
            assert flat(maker.make(epoch, step)) == flat(wanted.make(epoch, step))
        assert flat(next(batches)) == flat(wanted.make(0, 1))
        del maker


def test_leaving_an_iteration_does_not_wait_for_its_batches(
    timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, make = threading.Event(), service._BatchJob.__call__

    def held_up(job: Any, epoch: int, step: int) -> Any:
        assert step < 1 or gate.wait(60)
        return make(job, epoch, step)

    monkeypatch.setattr(service._BatchJob, "__call__", held_up)
    with serve_here(timed_parts[1], SamplingLimits(threads=1)) as served:
        try:
            with node_loader(remote_graph(served.locations), num_threads=1) as loader:
                next(iter(loader))
                started = time.monotonic()
                loader.set_epoch(5)
                assert time.monotonic() - started < client.POLL_S + 2
        finally:
            gate.set()


@pytest.mark.slow
def test_a_responsive_server_without_progress_is_avoided(
    timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.3)
    with node_loader(timed_parts[1]) as local:
        wanted = [flat(batch) for batch in local]
    gate, new_job = threading.Event(), service._BatchJob.__call__
    with serve_here(timed_parts[2], SamplingLimits(threads=2)) as served:
        stuck = served.services[0]._scheduler

        def held_up(job: Any, epoch: int, step: int) -> Any:
            if threading.current_thread() in stuck._threads:
                assert gate.wait(60)
            return new_job(job, epoch, step)

        monkeypatch.setattr(service._BatchJob, "__call__", held_up)
        try:
            with node_loader(remote_graph(served.locations, timeout_s=30.0)) as loader:
                assert [flat(batch) for batch in loader] == wanted
        finally:
            gate.set()


def test_a_new_loader_waits_for_servers_up_to_wait_s() -> None:
    (port,) = free_ports(1)
    graph = RemoteGraph(f"tcp://127.0.0.1:{port}", settings=StoreSettings(prefer_local=False), wait_s=0.5)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="nothing listens there"):
        node_loader(graph)
    assert 0.2 < time.monotonic() - started < 15


def test_an_error_in_an_option_is_raised_where_the_loader_is_made(graph: RemoteGraph) -> None:
    with pytest.raises(SettingsError, match="batch_size is 0"):
        node_loader(graph, batch_size=0)
    with pytest.raises(SettingsError, match="store_settings is given, but a RemoteGraph"):
        node_loader(graph, store_settings=StoreSettings())


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("tcp://h:1,tcp://h:1", SettingsError, "names a server twice"),
        ("tcp://h", SettingsError, "tcp://h"),
        ("no/such/cluster.json", FormatError, "is missing"),
        (".", SettingsError, "is a folder; a RemoteGraph has servers"),
    ],
)
def test_a_source_without_servers_is_refused(source: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        RemoteGraph(source)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "5", True])
def test_invalid_timeouts_are_refused(timeout_s: Any) -> None:
    with pytest.raises(SettingsError, match="timeout_s"):
        RemoteGraph("tcp://127.0.0.1:1", timeout_s=timeout_s)


def test_a_cluster_file_names_the_servers(
    timed_parts: dict[int, Path], two_processes: list[SamplingProcess], tmp_path: Path
) -> None:
    with node_loader(remote_graph(locations_of(two_processes))) as loader:
        dataset_id = loader.store.dataset_id
    servers = tuple(ServerEntry(location=one.location, parts=(n,)) for n, one in enumerate(two_processes))
    write_cluster(tmp_path / "cluster.json", Cluster(dataset_id=dataset_id, servers=servers))
    graph = RemoteGraph(tmp_path / "cluster.json", settings=SETTINGS)
    assert repr(graph) == f"RemoteGraph({two_processes[0].location}, {two_processes[1].location})"
    with node_loader(graph, batch_size=60) as loader:
        assert len(list(loader)) == 2


def test_missing_servers_are_an_error_within_the_deadline() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreUnavailable, match="nothing listens there"):
        node_loader(remote_graph(f"tcp://127.0.0.1:{port}"))


def test_the_graph_can_be_queried_through_a_loader(timed_parts: dict[int, Path], graph: RemoteGraph) -> None:
    with node_loader(graph) as loader:
        assert loader.schema.nodes.keys() == {"paper", "user"}
        assert loader.store.split("paper", "train").tolist() == np.arange(0, 120, 2).tolist()


def channels_of(servers: list[SamplingProcess], folder: Path) -> set[tuple[str, int]]:
    dataset_id = open_dataset(folder).manifest.dataset_id
    return {(one.location, found["channel"]) for one in servers for found in channels_at(one.location, dataset_id)}


def test_embeddings_are_equal_over_servers_and_folders(
    timed_parts: dict[int, Path], graph: RemoteGraph, two_processes: list[SamplingProcess], tmp_path: Path
) -> None:
    def layer(number: int, node_type: str, batch: MiniBatch) -> np.ndarray:
        """Sum of the batch's neighbours and of the rows of the layer before."""
        total = float(len(batch.node_keys["paper"]))
        rows = [f for columns in batch.node_features.values() for f in columns.values() if isinstance(f, np.ndarray)]
        total += sum(float(one.sum()) for one in rows)
        return np.full((len(batch.input_ids), 2), total)

    known = channels_of(two_processes, timed_parts[2])
    found = [
        infer_layerwise(source, layer, tmp_path / name, num_layers=2, batch_size=16, num_threads=2, collate="numpy")
        for source, name in ((timed_parts[2], "folder"), (graph, "servers"))
    ]
    for node_type, num_nodes in (("paper", 120), ("user", 50)):
        wanted, got = (one.at(node_type, np.arange(num_nodes)) for one in found)
        np.testing.assert_array_equal(got, wanted)
        assert len(np.unique(got[:, 0])) > 1
    assert channels_of(two_processes, timed_parts[2]) <= known
    with pytest.raises(SettingsError, match="store_settings is given, but a RemoteGraph"):
        infer_layerwise(graph, layer, tmp_path / "no", num_layers=1, store_settings=StoreSettings())


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [0, 2])
def test_unclosed_loaders_leave_nothing(
    timed_parts: dict[int, Path], two_processes: list[SamplingProcess], num_threads: int
) -> None:
    """No threads, connections, or channels at servers remain."""

    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("hopstream")]

    def num_connections() -> int:
        ports = {int(server.location.rpartition(":")[2]) for server in two_processes}
        return sum(bool(one.raddr) and one.raddr.port in ports for one in psutil.Process().net_connections("tcp"))

    gc.collect()
    wait_until(lambda: not names() and not num_connections(), "what other tests opened is closed")
    known = channels_of(two_processes, timed_parts[2])
    graph = remote_graph(locations_of(two_processes))
    loader = node_loader(graph, num_threads=num_threads)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    loader.store.split("paper", "train")
    assert graph.fetch_schema().nodes.keys() == {"paper", "user"}
    assert set(graph.get_node_partition_id("user", range(50)).tolist()) == {0, 1}
    graph.fetch_degrees("paper", [0, 1])
    assert num_connections() and bool(names()) == (num_threads > 0)
    assert len(channels_of(two_processes, timed_parts[2]) - known) == 2
    del iterator, loader, graph
    gc.collect()
    wait_until(lambda: not names() and not num_connections(), "threads and connections end")
    assert channels_of(two_processes, timed_parts[2]) <= known


@pytest.mark.slow
def test_a_batch_that_is_never_ready_times_out(timed_parts: dict[int, Path]) -> None:
    held = threading.Event()

    class Held:
        """A graph whose opening waits for an event."""

        def __init__(self, store: Any) -> None:
            assert held.wait(20)
            self.store = store

    with (
        serve_here(timed_parts[1], wrap=lambda store: Held(store).store) as served,
        node_loader(remote_graph(served.locations, timeout_s=0.5), num_threads=0) as loader,
    ):
        with pytest.raises((StoreTimeout, StoreUnavailable), match=r"in 0\.5 s"):
            next(iter(loader))
        held.set()
        assert len(list(loader)) == 120


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_closing_during_channel_creation_leaves_no_channel(
    timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch, is_answer_lost: bool
) -> None:
    """Also if the call that makes the channel is abandoned before its answer."""
    reached, held = threading.Event(), threading.Event()
    register = SamplingService.register_sampling_input

    def slow(service: SamplingService, frame: Any) -> Any:
        answer = register(service, frame)
        reached.set()
        assert held.wait(20)
        return answer

    monkeypatch.setattr(SamplingService, "register_sampling_input", slow)
    monkeypatch.setattr(client, "DESTROY_S", 0.5 if is_answer_lost else 10.0)
    with serve_here(timed_parts[1]) as served:
        loader = node_loader(remote_graph(served.locations))
        iterator = iter(loader)
        assert reached.wait(20)
        closing = threading.Thread(target=loader.close)
        closing.start()
        if is_answer_lost:
            wait_until(lambda: served.num_channels == 0, "the channel is destroyed")
        held.set()
        closing.join(20)
        assert not closing.is_alive()
        assert (served.num_channels, served.num_backends) == (0, 0)
        del iterator


def test_closing_ends_the_wait_for_a_batch(timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DESTROY_S", "POLL_S", "SLACK_S"):
        monkeypatch.setattr(client, name, 0.5)
    held, found = threading.Event(), []

    def wrap(store: Any) -> Any:
        assert held.wait(20)
        return store

    def consume() -> None:
        try:
            next(iter(loader))
        except Exception as error:
            found.append(error)

    with serve_here(timed_parts[1], wrap=wrap) as served:
        loader: NeighborLoader = node_loader(remote_graph(served.locations))
        thread = threading.Thread(target=consume)
        thread.start()
        wait_until(lambda: served.services[0]._opening is not None, "the server is asked")
        loader.close()
        thread.join(5)
        assert not thread.is_alive()
        assert not held.is_set()
        assert len(found) == 1
        held.set()
