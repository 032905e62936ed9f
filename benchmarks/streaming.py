"""How many batches per second does a trainer get from two servers that sample for it?

Beside it, in turns, what the same two processes reach without channels, credit and scheduling: each samples the batch
that it is asked for in the call itself and sends the same bytes over the same transport. Both servers map the whole
dataset, so that the difference is the cost of serving, not of asking other servers.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.harness import BATCH_SIZE, FANOUT, NUM_FEATURES, Options, peak_rss_bytes, read_options, report
from hopstream.load.buffers import BufferPool
from hopstream.load.loader import NeighborLoader
from hopstream.partition.layout import open_dataset
from hopstream.schema import NODE
from hopstream.store import open_store
from hopstream.store.channel import Channel
from hopstream.store.local import LocalStore
from hopstream.store.security import Location
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import Bytes, Frame, encode_frame
from hopstream.stream.client import RemoteGraph
from hopstream.stream.messages import decode_batch, encode_batch
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits

NUM_SERVERS = 2
NUM_WARMUPS = 6
WAIT_S = 600.0
LOADING: dict[str, Any] = {
    "seeds": "train", "batch_size": BATCH_SIZE, "shuffle": True, "node_features": {NODE: ["x"]}, "edge_keys": False,
    "collate": "numpy",
}  # fmt: skip


def serve(options: Options, part: int, pipe: Connection) -> None:
    """Serve one part, and sample in both ways, until the other end of the pipe says so."""
    folder = options.parts_path(NUM_SERVERS)
    service = SamplingService(lambda: open_store(folder), SamplingLimits(threads=1))
    whole = open_store(folder)
    loader = NeighborLoader(whole, FANOUT, **LOADING, num_threads=0)
    maker = loader.maker()

    def make(frame: Frame) -> Iterator[Bytes]:
        yield encode_batch(maker.make(frame.header["epoch"], frame.header["step"]))

    with LocalStore(open_dataset(folder), [part]) as store:
        server = StoreServer(store, operations={**service.operations, "make": make}, path=folder)
        pipe.send(server.location)
        if pipe.poll(WAIT_S):
            pipe.recv()
        pipe.send(peak_rss_bytes())
        service.close()
        server.close()
    whole.close()


def take_streamed(loader: NeighborLoader) -> Callable[[int], int]:
    """Take batches of a loader whose source is a ``RemoteGraph``; how many rows they had."""
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
    """Have every batch made in the call that asks for it, one thread per server; how many rows they had."""
    channels = [Channel(Location.parse(location), StoreSettings()) for location in locations]
    buffers = BufferPool(1 << 30)
    taken = [0]

    def ask(number: int, steps: range, rows: list[int]) -> None:
        for step in steps:
            reader = _Reader(buffers)
            epoch, in_epoch = divmod(step, num_steps)
            request = encode_frame({"op": "make", "dataset": dataset, "epoch": epoch, "step": in_epoch})
            channels[number].call(request, WAIT_S, "make", reader)
            rows.append(reader.num_rows)

    def take(num_batches: int) -> int:
        rows: list[int] = []
        first = taken[0]
        taken[0] += num_batches
        threads = [
            threading.Thread(target=ask, args=(n, range(first + n, taken[0], NUM_SERVERS), rows))
            for n in range(NUM_SERVERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        return sum(rows)

    return take


class _Reader:
    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self.num_rows = 0

    def take(self, frame: Frame) -> None:
        self.num_rows += len(decode_batch(frame, self._buffers).node_keys[NODE])


def main() -> None:
    """Start two servers, and take batches from them in both ways by turns."""
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
        graph = RemoteGraph(",".join(locations))
        loader = stack.enter_context(
            NeighborLoader(graph, FANOUT, **LOADING, num_threads=NUM_SERVERS, prefetch=2 * NUM_SERVERS)
        )
        ways = {
            "streamed": take_streamed(loader),
            "called": take_called(locations, loader.store.dataset_id, len(loader)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        rows: dict[str, int] = dict.fromkeys(ways, 0)
        for take in ways.values():
            take(NUM_WARMUPS)
        for _ in range(options.num_repeats):
            for name, take in ways.items():
                started = time.perf_counter()
                rows[name] += take(options.num_batches)
                seconds[name].append(time.perf_counter() - started)
        loader.close()
        for pipe in pipes:
            pipe.send("close")
        server_peaks = [_receive(pipe) for pipe in pipes]
    ratios = [called / streamed for called, streamed in zip(seconds["called"], seconds["streamed"], strict=True)]
    num_batches = options.num_batches
    figures = {
        "ms_per_batch": statistics.median(seconds["streamed"]) / num_batches * 1e3,
        "called_ms_per_batch": statistics.median(seconds["called"]) / num_batches * 1e3,
        "rows_per_batch": rows["streamed"] / num_batches / options.num_repeats,
        "share_of_called": float(np.median(ratios)),
        "server_peak_bytes": float(max(int(str(peak)) for peak in server_peaks)),
    }
    settings = {
        "scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "num_features": NUM_FEATURES,
        "servers": NUM_SERVERS, "threads_per_server": 1,
    }  # fmt: skip
    report("streaming", settings, figures)


def _receive(pipe: Connection) -> object:
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"a process of the benchmark said nothing in {WAIT_S:.0f} s")
    return pipe.recv()


if __name__ == "__main__":
    main()
