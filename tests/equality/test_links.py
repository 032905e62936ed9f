"""Checks that batches of links are bit-equal in every mode, over any parts and threads.

One process over one part is the yardstick. Users and movies have times, ratings have times and weights of their own,
and ratings have reverses; the graph without types has none of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hopstream.graph.graph import Graph
from hopstream.load.links import LinkNeighborLoader
from hopstream.sample.negatives import NegativeSampling
from hopstream.schema import EDGE, EdgeType
from tests.equality.batches import Batches, assert_all_differ, compared_batches, in_places
from tests.load.graphs import make_plain_graph
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES, make_rating_graph
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

NUM_LINKS = 72
PLAIN = make_plain_graph(np.random.default_rng(21), num_nodes=40, num_edges=NUM_LINKS)


def _ratings() -> Graph:
    """Users and movies that are old enough for most ratings to find negatives of their time at once."""
    graph = make_rating_graph(np.random.default_rng(22), num_users=27, num_movies=40)
    nodes = {
        t: replace(table, features={**table.features, "time": table.features["time"] // 8})
        for t, table in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)


RATINGS = _ratings()
GRAPHS = {
    "plain": Written(PLAIN, {"links": [EDGE]}),
    "ratings": Written(
        RATINGS, {"time_attr": "time", "weight_attr": "stars", "neighbor_keys": True, "direction": "both"}
    ),
}


def _ends(graph: Graph, edge_type: EdgeType) -> np.ndarray:
    """int64[2, NUM_LINKS]: keys of the ends of edges, repeated from the first edge after the last."""
    edges = graph.edges[edge_type]
    return np.stack([np.resize(edges.src_keys, NUM_LINKS), np.resize(edges.dst_keys, NUM_LINKS)])


PAIRS = {"edge_label_index": _ends(PLAIN, EDGE)[:, ::-1]}
VAL = {"edge_label_index": (RATES, "val")}
GIVEN = {"edge_label_index": (LIKES, _ends(RATINGS, RATES))}
"""Ratings, asked for as if they were likes."""
FOLLOWED = {"edge_label_index": (FOLLOWS, _ends(RATINGS, FOLLOWS))}
IN_TIME = {**VAL, "time_attr": "time"}
AT_TIMES = {**GIVEN, "time_attr": "time", "edge_label_time": 20 + np.arange(NUM_LINKS) * 12}
WEIGHTED = {"weight_attr": "stars"}
HEAVIEST = {**WEIGHTED, "sampling": "top_k"}
BIDIRECTIONAL = {"subgraph_type": "bidirectional"}
LEFT_OUT = {"exclude_links": True}
REVERSES = {"reverse_types": {LIKES: RATED}}
"""By name, likes have no reverse type; they are given that of ratings."""
MODES: dict[str, dict[str, dict]] = {
    "plain": {
        "all edges, binary": {"neg_sampling_ratio": 0.7, "edge_label": np.arange(NUM_LINKS)},
        "triplets, left out": {**PAIRS, **LEFT_OUT, "neg_sampling": NegativeSampling("triplet", 2)},
        "in batch": {
            "exclude_links": "self", "neg_sampling": NegativeSampling("triplet", 3, strict=True, in_batch=True)},
        "strict by weight, in trees": {
            **PAIRS, "disjoint": True,
            "neg_sampling": NegativeSampling("binary", 1.5, np.arange(40), np.arange(40)[::-1] ** 2, strict=True)},
    },
    "ratings": {
        "split, binary, left out": {**VAL, "neg_sampling_ratio": 1, **LEFT_OUT},
        "strict triplets, left out of declared reverses": {
            **GIVEN, "neg_sampling": NegativeSampling("triplet", 2, strict=True), **LEFT_OUT, **REVERSES},
        "in their time, left out": {**IN_TIME, "neg_sampling_ratio": 1.5, **LEFT_OUT},
        "latest, left out": {**IN_TIME, "temporal_strategy": "last", **LEFT_OUT},
        "latest at given times": {
            **AT_TIMES, "temporal_strategy": "last", "neg_sampling": NegativeSampling("triplet", 2, strict=True)},
        "by weight, left out": {**VAL, **WEIGHTED, "neg_sampling_ratio": 1, **LEFT_OUT},
        "by weight, outwards with replacement, in their time": {
            **IN_TIME, **WEIGHTED, "replace": True, "direction": "out", **LEFT_OUT},
        "heaviest, left out of several types": {**VAL, **HEAVIEST, "exclude_links": [RATED, LIKES]},
        "heaviest in their time, in batch": {
            **IN_TIME, **HEAVIEST, "time_inclusive": False,
            "neg_sampling": NegativeSampling("binary", 2, in_batch=True)},
        "labor, left out": {**VAL, "sampling": "labor", "neg_sampling": "triplet", **LEFT_OUT},
        "labor at given times": {**AT_TIMES, "sampling": "labor", "layer_dependency": True},
        "bidirectional, left out": {**VAL, **BIDIRECTIONAL, "neg_sampling_ratio": 1, **LEFT_OUT},
        "bidirectional, declared reverses, at given times": {**AT_TIMES, **BIDIRECTIONAL, **REVERSES},
        "induced in trees": {**VAL, "disjoint": True, "subgraph_type": "induced", "neg_sampling_ratio": 1},
        "induced, left out": {**FOLLOWED, "subgraph_type": "induced", **LEFT_OUT},
        "induced, links not followed, left out": {
            **FOLLOWED, "subgraph_type": "induced", "num_neighbors": {FOLLOWS: [0, 0], "default": [3, 2]}, **LEFT_OUT},
    },
}  # fmt: skip
CASES = [(name, mode) for name, modes in MODES.items() for mode in modes]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    with settled(tmp_path_factory.mktemp("links"), GRAPHS, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[tuple[str, str], Batches]:
    return {case: batches_of(places, case, YARDSTICK, 0) for case in CASES}


def batches_of(
    places: dict[str, Places], case: tuple[str, str], topology: str, num_threads: int, **more: object
) -> Batches:
    name, mode = case
    options = {"num_neighbors": [3, 2], "batch_size": 36, "shuffle": True, "rng_seed": 3, **MODES[name][mode], **more}
    with (
        places[name].open(topology) as store,
        LinkNeighborLoader(store, num_threads=num_threads, collate="numpy", **options) as loader,
    ):
        return compared_batches(loader)


@pytest.mark.parametrize(("case", "topology", "num_threads"), [*in_places(CASES)])
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict, case: tuple[str, str], topology: str, num_threads: int
) -> None:
    found = batches_of(places, case, topology, num_threads)
    assert len(found) == len(wanted[case]) == 3
    assert found == wanted[case]


def test_modes_differ_from_each_other_and_between_seeds(places: dict[str, Places], wanted: dict) -> None:
    """Check that this file's comparison can fail, and that every option has an effect."""
    for name, modes in MODES.items():
        assert_all_differ({mode: wanted[name, mode] for mode in modes})
    case = ("ratings", "in their time, left out")
    assert batches_of(places, case, YARDSTICK, 0, rng_seed=4) != wanted[case]


@pytest.mark.parametrize("case", [case for case in CASES if "exclude_links" in MODES[case[0]][case[1]]], ids=", ".join)
def test_excluded_links_would_otherwise_be_followed(
    places: dict[str, Places], wanted: dict, case: tuple[str, str]
) -> None:
    assert batches_of(places, case, YARDSTICK, 0, exclude_links=False) != wanted[case]
