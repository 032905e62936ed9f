"""Checks that neither parts nor the reported error depend on the number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.assign import source as assign_dataset
from hopstream.assign import source as assign_source
from hopstream.assign.run import assign_nodes
from hopstream.assign.source import AssignSource, open_dataset_source
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import ChunkedGraph, open_chunked, write_chunked
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import community_graph

BLOCK_EDGES = 150


def chunked(graph: Graph, folder: Path, edges_format: str) -> ChunkedGraph:
    write_chunked(graph, folder / edges_format, num_chunks=6, edges_format=edges_format)
    return open_chunked(folder / edges_format)


def as_dataset(graph: Graph, folder: Path) -> AssignSource:
    write_parts(graph, folder / "set", num_parts=5, method="random")
    return open_dataset_source(folder / "set")


@pytest.mark.parametrize("kind", ["memory", "csv", "parquet", "numpy", "dataset"])
def test_parts_do_not_depend_on_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, kind: str
):
    monkeypatch.setattr(assign_source, "BLOCK_EDGES", BLOCK_EDGES)
    monkeypatch.setattr(assign_dataset, "BLOCK_EDGES", BLOCK_EDGES)
    graph = community_graph(rng, 300, 2000)
    source: Graph | ChunkedGraph | AssignSource = graph
    if kind != "memory":
        source = as_dataset(graph, tmp_path) if kind == "dataset" else chunked(graph, tmp_path, kind)
    found = []
    for num_threads in (1, 2, 7):
        for memory_bytes in (1 << 30, 20_000):
            told: list[int] = []
            asked = PartitionSettings(num_parts=3, method="ldg", balance_edges=True, num_threads=num_threads)
            assigned = assign_nodes(
                source, asked, memory_bytes=memory_bytes,
                progress=lambda stage, done, _, told=told: told.append(done) if stage == "edges" else None,
            )  # fmt: skip
            assert told == sorted(told) and (told[0], told[-1]) == (0, 2000) and len(told) > 6
            found.append((assigned.owners["node"].tolist(), assigned.cut))
    assert all(one == found[0] for one in found)


def test_the_first_bad_file_is_named(tmp_path: Path, rng: np.random.Generator):
    graph = chunked(community_graph(rng, 300, 2000), tmp_path, "csv")
    for path in sorted((tmp_path / "csv").rglob("*.csv"))[2:]:
        path.write_text(path.read_text().replace("1", "x"))
    messages = set()
    for num_threads in (1, 4):
        with pytest.raises(SchemaError) as caught:
            assign_nodes(graph, PartitionSettings(num_parts=3, method="ldg", num_threads=num_threads))
        messages.add(str(caught.value))
    assert len(messages) == 1 and "2.csv line" in messages.pop()
