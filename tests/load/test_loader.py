"""Checks a loader's promises: order, resume, ranks, threads, failures, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hopstream.errors import (
    FormatError,
    IdRangeError,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
    UnknownNameError,
)
from hopstream.load.loader import NeighborLoader
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from tests.conftest import make_typed_graph
from tests.load.contract import BatchesContract, LoaderContract
from tests.load.graphs import WatchedStore, flat, local_store, make_plain_graph
from tests.store.processes import ServerProcess, wait_until

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def typed_stores(tmp_path_factory):
    graph = make_typed_graph(np.random.default_rng(5))
    folder = tmp_path_factory.mktemp("typed")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 3)}


@pytest.fixture(scope="module")
def plain_stores(tmp_path_factory):
    graph = make_plain_graph(np.random.default_rng(6))
    folder = tmp_path_factory.mktemp("plain")
    return {n: local_store(graph, folder / str(n), n) for n in (1, 4)}


def plain_loader(store, **settings):
    settings = {"batch_size": 6, "shuffle": True, "collate": "numpy", **settings}
    return NeighborLoader(store, settings.pop("num_neighbors", [3, 2]), settings.pop("seeds", None), **settings)


class TestPlainLoader(LoaderContract):
    @pytest.fixture(params=[0, 4])
    def new_loader(self, request, plain_stores):
        return lambda **settings: plain_loader(plain_stores[4], **{"num_threads": request.param, **settings})


class TestTypedLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, typed_stores):
        def new(**settings):
            settings = {"batch_size": 7, "collate": "numpy", "shuffle": True, "num_threads": 2, **settings}
            return NeighborLoader(typed_stores[3], {"default": [3, 2]}, ("paper", None), **settings)

        return new


class TestLoaderOfRepeatedSeeds(BatchesContract):
    @pytest.fixture
    def new_loader(self, plain_stores):
        return lambda **settings: plain_loader(
            plain_stores[1], seeds=[5, 5, 9, 5, 70, 9] * 4, **{"num_threads": 2, **settings}
        )


@pytest.mark.parametrize("num_threads", [1, 4])
def test_threads_and_parts_do_not_change_batches(plain_stores, typed_stores, num_threads):
    for stores, num_neighbors in ((plain_stores, [3, 2]), (typed_stores, {"default": [3, 2]})):
        runs = []
        for store, threads in ((stores[1], 0), *((s, num_threads) for s in stores.values())):
            seeds = next(iter(store.schema.nodes))
            with NeighborLoader(
                store, num_neighbors, seeds, 6, shuffle=True, num_threads=threads, collate="numpy"
            ) as loader:
                runs.append([flat(batch) for _ in range(2) for batch in loader])
        assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("remainder", ["spread", "pad", "drop", "uneven"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_an_epoch(plain_stores, remainder, world_size):
    ranks = [
        list(plain_loader(plain_stores[4], rank=rank, world_size=world_size, remainder=remainder, num_threads=rank % 2))
        for rank in range(world_size)
    ]
    if remainder != "uneven":
        assert len({len(batches) for batches in ranks}) == 1
    taken = Counter(p for batches in ranks for batch in batches for p in batch.input_ids.tolist())
    if remainder in ("spread", "uneven"):
        assert taken == Counter(range(80))
    elif remainder == "pad":
        assert set(taken) == set(range(80))
    else:
        assert max(taken.values()) == 1
    alone = {batch.index: flat(batch) for batch in plain_loader(plain_stores[1])}
    num_full = 80 // (6 * world_size) * world_size - (world_size if remainder == "spread" else 0)
    for batch in (batch for batches in ranks for batch in batches):
        if batch.index < num_full:
            assert flat(batch) == alone[batch.index]


def test_all_ranks_may_load_the_state_of_one_rank(plain_stores):
    loaders = [plain_loader(plain_stores[4], rank=rank, world_size=2) for rank in range(2)]
    whole = [[flat(batch) for batch in loader] for loader in loaders]
    iterator = iter(loaders[0])
    for _ in range(3):
        next(iterator)
    state = {**loaders[0].state_dict(), "epoch": 0}
    iterator.close()
    for rank in range(2):
        resumed = plain_loader(plain_stores[4], rank=rank, world_size=2)
        resumed.load_state_dict(state)
        assert [flat(batch) for batch in resumed] == whole[rank][3:]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"shuffle": False}, "shuffle"),
        ({"num_neighbors": [3, 3]}, "num_neighbors"),
        ({"replace": True}, "replace"),
        ({"seeds": "train"}, "over other seeds="),
    ],
)
def test_the_state_of_another_loader_is_refused(plain_stores, change, name):
    state = plain_loader(plain_stores[1]).state_dict()
    with pytest.raises(StateError, match=name):
        plain_loader(plain_stores[1], **change).load_state_dict(state)


def test_a_state_does_not_depend_on_threads_columns_or_parts_but_on_the_graph(plain_stores, typed_stores):
    state = plain_loader(plain_stores[1]).state_dict()
    plain_loader(plain_stores[1], num_threads=3, node_features=[], edge_features=[]).load_state_dict(state)
    plain_loader(plain_stores[4]).load_state_dict(state)
    other = NeighborLoader(typed_stores[1], [1], "paper")
    with pytest.raises(StateError, match="of a loader over another graph; make this loader from the same inputs"):
        other.load_state_dict(state)


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_error_of_the_store_keeps_its_traceback(plain_stores, num_threads):
    def fail() -> None:
        if store.num_fetches == 4:
            raise ConnectionError("the part is gone")

    store = WatchedStore(plain_stores[4], fail)
    loader = plain_loader(store, num_threads=num_threads)
    with pytest.raises(ConnectionError, match="the part is gone") as raised:
        list(loader)
    assert any(entry.name == "fail" for entry in raised.traceback)
    assert any("while batch" in note and "fetching features" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_after_a_failure_a_loader_resumes_from_its_state(plain_stores, num_threads):
    whole = [flat(batch) for batch in plain_loader(plain_stores[4])]
    is_broken = True

    def transform(batch):
        if is_broken and batch.index == 5:
            raise RuntimeError("out of luck")
        return batch

    loader = plain_loader(plain_stores[4], num_threads=num_threads, transform=transform)
    seen = []
    with pytest.raises(RuntimeError, match="out of luck"):
        for batch in loader:
            seen.append(flat(batch))  # noqa: PERF401 - the batches before the failure are what counts
    is_broken = False
    other = plain_loader(plain_stores[4], num_threads=num_threads)
    other.load_state_dict(loader.state_dict())
    assert seen + [flat(batch) for batch in other] == whole
    loader.load_state_dict(loader.state_dict())
    assert seen + [flat(batch) for batch in loader] == whole


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_seeds_of_batches_that_are_sampled_together_are_looked_up_together(plain_stores, num_threads):
    seeds = np.resize(np.arange(80), 300)
    settings = {"batch_size": 3, "seeds": seeds}
    near = plain_loader(plain_stores[4], num_threads=0, **settings)
    wanted = [flat(batch) for _ in range(3) for batch in near]
    with StoreServer(plain_stores[4]) as server:
        far = RemoteStore(server.location, StoreSettings(prefer_local=False))
        with RoutedStore([far]) as store, plain_loader(store, num_threads=num_threads, **settings) as loader:
            found = [flat(batch) for batch in loader]
            num_asked = store.traffic()["other"].remote_requests
            batches = iter(loader)
            found += [flat(next(batches)) for _ in range(5)]
            state = loader.state_dict()
            loader.set_epoch(2)  # leaves the epoch: its sampled batches are discarded
            last = [flat(batch) for batch in loader]
            loader.load_state_dict(state)
            found += [flat(batch) for batch in loader] + last
    assert num_asked < 100 / 3, "four batches of an epoch of 100 at a time"
    assert found == wanted


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
def test_keys_of_drawn_edges_come_with_the_draws(plain_stores, subgraph_type):
    seeds = np.resize(np.arange(80), 300)  # batches of 90 hold repeated seeds
    settings = {"batch_size": 90, "seeds": seeds, "subgraph_type": subgraph_type, "edge_features": []}
    wanted = [flat(batch) for batch in plain_loader(plain_stores[4], **settings)]
    with StoreServer(plain_stores[4]) as server:
        far = RemoteStore(server.location)
        with RoutedStore([far], StoreSettings(cache_bytes=0)) as store, plain_loader(store, **settings) as loader:
            batches = list(loader)
            num_fetched = store.traffic()["fetch"].remote_ids
    assert [flat(batch) for batch in batches] == wanted
    num_nodes = sum(len(np.unique(batch.node_keys["node"])) for batch in batches)
    assert (num_fetched <= num_nodes + len(seeds)) == (subgraph_type == "directional")


@pytest.mark.parametrize("num_threads", [0, 2])
def test_every_batch_is_delivered_once_despite_a_server_restart(plain_stores, num_threads):
    settings = {"batch_size": 1, "num_threads": num_threads}
    near = plain_loader(plain_stores[4], **settings)
    wanted = [flat(batch) for _ in range(2) for batch in near]
    server = StoreServer(plain_stores[4])
    with plain_loader(server.location, **settings) as loader:
        seen = []
        with pytest.raises(StoreUnavailable):
            for batch in loader:
                seen.append(flat(batch))
                server.close()
        assert 1 <= len(seen) < len(loader) == 80
        with pytest.raises(StoreUnavailable):  # it is still gone
            list(loader)
        with StoreServer(plain_stores[4], server.location):
            wait_until(lambda: take_epoch(loader, seen), "the loader reaches the server again")
            seen += [flat(batch) for batch in loader]
    assert seen == wanted


def take_epoch(loader, seen):
    """Whether the server could be reached until the end of the epoch."""
    try:
        for batch in loader:
            seen.append(flat(batch))
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_restored_position_survives_a_failed_start(plain_stores, num_threads):
    one = plain_loader(plain_stores[4])
    whole = [flat(batch) for batch in one]
    loader = plain_loader(plain_stores[4], num_threads=num_threads)
    loader.load_state_dict({**loader.state_dict(), "next_batch": 3})
    new_maker, loader._new_maker = loader._new_maker, raise_connection_error
    with pytest.raises(ConnectionError):
        iter(loader)
    loader._new_maker = new_maker
    assert [flat(batch) for batch in loader] == whole[3:]


def raise_connection_error():
    raise ConnectionError("the part is gone")


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_transform_runs_where_the_batch_is_made(plain_stores, num_threads):
    names = []

    def transform(batch):
        names.append(threading.current_thread().name)
        return batch.index

    assert list(plain_loader(plain_stores[1], num_threads=num_threads, transform=transform)) == list(range(14))
    assert all(name.startswith("hopstream-load") == bool(num_threads) for name in names)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_transform_cannot_end_an_epoch_by_accident(plain_stores, num_threads):
    loader = plain_loader(plain_stores[1], num_threads=num_threads, transform=lambda batch: next(iter([])))
    with pytest.raises(RuntimeError, match="StopIteration was raised while batch 0 of epoch 0 was made"):
        list(loader)


def test_a_store_that_hangs_is_named(plain_stores):
    gate = threading.Event()
    store = WatchedStore(plain_stores[1])
    loader = plain_loader(store, num_threads=1, timeout_s=0.05)
    store.on_fetch = lambda: gate.wait(DEADLINE_S)
    iterator = iter(loader)
    threads = loader._threads
    with pytest.raises(
        StoreTimeout, match=r"batch 0 was not ready in 0.05 s: worker 0 is at batch 0, fetching features"
    ):
        next(iterator)
    gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    loader.close()


def test_a_loader_left_behind_by_a_hang_does_not_share_its_memory(plain_stores):
    """A worker that hangs still writes to its own workspace; the next iteration uses another."""
    gate = threading.Event()
    store = WatchedStore(plain_stores[1])
    loader = plain_loader(store, num_threads=1, timeout_s=0.05)
    wanted = [flat(batch) for batch in plain_loader(plain_stores[1])]
    store.on_fetch = lambda: gate.wait(DEADLINE_S)
    iterator = iter(loader)
    stuck = loader._threads
    with pytest.raises(StoreTimeout):
        next(iterator)
    with pytest.raises(StoreTimeout, match="did not end"):
        iter(loader)
    store.on_fetch = lambda: None
    loader._settings = plain_loader(plain_stores[1], num_threads=1)._settings
    loader.set_epoch(0)
    assert [flat(batch) for batch in loader] == wanted
    gate.set()
    for thread in stuck:
        thread.join(DEADLINE_S)


def test_kept_batches_are_never_overwritten(tmp_path):
    rng = np.random.default_rng(0)
    store = local_store(make_plain_graph(rng, num_nodes=3000, num_edges=30_000), tmp_path / "parts")
    loader = plain_loader(store, batch_size=300, num_neighbors=[10, 10], num_threads=2)
    kept = list(loader)
    before = [flat(batch) for batch in kept]
    for _ in range(3):
        for _ in loader:
            pass
    assert [flat(batch) for batch in kept] == before


def test_memory_stays_flat_over_epochs(tmp_path):
    rng = np.random.default_rng(0)
    store = local_store(make_plain_graph(rng, num_nodes=3000, num_edges=30_000), tmp_path / "parts")
    loader = plain_loader(store, batch_size=300, num_neighbors=[10, 10], num_threads=2, prefetch=2)
    addresses = set()
    for _ in range(10):
        for batch in loader:
            addresses.add(batch.edge_index["node", "to", "node"].ctypes.data)
    assert len(addresses) < 15  # of 100 batches, at most six of them alive at once


@pytest.mark.parametrize("collate", ["numpy", pytest.param("pyg", marks=pytest.mark.slow)])
def test_private_memory_of_the_process_stays_flat_over_epochs(tmp_path, collate):
    rng = np.random.default_rng(0)
    store = local_store(make_plain_graph(rng, num_nodes=10_000, num_edges=100_000), tmp_path / "parts", 2)
    with plain_loader(store, batch_size=500, num_neighbors=[10, 10], num_threads=2, collate=collate) as loader:
        after = []
        for _ in range(9):
            assert sum(1 for _ in loader) == 20
            after.append(private_bytes())
    assert after[8] - after[2] < 16 << 20  # 120 batches of about a megabyte are made in between


def private_bytes():
    """Memory of this process that is neither file-backed nor shared."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


