"""Runs fifty epochs through a cache of rows; checks batches, memory, threads and open files."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE, FeatureSchema
from hopstream.store.contract import KEY, KEY_SCHEMA
from hopstream.store.row_cache import bytes_for, row_cost
from tests.load.graphs import flat
from tests.store.processes import ROOT, environment

NUM_NODES, WIDTH = 20_000, 16
NUM_EPOCHS, NUM_WARM = 50, 10
MAX_GROWTH_BYTES = 8 << 20
"""Less than half of the ids of the batches after the warm epochs."""
COLUMNS = {KEY: KEY_SCHEMA, "x": FeatureSchema(dtype="float32", shape=(WIDTH,))}
ROW_BYTES = row_cost(COLUMNS)
TIGHT_BYTES = bytes_for(COLUMNS, NUM_NODES // 20, 0)
OPTIONS = {
    "num_neighbors": [5, 3], "seeds": "train", "batch_size": 256, "shuffle": True, "edge_keys": False,
    "collate": "numpy",
}  # fmt: skip
TRAIN = """
import json, sys, threading, time
import psutil
from hopstream.load.loader import NeighborLoader
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from tests.equality.test_row_cache_soak import NUM_EPOCHS, OPTIONS, epoch_digest

process = psutil.Process()
cluster, is_remote, cache_bytes = sys.argv[1], *map(json.loads, sys.argv[2:])
settings = StoreSettings(prefer_local=False, cache_bytes=cache_bytes)
source = {"source": RemoteGraph(cluster, settings=settings)} if is_remote else {
    "source": cluster, "store_settings": settings
}

def counts():
    return {"threads": threading.active_count(), "files": process.num_fds()}

def tell(**facts):
    print(json.dumps({**facts, **counts()}), flush=True)

def opened():
    return NeighborLoader(**source, num_threads=2, **OPTIONS)

with opened() as loader:  # what is imported, compiled and opened once
    next(iter(loader))
before = counts()
tell()
with opened() as loader:
    for epoch in range(NUM_EPOCHS):
        held = []
        digest = epoch_digest(loader, lambda: held.append(loader.store.cache.counts()))
        tell(
            digest=digest, rss=process.memory_info().rss, max_bytes=max(one.max_bytes for one in held),
            num_bytes=max(one.num_bytes for one in held), num_rows=max(one.num_rows for one in held),
            num_evicted=held[-1].num_evicted, share=loader.store.traffic()["fetch"].cache_share,
        )
ends = time.monotonic() + 20
while any(counts()[name] > before[name] for name in before) and time.monotonic() < ends:
    time.sleep(0.01)
tell()
"""


def epoch_digest(loader: NeighborLoader, on_batch=lambda: None) -> str:
    """A digest of all batches of an epoch."""
    digest = hashlib.sha256()
    for batch in loader:
        digest.update(repr(sorted(flat(batch).items())).encode())
        on_batch()
    return digest.hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, num_edges = np.random.default_rng(5), 8 * NUM_NODES
    graph = Graph(
        nodes={
            NODE: NodeTable(
                num_nodes=NUM_NODES, features={"x": rng.standard_normal((NUM_NODES, WIDTH)).astype(np.float32)}
            )
        },
        edges={
            EDGE: EdgeTable(
                src_keys=(rng.random(num_edges) ** 3 * NUM_NODES).astype(np.int64),
                dst_keys=rng.integers(0, NUM_NODES, num_edges),
            )
        },
        splits={NODE: {"train": np.arange(0, NUM_NODES, 4)}},
    ).check()
    root = tmp_path_factory.mktemp("soak") / "parts"
    write_parts(graph, root, num_parts=2, method="hash")
    return root


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[str]:
    """Batches of the folder itself."""
    with NeighborLoader(folder, num_threads=0, **OPTIONS) as loader:
        return [epoch_digest(loader) for _ in range(NUM_EPOCHS)]


@pytest.fixture
def cluster(folder: Path) -> Iterator[Path]:
    """Two servers of one part each."""
    words = [sys.executable, "-m", "hopstream.cli", "up", str(folder), "--servers", "2", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()) as up:
        assert up.stdout is not None
        facts = (json.loads(line) for line in up.stdout)
        ready = next(fact for fact in facts if fact.get("stage") == "ready")
        assert ready["servers"] == 2
        yield Path(ready["cluster_file"])
        up.send_signal(signal.SIGINT)
        stopped = next(fact for fact in facts if fact.get("stage") == "stop")
        assert (up.wait(60), stopped["failures"]) == (0, 0)


@pytest.mark.soak
@pytest.mark.parametrize("is_remote", [False, True], ids=["cluster", "RemoteGraph"])
@pytest.mark.parametrize("cache_bytes", [None, TIGHT_BYTES], ids=["all rows", "5 % of the rows"])
def test_fifty_epochs_with_a_cache_keep_batches_and_memory(
    cluster: Path, wanted: list[str], cache_bytes: int | None, is_remote: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(cluster), json.dumps(is_remote), json.dumps(cache_bytes)],
        stdout=subprocess.PIPE, text=True, check=True, timeout=170, cwd=ROOT, env=environment(),
    )  # fmt: skip
    before, *epochs, after = map(json.loads, done.stdout.splitlines())
    assert [epoch["digest"] for epoch in epochs] == wanted
    for epoch in epochs:
        assert 0 < epoch["num_bytes"] <= epoch["max_bytes"]
        assert cache_bytes in (None, epoch["max_bytes"])
        assert epoch["num_rows"] <= min(NUM_NODES, epoch["max_bytes"] // ROW_BYTES)
    last = epochs[-1]
    if cache_bytes is None:
        assert last["num_evicted"] == 0 and last["share"] > 0.9
    else:
        assert last["num_evicted"] > 10_000 and 0.1 < last["share"] < 0.9
    warm = epochs[:NUM_WARM]
    for epoch in epochs[NUM_WARM:]:
        assert epoch["rss"] < warm[-1]["rss"] + MAX_GROWTH_BYTES
        assert all(epoch[name] <= max(one[name] for one in warm) for name in ("threads", "files"))
    assert all(after[name] <= before[name] for name in ("threads", "files"))
