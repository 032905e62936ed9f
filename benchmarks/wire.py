"""Measures small calls, long streams and one-seed batches over the network, with and without TLS.

A small call requests the degree of one node; a stream fetches rows of 400 bytes in order. A one-seed batch is a call
``loader([seed])`` for one node that has neighbors, and comes as a ``Data`` with features. Every seed was requested once
before, in another epoch, so its rows may be in the cache. Its servers hold one part each; figures without servers are
of the folder. Processor time is the sum of client and server.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil

from benchmarks.harness import RNG_SEED, Options, read_options, report
from hopstream.arrays import IntArray
from hopstream.dataset.layout import open_dataset
from hopstream.load.loader import NeighborLoader
from hopstream.schema import NODE
from hopstream.store.contract import KEY, FetchRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.store.authority import Authority

NUM_CALLS = 2000
NUM_SEEDS = 2000
MAX_ROWS = 200_000
FANOUT = (10, 10)
WAIT_S = 300.0


def serve(root: Path, part: int, security: ServerSecurity, pipe: Connection) -> None:
    """Serve one part until the parent sends a message."""
    with LocalStore(open_dataset(root), [part]) as store:
        scheme = "tls" if security.has_tls else "tcp"
        server = StoreServer(store, f"{scheme}://127.0.0.1:0", security=security)
        pipe.send(server.location)
        if pipe.poll(WAIT_S):
            pipe.recv()
        server.close()


def measure(options: Options, seeds: IntArray, security: ServerSecurity, settings: StoreSettings) -> dict[str, float]:
    """Measure one kind of connection."""
    root, context = options.parts_path(2), multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        locations, processes = [], []
        for part in range(2):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(root, part, security, there), daemon=True)
            process.start()
            there.close()  # so that a server that cannot start ends the wait
            stack.callback(process.join, WAIT_S)
            try:
                locations.append(str(here.recv()) if here.poll(WAIT_S) else "")
            except EOFError:
                raise SystemExit(f"the server of part {part} did not start; its error is above") from None
            stack.callback(here.send, "close")
            processes.append(psutil.Process(process.pid))
        store = stack.enter_context(RemoteStore(locations[0], settings))
        figures = _calls(store, processes[0], options.num_repeats)
        return figures | _one_seed("one_seed", ",".join(locations), seeds, settings)


def _one_seed(
    name: str, source: str | Path, seeds: IntArray, settings: StoreSettings | None = None
) -> dict[str, float]:
    """Measure the time of batches of one seed: the median and the 99th percentile, in ms."""
    with NeighborLoader(source, FANOUT, seeds=(NODE, seeds), num_threads=0, store_settings=settings) as loader:
        _moments(loader)
        loader.set_epoch(1)
        moments_ms = np.array(_moments(loader)) * 1e3
    return {f"{name}_ms": float(np.median(moments_ms)), f"{name}_p99_ms": float(np.percentile(moments_ms, 99))}


def _connected(root: Path) -> IntArray:
    """Choose random nodes that have in-edges."""
    with LocalStore(open_dataset(root)) as store:
        (edge_type,) = store.schema.edges
        ids = np.random.default_rng(RNG_SEED).permutation(store.book.num_ids(NODE))[: 10 * NUM_SEEDS]
        of_id = store.fetch([FetchRequest(entity=NODE, names=(KEY,), ids=ids)])[0][KEY]
        return np.asarray(of_id)[store.degrees(edge_type, "in", ids) > 0][:NUM_SEEDS]


def _calls(store: RemoteStore, server: psutil.Process, num_repeats: int) -> dict[str, float]:
    edge_type = next(iter(store.schema.edges))
    first, stop = (int(bound) for bound in store.book.offsets(NODE)[:2])
    one, ids = np.array([first]), np.arange(first, min(stop, first + MAX_ROWS))
    for _ in range(NUM_CALLS // 10):
        store.degrees(edge_type, "in", one)
    calls = []
    for _ in range(NUM_CALLS):
        started = time.perf_counter()
        store.degrees(edge_type, "in", one)
        calls.append(time.perf_counter() - started)
    rows = store.fetch([FetchRequest(entity=NODE, names=("x",), ids=ids)])[0]["x"]
    request = FetchRequest(entity=NODE, names=("x",), ids=ids, out={"x": np.asarray(rows)})
    streams, busy = [], []
    for _ in range(3 * num_repeats):
        before, started = _busy_s(server), time.perf_counter()
        store.fetch([request])
        streams.append(time.perf_counter() - started)
        busy.append(_busy_s(server) - before)
    num_bytes = np.asarray(rows).nbytes
    return {
        "small_call_ms": statistics.median(calls) * 1e3,
        "stream_gb_per_s": num_bytes / statistics.median(streams) / 1e9,
        "stream_cpu_s_per_gb": sum(busy) / len(busy) / num_bytes * 1e9,
    }


def _busy_s(server: psutil.Process) -> float:
    times = server.cpu_times()
    return float(times.user + times.system) + time.process_time()


def _moments(loader: NeighborLoader) -> list[float]:
    """Seconds of a call for each seed."""
    found = []
    for position in range(len(loader.dataset)):
        started = time.perf_counter()
        loader([position])
        found.append(time.perf_counter() - started)
    return found


def main() -> None:
    """Measure without TLS, then with it."""
    options = read_options(__doc__ or "")
    authority = Authority("benchmark")
    own = authority.issue("localhost")
    secure = ServerSecurity(certificate=own.certificate, private_key=own.key)
    seeds = _connected(options.parts_path(2))
    figures = _one_seed("folder_one_seed", options.parts_path(2), seeds)
    figures |= measure(options, seeds, ServerSecurity(), StoreSettings(prefer_local=False))
    trusting = StoreSettings(prefer_local=False, security=ClientSecurity(roots=authority.root))
    figures |= {f"tls_{name}": value for name, value in measure(options, seeds, secure, trusting).items()}
    report("wire", {"scale": options.scale, "row_bytes": 400, "threads": 1}, figures)


if __name__ == "__main__":
    main()
