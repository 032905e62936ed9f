"""Checks that each node gets one id and each edge one place per direction, in original order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.dataset.book import ends_of
from hopstream.dataset.split import split_by_owner, split_edges, split_nodes
from hopstream.errors import IdRangeError
from hopstream.graph.graph import Graph
from tests import naive
from tests.dataset.graphs import typed_graphs


@given(st.lists(st.integers(0, 4), max_size=30), st.sampled_from([5, 70_000]))
def test_nodes_are_numbered_like_the_naive_reference(owner: list[int], num_parts: int):
    split = split_nodes(np.array(owner, np.int32), num_parts)
    keys, ids_of_keys = naive.split_nodes(owner, 5)
    assert split.keys.tolist() == keys
    assert split.ids_of_keys.tolist() == ids_of_keys
    assert split.offsets.tolist()[:6] == [sum(o < part for o in owner) for part in range(6)]
    assert len(split.offsets) == num_parts + 1 and split.offsets[-1] == len(owner)


@pytest.mark.parametrize(("owner", "message"), [([0, 3], r"owner\[1\] is 3; parts are numbered 0..2"), ([-1], "is -1")])
def test_unknown_parts_are_refused(owner, message):
    with pytest.raises(IdRangeError, match=message):
        split_by_owner(np.array(owner, np.int32), 3)


@settings(max_examples=25, deadline=None)
@given(graph=typed_graphs(), num_parts=st.integers(1, 6), data=st.data())
@pytest.mark.parametrize("direction", ["in", "out"])
def test_edges_are_owned_once_in_original_order(graph: Graph, num_parts: int, data, direction):
    owners = {
        t: data.draw(st.lists(st.integers(0, num_parts - 1), min_size=n.num_nodes, max_size=n.num_nodes))
        for t, n in graph.nodes.items()
    }
    nodes = {t: split_nodes(np.array(owner, np.int32), num_parts) for t, owner in owners.items()}
    for edge_type, edges in graph.edges.items():
        split = split_edges(edges, edge_type, direction, nodes)
        own, other = (nodes[t] for t in ends_of(edge_type, direction))
        assert sorted(split.keys.tolist()) == list(range(edges.num_edges))
        neighbors = other.keys[split.indices].tolist()
        for part in range(num_parts):
            rows = range(own.offsets[part], own.offsets[part + 1])
            spans = [(int(split.indptr[row]), int(split.indptr[row + 1])) for row in rows]
            got = [list(zip(neighbors[a:b], split.keys[a:b].tolist(), strict=True)) for a, b in spans]
            assert got == naive.part_edges(graph, edge_type, direction, owners, part)
            if spans:
                assert (spans[0][0], spans[-1][1]) == tuple(split.offsets[part : part + 2].tolist())
