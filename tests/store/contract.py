"""Tests that every store must pass, wherever its parts are.

Each store's tests inherit this class.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SettingsError, StoreUnavailable, UnknownNameError
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import KEY, FetchRequest, SampleReply, SampleRequest, Store
from tests import naive
from tests.store.cases import Case, keys_of

CASES = [(kind, num_parts) for kind in ("homogeneous", "typed") for num_parts in (1, 3, 4)]
FEW_CASES = [("homogeneous", 1), ("typed", 3)]
RNG_SEED = 0xFEEDFACECAFEBEEF


def id_of(case: tuple[str, int]) -> str:
    return f"{case[0]}-{case[1]}"


class StoreContract:
    """Checks against the graph that the dataset was written from."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        """A store of all parts."""
        raise NotImplementedError

    @pytest.fixture(params=FEW_CASES, ids=id_of)
    def case(self, request: pytest.FixtureRequest, find_case: Callable[[str, int], Case]) -> Case:
        return find_case(*request.param)

    @pytest.fixture
    def store(self, case: Case) -> Iterator[Store]:
        with self.open_store(case) as store:
            yield store

    def test_facts_match_the_manifest(self, case: Case, store: Store) -> None:
        manifest = case.dataset.manifest
        assert store.schema == manifest.schema
        assert (store.dataset_id, store.graph_id) == (manifest.dataset_id, manifest.graph_id)
        assert store.directions == manifest.directions
        assert store.parts == tuple(range(case.num_parts))
        assert store.book.num_parts == case.num_parts
        for owner in (*manifest.book.node_offsets, *manifest.book.edge_offsets):
            assert store.book.offsets(owner).tolist() == manifest.book.offsets(owner).tolist()

    def test_pickling_and_copying_are_refused_with_a_remedy(self, store: Store) -> None:
        for send in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"{type(store).__name__} can be neither pickled nor copied: open one"):
                send(store)

    def test_keys_become_ids_and_ids_become_keys(self, case: Case, store: Store) -> None:
        for node_type, table in case.graph.nodes.items():
            keys = np.random.default_rng(3).integers(0, table.num_nodes, 3 * table.num_nodes)
            ids = store.lookup(node_type, keys)
            assert ids.dtype == np.int64
            assert keys_of(store, node_type, ids) == keys.tolist()

    def test_splits_equal_those_of_the_graph(self, case: Case, store: Store) -> None:
        for node_type, splits in case.graph.splits.items():
            for name, keys in splits.items():
                assert store.split(node_type, name).tolist() == keys.tolist()

    def test_columns_equal_those_of_the_graph(self, case: Case, store: Store) -> None:
        rng = np.random.default_rng(4)
        for node_type, table in case.graph.nodes.items():
            keys = rng.integers(0, table.num_nodes, 2 * table.num_nodes)
            request = FetchRequest(entity=node_type, names=(*table.features, KEY), ids=store.lookup(node_type, keys))
            (columns,) = store.fetch([request])
            assert list(columns) == [*table.features, KEY]
            assert columns[KEY].tolist() == keys.tolist()
            for name, column in table.features.items():
                assert_rows_equal(columns[name], column, keys)

    def test_rows_are_written_to_the_front_of_a_longer_out(self, case: Case, store: Store) -> None:
        node_type, name = ("node", "x") if "node" in case.graph.nodes else ("author", "feat")
        column = case.graph.nodes[node_type].features[name]
        keys = np.array([3, 1, 2, 3])
        out = np.full((6, *column.shape[1:]), 7, column.dtype)
        ids = store.lookup(node_type, keys)
        store.fetch([FetchRequest(entity=node_type, names=(name,), ids=ids, out={name: out})])
        assert np.array_equal(out[:4], column[keys])
        assert bool(np.all(out[4:] == 7))

    def test_all_neighbors_come_in_original_order_with_their_edges(self, case: Case, store: Store) -> None:
        for edge_type, direction in sides(case):
            rows = case.adjacency(edge_type, direction)
            near, _far = ends(edge_type, direction)
            keys = np.random.default_rng(6).permutation(len(rows))
            request = SampleRequest(
                edge_type=edge_type, direction=direction, ids=store.lookup(near, keys), count=-1, wants_edge_ids=True,
                wants_edge_keys=True,
            )  # fmt: skip
            (reply,) = store.sample([request])
            drawn = self.as_keys(store, reply, (edge_type, direction))
            assert reply.counts.dtype == np.int32
            assert reply.neighbor_ids.dtype == np.uint32
            assert reply.edge_keys is not None
            assert drawn == [rows[key] for key in keys]
            assert store.degrees(edge_type, direction, request.ids).tolist() == [len(rows[key]) for key in keys]

    def test_edge_columns_equal_those_of_the_graph(self, case: Case, store: Store) -> None:
        for edge_type, direction in sides(case):
            features = case.graph.edges[edge_type].features
            num_edges = case.graph.edges[edge_type].num_edges
            ids = np.random.default_rng(8).permutation(num_edges)
            (columns,) = store.fetch([FetchRequest(entity=(edge_type, direction), names=(*features, KEY), ids=ids)])
            assert sorted(columns[KEY].tolist()) == list(range(num_edges))
            for name, column in features.items():
                assert_rows_equal(columns[name], column, np.asarray(columns[KEY]))

    def test_draws_equal_the_reference(self, case: Case, store: Store) -> None:
        for edge_type, direction in sides(case):
            rows = case.adjacency(edge_type, direction)
            near, _far = ends(edge_type, direction)
            keys = np.random.default_rng(9).permutation(len(rows))
            keys = np.append(keys, keys[:9])  # a repeated node draws the same edges
            ids = store.lookup(near, keys)
            requests = [
                SampleRequest(
                    edge_type=edge_type, direction=direction, ids=ids, count=count, is_replacing=is_replacing,
                    rng_seed=RNG_SEED, wants_edge_ids=True, wants_edge_keys=is_replacing,
                )
                for count, is_replacing in [(0, False), (1, False), (4, False), (3, True), (70, False)]
            ]  # fmt: skip
            for request, reply in zip(requests, store.sample(requests), strict=True):
                drawn = (drawn_positions(k, len(rows[k]), request.count, request.is_replacing) for k in keys.tolist())
                wanted = [[rows[k][p] for p in places] for k, places in zip(keys.tolist(), drawn, strict=True)]
                assert self.as_keys(case.shared(), reply, (edge_type, direction)) == wanted

    def test_a_draw_does_not_depend_on_the_request(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        ids = store.lookup(near, np.arange(20))
        whole = sample(store, edge_type, direction, ids)
        alone = [sample(store, edge_type, direction, ids[i : i + 1]) for i in range(20)]
        assert whole.counts.tolist() == [int(reply.counts[0]) for reply in alone]
        assert whole.neighbor_ids.tolist() == np.concatenate([reply.neighbor_ids for reply in alone]).tolist()

    def test_several_requests_are_answered_in_their_order(self, case: Case, store: Store) -> None:
        requests, fetches = [], []
        for turn, (edge_type, direction) in enumerate([*sides(case), *sides(case)]):
            near, _far = ends(edge_type, direction)
            ids = store.lookup(near, np.arange(turn, case.graph.nodes[near].num_nodes)[:20])
            requests.append(
                SampleRequest(edge_type=edge_type, direction=direction, ids=ids, count=turn % 4, rng_seed=turn)
            )
            fetches.append(FetchRequest(entity=near, names=(KEY, *case.graph.nodes[near].features), ids=ids))
        for request, reply in zip(requests, store.sample(requests), strict=True):
            (single,) = store.sample([request])
            assert reply.counts.tolist() == single.counts.tolist()
            assert reply.neighbor_ids.tolist() == single.neighbor_ids.tolist()
            assert reply.edge_ids is None
        for fetch, columns in zip(fetches, store.fetch(fetches), strict=True):
            assert columns[KEY].tolist() == keys_of(store, str(fetch.entity), fetch.ids)
            for name in fetch.names[1:]:
                column = case.graph.nodes[str(fetch.entity)].features[name]
                assert_rows_equal(columns[name], column, np.asarray(columns[KEY]))

    def test_empty_requests_give_empty_answers(self, case: Case, store: Store) -> None:
        none = np.empty(0, np.int64)
        assert store.sample([]) == []
        assert store.fetch([]) == []
        for edge_type, direction in sides(case):
            for wants_edge_ids, wants_edge_keys in ((False, False), (True, False), (False, True)):
                request = SampleRequest(
                    edge_type=edge_type, direction=direction, ids=none, count=3, wants_edge_ids=wants_edge_ids,
                    wants_edge_keys=wants_edge_keys,
                )  # fmt: skip
                (reply,) = store.sample([request])
                assert (len(reply.counts), len(reply.neighbor_ids)) == (0, 0)
                assert reply.neighbor_ids.dtype == np.uint32
                assert (reply.edge_ids is not None, reply.edge_keys is not None) == (wants_edge_ids, wants_edge_keys)
            assert len(store.degrees(edge_type, direction, none)) == 0
        for node_type, table in case.graph.nodes.items():
            (columns,) = store.fetch([FetchRequest(entity=node_type, names=tuple(table.features), ids=none)])
            for name, column in table.features.items():
                assert len(columns[name]) == 0
                assert_rows_equal(columns[name], column, none)
            assert store.fetch([FetchRequest(entity=node_type, names=(), ids=store.lookup(node_type, none))]) == [{}]
            assert len(store.lookup(node_type, none)) == 0

    def test_answers_may_be_collected_in_any_order(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        lists = [store.lookup(near, np.arange(first, first + 9)) for first in range(5)]
        pending = [
            (
                store.submit_sample(
                    [SampleRequest(edge_type=edge_type, direction=direction, ids=ids, count=2, rng_seed=1)]
                ),
                store.submit_fetch([FetchRequest(entity=near, names=(KEY,), ids=ids)]),
            )
            for ids in lists
        ]
        for ids, (drawn, fetched) in reversed(list(zip(lists, pending, strict=True))):
            (columns,) = fetched.result()
            assert columns[KEY].tolist() == keys_of(store, near, ids)
            (reply,) = drawn.result()
            alone = sample(store, edge_type, direction, ids, count=2, rng_seed=1)
            assert reply.neighbor_ids.tolist() == alone.neighbor_ids.tolist()

    def test_many_threads_get_the_same_answers(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        ids = store.lookup(near, np.arange(30))
        wanted = sample(store, edge_type, direction, ids).neighbor_ids.tolist()
        got: list[list[int]] = []

        def work() -> None:
            got.extend(sample(store, edge_type, direction, ids).neighbor_ids.tolist() for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert got == [wanted] * 20

    def test_an_id_out_of_range_is_refused(self, case: Case, store: Store) -> None:
        for bad in (-1, 10**6, 2**32, 2**40):
            self.check_refused(case, store, bad)

    @staticmethod
    def check_refused(case: Case, store: Store, bad: int) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        ids = np.array([0, bad, 1])
        with pytest.raises(IdRangeError, match=str(bad)):
            sample(store, edge_type, direction, ids)
        with pytest.raises(IdRangeError, match=str(bad)):
            store.fetch([FetchRequest(entity=near, names=(KEY,), ids=ids)])
        with pytest.raises(IdRangeError, match=str(bad)):
            store.lookup(near, ids)
        with pytest.raises(IdRangeError, match=str(bad)):
            store.degrees(edge_type, direction, ids)
        with pytest.raises(IdRangeError, match=str(bad)):
            store.fetch([FetchRequest(entity=(edge_type, direction), names=(KEY,), ids=ids)])

    def test_unknown_names_are_refused(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        ids = np.array([0])
        with pytest.raises(UnknownNameError, match="ghost"):
            store.fetch([FetchRequest(entity=near, names=("ghost",), ids=ids)])
        with pytest.raises(UnknownNameError, match="ghost"):
            store.fetch([FetchRequest(entity="ghost", names=(KEY,), ids=ids)])
        with pytest.raises(UnknownNameError, match="ghost"):
            store.fetch([FetchRequest(entity=(("a", "ghost", "b"), "in"), names=(KEY,), ids=ids)])
        with pytest.raises(UnknownNameError, match="ghost"):
            sample(store, (near, "ghost", near), direction, ids)
        with pytest.raises(UnknownNameError, match="ghost"):
            store.lookup("ghost", ids)
        with pytest.raises(UnknownNameError, match="ghost"):
            store.split(near, "ghost")
        with pytest.raises(UnknownNameError, match="ghost"):
            store.degrees((near, "ghost", near), direction, ids)

    def test_an_out_that_does_not_fit_is_refused(self, case: Case, store: Store) -> None:
        node_type, name = ("node", "x") if "node" in case.graph.nodes else ("author", "feat")
        column = case.graph.nodes[node_type].features[name]
        ids = np.array([0, 1, 2])
        outs = [
            np.empty((3, *column.shape[1:]), np.int8),
            np.empty((2, *column.shape[1:]), column.dtype),
            np.empty((3, 99), column.dtype),
            np.empty((3, *column.shape[1:]), column.dtype, order="F"),
        ]
        for out in outs:
            request = FetchRequest(entity=node_type, names=(name,), ids=ids, out={name: out})
            with pytest.raises(SettingsError):
                store.fetch([request])

    def test_a_count_below_minus_one_is_refused(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        with pytest.raises(SettingsError, match="-2"):
            sample(store, edge_type, direction, np.array([0]), count=-2)

    def test_a_closed_store_refuses_requests(self, case: Case, store: Store) -> None:
        edge_type, direction = sides(case)[0]
        near, _ = ends(edge_type, direction)
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            sample(store, edge_type, direction, np.array([0]))
        with pytest.raises(StoreUnavailable, match="closed"):
            store.submit_fetch([FetchRequest(entity=near, names=(KEY,), ids=np.array([0]))]).result()

    @staticmethod
    def as_keys(store: Store, reply: SampleReply, side: tuple[EdgeType, Direction]) -> list[list[tuple[int, int]]]:
        """(key of the neighbour, edge key) per id of the request."""
        _, far = ends(*side)
        assert reply.edge_ids is not None
        edge_keys = store.fetch([FetchRequest(entity=side, names=(KEY,), ids=reply.edge_ids)])[0][KEY]
        assert reply.edge_keys is None or reply.edge_keys.tolist() == np.asarray(edge_keys).tolist()
        pairs = list(zip(keys_of(store, far, reply.neighbor_ids), np.asarray(edge_keys).tolist(), strict=True))
        stops = np.cumsum(reply.counts)
        return [pairs[stop - count : stop] for stop, count in zip(stops.tolist(), reply.counts.tolist(), strict=True)]


class EveryCaseContract(StoreContract):
    """Contract over graphs of each kind in each number of parts, for two stores of different kinds.

    One of the stores maps files, and one asks several others.
    """

    @pytest.fixture(params=CASES, ids=id_of)
    def case(self, request: pytest.FixtureRequest, find_case: Callable[[str, int], Case]) -> Case:
        return find_case(*request.param)


@cache
def drawn_positions(key: int, degree: int, count: int, is_replacing: bool) -> list[int]:
    """Draws of the reference, the same for all stores and all numbers of parts."""
    return naive.draw_positions(RNG_SEED, key, degree, count, is_replacing)


def sides(case: Case) -> list[tuple[EdgeType, Direction]]:
    """Every edge type in both directions; the first one has edges."""
    directions: tuple[Direction, ...] = ("in", "out")
    return [(edge_type, direction) for edge_type in case.graph.edges for direction in directions]


def ends(edge_type: EdgeType, direction: Direction) -> tuple[str, str]:
    """The expanded node type and that of its neighbours."""
    return (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])


def sample(
    store: Store, edge_type: EdgeType, direction: Direction, ids: np.ndarray, count: int = 3, rng_seed: int = 5
) -> SampleReply:
    """One request, one reply."""
    request = SampleRequest(edge_type=edge_type, direction=direction, ids=ids, count=count, rng_seed=rng_seed)
    return store.sample([request])[0]


def assert_rows_equal(got: object, column: object, keys: np.ndarray) -> None:
    """Check that fetched rows are those of the graph."""
    if isinstance(column, RaggedArray):
        assert isinstance(got, RaggedArray)
        assert got.is_string == column.is_string
        assert got.values.dtype == column.values.dtype
        assert got.values.shape[1:] == column.values.shape[1:]
        rows = column.take(np.asarray(keys))
        assert got.offsets.tolist() == rows.offsets.tolist()
        assert np.array_equal(got.values, rows.values)
        return
    assert isinstance(got, np.ndarray)
    assert isinstance(column, np.ndarray)
    assert got.dtype == column.dtype
    assert np.array_equal(got, column[np.asarray(keys, np.int64)])
