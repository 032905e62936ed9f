"""Run sampling servers, in this process or in processes that tests can freeze and kill."""

from __future__ import annotations

import hashlib
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.dataset.layout import open_dataset
from hopstream.load.batch import MiniBatch
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.store.cluster import open_cluster, parse_locations
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import ArraySpec, Frame, empty_arrays
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.load.graphs import flat, make_timed_graph
from tests.ports import free_ports
from tests.store.processes import END_S, ROOT, START_S, environment, wait_until

SETTINGS = StoreSettings(prefer_local=False, timeout_s=10.0)
TIMED = {"time_attr": "time", "weight_attr": "stars", "neighbor_keys": True}


def write_timed_parts(root: Path, nums_parts: Sequence[int]) -> dict[int, Path]:
    """Write the small graph of times and weights in several numbers of parts, for all loaders."""
    graph = make_timed_graph(np.random.default_rng(11), num_papers=120, num_users=50)
    for num_parts in nums_parts:
        write_parts(
            graph, root / str(num_parts), num_parts=num_parts, method="random", direction="both",
            links=list(graph.edges), **TIMED,
        )  # fmt: skip
    return {num_parts: root / str(num_parts) for num_parts in nums_parts}


def remote_graph(locations: str, timeout_s: float = 60.0, cache_bytes: int | None = None) -> RemoteGraph:
    return RemoteGraph(locations, settings=replace(SETTINGS, cache_bytes=cache_bytes), timeout_s=timeout_s)


def node_loader(source: object, **options: Any) -> NeighborLoader:
    """Loader of the failure tests: 30 batches on each of 4 ranks."""
    options = {"batch_size": 1, "shuffle": True, "collate": "numpy", "num_threads": 1, **options}
    return NeighborLoader(source, [3, 2], ("paper", None), **options)


@dataclass
class Served:
    """Servers of this process, one per part."""

    servers: list[StoreServer] = field(default_factory=list)
    services: list[SamplingService] = field(default_factory=list)

    @property
    def locations(self) -> str:
        return ",".join(server.location for server in self.servers)

    @property
    def num_channels(self) -> int:
        return sum(len(asked(server, "describe_channels").header["channels"]) for server in self.servers)

    @property
    def num_backends(self) -> int:
        return sum(len(service._backends) for service in self.services)


@contextmanager
def serve_here(
    folder: Path,
    limits: SamplingLimits | None = None,
    *,
    token: str | None = None,
    wrap: Callable[[Store], Store] = lambda store: store,
) -> Iterator[Served]:
    """Serve each part of a dataset from a server in this process; ``wrap`` wraps what they sample from."""
    served = Served()
    settings = StoreSettings(prefer_local=False, timeout_s=10.0, security=ClientSecurity(token=token))

    def open_graph() -> Store:
        return wrap(open_cluster(parse_locations(served.locations), settings))

    dataset = open_dataset(folder)
    with ExitStack() as stack:
        for part in range(dataset.manifest.book.num_parts):
            service = SamplingService(open_graph, limits or SamplingLimits(threads=2))
            store = stack.enter_context(LocalStore(dataset, [part]))
            server = StoreServer(
                store, security=ServerSecurity(token=token), operations=service.operations,
                limits=ServerLimits(max_request_bytes=(limits or SamplingLimits()).max_request_bytes),
            )  # fmt: skip
            stack.callback(server.close)
            served.services.append(service)
            served.servers.append(server)
        try:
            yield served
        finally:
            for service in served.services:
                service.close()


