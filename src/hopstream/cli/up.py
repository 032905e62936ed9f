"""Verb ``up``: serves all parts of a dataset from this machine, by child processes that end with it.

Each child reads from a pipe whose other end only this process holds. If this process dies, for whatever reason, the
system closes the pipe and the child stops. So no child outlives its parent.
"""

from __future__ import annotations

import json as json_format
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from hopstream.checks import check_choice
from hopstream.cli.doors import Doors, remove_made
from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.sampling import left_text, limit_flags
from hopstream.cli.serve import EXIT_SLACK_S, parts_text
from hopstream.cli.server_flags import TOKEN_VARIABLE, LogSettings, WatchSettings, logs_on_stderr
from hopstream.cli.units import bytes_text, plural_text
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.paths import CLUSTER, ROOTS
from hopstream.dataset.spot_check import Verify
from hopstream.engine.machine import watched
from hopstream.engine.worker_process import status_text
from hopstream.errors import FormatError, SettingsError, StoreTimeout, StoreUnavailable
from hopstream.stream.settings import SamplingLimits
from hopstream.uris import is_uri, shown_uri

if TYPE_CHECKING:
    from hopstream.dataset.layout import Dataset
    from hopstream.store.cluster import Cluster


LOG = logging.getLogger(__name__)
MAX_ERROR_LINES = 20
"""Lines of a child's stderr that are kept to explain its end."""
KILL_S = 10.0
"""Seconds that the system has to end a killed process."""


