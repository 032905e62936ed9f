"""Checks that anchors come with their label nodes, in one subgraph without the labels' edges."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from torch_geometric.data import HeteroData

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.load.ablp import ABLPLoader
from hopstream.load.ppr import PPRLoader
from hopstream.preparation.write import write_parts
from hopstream.sample.ppr_settings import PPR, PPRSettings
from hopstream.store.local import LocalStore
from tests.load.contract import BatchesContract

BUYS, RETURNS = ("user", "buys", "item"), ("user", "returns", "item")
VIEWS, VIEWED_BY = ("user", "views", "item"), ("item", "viewed_by", "user")
BOUGHT_BY = ("item", "rev_buys", "user")
FOLLOWS, LIKES = ("user", "follows", "user"), ("user", "likes", "user")


def edges(*pairs: tuple[int, int]) -> EdgeTable:
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    return EdgeTable(src_keys=np.ascontiguousarray(src), dst_keys=np.ascontiguousarray(dst))


def make_shop() -> Graph:
    """Four users, five items; user 0 bought 1 and 3 and returned 2, user 1 bought 3, user 3 bought none."""
    return Graph(
        nodes={
            "user": NodeTable(num_nodes=4, features={"age": np.array([20, 30, 40, 50])}),
            "item": NodeTable(num_nodes=5, features={"price": np.array([1.0, 2.0, 3.0, 4.0, 5.0])}),
        },
        edges={
            BUYS: edges((0, 1), (0, 3), (1, 3), (2, 4)),
            BOUGHT_BY: edges((1, 0), (3, 0), (3, 1), (4, 2)),
            RETURNS: edges((0, 2), (2, 0)),
            VIEWS: edges((0, 0), (1, 3), (2, 3)),
            VIEWED_BY: edges((0, 0), (3, 1), (3, 2)),
            FOLLOWS: edges((1, 0), (2, 1)),
            LIKES: edges((0, 3), (1, 0), (1, 2)),
        },
        splits={"user": {"train": np.array([0, 1])}},
    ).check()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("shop")
    for num_parts in (1, 3):
        write_parts(make_shop(), root / str(num_parts), num_parts=num_parts, method="random", direction="both")
    return {n: LocalStore(open_dataset(root / str(n))) for n in (1, 3)}


def make(store, num_neighbors=(-1,), anchors=(0, 1), **options):
    settings = {"supervision": BUYS, "batch_size": 2, "collate": "numpy", "num_threads": 0}
    if not isinstance(num_neighbors, dict | PPRSettings):
        num_neighbors = list(num_neighbors)
    return ABLPLoader(store, num_neighbors, ("user", list(anchors)), **{**settings, **options})


@pytest.mark.parametrize("num_parts", [1, 3])
def test_anchors_come_first_and_labels_are_places_in_the_batch(stores, num_parts):
    """Anchors 0 and 1; items 1, 3 (of user 0) and 3 (of user 1) are labels, item 2 was returned."""
    with make(stores[num_parts], negatives=RETURNS) as loader:
        (batch,) = loader
    assert batch.node_keys["user"].tolist()[:2] == [0, 1]
    assert batch.node_keys["item"].tolist()[:3] == [1, 3, 2]
    assert batch.attributes[BUYS]["y_positive"].tolist() == [[0, 0, 1], [0, 1, 1]]
    assert batch.attributes[BUYS]["y_negative"].tolist() == [[0], [2]]
    assert batch.num_sampled_nodes["user"][0] == 2
    assert batch.num_sampled_nodes["item"][0] == 3


def test_label_edges_and_their_reverses_are_never_in_the_message_graph(stores):
    with make(stores[1], num_neighbors=(-1, -1, -1), negatives=RETURNS) as loader:
        (batch,) = loader
    for edge_type in (BUYS, BOUGHT_BY, RETURNS):
        assert batch.edge_index[edge_type].shape == (2, 0), edge_type
    keys = {t: batch.node_keys[t] for t in ("user", "item")}
    src, dst = batch.edge_index[VIEWS]
    found = set(zip(keys["user"][src].tolist(), keys["item"][dst].tolist(), strict=True))
    assert found >= {(1, 3), (2, 3)}


def test_induced_subgraphs_have_no_labels_and_all_other_edges_between_their_nodes(stores):
    """Nothing is followed: anchors and label nodes alone. User 1 viewed item 3 and follows user 0."""
    with make(stores[1], num_neighbors=[0], negatives=RETURNS, subgraph_type="induced") as loader:
        (batch,) = loader
    keys = {t: batch.node_keys[t] for t in ("user", "item")}
    found = {
        t: [*zip(keys[t[0]][of[0]].tolist(), keys[t[2]][of[1]].tolist(), strict=True)]
        for t, of in batch.edge_index.items()
        if of.shape[1]
    }
    assert found == {VIEWS: [(1, 3)], VIEWED_BY: [(3, 1)], FOLLOWS: [(1, 0)], LIKES: [(1, 0)]}


def test_labels_are_left_out_of_induced_types_that_they_were_taken_from(tmp_path):
    """Views are not the supervision type, but hold the labels, so these edges are left out too."""
    wants = ("user", "wants", "item")
    graph = make_shop()
    labelled = replace(graph, edges={**graph.edges, wants: edges((1, 3))}, label_types={wants: (VIEWS,)}).check()
    write_parts(labelled, tmp_path / "parts", num_parts=2, method="random", direction="both")
    options = {"num_neighbors": [0], "supervision": wants, "subgraph_type": "induced"}
    with LocalStore(open_dataset(tmp_path / "parts")) as store, make(store, **options) as loader:
        (batch,) = loader
    assert batch.node_keys["item"].tolist() == [3]
    assert batch.edge_index[wants].shape == batch.edge_index[VIEWS].shape == (2, 0)
    assert batch.edge_index[BUYS].shape == (2, 2)


def test_labels_of_found_nodes_are_left_out_of_induced_subgraphs(tmp_path):
    """User 2, found along follows, is no anchor; its edge to item 3, a label of user 0, stays out too."""
    graph = Graph(
        nodes={"user": NodeTable(num_nodes=4), "item": NodeTable(num_nodes=4)},
        edges={BUYS: edges((0, 3), (2, 3), (3, 1)), FOLLOWS: edges((2, 0), (0, 3))},
    ).check()
    write_parts(graph, tmp_path / "parts", num_parts=2, method="random", direction="both")
    options = {"num_neighbors": {FOLLOWS: [-1]}, "anchors": [0], "subgraph_type": "induced"}
    with LocalStore(open_dataset(tmp_path / "parts")) as store, make(store, **options) as loader:
        (batch,) = loader
    assert batch.node_keys["user"].tolist() == [0, 2]
    assert batch.node_keys["item"].tolist() == [3]
    assert batch.edge_index[BUYS].shape == (2, 0)


def test_labels_of_the_anchors_own_type_share_its_nodes(stores):
    """User 0 likes user 3; user 1 likes users 0 and 2. User 0 is an anchor and a label, and there once."""
    with make(stores[1], supervision=LIKES) as loader:
        (batch,) = loader
    assert batch.node_keys["user"].tolist()[:4] == [0, 1, 3, 2]
    assert batch.attributes[LIKES]["y_positive"].tolist() == [[0, 1, 1], [2, 0, 3]]
    assert batch.edge_index[LIKES].shape == (2, 0)


def test_several_supervision_types(stores):
    with make(stores[1], supervision=[BUYS, LIKES], negatives={BUYS: RETURNS}) as loader:
        (batch,) = loader
    assert batch.attributes[BUYS]["y_positive"].tolist() == [[0, 0, 1], [0, 1, 1]]
    assert batch.attributes[BUYS]["y_negative"].tolist() == [[0], [2]]
    assert batch.attributes[LIKES]["y_positive"].tolist() == [[0, 1, 1], [2, 0, 3]]
    assert "y_negative" not in batch.attributes[LIKES]


def test_anchors_may_be_the_destinations(stores):
    """Items 3 and 4 as anchors; users 0 and 1 bought item 3, user 2 item 4."""
    settings = {"supervision": "user__buys__item", "label_direction": "in", "collate": "numpy", "num_threads": 0}
    with ABLPLoader(stores[3], [2], ("item", [3, 4]), batch_size=2, **settings) as loader:
        (batch,) = loader
    assert batch.node_keys["item"].tolist()[:2] == [3, 4]
    assert batch.node_keys["user"].tolist()[:3] == [0, 1, 2]
    assert batch.attributes[BUYS]["y_positive"].tolist() == [[0, 0, 1], [0, 1, 2]]


def test_an_anchor_without_labels_stays_in_the_batch(stores):
    with make(stores[1], anchors=(3,)) as loader:
        (batch,) = loader
    assert batch.node_keys["user"].tolist()[0] == 3
    assert batch.attributes[BUYS]["y_positive"].shape == (2, 0)


def test_excess_labels_are_drawn_uniformly(stores):
    """One of the two items of user 0, over 400 epochs: each comes 200 times, within 5 sigma."""
    with make(stores[1], anchors=(0,), max_labels=1) as loader:
        chosen = [
            batch.node_keys["item"][batch.attributes[BUYS]["y_positive"][1, 0]] for _ in range(400) for batch in loader
        ]
    assert abs(chosen.count(1) - 200) < 5 * 10, "rng_seed 0"
    assert set(chosen) == {1, 3}


def test_batches_of_pyg_carry_labels_on_the_supervision_type(stores):
    with make(stores[1], collate="pyg", negatives=RETURNS) as loader:
        (batch,) = loader
    assert isinstance(batch, HeteroData)
    assert batch[BUYS].y_positive.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert batch[BUYS].y_negative.tolist() == [[0], [2]]
    assert batch["user"].batch_size == 2
    assert batch["user"].input_id.tolist() == [0, 1]
    assert batch["item"].price.tolist()[:3] == [2.0, 4.0, 3.0]


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """Enough anchors for several batches, and weights."""
    rng = np.random.default_rng(5)
    num_nodes = {"user": 120, "item": 70}
    graph = Graph(
        nodes={t: NodeTable(num_nodes=n) for t, n in num_nodes.items()},
        edges={
            t: EdgeTable(
                src_keys=rng.integers(0, num_nodes[t[0]], n),
                dst_keys=rng.integers(0, num_nodes[t[2]], n),
                features={"weight": rng.random(n)},
            )
            for t, n in ((BUYS, 300), (RETURNS, 100), (VIEWS, 900), (VIEWED_BY, 500), (FOLLOWS, 200))
        },
    ).check()
    folder = tmp_path_factory.mktemp("market") / "parts"
    write_parts(graph, folder, num_parts=2, method="hash", direction="both", weight_attr="weight", neighbor_keys=True)
    return LocalStore(open_dataset(folder))


# --- PageRank ---------------------------------------------------------------------------------------------------------


EXACT = PPRSettings(direction="out", eps=1e-9, max_ppr_nodes=100, num_neighbors_per_hop=-1)


def rows_of(batch, seed_type: str) -> dict[int, list[tuple]]:
    """Per seed of a type, by key: type, key, score and proximity of every node of its neighbourhood."""
    found: dict[int, list[tuple]] = {key: [] for key in batch.node_keys[seed_type][: num_seeds(batch, seed_type)]}
    for (src, relation, dst), attributes in batch.attributes.items():
        if (src, relation) == (seed_type, PPR):
            seeds, nodes = batch.node_keys[src][attributes["edge_index"][0]], attributes["edge_index"][1]
            keys, scores = batch.node_keys[dst][nodes], np.round(attributes["edge_attr"], 5)
            for seed, key, score in zip(seeds, keys, scores.tolist(), strict=True):
                found[seed].append((dst, int(key), *score))
    return found


def num_seeds(batch, seed_type: str) -> int:
    return batch.num_sampled_nodes[seed_type][0]


@pytest.mark.parametrize("num_parts", [1, 3])
def test_pagerank_neighbourhoods_do_not_depend_on_the_batch(stores, num_parts):
    """Anchors are users and labels items; edge types of labels and their reverses are not followed."""
    store, others = stores[num_parts], [VIEWS, VIEWED_BY, FOLLOWS, LIKES]
    with make(store, EXACT, negatives=RETURNS) as loader:
        (batch,) = loader
    assert batch.node_keys["user"][:2].tolist() == [0, 1] and batch.node_keys["item"][:3].tolist() == [1, 3, 2]
    assert batch.attributes[BUYS]["y_positive"].tolist() == [[0, 0, 1], [0, 1, 1]]
    assert batch.attributes[BUYS]["y_negative"].tolist() == [[0], [2]]
    assert all(edge_index.shape == (2, 0) for edge_index in batch.edge_index.values())
    for seed_type, seeds in (("user", [0, 1]), ("item", [1, 3, 2])):
        settings = replace(EXACT, edge_types=others)
        with PPRLoader(store, (seed_type, seeds), settings, batch_size=9, collate="numpy", num_threads=0) as alone:
            (wanted,) = alone
        assert rows_of(batch, seed_type) == rows_of(wanted, seed_type)
    assert [len(rows) for rows in rows_of(batch, "item").values()] == [1, 6, 1]


def test_links_of_a_batch_s_labels_are_not_walked_along(stores, tmp_path):
    """The label is item 3, which user 1 viewed: scores are those of the graph without that view."""
    given = {"supervision": VIEWS, "anchors": [1], "labels": {VIEWS: [[3]]}}
    shop, found = make_shop(), []
    without = {**shop.edges, VIEWS: edges((0, 0), (2, 3)), VIEWED_BY: edges((0, 0), (3, 2))}
    write_parts(replace(shop, edges=without), tmp_path / "parts", num_parts=2, method="hash", direction="both")
    known = {"reverse_types": {VIEWS: VIEWED_BY}}
    with LocalStore(open_dataset(tmp_path / "parts")) as cut:
        for store, excluded in ((stores[1], True), (cut, False), (stores[1], False)):
            with make(store, EXACT, exclude_labels=excluded, **given, **known) as loader:
                (batch,) = loader
            found.append([rows_of(batch, seed_type) for seed_type in ("user", "item")])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (replace(EXACT, edge_types=[BUYS, VIEWS]), {}, "PPRSettings follows user__buys__item, which holds labels"),
        (replace(EXACT, typed_channel_ratios={BOUGHT_BY: 1.0}), {}, "follows item__rev_buys__user, which holds labels"),
        (EXACT, {"replace": True}, "replace is not an option with PPRSettings"),
        (EXACT, {"direction": "in"}, "direction is not an option with PPRSettings"),
        (EXACT, {"edge_keys": True}, "edge_keys is True, but a PPR batch has no edges of the graph"),
        (EXACT, {"supervision": [BUYS, VIEWS, FOLLOWS, LIKES], "reverse_types": {VIEWS: VIEWED_BY},
                 "negatives": {BUYS: RETURNS}}, "no edge type is left to follow: .* hold labels"),
    ],
)  # fmt: skip
def test_bad_pagerank_settings_are_refused(stores, settings, options, message):
    with pytest.raises(SettingsError, match=message):
        make(stores[1], settings, **options)


def test_batches_of_pyg_carry_neighbourhoods_and_labels(stores, tmp_path):
    with make(stores[1], EXACT, collate="pyg") as loader:
        (batch,) = loader
    assert batch["user", "ppr", "item"].edge_attr.shape[1] == 2 and batch[BUYS].y_positive.shape == (2, 3)
    links = np.array([[0, 1, 2], [1, 2, 3]])
    plain = graph_from_arrays(links, num_nodes=4)
    write_parts(plain, tmp_path / "plain", num_parts=2, method="hash", direction="both")
    wants = {("node", kind, "node"): [[2], [3]] for kind in ("wants", "likes")}
    for settings, name in ((EXACT, "edge_index"), (replace(EXACT, include_sampled_edges=True), "ppr_edge_index")):
        loader = ABLPLoader(
            tmp_path / "plain", settings, [0, 1], supervision=list(wants), labels=wants, batch_size=2, num_threads=0
        )
        with loader:
            (batch,) = loader
        assert {t: pairs.tolist() for t, pairs in batch.y_positive.items()} == {t: [[0, 1], [2, 3]] for t in wants}
        seeds, nodes = batch[name]
        assert seeds.unique().tolist() == [0, 1, 2, 3] and batch.n_id[nodes[seeds == 1]].tolist() == [1, 2, 3]


class TestABLPLoaderByPageRank(BatchesContract):
    @pytest.fixture
    def new_loader(self, market):
        settings = {"supervision": BUYS, "batch_size": 16, "shuffle": True, "collate": "numpy"}
        return lambda **options: ABLPLoader(market, PPRSettings(), "user", **{**settings, **options})


class TestABLPLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, market):
        settings = {"supervision": BUYS, "batch_size": 16, "shuffle": True, "collate": "numpy"}
        return lambda **options: ABLPLoader(market, [3, 2], "user", **{**settings, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"supervision": []}, "give one edge type or several"),
        ({"supervision": [BUYS, BUYS]}, "each once"),
        ({"supervision": [BUYS, ("item", "viewed_by", "user")]}, "different types of anchors"),
        ({"negatives": VIEWED_BY}, "give another edge type between the two"),
        ({"negatives": BUYS}, "give another edge type between the two"),
        ({"negatives": {VIEWS: RETURNS}}, "negatives names .*views.*; the supervision edge types are"),
        ({"supervision": [BUYS, LIKES], "negatives": RETURNS}, "with several supervision edge types give a mapping"),
        ({"label_direction": "in"}, "anchors are of type 'user'; with label_direction 'in' .* of type 'item'"),
        ({"label_direction": "both"}, "label_direction is 'both'"),
        ({"anchors": (1, 1)}, "anchors name node 1 more than once"),
        ({"max_labels": 0}, "max_labels is 0, so there would be no labels"),
        ({"supervision": None}, "supervision is None; give the edge type"),
        ({"max_labels": -2}, "max_labels is -2; it must be an integer"),
        ({"num_neighbors": {BUYS: [2], "default": [1]}}, "num_neighbors follows user__buys__item, which holds labels"),
        ({"num_neighbors": {BOUGHT_BY: [2], "default": [1]}}, "item__rev_buys__user, which holds labels or their rev"),
        ({"disjoint": True}, "disjoint and time_attr are not options of ABLPLoader"),
    ],
)
def test_bad_settings_are_refused(stores, options, message):
    with pytest.raises(SettingsError, match=message):
        make(stores[1], **options)


def test_a_graph_with_label_types_only_has_no_message_types(tmp_path):
    shop = make_shop()
    graph = Graph(nodes=shop.nodes, edges={t: shop.edges[t] for t in (BUYS, BOUGHT_BY)})
    write_parts(graph, tmp_path / "parts", num_parts=1, direction="both")
    with pytest.raises(
        SettingsError, match="no edge type is left to follow: item__rev_buys__user, user__buys__item hold"
    ):
        make(tmp_path / "parts")


def test_unknown_supervision_types_are_refused(stores):
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        make(stores[1], supervision=("user", "sells", "item"))


def test_a_direction_missing_from_the_dataset_is_refused(tmp_path):
    write_parts(make_shop(), tmp_path / "parts", num_parts=1)
    with pytest.raises(SettingsError, match="labels follow edges 'out'; the dataset holds in; write the parts again"):
        make(tmp_path / "parts")


SEPARATE = {"num_neighbors": {VIEWED_BY: [3, 2], "default": [0, 0]}}
"""Counts by which ``VIEWED_BY`` is followed, whichever edge types hold labels."""


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ({}, {"direction": "out"}, "direction"),
        ({}, {"replace": True}, "replace"),
        ({"reverse_types": {VIEWS: VIEWED_BY}}, {"reverse_types": {BUYS: VIEWED_BY}}, "num_neighbors"),
        (
            {"subgraph_type": "bidirectional", "reverse_types": {VIEWS: VIEWED_BY}},
            {"subgraph_type": "bidirectional", "reverse_types": {RETURNS: VIEWED_BY}},
            "reverse_types",
        ),
        ({}, {"num_neighbors": [3, 1]}, "num_neighbors"),
        ({}, {"num_neighbors": PPRSettings()}, "num_neighbors"),
        ({"num_neighbors": PPRSettings()}, {"num_neighbors": PPRSettings(alpha=0.25)}, "num_neighbors"),
        ({"num_neighbors": PPRSettings()}, {"num_neighbors": PPRSettings(edge_types=[VIEWS])}, "num_neighbors"),
        ({}, {"anchors": ("user", [0, 1])}, "anchors"),
        ({"anchors": ("user", [0, 1])}, {"anchors": ("user", [1, 0])}, "anchors"),
        (SEPARATE, {"supervision": [BUYS, VIEWS], **SEPARATE}, "supervision"),
        (
            {"supervision": [BUYS, VIEWS], **SEPARATE},
            {"supervision": [VIEWS, BUYS], **SEPARATE},
            "supervision",
        ),
        (SEPARATE, {"negatives": RETURNS, **SEPARATE}, "negatives"),
        ({"negatives": VIEWS, **SEPARATE}, {"negatives": RETURNS, **SEPARATE}, "negatives"),
        ({"supervision": FOLLOWS}, {"supervision": FOLLOWS, "label_direction": "in"}, "label_direction"),
        ({}, {"max_labels": 1}, "max_labels"),
    ],
)
def test_every_sampling_option_is_part_of_the_state(market, before, after, name):
    def new(**options):
        settings = {"num_neighbors": [3, 2], "anchors": "user", "supervision": BUYS, "batch_size": 16, "shuffle": True}
        return ABLPLoader(market, collate="numpy", **{**settings, **options})

    with new(**before) as one, new(**before, num_threads=2, prefetch=1) as same, new(**after) as other:
        state = json.loads(json.dumps(one.state_dict()))
        same.load_state_dict(state)
        with pytest.raises(StateError, match=rf"with {name} |over other {name}="):
            other.load_state_dict(state)
