"""Dispatch graphs in memory, and compare the bytes with those of ``write_parts``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.assign import owners
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import path_name
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import chunked_of_graph, sources
from hopstream.preparation.dispatch import dispatch_folder, spill
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of


def without_edge_splits(graph: Graph) -> Graph:
    """The graph as a chunked graph can have it: no splits of edges."""
    return Graph(
        nodes=graph.nodes, edges=graph.edges, splits={t: graph.splits[t] for t in graph.nodes if graph.splits.get(t)}
    )


def write_owners(folder: Path, graph: Graph, num_parts: int, rng: np.random.Generator) -> Path:
    """Random owners, of some types as text."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for i, (node_type, table) in enumerate(graph.nodes.items()):
        owner = rng.integers(0, num_parts, table.num_nodes)
        if i % 2:
            np.savetxt(folder / f"{path_name(node_type)}.txt", owner, "%d")
        else:
            np.save(folder / f"{path_name(node_type)}.npy", owner.astype(np.int32))
    return folder


def use_graph(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> None:
    """Let jobs of this process read a graph from memory."""
    monkeypatch.setattr(dispatch_folder, "open_source", lambda spec: chunked_of_graph(graph))


def cut_small(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Limit pieces, buckets, runs and blocks to about ``size`` rows, so small graphs take many tasks."""
    bucket = max(1, size // 2)
    limits = dispatch_folder.DispatchLimits(
        piece_edges=(size, size), bucket_edges=(bucket, bucket), column_bytes=(16 * size, 16 * size)
    )
    monkeypatch.setattr(dispatch_folder, "LIMITS", limits)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 40)
    monkeypatch.setattr(dispatch_folder, "GUESSES", 4)
    for module in (spill, spill):
        monkeypatch.setattr(module, "BLOCK_EDGES", 3)
    for module in (dispatch_folder, owners):
        monkeypatch.setattr(module, "BLOCK_ROWS", 5)
    monkeypatch.setattr(owners, "TEXT_BYTES", 4)


def check_equal(graph: Graph, folder: Path, num_parts: int, **options: object) -> tuple[Manifest, Manifest]:
    """Dispatch the graph given to ``use_graph``; compare every byte with the output of ``write_parts``."""
    got = dispatch(
        folder / "in", folder / "owners", folder / "got", num_workers=0, num_parts=num_parts, overwrite=True, **options
    )
    wanted = write_parts(
        graph, folder / "wanted", num_parts=num_parts, owners=folder / "owners", overwrite=True, **options
    )
    check_same(folder / "got", folder / "wanted", got, wanted)
    return got, wanted


def check_same(
    got_root: Path, wanted_root: Path, got: Manifest, wanted: Manifest, ignored: tuple[str, ...] = ()
) -> None:
    """Check that two datasets are equal except for timings and the ignored fields of their manifests."""
    trees = [tree_of(root) for root in (got_root, wanted_root)]
    for tree in trees:
        del tree["manifest.json"]  # it holds times
    assert trees[0].keys() == trees[1].keys()
    assert [name for name in trees[0] if trees[0][name] != trees[1][name]] == []
    assert (got.dataset_id, got.graph_id, got.report) == (wanted.dataset_id, wanted.graph_id, wanted.report)
    left, right = got.to_json(), wanted.to_json()
    for value in (left, right):
        del value["report"]["stages"], value["digest"]
        for name in ignored:
            del value[name]
    assert left == right
