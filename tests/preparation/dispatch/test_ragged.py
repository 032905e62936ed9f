"""Checks that strings and lists reach their parts in bounded memory, and that verify compares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.assign.run import assign_owners
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import chunked_of_graph, write_chunked
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.columns import gathered
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.halo.run import add_halo
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests.preparation.dispatch.sources import check_equal, check_same, cut_small, use_graph, write_owners
from tests.preparation.dispatch.test_files import small_graph

MIB = 1 << 20


def strings_of(lengths: np.ndarray, rng: np.random.Generator) -> RaggedArray:
    offsets = offsets_of(lengths)
    return RaggedArray(rng.integers(97, 123, int(offsets[-1]), np.uint8), offsets, is_string=True)


def graph_of(num_nodes: int, num_edges: int, features: dict, edge_features: dict, rng: np.random.Generator) -> Graph:
    ends = rng.integers(0, num_nodes, (2, num_edges))
    edges = {EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1], features=edge_features)}
    return Graph(nodes={NODE: NodeTable(num_nodes=num_nodes, features=features)}, edges=edges).check()


def test_rows_are_put_in_order_a_few_at_a_time(rng):
    rows = strings_of(rng.integers(0, 9, 50), rng)
    (source,) = chunked_of_graph(graph_of(50, 0, {"s": rows}, {"x": np.empty(0)}, rng)).nodes[NODE].features.values()
    order = rng.permutation(50)
    wanted = rows.take(order)
    for max_bytes in (1, 20, 1000):
        found = list(gathered(lambda: source.pieces(0, 50), np.diff(rows.offsets), order, source, max_bytes))
        assert all(len(values) <= max(max_bytes, 8) for _, values in found)
        np.testing.assert_array_equal(np.concatenate([values for _, values in found]), wanted.values)


@pytest.mark.parametrize("num_parts", [2, 40])
def test_long_rows_among_short_ones(tmp_path, monkeypatch, rng, num_parts):
    """Rows of a megabyte, far above the amount sorted at once; more parts than nodes."""
    lengths = rng.integers(0, 6, 30)
    lengths[[3, 17]] = MIB
    features = {"s": strings_of(lengths, rng), "l": RaggedArray(np.arange(lengths.sum()), offsets_of(lengths[::-1]))}
    graph = graph_of(30, 30, features, features, rng)
    write_owners(tmp_path / "owners", graph, num_parts, rng)
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, 7)
    check_equal(graph, tmp_path, num_parts, direction="both")


def test_strings_of_a_megabyte_in_files(tmp_path, rng):
    lengths = np.where(rng.random(40) < 0.2, MIB, 3)
    graph = graph_of(40, 40, {"s": strings_of(lengths, rng)}, {"s": strings_of(lengths, rng)}, rng)
    write_chunked(graph, tmp_path / "in", num_chunks=3)
    owners = write_owners(tmp_path / "owners", graph, 3, rng)
    got = dispatch(tmp_path / "in", owners, tmp_path / "got", num_workers=0)
    check_same(
        tmp_path / "got", tmp_path / "wanted", got, write_parts(graph, tmp_path / "wanted", num_parts=3, owners=owners)
    )


def test_a_row_that_does_not_fit_is_refused(tmp_path, monkeypatch, rng):
    lengths = np.full(9, 5)
    lengths[4] = 2 * MIB
    for features, edge_features in (({"s": strings_of(lengths, rng)}, {}), ({}, {"s": strings_of(lengths, rng)})):
        graph = graph_of(9, 9, features, edge_features, rng)
        write_owners(tmp_path / "owners", graph, 2, rng)
        use_graph(monkeypatch, graph)
        monkeypatch.setattr(dispatch_folder.DispatchSpec, "longest_row_bytes", MIB)
        with pytest.raises(SettingsError, match=r"s has 2 MiB in row 4; the memory limit leaves 1 MiB for one row"):
            dispatch(tmp_path / "in", tmp_path / "owners", tmp_path / "got", num_workers=0, num_parts=2)
        assert not (tmp_path / "got").exists() and list(tmp_path.glob(".*")) == []


def test_estimates_count_ragged_values(rng):
    lengths = np.full(100, 1000)
    chunked = chunked_of_graph(
        graph_of(100, 100, {"s": strings_of(lengths, rng)}, {"s": strings_of(lengths, rng)}, rng)
    )
    costs = dispatch_folder.estimate(chunked, chunked.schema, PartitionSettings(num_parts=2, direction="both"))
    assert costs.dataset_bytes > 300_000 and costs.spill_bytes > 200_000


def test_verifying_compares_with_the_source(tmp_path, rng):
    graph = small_graph(rng)
    write_chunked(graph, tmp_path / "in", num_chunks=3)
    owners = write_owners(tmp_path / "owners", graph, 3, rng)
    dispatch(tmp_path / "in", owners, tmp_path / "got", num_workers=0)
    assert not verify_dataset(tmp_path / "got", against=tmp_path / "in").findings
    words = graph.nodes["paper"].features["word"]
    graph.nodes["paper"].features["word"] = words.take(np.roll(np.arange(len(words)), 1))
    write_chunked(graph, tmp_path / "other", num_chunks=2)
    found = verify_dataset(tmp_path / "got", against=tmp_path / "other").findings
    assert found and all("word" in str(finding) for finding in found)


def test_halos_and_assignment_see_ragged_features(tmp_path, rng):
    graph = small_graph(rng)
    write_chunked(graph, tmp_path / "in", num_chunks=3)
    for method in ("hash", "metis"):
        settings = PartitionSettings(num_parts=3, method=method)
        wanted, found = assign_owners(graph, settings), assign_owners(chunked_of_graph(graph), settings)
        assert all(np.array_equal(found[t], owner) for t, owner in wanted.items())
    owners = write_owners(tmp_path / "owners", graph, 3, rng)
    dispatch(tmp_path / "in", owners, tmp_path / "got", num_workers=0)
    write_parts(graph, tmp_path / "wanted", num_parts=3, owners=owners)
    for name in ("got", "wanted"):
        add_halo(tmp_path / name, hops=1, features=("paper:word",))
    left, right = (sorted((tmp_path / name).rglob("*.npy")) for name in ("got", "wanted"))
    assert [path.read_bytes() for path in left] == [path.read_bytes() for path in right]


PROGRAM = """
import sys
from hopstream.preparation.dispatch.dispatch_job import dispatch
dispatch(*sys.argv[1:4], num_workers=0, memory=sys.argv[4], direction="both")
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(line.split()[1]) * 1024)
"""


@pytest.mark.scale
def test_resident_memory_does_not_grow_with_strings(tmp_path: Path, rng: np.random.Generator):
    """Strings take 290 MB on nodes and as much on edges, more than the given memory; some take megabytes."""
    num_rows, given = 100_000, 480 * MIB
    lengths = rng.integers(0, 4000, num_rows)
    lengths[:: num_rows // 30] = 3 * MIB  # several in one row group take more memory by their bytes
    graph = graph_of(num_rows, num_rows, {}, {}, rng)
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    write_owners(tmp_path / "owners", graph, 5, rng)
    rows = strings_of(lengths, rng)
    buffers = [None, *map(pa.py_buffer, (rows.offsets, rows.values))]
    table = pa.table([pa.Array.from_buffers(pa.large_string(), num_rows, buffers)], names=["s"])
    pq.write_table(table, tmp_path / "in" / "s.parquet", row_group_size=10_000)
    metadata = tmp_path / "in" / "metadata.json"
    entry = '{"%s": {"s": {"format": {"name": "parquet"}, "data": ["s.parquet"]}}}'
    text = metadata.read_text().replace('"node_data": {}', f'"node_data": {entry % NODE}')
    metadata.write_text(text.replace('"edge_data": {}', f'"edge_data": {entry % ":".join(EDGE)}'))
    del rows, table, buffers
    small = graph_of(20, 20, {"s": strings_of(lengths[:20], rng)}, {"s": strings_of(lengths[:20], rng)}, rng)
    write_chunked(small, tmp_path / "small")  # kernels are compiled once: that takes more memory than the work
    dispatch(tmp_path / "small", write_owners(tmp_path / "few", small, 5, rng), tmp_path / "warm", num_workers=0)
    words = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in ("in", "owners", "out")), str(given)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= given, f"{int(done.stdout) / MIB:.0f} MiB"
