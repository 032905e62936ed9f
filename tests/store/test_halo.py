"""Checks that rows in a local halo need no request, and that all others are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import hopstream
from hopstream.arrays import RaggedArray, offsets_of
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.batch import MiniBatch
from hopstream.load.loader import NeighborLoader
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import KEY, FetchRequest, SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings

SAMPLED = {"batch_size": 16, "shuffle": True, "collate": "numpy", "num_threads": 0, "rng_seed": 5}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A dataset of four parts, and a server of each."""
    root = tmp_path_factory.mktemp("halo") / "d"
    graph = hopstream.rmat_graph(10, edges_per_node=4, num_features=5, num_classes=3, rng_seed=3)
    hopstream.write_parts(graph, root, num_parts=4, method="kaminpar")
    dataset = open_dataset(root)
    stores = [LocalStore(dataset, [part]) for part in range(4)]
    servers = [StoreServer(store) for store in stores]
    yield root, servers
    for server, store in zip(servers, stores, strict=True):
        server.close()
        store.close()


@contextmanager
def opened(served, here=(0,), cache_bytes=0, **halo) -> Iterator[RoutedStore]:
    """Open a store with some local parts, a halo, and servers for the other parts."""
    root, servers = served
    hopstream.dataset.add_halo(root, **{"hops": 0, **halo})
    settings = StoreSettings(prefer_local=False, cache_bytes=cache_bytes)
    others = [RemoteStore(server.location, settings) for part, server in enumerate(servers) if part not in here]
    with RoutedStore([LocalStore(open_dataset(root), here), *others], settings) as store:
        yield store


def batches_of(store: RoutedStore, part: int = 0, **options) -> list[MiniBatch]:
    """An epoch over the nodes that a part owns."""
    first, stop = store.book.node_offsets[NODE][part : part + 2]
    keys = np.sort(
        np.asarray(store.fetch([FetchRequest(entity=NODE, names=(KEY,), ids=np.arange(first, stop))])[0][KEY])
    )
    with NeighborLoader(store, [4, 3], keys, **{**SAMPLED, **options}) as loader:
        return list(loader)


def num_asked(served) -> int:
    """Requests counted by servers, which count one a moment after its answer."""
    before = -1
    while before != (before := sum(server.stats.num_requests for server in served[1])):
        time.sleep(0.05)
    return before


def test_seeds_within_the_halo_need_no_remote_requests(served):
    with opened(served) as store:
        wanted = batches_of(store)
        without = store.traffic()
        assert all(without[kind].remote_requests > len(wanted) for kind in ("sample", "fetch"))
        assert without["sample"].halo_ids == without["fetch"].halo_ids == 0
        assert without["other"].remote_requests == 0, "keys of nodes that are here are looked up here"
    with opened(served, hops=2, features="all") as store:
        before = num_asked(served)
        found = batches_of(store)
        counts = store.traffic()
        assert num_asked(served) == before
    assert [c.remote_requests for c in counts.values()] == [0, 0, 0]
    for kind in ("sample", "fetch"):
        assert counts[kind].halo_ids == without[kind].remote_ids
        assert counts[kind].halo_bytes == without[kind].remote_bytes > 0
        assert (counts[kind].halo_share, counts[kind].remote_ids, counts[kind].remote_bytes) == (1.0, 0, 0)
    assert_same(found, wanted)


