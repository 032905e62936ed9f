"""Clients of servers in network namespaces, whose links are cut, slow, or lose packets.

``python -m tests.transport.far CASE ROOT`` must run under ``unshare --user --map-root-user --net``: as root of an empty
network. It makes other networks, serves the dataset at ``ROOT`` there, and asks from its own. It prints its
measurements, and ends with status 0 on success and 77 if the system lacks what the case needs.
"""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hopstream.arrays import Column
from hopstream.dataset.layout import open_dataset
from hopstream.errors import StoreTimeout, StoreUnavailable
from hopstream.load.loader import NeighborLoader
from hopstream.store.contract import FetchRequest, SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from tests.load.graphs import flat
from tests.store.processes import END_S, ROOT, START_S, environment

SKIPPED = 77
ALARM_S = 100
"""Seconds after which a hanging driver and its children end."""
PORT = 7001
LINKS = ("node", "to", "node")
NUM_NODES, NUM_EDGES, WIDTH = 8192, 40_000, 256
"""A dataset of 8 MiB of features."""
CUT_S = 2.0


class Network:
    """A network beside this one, and the link to it."""

    def __init__(self, number: int) -> None:
        self._near, self._far = f"near{number}", f"far{number}"
        self.address = f"10.77.{number}.2"
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        try:
            self._wait_for_holder()
            holder = str(self._holder.pid)
            run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", holder)
            run("ip", "addr", "add", f"10.77.{number}.1/24", "dev", self._near)
            run("ip", "link", "set", self._near, "up")
            self.run("ip", "addr", "add", f"{self.address}/24", "dev", self._far)
            self.run("ip", "link", "set", self._far, "up")
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _wait_for_holder(self) -> None:
        """``unshare`` has left this network once the process has another name."""
        comm = Path(f"/proc/{self._holder.pid}/comm")
        ends = time.monotonic() + END_S
        while comm.read_text(encoding="ascii").strip() != "sleep":
            assert time.monotonic() < ends, "the second network is not there"
            time.sleep(0.01)

    @property
    def inside(self) -> list[str]:
        """Command prefix to run a command in the network."""
        return ["nsenter", "-t", str(self._holder.pid), "-n"]

    def run(self, *words: str) -> str:
        return run(*self.inside, *words)

    def cut(self, side: str = "far") -> None:
        """Take one end of the link down."""
        self._set(side, "down")

    def mend(self, side: str = "far") -> None:
        """Restore the link; flush the neighbour tables, in which failed look-ups are remembered."""
        self._set(side, "up")
        run("ip", "neigh", "flush", "dev", self._near)
        self.run("ip", "neigh", "flush", "dev", self._far)

    def _set(self, side: str, state: str) -> None:
        if side == "far":
            self.run("ip", "link", "set", self._far, state)
        else:
            run("ip", "link", "set", self._near, state)

    @contextmanager
    def cut_for(self, seconds: float, after_s: float, side: str = "far") -> Iterator[None]:
        """Cut the link some time after the block begins, and restore it before the block ends."""

        def work() -> None:
            time.sleep(after_s)
            self.cut(side)
            time.sleep(seconds)
            self.mend(side)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def pace(self, *words: str) -> None:
        """Limit the rate of answers."""
        self.run("tc", "qdisc", "replace", "dev", self._far, "root", "tbf", *words)

    @property
    def num_dropped(self) -> int:
        """Dropped packets of answers."""
        found = re.search(r"dropped (\d+)", self.run("tc", "-s", "qdisc", "show", "dev", self._far))
        return int(found[1]) if found else 0

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(END_S)


