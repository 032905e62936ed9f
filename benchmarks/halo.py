"""Measures how many remote requests, rows and bytes a halo saves, and how much faster batches become.

    python -m benchmarks.halo --nodes 100000

KaMinPar cuts a graph of communities into four parts. This process maps one part, and its seeds are the training nodes
of that part. Another process serves the other parts over loopback. Each halo is written in turn, and one thread makes
the same batches with each. Loopback has nearly no latency and more bandwidth than a network. So numbers of requests,
rows and bytes are valid for other machines, but seconds are not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.loader import NeighborLoader
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings

NUM_PARTS, FANOUTS, BATCH_SIZE, NUM_FEATURES = 4, [15, 10, 5], 1024, 100
NODES_PER_COMMUNITY, INSIDE_SHARE, TRAIN_SHARE = 500, 0.9, 0.1
START_S = 120.0


@dataclass(frozen=True)
class Figures:
    """Costs per batch with one halo: means; for seconds, the lower quartile."""

    name: str
    halo_bytes: int
    requests: float
    expanded_ids: float
    fetched_ids: float
    remote_bytes: float
    expected_saved: float
    batch_s: float
    batch_cpu_s: float


def community_graph(num_nodes: int, edges_per_node: int) -> Graph:
    """Make a graph of communities; most edges stay inside, at the first nodes of a community."""
    rng = np.random.default_rng(0)
    num_edges, num_communities = num_nodes * edges_per_node, max(1, num_nodes // NODES_PER_COMMUNITY)
    community = rng.integers(0, num_communities, num_edges)
    others = np.where(rng.random(num_edges) < INSIDE_SHARE, community, rng.integers(0, num_communities, num_edges))

    def members(of: np.ndarray, power: int) -> np.ndarray:
        keys = (rng.random(num_edges) ** power * NODES_PER_COMMUNITY).astype(np.int64) * num_communities + of
        return np.minimum(keys, num_nodes - 1)

    order = rng.permutation(num_nodes)
    edges = EdgeTable(src_keys=order[members(others, 4)], dst_keys=order[members(community, 1)])
    features = {"x": rng.random((num_nodes, NUM_FEATURES), np.float32)}
    train = np.sort(rng.choice(num_nodes, int(num_nodes * TRAIN_SHARE), replace=False))
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features=features)},
        edges={EDGE: edges},
        splits={NODE: {"train": train}},
    )


def serve(folder: Path, pipe: Connection) -> None:
    """Serve all parts but the first until the parent sends a message."""
    with LocalStore(open_dataset(folder), range(1, NUM_PARTS)) as store, StoreServer(store) as server:
        pipe.send(server.location)
        pipe.recv()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Start a process that serves all parts but the first; yield its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(folder, there), daemon=True)
    process.start()
    try:
        if not here.poll(START_S):
            raise TimeoutError(f"the server did not start in {START_S:g} s")
        yield here.recv()
        here.send(None)
        process.join(START_S)
    finally:
        process.kill()


def measure(name: str, folder: Path, location: str, num_batches: int, expected: float) -> Figures:
    """Make some batches, and count their remote requests, rows and bytes."""
    dataset = open_dataset(folder)
    seeds = dataset.open_part(0).node_keys[NODE]
    splits = [dataset.open_part(part).splits[NODE]["train"] for part in range(NUM_PARTS)]
    seeds = np.intersect1d(seeds, np.concatenate(splits))
    settings = StoreSettings(prefer_local=False, cache_bytes=0)
    store = RoutedStore([LocalStore(dataset, [0]), RemoteStore(location, settings)], settings)
    seconds, cpu_s = [], []
    with (
        store,
        NeighborLoader(
            store, FANOUTS, seeds, batch_size=BATCH_SIZE, shuffle=True, collate="numpy", num_threads=0, edge_keys=False
        ) as loader,
    ):
        batches = (batch for _ in iter(int, 1) for batch in loader)
        next(batches)
        before = store.traffic()
        for _ in range(num_batches):
            start, cpu_start = time.perf_counter(), time.process_time()
            next(batches)
            seconds.append(time.perf_counter() - start)
            cpu_s.append(time.process_time() - cpu_start)
        after = store.traffic()
    more = {
        kind: {n: value - getattr(before[kind], n) for n, value in counts._asdict().items()}
        for kind, counts in after.items()
    }
    return Figures(
        name=name,
        halo_bytes=0 if dataset.manifest.halo is None else dataset.manifest.halo.bytes[0],
        requests=sum(of_kind["remote_requests"] for of_kind in more.values()) / num_batches,
        expanded_ids=more["sample"]["remote_ids"] / num_batches,
        fetched_ids=more["fetch"]["remote_ids"] / num_batches,
        remote_bytes=sum(of_kind["remote_bytes"] for of_kind in more.values()) / num_batches,
        expected_saved=expected,
        batch_s=statistics.quantiles(seconds)[0],
        batch_cpu_s=statistics.quantiles(cpu_s)[0],
    )


def plans(num_bytes: int) -> list[tuple[str, dict[str, Any]]]:
    """Options of halos by name; budgets are shares of the bytes of all features."""
    of_budget = [
        (f"features, {share:.0%} budget", {"hops": 0, "budget": int(num_bytes * share)})
        for share in (0.01, 0.02, 0.05, 0.1, 0.2)
    ]
    return [
        ("none", {"hops": 0}),
        ("1 hop", {"hops": 1}),
        ("1 hop, features", {"hops": 1, "features": "all"}),
        ("edges, 1 MB budget", {"hops": 0, "edge_budget": "1MB"}),
        ("edges, 5 MB budget", {"hops": 0, "edge_budget": "5MB"}),
        *of_budget,
        ("1 hop, 10% budget", {"hops": 1, "budget": num_bytes // 10}),
        ("2 hops, features", {"hops": 2, "features": "all"}),
        ("3 hops, features", {"hops": 3, "features": "all"}),
    ]


def run(folder: Path, num_nodes: int, num_batches: int) -> list[Figures]:
    """Write the graph, serve it, and measure every halo."""
    manifest = hopstream.write_parts(community_graph(num_nodes, 20), folder, num_parts=NUM_PARTS, method="kaminpar")
    sys.stderr.write(f"{manifest.report.cut.fraction:.1%} of edges cut\n")
    found = []
    with served(folder) as location:
        for name, options in plans(num_nodes * NUM_FEATURES * 4):
            start = time.perf_counter()
            report = hopstream.dataset.add_halo(folder, fanouts=FANOUTS, batch_size=BATCH_SIZE, **options)
            seconds = time.perf_counter() - start
            expected = report.savings[0].row_share if report.savings else 0.0
            found.append(measure(name, folder, location, num_batches, expected))
            sys.stderr.write(f"{name}: halo written in {seconds:.1f} s, {found[-1].batch_s * 1e3:.1f} ms per batch\n")
    return found


def table(figures: list[Figures]) -> str:
    """Format the figures as a Markdown table."""
    headers = (
        "halo", "its size in the part", "requests", "nodes expanded there", "rows fetched there", "MB answered",
        "rows saved", "as expected", "ms per batch", "of processor here",
    )  # fmt: skip
    rows = [
        (
            f.name, f"{f.halo_bytes / 1e6:.1f} MB", f"{f.requests:.1f}", f"{f.expanded_ids:.0f}",
            f"{f.fetched_ids:.0f}", f"{f.remote_bytes / 1e6:.2f}", f"{1 - f.fetched_ids / figures[0].fetched_ids:.1%}",
            f"{f.expected_saved:.1%}", f"{f.batch_s * 1e3:.0f}", f"{f.batch_cpu_s * 1e3:.0f}",
        )
        for f in figures
    ]  # fmt: skip
    lines = [f"| {' | '.join(cells)} |" for cells in (headers, ("---",) * len(headers), *rows)]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table and the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(Path(folder) / "parts", options.nodes, options.batches)
    print(table(figures))
    print(json.dumps([asdict(each) for each in figures]))


if __name__ == "__main__":
    main()
