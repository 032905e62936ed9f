"""Is a dataset that was appended to re-sharded into what the grown graph is written as in one go?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.graph.graph import EdgeTable
from hopstream.partition.layout import write_parts
from hopstream.partition.reshard import newest
from hopstream.partition.reshard.run import reshard
from tests.grown import grow
from tests.partition.append.graphs import OPTIONS
from tests.partition.audit.forging import full_graph
from tests.partition.timed_graphs import KNOWS


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


@pytest.mark.parametrize(("num_parts", "num_appends", "gap"), [(1, 3, 1), (3, 1, 1 << 14), (2, 3, 64)])
@pytest.mark.parametrize("keeps", [True, False])
def test_bytes_are_those_of_one_go(tmp_path, monkeypatch, num_parts, num_appends, gap, keeps):
    monkeypatch.setattr(newest, "GAP_BYTES", gap)
    monkeypatch.setattr(newest, "BLOCK_ITEMS", 7)
    graph, options = grown(), {**OPTIONS, "keep_edge_keys": keeps}
    graph.write(tmp_path / "d", num_parts, num_appends, **options)
    found = reshard(tmp_path / "d", tmp_path / "new", num_parts=3, method="hash", num_workers=0)
    wanted = write_parts(graph.graph, tmp_path / "one", num_parts=3, method="hash", **options)
    assert found.files == wanted.files
    assert found.dataset_id == wanted.dataset_id
    report, told = found.report, wanted.report
    assert (report.cuts, report.edges, report.seeds) == (told.cuts, told.edges, told.seeds)
    assert report.edges_between == told.edges_between
