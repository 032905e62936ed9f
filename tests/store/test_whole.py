"""Checks that all edges of a type are read, in the order of keys, in requests of any size."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import UnknownNameError
from hopstream.schema import EDGE, NODE
from hopstream.store import whole
from hopstream.store.whole import fetch_rows, read_edges
from tests.load.graphs import local_store, make_plain_graph


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize(("max_edges", "max_rows"), [(1 << 22, 1 << 20), (3, 1), (7, 9)])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_all_edges_by_key(tmp_path, monkeypatch, direction, max_edges, max_rows, num_parts):
    monkeypatch.setattr(whole, "MAX_EDGES", max_edges)
    monkeypatch.setattr(whole, "MAX_ROWS", max_rows)
    graph = make_plain_graph(np.random.default_rng(1), num_nodes=20, num_edges=60)
    table = graph.edges[EDGE]
    with local_store(graph, tmp_path / "parts", num_parts, direction="both") as store:
        edges = read_edges(store, EDGE, direction)
        assert sorted(edges.edge_keys) == list(range(60))
        src_keys, dst_keys = edges.ends()
        assert src_keys.tolist() == table.src_keys[edges.edge_keys].tolist()
        assert dst_keys.tolist() == table.dst_keys[edges.edge_keys].tolist()
        own = dst_keys if direction == "in" else src_keys
        assert np.diff(edges.indptr).tolist() == np.bincount(own, minlength=20).tolist()
        schema = store.schema.edges[EDGE]
        rows = fetch_rows(store, (EDGE, direction), dict(schema), edges.edge_ids)
        assert rows["edge_attr"].tolist() == table.features["edge_attr"][edges.edge_keys].tolist()
        assert fetch_rows(store, NODE, {"x": store.schema.nodes[NODE]["x"]}, edges.edge_ids[:0])["x"].shape == (0, 3)


def test_unknown_edge_types_are_refused(tmp_path):
    graph = make_plain_graph(np.random.default_rng(1), num_nodes=20, num_edges=60)
    with local_store(graph, tmp_path / "parts") as store, pytest.raises(UnknownNameError, match="unknown edge type"):
        read_edges(store, (NODE, "from", NODE))
