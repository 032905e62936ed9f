"""Graphs that tests share, and checks that tests leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from tests.processes import POOLED, ServerPool
from tests.ray_cluster import RayCluster, two_nodes

pytest_plugins = ["tests.seeds"]
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # torch's store looks up names; some name servers lose packets
GRACE_S = 5.0
"""Seconds that a thread or child process may take to end after a test told it to."""


LONG = ("soak", "scale", "bench")
LONG_S = 1800


OTHERS = {
    "--tfgnn-python": "tensorflow-gnn 1.0.3",
    "--dgl-python": "dgl 2.1.0",
    "--graphstorm-python": "graphstorm 0.4.2",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for interpreters with the real libraries, which some tests run for comparison."""
    for name, wanted in OTHERS.items():
        parser.addoption(name, help=f"an interpreter that imports {wanted}; see CONTRIBUTING.md")


def interpreter(request: pytest.FixtureRequest, option: str) -> str:
    """The interpreter that an option names, or the test is skipped."""
    path = request.config.getoption(option)
    if path is None:
        pytest.skip(f"needs {option}; see CONTRIBUTING.md")
    return str(path)


@pytest.fixture(scope="session")
def tfgnn_python(request: pytest.FixtureRequest) -> str:
    """An interpreter that has TF-GNN."""
    return interpreter(request, "--tfgnn-python")


@pytest.fixture(scope="session")
def graphstorm_python(request: pytest.FixtureRequest) -> str:
    """An interpreter that has GraphStorm."""
    return interpreter(request, "--graphstorm-python")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that run for minutes a longer timeout."""
    for item in items:
        if any(item.get_closest_marker(name) for name in LONG):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from later garbage collections: a tenth of a run's CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let child processes be interrupted even if a shell runs the tests in its background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep temporary files of libraries, such as PyG's generated code, in pytest's temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("tmp")
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_disks() -> Iterator[None]:
    """Skip ``fsync`` in this process: data survive a kill without it, and disks took half of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def server_pool(own_temporary_folder: None) -> Iterator[ServerPool]:
    """Processes that serve datasets for all tests."""
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ray_cluster(own_temporary_folder: None) -> Iterator[RayCluster]:
    """A Ray cluster of two nodes; this process finds it in its environment."""
    with two_nodes() as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture
def own_ray(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Ray start a cluster of this test's own, whose workers have the variables of this process.

    The shared cluster comes first, because a process that has used Ray without the cluster's token cannot use it later.
    """
    import ray

    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # for short paths of sockets
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind.

    What fixtures of a wider scope started is theirs to end: before the test or, for the pool of servers, in it. Threads
    that Python did not start (numba's, Arrow's) and multiprocessing's resource tracker, which lives as long as the
    interpreter, are not a test's to end. Nor are threads of a server that was there before: they come and go, and have
    its name.
    """
    threads_before = set(threading.enumerate())
    names_before = {thread.name for thread in threads_before if thread.name.startswith("hopstream-serve ")}
    children_before = set(_children())
    yield
    left_threads = [
        t
        for t in threading.enumerate()
        if t not in threads_before and t.name not in names_before and not _is_foreign(t)
    ]
    for thread in left_threads:
        thread.join(GRACE_S)
    alive = [t.name for t in left_threads if t.is_alive()]
    _, left_children = psutil.wait_procs([p for p in _children() if p not in children_before], timeout=GRACE_S)
    if alive or left_children:
        commands = [" ".join(p.cmdline()[:6]) for p in left_children if p.is_running()]
        for process in left_children:
            process.kill()
        pytest.fail(f"left behind: threads {alive}, child processes {commands}")


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether a thread was not started by Python, or is kept by Beam for its next pipeline."""
    return isinstance(thread, threading._DummyThread) or type(thread).__module__.startswith("apache_beam.")


def _children() -> list[psutil.Process]:
    found = []
    for pid in _descendants():
        try:
            process = psutil.Process(pid)
            is_tracker = any("resource_tracker" in word for word in process.cmdline())
            if not is_tracker and pid not in POOLED and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _descendants() -> list[int]:
    """Ids of all descendants of this process; psutil would read every process of the machine."""
    pids = [os.getpid()]
    for pid in pids:
        if pid in POOLED:  # a pooled process ends its own children
            continue
        with suppress(OSError):  # it ended meanwhile, or one of its threads did
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    pids += map(int, (thread / "children").read_text().split())
    return pids[1:]


def mapped_file(array: np.ndarray) -> Path | None:
    """The file that an array's memory maps, as the system reports it, or None."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, _, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in extent.split("-"))
        if start <= array.ctypes.data < end:
            return Path(path[0]) if path and path[0].startswith("/") else None
    return None


@pytest.fixture
def typed_graph(rng: np.random.Generator) -> Graph:
    """A small random typed graph: see ``make_typed_graph``."""
    return make_typed_graph(rng)


def make_typed_graph(rng: np.random.Generator, num_papers: int = 60, num_authors: int = 25) -> Graph:
    """Graph of papers, authors and institutes, with parallel edges, self loops and isolated nodes.

    Features: ``paper.feat`` float32[n, 5], ``paper.year`` int16[n], ``paper.title`` strings, ``paper.tags`` ragged
    int64, ``author.feat`` float64[n, 2, 2]; ``writes.weight`` float32[m]. Institutes have no features and no edges.
    """
    num_cites, num_writes = 6 * num_papers, 3 * num_authors
    tag_lengths = rng.integers(0, 4, num_papers)
    cites = rng.integers(0, num_papers - 2, (2, num_cites))
    cites[1, 0] = cites[0, 0]
    return Graph(
        nodes={
            "paper": NodeTable(
                num_nodes=num_papers,
                features={
                    "feat": rng.standard_normal((num_papers, 5)).astype(np.float32),
                    "year": rng.integers(1990, 2025, num_papers).astype(np.int16),
                    "title": RaggedArray.from_strings([f"título {i}" * (i % 3) for i in range(num_papers)]),
                    "tags": RaggedArray(rng.integers(0, 9, int(tag_lengths.sum())), offsets_of(tag_lengths)),
                },
            ),
            "author": NodeTable(num_nodes=num_authors, features={"feat": rng.standard_normal((num_authors, 2, 2))}),
            "institute": NodeTable(num_nodes=3),
        },
        edges={
            ("paper", "cites", "paper"): EdgeTable(src_keys=cites[0], dst_keys=cites[1]),
            ("author", "writes", "paper"): EdgeTable(
                src_keys=rng.integers(0, num_authors, num_writes),
                dst_keys=rng.integers(0, num_papers, num_writes),
                features={"weight": rng.random(num_writes).astype(np.float32)},
            ),
            ("author", "works_at", "institute"): EdgeTable(
                src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64)
            ),
        },
        splits={
            "paper": {
                "train": np.sort(rng.choice(num_papers, num_papers // 2, replace=False)),
                "val": np.arange(num_papers // 3, dtype=np.int64),
            }
        },
    ).check()
