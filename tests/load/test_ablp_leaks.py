"""Checks that labels that the graph also holds elsewhere stay out of their batch's message graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hopstream
from hopstream.errors import SettingsError, StateError, UnknownNameError
from hopstream.load.ablp import ABLPLoader
from hopstream.store.contract import KEY, FetchRequest, SampleRequest

RATES, RATED_BY = ("user", "rates", "movie"), ("movie", "rev_rates", "user")
PREDICT = ("user", "predict", "movie")


@pytest.fixture(scope="module", params=[1, 3])
def folder(request, tmp_path_factory):
    """Ratings and reverses; both hold the training links, as does the edge type that is to be predicted."""
    rng = np.random.default_rng(9)
    pairs = np.unique(rng.integers(0, [[60], [30]], (2, 500)), axis=1)
    graph = hopstream.graph_from_arrays({RATES: pairs, RATED_BY: pairs[::-1]}, num_nodes={"user": 60, "movie": 30})
    graph = hopstream.hold_out_links(hopstream.split_links(graph, RATES, by="pair"), RATES, PREDICT)
    path = tmp_path_factory.mktemp("leaks") / "parts"
    hopstream.write_parts(graph, path, num_parts=request.param, method="random", direction="both")
    return path


@pytest.mark.parametrize("label_direction", ["out", "in"])
def test_labels_of_a_batch_are_not_among_its_message_edges(folder, label_direction):
    with hopstream.open_store(folder) as store:
        links = store.links(PREDICT, store.edge_split(PREDICT, "train"))
        train = set(zip(links.src_keys.tolist(), links.dst_keys.tolist(), strict=True))
        held = set(edges_of(store, RATES))
        assert len(train & held) == len(train)  # or nothing could leak
    num_labels = num_followed = 0
    with ABLPLoader(
        folder, [-1, -1], supervision=PREDICT, label_direction=label_direction, batch_size=7, collate="numpy"
    ) as loader:
        for batch in loader:
            anchors, found = batch.attributes[PREDICT]["y_positive"]
            users, movies = (anchors, found) if label_direction == "out" else (found, anchors)
            keys = batch.node_keys
            labels = set(zip(keys["user"][users].tolist(), keys["movie"][movies].tolist(), strict=True))
            num_labels += len(labels)
            for edge_type, (src, dst) in batch.edge_index.items():
                user, movie = (src, dst) if edge_type[0] == "user" else (dst, src)
                seen = set(zip(keys["user"][user].tolist(), keys["movie"][movie].tolist(), strict=True))
                num_followed += len(seen)
                assert not seen & labels, edge_type
    assert num_labels > 300
    assert num_followed > 0


PEOPLE, TOLD = ("person", "knows", "person"), ("person", "predict", "person")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """An undirected graph in one edge type, each link there and back; those to predict were taken from it."""
    rng = np.random.default_rng(10)
    pairs = rng.integers(0, 40, (2, 80))
    pairs = pairs[:, pairs[0] != pairs[1]]
    both = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    graph = hopstream.graph_from_arrays({PEOPLE: both}, num_nodes={"person": 40})
    graph = hopstream.hold_out_links(hopstream.split_links(graph, PEOPLE, by="pair"), PEOPLE, TOLD)
    path = tmp_path_factory.mktemp("people") / "parts"
    hopstream.write_parts(graph, path, num_parts=2, method="random", direction="both")
    return path


@pytest.mark.parametrize("label_direction", ["out", "in"])
def test_neither_labels_nor_their_reverses_are_followed_between_nodes_of_one_type(people, label_direction):
    num_labels = num_followed = 0
    with ABLPLoader(
        people, [-1, -1], supervision=TOLD, label_direction=label_direction, batch_size=4, collate="numpy"
    ) as loader:
        for batch in loader:
            keys = batch.node_keys["person"]
            labels = set(map(frozenset, keys[batch.attributes[TOLD]["y_positive"]].T.tolist()))
            seen = set(map(frozenset, keys[batch.edge_index[PEOPLE]].T.tolist()))
            assert not labels & seen
            num_labels, num_followed = num_labels + len(labels), num_followed + len(seen)
    assert num_labels > 60
    assert num_followed > 60


LIKES, LIKED_BY = ("user", "likes", "item"), ("item", "rev_likes", "user")
WOULD, HATES, OWNS = ("user", "would", "item"), ("user", "hates", "item"), ("user", "owns", "item")
OWNED_BY = ("item", "had_by", "user")


def test_labels_of_all_types_and_negatives_are_left_out(tmp_path):
    """Label types given by hand: two of positives, one of negatives, from source types with reverses."""
    rng = np.random.default_rng(11)
    liked, owned = (np.unique(rng.integers(0, 30, (2, 200)), axis=1) for _ in range(2))
    hated = liked[:, ::5]
    graph = hopstream.graph_from_arrays(
        {
            LIKES: liked, LIKED_BY: liked[::-1], ("user", "had", "item"): owned, OWNED_BY: owned[::-1],
            WOULD: liked, OWNS: owned, HATES: hated,
        },
        num_nodes={"user": 30, "item": 30},
    )  # fmt: skip
    had = ("user", "had", "item")
    graph = replace(graph, label_types={WOULD: (LIKES,), OWNS: (had,), HATES: (LIKES,)}).check()
    hopstream.write_parts(graph, tmp_path / "p", num_parts=3, method="random", direction="both")
    places = {WOULD: (LIKES, LIKED_BY), OWNS: (had, OWNED_BY), HATES: (LIKES, LIKED_BY)}
    num_followed = 0
    with ABLPLoader(
        tmp_path / "p", [-1], supervision=[WOULD, OWNS], negatives={WOULD: HATES}, batch_size=1, max_labels=2,
        reverse_types={had: OWNED_BY}, collate="numpy",
    ) as loader:  # fmt: skip
        for batch in loader:
            user_keys, item_keys = batch.node_keys["user"], batch.node_keys["item"]
            found = {WOULD: batch.attributes[WOULD]["y_positive"], OWNS: batch.attributes[OWNS]["y_positive"]}
            found[HATES] = batch.attributes[WOULD]["y_negative"]
            for label_type, (users, items) in found.items():
                labels = set(zip(user_keys[users].tolist(), item_keys[items].tolist(), strict=True))
                for edge_type in places[label_type]:
                    src, dst = batch.edge_index[edge_type]
                    user, item = (src, dst) if edge_type[0] == "user" else (dst, src)
                    seen = set(zip(user_keys[user].tolist(), item_keys[item].tolist(), strict=True))
                    num_followed += len(seen)
                    assert not seen & labels, (label_type, edge_type)
    assert num_followed > 0


@pytest.mark.parametrize(("label_direction", "max_labels"), [("out", -1), ("in", -1), ("out", 2)])
def test_labels_of_a_split_are_its_own(folder, label_direction, max_labels):
    with hopstream.open_store(folder) as store:
        wanted = {}
        for split in ("train", "val"):
            links = store.links(PREDICT, store.edge_split(PREDICT, split))
            wanted[split] = set(zip(links.src_keys.tolist(), links.dst_keys.tolist(), strict=True))
    assert len(wanted["val"]) > 20
    for split, links in wanted.items():
        options = {"supervision": PREDICT, "label_split": split, "max_labels": max_labels, "collate": "numpy"}
        with ABLPLoader(folder, [2], label_direction=label_direction, batch_size=9, **options) as loader:
            found, per_anchor = set(), []
            for batch in loader:
                anchors, others = batch.attributes[PREDICT]["y_positive"]
                users, movies = (anchors, others) if label_direction == "out" else (others, anchors)
                keys = batch.node_keys
                found |= set(zip(keys["user"][users].tolist(), keys["movie"][movies].tolist(), strict=True))
                per_anchor += np.bincount(anchors, minlength=batch.batch_size).tolist()
        assert found <= links
        if max_labels < 0:
            assert found == links
        else:
            degrees = np.bincount([user for user, _ in links], minlength=60)
            assert per_anchor == np.minimum(degrees, max_labels).tolist()


def test_labels_of_a_split_are_drawn_evenly(tmp_path):
    """One anchor with eight labels in the split: each is among three with probability 3/8, within 5 sigma."""
    graph = hopstream.graph_from_arrays({RATES: (np.zeros(10, int), np.arange(10))}, num_nodes={"user": 1, "movie": 10})
    graph = replace(graph, edge_splits={RATES: {"train": np.arange(2, 10)}}).check()
    hopstream.write_parts(graph, tmp_path / "p", num_parts=1, direction="both")
    num_epochs = 600
    counts = np.zeros(10, int)
    with ABLPLoader(
        tmp_path / "p", {RATES: [0]}, "user", supervision=RATES, label_split="train", max_labels=3, collate="numpy",
        num_threads=0, rng_seed=5,
    ) as loader:  # fmt: skip
        for _ in range(num_epochs):
            (batch,) = loader
            counts[batch.node_keys["movie"][batch.attributes[RATES]["y_positive"][1]]] += 1
    assert counts[:2].tolist() == [0, 0]
    assert abs(counts[2:] - num_epochs * 3 / 8).max() < 5 * np.sqrt(num_epochs * 3 / 8 * 5 / 8)


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("trian", UnknownNameError, "trian"),
        (7, SettingsError, "^label_split is 7; give the name of a split"),
    ],
)
def test_bad_splits_of_labels(folder, split, error, message):
    with pytest.raises(error, match=message):
        ABLPLoader(folder, [2], supervision=PREDICT, label_split=split, collate="numpy")


def test_a_split_of_labels_is_part_of_the_state(folder):
    options = {"supervision": PREDICT, "collate": "numpy"}
    with ABLPLoader(folder, [2], label_split="train", **options) as loader:
        state = loader.state_dict()
    message = "with label_split 'train'; this loader has None"
    with ABLPLoader(folder, [2], **options) as loader, pytest.raises(StateError, match=message):
        loader.load_state_dict(state)


def edges_of(store, edge_type):
    """Every edge of a type by the keys of its ends."""
    ids = np.arange(store.book.num_ids(edge_type[2]))
    (reply,) = store.sample([SampleRequest(edge_type=edge_type, direction="in", ids=ids, count=-1)])
    keys = {t: keys_of(store, t) for t in (edge_type[0], edge_type[2])}
    src = keys[edge_type[0]][reply.neighbor_ids.astype(np.int64)]
    return zip(src.tolist(), keys[edge_type[2]][np.repeat(ids, reply.counts)].tolist(), strict=True)


def keys_of(store, node_type):
    ids = np.arange(store.book.num_ids(node_type))
    (columns,) = store.fetch([FetchRequest(entity=node_type, names=(KEY,), ids=ids)])
    return columns[KEY]
