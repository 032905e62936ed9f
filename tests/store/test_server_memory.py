"""Checks that a server's memory stays small, whatever it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopstream.arrays import IntArray, RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.store.contract import SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.transport.failures import raise_error
from hopstream.transport.messages import Frame
from tests.store.processes import ServerProcess
from tests.transport.peer import Peer


def private_bytes(pid: int) -> int:
    """Anonymous memory of a process; pages of mapped files belong to the page cache."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


class PeakMemory:
    """Peak of a process's private memory during a block, polled without a pause."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.num_bytes = 0
        self.num_looks = 0

    def _watch(self) -> None:
        while not self._is_done.is_set():
            self.num_bytes = max(self.num_bytes, private_bytes(self._pid))
            self.num_looks += 1
            self._is_done.wait(0.001)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join(20)


HUB_EDGES = 12_000_000
LONG_ROWS, LONG_BYTES = 500, 200_000
MANY = 300_000
LINKS = ("node", "to", "node")


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node of 12 million edges of 300 000 nodes, 500 strings of 200 kB, and a column of 1.2 kB rows."""
    root = tmp_path_factory.mktemp("heavy") / "parts"
    src = np.arange(HUB_EDGES, dtype=np.int64) % MANY
    texts = RaggedArray(
        np.full(LONG_ROWS * LONG_BYTES, 65, np.uint8), np.arange(0, LONG_ROWS * LONG_BYTES + 1, LONG_BYTES), True
    )
    nodes = {
        "node": NodeTable(num_nodes=MANY, features={"x": np.ones((MANY, 300), np.float32)}),
        "text": NodeTable(num_nodes=LONG_ROWS, features={"body": texts}),
    }
    edges = {LINKS: EdgeTable(src_keys=src, dst_keys=np.zeros(HUB_EDGES, np.int64))}
    write_parts(Graph(nodes=nodes, edges=edges).check(), root, method="hash")
    return root


@pytest.fixture(scope="module")
def server(heavy: Path) -> Iterator[ServerProcess]:
    """One server for all requests, so that memory left by one answer counts for the next."""
    with ServerProcess(heavy) as process:
        yield process


def heavy_sample(ids: IntArray, count: int, *, is_replacing: bool = False) -> tuple[dict[str, object], list[IntArray]]:
    request = {"owner": [*LINKS, "in"], "ids": 0, "count": count, "rng_seed": 1}
    return {"op": "sample", "requests": [{**request, "is_replacing": is_replacing, "wants_edge_ids": True}]}, [ids]


def heavy_fetch(owner: str, name: str, ids: IntArray) -> tuple[dict[str, object], list[IntArray]]:
    return {"op": "fetch", "requests": [{"owner": owner, "names": [name], "ids": 0}]}, [ids]


def heavy_way(ids: IntArray, count: int, **arrays: IntArray) -> tuple[dict[str, object], list[IntArray]]:
    """Request for neighbours with arrays that hide some; without arrays the strategy is ``labor``."""
    places: dict[str, object] = {name: 1 + i for i, name in enumerate(arrays)}
    if not arrays:
        places = {"strategy": "labor", "labor": {"first": 1, "second": 2, "share": 0.5}}
    request = {"owner": [*LINKS, "in"], "ids": 0, "count": count, "rng_seed": 1, "wants_edge_ids": True, **places}
    return {"op": "sample", "requests": [request]}, [ids, *arrays.values()]


def heavy_records(num_records: int, **arrays: IntArray) -> tuple[dict[str, object], list[IntArray]]:
    """``num_records`` requests of no nodes that name the same arrays: a small frame that asks for much."""
    (record,) = heavy_way(np.empty(0, np.uint32), 1, **arrays)[0]["requests"]  # type: ignore[misc]
    return {"op": "sample", "requests": [record] * num_records}, [np.empty(0, np.uint32), *arrays.values()]


