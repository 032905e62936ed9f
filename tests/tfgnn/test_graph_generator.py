"""Checks that random graphs are valid under their spec, and repeat for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SchemaError, SettingsError
from hopstream.tfgnn.graph_generator import random_graphs
from hopstream.tfgnn.graph_schema import check_schema, parse_schema
from hopstream.tfgnn.graph_tensor import decode_graph, encode_graphs
from hopstream.tfgnn.random_settings import RandomSettings
from hopstream.tfgnn.readout import check_readout
from hopstream.tfgnn.spec import GraphSpec
from tests.tfgnn.schemas import EVERYTHING, same_graphs


@pytest.fixture(scope="module")
def spec():
    schema = parse_schema(EVERYTHING)
    check_schema(schema)
    return GraphSpec.of_schema(schema)


@pytest.mark.parametrize("settings", [RandomSettings(), RandomSettings(num_components=3, min_nodes=0, max_nodes=2)])
def test_graphs_are_valid(spec, settings):
    graphs = random_graphs(spec, range(60), rng_seed=5, settings=settings)
    encoded = encode_graphs(graphs)
    num_predictions = 0
    for number in range(60):
        graph = decode_graph(encoded[number], spec, num_components=settings.num_components)
        check_readout(graph)
        num_predictions += int(graph.node_sets["_readout"].sizes.sum())
        assert np.array_equal(graph.node_sets["_shadow/writes"].sizes, graph.edge_sets["writes"].sizes)
    sizes = graphs.node_sets["paper"].sizes
    assert set(sizes.tolist()) == set(range(settings.min_nodes, settings.max_nodes + 1))
    assert (num_predictions == 60) == (settings.min_nodes > 0)
    for edges in graphs.edge_sets.values():  # edges stay inside their component
        for indices, node_set in ((edges.source, edges.source_set), (edges.target, edges.target_set)):
            ends = np.concatenate([np.cumsum(s) for s in np.split(graphs.node_sets[node_set].sizes, 60)])
            begins = ends - graphs.node_sets[node_set].sizes
            component = np.repeat(np.arange(len(edges.sizes)), edges.sizes)
            assert np.all(indices >= begins[component]) and np.all(indices < ends[component])


def test_a_graph_depends_on_its_number_and_the_seed_alone(spec):
    same_graphs(random_graphs(spec, [7], rng_seed=1), random_graphs(spec, range(7, 8), rng_seed=1))
    some, other = (random_graphs(spec, [3], rng_seed=1), random_graphs(spec, [3], rng_seed=2))
    assert encode_graphs(some)[0] != encode_graphs(other)[0]
    assert (
        encode_graphs(random_graphs(spec, [3, 7], rng_seed=1))[1]
        == encode_graphs(random_graphs(spec, [7], rng_seed=1))[0]
    )


@pytest.mark.parametrize("settings", [{"min_nodes": 3, "max_nodes": 2}, {"max_row": -1}, {"num_components": 0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(SettingsError, match=next(iter(settings))):
        RandomSettings(**settings)


def test_no_graph_is_refused(spec):
    with pytest.raises(SchemaError, match="no graph is given"):
        random_graphs(spec, [])
