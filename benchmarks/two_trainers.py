"""Measures batches of two trainers that share a machine, each with half of the graph.

Each trainer maps its own part, and a server on loopback has the other. Parts are assigned at random, so half of every
frontier and half of all features come from the server, except cached rows: ``--cache=0.05`` gives the cache room for
5 % of all rows, or somewhat more. The figure is the time of the machine: the wall time of both trainers, divided by the
number of all batches. ``--optimum`` also reports the share of remote rows that the cache saved, and the share of an
optimal cache with as much room. With ``--sampled``, servers sample, and trainers hold no part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, cast

import numpy as np

from benchmarks.harness import (
    BATCH_SIZE,
    FANOUT,
    NUM_FEATURES,
    Figures,
    Options,
    Timing,
    add_options,
    report,
    to_options,
)
from benchmarks.loader import endless
from benchmarks.optimum import best_hits
from benchmarks.processes import peak_rss_bytes
from hopstream.arrays import IntArray
from hopstream.dataset.layout import open_dataset
from hopstream.load.loader import NeighborLoader
from hopstream.schema import NODE
from hopstream.store.cluster import ServerEntry, open_cluster, parse_locations
from hopstream.store.contract import KEY, KEY_SCHEMA, FetchRequest, Pending, Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.row_cache import bytes_for
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits

NUM_TRAINERS = 2
NUM_WARMUPS, LOOK_AHEAD = 5, 24
NUM_AHEAD = 50_000
"""Remote ids without cached rows of 16 batches, measured; their index entries take memory of the cache too."""
WAIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caching:
    """Settings of the cache of rows.

    Attributes:
        share: Share of all rows that the cache has room for; 0 for no cache.
        look_ahead: Batches that are sampled ahead.
        is_sampled: Servers sample, and trainers hold no part.
        num_warmups: Batches of each trainer before the first measured batch.
        wants_optimum: Also compute how many rows an optimal cache would have saved.
    """

    share: float
    look_ahead: int
    is_sampled: bool
    num_warmups: int
    wants_optimum: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FarRows:
    """Remote rows that the measured batches of one trainer needed.

    Attributes:
        num_needed: Number of rows, each once per batch.
        num_saved: Hits of the cache.
        num_best: Hits of an optimal cache; None if not computed.
        room_share: Capacity of the optimal cache as a share of all rows: the largest number of rows that the cache
            held, or its nominal capacity if that is larger.
    """

    num_needed: int
    num_saved: int
    num_best: int | None = None
    room_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """One fetch of a batch's rows.

    Attributes:
        far_ids: int64[n], the remote ids.
        num_saved: Cache hits of all earlier fetches.
        num_held: Rows in the cache before the fetch.
    """

    far_ids: IntArray
    num_saved: int
    num_held: int


class RecordingStore(RoutedStore):
    """Store that records every fetch. With one thread in the trainer, fetches do not overlap."""

    def __init__(self, near: LocalStore, far: RemoteStore, settings: StoreSettings) -> None:
        """Route to the local store of the trainer's part and to the remote store of the other part."""
        super().__init__([near, far], settings)
        self._near_parts = near.parts
        self.fetched: list[Fetched] = []

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Any]]]:
        """Fetch the rows of a batch, which are all of one type, and record the fetch."""
        (request,) = requests
        parts = np.searchsorted(self.book.offsets(NODE), request.ids, side="right") - 1
        num_held = 0 if self.cache is None else self.cache.counts().num_rows
        far_ids = request.ids[~np.isin(parts, self._near_parts)]
        self.fetched.append(Fetched(far_ids, self.traffic()["fetch"].cache_ids, num_held))
        return super().submit_fetch(requests)

    def far_rows(self, first: int, stop: int, room: int) -> FarRows:
        """Count the rows that the cache and an optimal cache saved in the fetches ``first`` to ``stop - 1``.

        Args:
            first: The first counted fetch; the optimal cache also sees earlier ones.
            stop: One past the last; one more fetch must follow.
            room: Least capacity of the optimal cache in rows.
        """
        room = max(room, *(one.num_held for one in self.fetched[first : stop + 1]))
        far_ids = [one.far_ids for one in self.fetched[:stop]]
        return FarRows(
            num_needed=sum(map(len, far_ids[first:])),
            num_saved=self.fetched[stop].num_saved - self.fetched[first].num_saved,
            num_best=int(best_hits(far_ids, room)[first:].sum()),
            room_share=room / self.book.num_ids(NODE),
        )


def serve(options: Options, part: int, pipe: Connection) -> None:
    """Serve one part, and sample, until the parent sends a message; its first message has all locations."""
    folder = options.parts_path(NUM_TRAINERS)
    settings = StoreSettings(prefer_local=False, timeout_s=60.0, cache_bytes=0)
    locations: list[str] = []

    def open_graph() -> Store:
        own = ServerEntry(location=locations[part], parts=(part,), path=folder)
        return open_cluster(parse_locations(",".join(locations)), settings, own=own)

    service = SamplingService(open_graph, SamplingLimits(threads=1))
    with LocalStore(open_dataset(folder), [part]) as store:
        server = StoreServer(store, operations=service.operations)
        pipe.send(server.location)
        locations += _receive(pipe)
        if pipe.poll(WAIT_S):
            pipe.recv()
        pipe.send(peak_rss_bytes())
        service.close()
        server.close()


