"""Checks that a loaded part holds the data of the graph, as arrays and as PyG's objects."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import hopstream
from hopstream.arrays import RaggedArray
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import Graph, NodeTable
from hopstream.schema import EDGE, NODE
from tests.dataset.graphs import same_column, take_rows
from tests.preparation.audit.forging import OPTIONS, RATES, full_graph


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    graph, root = full_graph(2), tmp_path_factory.mktemp("typed") / "d"
    hopstream.write_parts(graph, root, direction="both", **OPTIONS)
    return graph, root


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    graph = hopstream.rmat_graph(7, edges_per_node=5, num_features=3, num_classes=2)
    root = tmp_path_factory.mktemp("plain") / "d"
    hopstream.write_parts(graph, root, num_parts=3, method="hash")
    return graph, root


@pytest.mark.parametrize("direction", ["in", "out"])
def test_parts_hold_the_graph(typed, direction):
    graph, root = typed
    book = hopstream.dataset.read_key_book(root)
    seen = {edge_type: [] for edge_type in graph.edges}
    for number in range(3):
        part = hopstream.dataset.read_part(root, number, direction=direction)
        assert (part.part, part.num_parts, part.direction) == (number, 3, direction)
        for node_type, nodes in part.nodes.items():
            assert np.array_equal(nodes.inner_keys, book.keys_of_part(node_type, number))
            assert np.array_equal(nodes.inner_ids, book.ids_of(node_type, nodes.inner_keys))
            assert np.array_equal(nodes.keys, nodes.inner_keys)
            assert set(nodes.part_ids.tolist()) <= {number}
            assert nodes.is_inner.all() and len(nodes.is_inner) == nodes.num_inner
            assert len(nodes.halo_keys) == len(nodes.halo_ids) == len(nodes.halo_parts) == 0
            for name, column in nodes.features.items():
                wanted = take_rows(graph.nodes[node_type].features[name], nodes.inner_keys)
                assert same_column(RaggedArray(column.values, column.offsets, column.is_string)
                                   if isinstance(column, RaggedArray) else np.array(column), wanted)  # fmt: skip
            for name, keys in graph.splits.get(node_type, {}).items():
                assert np.array_equal(nodes.inner_keys[nodes.masks[name]], np.intersect1d(nodes.inner_keys, keys))
        for edge_type, edges in part.edges.items():
            table = graph.edges[edge_type]
            seen[edge_type] += edges.keys.tolist()
            assert np.array_equal(edges.src_keys, table.src_keys[edges.keys])
            assert np.array_equal(edges.dst_keys, table.dst_keys[edges.keys])
            assert np.array_equal(edges.src_ids, book.ids_of(edge_type[0], edges.src_keys))
            assert np.array_equal(edges.dst_parts, book.part_of(edge_type[2], edges.dst_keys))
            assert set((edges.dst_parts if direction == "in" else edges.src_parts).tolist()) <= {number}
            assert np.array_equal(edges.is_inner, edges.src_parts == edges.dst_parts)
            for name, column in edges.features.items():
                assert np.array_equal(column, table.features[name][edges.keys])
    assert all(sorted(keys) == list(range(150)) for keys in seen.values())


def test_a_part_becomes_pygs_data(plain):
    graph, root = plain
    num_edges = 0
    for number in range(3):
        part = hopstream.dataset.read_part(root, number)
        data = part.to_data()
        keys = data.n_id.numpy()
        assert np.array_equal(keys, part.nodes[NODE].inner_keys)
        assert data.num_nodes == len(keys)
        assert np.array_equal(data.x.numpy(), graph.nodes[NODE].features["x"][keys])
        assert np.array_equal(data.y.numpy(), graph.nodes[NODE].features["y"][keys])
        assert np.array_equal(keys[data.train_mask.numpy()], np.intersect1d(keys, graph.splits[NODE]["train"]))
        table = graph.edges[EDGE]
        assert np.array_equal(keys[data.edge_index[0].numpy()], table.src_keys[data.e_id.numpy()])
        assert np.array_equal(keys[data.edge_index[1].numpy()], table.dst_keys[data.e_id.numpy()])
        data.validate(raise_on_error=True)
        num_edges += data.num_edges
    assert num_edges == np.count_nonzero(~cut_edges(graph, root))


def test_data_of_a_graph_without_edges(tmp_path):
    graph = Graph(nodes={NODE: NodeTable(num_nodes=3)}, edges={}).check()
    hopstream.write_parts(graph, tmp_path / "d", num_parts=1)
    data = hopstream.dataset.read_part(tmp_path / "d", 0).to_data()
    assert (data.num_nodes, tuple(data.edge_index.shape)) == (3, (2, 0))


def cut_edges(graph, root):
    book = hopstream.dataset.read_key_book(root)
    table = graph.edges[EDGE]
    return book.part_of(NODE, table.src_keys) != book.part_of(NODE, table.dst_keys)


def test_a_part_becomes_pygs_hetero_data(typed):
    graph, root = typed
    part = hopstream.dataset.read_part(root, 1)
    data = part.to_hetero_data()
    data.validate(raise_on_error=True)
    users = data["user"].n_id.numpy()
    assert data["user"].name == [f"user {key}" for key in users]
    assert len(data["user"].tags_offsets) == len(users) + 1
    assert data["movie"].test_mask.sum() == np.count_nonzero(data["movie"].n_id < 5)
    rates = data[RATES]
    assert np.array_equal(rates.rating.numpy(), graph.edges[RATES].features["rating"][rates.e_id.numpy()])
    assert np.array_equal(users[rates.edge_index[0].numpy()], graph.edges[RATES].src_keys[rates.e_id.numpy()])
    assert rates.num_edges == np.count_nonzero(part.edges[RATES].is_inner)
    with pytest.raises(SettingsError, match="use to_hetero_data"):
        part.to_data()


def test_features_are_read_without_the_part(typed):
    _, root = typed
    feats, part = (
        hopstream.dataset.read_part_features(root, 2, direction="out"),
        hopstream.dataset.read_part(root, 2, direction="out"),
    )
    assert np.array_equal(feats.nodes["user"]["x"], part.nodes["user"].features["x"])
    assert np.array_equal(feats.edges[RATES]["rating"], part.edges[RATES].features["rating"])
    assert hopstream.dataset.read_part_features(root, 2, load_nodes=False).nodes == {}
    assert hopstream.dataset.read_part_features(root, 2, load_edges=False).edges == {}


def test_one_part_alone(plain, typed, tmp_path):
    """Facts that lie in folders of other parts are None or empty."""
    for name, (_, root) in (("plain", plain), ("typed", typed)):
        shutil.copytree(root / "part-00001", tmp_path / name / "part-00001")
        shutil.copy(root / "manifest.json", tmp_path / name)
    part = hopstream.dataset.read_part(tmp_path / "plain", 1)
    edges = part.edges[EDGE]
    assert edges.src_keys is None and len(edges.dst_keys) == len(edges.src_parts)
    assert part.nodes[NODE].masks == {} and part.to_data().num_edges == np.count_nonzero(edges.is_inner)
    assert hopstream.dataset.read_part(tmp_path / "typed", 1).edges[RATES].src_keys is not None  # neighbours' keys


def test_unknown_parts_and_directions_are_refused(plain):
    _, root = plain
    with pytest.raises(UnknownNameError, match="has no part 3"):
        hopstream.dataset.read_part(root, 3)
    with pytest.raises(SettingsError, match=r"direction is 'out'; .* has in"):
        hopstream.dataset.read_part(root, 0, direction="out")


def test_loading_needs_no_torch(plain):
    code = (
        f"import sys, hopstream; hopstream.dataset.read_part({str(plain[1])!r}, 0); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "halo",
    [{"hops": 1}, {"hops": 1, "features": "all"}, {"hops": 0, "budget": 900}, {"hops": 1, "budget": 900}],
    ids=str,
)
def test_a_part_has_the_nodes_of_its_halo(tmp_path, halo):
    graph, root = full_graph(2), tmp_path / "d"
    hopstream.write_parts(graph, root, **OPTIONS)
    hopstream.dataset.add_halo(root, **halo)
    book = hopstream.dataset.read_key_book(root)
    for number in range(3):
        part = hopstream.dataset.read_part(root, number)
        for node_type, nodes in part.nodes.items():
            assert (
                len(nodes.keys) == len(nodes.part_ids) == len(nodes.is_inner) == nodes.num_inner + len(nodes.halo_keys)
            )
            assert (nodes.halo_parts != number).all() and (np.diff(nodes.halo_ids) > 0).all()
            assert np.array_equal(book.ids_of(node_type, nodes.halo_keys), nodes.halo_ids)
            assert np.array_equal(book.part_of(node_type, nodes.halo_keys), nodes.halo_parts)
            if "budget" not in halo:
                assert bool(nodes.halo_features) == ("features" in halo)
            for name, column in nodes.halo_features.items():
                wanted = take_rows(graph.nodes[node_type].features[name], nodes.halo_keys)
                found = RaggedArray(column.values, column.offsets, column.is_string) if isinstance(
                    column, RaggedArray) else np.array(column)  # fmt: skip
                assert same_column(found, wanted)
        for edge_type, edges in part.edges.items():
            if halo["hops"]:  # the source of an edge of the part is an inner or a halo node
                assert np.isin(
                    edges.src_ids, np.r_[part.nodes[edge_type[0]].inner_ids, part.nodes[edge_type[0]].halo_ids]
                ).all()
