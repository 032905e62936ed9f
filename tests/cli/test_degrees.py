"""Checks that degree summaries equal numpy's, whatever the chunks in which degrees are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.cli import census
from hopstream.cli.census import DegreeSummary, degrees_of_dataset, degrees_of_store, summarize
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE
from hopstream.store.local import LocalStore


def no_progress(stage: str, done: int, total: int) -> None:
    pass


def check(summary: DegreeSummary, degrees: np.ndarray):
    """Compare with a slow, obvious summary."""
    assert summary.num_nodes == len(degrees)
    assert summary.num_edges == degrees.sum()
    assert summary.num_isolated == np.sum(degrees == 0)
    assert sum(summary.histogram) == len(degrees)
    for i, count in enumerate(summary.histogram):
        assert count == np.sum([int(d).bit_length() == i for d in degrees])
    if len(degrees):
        ascending = np.sort(degrees)
        assert (summary.smallest, summary.largest) == (ascending[0], ascending[-1])
        assert summary.mean == pytest.approx(degrees.mean())
        for value, share in ((summary.median, 50), (summary.p99, 99)):
            wanted = next(d for d in ascending if 100 * np.sum(ascending <= d) >= share * len(ascending))
            assert value == wanted


@pytest.mark.parametrize("sizes", [[0], [1], [7, 0, 3], [400], [100, 101]])
def test_summaries_are_exact(rng: np.random.Generator, sizes: list[int]):
    # About one in three is too large for a counter, and some are exactly powers of two.
    def draw(n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.3, rng.integers(0, 1 << 40, n), 1 << rng.integers(0, 18, n)) * (
            rng.random(n) < 0.8
        )

    chunks = [draw(n).astype(np.int64) for n in sizes]
    check(summarize(EDGE, "in", iter(chunks)), np.concatenate(chunks))


def test_degrees_of_no_nodes_are_zeros():
    summary = summarize(EDGE, "out", iter(()))
    assert (summary.num_nodes, summary.mean, summary.median, summary.p99, summary.histogram) == (0, 0.0, 0, 0, (0,))


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_dataset_and_its_store_agree_with_the_graph(
    typed_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parts: int
):
    monkeypatch.setattr(census, "CHUNK_NODES", 7)
    write_parts(typed_graph, tmp_path, num_parts=num_parts, method="hash", direction="both")
    dataset = open_dataset(tmp_path)
    summaries = degrees_of_dataset(dataset, no_progress)
    with LocalStore(dataset) as store:
        assert degrees_of_store(store, no_progress) == summaries
    assert len(summaries) == 2 * len(typed_graph.edges)
    for summary in summaries:
        edges = typed_graph.edges[summary.edge_type]
        keys = edges.dst_keys if summary.direction == "in" else edges.src_keys
        check(summary, np.bincount(keys, minlength=typed_graph.nodes[summary.node_type].num_nodes))


def test_descending_offsets_are_reported(typed_graph: Graph, tmp_path: Path):
    write_parts(typed_graph, tmp_path, num_parts=1)
    path = tmp_path / "part-00000/edge/paper__cites__paper/in/indptr.npy"
    indptr = np.load(path)
    indptr[3] = 10**6
    np.save(path, indptr)
    with pytest.raises(FormatError, match=r"paper__cites__paper/in/indptr\.npy has crc32c"):
        degrees_of_dataset(open_dataset(tmp_path), no_progress)
