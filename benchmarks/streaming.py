"""Measures batches per second that a trainer gets from two servers that sample for it.

The baseline, in turns, is the same two processes without channels, credit and scheduling: a server samples the batch
inside the call and sends the same bytes over the same transport. As many threads call as the loader has, so each server
has another call while a reply is on its way, and both cores are busy in both variants. Both servers map the whole
dataset, so the difference is the cost of serving, not of remote requests.

Servers make batches ahead, so a turn of the loader ends when as many batches are ready as at its beginning. Processor
time equals wall time on an idle machine, and is valid on a busy one too.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.harness import BATCH_SIZE, FANOUT, NUM_FEATURES, Options, read_options, report
from benchmarks.processes import peak_rss_bytes
from hopstream.buffers import BufferPool
from hopstream.dataset.layout import open_dataset
from hopstream.load.epochs import Maker
from hopstream.load.loader import NeighborLoader
from hopstream.schema import NODE
from hopstream.store import open_store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.stream.messages import decode_batch, encode_batch
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.connection import Connection as ServerConnection
from hopstream.transport.connection import OneFrame
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.security import ClientSecurity

NUM_SERVERS = 2
OVERLAP = 2
"""Concurrent calls per server."""
NUM_THREADS = OVERLAP * NUM_SERVERS
"""Threads that take batches, in both variants."""
NUM_WARMUPS = 12
WAIT_S = 600.0
LOADING: dict[str, Any] = {
    "seeds": "train", "batch_size": BATCH_SIZE, "shuffle": True, "node_features": {NODE: ["x"]}, "edge_keys": False,
    "collate": "numpy",
}  # fmt: skip


def serve(options: Options, part: int, pipe: Connection) -> None:
    """Serve one part, and sample in both variants, until the parent sends a message."""
    folder = options.parts_path(NUM_SERVERS)
    service = SamplingService(lambda: open_store(folder), SamplingLimits(threads=1))
    whole = open_store(folder)
    loader = NeighborLoader(whole, FANOUT, **LOADING, num_threads=0)
    makers: SimpleQueue[Maker] = SimpleQueue()
    for _ in range(OVERLAP):
        makers.put(loader.maker())

    def make(frame: Frame) -> Iterator[Frame]:
        maker = makers.get(timeout=WAIT_S)
        try:
            message = encode_batch(maker.make(frame.header["epoch"], frame.header["step"]))
        finally:
            makers.put(maker)
        yield Frame(message.header, message.arrays, is_last=True)

    with LocalStore(open_dataset(folder), [part]) as store:
        server = StoreServer(store, operations={**service.operations, "make": make}, path=folder)
        pipe.send(server.location)
        while pipe.poll(WAIT_S) and pipe.recv() == "settle":
            settle(service)
            pipe.send(time.process_time())
        pipe.send(peak_rss_bytes())
        service.close()
        server.close()
    whole.close()


def settle(service: SamplingService) -> None:
    """Wait until the server makes no batch and has none to make, for longer than between two requests."""
    num_quiet = 0
    while num_quiet < 3:
        totals = service.report()["totals"]
        num_quiet = 0 if totals["num_runnable"] or totals["num_in_flight"] else num_quiet + 1
        time.sleep(0.002)


def take_streamed(loader: NeighborLoader) -> Callable[[int], int]:
    """Make a function that takes batches of a ``RemoteGraph``'s loader and counts their rows."""
    batches: list[Iterator[Any]] = []

    def take(num_batches: int) -> int:
        num_rows = 0
        for _ in range(num_batches):
            batch = next(batches[0], None) if batches else None
            if batch is None:
                batches[:] = [iter(loader)]
                batch = next(batches[0])
            num_rows += len(batch.node_keys[NODE])
        return num_rows

    return take