@pytest.mark.parametrize("edge_keys", [None, False])
@pytest.mark.parametrize("seeds", [None, "train"])
def test_a_loader_opens_and_closes_its_own_store(tmp_path, edge_keys, seeds, monkeypatch):
    graph = make_plain_graph(np.random.default_rng(0))
    store = WatchedStore(local_store(graph, tmp_path / "parts"))
    monkeypatch.setattr("hopstream.load.setup.open_store", lambda source, settings: store)
    with plain_loader(tmp_path / "parts", seeds=seeds, edge_keys=edge_keys) as loader:
        assert len(list(loader)) == len(loader)
        assert not store.is_closed
    assert store.is_closed
    with pytest.raises(StateError, match="the loader is closed; make a new one"):
        iter(loader)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_closing_does_not_wait_for_a_store_that_hangs(tmp_path, monkeypatch, num_threads):
    closed, inside = threading.Event(), threading.Event()

    def hang():
        inside.set()
        if closed.wait(DEADLINE_S):
            raise StoreUnavailable("the store was closed meanwhile")

    store = WatchedStore(local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts"))
    monkeypatch.setattr("hopstream.load.setup.open_store", lambda source, settings: store)
    loader = plain_loader("parts", num_threads=num_threads)
    store.on_fetch, store.on_close = hang, closed.set
    iterator = iter(loader)
    threads = loader._threads
    assert inside.wait(DEADLINE_S)
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < DEADLINE_S / 2
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(StateError, match="ended because the loader was closed"):
        next(iterator)


def test_closing_does_not_wait_for_a_server_that_hangs(tmp_path):
    local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts", 2)
    settings = {"batch_size": 2, "num_threads": 2, "store_settings": StoreSettings(timeout_s=DEADLINE_S)}
    with ServerProcess(tmp_path / "parts") as process:
        loader = plain_loader(process.location, **settings)
        iterator = iter(loader)
        next(iterator)
        desk, threads = iterator._batches._desk, loader._threads
        wait_until(lambda: len(desk.done) == desk.num_ahead, "the workers have run ahead")
        process.freeze()
        next(iterator)
        wait_until(lambda: any(step is not None for step in desk.making), "a worker is at the batch after those")
        started = time.monotonic()
        loader.close()
        assert time.monotonic() - started < DEADLINE_S / 4
        assert not any(thread.is_alive() for thread in threads)
        process.thaw()


def test_a_given_store_stays_open(plain_stores):
    store = WatchedStore(plain_stores[1])
    with plain_loader(store) as loader:
        list(loader)
    assert not store.is_closed


def test_a_loader_that_fails_to_open_closes_its_store(tmp_path, monkeypatch):
    store = WatchedStore(local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts"))
    monkeypatch.setattr("hopstream.load.setup.open_store", lambda source, settings: store)
    with pytest.raises(UnknownNameError):
        plain_loader("parts", seeds=("node", "test"))
    assert store.is_closed


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(FormatError):
        NeighborLoader(tmp_path, [2])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_size": 0}, SettingsError, "batch_size is 0"),
        ({"seeds": [80]}, IdRangeError, r"seeds\[0\] is 80; keys of the graph are 0..79"),
        ({"seeds": "test"}, UnknownNameError, "no split 'test'"),
        ({"direction": "out"}, SettingsError, "the dataset holds in; write the parts again with direction 'out'"),
        ({"direction": "backward"}, SettingsError, "'backward'; it must be one of in, out"),
        ({"num_neighbors": []}, SettingsError, "num_neighbors has 0 hops"),
        ({"num_neighbors": 5}, SettingsError, "one number per hop"),
        ({"node_features": ["z"]}, UnknownNameError, "feature 'z' does not exist"),
        ({"collate": "dgl"}, SettingsError, "'dgl'; it must be one of pyg, numpy"),
        ({"num_threads": -1}, SettingsError, "num_threads is -1"),
        ({"buffer_bytes": -1}, SettingsError, "buffer_bytes is -1"),
        ({"rng_seed": 0.5}, SettingsError, "rng_seed is 0.5"),
        ({"rank": 3, "world_size": 2}, SettingsError, "rank is 3"),
        ({"remainder": "none"}, SettingsError, "remainder is 'none'"),
    ],
)
def test_settings_are_checked_before_anything_is_made(plain_stores, settings, error, message):
    with pytest.raises(error, match=message):
        plain_loader(plain_stores[1], **settings)


