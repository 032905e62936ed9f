"""Checks that HGT sampling draws what a slow answer draws, by the law of its budgets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.sample.hgt import HGTRunner, NumSamples, plan_hgt
from hopstream.sample.plan import SeedNodes
from hopstream.schema import EDGE, NODE, Direction
from hopstream.store import open_graph
from hopstream.store.contract import KEY, FetchRequest, Store
from tests.conftest import make_typed_graph
from tests.load.graphs import WatchedStore, local_store
from tests.naive_hgt import hgt_sample

COUNTS: dict[str, dict[str, list[int]]] = {
    "all types": {"paper": [5, 4, 3], "author": [2, 1, 4], "institute": [1, 1, 1]},
    "all candidates": {"paper": [-1, 3], "author": [3, -1], "institute": [0, 0]},
    "no papers first": {"paper": [0, 6], "author": [3, 2], "institute": [0, 0]},
    "more than there are": {"paper": [500, 2], "author": [500, 500], "institute": [5, 5]},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return make_typed_graph(np.random.default_rng(4), num_papers=90)


@pytest.fixture(scope="module")
def stores(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Store]:
    folder = tmp_path_factory.mktemp("hgt")
    return {n: local_store(graph, folder / str(n), n, direction="both") for n in (1, 3)}


def run(
    graph: Graph,
    store: Store,
    num_samples: NumSamples,
    seeds: dict[str, list[int]],
    rng_seed: int,
    direction: Direction = "in",
) -> tuple[list[dict[str, list[int]]], dict[tuple[str, str, str], list[int]]]:
    """Keys of the nodes of each layer, and of all edges, as ``hgt_sample`` gives them."""
    (seed_type,) = seeds
    plan = plan_hgt(store.schema, num_samples, seed_type, direction, wants_edge_ids=True)
    ids = {seed_type: store.lookup(seed_type, np.array(seeds[seed_type]))}
    subgraph = HGTRunner(store, plan).run(SeedNodes(ids=ids, rng_seed=rng_seed))
    layers: list[dict[str, list[int]]] = [{} for _ in range(plan.num_hops + 1)]
    keys = {}
    for node_type, own in subgraph.node_ids.items():
        (columns,) = store.fetch([FetchRequest(entity=node_type, names=(KEY,), ids=own)])
        keys[node_type] = np.asarray(columns[KEY])
        counts = subgraph.num_sampled_nodes[node_type]
        assert sum(counts) == len(own)
        for layer, (first, last) in enumerate(pairwise(np.cumsum([0, *counts]).tolist())):
            layers[layer][node_type] = keys[node_type][first:last].tolist()
    assert subgraph.num_sampled_edges is None
    edges = {}
    for edge_type, sampled in subgraph.edges.items():
        (columns,) = store.fetch([FetchRequest(entity=(edge_type, direction), names=(KEY,), ids=sampled.edge_ids)])
        edge_keys = np.asarray(columns[KEY])
        edges[edge_type] = sorted(edge_keys.tolist())
        ends = keys[edge_type[0]][sampled.src_slots], keys[edge_type[2]][sampled.dst_slots]
        stored = graph.edges[edge_type]
        assert np.array_equal(ends[0], stored.src_keys[edge_keys])
        assert np.array_equal(ends[1], stored.dst_keys[edge_keys])
    return layers, edges


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_subgraphs_are_those_of_the_slow_answer(graph, stores, counts, num_parts, direction):
    for rng_seed, seeds in enumerate(([3], [40, 1, 88, 7], [*range(20)])):
        found = run(graph, stores[num_parts], counts, {"paper": seeds}, rng_seed, direction)
        assert found == hgt_sample(graph, counts, {"paper": seeds}, rng_seed, direction)
    assert sum(len(keys) for layer in found[0][1:] for keys in layer.values())


def test_one_list_is_for_every_type_and_missing_types_get_no_nodes(graph, stores):
    seeds = {"paper": [3, 9]}
    of_all = {t: [2, 3] for t in graph.nodes}
    assert run(graph, stores[3], [2, 3], seeds, 5) == run(graph, stores[3], of_all, seeds, 5)
    layers, edges = run(graph, stores[3], {"author": [2, 3]}, seeds, 5)
    assert [layer["paper"] for layer in layers] == [[3, 9], [], []]
    assert edges["author", "writes", "paper"]


def star(budgets: list[int]) -> Graph:
    """Node 0, whose neighbour ``i + 1`` is at the end of ``budgets[i]`` parallel edges."""
    src = np.repeat(np.arange(len(budgets)) + 1, budgets)
    edges = {EDGE: EdgeTable(src_keys=src, dst_keys=np.zeros(len(src), np.int64))}
    return Graph(nodes={NODE: NodeTable(num_nodes=len(budgets) + 1)}, edges=edges).check()


@pytest.mark.parametrize("count", [1, 2])
def test_shares_follow_the_squared_budgets(count):
    """A 5-sigma test of every node, with the exact law of drawing one after the other."""
    budgets, num_runs = np.array([1, 2, 3, 5]), 4000
    weights = budgets**2 / (budgets**2).sum()
    wanted = weights.copy()
    if count == 2:
        for first in range(4):
            for second in {0, 1, 2, 3} - {first}:
                wanted[second] += weights[first] * weights[second] / (1 - weights[first])
    with open_graph(star(budgets.tolist())) as store:
        runner = HGTRunner(store, plan_hgt(store.schema, [count], NODE, "in", wants_edge_ids=False))
        drawn = np.zeros(4)
        for rng_seed in range(num_runs):
            subgraph = runner.run(SeedNodes(ids={NODE: np.array([0])}, rng_seed=rng_seed * 7919))
            drawn[subgraph.node_ids[NODE][1:] - 1] += 1
    assert np.isclose(wanted.sum(), count)
    assert drawn.sum() == count * num_runs
    sigma = np.sqrt(num_runs * wanted * (1 - wanted))
    assert (abs(drawn - num_runs * wanted) < 5 * sigma).all()


def test_shares_are_of_each_edge_type_alone():
    """A type with one edge gives its neighbour as much as a type with nine gives all of its nine."""
    many, one = ("b", "many", "a"), ("b", "one", "a")
    graph = Graph(
        nodes={"a": NodeTable(num_nodes=1), "b": NodeTable(num_nodes=10)},
        edges={
            many: EdgeTable(src_keys=np.arange(9), dst_keys=np.zeros(9, np.int64)),
            one: EdgeTable(src_keys=np.array([9]), dst_keys=np.array([0])),
        },
    ).check()
    with open_graph(graph) as store:
        runner = HGTRunner(store, plan_hgt(store.schema, [1], "a", "in", wants_edge_ids=False))
        seeds = [SeedNodes(ids={"a": np.array([0])}, rng_seed=number * 7919) for number in range(2000)]
        share = np.mean([runner.run(one).node_ids["b"][0] == 9 for one in seeds])
    wanted = 1 / (1 + 9 / 81)
    assert abs(share - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 2000)


def test_several_batches_at_once_are_those_one_after_the_other(stores):
    plan = plan_hgt(stores[3].schema, [3, 2], "paper", "in", wants_edge_ids=True)
    group = [SeedNodes(ids={"paper": np.arange(4) + 9 * number}, rng_seed=number) for number in range(3)]
    together = [
        {t: ids.tolist() for t, ids in subgraph.node_ids.items()}
        for subgraph in HGTRunner(stores[3], plan).run_group(group)
    ]
    runner = HGTRunner(stores[3], plan)
    assert together == [{t: ids.tolist() for t, ids in runner.run(one).node_ids.items()} for one in group]


def test_a_layer_that_does_not_fit_in_memory_says_so(stores):
    class Full(WatchedStore):
        def submit_sample(self, requests):
            raise MemoryError

    store = Full(stores[3])
    runner = HGTRunner(store, plan_hgt(store.schema, [3, 2], "paper", "in", wants_edge_ids=True))
    with pytest.raises(
        SettingsError, match=r"layer 1 of num_samples asks for all neighbours of .* more than memory holds"
    ):
        runner.run(SeedNodes(ids={"paper": np.arange(4)}, rng_seed=0))


@pytest.mark.parametrize(
    ("num_samples", "error", "message"),
    [
        ({"papr": [1]}, UnknownNameError, "papr"),
        ({"paper": [1], "author": [1, 2]}, SettingsError, r"node types of \[1, 2\] layers"),
        ({}, SettingsError, r"node types of \[\] layers"),
        ([], SettingsError, "num_samples has 0 hops"),
        ([-2], SettingsError, "give -1 for all"),
        ({"paper": 3}, SettingsError, r"num_samples\['paper'\] is 3; give one number per hop"),
    ],
)
def test_hgt_plans_that_do_not_fit_are_refused(graph, num_samples, error, message):
    with pytest.raises(error, match=message):
        plan_hgt(graph.schema, num_samples, "paper", "in", wants_edge_ids=False)
