"""Measures two trainers on a network with limited rate and delay, with and without a cache of rows.

Two hosts are network namespaces on this machine, joined by a bridge. Each serves two of four parts, and trains with
these parts mapped and the other two remote. ``tc`` (``tbf``) limits rates. ``netem`` delays packets if the kernel has
it; otherwise a relay holds bytes back, which costs processor time. Figures are the time of the machine per batch of
both trainers, and ratios to the same processes without a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import BATCH_SIZE, FANOUT, Options, add_options, report, to_options
from benchmarks.loader import endless
from benchmarks.prepare import make_graph
from benchmarks.two_trainers import cache_bytes
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.schema import NODE
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity

PORT, RELAY_PORT = 7001, 7002
NUM_PARTS = 4
NUM_WARMUPS = 30
WAIT_S = 600.0
SHARES = (0.0, 0.05, 0.1, 0.2)
INSIDE = "HOPSTREAM_BENCHMARK_NETWORK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A kind of network between the hosts.

    Attributes:
        name: Name in the figures.
        rate: Rate in the syntax of ``tc``; None for no limit.
        burst: Bytes that pass at once, in the syntax of ``tc``.
        delay_ms: Delay of each direction, in milliseconds.
    """

    name: str
    rate: str | None = None
    burst: str = "512kb"
    delay_ms: float = 0.0


NETWORKS = (
    Network(name="no_limit"),
    Network(name="10gbit", rate="10gbit", burst="4mb"),
    Network(name="1gbit", rate="1gbit"),
    Network(name="1gbit_1ms", rate="1gbit", delay_ms=0.5),
)


def run(*words: str) -> bool:
    """Run a command; return whether it succeeded."""
    return subprocess.run(words, capture_output=True, check=False, timeout=30).returncode == 0


class Host:
    """A network namespace with an address on the bridge, and the processes inside it."""

    def __init__(self, number: int, stack: ExitStack) -> None:
        """Make the namespace; ``stack`` removes it."""
        self.number, self.address, self._device = number, f"10.78.0.{number + 1}", f"host{number}"
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "3600"])
        stack.callback(self._holder.kill)
        comm, ends = Path(f"/proc/{self._holder.pid}/comm"), time.monotonic() + 10
        while comm.read_text(encoding="ascii").strip() != "sleep":
            if time.monotonic() > ends:
                raise SystemExit("a network namespace could not be made")
            time.sleep(0.01)
        outer, holder = f"to{number}", str(self._holder.pid)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", self._device, "netns", holder)
        run("ip", "link", "set", outer, "master", "bridge0")
        run("ip", "link", "set", outer, "up")
        self._inside("ip", "addr", "add", f"{self.address}/24", "dev", self._device)
        for device in (self._device, "lo"):
            self._inside("ip", "link", "set", device, "up")

    def limit(self, network: Network) -> bool:
        """Limit the host's rate and delay as in a network; return False if the kernel cannot delay."""
        self._inside("tc", "qdisc", "del", "dev", self._device, "root")
        where = ("tc", "qdisc", "add", "dev", self._device)
        if network.rate:
            shape = ("tbf", "rate", network.rate, "burst", network.burst, "latency", "100ms")
            if not self._inside(*where, "root", "handle", "1:", *shape):
                raise SystemExit("tc cannot limit a rate here (tbf)")
        if not network.delay_ms:
            return True
        return self._inside(*where, "parent", "1:", "netem", "delay", f"{network.delay_ms}ms")

    def start(self, stack: ExitStack, *words: str) -> subprocess.Popen[str]:
        """Start a role of this script in the namespace; ``stack`` ends it."""
        command = ["nsenter", "-t", str(self._holder.pid), "-n", sys.executable, "-m", "benchmarks.network", *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait, 30)
        stack.callback(process.kill)
        return process

    def _inside(self, *words: str) -> bool:
        return run("nsenter", "-t", str(self._holder.pid), "-n", *words)


def heard(process: subprocess.Popen[str]) -> Any:
    """Read the next line that a role prints, as JSON."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit("a process of the benchmark ended; its error is above")
    return json.loads(line)


def say(value: object) -> None:
    """Print a JSON line for the parent process."""
    print(json.dumps(value), flush=True)


def parts_of(number: int) -> list[int]:
    """The parts of a host."""
    return [2 * number, 2 * number + 1]


def serve(options: Options, number: int, address: str) -> None:
    """Role: serve a host's parts until stdin ends."""
    with LocalStore(open_dataset(options.parts_path(NUM_PARTS)), parts_of(number)) as store:
        server = StoreServer(store, f"tcp://{address}:{PORT}", security=ServerSecurity(is_insecure=True))
        say("ready")
        sys.stdin.read()
        server.close()


def train(options: Options, number: int, location: str, share: float) -> None:
    """Role: take batches for each line of stdin; report begin, end and bytes of each repetition."""
    near = LocalStore(open_dataset(options.parts_path(NUM_PARTS)), parts_of(number))
    settings = StoreSettings(
        prefer_local=False, timeout_s=60.0, cache_bytes=cache_bytes(near, share), security=ClientSecurity()
    )
    far = RemoteStore(location, settings)
    with RoutedStore([near, far], settings) as store, NeighborLoader(
        store, FANOUT, seeds="train", batch_size=BATCH_SIZE, shuffle=True, node_features={NODE: ["x"]}, edge_keys=False,
        num_threads=options.num_threads, rank=number, world_size=2,
    ) as loader:  # fmt: skip
        batches = endless(loader)
        for _ in range(NUM_WARMUPS):
            next(batches)
        say("ready")
        for _ in sys.stdin:
            before, started = store.traffic(), time.monotonic()
            for _ in range(options.num_batches):
                next(batches)
            ended, after = time.monotonic(), store.traffic()
            moved = sum(after[kind].remote_bytes - before[kind].remote_bytes for kind in after)
            say([started, ended, moved])