def test_repr_describes_the_loader(plain_stores):
    text = repr(plain_loader(plain_stores[1], seeds="train", rank=1, world_size=2))
    assert text == "NeighborLoader(40 seeds (node, split 'train'), batch_size=6, 4 batches on rank 1 of 2)"


def test_a_script_may_end_in_the_middle_of_an_epoch(tmp_path):
    local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts")
    code = (
        "from hopstream.load.loader import NeighborLoader\n"
        f"loader = NeighborLoader({str(tmp_path / 'parts')!r}, [2, 2], batch_size=1, num_threads=3, collate='numpy')\n"
        "iterator = iter(loader)\nnext(iterator)\nprint('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


def test_a_loader_is_collected_with_its_threads(plain_stores):
    loader = plain_loader(plain_stores[1], num_threads=3)
    iterator = iter(loader)
    next(iterator)
    threads, reference = loader._threads, weakref.ref(loader)
    del loader, iterator
    assert reference() is None
    assert not any(thread.is_alive() for thread in threads)


def test_a_state_is_small_json(plain_stores):
    state = plain_loader(plain_stores[1]).state_dict()
    assert len(json.dumps(state)) < 1000
    assert {name: state[name] for name in ("format", "epoch", "next_batch")} == {
        "format": 1,
        "epoch": 0,
        "next_batch": 0,
    }
