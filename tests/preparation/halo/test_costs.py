"""Checks that halos announce their cost before they are made, and keep within it."""

from __future__ import annotations

import shutil
import tracemalloc
from collections import namedtuple

import numpy as np
import pytest

import hopstream
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import open_chunked, write_chunked
from hopstream.preparation.dispatch.dispatch_folder import estimate
from hopstream.preparation.halo import costs, sources
from hopstream.preparation.halo.costs import halo_allotment, least_memory_bytes
from hopstream.preparation.halo.reach import nodes_within
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.halo.sources import NodeBitmap, Parts
from tests.memory import peak_private_bytes
from tests.preparation.audit.forging import OPTIONS, full_graph

CHOICES = [
    {"hops": 1}, {"hops": 3, "features": "all"}, {"hops": 0, "budget": 500}, {"hops": 2, "budget": "1MB"},
    {"hops": 1, "features": "user:*"}, {"hops": 2, "features": "user__rates__movie:*"},
    {"edge_budget": 4000}, {"hops": 0, "edge_budget": "3kB", "budget": "1kB"},
    {"edge_budget": "1MB", "features": "all"},
]  # fmt: skip


@pytest.mark.parametrize("options", CHOICES)
def test_written_bytes_stay_within_the_estimate(tmp_path, options):
    hopstream.write_parts(full_graph(3), tmp_path / "d", direction="both", **OPTIONS)
    told = []
    halo = hopstream.dataset.add_halo(tmp_path / "d", on_estimate=told.append, **options).manifest.halo
    (said,) = told
    assert sum(halo.bytes) <= said.copied_bytes < 40 * sum(halo.bytes) + 100_000
    cached = sum(record.num_bytes for name, record in halo.files.items() if "/cached/" in name)
    edges = sum(record.num_bytes for name, record in halo.files.items() if "/cached/" not in name)
    assert (said.budget_bytes > 0) == ("budget" in options or "edge_budget" in options)
    assert "budget" not in options or cached <= said.budget_bytes + 136 * len(halo.files)
    last_offsets = 8 * sum(name.endswith("indptr.npy") for name in halo.files)
    assert "edge_budget" not in options or edges <= said.budget_bytes + 136 * len(halo.files) + last_offsets
    hopstream.dataset.add_halo(tmp_path / "d", hops=0, on_estimate=told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    "options", [{"hops": 2, "features": "all"}, {"hops": 1, "budget": "20kB"}, {"edge_budget": "20kB"}]
)
def test_dispatch_counts_halos(tmp_path, monkeypatch, options):
    graph, halo = hopstream.rmat_graph(8, num_features=6, num_classes=2), HaloSettings(**options)
    write_chunked(graph, tmp_path / "c", num_chunks=2)
    (tmp_path / "o").mkdir()
    np.save(tmp_path / "o" / "node.npy", np.arange(256) % 3)
    told = []
    job = {"num_workers": 0, "on_estimate": lambda said, plan: told.append(said), "overwrite": True}
    manifest = hopstream.dataset.dispatch(tmp_path / "c", tmp_path / "o", tmp_path / "d", halo=halo, **job)
    assert 0 < sum(manifest.halo.bytes) <= told[0].halo.copied_bytes
    on_disk = sum(path.stat().st_size for path in (tmp_path / "d").rglob("*.npy"))
    heads = 136 * sum(1 for _ in (tmp_path / "d").rglob("*.npy"))
    assert on_disk <= told[0].disk_bytes + heads
    without = estimate(open_chunked(tmp_path / "c"), graph.schema, PartitionSettings(num_parts=3))
    assert without.disk_bytes == without.least_disk_bytes <= told[0].least_disk_bytes <= told[0].disk_bytes
    usage = namedtuple("usage", "free")
    needed = without.dataset_bytes + without.scratch_bytes + told[0].halo.budget_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed - 1))
    if options.keys() & {"budget", "edge_budget"}:
        with pytest.raises(SettingsError, match="of disk while it is written"):
            hopstream.dataset.dispatch(tmp_path / "c", tmp_path / "o", tmp_path / "e", halo=halo, **job)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(told[0].halo.budget_bytes - 1))
        (name,) = options.keys() & {"budget", "edge_budget"}
        with pytest.raises(OSError, match=rf"\b{name} is 20kB for each of 3 parts.*give a smaller budget"):
            hopstream.dataset.add_halo(tmp_path / "d", **options)


def test_sets_of_nodes_are_counted():
    """Three bits per node, which are not left for tables."""
    assert least_memory_bytes(8_000_000) == least_memory_bytes(0) + 3_000_000
    assert halo_allotment("234MB", 8_000_000).memory_bytes == 234_000_000
    with pytest.raises(SettingsError, match=r"halos of 8000000 nodes need at least 234\.0 MB"):
        halo_allotment("233999999", 8_000_000)


def test_held_sets_stay_within_the_counted_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_ROWS", 1 << 12)
    graph = hopstream.graph_from_arrays(np.array([[1], [0]]), num_nodes=2_000_000)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    parts = Parts(hopstream.open_dataset(tmp_path / "d"))
    nodes_within(parts, 0, 1)
    tracemalloc.start()
    try:
        assert len(nodes_within(parts, 0, 3)["node"]) <= 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    set_bytes = len(NodeBitmap.empty(2_000_000).marks) * 8
    assert 2 * set_bytes < peak < costs.NUM_SETS * set_bytes + 100_000


def test_dispatch_refuses_halos_larger_than_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "NUM_SETS", 1 << 30)
    write_chunked(hopstream.rmat_graph(8), tmp_path / "c", num_chunks=2)
    (tmp_path / "o").mkdir()
    np.save(tmp_path / "o" / "node.npy", np.arange(256) % 3)
    with pytest.raises(SettingsError, match=r"memory is 4GiB.*halos of 256 nodes need at least 34\.6 GB"):
        hopstream.dataset.dispatch(
            tmp_path / "c", tmp_path / "o", tmp_path / "d", halo=HaloSettings(), num_workers=0, memory="4GiB"
        )
    assert not (tmp_path / "d").exists()


HALO = """
import sys
from hopstream.preparation.halo.run import add_halo
add_halo(sys.argv[1], hops=1, budget="40MB", memory=sys.argv[2])
"""


@pytest.mark.scale
def test_memory_stays_within_the_given_bound(tmp_path, rng):
    """Tables of 16 million nodes are 512 MB, beside lists of nodes."""
    num_nodes, num_edges = 16_000_000, 4_000_000
    table = EdgeTable(src_keys=rng.integers(0, num_nodes, num_edges), dst_keys=rng.integers(0, num_nodes, num_edges))
    nodes = {"node": NodeTable(num_nodes=num_nodes, features={"x": np.ones((num_nodes, 2), np.float32)})}
    graph = Graph(nodes=nodes, edges={("node", "to", "node"): table}).check()
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash", direction="both")
    assert peak_private_bytes(HALO, str(tmp_path / "d"), "300MiB") < 300 << 20