def cache_bytes(store: LocalStore, share: float) -> int:
    """Bytes of cache for a share of all rows with keys, and for ids of batches sampled ahead."""
    columns = {KEY: KEY_SCHEMA, "x": store.schema.nodes[NODE]["x"]}
    return bytes_for(columns, _num_rows(store, share), NUM_AHEAD) if share else 0


def train(
    options: Options, caching: Caching, rank: int, locations: Sequence[str], barrier: Barrier, pipe: Connection
) -> None:
    """Take batches of one rank; send the begin and end times of each repetition."""
    near = LocalStore(open_dataset(options.parts_path(NUM_TRAINERS)), [rank])
    settings = StoreSettings(prefer_local=False, timeout_s=60.0, cache_bytes=cache_bytes(near, caching.share))
    room = _num_rows(near, caching.share)
    recording = None
    if caching.is_sampled:
        source: Store | RemoteGraph = RemoteGraph(",".join(locations), settings=settings)
    else:
        far = RemoteStore(locations[1 - rank], settings)
        recording = RecordingStore(near, far, settings) if caching.wants_optimum else None
        source = recording or RoutedStore([near, far], settings)
    with source, NeighborLoader(
        source, FANOUT, seeds="train", batch_size=BATCH_SIZE, shuffle=True, node_features={NODE: ["x"]},
        edge_keys=False, num_threads=options.num_threads, rank=rank, world_size=NUM_TRAINERS,
        look_ahead=caching.look_ahead,
    ) as loader:  # fmt: skip
        store = cast(RoutedStore, loader.store)
        batches = endless(loader)
        for _ in range(caching.num_warmups):
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
        if recording is not None:
            next(batches)
    num_saved = after.cache_ids - before.cache_ids
    rows = FarRows(num_needed=after.remote_ids - before.remote_ids + num_saved, num_saved=num_saved)
    if recording is not None:
        stop = caching.num_warmups + options.num_batches * options.num_repeats
        rows = recording.far_rows(caching.num_warmups, stop, room)
    pipe.send((spans, num_edges, num_rows, peak_rss_bytes(), rows))


def _num_rows(store: LocalStore, share: float) -> int:
    """Number of rows in a share of all rows."""
    return int(share * store.book.num_ids(NODE))


def main() -> None:
    """Start two servers and two trainers, and wait for the trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--cache", type=float, default=0.0, help="share of all rows that a cache has room for")
    parser.add_argument("--look-ahead", type=int, default=LOOK_AHEAD, help="batches that are sampled ahead")
    parser.add_argument(
        "--warmups", type=int, default=NUM_WARMUPS, help="batches of each trainer before the first that is measured"
    )
    parser.add_argument(
        "--optimum", action="store_true", help="also tell how many rows the best cache would have saved"
    )
    parser.add_argument("--sampled", action="store_true", help="servers sample, and trainers hold no part")
    values = parser.parse_args()
    options = to_options(values)
    caching = Caching(
        share=values.cache,
        look_ahead=values.look_ahead,
        is_sampled=values.sampled,
        num_warmups=values.warmups,
        wants_optimum=values.optimum,
    )
    if caching.wants_optimum and (options.num_threads != 1 or caching.is_sampled):
        parser.error(
            "--optimum takes --threads=1, with which rows are fetched one batch after the other, and no --sampled"
        )
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
        for pipe in servers:
            pipe.send(locations)
        trainers = [start(train, caching, rank, locations, barrier) for rank in range(NUM_TRAINERS)]
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
        "threads_per_trainer": options.num_threads, "assignment": "random", "cache_share": caching.share,
        "look_ahead": caching.look_ahead, "servers_sample": caching.is_sampled,
    }  # fmt: skip
    figures = {
        "ms_per_batch": timing.median_s / num_batches * 1e3,
        "min_ms_per_batch": timing.min_s / num_batches * 1e3,
        "edges_per_batch": edges_per_batch,
        "rows_per_batch": rows_per_batch,
        "edges_per_s": edges_per_batch * num_batches / timing.median_s,
        "rows_per_s": rows_per_batch * num_batches / timing.median_s,
        "trainer_peak_bytes": float(max(peak for _, _, _, peak, _ in answers)),
        "server_peak_bytes": float(max(server_peaks)),
    }
    report("two_trainers", settings, figures | saved_shares([rows for *_, rows in answers]))


def saved_shares(trainers: Sequence[FarRows]) -> Figures:
    """Shares of remote rows that all caches saved, and that optimal caches would have saved."""
    num_needed = sum(rows.num_needed for rows in trainers)
    figures = {}
    if num_saved := sum(rows.num_saved for rows in trainers):
        figures["saved_rows"] = num_saved / num_needed
    if num_best := sum(rows.num_best or 0 for rows in trainers):
        figures["best_saved_rows"] = num_best / num_needed
    for rank, rows in enumerate(trainers):
        if rows.num_best is not None:
            saved, best = rows.num_saved / rows.num_needed, rows.num_best / rows.num_needed
            print(
                f"trainer {rank}: saved {saved:.1%}, the optimum {best:.1%} with as much room, for "
                f"{rows.room_share:.1%} of all rows",
                file=sys.stderr,
            )
    return figures


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"a process of the benchmark said nothing in {WAIT_S:.0f} s")
    return pipe.recv()


if __name__ == "__main__":
    main()
