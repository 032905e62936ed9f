"""Checks that the flattened graph is symmetric, grouped and simple, and made in the given memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from hopstream.assign import flatten
from hopstream.assign.flatten import AdjacencyBuilder, SymmetricGraph, type_offsets
from hopstream.assign.source import source_of
from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from tests import naive
from tests.dataset.graphs import community_graph, typed_graphs


def adjacency_of(
    graph: Graph, memory_bytes: int = 1 << 30, scratch: Path | None = None, num_threads: int = 1
) -> SymmetricGraph:
    source = source_of(graph)
    firsts = type_offsets(source.num_nodes)
    num_nodes = sum(source.num_nodes.values())
    with AdjacencyBuilder(
        num_nodes, source.num_edges, memory_bytes=memory_bytes, num_threads=num_threads, scratch=scratch
    ) as builder:
        for (src_type, _, dst_type), edges in source.edges.items():
            for _, src_keys, dst_keys in edges.blocks():
                builder.add(src_keys, dst_keys, firsts[src_type], firsts[dst_type])
        return builder.finish()


@settings(max_examples=15, deadline=None)
@given(graph=typed_graphs())
@pytest.mark.parametrize(("chunk_ends", "memory_bytes"), [(3, 64), (1 << 22, 400), (3, 1 << 30)])
def test_adjacency_equals_the_naive_reference(graph: Graph, chunk_ends: int, memory_bytes: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flatten, "CHUNK_ENDS", chunk_ends)
        with adjacency_of(graph, memory_bytes) as found:
            blocks = list(found.blocks())
    wanted = naive.undirected_neighbors(graph)
    assert found.connected().tolist() == list(wanted)
    assert [b[0] for b in blocks[1:]] == [b[1] for b in blocks[:-1]]
    assert all(len(b[2]) <= chunk_ends or b[1] - b[0] == 1 for b in blocks)
    neighbors = np.concatenate([b[2] for b in blocks]) if blocks else np.empty(0, np.uint32)
    assert neighbors.dtype == np.uint32 and found.indptr.dtype == np.int64 and len(neighbors) == found.num_ends
    assert [neighbors[found.indptr[v] : found.indptr[v + 1]].tolist() for v in wanted] == list(wanted.values())


@pytest.mark.parametrize(("num_threads", "bucket_ends"), [(1, 64), (2, 1), (5, 5000)])
def test_adjacency_is_the_same_for_any_buckets_and_threads(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, bucket_ends: int, num_threads: int
):
    graph = community_graph(rng, 900, 6000)
    wanted = naive.undirected_neighbors(graph)
    monkeypatch.setattr(flatten, "BUCKET_ENDS", bucket_ends)
    monkeypatch.setattr(flatten, "BLOCK_EDGES", 700)
    monkeypatch.setattr(flatten, "CELL_BITS", 7)
    with adjacency_of(graph, num_threads=num_threads) as found:
        ((_, _, neighbors),) = found.blocks()
    assert neighbors.tolist() == [neighbor for row in wanted.values() for neighbor in row]
    assert found.connected().tolist() == list(wanted)


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_have_no_name_and_end_with_their_graph(tmp_path, rng):
    graph = community_graph(rng, 300, 4000)
    open_before = num_open_files()
    found = adjacency_of(graph, 1 << 12, tmp_path)
    assert num_open_files() == open_before + 1 and not list(tmp_path.iterdir())
    found.close()
    assert num_open_files() == open_before
    with AdjacencyBuilder(9, 99, memory_bytes=64, scratch=tmp_path) as builder:
        builder.add(np.array([1, 2]), np.array([2, 3]))
    assert num_open_files() == open_before


def test_memory_stays_within_the_given_bound(rng, tmp_path):
    """64 MB of edges in both directions, with 4 MB to hold them."""
    num_nodes, num_edges, block_edges, given = 10_000, 4_000_000, 50_000, 4 << 20
    ends = rng.integers(0, num_nodes, (2, block_edges))
    tracemalloc.start()
    try:
        with AdjacencyBuilder(num_nodes, num_edges, memory_bytes=given, scratch=tmp_path) as builder:
            for turn in range(num_edges // block_edges):
                builder.add(ends[0], (ends[1] + turn) % num_nodes)
            with builder.finish() as found:
                assert sum(len(block) for _, _, block in found.blocks(1 << 16)) == found.num_ends > num_edges
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < given + 16 * num_nodes + 100 * block_edges


def test_types_are_laid_out_one_after_the_other(typed_graph: Graph):
    assert type_offsets({t: table.num_nodes for t, table in typed_graph.nodes.items()}) == {
        "paper": 0,
        "author": 60,
        "institute": 85,
    }


def test_more_nodes_than_32_bits_count_are_refused():
    with pytest.raises(SettingsError, match="use hash"):
        AdjacencyBuilder(1 << 32, 0, memory_bytes=0)
