"""Checks that no neighbour from the future appears, for any graph, times and way to sample."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopstream.graph.graph import Graph
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SeedNodes
from hopstream.store.contract import LaborSeeds
from tests.naive_plans import Found, in_keys, seeds_in_ids, spread_trees
from tests.plan_modes import plan_with
from tests.timed_worlds import BOUGHT, BUYS, LIKE, Sight, World, worlds

STRATEGIES = {"uniform": (), "last": (BUYS, LIKE), "weighted": (BUYS,), "top_k": (BUYS,), "labor": (BUYS, LIKE, BOUGHT)}


@pytest.mark.parametrize(
    "subgraph_type", ["directional", *(pytest.param(of, marks=pytest.mark.slow) for of in ("bidirectional", "induced"))]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(
    max_examples=8,
    deadline=None,
    # Every example is a dataset on disk, so a search for a smaller one would outlast the limit for hanging tests.
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    world=worlds(),
    direction=st.sampled_from(["in", "out"]),
    is_inclusive=st.booleans(),
    count=st.sampled_from([-1, 1, 2, 3]),
    num_parts=st.integers(1, 2),
)
def test_no_neighbour_is_from_the_future(
    world: World, direction: str, is_inclusive: bool, count: int, num_parts: int, strategy: str, subgraph_type: str
) -> None:
    if strategy in ("weighted", "top_k") and not world.has_weights:
        return
    timed = [t for t in STRATEGIES[strategy] if strategy != "last" or _is_timed(world.graph, t, direction)]
    settings = {"direction": direction, "time_inclusive": is_inclusive, "subgraph_type": subgraph_type}
    plan = plan_with(
        world.graph.schema, [count] * world.num_hops, ("user", "item"), strategies=dict.fromkeys(timed, strategy),
        time_attr="time", reverse_types={BUYS: BOUGHT}, **settings,
    )  # fmt: skip
    ids = {t: np.array(keys, np.int64) for t, keys in world.seeds.items()}
    times = np.array(world.times, np.int64)
    seeds = SeedNodes(
        ids=ids, rng_seed=world.rng_seed, trees=spread_trees(ids), times=times, labor=LaborSeeds(first=world.rng_seed)
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        world.store(Path(folder) / "parts", num_parts) as store,
    ):
        found = in_keys(store, PlanRunner(store, plan).run(seeds_in_ids(store, seeds)))
    latest = times if is_inclusive else times - 1
    _sight(found).assert_nothing_later(world.graph, latest)
    num_seeds = {t: len(of) for t, of in world.seeds.items()}
    assert {t: counts[0] for t, counts in found.num_sampled_nodes.items()} == num_seeds


def _sight(found: Found) -> Sight:
    assert found.trees is not None
    nodes = {}
    for node_type, keys in found.node_keys.items():
        num_seeds = found.num_sampled_nodes[node_type][0]
        nodes[node_type] = (
            np.array(keys[num_seeds:], np.int64),
            np.array(found.trees[node_type][num_seeds:], np.int64),
        )
    edges = {}
    for edge_type, slots_and_keys in found.edges.items():
        src, dst, keys = np.array(slots_and_keys, np.int64).reshape(-1, 3).T
        trees = np.array(found.trees[edge_type[0]], np.int64)[src]
        assert np.array_equal(trees, np.array(found.trees[edge_type[2]], np.int64)[dst])
        edges[edge_type] = (keys, trees)
    return Sight(nodes=nodes, edges=edges)


def _is_timed(graph: Graph, edge_type: tuple[str, str, str], direction: str) -> bool:
    neighbor_type = edge_type[0] if direction == "in" else edge_type[2]
    return "time" in graph.edges[edge_type].features or "time" in graph.nodes[neighbor_type].features
