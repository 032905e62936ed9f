"""Is the graph that METIS and KaMinPar see symmetric and free of loops, duplicates and isolated nodes?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings

from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.partition import flatten
from hopstream.partition.flatten import flatten_graph, type_offsets
from tests import naive
from tests.partition.graphs import typed_graphs


@settings(max_examples=200, deadline=None)
@given(graph=typed_graphs())
@pytest.mark.parametrize("chunk_edges", [3, 1 << 22])
def test_flat_graph_equals_the_naive_reference(graph: Graph, chunk_edges: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flatten, "CHUNK_EDGES", chunk_edges)
        flat = flatten_graph(graph)
    wanted = naive.undirected_neighbors(graph)
    assert flat.positions.tolist() == list(wanted)
    positions = flat.positions[flat.neighbors].tolist()
    rows = zip(flat.indptr[:-1].tolist(), flat.indptr[1:].tolist(), strict=True)
    assert [positions[a:b] for a, b in rows] == list(wanted.values())
    assert flat.neighbors.dtype == flat.indptr.dtype == np.int64


def test_types_are_laid_out_one_after_the_other(typed_graph: Graph):
    assert type_offsets(typed_graph) == {"paper": 0, "author": 60, "institute": 85}


def test_more_nodes_than_32_bits_count_are_refused():
    @dataclass
    class Huge:
        num_nodes: int

    with pytest.raises(SettingsError, match="use random or hash"):
        flatten_graph(Graph(nodes={"node": Huge(1 << 32)}))
