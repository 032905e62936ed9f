"""Tests that a store draws in every way that requests offer, and answers for pairs and links.

Each store's tests inherit this class beside ``StoreContract``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from hopstream.errors import HopstreamError, IdRangeError, SettingsError, UnknownNameError
from hopstream.schema import Direction, EdgeType, timed_edge_types
from hopstream.store.contract import MAX_TREES, TREE_SHIFT, LaborSeeds, SampleReply, SampleRequest, Store
from tests import naive_sampling
from tests.store.cases import BUYS, KNOWS, LIKES, Case
from tests.store.contract import StoreContract, ends, sides

RNG_SEED = 0xFEEDFACECAFEBEEF
WAYS: dict[str, list[dict[str, Any]]] = {
    "uniform": [{"count": -1}, {"count": 0}, {"count": 3}, {"count": 100}, {"count": 4, "is_replacing": True}],
    "last": [{"count": -1}, {"count": 2}, {"count": 100}],
    "top_k": [{"count": -1}, {"count": 2}, {"count": 100}],
    "weighted": [{"count": -1}, {"count": 3}, {"count": 100}, {"count": 5, "is_replacing": True}],
    "labor": [{"count": -1}, {"count": 3}, {"count": 100}],
}
"""Strategy to numbers of neighbours; item 0 has more than 100, and more than 512, and the others fewer."""
LIMITS = ["nothing", "trees", "times", "exclusive", "excluded", "candidates", "candidates of trees", "all"]
FEW_LIMITS = ["nothing", "exclusive", "all"]
"""Limits for stores that forward draws to another store."""
NUM_ROWS = 24
BAD: list[tuple[dict[str, Any], type[HopstreamError]]] = [
    ({"trees": np.array([0, -1])}, SettingsError),
    ({"trees": np.array([0, MAX_TREES])}, SettingsError),
    ({"trees": np.array([0])}, SettingsError),
    ({"times": np.array([0, 1, 2])}, SettingsError),
    ({"times": np.array([0.0, 1.0])}, SettingsError),
    ({"excluded": np.array([[0, 20], [1, 1]])}, IdRangeError),
    ({"excluded": np.array([[0, 1], [1, 30]])}, IdRangeError),
    ({"excluded": np.array([[0, -1], [1, 1]])}, IdRangeError),
    ({"excluded": np.zeros((3, 1), np.int64)}, SettingsError),
    ({"candidates": np.array([3, 2])}, SettingsError),
    ({"candidates": np.array([2, 2])}, SettingsError),
    ({"candidates": np.array([2, 30])}, IdRangeError),
    ({"candidates": np.array([1 << TREE_SHIFT])}, IdRangeError),
    ({"candidates": np.array([30, 1 << TREE_SHIFT]), "trees": np.array([0, 1])}, IdRangeError),
    ({"candidates": np.array([-1 << TREE_SHIFT, 2]), "trees": np.array([0, 1])}, IdRangeError),
    ({"strategy": "best"}, SettingsError),
    ({"strategy": "last", "is_replacing": True}, SettingsError),
    ({"strategy": "top_k", "is_replacing": True}, SettingsError),
    ({"strategy": "labor"}, SettingsError),
    ({"labor": LaborSeeds(first=1)}, SettingsError),
    ({"strategy": "labor", "labor": LaborSeeds(first=1, share=1.0)}, SettingsError),
    ({"strategy": "weighted", "edge_type": LIKES}, SettingsError),
    ({"strategy": "last", "edge_type": KNOWS}, SettingsError),
]
"""Fields that make a request invalid."""


class WaysContract:
    """Checks against the graph that the dataset was written from, in keys."""

    limits = FEW_LIMITS

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        """A store of all parts."""
        raise NotImplementedError

    @pytest.fixture
    def case(self, find_case: Callable[[str, int], Case]) -> Case:
        return find_case("timed", 3)

    @pytest.fixture
    def store(self, case: Case) -> Iterator[Store]:
        with self.open_store(case) as store:
            yield store

    def test_facts_match_the_write_options(self, case: Case, store: Store) -> None:
        assert (store.time_attr, store.weight_attr, store.has_neighbor_keys) == ("stamp", "price", True)
        assert store.schema.edge_splits == {BUYS: ("train", "test"), LIKES: ()}

    @pytest.mark.parametrize("strategy", WAYS)
    def test_draws_equal_the_reference(self, case: Case, store: Store, strategy: str) -> None:
        for limit in self.limits:
            asked = [
                limited(case, replace(request, **way), limit)
                for request, way in product(requests_of(case, store, strategy), WAYS[strategy])
            ]
            replies = store.sample([in_ids(case.shared(), request) for request in asked])
            for request, reply in zip(asked, replies, strict=True):
                wanted = wanted_rows(case, request, (strategy, limit))
                got = StoreContract.as_keys(case.shared(), reply, (request.edge_type, request.direction))
                assert got == wanted, (request.edge_type, request.direction, strategy, limit, request.count)

    def test_a_row_does_not_depend_on_the_request(self, case: Case, store: Store) -> None:
        for request in [limited(case, r, "all") for r in requests_of(case, store, "uniform")][:2]:
            asked = in_ids(store, replace(request, count=3))
            (whole,) = store.sample([asked])
            rows = [slice(i, i + 1) for i in range(0, NUM_ROWS, 7)]
            alone = store.sample(
                [
                    replace(asked, ids=asked.ids[row], trees=asked.trees[row], times=asked.times[row])  # type: ignore[index]
                    for row in rows
                ]
            )
            assert [int(reply.counts[0]) for reply in alone] == whole.counts[::7].tolist()
            stops = np.cumsum(whole.counts)
            for row, reply in zip(rows, alone, strict=True):
                stop = int(stops[row.start])
                assert reply.neighbor_ids.tolist() == whole.neighbor_ids[stop - int(reply.counts[0]) : stop].tolist()

    def test_empty_requests_give_empty_answers_for_every_strategy(self, case: Case, store: Store) -> None:
        none = np.empty(0, np.int64)
        for strategy in WAYS:
            for request in requests_of(case, store, strategy):
                empty = replace(
                    request, ids=none, trees=none, times=none, excluded=np.empty((2, 0), np.int64), candidates=none
                )
                (reply,) = store.sample([empty])
                assert (len(reply.counts), len(reply.neighbor_ids)) == (0, 0)
                (reply,) = store.sample([replace(empty, ids=np.arange(2), trees=np.arange(2), times=np.arange(2))])
                assert reply.counts.tolist() == [0, 0]

    def test_invalid_requests_are_refused(self, case: Case, store: Store) -> None:
        request = SampleRequest(edge_type=BUYS, direction="in", ids=np.array([0, 1]), count=2)
        for fields, error in BAD:
            with pytest.raises(error):
                store.sample([replace(request, **fields)])

    def test_edges_between_pairs_are_the_first_in_stored_order(self, case: Case, store: Store) -> None:
        rng = np.random.default_rng(41)
        for edge_type, direction in sides(case):
            near, far = ends(edge_type, direction)
            rows = naive_sampling.stored_rows(case.graph, edge_type, direction, "stamp", "price")
            near_keys = rng.integers(0, len(rows), 80)
            far_keys = rng.integers(0, case.graph.nodes[far].num_nodes, 80)
            found = store.find_edges(edge_type, direction, store.lookup(near, near_keys), store.lookup(far, far_keys))
            assert found.dtype == np.int64
            wanted = [
                next((e.edge_key for e in rows[near_key] if e.neighbor == far_key), -1)
                for near_key, far_key in zip(near_keys.tolist(), far_keys.tolist(), strict=True)
            ]
            assert edge_keys_of(store, (edge_type, direction), found) == wanted
            assert len(set(wanted)) > 5
            none = np.empty(0, np.int64)
            assert store.find_edges(edge_type, direction, none, none).tolist() == []

    def test_links_are_the_ends_and_times_of_edges(self, case: Case, store: Store) -> None:
        for edge_type in (BUYS, LIKES):
            table = case.graph.edges[edge_type]
            for keys in (np.random.default_rng(43).integers(0, table.num_edges, 70), np.empty(0, np.int64)):
                links = store.links(edge_type, keys)
                assert links.src_keys.tolist() == table.src_keys[keys].tolist()
                assert links.dst_keys.tolist() == table.dst_keys[keys].tolist()
                assert links.src_keys.dtype == links.dst_keys.dtype == np.int64
                if edge_type == BUYS:
                    assert links.times is not None
                    assert links.times.tolist() == np.asarray(table.features["stamp"])[keys].tolist()
                else:
                    assert links.times is None

    def test_edge_splits_equal_those_of_the_graph(self, case: Case, store: Store) -> None:
        for name, keys in case.graph.edge_splits[BUYS].items():
            assert store.edge_split(BUYS, name).tolist() == keys.tolist()

    def test_invalid_pair_and_link_requests_are_refused(self, case: Case, store: Store) -> None:
        some, ghost = np.array([0, 1]), ("user", "ghost", "item")
        with pytest.raises(UnknownNameError, match="ghost"):
            store.find_edges(ghost, "in", some, some)
        with pytest.raises(SettingsError, match="neighbor_ids"):
            store.find_edges(BUYS, "in", some, some[:1])
        for bad in (-1, 20, 2**33):
            with pytest.raises(IdRangeError, match=str(bad)):
                store.find_edges(BUYS, "in", np.array([0, bad]), some)
            with pytest.raises(IdRangeError, match=str(bad)):
                store.find_edges(BUYS, "out", some, np.array([0, bad]))
        num_edges = case.graph.edges[BUYS].num_edges
        for bad in (-1, num_edges, 2**33):
            with pytest.raises(IdRangeError, match=str(bad)):
                store.links(BUYS, np.array([0, bad]))
        with pytest.raises(UnknownNameError, match="keeps no links of edge type user__knows__user"):
            store.links(KNOWS, some)
        with pytest.raises(UnknownNameError, match="ghost"):
            store.links(ghost, some)
        with pytest.raises(UnknownNameError, match="ghost"):
            store.edge_split(BUYS, "ghost")
        with pytest.raises(UnknownNameError, match="train"):
            store.edge_split(LIKES, "train")
        with pytest.raises(UnknownNameError, match="ghost"):
            store.edge_split(ghost, "train")


def requests_of(case: Case, store: Store, strategy: str) -> list[SampleRequest]:
    """A request in keys for each edge type and direction that has what a strategy needs."""
    rng = np.random.default_rng(31)
    found = []
    for edge_type, direction in sides(case):
        has_times = edge_type in timed_edge_types(store.schema, "stamp", direction)
        if (strategy == "last" and not has_times) or (strategy in ("top_k", "weighted") and edge_type != BUYS):
            continue
        near, _ = ends(edge_type, direction)
        keys = rng.integers(0, case.graph.nodes[near].num_nodes, NUM_ROWS)
        keys[::9] = 0
        labor = LaborSeeds(first=RNG_SEED, second=77, share=0.25) if strategy == "labor" else None
        found.append(
            SampleRequest(
                edge_type=edge_type, direction=direction, ids=keys, count=3, rng_seed=RNG_SEED, wants_edge_ids=True,
                strategy=strategy, labor=labor,  # type: ignore[arg-type]
            )
        )  # fmt: skip
    return found


WANTED: dict[tuple[object, ...], list[list[tuple[int, int]]]] = {}
"""Answers of the reference, which all stores and all numbers of parts must give."""


def wanted_rows(case: Case, request: SampleRequest, what: tuple[str, str]) -> list[list[tuple[int, int]]]:
    """The reference's answer to a request of ``requests_of`` under a limit, computed once."""
    asked = (*what, request.edge_type, request.direction, request.count, request.is_replacing)
    if asked not in WANTED:
        WANTED[asked] = naive_sampling.answer(case.graph, request, time_attr="stamp", weight_attr="price")
    return WANTED[asked]


