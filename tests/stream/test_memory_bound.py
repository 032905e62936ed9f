"""Tests that a sampling server stays within ``--memory-bytes`` and still answers every client."""

from __future__ import annotations

import hashlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.batch import MiniBatch
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.store.contract import FetchRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.stream.client import RemoteGraph
from tests.store.processes import END_S, ROOT, START_S, environment
from tests.store.test_server_memory import PeakMemory, private_bytes
from tests.transport.desk import wait_until

LINKS = ("node", "to", "node")
NUM_NODES, NUM_EDGES, WIDTH = 200_000, 800_000, 256
BATCH_SIZE, NUM_BATCHES = 4096, 24
"""A batch has some 16 000 nodes, and as many kB."""
NUM_AHEAD = 14
SAME, MIXED, SMALL = (BATCH_SIZE,) * 4, (1000, 3000, 6000, 10_000), (300, 500, 700, 1500)
"""Batches of four loaders at once."""
MEMORY_BYTES = 250_000_000
SLACK = 1.1
"""Factor for memory that the system's allocator may keep beyond the bound."""
NUM_FETCHING = 8
REST_S = 2.0
"""Seconds that a server is idle before its memory is measured."""
HALT_S = 3.0
"""Seconds that loaders pause after the first batch, so that servers make as many ahead as they may."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 200 MB of features in one part."""
    root = tmp_path_factory.mktemp("bound") / "parts"
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    x = rng.integers(0, 1 << 16, (NUM_NODES, WIDTH)).astype(np.float32)
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=NUM_NODES, features={"x": x})},
        edges={LINKS: EdgeTable(src_keys=src, dst_keys=dst)},
    )
    write_parts(graph.check(), root, method="hash")
    return root


@dataclass
class Served:
    """A server in a process of its own."""

    pid: int
    location: str


