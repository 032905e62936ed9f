"""Run a server that samples in a process of its own.

``python -m tests.stream.serve`` is ready when it prints where it listens.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from hopstream.dataset.layout import open_dataset
from hopstream.load.batch import SeedBatch
from hopstream.load.loader import NodeMaker
from hopstream.store.cluster import ServerEntry, open_cluster, parse_locations
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.security import ServerSecurity


def poison(bad_step: int) -> None:
    """Let the making of one batch of each loader of nodes fail, as a bug would."""
    start = NodeMaker._start

    def failing_start(self: NodeMaker, epoch: int, step: int) -> SeedBatch:
        if step == bad_step:
            raise ZeroDivisionError("a bug in the sampling")
        return start(self, epoch, step)

    NodeMaker._start = failing_start  # type: ignore[method-assign]


def slow_down(seconds: float) -> None:
    """Slow down each batch of each loader of nodes."""
    start = NodeMaker._start

    def slow_start(self: NodeMaker, epoch: int, step: int) -> SeedBatch:
        time.sleep(seconds)
        return start(self, epoch, step)

    if seconds:
        NodeMaker._start = slow_start  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--part", type=int, required=True)
    parser.add_argument("--all-parts", action="store_true", help="hold replicas of all other parts, too")
    parser.add_argument("--locations", required=True, help="those of all servers")
    parser.add_argument("--number", type=int, help="which of them is its own; that of its part where nothing is said")
    parser.add_argument("--lease", type=float, default=120.0)
    parser.add_argument("--store-timeout", type=float, default=10.0)
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that every batch takes more")
    parser.add_argument("--insecure", action="store_true", help="listen where other machines can reach")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    poison(given.poison)
    slow_down(given.slow)
    location = given.locations.split(",")[given.part if given.number is None else given.number]

    def open_graph() -> Store:
        settings = StoreSettings(prefer_local=False, timeout_s=given.store_timeout)
        own = ServerEntry(location=location, parts=tuple(parts), path=given.root)
        return open_cluster(parse_locations(given.locations), settings, own=own if given.all_parts else None)

    service = SamplingService(open_graph, SamplingLimits(threads=2, lease_s=given.lease))
    dataset = open_dataset(given.root)
    parts = range(dataset.manifest.book.num_parts) if given.all_parts else [given.part]
    with LocalStore(dataset, parts) as store:
        security = ServerSecurity(is_insecure=given.insecure)
        server = StoreServer(store, location, security=security, operations=service.operations)
        print(server.location, flush=True)  # noqa: T201
        server.serve_forever()
        service.close()


if __name__ == "__main__":
    main(sys.argv[1:])