def limited(case: Case, request: SampleRequest, limit: str) -> SampleRequest:
    """Build a request in keys with fields that hide edges from it."""
    rng = np.random.default_rng(37)
    near, far = ends(request.edge_type, request.direction)
    num_near, num_far = case.graph.nodes[near].num_nodes, case.graph.nodes[far].num_nodes
    fields: dict[str, Any] = {}
    if limit in ("trees", "candidates of trees", "all"):
        fields["trees"] = rng.choice([0, 5, MAX_TREES - 1], NUM_ROWS)
    if limit in ("times", "exclusive", "all"):
        fields |= {"times": rng.integers(-6, 52, NUM_ROWS), "is_inclusive": limit != "exclusive"}
    if limit in ("excluded", "all"):
        fields["excluded"] = np.stack(
            [rng.integers(0, num_near, 24) * (np.arange(24) > 3), rng.integers(0, num_far, 24)]
        )
    if limit in ("candidates", "candidates of trees", "all"):
        fields["candidates"] = candidates_of(rng, num_far, fields.get("trees"))
    return replace(request, **fields)


def candidates_of(rng: np.random.Generator, num_far: int, trees: np.ndarray | None) -> np.ndarray:
    """Half of all keys; or a quarter in each of the trees, others in each, but none in the first."""
    if trees is None:
        return np.sort(rng.choice(num_far, num_far // 2, replace=False))
    some = np.unique(trees).tolist()[1:]
    pairs = [tree << TREE_SHIFT | rng.choice(num_far, num_far // 4, replace=False) for tree in some]
    return np.sort(np.concatenate(pairs))


def candidates_in_ids(store: Store, node_type: str, request: SampleRequest) -> np.ndarray | None:
    """Candidates in ids, under the trees that they have in keys."""
    if request.candidates is None:
        return None
    if request.trees is None:
        return np.sort(store.lookup(node_type, request.candidates))
    ids = store.lookup(node_type, request.candidates % (1 << TREE_SHIFT))
    return np.sort(request.candidates >> TREE_SHIFT << TREE_SHIFT | ids)


def in_ids(store: Store, request: SampleRequest) -> SampleRequest:
    """A request in ids."""
    near, far = ends(request.edge_type, request.direction)
    excluded = request.excluded
    return replace(
        request,
        ids=store.lookup(near, request.ids),
        excluded=None
        if excluded is None
        else np.stack([store.lookup(near, excluded[0]), store.lookup(far, excluded[1])]),
        candidates=candidates_in_ids(store, far, request),
    )


def edge_keys_of(store: Store, side: tuple[EdgeType, Direction], edge_ids: np.ndarray) -> list[int]:
    """Keys of edges; -1 stays."""
    known = edge_ids[edge_ids >= 0]
    reply = SampleReply(
        counts=np.ones(len(known), np.int32), neighbor_ids=np.zeros(len(known), np.int64), edge_ids=known
    )
    keys = iter([pairs[0][1] for pairs in StoreContract.as_keys(store, reply, side)])
    return [next(keys) if edge_id >= 0 else -1 for edge_id in edge_ids.tolist()]
