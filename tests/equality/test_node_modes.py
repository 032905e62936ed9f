"""Checks that batches are bit-equal in every way of sampling nodes, over any parts and threads.

One process over one part is the yardstick. The graph without types has times and weights of edges; the graph with types
has times of nodes, of edges, of both and of neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.loader import NeighborLoader
from hopstream.schema import EDGE, NODE
from tests.equality.batches import Batches, assert_all_differ, compared_batches, in_places
from tests.load.graphs import RATES, make_timed_graph
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

NUM_SEEDS = 42
REVIEWED = ("paper", "reviewed_by", "user")


def _plain_graph() -> Graph:
    rng = np.random.default_rng(11)
    num_nodes, num_edges = 100, 900
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features={"x": rng.standard_normal((num_nodes, 3))})},
        edges={
            EDGE: EdgeTable(
                src_keys=rng.integers(0, num_nodes, num_edges),
                dst_keys=(rng.random(num_edges) ** 2 * num_nodes).astype(np.int64),
                features={"time": rng.integers(0, 60, num_edges), "weight": rng.integers(0, 9, num_edges)},
            )
        },
    ).check()


def _typed_graph() -> Graph:
    """The timed graph of all loaders, and the reverses of some ratings under a name that does not say so."""
    graph = make_timed_graph(np.random.default_rng(12), num_papers=2 * NUM_SEEDS, num_users=40)
    ratings = graph.edges[RATES]
    reviewed = EdgeTable(src_keys=ratings.dst_keys[::3], dst_keys=ratings.src_keys[::3])
    return replace(graph, edges={**graph.edges, REVIEWED: reviewed}).check()


GRAPHS = {"plain": _plain_graph(), "typed": _typed_graph()}
WEIGHT = {"plain": "weight", "typed": "stars"}
OPTIONS = {
    "plain": {"num_neighbors": [3, 2], "seeds": np.arange(2 * NUM_SEEDS)[::2]},
    "typed": {"num_neighbors": {"default": [3, 2]}, "seeds": ("paper", "train")},
}
TEMPORAL = {"time_attr": "time", "input_time": np.random.default_rng(13).integers(0, 60, NUM_SEEDS)}
WEIGHTED = {"weight_attr": None}
"""None is replaced by the name of the graph's weights."""
HEAVIEST = {**WEIGHTED, "sampling": "top_k"}
LABOR = {"sampling": "labor"}
BIDIRECTIONAL, INDUCED = {"subgraph_type": "bidirectional"}, {"subgraph_type": "induced"}
ONE_TYPE = {"num_neighbors": {RATES: [3, 2], "default": [0, 0]}}
MODES: dict[str, dict[str, dict]] = {
    "plain": {
        "disjoint": {"disjoint": True},
        "temporal": TEMPORAL,
        "latest": {**TEMPORAL, "temporal_strategy": "last"},
        "weighted in time": {**WEIGHTED, **TEMPORAL},
        "heaviest": HEAVIEST,
        "labor": LABOR,
        "bidirectional": BIDIRECTIONAL,
        "induced": INDUCED,
    },
    "typed": {
        "disjoint": {"disjoint": True},
        "disjoint with replacement": {"disjoint": True, "replace": True},
        "temporal": TEMPORAL,
        "temporal, own times": {"time_attr": "time"},
        "temporal, exclusive": {**TEMPORAL, "time_inclusive": False},
        "temporal with replacement": {**TEMPORAL, "replace": True},
        "latest": {**TEMPORAL, "temporal_strategy": "last"},
        "weighted": WEIGHTED,
        "weighted with replacement": {**WEIGHTED, "replace": True},
        "weighted in time": {**WEIGHTED, **TEMPORAL},
        "heaviest": HEAVIEST,
        "heaviest in time": {**HEAVIEST, **TEMPORAL},
        "labor": LABOR,
        "labor, dependent": {**LABOR, "batch_dependency": 3, "layer_dependency": True},
        "labor in time": {**LABOR, **TEMPORAL},
        "bidirectional": BIDIRECTIONAL,
        "bidirectional, declared reverses": {**BIDIRECTIONAL, "reverse_types": {RATES: REVIEWED}},
        "bidirectional in time": {**BIDIRECTIONAL, **TEMPORAL},
        "induced": INDUCED,
        "induced in time": {**INDUCED, **TEMPORAL},
        "induced, one type followed": {**INDUCED, **ONE_TYPE},
        "induced in time, one type followed": {**INDUCED, **TEMPORAL, **ONE_TYPE},
    },
}
CASES = [(name, mode) for name, modes in MODES.items() for mode in modes]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    graphs = {
        name: Written(graph, {"time_attr": "time", "weight_attr": WEIGHT[name], "neighbor_keys": True})
        for name, graph in GRAPHS.items()
    }
    with settled(tmp_path_factory.mktemp("modes"), graphs, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[tuple[str, str], Batches]:
    return {case: batches_of(places, case, YARDSTICK, 0) for case in CASES}


def batches_of(
    places: dict[str, Places], case: tuple[str, str], topology: str, num_threads: int, rng_seed: int = 3
) -> Batches:
    name, mode = case
    options = {"batch_size": 14, "shuffle": True, "collate": "numpy", **OPTIONS[name], **MODES[name][mode]}
    if "weight_attr" in options:
        options["weight_attr"] = WEIGHT[name]
    with (
        places[name].open(topology) as store,
        NeighborLoader(store, num_threads=num_threads, rng_seed=rng_seed, **options) as loader,
    ):
        return compared_batches(loader)


@pytest.mark.parametrize(("case", "topology", "num_threads"), [*in_places(CASES)])
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict, case: tuple[str, str], topology: str, num_threads: int
) -> None:
    found = batches_of(places, case, topology, num_threads)
    assert len(found) == len(wanted[case]) == 4
    assert found == wanted[case]


def test_modes_differ_from_each_other_and_between_seeds(places: dict[str, Places], wanted: dict) -> None:
    """Check that this file's comparison can fail, and that every option has an effect."""
    for name, modes in MODES.items():
        assert_all_differ({mode: wanted[name, mode] for mode in modes})
    case = ("typed", "temporal")
    assert batches_of(places, case, YARDSTICK, 0, rng_seed=4) != wanted[case]
