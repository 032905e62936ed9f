"""Checks that induced trees are the batches of PyG's ``ShaDowKHopSampler``, by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.load.loader import NeighborLoader
from tests.load.graphs import make_plain_graph

DEPTH = 2


@pytest.mark.parametrize("num_neighbors", [-1, 3])
def test_each_root_has_the_subgraph_between_its_own_nodes(num_neighbors):
    """With all neighbours, the nodes are those within ``DEPTH`` hops."""
    graph = make_plain_graph(np.random.default_rng(6))
    edges, roots = graph.edges["node", "to", "node"], [7, 3, 7, 79]
    with NeighborLoader(
        graph, [num_neighbors] * DEPTH, input_nodes=roots, batch_size=4, disjoint=True, subgraph_type="induced"
    ) as loader:
        (batch,) = loader
    assert batch.n_id[: batch.batch_size].tolist() == roots
    assert batch.batch[: batch.batch_size].tolist() == [0, 1, 2, 3]
    for tree, root in enumerate(roots):
        nodes = batch.n_id[batch.batch == tree].numpy()
        reached, frontier = {root}, {root}
        for _ in range(DEPTH):
            frontier = set(edges.src_keys[np.isin(edges.dst_keys, list(frontier))].tolist()) - reached
            reached |= frontier
        assert len(set(nodes)) == len(nodes)
        assert set(nodes) == reached if num_neighbors == -1 else set(nodes) <= reached
        if num_neighbors == 3:
            assert len(nodes) <= 1 + 3 + 9
        is_inside = np.isin(edges.src_keys, nodes) & np.isin(edges.dst_keys, nodes)
        is_own = batch.batch[batch.edge_index[1]] == tree
        assert sorted(batch.e_id[is_own].tolist()) == np.flatnonzero(is_inside).tolist()
        assert (batch.batch[batch.edge_index[0][is_own]] == tree).all()
    assert len(batch.e_id) > 20