def test_features_of_edges_in_the_halo_need_no_request(tmp_path):
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 4, 900)
    features = {
        "weight": rng.random((900, 1)), "attr": rng.random((900, 3)).astype(np.float32), "flag": rng.random(900) < 0.5,
        "tags": RaggedArray(rng.integers(0, 9, lengths.sum()), offsets_of(lengths)),
        "name": RaggedArray.from_strings([f"edge {number}" for number in range(900)]),
    }  # fmt: skip
    edges = {EDGE: EdgeTable(src_keys=rng.integers(0, 120, 900), dst_keys=rng.integers(0, 120, 900), features=features)}
    graph = Graph(nodes={NODE: NodeTable(num_nodes=120)}, edges=edges).check()
    options = {"num_parts": 3, "method": "random", "direction": "both", "weight_attr": "weight"}
    hopstream.write_parts(graph, tmp_path / "d", **options)
    dataset = open_dataset(tmp_path / "d")
    with LocalStore(dataset, [1, 2]) as stored, StoreServer(stored) as server:
        settings, found = StoreSettings(prefer_local=False, cache_bytes=0), {}
        for halo in ("none", "node:*", "all"):
            hopstream.dataset.add_halo(tmp_path / "d", hops=2, features=halo)
            stores = [LocalStore(open_dataset(tmp_path / "d"), [0]), RemoteStore(server.location, settings)]
            with RoutedStore(stores, settings) as store:
                batches = batches_of(store, edge_features=list(features), weight_attr="weight")
                found[halo] = [
                    {name: np.asarray(getattr(c, "values", c)).tobytes() for name, c in b.edge_features[EDGE].items()}
                    for b in batches
                ]
                assert (store.traffic()["fetch"].remote_requests == 0) == (halo == "all")
    assert len(found["all"]) >= 2 and set(found["all"][0]) == set(features)
    assert found["all"] == found["node:*"] == found["none"]


def test_more_is_saved_with_more_copies(served):
    shares = []
    for halo in ({}, {"hops": 0, "budget": 2000}, {"hops": 1, "features": "all"}, {"hops": 0, "budget": 20_000}):
        with opened(served, fanouts=[4, 3], batch_size=16, **halo) as store:
            batches_of(store)
            counts = store.traffic()
            shares.append(counts["fetch"].halo_share)
            assert counts["fetch"].remote_ids > 0
            assert (counts["sample"].halo_ids > 0) == bool(halo.get("hops"))
    assert shares[0] == 0 and shares == sorted(set(shares)) and shares[-1] > 0.5


@pytest.mark.parametrize("halo", [{"hops": 1}, {"edge_budget": 9000}])
def test_a_halo_of_edges_takes_no_rows_from_the_cache(served, halo):
    """Keys that the halo has are requested with the features, because rows of keys alone are not cached."""
    fetched = []
    for options in ({}, halo):
        with opened(served, cache_bytes="1MB", **options) as store:
            for _ in range(3):
                batches_of(store)
            fetched.append(store.traffic()["fetch"])
    assert fetched[0] == fetched[1] and fetched[0].cache_ids > 0


def test_the_expected_share_is_near_the_measured_savings(served):
    """Over many epochs of the training nodes of a part, which the model starts from."""
    root, _ = served
    halo = {"hops": 0, "budget": 4000, "fanouts": [4, 3], "batch_size": 16}
    expected = hopstream.dataset.add_halo(root, **halo).savings[0].row_share
    with opened(served, **halo) as store:
        first, stop = store.book.node_offsets[NODE][:2]
        train = store.split(NODE, "train")
        ids = store.lookup(NODE, train)
        with NeighborLoader(store, [4, 3], train[(ids >= first) & (ids < stop)], edge_keys=False, **SAMPLED) as loader:
            for _ in range(20):
                list(loader)
        saved = store.traffic()["fetch"].halo_share
    assert 0.1 < saved < 0.9
    assert expected == pytest.approx(saved, abs=0.1)


def test_several_local_parts(served):
    """Copies of rows of local parts are not used, and all parts' halos are."""
    with opened(served, here=(0, 2)) as store:
        wanted = [batches_of(store, part) for part in range(4)]
    for halo in ({"hops": 1, "features": "all"}, {"hops": 2, "budget": 9000}, {"edge_budget": 30_000}):
        with opened(served, here=(0, 2), **halo) as store:
            for part in range(4):
                assert_same(batches_of(store, part), wanted[part])
            assert store.traffic()["sample"].halo_ids > 0
    with opened(served, here=(0, 1, 2, 3), hops=1) as store:
        batches_of(store)
        assert store.traffic()["sample"].halo_ids == 0


