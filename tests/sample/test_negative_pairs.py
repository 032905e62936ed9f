"""Checks that negatives are no links, respect times, and are drawn with the right chances."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from hopstream.errors import SettingsError
from hopstream.sample.negative_pairs import MAX_CANDIDATES, MAX_ROUNDS, NegativeSampler, Positives
from hopstream.sample.negatives import NegativeSampling
from tests import naive_negatives as naive

RATES = ("user", "rates", "item")
RATED = ("item", "rated", "user")


@dataclass
class PairStore:
    """The part of a store that negatives need: ids are reversed keys, and edges a set of key pairs."""

    num_users: int = 10
    num_items: int = 12
    edges: set[tuple[int, int]] = field(default_factory=set)
    item_times: np.ndarray | None = None
    user_times: np.ndarray | None = None
    taken: set[tuple[int, int]] = field(default_factory=set)
    """Links in another edge type, backwards."""
    num_asked: int = 0
    num_calls: int = 0

    def __post_init__(self):
        self.counts = {"user": self.num_users, "item": self.num_items}
        self.times = {"user": self.user_times, "item": self.item_times}
        nodes = {t: {} if times is None else {"time": "a column"} for t, times in self.times.items()}
        holders = ((RATED, True),) if self.taken else ()
        self.schema = SimpleNamespace(nodes=nodes, holders_of=lambda edge_type: holders)
        self.book = SimpleNamespace(num_ids=self.counts.__getitem__)

    def lookup(self, node_type, keys):
        assert not len(keys) or 0 <= keys.min() <= keys.max() < self.counts[node_type]
        return self.counts[node_type] - 1 - keys

    def fetch(self, requests):
        [request] = requests
        assert request.names == ("time",)
        return [{"time": self.times[request.entity][self.lookup(request.entity, request.ids)]}]

    def find_edges(self, edge_type, direction, ids, neighbor_ids):
        self.num_asked, self.num_calls = self.num_asked + len(ids), self.num_calls + 1
        sources, destinations = (neighbor_ids, ids) if direction == "in" else (ids, neighbor_ids)
        users, items = (sources, destinations) if edge_type == RATES else (destinations, sources)
        edges = {RATES: self.edges, RATED: self.taken}[edge_type]
        pairs = zip(self.lookup("user", users).tolist(), self.lookup("item", items).tolist(), strict=True)
        return np.array([0 if pair in edges else -1 for pair in pairs], np.int64)


def draw(store, how, src_keys, dst_keys, rng_seed=1, times=None, direction="in"):
    sampler = NegativeSampler(store, RATES, direction, how, None if times is None else "time")
    times = None if times is None else np.asarray(times)
    return sampler.draw(Positives(src_keys=np.asarray(src_keys), dst_keys=np.asarray(dst_keys), times=times), rng_seed)


def test_binary_negatives_are_pairs_of_any_two_nodes():
    found = draw(PairStore(), NegativeSampling("binary", 1.5), [0, 1, 2], [3, 4, 5])
    assert found.tolist() == [[8, 6, 0, 0, 4], [7, 4, 2, 3, 2]]


def test_triplets_keep_the_sources_of_positives():
    """Negative k belongs to positive k % 3."""
    found = draw(PairStore(), NegativeSampling("triplet", 2), [8, 1, 2], [3, 4, 5])
    assert found.tolist() == [[8, 1, 2, 8, 1, 2], [7, 4, 2, 3, 2, 8]]


def test_in_batch_negatives_are_the_other_destinations():
    """With one negative per other positive, each link has every other destination once."""
    found = draw(PairStore(), NegativeSampling("triplet", 3, in_batch=True), [8, 1, 2, 3], [3, 4, 5, 6])
    assert found[0].tolist() == [8, 1, 2, 3] * 3
    others = found[1].reshape(3, 4).T.tolist()
    assert [sorted(row) for row in others] == [[4, 5, 6], [3, 5, 6], [3, 4, 6], [3, 4, 5]]
    assert draw(PairStore(), NegativeSampling("binary", 3, in_batch=True), [8, 1, 2, 3], [3, 4, 5, 6]).tolist() == (
        found.tolist()
    )


def test_a_single_positive_has_in_batch_negatives_from_the_graph():
    how = NegativeSampling("binary", 2, in_batch=True)
    assert (
        draw(PairStore(), how, [8], [3]).tolist()
        == draw(PairStore(), NegativeSampling("triplet", 2), [8], [3]).tolist()
    )


@pytest.mark.parametrize("direction", ["in", "out"])
def test_strict_negatives_are_not_links_of_other_edge_types(direction):
    """Of the three items, user 0 rated item 0; that they rated item 2 is known backwards, in another type."""
    store = PairStore(num_users=1, num_items=3, edges={(0, 0)}, taken={(0, 2)})
    how = NegativeSampling("triplet", 4, strict=True)
    assert draw(store, how, [0], [0], direction=direction).tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("direction", ["in", "out"])
def test_strict_triplets_are_the_first_pairs_without_links(rng, direction):
    edges = {(int(u), int(i)) for u, i in rng.integers(0, (10, 12), (60, 2))}
    store = PairStore(edges=edges)
    users, items = rng.integers(0, 10, 20), rng.integers(0, 12, 20)
    rng_seed = int(rng.integers(0, 1 << 62))
    how = NegativeSampling("triplet", 2, strict=True)
    found = draw(store, how, users, items, rng_seed, direction=direction)
    known = edges | set(zip(users.tolist(), items.tolist(), strict=True))
    wanted = naive.strict_triplets(users.tolist(), 2, 12, rng_seed, lambda u, i: (u, i) in known)
    assert list(zip(*found.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("in_batch", [False, True])
def test_strict_negatives_are_never_links_nor_positives(rng, mode, in_batch):
    edges = {(int(u), int(i)) for u, i in rng.integers(0, (10, 12), (70, 2))}
    users, items = rng.integers(0, 10, 25), rng.integers(0, 12, 25)
    how = NegativeSampling(mode, 3, strict=True, in_batch=in_batch)
    for rng_seed in range(20):
        found = draw(PairStore(edges=edges), how, users, items, rng_seed)
        pairs = set(zip(*found.tolist(), strict=True))
        assert not pairs & edges, f"{rng_seed=}"
        assert not pairs & set(zip(users.tolist(), items.tolist(), strict=True)), f"{rng_seed=}"
        if mode == "triplet" or in_batch:
            assert found[0].tolist() == users.tolist() * 3


def test_only_rejected_candidates_are_drawn_again():
    store = PairStore(num_users=1000, num_items=1000, edges={(u, u) for u in range(1000)})
    draw(store, NegativeSampling("binary", 1, strict=True), np.arange(500), np.arange(500))
    assert store.num_asked < 520


def test_the_last_pair_without_a_link_is_found():
    """All pairs but one are links."""
    edges = {(u, i) for u in range(10) for i in range(12)} - {(4, 7)}
    found = draw(PairStore(edges=edges), NegativeSampling("binary", 3, strict=True), [4, 4], [0, 1])
    assert found.tolist() == [[4] * 6, [7] * 6]
    found = draw(PairStore(edges=edges), NegativeSampling("triplet", 3, strict=True), [4, 4], [0, 1])
    assert found.tolist() == [[4] * 6, [7] * 6]


@pytest.mark.parametrize("in_batch", [False, True])
def test_too_few_strict_negatives_are_an_error_after_bounded_work(in_batch):
    store = PairStore(edges={(4, i) for i in range(12)})
    how = NegativeSampling("triplet", 2, strict=True, in_batch=in_batch)
    with pytest.raises(SettingsError, match=r"2 of 6 strict negatives of user__rates__item .* source 4.*strict=False"):
        draw(store, how, [4, 5, 6], [0, 1, 2])
    assert store.num_calls <= 2 * MAX_ROUNDS
    assert store.num_asked <= 2 * MAX_ROUNDS * (MAX_CANDIDATES + 6)


def test_candidates_are_tried_singly_in_little_memory(monkeypatch):
    monkeypatch.setattr("hopstream.sample.negative_pairs.MAX_CANDIDATES", 1)
    store = PairStore(edges={(4, i) for i in range(12)})
    with pytest.raises(SettingsError, match="1 of 1 strict negatives"):
        draw(store, NegativeSampling("triplet", 1, strict=True), [4], [0])
    assert 1 < store.num_asked <= store.num_calls


def test_strict_in_batch_falls_back_to_the_graph():
    """User 4 has rated all items of the batch."""
    store = PairStore(edges={(4, 0), (4, 1), (4, 2)})
    for rng_seed in range(20):
        found = draw(store, NegativeSampling("triplet", 1, strict=True, in_batch=True), [4, 5, 6], [0, 1, 2], rng_seed)
        assert found[1, 0] > 2
        assert set(found[1, 1:].tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("how", [NegativeSampling("binary", 2), NegativeSampling("triplet", 2)])
@pytest.mark.parametrize("is_strict", [False, True])
def test_nodes_of_negatives_exist_at_the_link_time(rng, how, is_strict):
    item_times, user_times = rng.permutation(12), rng.permutation(10)
    store = PairStore(item_times=item_times.astype(np.int32), user_times=user_times, edges={(3, 3), (4, 4)})
    how = NegativeSampling(how.mode, how.amount, strict=is_strict)
    times = np.array([3, 4, 5, 50])
    for rng_seed in range(20):
        users, items = draw(store, how, [0, 1, 2, 3], [0, 1, 2, 3], rng_seed, times)
        of_link = np.tile(times, 2)
        assert (item_times[items] <= of_link).all(), f"{rng_seed=}"
        if how.mode == "binary":
            assert (user_times[users] <= of_link).all(), f"{rng_seed=}"


def test_nodes_of_in_batch_negatives_exist_at_the_link_time():
    """Item i appears at time i, so link 0 finds no other item in its batch, but items 0 to 2 in the graph."""
    store = PairStore(item_times=np.arange(12))
    how = NegativeSampling("triplet", 1, in_batch=True)
    found = np.stack([draw(store, how, [5, 6, 7], [3, 4, 5], seed, times=[2, 4, 9])[1] for seed in range(30)])
    assert set(found[:, 0].tolist()) <= {0, 1, 2}
    assert set(found[:, 1].tolist()) == {3}
    assert set(found[:, 2].tolist()) == {3, 4}


def test_without_early_enough_nodes_the_earliest_is_taken():
    store = PairStore(item_times=np.arange(12)[::-1] + 5, user_times=np.arange(10) + 7)
    found = draw(store, NegativeSampling("binary", 2), [0, 1], [0, 1], times=[-5, np.iinfo(np.int64).min])
    assert found.tolist() == [[0] * 4, [11] * 4]


def test_without_early_pairs_the_least_late_pair_is_taken():
    store = PairStore(item_times=np.arange(12), edges={(4, item) for item in range(6)})
    found = draw(store, NegativeSampling("triplet", 2, strict=True), [4, 4], [0, 1], times=[3, 8])
    assert found[1, 0] == found[1, 2] == 6
    assert set(found[1, 1::2].tolist()) <= {6, 7, 8}


def test_times_need_not_be_close():
    store = PairStore(item_times=np.array([2**63 - 1] * 11 + [-(2**63)]))
    found = draw(store, NegativeSampling("triplet", 2), [0, 1], [0, 1], times=[-(2**63), 2**63 - 2])
    assert found[1].tolist() == [11] * 4


def test_strict_pairs_are_uniform_over_pairs_without_links():
    edges = {(u, i) for u in range(4) for i in range(5) if (u + i) % 3 == 0}
    store = PairStore(num_users=4, num_items=5, edges=edges)
    how = NegativeSampling("binary", 40, strict=True)
    counts: dict[tuple[int, int], int] = {}
    for rng_seed in range(100):
        for pair in zip(*draw(store, how, [0], [0], rng_seed).tolist(), strict=True):
            counts[pair] = counts.get(pair, 0) + 1
    num_pairs = 20 - len(edges)
    assert len(counts) == num_pairs
    wanted = 4000 / num_pairs
    statistic = sum((count - wanted) ** 2 / wanted for count in counts.values())
    assert statistic < naive.chi_square_bound(num_pairs), "seeds 0..99"


def test_ends_follow_their_weights():
    how = NegativeSampling("binary", 4000, src_weight=[0, 0, 0, 1, 3, 0, 0, 0, 0, 0], dst_weight=[1.0, 0.0] * 6)
    users, items = draw(PairStore(), how, [0], [0])
    counts = np.bincount(users)
    assert set(users.tolist()) == {3, 4}
    assert abs(counts[4] - 3000) < 5 * np.sqrt(4000 * 0.75 * 0.25), "rng_seed=1"
    assert set(items.tolist()) == {0, 2, 4, 6, 8, 10}


def test_in_batch_every_other_destination_has_an_equal_chance():
    how = NegativeSampling("triplet", 1, in_batch=True)
    found = np.stack([draw(PairStore(), how, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], seed)[1] for seed in range(2000)])
    for link in range(5):
        counts = np.bincount(found[:, link], minlength=5)
        assert counts[link] == 0
        statistic = float(((np.delete(counts, link) - 500) ** 2 / 500).sum())
        assert statistic < naive.chi_square_bound(4), f"{link=}, seeds 0..1999"


@pytest.mark.parametrize(("side", "node_type", "num_nodes"), [("src", "user", 10), ("dst", "item", 12)])
def test_weights_of_another_length_are_refused(side, node_type, num_nodes):
    how = NegativeSampling("binary", **{f"{side}_weight": [1.0, 2.0]})
    with pytest.raises(
        SettingsError, match=f"{side}_weight has 2 entries; node type '{node_type}' has {num_nodes} nodes"
    ):
        NegativeSampler(PairStore(), RATES, "in", how, None)
