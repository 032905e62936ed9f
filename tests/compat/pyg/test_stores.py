"""Checks that PyG's feature and graph stores over a dataset give the graph of its source."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore
from torch_geometric.data.remote_backend_utils import num_nodes
from torch_geometric.index import index2ptr
from torch_geometric.loader.utils import get_input_nodes

import hopstream
from hopstream.compat.pyg import DatasetFeatureStore, DatasetGraphStore, open_stores, stores
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.schema import EDGE, NODE
from tests.compat.pyg.worlds import World
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES

FAR = hopstream.StoreSettings(prefer_local=False)


@pytest.fixture(params=["folder", "servers"])
def plain(request, found_worlds):
    yield from _opened(found_worlds["plain"], request.param)


@pytest.fixture(params=["folder", "servers"])
def ratings(request, found_worlds):
    yield from _opened(found_worlds["ratings"], request.param)


def _opened(world: World, place: str):
    features, edges = open_stores(world.folder) if place == "folder" else open_stores(world.addresses, FAR)
    with features:
        assert isinstance(features, FeatureStore)
        assert isinstance(edges, GraphStore)
        yield world.graph, features, edges


def test_features_of_a_graph_without_types(plain):
    graph, features, _ = plain
    x = torch.from_numpy(graph.nodes[NODE].features["x"])
    edge_attr = torch.from_numpy(graph.edges[EDGE].features["edge_attr"])
    assert [(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()] == [(None, "x"), (None, "y")]
    assert torch.equal(features[None, "x", None], x)
    assert torch.equal(features[(None, None), "edge_attr", None], edge_attr)
    assert torch.equal(features[EDGE, "edge_attr", torch.tensor([5, 399, 5])], edge_attr[[5, 399, 5]])
    for index in (torch.tensor([7, 0, 7]), slice(2, 70, 5), slice(-3, None), [4, 5], 6, x[:, 0] > 0):
        assert torch.equal(features[None, "x", index], x[index]), index
    assert features.get_tensor_size(None, "x") == (80, 3)
    assert features.get_tensor_size((None, None), "edge_attr") == (400, 2)
    assert features.get_tensor_size(None, "z") is None


def test_features_of_a_graph_with_types(ratings):
    graph, features, edges = ratings
    known = {(attr.group_name, attr.attr_name): attr for attr in features.get_all_tensor_attrs()}
    assert known.keys() == {
        ("user", "time"), ("movie", "time"), ("movie", "x"),
        (RATES, "time"), (RATES, "stars"), (RATED, "time"), (RATED, "stars"),
    }  # fmt: skip
    index = {"user": torch.tensor([39, 1]), "movie": torch.tensor([5, 5, 59])}
    for attr in known.values():
        attr.index = index.get(attr.group_name, index["movie"])
    for attr, tensor in zip(known.values(), features.multi_get_tensor(list(known.values())), strict=True):
        table = graph.nodes if isinstance(attr.group_name, str) else graph.edges
        column = torch.from_numpy(table[attr.group_name].features[attr.attr_name])
        assert torch.equal(tensor, column[attr.index]), attr
    assert num_nodes(features, edges, "movie") == 60
    assert get_input_nodes((features, edges), "user")[1].tolist() == list(range(40))
    edge_type, links = features.input_edges("val", RATES)
    assert edge_type == RATES
    table = graph.edges[RATES]
    wanted = np.stack([table.src_keys, table.dst_keys])[:, graph.edge_splits[RATES]["val"]]
    assert links.tolist() == wanted.tolist()


def test_stores_give_the_seeds_of_splits(plain):
    graph, features, _ = plain
    assert features.input_nodes("train").tolist() == graph.splits[NODE]["train"].tolist()
    edge_type, links = features.input_edges()
    assert edge_type is None
    assert links.tolist() == [graph.edges[EDGE].src_keys.tolist(), graph.edges[EDGE].dst_keys.tolist()]


def test_edges_in_every_layout(ratings):
    graph, _, edges = ratings
    for edge_type, table in graph.edges.items():
        src, dst = torch.from_numpy(table.src_keys), torch.from_numpy(table.dst_keys)
        assert [t.tolist() for t in edges.get_edge_index(edge_type, "coo")] == [src.tolist(), dst.tolist()]
        row, colptr, perm = (found[edge_type] for found in edges.csc([edge_type]))
        assert row.tolist() == src[perm].tolist()
        assert colptr.tolist() == index2ptr(dst[perm], graph.nodes[edge_type[2]].num_nodes).tolist()
        rowptr, col, perm = (found[edge_type] for found in edges.csr([edge_type]))
        assert col.tolist() == dst[perm].tolist()
        assert rowptr.tolist() == index2ptr(src[perm], graph.nodes[edge_type[0]].num_nodes).tolist()


def test_only_edges_in_the_order_of_sources_times_are_shown_as_sorted(ratings, plain):
    """PyG's temporal sampling wants neighbours sorted by the times of sources, not by edge times."""
    graph, _, edges = ratings
    assert {attr.edge_type: attr.is_sorted for attr in edges.get_all_edge_attrs()} == {
        RATES: False, RATED: False, LIKES: True, FOLLOWS: True,
    }  # fmt: skip
    row, colptr, _ = (found[LIKES] for found in edges.csc([LIKES]))
    times = graph.nodes["user"].features["time"][row]
    assert all((np.diff(of) >= 0).all() for of in np.split(times, colptr[1:-1]))
    assert [(attr.edge_type, attr.is_sorted, attr.size) for attr in plain[2].get_all_edge_attrs()] == [
        (None, False, (80, 80))
    ]


