"""Checks that re-sharding an appended dataset gives what writing the grown graph in one go gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset import rows as dataset_rows
from hopstream.dataset.rows import open_rows
from hopstream.engine.settings import memory_bytes
from hopstream.errors import ChecksumError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.append.run import append
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import KNOWS
from tests.grown import grow
from tests.memory import peak_private_bytes
from tests.preparation.append.graphs import OPTIONS, written
from tests.preparation.audit.forging import full_graph


def grown():
    """The graph of appending, whose edges of one type have ragged features too."""
    graph, rng = full_graph(3), np.random.default_rng(4)
    edges = graph.edges[KNOWS]
    lengths = rng.integers(0, 4, edges.num_edges)
    features = {
        **edges.features,
        "words": RaggedArray(rng.integers(0, 9, (lengths.sum(), 2)), np.concatenate([[0], np.cumsum(lengths)])),
    }
    table = EdgeTable(src_keys=edges.src_keys, dst_keys=edges.dst_keys, features=features)
    return grow(replace(graph, edges={**graph.edges, KNOWS: table}).check(), rng)


@pytest.mark.parametrize(("num_parts", "num_appends", "gap"), [(1, 3, 1), (3, 1, 1 << 14)])
@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_bytes_equal_those_of_a_single_write(tmp_path, monkeypatch, num_parts, num_appends, gap, keeps):
    monkeypatch.setattr(dataset_rows, "GAP_BYTES", gap)
    if gap == 1:
        monkeypatch.setattr(dataset_rows, "BLOCK_ROWS", 3)
    graph, options = grown(), {**OPTIONS, "keep_edge_keys": keeps}
    graph.write(tmp_path / "d", num_parts, num_appends, **options)
    found = reshard(tmp_path / "d", tmp_path / "new", num_parts=3, method="hash", num_workers=0)
    wanted = write_parts(graph.graph, tmp_path / "one", num_parts=3, method="hash", **options)
    assert found.files == wanted.files
    assert found.dataset_id == wanted.dataset_id
    report, told = found.report, wanted.report
    assert (report.cuts, report.edges, report.seeds) == (told.cuts, told.edges, told.seeds)
    assert report.edges_between == told.edges_between


def test_descending_overlay_rows_are_refused(tmp_path):
    written(tmp_path / "d", 2, 1)
    rows = open_rows(tmp_path / "d")
    (name, *_) = (name for name, record in rows.manifest.files.items() if "/row.npy" in name and record.shape[0] > 1)
    path = tmp_path / "d" / name
    numbers = np.load(path)
    np.save(path, numbers[::-1])
    part, edge_type = int(name[5:10]), tuple(name.split("/")[3].split("__"))
    with pytest.raises(ChecksumError, match=r"row\.npy"):
        rows.spans((edge_type, name.split("/")[4]), part, 0, 1)


RESHARD = """
import sys
from hopstream.preparation.reshard.reshard_job import reshard
reshard(sys.argv[1], sys.argv[1] + ".new", memory=sys.argv[2], num_workers=int(sys.argv[3]), num_parts=3, method="hash")
"""
COMPACT = """
import sys
from hopstream.preparation.compact import compact
compact(sys.argv[1], memory=sys.argv[2], num_workers=int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("memory", "num_workers"),
    [pytest.param("400MiB", 0, marks=pytest.mark.scale), pytest.param("600MiB", 1, marks=pytest.mark.soak)],
)
def test_memory_stays_within_the_given_bound(tmp_path, rng, memory, num_workers):
    """Four million nodes and few edges of four types in both directions; each type was appended to."""
    num_nodes, num_edges = 4_000_000, 1_000_000
    types = [("node", f"to-{number}", "node") for number in range(4)]
    edges = {
        t: EdgeTable(src_keys=rng.integers(0, num_nodes, num_edges), dst_keys=rng.integers(0, num_nodes, num_edges))
        for t in types
    }
    graph = Graph(nodes={"node": NodeTable(num_nodes=num_nodes, features={})}, edges=edges).check()
    write_parts(graph, tmp_path / "d", num_parts=2, method="hash", direction="both")
    more = {
        t: (rng.integers(0, num_nodes + 9, num_edges // 10), rng.integers(0, num_nodes, num_edges // 10)) for t in types
    }
    append(tmp_path / "d", nodes={"node": 9}, edges=more)
    for program in (RESHARD, COMPACT):
        assert peak_private_bytes(program, str(tmp_path / "d"), memory, str(num_workers)) < memory_bytes(memory)
