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

parts, folders = [int(part) for part in sys.argv[1].split(",")], sys.argv[2:]
servers = [StoreServer(LocalStore(open_dataset(folder), parts)) for folder in folders]
print(*(server.location for server in servers), flush=True)
servers[0].serve_forever()
for server in servers[1:]:
    server.close()
"""
STOP_S = 20.0


@contextmanager
def serve_parts(folder: Path, parts_of_servers: Sequence[Sequence[int]]) -> Iterator[list[str]]:
    """Serve a dataset from one process per server; yield the servers' locations."""
    with serve_datasets([folder], parts_of_servers) as (locations,):
        yield locations


@contextmanager
def serve_datasets(folders: Sequence[Path], parts_of_servers: Sequence[Sequence[int]]) -> Iterator[list[list[str]]]:
    """Serve several datasets, the same parts of each from one process; yield the servers' locations per dataset.

    The first process is waited for: where kernels are not compiled yet it compiles them for all.
    """
    processes: list[subprocess.Popen[str]] = []
    locations: list[list[str]] = []
    try:
        for some in (parts_of_servers[:1], parts_of_servers[1:]):
            for parts in some:
                words = [sys.executable, "-c", SERVE, ",".join(map(str, parts)), *map(str, folders)]
                processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            for process in processes[len(locations) :]:
                assert process.stdout is not None
                locations.append(process.stdout.readline().split())
        for of_process in locations:
            assert len(of_process) == len(folders)
            assert all(location.startswith("grpc://127.0.0.1:") for location in of_process)
        yield [list(of_dataset) for of_dataset in zip(*locations, strict=True)]
    finally:
        _end(processes)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ask processes to end, see to it that they do, and assert that they ended well."""
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