def relay(address: str, target: str, delay_s: float) -> None:
    """Role: forward bytes of connections to another host, each after ``delay_s``."""
    chooser = selectors.DefaultSelector()
    listener = socket.create_server((address, RELAY_PORT))
    chooser.register(listener, selectors.EVENT_READ)
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    other: dict[socket.socket, socket.socket] = {}
    say("ready")
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in chooser.select(left_s):
            source = cast(socket.socket, key.fileobj)
            if source is listener:
                near, far = listener.accept()[0], socket.create_connection((target, PORT))
                for one, its_other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    other[one] = its_other
                    chooser.register(one, selectors.EVENT_READ)
                continue
            try:
                data = source.recv(1 << 18)
            except ConnectionError:
                data = b""
            waiting.append((time.monotonic() + delay_s, other[source], data))
            if not data:
                chooser.unregister(source)
        while waiting and waiting[0][0] <= time.monotonic():
            _, sink, data = waiting.popleft()
            if data:
                sink.sendall(data)
                continue
            with suppress(OSError):  # the other end has closed the connection
                sink.shutdown(socket.SHUT_WR)


def measure(options: Options, hosts: Sequence[Host], network: Network, share: float) -> dict[str, float]:
    """Measure milliseconds of the machine and megabytes of replies per batch, in one network."""
    common = options.to_arguments()
    delays = [host.limit(network) for host in hosts]
    has_netem = all(delays)
    with ExitStack() as stack:
        servers = [host.start(stack, "serve", str(host.number), host.address, *common) for host in hosts]
        for server in servers:
            heard(server)
        trainers = []
        for host, peer in zip(hosts, reversed(hosts), strict=True):
            port, address = PORT, peer.address
            if network.delay_ms and not has_netem:
                delay = str(2 * network.delay_ms / 1e3)
                heard(host.start(stack, "relay", host.address, peer.address, delay, *common))
                port, address = RELAY_PORT, host.address
            words = ("train", str(host.number), f"tcp://{address}:{port}", str(share), *common)
            trainers.append(host.start(stack, *words))
        for trainer in trainers:
            heard(trainer)
        times, moved = [], []
        for _ in range(options.num_repeats):
            for trainer in trainers:
                print("go", file=trainer.stdin, flush=True)
            spans = [heard(trainer) for trainer in trainers]
            times.append(max(span[1] for span in spans) - min(span[0] for span in spans))
            moved.append(sum(span[2] for span in spans))
    num_batches = 2 * options.num_batches
    return {
        "ms_per_batch": sorted(times)[len(times) // 2] / num_batches * 1e3,
        "remote_mb_per_batch": sorted(moved)[len(moved) // 2] / num_batches / 1e6,
        "is_relayed": float(network.delay_ms > 0 and not has_netem),
    }


def prepare(options: Options) -> None:
    """Write the dataset of four parts, unless it exists."""
    path = options.parts_path(NUM_PARTS)
    try:
        open_dataset(path)
    except FormatError:
        write_parts(make_graph(options.scale), path, num_parts=NUM_PARTS, method="random")


def main() -> None:
    """Measure every network, without a cache and with one; or run one role."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="*", help="of a process that the benchmark starts")
    add_options(parser)
    values = parser.parse_args()
    options, role = to_options(values), values.role
    roles: dict[str, Callable[..., None]] = {
        "serve": lambda number, address: serve(options, int(number), address),
        "train": lambda number, location, share: train(options, int(number), location, float(share)),
        "relay": lambda address, target, delay: relay(address, target, float(delay)),
    }
    if role:
        roles[role[0]](*role[1:])
        return
    if INSIDE not in os.environ:
        prepare(options)
        inside = ["unshare", "--user", "--map-root-user", "--net"]
        if not shutil.which("tc") or not shutil.which("unshare") or not run(*inside, "true"):
            raise SystemExit("networks cannot be made here: unshare (user and network namespaces) and tc are needed")
        os.environ[INSIDE] = "1"
        os.execvp(inside[0], [*inside, sys.executable, "-m", "benchmarks.network", *options.to_arguments()])
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "link", "set", "bridge0", "up")
        hosts = [Host(number, stack) for number in range(2)]
        for share in SHARES:
            base = 0.0
            for network in NETWORKS:
                found = measure(options, hosts, network, share)
                base = base or found["ms_per_batch"]
                prefix = f"{network.name}_cache_{share:g}"
                figures |= {f"{prefix}_{name}": value for name, value in found.items()}
                figures[f"{prefix}_ratio"] = found["ms_per_batch"] / base
                print(f"{prefix}: {found['ms_per_batch']:.1f} ms, {found['ms_per_batch'] / base:.2f}", file=sys.stderr)
    settings = {"scale": options.scale, "threads_per_trainer": options.num_threads, "num_parts": NUM_PARTS}
    report("network", settings, figures)


if __name__ == "__main__":
    main()
