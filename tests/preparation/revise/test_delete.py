"""Checks that a dataset after deletions is the one that is written from tables without the rows."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.manifest import read_manifest
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError, VersionMismatch
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.revise.run import delete
from hopstream.store import open_store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from tests.dataset.graphs import tree_of, typed_graphs
from tests.dataset.timed_graphs import LIKES, RATES
from tests.preparation.append.graphs import OPTIONS, grown_graph
from tests.preparation.revise.graphs import parts_of, without, write_like

KNOWS = ("user", "knows", "user")


def check(tmp_path, graph, num_parts, nodes, edges, *, by_ends=False, **options):
    """Delete rows of a dataset, and compare it with one that is written without them."""
    owners = {t: of[np.setdiff1d(np.arange(len(of)), nodes.get(t, []))] for t, of in parts_of(tmp_path / "d").items()}
    given = edges
    if by_ends:
        given = {t: (graph.edges[t].src_keys[keys], graph.edges[t].dst_keys[keys]) for t, keys in edges.items()}
        edges = {t: edges_between(graph.edges[t], *ends) for t, ends in given.items()}
    wanted = write_like(without(graph, nodes, edges), tmp_path / "wanted", owners, num_parts=num_parts, **options)
    got = delete(tmp_path / "d", nodes=nodes, edges=given)
    assert got.graph_id == wanted.graph_id and got.checksums == wanted.checksums
    assert got.files == wanted.files and got.dataset_id == wanted.dataset_id
    assert read_manifest(tmp_path / "d").to_json() == got.to_json()
    for name in ("cuts", "nodes", "edges", "bytes", "seeds", "edges_between"):
        assert getattr(got.report, name) == getattr(wanted.report, name), name
    open_dataset(tmp_path / "d", verify=True)
    found = verify_dataset(tmp_path / "d")
    assert found.is_ok, [str(finding) for finding in found.findings]


def edges_between(table, src_keys, dst_keys):
    pairs = set(zip(src_keys.tolist(), dst_keys.tolist(), strict=True))
    ends = zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True)
    return np.array([key for key, pair in enumerate(ends) if pair in pairs], np.int64)


@pytest.mark.parametrize(("num_parts", "num_appends"), [(1, 0), (3, 0), (1, 2), (2, 2)])
def test_a_typed_graph_with_all_columns(tmp_path, rng, num_parts, num_appends):
    grown = grown_graph()
    grown.write(tmp_path / "d", num_parts, num_appends, **OPTIONS) if num_appends else hopstream.write_parts(
        grown.graph, tmp_path / "d", num_parts=num_parts, method="random", rng_seed=5, **OPTIONS
    )
    nodes = {"user": rng.permutation(grown.graph.nodes["user"].num_nodes)[:9], "movie": np.array([0, 4])}
    edges = {RATES: rng.permutation(grown.graph.edges[RATES].num_edges)[:20], KNOWS: np.array([3, 3])}
    check(tmp_path, grown.graph, num_parts + num_appends, nodes, edges, **OPTIONS)


@pytest.mark.parametrize("num_appends", [0, 2])
def test_without_edge_keys(tmp_path, num_appends):
    options = {**OPTIONS, "neighbor_keys": False, "keep_edge_keys": False, "links": [KNOWS, RATES, LIKES]}
    grown = grown_graph()
    grown.write(tmp_path / "d", 2, num_appends, **options) if num_appends else hopstream.write_parts(
        grown.graph, tmp_path / "d", num_parts=2, method="random", rng_seed=5, **options
    )
    graph = read_dataset(tmp_path / "d")
    edges = {RATES: np.array([5, 0, 5]), KNOWS: np.array([2]), LIKES: np.array([1, 3])}
    check(tmp_path, graph, 2 + num_appends, {"user": np.array([1, 7])}, edges, by_ends=True, **options)


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_graph(tmp_path_factory, data):
    graph, root = data.draw(typed_graphs()), tmp_path_factory.mktemp("any")
    num_parts, direction = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["in", "out", "both"]))
    hopstream.write_parts(graph, root / "d", num_parts=num_parts, method="hash", direction=direction)
    nodes = {
        t: np.array(data.draw(st.lists(st.integers(0, of.num_nodes - 1))), np.int64)
        for t, of in graph.nodes.items()
        if of.num_nodes
    }
    edges = {
        t: np.array(data.draw(st.lists(st.integers(0, of.num_edges - 1))), np.int64)
        for t, of in graph.edges.items()
        if of.num_edges
    }
    if sum(map(len, nodes.values())) + sum(map(len, edges.values())):
        check(root, graph, num_parts, nodes, edges, by_ends=data.draw(st.booleans()), direction=direction)
    shutil.rmtree(root)


@pytest.fixture
def people(tmp_path):
    """A dataset of people with raw ids, strings and integers."""
    graph = hopstream.graph_from_arrays(
        [[0, 0, 1, 2, 2, 3], [1, 1, 2, 0, 0, 3]],
        node_features={"name": ["ann", "bob", "cid", "dee"], "number": np.array([10, -20, 30, 40])},
    )
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    return tmp_path / "d"


def test_nodes_and_edges_by_raw_id(people):
    delete(people, nodes=["cid"], edges=(["ann"], ["bob"]), ids={"node": "name"})
    graph = read_dataset(people)
    assert graph.nodes["node"].features["number"].tolist() == [10, -20, 40]
    edges = graph.edges["node", "to", "node"]
    assert (edges.src_keys.tolist(), edges.dst_keys.tolist()) == ([2], [2])  # both edges from ann to bob are gone
    assert hopstream.sample.find_keys(people, "node", ["dee"], id_feature="name").tolist() == [2]
    delete(people, nodes=np.array([10, -20, 40]), ids={"node": "number"})
    assert read_manifest(people).book.num_ids("node") == 0


def test_edges_by_key(people):
    delete(people, edges=[5, 0])
    edges = read_dataset(people).edges["node", "to", "node"]
    assert (edges.src_keys.tolist(), edges.dst_keys.tolist()) == ([0, 1, 2, 2], [1, 2, 0, 0])


def test_batches_of_an_open_loader_are_those_of_the_old_dataset(people):
    with hopstream.NeighborLoader(people, num_neighbors=[-1], seeds=[0], batch_size=1) as loader:
        delete(people, nodes=[2])
        assert set(next(iter(loader)).n_id.tolist()) == {0, 2}
    with hopstream.NeighborLoader(people, num_neighbors=[-1], seeds=[0], batch_size=1) as loader:
        assert set(next(iter(loader)).n_id.tolist()) == {0}


def test_servers_keep_the_old_dataset_until_they_are_restarted(people):
    asked, name = StoreSettings(prefer_local=False), ("node", "to", "node")
    with ExitStack() as stack:

        def serve(part):
            return stack.enter_context(StoreServer(stack.enter_context(LocalStore(open_dataset(people), [part]))))

        old = [serve(0), serve(1)]
        store = stack.enter_context(open_store(",".join(server.location for server in old), asked))
        delete(people, nodes=[2])
        assert store.degrees(name, "in", np.arange(4)).sum() == 6
        new = [serve(0), serve(1)]
        with pytest.raises(VersionMismatch, match="serve the same dataset everywhere"):
            open_store(f"{old[0].location},{new[1].location}", asked)
        store = stack.enter_context(open_store(",".join(server.location for server in new), asked))
        assert store.degrees(name, "in", np.arange(3)).sum() == 3


def test_a_halo_is_removed(people):
    hopstream.dataset.add_halo(people, hops=1)
    delete(people, nodes=[0])
    assert read_manifest(people).halo is None and not list(people.glob("part-*/halo"))
    assert verify_dataset(people).is_ok


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, SettingsError, "nothing to delete"),
        ({"nodes": []}, SettingsError, "nothing to delete"),
        ({"nodes": [9]}, IdRangeError, r"node: keys\[0\] is 9; keys are 0..3"),
        ({"nodes": ["zoe"], "ids": {"node": "name"}}, IdRangeError, r"nodes of node\[0\] is 'zoe'; no node of type"),
        ({"nodes": {"person": [1]}}, UnknownNameError, "nodes name 'person'"),
        ({"nodes": [1], "ids": {"node": "nome"}}, UnknownNameError, "'nome'"),
        ({"edges": {"a__b__c": [1]}}, UnknownNameError, "edges name edge type 'a__b__c'"),
        ({"edges": [6]}, IdRangeError, r"name edge key 6; the type has keys 0..5"),
        ({"edges": ([1, 1], [2, 3])}, IdRangeError, "edges of node__to__node: no edge leads from 1 to 3"),
        (
            {"edges": (["ann", "dee"], ["bob", "ann"]), "ids": {"node": "name"}},
            IdRangeError,
            "no edge leads from 'dee' to 'ann'",
        ),
        ({"edges": ([1], [2, 3])}, SchemaError, "have 1 sources and 2 destinations"),
        ({"edges": ([1], [2], [3])}, SchemaError, r"a tuple of 3; wanted \(sources, destinations\)"),
    ],
)
def test_flaws_are_named_and_change_nothing(people, given, error, message):
    before = tree_of(people)
    with pytest.raises(error, match=message):
        delete(people, **given)
    assert tree_of(people) == before
    assert [path.name for path in people.parent.iterdir()] == ["d"]


def test_damaged_files_are_refused(people):
    path = next(people.glob("part-*/node/node/features/number.npy"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = tree_of(people)
    with pytest.raises(hopstream.errors.ChecksumError, match=r"number\.npy"):
        delete(people, nodes=[0])
    assert tree_of(people) == before


def test_edges_by_key_need_stored_keys(tmp_path):
    graph = hopstream.graph_from_arrays([[0, 1], [1, 0]], num_nodes=2)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=1, keep_edge_keys=False)
    with pytest.raises(SettingsError, match="the dataset keeps no edge keys"):
        delete(tmp_path / "d", edges=[0])


def test_edges_without_any_weight_are_refused(tmp_path):
    graph = hopstream.graph_from_arrays([[0, 1], [1, 0]], num_nodes=2, edge_features={"w": np.array([0.0, 1.0])})
    hopstream.write_parts(graph, tmp_path / "d", num_parts=1, weight_attr="w")
    before = tree_of(tmp_path)
    with pytest.raises(SchemaError, match="is 0 for all 1 edges"):
        delete(tmp_path / "d", edges=[1])
    assert tree_of(tmp_path) == before
    delete(tmp_path / "d", edges=[0])
    assert read_dataset(tmp_path / "d").edges["node", "to", "node"].features["w"].tolist() == [1.0]