def test_direct_requests_equal_those_without_a_halo(served):
    """Local, halo and remote ids in any order, repeated; edges by id; columns in two halves."""
    rng = np.random.default_rng(0)
    with opened(served) as plain, opened(served, hops=1, features="node:x") as store:
        ids = rng.integers(0, store.book.num_ids(NODE), 500)
        excluded = np.stack([ids[:300], rng.integers(0, store.book.num_ids(NODE), 300)])
        for more in (
            {},
            {"excluded": excluded},
            {"count": -1, "candidates": np.arange(0, 1024, 3)},
            {"trees": ids % 7},
        ):
            request = SampleRequest(
                **{"edge_type": EDGE, "direction": "in", "ids": ids, "count": 3, "rng_seed": 9, "wants_edge_ids": True,
                   "wants_edge_keys": True, **more}
            )  # fmt: skip
            ours, theirs = (each.sample([request])[0] for each in (store, plain))
            for name in ("counts", "neighbor_ids", "edge_ids", "edge_keys"):
                assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes(), (name, more)
        out = {"x": np.zeros((600, 5), np.float32), KEY: np.zeros(600, np.int64), "y": np.zeros(600, np.int64)}
        requests = [
            FetchRequest(entity=NODE, names=(KEY, "x", "y"), ids=ids),
            FetchRequest(entity=(EDGE, "in"), names=(KEY,), ids=rng.integers(0, store.book.num_ids((EDGE, "in")), 400)),
            FetchRequest(entity=NODE, names=("y", "x", KEY), ids=ids, out=out),
            FetchRequest(entity=NODE, names=(), ids=ids),
            FetchRequest(entity=NODE, names=("x",), ids=ids[:0]),
        ]
        for ours, theirs in zip(store.fetch(requests), plain.fetch(requests), strict=True):
            assert set(ours) == set(theirs)
            for name, column in ours.items():
                assert np.array_equal(column, theirs[name])
        assert np.array_equal(store.degrees(EDGE, "in", ids), plain.degrees(EDGE, "in", ids))
        neighbors = rng.integers(0, store.book.num_ids(NODE), 500)
        some = plain.sample([SampleRequest(edge_type=EDGE, direction="in", ids=ids, count=1, is_replacing=True)])[0]
        neighbors[some.counts > 0] = some.neighbor_ids
        neighbors[::5] = neighbors[0]
        found = store.find_edges(EDGE, "in", ids, neighbors)
        assert np.array_equal(found, plain.find_edges(EDGE, "in", ids, neighbors))
        assert 100 < np.count_nonzero(found >= 0) < 480
        counts = store.traffic()
        assert counts["other"].halo_ids > 150
        assert counts["fetch"].halo_ids > 200 and counts["sample"].halo_ids > 200


def test_threads_that_share_a_halo_get_the_same_batches(served):
    with opened(served, hops=1, features="all") as store:
        wanted, found = batches_of(store), {}

        def make(number: int) -> None:
            found[number] = batches_of(store, num_threads=2)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == [0, 1, 2]
        for batches in found.values():
            assert_same(batches, wanted)


def test_a_damaged_halo_is_an_error_when_the_store_opens(served):
    root, servers = served
    hopstream.dataset.add_halo(root, hops=1)
    (root / "part-00000" / "halo" / f"{open_dataset(root).manifest.halo.generation:05d}/node/node/id.npy").unlink()
    settings = StoreSettings(prefer_local=False)
    others = [RemoteStore(server.location, settings) for server in servers[1:]]
    with LocalStore(open_dataset(root), [0]) as here, pytest.raises(FormatError, match=r"id\.npy is missing"):
        RoutedStore([here, *others])
    for other in others:
        other.close()


def assert_same(ours: list[MiniBatch], theirs: list[MiniBatch]) -> None:
    """Two epochs are bit-equal."""
    assert len(ours) == len(theirs) > 3
    for left, right in zip(ours, theirs, strict=True):
        assert left.node_keys[NODE].tobytes() == right.node_keys[NODE].tobytes()
        assert left.edge_index[EDGE].tobytes() == right.edge_index[EDGE].tobytes()
        assert left.edge_keys[EDGE].tobytes() == right.edge_keys[EDGE].tobytes()
        for name, column in left.node_features[NODE].items():
            assert np.asarray(column).tobytes() == np.asarray(right.node_features[NODE][name]).tobytes()
