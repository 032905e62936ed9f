"""How does a test run servers in processes of their own, and end them?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hopstream.store.cluster import Cluster, ServerEntry, write_cluster

SERVE = """
import sys
from hopstream.partition.layout import open_dataset
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer

folder, parts = sys.argv[1], [int(part) for part in sys.argv[2].split(",")]
server = StoreServer(LocalStore(open_dataset(folder), parts))
print(server.location, flush=True)
server.serve_forever()
"""
STOP_S = 20.0


@contextmanager
def serve_parts(folder: Path, parts_of_servers: Sequence[Sequence[int]]) -> Iterator[list[str]]:
    """Serve a dataset from one process per server; yield the servers' locations."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SERVE, str(folder), ",".join(map(str, parts))], stdout=subprocess.PIPE, text=True
        )
        for parts in parts_of_servers
    ]
    try:
        locations = []
        for process in processes:
            assert process.stdout is not None
            locations.append(process.stdout.readline().strip())
        assert all(location.startswith("grpc://127.0.0.1:") for location in locations)
        yield locations
    finally:
        for process in processes:
            process.terminate()
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(STOP_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
            assert process.stdout is not None
            process.stdout.close()
    assert codes == [0] * len(processes)


@contextmanager
def served_cluster(folder: Path, dataset_id: str, parts_of_servers: Sequence[Sequence[int]]) -> Iterator[Path]:
    """Serve a dataset and yield the path of its cluster file, which does not say where the files are."""
    with serve_parts(folder, parts_of_servers) as locations:
        servers = tuple(
            ServerEntry(location=location, parts=tuple(parts))
            for location, parts in zip(locations, parts_of_servers, strict=True)
        )
        path = folder.with_name(folder.name + ".cluster.json")
        write_cluster(path, Cluster(dataset_id=dataset_id, servers=servers))
        yield path