def run(*words: str) -> str:
    """Run a command; fail if its status is not 0."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@contextmanager
def started(network: Network, module: str, *words: object) -> Iterator[str]:
    """Run a server in another network; yields its address."""
    command = [*network.inside, sys.executable, "-m", module, *map(str, words), "--insecure"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True)
    assert process.stdout is not None
    try:
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        location = process.stdout.readline().strip() if poll.poll(1000 * START_S) else ""
        assert location, "the server did not start; what it said is on stderr"
        yield location
    finally:
        process.kill()
        process.wait(END_S)
        process.stdout.close()


class Scene:
    """A store behind a link, and the same one locally."""

    def __init__(self, root: Path) -> None:
        self._stack = ExitStack()
        self.root = root
        self.local = self._stack.enter_context(LocalStore(open_dataset(root)))
        self.network = self.add_network(1)
        self.far = ""

    def add_network(self, number: int) -> Network:
        network = Network(number)
        self._stack.callback(network.close)
        return network

    def serve(self) -> None:
        words = ("tests.store.serve", self.root, "--location", f"tcp://{self.network.address}:{PORT}")
        self.far = self._stack.enter_context(started(self.network, *words))

    def serve_batches(self, networks: Sequence[Network]) -> str:
        """Serve all parts in every network; return the addresses."""
        locations = ",".join(f"tcp://{network.address}:{PORT}" for network in networks)
        for number, network in enumerate(networks):
            self._stack.enter_context(
                started(
                    network, "tests.stream.serve", self.root, "--part", 0, "--all-parts", "--locations", locations,
                    "--number", number,
                )
            )  # fmt: skip
        return locations

    def store(self, timeout_s: float) -> RemoteStore:
        return self._stack.enter_context(RemoteStore(self.far, StoreSettings(timeout_s=timeout_s, prefer_local=False)))

    def close(self) -> None:
        self._stack.close()


ALL_IDS = np.random.default_rng(3).permutation(NUM_NODES).astype(np.int64)


def large(store: Any) -> Column:
    """8 MiB of features."""
    (columns,) = store.fetch([FetchRequest(entity="node", names=("x",), ids=ALL_IDS)])
    found: Column = columns["x"]
    return found


def small(store: Any, number: int) -> list[list[int]]:
    """A few neighbours."""
    ids = np.arange(5, dtype=np.int64) + number
    request = SampleRequest(edge_type=LINKS, direction="in", ids=ids, count=3, rng_seed=number, wants_edge_ids=True)
    (reply,) = store.sample([request])
    return [np.asarray(part).tolist() for part in (reply.counts, reply.neighbor_ids, reply.edge_ids)]


def assert_large(scene: Scene, store: RemoteStore) -> None:
    got, wanted = large(store), large(scene.local)
    assert np.array_equal(np.asarray(got), np.asarray(wanted)), "the answer is another one"


def timed(what: Callable[[], object]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def comes_back(scene: Scene) -> None:
    """Cut the link in the middle of a large answer, at either end, and restore it 2 s later."""
    scene.serve()
    scene.network.pace("rate", "40mbit", "burst", "32kbit", "latency", "400ms")
    for side in ("far", "near"):
        store = scene.store(20.0)
        small(store, 0)
        with scene.network.cut_for(CUT_S, 0.5, side):
            took_s = timed(partial(assert_large, scene, store))
        assert CUT_S < took_s < 20.0, f"the answer came in {took_s:.1f} s; the cut was not in its middle"
        say(f"the {side} end cut for {CUT_S:g} s: 8 MiB at 40 Mbit/s in {took_s:.2f} s")
        assert small(store, 1) == small(scene.local, 1)


def failure(store: RemoteStore) -> tuple[float, Exception]:
    """Seconds and error with which a call over a cut link ends."""
    began = time.monotonic()
    try:
        large(store)
    except (StoreTimeout, StoreUnavailable) as error:
        return time.monotonic() - began, error
    raise AssertionError("the answer came over a link that was cut")


def stays_cut(scene: Scene) -> None:
    """Cut the link in the middle of an answer: the deadline is kept, and all is well once it is back."""
    scene.serve()
    scene.network.pace("rate", "40mbit", "burst", "32kbit", "latency", "400ms")
    for side in ("far", "near"):
        store = scene.store(3.0)
        small(store, 0)
        cut = threading.Timer(0.5, scene.network.cut, [side])
        cut.start()
        took_s, error = failure(store)
        assert isinstance(error, StoreTimeout), error
        assert 2.9 < took_s < 4.0, f"a deadline of 3 s was kept in {took_s:.2f} s"
        say(f"the {side} end stays cut: StoreTimeout after {took_s:.2f} s of 3 s")
        took_s, error = failure(store)  # it cannot even connect, which the system may notice
        assert isinstance(error, StoreTimeout) or "no network route leads" in str(error), error
        assert took_s < 4.0, f"a deadline of 3 s was kept in {took_s:.2f} s"
        say(f"the next call: {type(error).__name__} after {took_s:.2f} s of 3 s")
        cut.join()
        scene.network.mend(side)
        assert_large(scene, store)
        assert small(store, 1) == small(scene.local, 1)


def narrow(scene: Scene) -> None:
    """At 10 Mbit/s a large answer is right, and small calls of other threads proceed beside it."""
    scene.serve()
    scene.network.pace("rate", "10mbit", "burst", "32kbit", "latency", "400ms")
    store = scene.store(30.0)
    hasty = store.with_timeout(4.0)
    wanted = [small(scene.local, number) for number in range(1000)]
    waits: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(timed, lambda: assert_large(scene, store))
        while not whole.done():
            number = len(waits)
            began = time.monotonic()
            assert small(hasty, number) == wanted[number]
            waits.append(time.monotonic() - began)
        took_s = whole.result()
    assert len(waits) >= 5
    say(f"8 MiB at 10 Mbit/s in {took_s:.2f} s; {len(waits)} small calls beside it, the slowest in {max(waits):.2f} s")
    assert took_s > 5.0


def lossy(scene: Scene) -> None:
    """Packets are lost, as the link's queue has room for few."""
    scene.serve()
    scene.network.pace("rate", "60mbit", "burst", "8kb", "limit", "12kb")
    store = scene.store(60.0)
    took_s = timed(lambda: assert_large(scene, store))
    for number in range(50):
        assert small(store, number) == small(scene.local, number)
    dropped = scene.network.num_dropped
    if dropped < 20:
        say(f"only {dropped} packets were lost: this kernel has no queue that loses them")
        sys.exit(SKIPPED)
    say(f"8 MiB over a link that lost {dropped} packets in {took_s:.2f} s")


