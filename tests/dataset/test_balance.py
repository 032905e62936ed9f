"""Checks that the report of a cut counts what a slow loop counts."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.dataset import balance
from hopstream.dataset.balance import PartitionReport, StageCost, count_seeds, max_over_mean, measure_cut
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import typed_graphs


@settings(deadline=None)
@given(graph=typed_graphs(), num_parts=st.integers(1, 6), data=st.data())
@pytest.mark.parametrize("chunk_edges", [4, 1 << 22])
def test_cut_equals_a_slow_count(graph: Graph, num_parts: int, data, chunk_edges: int):
    owners = {
        t: np.array(data.draw(st.lists(st.integers(0, num_parts - 1), min_size=n.num_nodes, max_size=n.num_nodes)))
        .astype(np.int32) for t, n in graph.nodes.items()
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "CHUNK_EDGES", chunk_edges)
        cuts, between = measure_cut(graph, owners, num_parts)
    pairs = Counter()
    for edge_type, edges in graph.edges.items():
        ends = [
            (int(owners[edge_type[0]][s]), int(owners[edge_type[2]][d]))
            for s, d in zip(edges.src_keys, edges.dst_keys, strict=True)
        ]
        pairs.update(ends)
        assert (cuts[edge_type].num_edges, cuts[edge_type].num_cut) == (len(ends), sum(p != q for p, q in ends))
    assert {(p, q): n for p, row in enumerate(between.tolist()) for q, n in enumerate(row) if n} == dict(pairs)
    seeds = count_seeds(graph, owners, num_parts)
    assert {name: sum(counts) for name, counts in seeds.items()} == {
        (t, s): len(keys) for t, splits in graph.splits.items() for s, keys in splits.items()
    }


def test_with_many_parts_the_matrix_is_left_out(typed_graph: Graph):
    owners = {t: np.arange(n.num_nodes, dtype=np.int32) * 3 for t, n in typed_graph.nodes.items()}
    cuts, between = measure_cut(typed_graph, owners, 300)
    assert between.shape == (0, 0)
    cites = typed_graph.edges["paper", "cites", "paper"]
    assert cites.num_edges > cuts["paper", "cites", "paper"].num_cut == int((cites.src_keys != cites.dst_keys).sum())


def test_the_report_agrees_with_the_files(tmp_path, typed_graph: Graph):
    report = write_parts(typed_graph, tmp_path, num_parts=3, method="random", direction="both").report
    sizes = [sum(p.stat().st_size for p in folder.rglob("*.npy")) for folder in sorted(tmp_path.glob("part-*"))]
    assert report.bytes == tuple(sizes)
    parts = [open_dataset(tmp_path).open_part(p) for p in range(3)]
    assert report.nodes == tuple(sum(map(len, part.node_keys.values())) for part in parts)
    assert report.edges == tuple(sum(len(e.indices) for e in part.edges.values()) for part in parts)
    train = set(typed_graph.splits["paper"]["train"].tolist())
    assert report.seeds["paper", "train"] == tuple(len(train & set(p.node_keys["paper"].tolist())) for p in parts)
    assert [s.name for s in report.stages] == ["assign", "measure", "write"]
    assert all(s.seconds >= 0 and s.peak_bytes > 1 << 20 for s in report.stages)
    assert set(report.balance) == {"nodes", "edges", "bytes", "seeds paper/train", "seeds paper/val"}
    assert report.balance["nodes"] == max(report.nodes) / np.mean(report.nodes)
    assert 0.5 < report.cut.fraction < 0.8
    assert report.cut.num_edges == sum(map(sum, report.edges_between)) == 435


def test_json_and_back(tmp_path, typed_graph: Graph):
    report = write_parts(typed_graph, tmp_path, num_parts=2).report
    again = PartitionReport.from_json(json.loads(json.dumps(report.to_json())))
    assert again == report
    assert again.stages[0] == StageCost(
        name="assign", seconds=round(report.stages[0].seconds, 3), peak_bytes=report.stages[0].peak_bytes
    )


@pytest.mark.parametrize("value", [None, [], {}, {"edge_types": 3}, {"edge_types": [{"type": 1}]}])
def test_invalid_reports_are_refused(value):
    with pytest.raises(FormatError, match="not a partition report"):
        PartitionReport.from_json(value)


@pytest.mark.parametrize(("loads", "wanted"), [((1, 1), 1.0), ((3, 1), 1.5), ((0, 0), 1.0), ((5,), 1.0)])
def test_max_over_mean(loads, wanted):
    assert max_over_mean(loads) == wanted
