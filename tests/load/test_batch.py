"""Checks that a batch is the subgraph of its plan, with the right rows of every column."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import IntArray, RaggedArray
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.kernels.hashing import derive_seed
from hopstream.load.loader import NeighborLoader, repeat_seeds
from hopstream.sample.plan import SeedNodes
from tests.conftest import make_typed_graph
from tests.load.graphs import WatchedStore, flat, local_store, make_plain_graph
from tests.naive_plans import Raw, run_plan

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """A typed graph, and stores of it in one part and in three."""
    graph = make_typed_graph(np.random.default_rng(1))
    folder = tmp_path_factory.mktemp("typed")
    return graph, {n: local_store(graph, folder / str(n), n, direction="both") for n in (1, 3)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    graph = make_plain_graph(np.random.default_rng(2))
    folder = tmp_path_factory.mktemp("plain")
    return graph, {n: local_store(graph, folder / str(n), n) for n in (1, 4)}


def batches_of(store, num_neighbors, seeds, **settings):
    settings = {"num_threads": 0, "collate": "numpy", **settings}
    with NeighborLoader(store, num_neighbors, seeds, settings.pop("batch_size", 6), **settings) as loader:
        return loader, list(loader)


def check_columns(graph, batch):
    """Every column of every type holds the graph's rows of the batch's keys."""
    for tables, features, keys in (
        (graph.nodes, batch.node_features, batch.node_keys),
        (graph.edges, batch.edge_features, batch.edge_keys),
    ):
        for owner, columns in features.items():
            for name, column in columns.items():
                wanted = tables[owner].features[name]
                if isinstance(wanted, RaggedArray):
                    wanted = wanted.take(keys[owner])
                    assert isinstance(column, RaggedArray)
                    assert column.is_string == wanted.is_string
                    assert np.array_equal(column.offsets, wanted.offsets)
                    assert np.array_equal(column.values, wanted.values)
                else:
                    assert column.dtype == wanted.dtype
                    assert np.array_equal(column, wanted[keys[owner]])


def check_against_naive(graph, plan, batch, seed_keys, rng_seed):
    ids = {plan.seed_types[0]: np.array(seed_keys, np.int64)}
    seeds = SeedNodes(ids=ids, rng_seed=derive_seed(rng_seed, batch.epoch, batch.index))
    found = run_plan(Raw(graph), plan, seeds)
    assert {t: keys.tolist() for t, keys in batch.node_keys.items()} == found.node_keys
    for edge_type, edges in found.edges.items():
        assert batch.edge_index[edge_type].tolist() == [[e[0] for e in edges], [e[1] for e in edges]]
        assert batch.edge_keys[edge_type].tolist() == [e[2] for e in edges]
    assert batch.num_sampled_nodes == found.num_sampled_nodes
    assert batch.num_sampled_edges == found.num_sampled_edges


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("replace", [False, True])
def test_typed_batches_follow_the_plan(typed, num_parts, direction, replace):
    graph, stores = typed
    seed_type = "paper" if direction == "in" else "author"
    loader, batches = batches_of(
        stores[num_parts], {"default": [3, 2, 2]}, seed_type, direction=direction, replace=replace, rng_seed=5
    )
    assert sum(batch.batch_size for batch in batches) == graph.nodes[seed_type].num_nodes
    for batch in batches:
        assert batch.seed_type == seed_type
        assert batch.node_keys[seed_type][: batch.batch_size].tolist() == batch.input_ids.tolist()
        check_against_naive(graph, loader._plan, batch, batch.input_ids.tolist(), 5)
        check_columns(graph, batch)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_plain_batches_follow_the_plan(plain, num_parts):
    graph, stores = plain
    loader, batches = batches_of(stores[num_parts], [4, -1], "train", shuffle=True)
    seed_keys = graph.splits["node"]["train"]
    assert sorted(p for batch in batches for p in batch.input_ids.tolist()) == list(range(len(seed_keys)))
    for batch in batches:
        check_against_naive(graph, loader._plan, batch, seed_keys[batch.input_ids].tolist(), 0)
        check_columns(graph, batch)


def test_seeds_without_edges_make_a_batch_of_seeds_alone(plain):
    graph, stores = plain
    for store in stores.values():
        _, (batch,) = batches_of(store, [4, 4], [79, 78])
        assert batch.node_keys["node"].tolist() == [79, 78]
        assert batch.edge_index["node", "to", "node"].shape == (2, 0)
        assert batch.edge_features["node", "to", "node"]["edge_attr"].shape == (0, 2)
        check_columns(graph, batch)


def test_types_that_are_not_reached_have_empty_columns(typed):
    graph, stores = typed
    for store in stores.values():
        _, (batch,) = batches_of(store, {"default": [2]}, ("institute", [2]))
        assert batch.node_keys["institute"].tolist() == [2]
        assert batch.node_keys["paper"].shape == (0,)
        assert batch.node_features["paper"]["feat"].shape == (0, 5)
        assert list(batch.node_features["paper"]["title"]) == []
        assert batch.node_features["paper"]["tags"].offsets.tolist() == [0]
        check_columns(graph, batch)


def test_only_the_chosen_columns_are_fetched(typed):
    _, stores = typed
    _, batches = batches_of(
        stores[3], {"default": [2]}, "paper", node_features={"paper": ["year"]}, edge_features=[], edge_keys=False
    )
    for batch in batches:
        assert {t: list(columns) for t, columns in batch.node_features.items()} == {
            "paper": ["year"], "author": [], "institute": []
        }  # fmt: skip
        assert not any(batch.edge_features.values())
        assert batch.edge_keys == {}


@pytest.mark.parametrize("num_parts", [1, 3])
def test_one_batch_makes_one_call_for_all_columns(typed, num_parts):
    store = WatchedStore(typed[1][num_parts])
    loader = NeighborLoader(store, {"default": [2, 2]}, "paper", 6, num_threads=0, collate="numpy")
    before = store.num_fetches
    assert len(list(loader)) == 10
    assert store.num_fetches == before + 10


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_repeated_seed_has_its_own_slot_and_its_own_edges(typed, num_parts, direction):
    graph, stores = typed
    seed_keys = [7, 3, 7, 11, 3, 7]
    settings = {"direction": direction, "batch_size": 6, "rng_seed": 9}
    loader, (batch,) = batches_of(stores[num_parts], {"default": [3, 2]}, ("paper", seed_keys), **settings)
    _, (once,) = batches_of(stores[num_parts], {"default": [3, 2]}, ("paper", [7, 3, 11]), **settings)
    check_columns(graph, batch)
    assert batch.batch_size == 6
    assert batch.input_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.node_keys["paper"].tolist() == seed_keys + once.node_keys["paper"][3:].tolist()
    assert batch.num_sampled_nodes["paper"] == [6, *once.num_sampled_nodes["paper"][1:]]
    for edge_type in (CITES, WRITES):
        edges, wanted = edges_by_seed(batch, edge_type, direction), edges_by_seed(once, edge_type, direction)
        for slot, key in enumerate(seed_keys):
            assert edges.get(slot, []) == wanted.get([7, 3, 11].index(key), [])
        first, first_once = batch.num_sampled_edges[edge_type][0], once.num_sampled_edges[edge_type][0]
        assert batch.edge_keys[edge_type][first:].tolist() == once.edge_keys[edge_type][first_once:].tolist()
        table = graph.edges[edge_type]
        src_slots, dst_slots = batch.edge_index[edge_type]
        keys = batch.edge_keys[edge_type]
        assert np.array_equal(batch.node_keys[edge_type[0]][src_slots], table.src_keys[keys])
        assert np.array_equal(batch.node_keys[edge_type[2]][dst_slots], table.dst_keys[keys])
    assert loader.state_dict()["next_batch"] == 0


def edges_by_seed(batch, edge_type, direction):
    """Slot of the expanded end to the keys of the edges drawn for it in the first hop, in order."""
    ends = batch.edge_index[edge_type][1 if direction == "in" else 0]
    is_expanded = (edge_type[2] if direction == "in" else edge_type[0]) == "paper"
    found: dict[int, list[int]] = {}
    for position in range(batch.num_sampled_edges[edge_type][0] if is_expanded else 0):
        found.setdefault(int(ends[position]), []).append(int(batch.edge_keys[edge_type][position]))
    return found


def test_repeating_seeds_moves_every_other_slot():
    def ints(*values: int) -> IntArray:
        return np.array(values, np.int64)

    edges = SampledEdges(src_slots=ints(1, 2, 3, 0), dst_slots=ints(0, 0, 1, 2), edge_ids=None, direction="in")
    once = Subgraph(
        node_ids={"n": ints(50, 60, 70, 80)},
        edges={("n", "to", "n"): edges},
        num_sampled_nodes={"n": [2, 2, 0]},
        num_sampled_edges={("n", "to", "n"): [3, 1]},
    )
    twice = repeat_seeds(once, "n", ints(0, 0, 1))
    assert twice.node_ids["n"].tolist() == [50, 50, 60, 70, 80]
    found = twice.edges["n", "to", "n"]
    assert found.src_slots.tolist() == [2, 3, 4, 2, 3, 0]
    assert found.dst_slots.tolist() == [0, 0, 2, 1, 1, 3]
    assert twice.num_sampled_nodes == {"n": [3, 2, 0]}
    assert twice.num_sampled_edges == {("n", "to", "n"): [5, 1]}


def test_the_number_of_parts_does_not_change_batches(typed, plain):
    for stores, num_neighbors, seeds in ((typed[1], {"default": [3, 2]}, "paper"), (plain[1], [3, 2], None)):
        runs = [batches_of(store, num_neighbors, seeds, shuffle=True)[1] for store in stores.values()]
        for batches in zip(*runs, strict=True):
            assert flat(batches[0]) == flat(batches[1])