def loader(source: object) -> NeighborLoader:
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "collate": "numpy", "num_threads": 1}
    return NeighborLoader(source, [4, 3], ("node", np.arange(2048)), **options)


def batches_of(source: object, at: dict[int, Callable[[], None]] | None = None) -> list[Any]:
    """All batches of an epoch; ``at`` maps a batch number to a function called before it is taken."""
    found = []
    with loader(source) as epoch:
        for number, batch in enumerate(epoch):
            found.append(repr(flat(batch)))
            (at or {}).get(number, lambda: None)()
    return found


def assert_batches(got: list[Any], wanted: list[Any]) -> None:
    assert len(got) == len(wanted) == 32
    assert got == wanted, "a batch is another one"


def epoch_over_a_cut(scene: Scene) -> None:
    """An epoch over a link that is cut and comes back has the batches that a local loader makes."""
    wanted = batches_of(scene.root)
    location = scene.serve_batches([scene.network])
    graph = RemoteGraph(location, settings=StoreSettings(timeout_s=10.0, prefer_local=False), timeout_s=40.0)

    def cut_a_while() -> None:
        scene.network.cut()
        threading.Timer(CUT_S, scene.network.mend).start()

    began = time.monotonic()
    assert_batches(batches_of(graph, {5: cut_a_while, 20: cut_a_while}), wanted)
    took_s = time.monotonic() - began
    assert took_s > CUT_S
    say(f"an epoch over a link that was cut twice for {CUT_S:g} s in {took_s:.2f} s")


def replica_takes_over(scene: Scene) -> None:
    """One of two servers with own networks is cut off in mid-epoch; the other one makes all batches."""
    wanted = batches_of(scene.root)
    networks = [scene.network, scene.add_network(2)]
    locations = scene.serve_batches(networks)
    graph = RemoteGraph(locations, settings=StoreSettings(timeout_s=10.0, prefer_local=False), timeout_s=40.0)
    began = time.monotonic()
    got = batches_of(graph, {5: scene.network.cut})
    assert_batches(got, wanted)
    say(f"an epoch of which one server of two was cut off in {time.monotonic() - began:.2f} s")
    scene.network.mend()
    networks[1].cut()
    began = time.monotonic()
    graph = RemoteGraph(locations.split(",", 1)[0], settings=StoreSettings(timeout_s=10.0, prefer_local=False))
    assert_batches(batches_of(graph), wanted)
    say(f"an epoch of the server that is back in {time.monotonic() - began:.2f} s")


CASES = {one.__name__: one for one in (comes_back, stays_cut, narrow, lossy, epoch_over_a_cut, replica_takes_over)}


def give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the case took more than {ALARM_S} s")


def main(arguments: Sequence[str]) -> None:
    name, root = arguments
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(ALARM_S)
    run("ip", "link", "set", "lo", "up")
    scene = Scene(Path(root))
    try:
        CASES[name](scene)
    finally:
        scene.close()


if __name__ == "__main__":
    main(sys.argv[1:])