@contextmanager
def served(folder: Path, *words: object) -> Iterator[Served]:
    """Run ``hopstream serve --sample`` and check its exit status."""
    command = [
        sys.executable, "-m", "hopstream.cli", "serve", str(folder), "--sample", "--threads", "2", "--credit", "32",
        "--json", *map(str, words),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True)
    assert process.stdout is not None
    try:
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        facts: dict[str, Any] = {}
        while facts.get("stage") != "ready":
            assert poll.poll(1000 * START_S), "the server did not start"
            line = process.stdout.readline()
            assert line, "the server has ended; what it said is on stderr"
            facts = json.loads(line)
        yield Served(process.pid, str(facts["location"]))
        process.terminate()
        assert process.wait(END_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(END_S)
        process.stdout.close()


def graph_of(server: Served, cache_bytes: int | str = 0) -> RemoteGraph:
    return RemoteGraph(server.location, settings=StoreSettings(prefer_local=False, cache_bytes=cache_bytes))


def loader(source: Any, **more: Any) -> NeighborLoader:
    options = {
        "num_neighbors": [3], "seeds": ("node", np.arange(BATCH_SIZE * NUM_BATCHES)), "batch_size": BATCH_SIZE,
        "shuffle": True, "collate": "numpy", "num_threads": 1, **more,
    }  # fmt: skip
    return NeighborLoader(source, **options)


def digest_of(batch: MiniBatch) -> str:
    """Hex digest of all contents of a batch."""
    found = hashlib.blake2b(repr((batch.epoch, batch.index, batch.num_sampled_nodes)).encode())
    for array in (
        batch.input_ids, batch.node_keys["node"], batch.edge_index[LINKS], batch.node_features["node"]["x"]
    ):  # fmt: skip
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[int, list[str]]:
    """Digests of a file loader's batches, by batch size."""
    found = {}
    for size in {*SAME, *MIXED, *SMALL}:
        with loader(folder, batch_size=size) as local:
            found[size] = [digest_of(batch) for batch in local]
    return found


def warm_up(server: Served) -> int:
    """Have the server open its graph and load its sampling code; return its memory in bytes after that."""
    with loader(graph_of(server), seeds=("node", np.arange(64)), batch_size=16) as small:
        assert len(list(small)) == 4
    return private_bytes(server.pid)


def epoch_of(server: Served, batch_size: int = BATCH_SIZE, cache_bytes: int | str = 0) -> list[str]:
    """Digests of an epoch's batches, with a halt after the first."""
    digests = []
    with loader(graph_of(server, cache_bytes), prefetch=NUM_AHEAD - 1, batch_size=batch_size) as remote:
        for number, batch in enumerate(remote):
            if number == 0:
                time.sleep(HALT_S)
            digests.append(digest_of(batch))
    return digests


@dataclass
class Growth:
    """Bytes that a server takes above those at its start: the peak, and the rest soon after its work."""

    most: int
    rest: int


def growth_under_load(
    server: Served, before: int, wanted: dict[int, list[str]], sizes: Sequence[int], cache_bytes: int | str = 0
) -> Growth:
    """Have a server make the batches of several loaders at once."""
    with PeakMemory(server.pid) as peak, ThreadPoolExecutor(len(sizes)) as pool:
        futures = [pool.submit(epoch_of, server, size, cache_bytes) for size in sizes]
        for size, future in zip(sizes, futures, strict=True):
            assert future.result(100) == wanted[size]
    time.sleep(REST_S)
    found = Growth(peak.num_bytes - before, private_bytes(server.pid) - before)
    say(f"batches of {sizes}: at most {found.most / 1e6:.0f} MB more, in the end {found.rest / 1e6:.0f} MB more")
    return found


def say(text: str) -> None:
    print(text)  # noqa: T201


@contextmanager
def fetching(server: Served, folder: Path) -> Iterator[None]:
    """Run several clients that fetch large answers meanwhile, and check the answers."""
    ids = np.random.default_rng(1).integers(0, NUM_NODES, 8192)
    request = FetchRequest(entity="node", names=("x",), ids=ids)
    is_over = threading.Event()
    with LocalStore(open_dataset(folder)) as near, ThreadPoolExecutor(NUM_FETCHING) as pool:
        wanted = np.asarray(near.fetch([request])[0]["x"])

        def fetch() -> int:
            num = 0
            with RemoteStore(server.location, StoreSettings(timeout_s=60.0, prefer_local=False)) as far:
                while not is_over.is_set():
                    assert np.array_equal(np.asarray(far.fetch([request])[0]["x"]), wanted)
                    num += 1
            return num

        futures = [pool.submit(fetch) for _ in range(NUM_FETCHING)]
        try:
            yield
        finally:
            is_over.set()
        say(f"{sum(future.result(END_S) for future in futures)} answers of 8 MiB beside them")


@pytest.mark.slow
def test_a_server_stays_within_its_bound(folder: Path, wanted: dict[int, list[str]]) -> None:
    with served(folder) as server:
        unbounded = growth_under_load(server, warm_up(server), wanted, SAME)
    assert unbounded.most > 2 * MEMORY_BYTES  # the load is one that needs a bound
    assert unbounded.rest < MEMORY_BYTES
    with served(folder, "--memory-bytes", MEMORY_BYTES) as server:
        before = warm_up(server)
        for sizes in (SAME, MIXED, SMALL, MIXED):
            with fetching(server, folder):
                bounded = growth_under_load(server, before, wanted, sizes)
            assert bounded.most < SLACK * MEMORY_BYTES
            assert bounded.rest < MEMORY_BYTES // 2


@pytest.mark.slow
def test_a_server_whose_trainers_keep_rows_stays_within_its_bound(folder: Path, wanted: dict[int, list[str]]) -> None:
    """The server samples ahead for trainers, which also ask it for the rows that they lack."""
    with served(folder, "--memory-bytes", "250MB") as server:
        before = warm_up(server)
        for sizes in (SAME, MIXED):
            with fetching(server, folder):
                bounded = growth_under_load(server, before, wanted, sizes, "50MB")
            assert bounded.most < SLACK * MEMORY_BYTES
            assert bounded.rest < MEMORY_BYTES // 2


@pytest.mark.slow
def test_a_batch_larger_than_memory_is_an_error(folder: Path, wanted: dict[int, list[str]]) -> None:
    """The error names the flag; the batch takes no more memory than allowed and disturbs no other loader."""
    with served(folder, "--memory-bytes", MEMORY_BYTES) as server:
        before = warm_up(server)
        with PeakMemory(server.pid) as peak, ThreadPoolExecutor(1) as pool:
            beside = pool.submit(epoch_of, server)
            with (
                loader(graph_of(server), seeds=("node", np.arange(NUM_NODES)), batch_size=NUM_NODES) as hungry,
                pytest.raises(SettingsError, match="--memory-bytes"),
            ):
                next(iter(hungry))
            assert beside.result(100) == wanted[BATCH_SIZE]
        say(f"at most {(peak.num_bytes - before) / 1e6:.0f} MB more")
        assert peak.num_bytes - before < SLACK * MEMORY_BYTES


NUM_CLIENTS, MAX_BYTES = 24, 16 << 20


@pytest.mark.slow
def test_fetches_without_room_are_repeated(folder: Path) -> None:
    """A server that may hold few answers at once refuses the others; all of them come in the end."""
    ids = np.random.default_rng(9).permutation(NUM_NODES)[: 8192 * NUM_CLIENTS].reshape(NUM_CLIENTS, -1)
    most = 0
    is_done = threading.Event()
    with (
        LocalStore(open_dataset(folder)) as near,
        StoreServer(near, limits=ServerLimits(max_bytes=MAX_BYTES)) as server,
        ThreadPoolExecutor(NUM_CLIENTS + 1) as pool,
    ):

        def column(store: Any, number: int) -> np.ndarray:
            (columns,) = store.fetch([FetchRequest(entity="node", names=("x",), ids=ids[number])])
            return np.asarray(columns["x"])

        def ask(number: int) -> bool:
            with RemoteStore(server.location, StoreSettings(timeout_s=60.0, prefer_local=False)) as far:
                return all(np.array_equal(column(far, number), column(near, number)) for _ in range(3))

        def watch() -> None:
            nonlocal most
            while not is_done.wait(0.001):
                most = max(most, server.listener.account.taken)

        watching = pool.submit(watch)
        futures = [pool.submit(ask, number) for number in range(NUM_CLIENTS)]
        assert all(future.result(100) for future in futures)
        is_done.set()
        watching.result(END_S)
        say(f"{server.listener.num_refused_calls} refusals; at most {most >> 20} MiB of {MAX_BYTES >> 20} taken")
        assert server.listener.num_refused_calls > 0
        assert 4 << 20 < most <= MAX_BYTES
        wait_until(lambda: server.listener.account.taken == 0, "the last answer is freed, just after it was sent")