class Answer:
    """Collect the frames of an answer."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[np.ndarray]:
        return empty_arrays(specs)

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)


class Caller:
    """Send requests to a server of this process over one connection."""

    def __init__(self, server: StoreServer, token: str | None = None) -> None:
        self._connection = Connection(Location.parse(server.location), ClientSecurity(token=token))
        self._dataset_id = server._answers._store.dataset_id

    def __call__(self, op: str, arrays: Sequence[np.ndarray] = (), **header: object) -> list[Frame]:
        """The frames of the answer to a request."""
        answer = Answer()
        request = Frame({"op": op, "dataset": self._dataset_id, **header}, arrays)
        self._connection.call(request, 20.0, op, answer)
        return answer.frames

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def asked_all(
    server: StoreServer, op: str, arrays: Sequence[np.ndarray] = (), token: str | None = None, **header: object
) -> list[Frame]:
    """The frames of the answer to one request, over a new connection."""
    with Caller(server, token) as call:
        return call(op, arrays, **header)


def asked(server: StoreServer, op: str, arrays: Sequence[np.ndarray] = (), **header: Any) -> Frame:
    """The only frame of an answer."""
    (frame,) = asked_all(server, op, arrays, **header)
    return frame


class SamplingProcess:
    """Server of one part in its own process, which can be killed and restarted at the same address."""

    def __init__(self, folder: Path, part: int, locations: str, number: int, arguments: Sequence[object]) -> None:
        self._command = [
            sys.executable, "-m", "tests.stream.serve", str(folder), "--part", str(part), "--locations", locations,
            "--number", str(number), *map(str, arguments),
        ]  # fmt: skip
        self.location = locations.split(",")[number]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
        )  # fmt: skip

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        wait_readable(self._process.stdout, "the server's address")
        assert self._process.stdout.readline().strip() == self.location

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def restart(self) -> None:
        self.kill()
        self.start()
        self.wait_ready()

    def freeze(self) -> None:
        """Stop the process by a signal; it keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        wait_until(self._is_frozen, "every thread of the server is stopped")

    def _is_frozen(self) -> bool:
        tasks = [path.read_text(encoding="ascii") for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(task.rsplit(")", 1)[1].split()[0] == "T" for task in tasks)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ask the server to end; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            return self._process.wait(END_S)
        finally:
            self._process.stdout.close()

    def ensure_ended(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


@contextmanager
def serve_processes(folder: Path, *arguments: object, num_replicas: int = 1) -> Iterator[list[SamplingProcess]]:
    """Serve every part of a dataset from a process of its own, at addresses that are chosen beforehand.

    With more than one replica server ``n`` has part ``n % num_parts``.
    """
    num_parts = open_dataset(folder).manifest.book.num_parts
    numbers = range(num_replicas * num_parts)
    locations = ",".join(f"tcp://127.0.0.1:{port}" for port in free_ports(len(numbers)))
    processes = [SamplingProcess(folder, number % num_parts, locations, number, arguments) for number in numbers]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.wait_ready()
        yield processes
    finally:
        for process in processes:
            process.ensure_ended()


def locations_of(processes: Sequence[SamplingProcess]) -> str:
    return ",".join(process.location for process in processes)


def channels_at(location: str, dataset_id: str) -> list[dict[str, Any]]:
    """A server's description of its channels."""
    connection, answer = Connection(Location.parse(location), SETTINGS.security), Answer()
    try:
        connection.call(Frame({"op": "describe_channels", "dataset": dataset_id}), 10.0, "a test", answer)
    finally:
        connection.close()
    found: list[dict[str, Any]] = answer.frames[0].header["channels"]
    return found


def channel_ids_at(service: SamplingService) -> list[int]:
    """The keys of a service's channels, which only their compute ranks learn."""
    with service._scheduler._lock:
        return list(service._scheduler._channels)


def wait_readable(stream: Any, what: str) -> None:
    poll = select.poll()
    poll.register(stream, select.POLLIN | select.POLLHUP)
    assert poll.poll(1000 * START_S), f"{what}: not within {START_S:g} s"


class RankProcess:
    """A compute rank in a process of its own, that takes one epoch after the other."""

    def __init__(self, locations: str, rank: int, world_size: int) -> None:
        command = [sys.executable, "-m", "tests.stream.consume", locations, str(rank), str(world_size)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
        )

    def begin(self, epoch: int, at: int) -> None:
        """Let the process take an epoch; it halts after ``at`` batches."""
        self._say(f"{epoch} {at}")
        assert self._hear() == "halted"

    def go_on(self) -> None:
        """Let the process take the rest, with a pause before each batch."""
        self._say("")

    @property
    def has_finished(self) -> bool:
        """Whether the process has reported the end of the epoch."""
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))

    def digests(self) -> list[str]:
        """Digests of every batch of the epoch; waits for the last."""
        return self._hear().split()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(END_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        wait_readable(self._process.stdout, "a rank's word")
        line = self._process.stdout.readline()
        assert line, "a rank's process has ended; what it said is on stderr"
        return line.strip()


def digest_of(batch: MiniBatch) -> str:
    """Hex digest of all contents of a batch."""
    return hashlib.sha256(repr(flat(batch)).encode()).hexdigest()


class ConsumerProcess:
    """A compute rank in a process of its own, which has taken some batches and then idles."""

    def __init__(self, locations: str, num_batches: int) -> None:
        command = [sys.executable, "-m", "tests.stream.consume", locations, str(num_batches)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        wait_readable(self._process.stdout, "the consumer's word")
        assert self._process.stdout.readline() == "waiting\n"

    def kill(self) -> None:
        """Kill the process, unless it has ended already."""
        self._process.kill()
        self._process.wait(END_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
