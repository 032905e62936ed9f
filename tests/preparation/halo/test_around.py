"""Checks the surroundings of a part, found in memory, against an edge-by-edge walk."""

import numpy as np
import pytest

from hopstream.compat.dgl.in_memory import around_part
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph


def walk(graph, owners, part, num_hops):
    """Hops of nodes and edges within, one edge at a time."""
    hops = {(t, key): 0 for t, owner in owners.items() for key in np.flatnonzero(owner == part).tolist()}
    inner, within = set(hops), set()
    listed = [
        (t, number, (t[0], src), (t[2], dst))
        for t, edges in graph.edges.items()
        for number, (src, dst) in enumerate(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))
    ]
    for t, number, src, dst in listed:
        if dst in inner and (num_hops or src in inner):
            within.add((t, number))
    frontier = inner
    for hop in range(1, num_hops + 1):
        found = set()
        for t, number, src, dst in listed:
            if dst in frontier and (hop == 1 or src not in inner):
                within.add((t, number))
                found |= {src} - hops.keys()
        hops |= dict.fromkeys(found, hop)
        frontier = found
    if num_hops:
        for t, number, src, dst in listed:
            if src in inner and dst not in inner:
                within.add((t, number))
                hops.setdefault(dst, num_hops + 1)
    return hops, within


@pytest.mark.parametrize("num_hops", [0, 1, 2, 3])
@pytest.mark.parametrize("graph", [plain_graph(40, 60), typed_graph()], ids=["plain", "typed"])
def test_nodes_and_edges_are_those_of_a_walk(graph, num_hops):
    owners = some_owners(graph, 4)
    for part in range(4):
        around = around_part(graph, owners, part, num_hops)
        hops, within = walk(graph, owners, part, num_hops)
        assert {(t, k): of[k] for t, of in around.hops.items() for k in np.flatnonzero(of >= 0).tolist()} == hops
        assert {(t, k) for t, keys in around.edge_keys.items() for k in keys.tolist()} == within
        assert all((np.diff(keys) > 0).all() for keys in around.edge_keys.values())


def test_hops_end_where_no_node_is_found():
    graph, owners = plain_graph(20, 30), {"node": np.arange(20) % 2}
    near, far = (around_part(graph, owners, 0, num_hops) for num_hops in (20, 10**9))
    assert np.array_equal(near.edge_keys["node", "to", "node"], far.edge_keys["node", "to", "node"])
    is_near, is_far = ((around.hops["node"] >= 0) & (around.hops["node"] <= 20) for around in (near, far))
    assert np.array_equal(is_near, is_far)


def test_a_part_without_nodes_has_nothing_around_it():
    graph = plain_graph(5, 8)
    around = around_part(graph, {"node": np.zeros(5, np.int32)}, 1, 2)
    assert (around.hops["node"] == -1).all() and not len(around.edge_keys["node", "to", "node"])
