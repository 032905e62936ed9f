"""Checks that a node weighs what its part stores for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from hopstream.arrays import RaggedArray
from hopstream.assign.weights import node_weights
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.settings import PartitionSettings
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import typed_graphs
from tests.dataset.timed_graphs import KNOWS, RATES, timed_graph

ENDS = 8
"""The last entry of each offsets array, which belongs to no row."""


def stored_bytes(part) -> int:
    """Bytes of a part's arrays that belong to its own nodes and edges."""
    total = sum(keys.nbytes for keys in part.node_keys.values())
    columns = [c for features in part.node_features.values() for c in features.values()]
    for edges in part.edges.values():
        optional = (edges.times, edges.weight_sums, edges.weight_order, edges.weight_alias, edges.neighbor_keys)
        total += sum(array.nbytes for array in optional if array is not None)
        total += edges.indptr.nbytes - ENDS + edges.indices.nbytes + (0 if edges.keys is None else edges.keys.nbytes)
        columns += edges.features.values()
    for column in columns:
        total += (
            column.values.nbytes + column.offsets.nbytes - ENDS if isinstance(column, RaggedArray) else column.nbytes
        )
    return total


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=typed_graphs())
@pytest.mark.parametrize("keep_edge_keys", [True, False])
def test_byte_weights_equal_written_bytes(tmp_path, graph: Graph, keep_edge_keys: bool):
    chosen = PartitionSettings(num_parts=3, method="hash", direction="both", keep_edge_keys=keep_edge_keys)
    write_parts(graph, tmp_path, settings=chosen, overwrite=True)
    weights = node_weights(graph, chosen)
    dataset = open_dataset(tmp_path)
    for part in map(dataset.open_part, range(3)):
        weight = sum(int(weights[t][keys].sum()) for t, keys in part.node_keys.items())
        assert weight == stored_bytes(part)


@pytest.mark.parametrize("timed", [("user",), (RATES, KNOWS), ("movie", RATES)])
@pytest.mark.parametrize("neighbor_keys", [True, False])
def test_times_weights_and_neighbor_keys_count_their_written_bytes(tmp_path, rng, timed, neighbor_keys):
    graph = timed_graph(rng, timed=timed)
    chosen = PartitionSettings(
        num_parts=3,
        method="hash",
        direction="both",
        time_attr="time",
        weight_attr="rating",
        neighbor_keys=neighbor_keys,
    )
    write_parts(graph, tmp_path, settings=chosen)
    weights, dataset = node_weights(graph, chosen), open_dataset(tmp_path)
    for part in map(dataset.open_part, range(3)):
        weight = sum(int(weights[t][keys].sum()) for t, keys in part.node_keys.items())
        assert weight == stored_bytes(part)


def test_edges_count_both_directions_and_isolated_nodes_still_weigh_one(typed_graph: Graph):
    weights = node_weights(typed_graph, PartitionSettings(balance="edges", direction="both"))
    cites, writes = (typed_graph.edges[t] for t in (("paper", "cites", "paper"), ("author", "writes", "paper")))
    degrees = np.bincount(cites.src_keys, minlength=60) + np.bincount(cites.dst_keys, minlength=60)
    degrees += np.bincount(writes.dst_keys, minlength=60)
    assert weights["paper"].tolist() == np.maximum(degrees, 1).tolist()
    assert weights["institute"].tolist() == [1, 1, 1]
    only_in = node_weights(typed_graph, PartitionSettings(balance="edges"))
    assert only_in["author"].tolist() == [1] * 25


def test_nodes_weigh_one(typed_graph: Graph):
    weights = node_weights(typed_graph, PartitionSettings(balance="nodes"))
    assert all((w == 1).all() and len(w) == typed_graph.nodes[t].num_nodes for t, w in weights.items())
