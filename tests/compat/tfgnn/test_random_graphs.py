"""Checks that random graph tensors fit their spec and sizes, and repeat for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

import hopstream.compat.tfgnn as tfgnn
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from tests.compat.tfgnn.graphs import as_lists, links_spec

SPEC = links_spec()


def test_the_seed_determines_the_graph():
    first = tfgnn.random_graph_tensor(SPEC, rng_seed=1)
    assert as_lists(first) == as_lists(tfgnn.random_graph_tensor(SPEC, rng_seed=1))
    assert as_lists(first) != as_lists(tfgnn.random_graph_tensor(SPEC, rng_seed=2))
    assert as_lists(tfgnn.random_graph_tensor(SPEC)) != as_lists(tfgnn.random_graph_tensor(SPEC))


@pytest.mark.parametrize("lengths", [(2, 8), (0, 1)])
def test_graphs_are_of_their_spec_and_sizes(lengths):
    """With few nodes some components have none; a readout from those must be empty."""
    seen = set()
    for seed in range(20):
        graph = tfgnn.random_graph_tensor(
            SPEC, row_lengths_range=lengths, num_components_range=(1, 3), rng_seed=seed
        )  # fmt: skip
        seen.add(graph.num_components)
        rebuilt = tfgnn.GraphTensor.from_pieces(graph.context, graph.node_sets, graph.edge_sets)  # checks indices
        relaxed = SPEC.relax(num_components=True, num_nodes=True, num_edges=True)
        assert relaxed.problems(rebuilt) == []
        assert tfgnn.validate_graph_tensor_for_readout(rebuilt, ["source", "target", "edge"])
        sizes = graph.node_sets["users"].sizes
        assert np.all((sizes >= lengths[0]) & (sizes <= lengths[1]))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        buys = graph.edge_sets["buys"]
        component = np.searchsorted(starts, buys.adjacency.source, side="right") - 1
        if lengths[0]:
            assert component.tolist() == np.repeat(np.arange(graph.num_components), buys.sizes).tolist()
    assert seen == {1, 2, 3}


def test_values_are_drawn_from_samples():
    samples = {
        (tfgnn.CONTEXT, None, "label"): ["x", "y"], (tfgnn.NODES, "_readout", "label"): [0, 1],
        (tfgnn.NODES, "users", "tags"): [b"t"], (tfgnn.EDGES, "buys", "h"): [0.5, 0.25],
    }  # fmt: skip
    graph = tfgnn.random_graph_tensor(SPEC, samples, rng_seed=3)
    assert set(graph.context["label"].reshape(-1)) <= {b"x", b"y"}
    assert set(graph.node_sets["_readout"]["label"].tolist()) <= {0, 1}
    assert graph.node_sets["_readout"]["label"].dtype == np.int64
    assert set(np.unique(graph.edge_sets["buys"]["h"]).tolist()) == {0.5, 0.25}
    assert set(graph.node_sets["users"]["tags"].flat) == {"t"}
    with pytest.raises(SchemaError, match=r"'label'\)\] has strings; the schema says int64"):
        tfgnn.random_graph_tensor(SPEC, {(tfgnn.NODES, "_readout", "label"): ["a"]}, rng_seed=3)
    with pytest.raises(UnknownNameError, match=r"sample_dict names \('nodes', 'nobody', 'x'\), which is not a feature"):
        tfgnn.random_graph_tensor(SPEC, {(tfgnn.NODES, "nobody", "x"): [1]})


def test_an_invalid_readout_is_refused():
    text = 'node_sets { key: "a" value { } } edge_sets { key: "_readout/seed" value { source: "a" target: "a" } }'
    spec = tfgnn.create_graph_spec_from_schema_pb(tfgnn.parse_schema(text))
    with pytest.raises(SchemaError, match=r"edge set '_readout/seed' goes to 'a'; its target is '_readout'"):
        tfgnn.random_graph_tensor(spec)


def test_wrong_ranges_are_named():
    with pytest.raises(SettingsError, match=r"row_lengths_range is \(3, 2\)"):
        tfgnn.random_graph_tensor(SPEC, row_lengths_range=(3, 2))
    with pytest.raises(SettingsError, match=r"num_components_range is \(-1, 2\)"):
        tfgnn.random_graph_tensor(SPEC, num_components_range=(-1, 2))
