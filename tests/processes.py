"""Pool of processes that serve datasets for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hopstream.store.cluster import Cluster, ServerEntry, write_cluster

SERVE = """
import json, sys
from hopstream.dataset.layout import open_dataset
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer

servers = {}

def serve(parts, folders):
    started = [StoreServer(LocalStore(open_dataset(folder), parts)) for folder in folders]
    servers.update({server.location: server for server in started})
    return [server.location for server in started]

def close(locations):
    return [location for location in locations if not servers.pop(location).close()]

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps({"serve": serve, "close": close}[name](*arguments)), flush=True)
sys.exit(len(close(list(servers))))
"""
"""Run a call per line of JSON on stdin and print its result; end with stdin."""
STOP_S = 20.0
POOLED: set[int] = set()
"""Ids of the processes of all pools."""


class ServerPool:
    """Processes that serve one test after another, as starting one takes longer than most tests."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    @contextmanager
    def serve(self, folders: Sequence[Path], parts_of_servers: Sequence[Sequence[int]]) -> Iterator[list[list[str]]]:
        """Serve several datasets, the same parts of each from one process; yield locations per dataset.

        The first process answers before the others are called: it compiles the kernels for all, if they are not
        compiled yet.
        """
        while len(self._processes) < len(parts_of_servers):
            words = [sys.executable, "-c", SERVE]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            POOLED.add(process.pid)
        processes = self._processes[: len(parts_of_servers)]
        calls = [("serve", list(parts), [str(folder) for folder in folders]) for parts in parts_of_servers]
        locations = _call(processes[:1], calls[:1]) + _call(processes[1:], calls[1:])
        for of_process in locations:
            assert len(of_process) == len(folders)
            assert all(location.startswith("tcp://127.0.0.1:") for location in of_process)
        try:
            yield [list(of_dataset) for of_dataset in zip(*locations, strict=True)]
        finally:
            given_up = _call(processes, [("close", of_process) for of_process in locations])
            assert given_up == [[]] * len(processes), "some calls were not answered when their server closed"

    @contextmanager
    def serve_cluster(self, folder: Path, dataset_id: str, parts_of_servers: Sequence[Sequence[int]]) -> Iterator[Path]:
        """Serve a dataset and yield the path of its cluster file, which does not say where the files are."""
        with self.serve([folder], parts_of_servers) as (locations,):
            servers = tuple(
                ServerEntry(location=location, parts=tuple(parts))
                for location, parts in zip(locations, parts_of_servers, strict=True)
            )
            path = folder.with_name(folder.name + ".cluster.json")
            write_cluster(path, Cluster(dataset_id=dataset_id, servers=servers))
            yield path

    def close(self) -> None:
        """Ask processes to end, wait for them, and check their status."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        codes = []
        for process in self._processes:
            try:
                codes.append(process.wait(STOP_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
            assert process.stdout is not None
            process.stdout.close()
        assert codes == [0] * len(self._processes)


def _call(processes: Sequence[subprocess.Popen[str]], calls: Sequence[tuple[object, ...]]) -> list[list[str]]:
    """Run one call in each process, all at the same time; return their results."""
    for process, call in zip(processes, calls, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a server's process ended; what it said is on stderr"
        answers.append(json.loads(line))
    return answers