HUB = np.zeros(1, np.uint32)
MILLION_PAIRS = np.stack([np.zeros(1 << 20, np.uint32), np.arange(1 << 20, dtype=np.uint32) % 100_000])
MANY_IDS = (1 + np.arange(1 << 20) % (LONG_ROWS - 1)).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ends_with"),
    [
        # It takes the most, so it comes first: allocators keep some memory of earlier answers.
        (heavy_way(HUB, 500_000, excluded=MILLION_PAIRS), None),
        (heavy_fetch("node", "x", np.arange(MANY, dtype=np.uint32)), None),
        (heavy_fetch("text", "body", np.arange(3000, dtype=np.uint32) % LONG_ROWS), None),
        (heavy_sample(HUB, -1), None),
        (heavy_sample(HUB, HUB_EDGES), None),
        (heavy_sample(np.zeros(1 << 18, np.uint32), 64), None),
        (heavy_sample(HUB, 2_000_000), None),
        (heavy_sample(HUB, 2_000_000, is_replacing=True), None),
        (heavy_sample(MANY_IDS, -1), None),
        (
            heavy_fetch("text", "body", MANY_IDS),
            "the answer has 2097.* bytes or more; this server sends at most 17179869184",
        ),
        (heavy_sample(HUB, HUB_EDGES - 1), "one row of the answer has up to 191.* bytes; .* sends at most 33554432"),
        (heavy_sample(HUB, 150_000_000, is_replacing=True), "draw fewer neighbours per node"),
        (heavy_way(np.zeros(1 << 17, np.uint32), 5, trees=np.arange(1 << 17, dtype=np.uint32)), None),
        (heavy_way(HUB, 500_000, candidates=np.arange(MANY // 2, dtype=np.uint32)), None),
        (heavy_way(HUB, 500_000), None),
        (heavy_way(HUB, -1, excluded=MILLION_PAIRS), "neither excluded pairs nor candidates nor weights"),
        (heavy_way(HUB, -1, candidates=np.arange(MANY, dtype=np.uint32)), "one row of the answer"),
        (
            heavy_way(np.zeros(1 << 17, np.uint32), 3, candidates=np.arange(9, dtype=np.uint32)),
            "answering would read at least 1572864000000 edges; this server reads at most 274877906944",
        ),
        (heavy_way(HUB, 3, excluded=np.zeros((2, (1 << 20) + 1), np.uint32)), "1048577 excluded pairs and candidates"),
        (heavy_way(HUB, 3, candidates=np.arange((1 << 20) + 1, dtype=np.uint32)), "the maximum is 1048576"),
        (heavy_records(200, trees=np.zeros(1 << 20, np.uint32)), r"trees is uint32\[1048576\]; wanted int64\[0\]"),
        (heavy_records(200, times=np.zeros(1 << 20, np.uint32)), r"times is uint32\[1048576\]; wanted int64\[0\]"),
        (heavy_records(200, excluded=np.zeros((1 << 20, 1), np.uint32)), r"excluded is uint32\[1048576, 1\]; wanted"),
        (heavy_records(200, excluded=MILLION_PAIRS), "209715200 excluded pairs and candidates"),
        (heavy_records(200, candidates=np.arange(1 << 20, dtype=np.uint32)), "209715200 excluded pairs and candidates"),
    ],
    ids=[
        "pairs",
        "fixed width",
        "strings",
        "hub",
        "hub by count",
        "frontier",
        "draws",
        "draws again",
        "ids",
        "ids of strings",
        "too many",
        "very many",
        "trees",
        "candidates",
        "variates",
        "all but pairs",
        "all candidates",
        "too much to read",
        "too many pairs",
        "too many candidates",
        "trees of nobody",
        "times of nobody",
        "pairs of nobody",
        "shared pairs",
        "shared candidates",
    ],
)
def test_a_servers_memory_does_not_grow_with_its_answers(
    heavy: Path, server: ServerProcess, what: tuple[dict[str, object], list[IntArray]], ends_with: str | None
) -> None:
    request = Frame({"dataset": open_dataset(heavy).manifest.dataset_id, **what[0]}, what[1])
    with Peer(server.location) as client:
        with PeakMemory(server.pid) as peak:
            answer = client.frames(client.start(request, 120_000))
            num_frames, num_bytes, last = 0, 0, Frame({}, [])
            for last in answer:
                num_frames, num_bytes = num_frames + 1, num_bytes + sum(array.nbytes for array in last.arrays)
        assert peak.num_bytes < 300 << 20
    if ends_with is None:
        raise_error(last, "the server", "a test")
        assert num_bytes >= 4 << 20
    else:
        assert num_frames == 1
        with pytest.raises(SettingsError, match=ends_with):
            raise_error(last, "the server", "a test")


@pytest.mark.slow
def test_all_edges_of_a_hub_come_in_stored_order(heavy: Path) -> None:
    request = SampleRequest(edge_type=LINKS, direction="in", ids=HUB.astype(np.int64), count=-1, wants_edge_ids=True)
    with LocalStore(open_dataset(heavy)) as local, StoreServer(local) as server, RemoteStore(server.location) as store:
        (far,), (near,) = store.sample([request]), local.sample([request])
        assert far.counts.tolist() == near.counts.tolist() == [HUB_EDGES]
        assert np.array_equal(far.neighbor_ids, near.neighbor_ids)
        assert far.edge_ids is not None
        assert np.array_equal(far.edge_ids, np.asarray(near.edge_ids))
