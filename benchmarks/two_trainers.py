"""Measures what a batch costs where two trainers share a machine, each with half of the graph.

Each trainer maps its own part and asks a server, over the loopback, for the other. Parts are assigned at
random, so half of every frontier and half of all features come over the wire, but for the rows that a cache keeps:
``--cache=0.05`` gives it room for 5 % of all rows. The figure is the time of the machine: how long both together took,
by the batches of both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from benchmarks.harness import BATCH_SIZE, FANOUT, NUM_FEATURES, Options, Timing, add_options, report, to_options
from benchmarks.loader import endless
from benchmarks.processes import peak_rss_bytes
from hopstream.dataset.layout import open_dataset
from hopstream.load.loader import NeighborLoader
from hopstream.schema import NODE
from hopstream.store.contract import KEY, KEY_SCHEMA
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.row_cache import bytes_for
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings

NUM_TRAINERS = 2
NUM_WARMUPS = 5
NUM_AHEAD = 250_000
"""Distinct remote ids of 16 batches, about."""
WAIT_S = 600.0


def serve(options: Options, part: int, pipe: Connection) -> None:
    """Serve one part until the other end of the pipe says so."""
    with LocalStore(open_dataset(options.parts_path(NUM_TRAINERS)), [part]) as store:
        server = StoreServer(store)
        pipe.send(server.location)
        if pipe.poll(WAIT_S):
            pipe.recv()
        pipe.send(peak_rss_bytes())
        server.close()


def cache_bytes(store: LocalStore, share: float) -> int:
    """Memory for a share of all rows, with their keys, and for the ids of the batches that are sampled ahead."""
    columns = {KEY: KEY_SCHEMA, "x": store.schema.nodes[NODE]["x"]}
    return bytes_for(columns, int(share * store.book.num_ids(NODE)), NUM_AHEAD) if share else 0


def train(options: Options, share: float, rank: int, location: str, barrier: Barrier, pipe: Connection) -> None:
    """Take batches of one rank; send the moments at which each repetition began and ended."""
    near = LocalStore(open_dataset(options.parts_path(NUM_TRAINERS)), [rank])
    settings = StoreSettings(prefer_local=False, timeout_s=60.0, cache_bytes=cache_bytes(near, share))
    far = RemoteStore(location, settings)
    with RoutedStore([near, far], settings) as store, NeighborLoader(
        store, FANOUT, seeds="train", batch_size=BATCH_SIZE, shuffle=True, node_features={NODE: ["x"]}, edge_keys=False,
        num_threads=options.num_threads, rank=rank, world_size=NUM_TRAINERS,
    ) as loader:  # fmt: skip
        batches = endless(loader)
        for _ in range(NUM_WARMUPS):
            next(batches)
        before = store.traffic()["fetch"]
        spans = []
        num_edges = num_rows = 0
        for _ in range(options.num_repeats):
            barrier.wait(WAIT_S)
            started = time.monotonic()
            for _ in range(options.num_batches):
                batch = next(batches)
                num_edges += batch.edge_index.shape[1]
                num_rows += batch.x.shape[0]
            spans.append((started, time.monotonic()))
        after = store.traffic()["fetch"]
    rows = after.remote_ids - before.remote_ids, after.cache_ids - before.cache_ids
    pipe.send((spans, num_edges, num_rows, peak_rss_bytes(), rows))


def main() -> None:
    """Start two servers and two trainers, and wait for the trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--cache", type=float, default=0.0, help="share of all rows that a cache has room for")
    values = parser.parse_args()
    options, share = to_options(values), values.cache
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(NUM_TRAINERS)
    with ExitStack() as stack:

        def start(target: object, *arguments: object) -> Connection:
            here, there = context.Pipe()
            process = context.Process(target=target, args=(options, *arguments, there), daemon=True)
            process.start()
            there.close()  # so that the end of the process is the end of the pipe
            stack.callback(process.join, WAIT_S)
            return here

        servers = [start(serve, part) for part in range(NUM_TRAINERS)]
        locations = [_receive(pipe) for pipe in servers]
        trainers = [start(train, share, rank, locations[1 - rank], barrier) for rank in range(NUM_TRAINERS)]
        answers = [_receive(pipe) for pipe in trainers]
        for pipe in servers:
            pipe.send("close")
        server_peaks = [_receive(pipe) for pipe in servers]
    spans = zip(*(spans for spans, *_ in answers), strict=True)
    timing = Timing(tuple(max(end for _, end in span) - min(start for start, _ in span) for span in spans))
    num_batches = NUM_TRAINERS * options.num_batches
    num_taken = num_batches * options.num_repeats
    edges_per_batch = sum(num_edges for _, num_edges, *_ in answers) / num_taken
    rows_per_batch = sum(num_rows for _, _, num_rows, *_ in answers) / num_taken
    settings = {
        "scale": options.scale, "batch_size": BATCH_SIZE, "fanout": list(FANOUT), "num_features": NUM_FEATURES,
        "threads_per_trainer": options.num_threads, "assignment": "random", "cache_share": share,
    }  # fmt: skip
    figures = {
        "ms_per_batch": timing.median_s / num_batches * 1e3,
        "min_ms_per_batch": timing.min_s / num_batches * 1e3,
        "edges_per_batch": edges_per_batch,
        "rows_per_batch": rows_per_batch,
        "edges_per_s": edges_per_batch * num_batches / timing.median_s,
        "saved_rows": sum(rows[1] for *_, rows in answers) / max(1, sum(sum(rows) for *_, rows in answers)),
        "rows_per_s": rows_per_batch * num_batches / timing.median_s,
        "trainer_peak_bytes": float(max(peak for _, _, _, peak, _ in answers)),
        "server_peak_bytes": float(max(server_peaks)),
    }
    report("two_trainers", settings, figures)


def _receive(pipe: Connection) -> object:
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"a process of the benchmark said nothing in {WAIT_S:.0f} s")
    return pipe.recv()


if __name__ == "__main__":
    main()
