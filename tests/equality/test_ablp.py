"""Checks that batches of anchors with labels, and of random nodes, are bit-equal over any parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.ablp import ABLPLoader
from hopstream.load.loader import RandomNodeLoader
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.store.contract import Store
from tests.equality.batches import Batches, assert_all_differ, compared_batches, in_places
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

BUYS, RETURNS, VIEWS = ("user", "buys", "item"), ("user", "returns", "item"), ("user", "views", "item")
KNOWS, VIEWED_BY = ("user", "knows", "user"), ("item", "viewed_by", "user")
SIZES = {BUYS: 200, RETURNS: 80, VIEWS: 500, KNOWS: 200, VIEWED_BY: 500}


def _graph() -> Graph:
    rng = np.random.default_rng(21)
    num_nodes = {"user": 66, "item": 60}
    return Graph(
        nodes={
            t: NodeTable(num_nodes=n, features={"x": rng.standard_normal((n, 4)).astype(np.float32)})
            for t, n in num_nodes.items()
        },
        edges={
            t: EdgeTable(
                src_keys=rng.integers(0, num_nodes[t[0]], size),
                dst_keys=rng.integers(0, num_nodes[t[2]], size),
                features={"weight": rng.random(size)},
            )
            for t, size in SIZES.items()
        },
        edge_splits={BUYS: {"train": np.arange(0, SIZES[BUYS], 2)}},
    ).check()


LABELS = {"supervision": [BUYS, KNOWS], "negatives": {BUYS: RETURNS}, "max_labels": 2}
BACKWARDS = {"supervision": [BUYS], "negatives": RETURNS, "label_direction": "in"}
WEIGHTED = {"weight_attr": "weight"}
GIVEN_ROWS = np.random.default_rng(22).integers(-1, 60, (66, 3))
GIVEN = {
    "anchors": ("user", np.random.default_rng(23).permutation(66)),
    "supervision": [BUYS, ("user", "likes", "user")],
    "labels": {BUYS: (GIVEN_ROWS, GIVEN_ROWS[:, :1]), ("user", "likes", "user"): GIVEN_ROWS[::-1]},
}
MODES: dict[str, dict] = {
    "uniform": LABELS,
    "with replacement": {**LABELS, "replace": True},
    "labels at the sources": {**BACKWARDS, "max_labels": 3},
    "labels at the sources, outwards": {**BACKWARDS, "direction": "out"},
    "labels of a split": {**BACKWARDS, "label_split": "train", "max_labels": 2},
    "labels given": GIVEN,
    "labels given, drawn": {**GIVEN, "max_labels": 1},
    "labels given, followed": {**GIVEN, "exclude_labels": False},
    "by weight": {**LABELS, **WEIGHTED},
    "heaviest": {**LABELS, **WEIGHTED, "sampling": "top_k"},
    "labor": {**LABELS, "sampling": "labor"},
    "labor, dependent": {**BACKWARDS, "sampling": "labor", "batch_dependency": 2, "layer_dependency": True},
    "bidirectional": {**LABELS, "subgraph_type": "bidirectional", "reverse_types": {VIEWS: VIEWED_BY}},
    "induced": {**LABELS, "subgraph_type": "induced"},
    "pagerank": {**LABELS, "num_neighbors": PPRSettings(alpha=0.2, num_neighbors_per_hop=3, max_ppr_nodes=9)},
    "pagerank, labels given": {
        **GIVEN,
        "num_neighbors": PPRSettings(
            direction="out", num_neighbors_per_hop=4, max_fetch_iterations=2, include_sampled_edges=True
        ),
    },
    "induced, nothing followed": {**LABELS, "subgraph_type": "induced", "num_neighbors": [0, 0]},
}
RANDOM_MODES: dict[str, dict] = {
    "random nodes": {"num_batches": 3},
    "random nodes, by weight": {"num_batches": 3, **WEIGHTED},
    "random nodes, induced": {"num_batches": 3, "subgraph_type": "induced"},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[Places]:
    written = Written(_graph(), {"direction": "both", "weight_attr": "weight", "neighbor_keys": True})
    with settled(tmp_path_factory.mktemp("ablp"), {"shop": written}, server_pool) as found:
        yield found["shop"]


@pytest.fixture(scope="module")
def wanted(places: Places) -> dict[str, Batches]:
    return {mode: batches_of(places, mode, YARDSTICK, 0) for mode in (*MODES, *RANDOM_MODES)}


def batches_of(places: Places, mode: str, topology: str, num_threads: int, rng_seed: int = 3) -> Batches:
    common = {"batch_size": 22, "collate": "numpy", "rng_seed": rng_seed, "num_threads": num_threads}
    with places.open(topology) as store, _loader(store, mode, common) as loader:
        return compared_batches(loader)


def _loader(store: Store, mode: str, common: dict) -> SubgraphLoader:
    if mode in RANDOM_MODES:
        return RandomNodeLoader(store, [3, 2], "item", **common, **RANDOM_MODES[mode])
    return ABLPLoader(store, shuffle=True, **{"num_neighbors": [3, 2], **common, **MODES[mode]})


@pytest.mark.parametrize(("mode", "topology", "num_threads"), [*in_places([*MODES, *RANDOM_MODES])])
def test_batches_are_bit_equal(places: Places, wanted: dict, mode: str, topology: str, num_threads: int) -> None:
    found = batches_of(places, mode, topology, num_threads)
    assert len(found) == len(wanted[mode]) == 4
    assert found == wanted[mode]


def test_modes_differ_from_each_other_and_between_seeds(places: Places, wanted: dict) -> None:
    """Check that this file's comparison can fail, and that every option has an effect."""
    assert_all_differ(wanted)
    assert batches_of(places, "uniform", YARDSTICK, 0, rng_seed=4) != wanted["uniform"]