def test_a_graph_without_types_has_no_edge_type(plain):
    graph, _, edges = plain
    row, colptr, perm = edges.csc()
    assert row.tolist() == graph.edges[EDGE].src_keys[perm].tolist()
    assert colptr[-1] == len(perm) == 400
    assert torch.equal(edges[EdgeAttr(None, "coo")][0], torch.from_numpy(graph.edges[EDGE].src_keys))


def test_stores_are_read_only(plain):
    _, features, edges = plain
    with pytest.raises(SettingsError, match="put_tensor is not possible"):
        features[None, "x", None] = torch.zeros(80, 3)
    with pytest.raises(SettingsError, match="remove_tensor is not possible"):
        del features[None, "x", None]
    with pytest.raises(SettingsError, match="put_edge_index is not possible"):
        edges.put_edge_index((torch.zeros(1), torch.zeros(1)), None, "coo")
    with pytest.raises(SettingsError, match="remove_edge_index is not possible"):
        edges.remove_edge_index(None, "coo")
    with pytest.raises(SettingsError, match="store=True is not possible"):
        edges.csr(store=True)


def test_a_slice_takes_memory_for_its_own_rows():
    tracemalloc.start()
    try:
        assert stores._keys(slice(5, 50, 7), 1 << 40, "node").tolist() == list(range(5, 50, 7))
        assert stores._keys(slice(-3, None), 1 << 40, "node").tolist() == [(1 << 40) - 3, (1 << 40) - 2, (1 << 40) - 1]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert stores._keys(None, 3, "node").tolist() == [0, 1, 2]


def test_unknown_types_features_and_keys_are_refused(plain, ratings):
    _, features, _ = plain
    with pytest.raises(IdRangeError, match=r"index\[1\] of node is 80; keys are 0\.\.79"):
        features[None, "x", torch.tensor([0, 80])]
    with pytest.raises(SettingsError, match=r"index of node is float32\[1\]"):
        features[None, "x", torch.tensor([0.5])]
    with pytest.raises(UnknownNameError, match="node has no feature 'z'"):
        features[None, "z", None]
    with pytest.raises(UnknownNameError, match="unknown node type 'book'"):
        ratings[1]["book", "x", None]
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        ratings[2].get_edge_index(("user", "reads", "movie"), "coo")


def test_strings_are_refused_as_tensors(tmp_path):
    features = {"title": ["a", "b"], "x": np.zeros((2, 1), np.float32)}
    graph = graph_from_arrays(np.array([[0], [1]]), num_nodes=2, node_features=features)
    hopstream.write_parts(graph, tmp_path / "parts")
    with DatasetFeatureStore(tmp_path / "parts") as store:
        assert [attr.attr_name for attr in store.get_all_tensor_attrs()] == ["x"]
        with pytest.raises(UnknownNameError, match="'title' of node is string, which is not a tensor"):
            store[None, "title", None]


def test_features_of_edges_need_their_keys(tmp_path):
    edges = EdgeTable(src_keys=np.array([0]), dst_keys=np.array([1]), features={"w": np.ones(1, np.float32)})
    graph = Graph(nodes={NODE: NodeTable(num_nodes=2)}, edges={EDGE: edges}).check()
    hopstream.write_parts(graph, tmp_path / "parts", keep_edge_keys=False)
    with DatasetFeatureStore(tmp_path / "parts") as store:
        with pytest.raises(SettingsError, match="the dataset keeps no edge keys"):
            store[EDGE, "w", torch.tensor([0])]
        assert [of.tolist() for of in DatasetGraphStore(store).get_edge_index(None, "coo")] == [[0], [1]]


def test_other_processes_reopen_the_source(found_worlds):
    world = found_worlds["plain"]
    features, edges = open_stores(world.folder)
    sent = pickle.loads(pickle.dumps((features, edges)))
    assert sent[0].store is sent[1].store
    assert sent[0].store is not features.store
    assert torch.equal(sent[0][None, "x", 3], features[None, "x", 3])
    assert copy.copy(features).store is features.store
    sent[0].close()
    features.close()
    with pytest.raises(SettingsError, match="the source was closed"):
        edges.get_all_edge_attrs()
    with (
        hopstream.open_store(world.folder) as store,
        pytest.raises(TypeError, match="LocalStore can be neither pickled nor copied: open one in each"),
    ):
        pickle.dumps(DatasetGraphStore(store))