def take_called(locations: list[str], dataset: str, num_steps: int) -> Callable[[int], int]:
    """Make a function that has batches made inside calls, by several threads, and counts their rows."""
    connections = [ServerConnection(Location.parse(location), ClientSecurity()) for location in locations]
    buffers = BufferPool(1 << 30)
    taken = [0]

    def ask(steps: SimpleQueue[int], rows: list[int]) -> None:
        """Take batches that no other thread has taken, from the servers in turn."""
        with suppress(Empty):
            while True:
                step = steps.get_nowait()
                epoch, in_epoch = divmod(step, num_steps)
                request = Frame({"op": "make", "dataset": dataset, "epoch": epoch, "step": in_epoch})
                answer = connections[step % NUM_SERVERS].ask(request, WAIT_S, "make", OneFrame(buffers.take))
                rows.append(len(decode_batch(answer, buffers).node_keys[NODE]))

    def take(num_batches: int) -> int:
        rows: list[int] = []
        steps: SimpleQueue[int] = SimpleQueue()
        for step in range(taken[0], taken[0] + num_batches):
            steps.put(step)
        taken[0] += num_batches
        threads = [threading.Thread(target=ask, args=(steps, rows)) for _ in range(NUM_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        if len(rows) < num_batches:
            raise RuntimeError(f"{num_batches - len(rows)} of {num_batches} batches did not come")
        return sum(rows)

    return take


def settled_cpu_s(pipes: Sequence[Connection]) -> float:
    """Processor seconds of this process and the servers, after these have finished all batches ahead."""
    for pipe in pipes:
        pipe.send("settle")
    return sum(float(str(_receive(pipe))) for pipe in pipes) + time.process_time()


def share_of(seconds: Mapping[str, Sequence[float]]) -> float:
    """Speed of streaming relative to calls: the median over adjacent turns."""
    pairs = zip(seconds["called"], seconds["streamed"], strict=True)
    return statistics.median(called / streamed for called, streamed in pairs)


def main() -> None:
    """Start two servers, and take batches from them in both variants by turns."""
    options = read_options(__doc__ or "")
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for part in range(NUM_SERVERS):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(options, part, there), daemon=True)
            process.start()
            there.close()
            stack.callback(process.join, WAIT_S)
            pipes.append(here)
        locations = [str(_receive(pipe)) for pipe in pipes]
        graph = RemoteGraph(",".join(locations), settings=StoreSettings(cache_bytes=0))  # whole batches
        loader = stack.enter_context(
            NeighborLoader(graph, FANOUT, **LOADING, num_threads=NUM_THREADS, prefetch=NUM_THREADS)
        )
        ways = {
            "streamed": take_streamed(loader),
            "called": take_called(locations, loader.store.dataset_id, len(loader)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
        rows: dict[str, int] = dict.fromkeys(ways, 0)
        for take in ways.values():
            take(NUM_WARMUPS)
        for _ in range(options.num_repeats):
            for name, take in ways.items():
                cpu_before, started = settled_cpu_s(pipes), time.perf_counter()
                rows[name] += take(options.num_batches)
                cpu_after = settled_cpu_s(pipes)
                seconds[name].append(time.perf_counter() - started)
                cpu_seconds[name].append(cpu_after - cpu_before)
        loader.close()
        for pipe in pipes:
            pipe.send("close")
        server_peaks = [_receive(pipe) for pipe in pipes]
    num_batches = options.num_batches
    figures = {
        "ms_per_batch": statistics.median(seconds["streamed"]) / num_batches * 1e3,
        "called_ms_per_batch": statistics.median(seconds["called"]) / num_batches * 1e3,
        "rows_per_batch": rows["streamed"] / num_batches / options.num_repeats,
        "share_of_called": share_of(seconds),
        "cpu_ms_per_batch": statistics.median(cpu_seconds["streamed"]) / num_batches * 1e3,
        "called_cpu_ms_per_batch": statistics.median(cpu_seconds["called"]) / num_batches * 1e3,
        "share_of_called_by_cpu": share_of(cpu_seconds),
        "server_peak_bytes": float(max(int(str(peak)) for peak in server_peaks)),
    }
    settings = {
        "scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "num_features": NUM_FEATURES,
        "servers": NUM_SERVERS, "threads_per_server": 1, "threads": NUM_THREADS,
    }  # fmt: skip
    report("streaming", settings, figures)


def _receive(pipe: Connection) -> object:
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"a process of the benchmark said nothing in {WAIT_S:.0f} s")
    return pipe.recv()


if __name__ == "__main__":
    main()
