"""Fixtures: storage servers in threads of the test's process, which is also the compute process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.glt.distributed import dist_client, roster
from hopstream.compat.glt.distributed.dist_client import Session
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.dist_server import StorageServer
from hopstream.compat.glt.distributed.roster import Meeting
from tests.ports import free_port

WAIT_S = 60.0


def cluster(num_storage: int, port: int = 1, num_compute: int = 1, processes: int = 1, ready: str = "ready"):
    """A cluster on loopback whose server 0 listens at ``port``."""
    home = "127.0.0.1"
    return GraphStoreInfo(num_storage, num_compute, home, home, home, 1, 2, 3, processes, port, 4, ready)


@dataclass(frozen=True)
class Served:
    """Servers that run, and where they meet."""

    servers: list[DistServer]
    storage: list[StorageServer]
    meeting: Meeting

    def session(self, rank: int = 0, num_clients: int = 1) -> Session:
        """A client."""
        return Session(self.meeting, rank, num_clients)


def serve_part(folder: Path, rank: int, num_servers: int, edge_dir: str) -> Any:
    """GiGL's server of one part of a dataset."""
    return DistServer(DistDataset(folder, edge_dir=edge_dir, num_partitions=num_servers, partition_idx=rank))


@contextmanager
def serving(folder: Path, num_servers: int, edge_dir: str = "in", new_server: Any = serve_part) -> Iterator[Served]:
    """Servers of a dataset in threads of this process."""
    meeting = Meeting(master_addr="127.0.0.1", master_port=free_port(), timeout_s=WAIT_S)
    with ExitStack() as stack:
        servers = [new_server(folder, rank, num_servers, edge_dir) for rank in range(num_servers)]
        with ThreadPoolExecutor(num_servers) as pool:
            starting = [pool.submit(StorageServer, one.dataset, one.methods(), meeting) for one in servers]
            storage = [one.result(WAIT_S) for one in starting]
        for one, server in zip(storage, servers, strict=True):
            stack.callback(one.close)
            stack.callback(server.shutdown)
        yield Served(servers, storage, meeting)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members ask server 0 more often, so that waits end soon after their deadlines."""
    monkeypatch.setattr(roster, "TURN_S", 0.1)


Connect = Callable[[Path, int], RemoteDistDataset]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Serve a dataset, and be the one compute process of it."""
    with ExitStack() as stack:

        def run(folder: Path, num_servers: int, edge_dir: str = "in") -> RemoteDistDataset:
            served = stack.enter_context(serving(folder, num_servers, edge_dir))
            session = served.session()
            stack.callback(session.close)
            monkeypatch.setattr(dist_client, "_SESSION", session)
            return RemoteDistDataset(cluster(num_servers), 0)

        yield run