@dataclass(slots=True, eq=False)
class Child:
    """A child process and its captured output.

    Attributes:
        name: Its name in messages.
        process: The process.
        lines: Complete lines of stdout, in order.
        errors: The last lines of stderr.
        open_streams: Number of its two streams that have not ended.
    """

    name: str
    process: subprocess.Popen[bytes]
    lines: list[str] = field(default_factory=list)
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_ERROR_LINES))
    open_streams: int = 2

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended and all of its output has been read."""
        return self.open_streams == 0 and self.process.poll() is not None

    def ending_text(self) -> str:
        """Return how the process ended, with its last lines of stderr."""
        said = "".join(f"\n  {line}" for line in self.errors)
        return f"{self.name} (process {self.process.pid}) {status_text(self.process.poll())}{said}"


_News = tuple[Child, IO[bytes], str | None] | None
"""A line that a child wrote to a stream, or None for the end of the stream. None instead of a tuple wakes ``wait``."""


class Children:
    """Child processes that end with this context, or with this process."""

    def __init__(self, *, grace_s: float, on_error_line: Callable[[str], object] = lambda line: None) -> None:
        """Set the options; no child is started yet.

        Args:
            grace_s: Seconds between the signal that asks children to end and SIGKILL.
            on_error_line: Called with every line that a child writes to stderr.
        """
        self._grace_s = grace_s
        self._on_error_line = on_error_line
        self._running: list[Child] = []
        self._news: SimpleQueue[_News] = SimpleQueue()

    def __enter__(self) -> Children:
        """Return the children; none is started yet."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop all children."""
        self.stop()

    def start(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> Child:
        """Start this interpreter with arguments, in a new session, so that Ctrl-C does not reach the child.

        Raises:
            StoreUnavailable: The system cannot start the process.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, env=environment,
            )  # fmt: skip
        except OSError as error:
            raise StoreUnavailable(f"{name} cannot be started: {error}") from error
        child = Child(name, process)
        self._running.append(child)
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(child, stream), name="hopstream-child", daemon=True).start()
        return child

    def wake(self) -> None:
        """Make ``wait`` return; a signal handler may call this."""
        self._news.put(None)

    def wait(self, timeout_s: float) -> list[Child]:
        """Wait for news; return the children that have ended since the last call."""
        with suppress(Empty):
            self._take(self._news.get(timeout=max(timeout_s, 0.0)))
            while True:
                self._take(self._news.get_nowait())
        # The streams of a process end a moment before the process can be waited for.
        for child in self._running:
            if child.open_streams == 0 and child.process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(0.1)
        ended = [child for child in self._running if child.has_ended]
        for child in ended:
            self._running.remove(child)
            with suppress(OSError):
                cast(IO[bytes], child.process.stdin).close()
        return ended

    def stop(self, is_hurried: Callable[[], bool] = lambda: False) -> list[Child]:
        """End all children: send SIGTERM, wait for the grace period, then send SIGKILL.

        Args:
            is_hurried: Called after each wait; if it returns True, children are killed at once.

        Returns:
            The children that were running, all of them ended.
        """
        stopped = list(self._running)
        for child in stopped:
            child.process.terminate()
        self._wait_for_all(self._grace_s, is_hurried)
        for child in self._running:
            child.process.kill()
        self._wait_for_all(KILL_S, lambda: False)
        return stopped

    def _wait_for_all(self, timeout_s: float, is_hurried: Callable[[], bool]) -> None:
        ends = time.monotonic() + timeout_s
        while self._running and (left := ends - time.monotonic()) > 0 and not is_hurried():
            self.wait(left)

    def _read(self, child: Child, stream: IO[bytes]) -> None:
        """Queue the lines that a child writes to a stream; each stream has its own thread."""
        with stream:
            for line in stream:
                self._news.put((child, stream, line.removesuffix(b"\n").decode(errors="replace")))
        self._news.put((child, stream, None))

    def _take(self, news: _News) -> None:
        if news is None:
            return
        child, stream, line = news
        if line is None:
            child.open_streams -= 1
        elif stream is child.process.stdout:
            child.lines.append(line)
        else:
            child.errors.append(line)
            self._on_error_line(line)


@dataclass(slots=True)
class StopSignals:
    """Number of signals that have asked this process to stop."""

    count: int = 0


@contextmanager
def stop_signals(children: Children) -> Iterator[StopSignals]:
    """Count the signals that ask to stop inside the context; each one interrupts ``children.wait``."""
    signals = StopSignals()

    def on_signal(number: int, _: FrameType | None) -> None:
        signals.count += 1
        children.wake()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


MAX_WAIT_S = 3600.0
HINT_S = 5.0
"""Seconds to wait for the first server before a message explains the delay."""
PROBE_S = 2.0
"""Seconds that a server in a cluster file has to accept a connection."""
ENDED_AS_ASKED = (0, -signal.SIGTERM)
"""Statuses of a clean end. A server that is stopped before it is ready has nothing to finish, and ends by SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Settings for serving a dataset. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    servers: int | None = field(
        default=None, metadata={"help": "servers that share the parts; one per part by default"}
    )
    replicas: int = field(default=1, metadata={"help": "number of servers that hold each part"})
    verify: Verify = field(
        default="none",
        metadata={"help": "check of the files before they are served: some blocks of each, or everything"},
    )
    cluster_file: Path | None = field(
        default=None, metadata={"help": "where clients find the servers; DATASET/cluster.json by default"}
    )
    bind: Literal["unix", "tcp"] = field(
        default="unix",
        metadata={
            "help": "where servers listen: unix: at sockets that only this user can open; tcp: at free ports of the "
            "loopback address, with a token"
        },
    )
    token_file: Path | None = field(
        default=None,
        metadata={
            "help": "file of the token that clients must send, or of a line 'name read|admin token' for each of them; "
            f"without it the environment variable {TOKEN_VARIABLE}, if it is set, and else with --bind tcp one is made"
        },
    )
    no_token: bool = field(
        default=False, metadata={"help": "require no token: with --bind tcp every user of the machine has access"}
    )
    start_timeout_s: float = field(
        default=300.0,
        metadata={
            "help": "seconds within which all servers must be ready; the first start on a machine compiles kernels"
        },
    )
    grace_s: float = field(default=10.0, metadata={"help": "seconds that running requests get to finish when stopping"})

    def __post_init__(self) -> None:
        """Check every field."""
        if self.servers is not None and self.servers < 1:
            raise SettingsError(f"servers is {self.servers}; it must be 1 or more")
        if not 1 <= self.replicas <= 64:
            raise SettingsError(f"replicas is {self.replicas}; it must be from 1 to 64")
        check_choice("verify", self.verify, get_args(Verify))
        check_choice("bind", self.bind, ("unix", "tcp"))
        if self.no_token and self.token_file is not None:
            raise SettingsError("--token-file and --no-token are both given; leave one of them out")
        if not 0 < self.start_timeout_s < 1e6 or not 0 <= self.grace_s < 1e6:
            raise SettingsError(f"start_timeout_s is {self.start_timeout_s}, grace_s {self.grace_s}; wanted seconds")


@with_settings("settings", UpSettings)
@with_settings("limits", SamplingLimits)
@with_settings("watching", WatchSettings)
@with_settings("logs", LogSettings)
def run(
    source_dataset: Annotated[
        str, typer.Argument(help="a dataset's folder or URI", metavar="DATASET", show_default=False)
    ],
    json: JsonFlag = False,
    *,
    settings: UpSettings,
    limits: SamplingLimits,
    watching: WatchSettings,
    logs: LogSettings,
) -> None:
    """Serve all parts of a dataset on this machine and sample for trainers, until Ctrl-C.

    Every server is a process of its own. It listens at a Unix socket in a folder that only this user can enter, or with
    --bind tcp at a free port of the loopback address. Clients find the servers by the cluster file. No server outlives
    this command. Without --threads, the servers share the machine's cores. --metrics-port is the port of the first
    server; the others take the following ports.
    """
    from hopstream.dataset.layout import open_dataset

    output, clock = Output(is_json=json), Clock()
    if is_uri(source_dataset) and settings.cluster_file is None:
        raise SettingsError(f"{shown_uri(source_dataset)} is not a folder of this machine; give --cluster-file")
    with progress_bars() as progress:
        dataset = folder_of(source_dataset, progress=progress)
    opened = open_dataset(dataset)
    path = settings.cluster_file or dataset / "cluster.json"
    _free_cluster_file(path)
    doors = Doors(
        path, has_sockets=settings.bind == "unix", token_file=settings.token_file, asks_token=not settings.no_token
    )
    groups = share_parts(opened.manifest.book.num_parts, settings.servers) * settings.replicas
    per_server = replace(limits, threads=limits.threads or -(-limits.num_threads // len(groups)))
    flags = ["--cluster", str(path.resolve()), "--grace-s", str(settings.grace_s), *limit_flags(per_server)]
    flags += ["--verify", settings.verify]
    flags += ["--log-level", logs.log_level, *["--log-json"] * logs.log_json]
    children = Children(
        grace_s=settings.grace_s + EXIT_SLACK_S, on_error_line=_pass_on if logs.log_json else lambda line: None
    )
    # Signals are caught until the last child has ended, so that no signal interrupts the shutdown.
    with logs_on_stderr(logs), watched(), stop_signals(children) as signals, doors, children:
        own_flags = [[*doors.flags(number), *one] for number, one in enumerate(metrics_flags(watching, len(groups)))]
        fleet = _Fleet(opened, children, signals, flags, own_flags, doors)
        if fleet.start(groups, settings.start_timeout_s):
            _free_cluster_file(path)  # another command may have written the file meanwhile
            with _ClusterFile(path) as file:
                file.write(fleet.cluster())
                fleet.show(output, clock, path)
                fleet.watch(output, file)
        fleet.stop(output, names_left=not logs.log_json)  # with --log-json, the servers' records name the channels


def share_parts(num_parts: int, num_servers: int | None) -> list[tuple[int, ...]]:
    """Assign consecutive parts to each server; numbers of parts differ by one at most.

    Raises:
        SettingsError: There are more servers than parts.
    """
    count = num_parts if num_servers is None else num_servers
    if count > num_parts:
        raise SettingsError(f"--servers is {count}; the dataset has {plural_text(num_parts, 'part')} to share")
    bounds = [i * num_parts // count for i in range(count + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(bounds)]


def metrics_flags(watching: WatchSettings, num_servers: int) -> list[list[str]]:
    """Return the flags for each server's metrics: consecutive ports, or free ports for port 0.

    Raises:
        SettingsError: There are not enough ports after the first one.
    """
    port = watching.metrics_port
    if port is None:
        return [[]] * num_servers
    if port and port + num_servers > 1 << 16:
        raise SettingsError(f"--metrics-port {port} is the first of {num_servers}, one per server; ports end at 65535")
    ports = [port + number if port else 0 for number in range(num_servers)]
    return [["--metrics-port", str(one), "--metrics-host", watching.metrics_host] for one in ports]


@dataclass(slots=True, eq=False)
class _Server:
    """A process that serves parts.

    Attributes:
        child: The process.
        parts: The parts that it serves.
        location: Its address; "" until it is ready.
        metrics: URL of its metrics, or None.
    """

    child: Child
    parts: tuple[int, ...]
    location: str = ""
    metrics: str | None = None


class _Fleet:
    """The running servers."""

    def __init__(
        self,
        dataset: Dataset,
        children: Children,
        signals: StopSignals,
        flags: Sequence[str],
        own_flags: Sequence[Sequence[str]],
        doors: Doors,
    ) -> None:
        """Set the flags: ``flags`` of all servers, ``own_flags`` of each one; none is started yet."""
        self._dataset = dataset
        self._num_parts = dataset.manifest.book.num_parts
        self._children = children
        self._signals = signals
        self._flags = flags
        self._own_flags = own_flags
        self._doors = doors
        self._servers: list[_Server] = []

    def start(self, groups: Sequence[tuple[int, ...]], timeout_s: float) -> bool:
        """Start one server for each group of parts; return False if this process was asked to stop meanwhile.

        The servers start at the same time and share the compilation of kernels: each kernel is compiled by one server.

        Raises:
            StoreUnavailable: A server ended before it was ready.
            StoreTimeout: A server was not ready in time.
        """
        ends = time.monotonic() + timeout_s
        self._start(groups)
        return self._wait_until_ready(ends, timeout_s)

    def _start(self, groups: Sequence[tuple[int, ...]]) -> None:
        for parts in groups:
            # -P keeps the working directory out of the search path for modules.
            arguments = ["-P", "-m", "hopstream.cli", "serve", str(self._dataset.root.resolve())]
            arguments += ["--parts", ",".join(map(str, parts)), *self._flags, *self._own_flags[len(self._servers)]]
            name = f"the server of {parts_text(parts, self._num_parts)}"
            child = self._children.start(name, [*arguments, "--stop-on-eof", "--json"], self._doors.environment())
            self._servers.append(_Server(child, parts))

    def _wait_until_ready(self, ends: float, timeout_s: float) -> bool:
        tells_at = time.monotonic() + HINT_S
        while True:
            waiting = [server for server in self._servers if not server.location]
            if not waiting or self._signals.count:
                return not waiting
            if time.monotonic() > ends:
                names = ", ".join(server.child.name for server in waiting)
                raise StoreTimeout(
                    f"{names} not ready in {timeout_s:g} s; the first start on a machine compiles kernels; "
                    "give more time with --start-timeout-s"
                )
            if time.monotonic() > tells_at:
                LOG.warning("waiting; the first start on a machine compiles kernels, which takes some seconds")
                tells_at = ends
            for child in self._children.wait(min(ends, tells_at) - time.monotonic()):
                raise StoreUnavailable(f"{child.ending_text()}\n  it was not ready yet; all servers were stopped")
            for server in waiting:
                if server.child.lines:
                    server.location, server.metrics = _addresses_of(server.child)

    def watch(self, output: Output, file: _ClusterFile) -> None:
        """Wait until this process is asked to stop; report servers that end.

        Raises:
            StoreUnavailable: A server ended, and no other one serves its parts.
        """
        while not self._signals.count:
            for child in self._children.wait(MAX_WAIT_S):
                lost = next(server for server in self._servers if server.child is child)
                self._servers.remove(lost)
                served = {part for server in self._servers for part in server.parts}
                if not served.issuperset(lost.parts):
                    raise StoreUnavailable(f"{child.ending_text()}\n  no other serves its parts; all were stopped")
                file.write(self.cluster())
                facts: Facts = {"server": lost.location, "parts": lost.parts, "status": child.process.returncode}
                output.stage("lost", lost.location, f"{child.name}; others serve its parts", facts)
                LOG.warning(child.ending_text())

    def cluster(self) -> Cluster:
        """Return the cluster: the data by which clients find the servers."""
        from hopstream.store.cluster import Cluster, ServerEntry

        root = self._dataset.root.resolve()
        entries = [ServerEntry(location=s.location, parts=s.parts, path=root) for s in self._servers]
        return Cluster(
            dataset_id=self._dataset.manifest.dataset_id, servers=tuple(entries), token_file=self._doors.named_token
        )

    def show(self, output: Output, clock: Clock, path: Path) -> None:
        """Write a table of the servers, and the path of the cluster file."""
        rows: list[tuple[str, ...]] = [
            (s.location, parts_text(s.parts, self._num_parts), str(s.child.process.pid)) for s in self._servers
        ]
        headers: tuple[str, ...] = ("server", "parts", ">process")
        if any(s.metrics for s in self._servers):
            headers = (*headers, "metrics")
            rows = [(*row, s.metrics or "") for row, s in zip(rows, self._servers, strict=True)]
        facts: list[Facts] = [
            {"server": s.location, "parts": s.parts, "process": s.child.process.pid, "metrics": s.metrics}
            for s in self._servers
        ]
        output.table(headers, rows, facts)
        token_file = self._doors.token_file
        told: Facts = {
            "cluster_file": str(path), "servers": len(rows), "parts": self._num_parts,
            "token_file": None if token_file is None else str(token_file),
        }  # fmt: skip
        text = f"{plural_text(len(rows), 'server')}, {plural_text(self._num_parts, 'part')}; Ctrl-C stops them"
        output.stage("ready", str(path), text, told, clock.cost())

    def stop(self, output: Output, *, names_left: bool) -> None:
        """Stop all servers; a further signal kills them.

        Args:
            output: Output for the servers' counters and the channels that they left.
            names_left: Also write a warning about each of these channels to stderr.

        Raises:
            StoreUnavailable: A server aborted requests or batches under way, or had to be killed.
        """
        clock, asked = Clock(), self._signals.count
        stopped = self._children.stop(lambda: self._signals.count > asked)
        totals, left = _totals_of(stopped), self._left_of(stopped)
        text = f"{plural_text(totals['requests'], 'request')}, {bytes_text(totals['bytes'])}"
        text += f"; {plural_text(len(left), 'channel')} left" if left else ""
        facts: Facts = {"servers": len(stopped), **totals, "left": left}
        output.stage("stop", plural_text(len(stopped), "server"), text, facts, clock.cost())
        for one in left if names_left else ():
            LOG.warning("%s: %s", one["server"], left_text(one))
        unclean = [child for child in stopped if child.process.returncode not in ENDED_AS_ASKED]
        if unclean:
            raise StoreUnavailable("; ".join(child.ending_text() for child in unclean))

    def _left_of(self, children: Sequence[Child]) -> list[Facts]:
        """Collect the channels that servers left, from the last line of each."""
        left: list[Facts] = []
        for server in self._servers:
            if server.child in children:
                left += [{"server": server.location, **one} for one in _said_last(server.child).get("left", [])]
        return left


def _pass_on(line: str) -> None:
    sys.stderr.write(line + "\n")


class _ClusterFile:
    """The cluster file, by which clients find the servers; the context removes it at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = ""

    def write(self, cluster: Cluster) -> None:
        from hopstream.engine.atomic_folder import errors_named
        from hopstream.store.cluster import write_cluster

        with errors_named(self._path):
            write_cluster(self._path, cluster)
        self._written = self._path.read_text(encoding="utf-8")

    def __enter__(self) -> _ClusterFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the file, unless another process has replaced it."""
        with suppress(FileNotFoundError):
            if self._path.read_text(encoding="utf-8") == self._written:
                self._path.unlink()


def _free_cluster_file(path: Path) -> None:
    """Remove the cluster file of an earlier command.

    No client must use it before the new servers are ready.

    Raises:
        SettingsError: The path is not a cluster file, is reserved for other servers or cannot be written, or a server
            that it names is running.
    """
    from hopstream.store.cluster import read_cluster

    if path.name == CLUSTER and (path.parent / ROOTS).exists():
        raise SettingsError(f"{path} is kept for the machines of {ROOTS} beside it; give another --cluster-file")
    if not path.exists():
        if not path.parent.is_dir():
            raise SettingsError(f"the folder of {path} does not exist; give a path in an existing folder")
        try:
            with TemporaryFile(dir=path.parent):
                return
        except OSError as error:
            raise SettingsError(
                f"the cluster file {path} cannot be written: {error.strerror}; give another --cluster-file"
            ) from error
    try:
        cluster = read_cluster(path)
    except (FormatError, OSError) as error:
        raise SettingsError(f"{path} exists and is not a cluster file; give another path ({error})") from error
    for entry in cluster.servers:
        if _is_listening(entry.location):
            raise SettingsError(
                f"{path} names {entry.location}, which is running; stop it, or give another --cluster-file"
            )
    path.unlink(missing_ok=True)
    remove_made(path, cluster)


def _is_listening(location: str) -> bool:
    """Return whether a process accepts connections at an address.

    A socket without permission for this user counts as one that does.
    """
    from hopstream.transport.location import Location

    place = Location.parse(location)
    with suppress(OSError):
        if not place.path:
            socket.create_connection((place.host, place.port), PROBE_S).close()
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_S)
            with suppress(PermissionError, TimeoutError, BlockingIOError):
                probe.connect(place.path)
            return True
    return False


def _addresses_of(child: Child) -> tuple[str, str | None]:
    """Return the address and the metrics URL of a server from its first line of output."""
    try:
        value = json_format.loads(child.lines[0])
        return str(value["location"]), None if value["metrics"] is None else str(value["metrics"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable(f"{child.name} said {child.lines[0][:200]!r} where its address was expected") from error


def _totals_of(children: Sequence[Child]) -> dict[str, int]:
    """Sum up the counters in the last lines of the servers; a killed server has none."""
    totals = dict.fromkeys(("requests", "refusals", "failures", "bytes"), 0)
    for child in children:
        said = _said_last(child)
        for name in totals:
            totals[name] += int(said.get(name, 0))
    return totals


def _said_last(child: Child) -> dict[str, Any]:
    """Parse the last line of a server; empty if it was killed before it wrote that line."""
    with suppress(ValueError, LookupError):
        said = json_format.loads(child.lines[-1])
        if isinstance(said, dict) and said.get("stage") == "stop":
            return said
    return {}
