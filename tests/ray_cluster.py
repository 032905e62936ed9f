"""Ray cluster of two nodes on this machine, which leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.ports import free_ports
from tests.processes import POOLED

START_S, STOP_S, POLL_S = 120.0, 30.0, 0.05
STORE_BYTES = 80 << 20
CPUS_PER_NODE = 2
SHARED_MEMORY = Path("/dev/shm")
STARTED = "Ray runtime started"


@dataclass(frozen=True)
class RayCluster:
    """Two nodes.

    Attributes:
        address: Address of the cluster for drivers.
        environment: Variables that drivers need, above all the token.
        nodes: The process of each node, the head first; its children end with it.
        folder: The nodes' folder for files.
    """

    address: str
    environment: dict[str, str]
    nodes: list[subprocess.Popen[bytes]]
    folder: Path

    @contextmanager
    def one_more(self) -> Iterator[subprocess.Popen[bytes]]:
        """A third node, which may be killed."""
        node = _start(self.folder / "more", [f"--address={self.address}"], self.environment)
        try:
            _wait_for(self.folder / "more" / "log", node)
            yield node
        finally:
            _end([node])


@contextmanager
def two_nodes() -> Iterator[RayCluster]:
    """Start two nodes, and end them by their handles; check that they leave no shared memory or files."""
    # Not under pytest's folder: Ray makes sockets there, whose paths may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    there_before = set(SHARED_MEMORY.iterdir())
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    environment = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0", "RAY_prestart_worker_first_driver": "0", "RAY_ADDRESS": "",
        "RAY_worker_niceness": "0",
    }  # fmt: skip
    port, client_port, dashboard_port = free_ports(3)
    address = f"127.0.0.1:{port}"
    head = [
        "--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false",
        f"--ray-client-server-port={client_port}", f"--dashboard-port={dashboard_port}",
    ]  # fmt: skip
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for name, where in (("head", head), ("node", [f"--address={address}"])):
            nodes.append(_start(folder / name, where, environment))
        for name, process in zip(("head", "node"), nodes, strict=True):
            _wait_for(folder / name / "log", process)
        yield RayCluster(address, {**environment, "RAY_ADDRESS": address}, nodes, folder)
        in_shared_memory = {
            path for node in nodes for path in _shared_memory_of(_with_children(psutil.Process(node.pid)))
        }
    finally:
        _end(nodes)
        shutil.rmtree(folder)
    assert not in_shared_memory
    ends = time.monotonic() + STOP_S
    while left := _of_nobody(there_before):
        assert time.monotonic() < ends, left
        time.sleep(POLL_S)


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _shared_memory_of(processes: Iterable[psutil.Process]) -> Iterator[str]:
    """Paths of processes' shared memory, removed ones included."""
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            yield from (of.path for of in process.memory_maps() if of.path.startswith(f"{SHARED_MEMORY}/"))


def _of_nobody(there_before: set[Path]) -> set[str]:
    """New files in shared memory that no running process uses."""
    new = {str(path) for path in set(SHARED_MEMORY.iterdir()) - there_before}
    return new - set(_shared_memory_of(psutil.process_iter())) if new else new


def _end(nodes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(nodes):
        process.terminate()
    for process in nodes:
        try:
            process.wait(STOP_S)
        finally:
            process.kill()


def _start(folder: Path, where: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    words = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where, f"--num-cpus={CPUS_PER_NODE}",
        f"--object-store-memory={STORE_BYTES}", f"--plasma-directory={folder}", "--resources={\"graph\": 1}",
        "--disable-usage-stats", "--include-log-monitor=false", "--dashboard-agent-listen-port=0",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    POOLED.add(process.pid)
    return process


def _wait_for(log: Path, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_S
    while STARTED not in log.read_text(errors="replace"):
        assert process.poll() is None and time.monotonic() < ends, log.read_text(errors="replace")
        time.sleep(POLL_S)
