"""Checks that a dataset of any number of parts reads back as its graph, at once or in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hopstream.arrays import Column, RaggedArray
from hopstream.dataset import chunks, read_back, rows
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.read_back import graph_of_dataset, read_dataset
from hopstream.errors import ChecksumError, FormatError
from hopstream.export import dataset_source
from hopstream.export.dataset_source import chunked_of_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked.sources import keys_of_mask
from hopstream.preparation.write import write_parts
from tests.conftest import mapped_file
from tests.dataset.timed_graphs import KNOWS, RATES, timed_graph
from tests.preparation.append.graphs import OPTIONS, grown_graph

SHAPES = [(1, "in"), (1, "out"), (3, "in"), (3, "out"), (4, "both"), (40, "in")]


def assert_same_column(got: Column, want: Column):
    assert isinstance(got, RaggedArray) == isinstance(want, RaggedArray)
    if isinstance(got, RaggedArray) and isinstance(want, RaggedArray):
        assert got.is_string == want.is_string
        assert_same_column(got.offsets, want.offsets)
        assert_same_column(got.values, want.values)
        return
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def assert_same_graph(got: Graph, want: Graph):
    assert got.schema == want.schema
    assert list(got.nodes) == list(want.nodes) and list(got.edges) == list(want.edges)
    for node_type, nodes in want.nodes.items():
        assert got.nodes[node_type].num_nodes == nodes.num_nodes
        for name, column in nodes.features.items():
            assert_same_column(got.nodes[node_type].features[name], column)
    for edge_type, edges in want.edges.items():
        assert_same_column(got.edges[edge_type].src_keys, edges.src_keys)
        assert_same_column(got.edges[edge_type].dst_keys, edges.dst_keys)
        for name, column in edges.features.items():
            assert_same_column(got.edges[edge_type].features[name], column)
    for node_type, splits in want.splits.items():
        for name, keys in splits.items():
            assert_same_column(got.splits[node_type][name], keys)
    for edge_type, splits in want.edge_splits.items():
        for name, keys in splits.items():
            assert_same_column(got.edge_splits[edge_type][name], keys)


def with_ragged_edges(graph: Graph) -> Graph:
    """The graph with strings and ragged numbers on its ``writes`` edges."""
    writes = ("author", "writes", "paper")
    edges = graph.edges[writes]
    features = {
        **edges.features,
        "note": RaggedArray.from_strings(["née " * (i % 4) for i in range(edges.num_edges)]),
        "pages": RaggedArray.from_rows([np.arange(i % 3 * 2).reshape(-1, 2) for i in range(edges.num_edges)]),
    }
    return replace(graph, edges={**graph.edges, writes: replace(edges, features=features)})


def read_in_pieces(root: Path, scratch: Path) -> Graph:
    chunked, masks = chunked_of_dataset(root, scratch)
    splits = {
        t: {name: np.concatenate([np.empty(0, np.int64), *keys_of_mask(mask)]) for name, mask in of.items()}
        for t, of in masks.items()
    }
    return replace(chunked.load(), edge_splits=splits)


@pytest.fixture(params=["at once", "in pieces"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Graph]:
    """A reader of datasets that is to give the graph that was written."""
    monkeypatch.setattr(dataset_source, "RANGE_EDGES", 64)
    monkeypatch.setattr(dataset_source, "DEALT_EDGES", 50)
    return read_dataset if request.param == "at once" else partial(read_in_pieces, scratch=tmp_path / "scratch")


@pytest.mark.parametrize(("num_parts", "direction"), SHAPES)
def test_a_graph_survives_a_round_trip(typed_graph: Graph, tmp_path: Path, read, num_parts: int, direction: str):
    graph = with_ragged_edges(typed_graph)
    write_parts(graph, tmp_path / "d", num_parts=num_parts, direction=direction, method="random")
    assert_same_graph(read(tmp_path / "d"), graph)


def test_chunk_size_does_not_change_the_result(
    typed_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read
):
    graph = with_ragged_edges(typed_graph)
    write_parts(graph, tmp_path / "d", num_parts=3, method="random")
    monkeypatch.setattr(chunks, "CHUNK_ITEMS", 3)
    monkeypatch.setattr(read_back, "BLOCK_BYTES", 300)
    monkeypatch.setattr(rows, "BLOCK_ROWS", 4)
    assert_same_graph(read(tmp_path / "d"), graph)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_dataset_that_was_appended_to(tmp_path: Path, read, keeps: bool):
    grown = grown_graph()
    grown.write(tmp_path / "d", 2, 2, **{**OPTIONS, "links": list(grown.graph.edges), "keep_edge_keys": keeps})
    assert_same_graph(read(tmp_path / "d"), grown.graph)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_links_give_the_original_order_without_edge_keys(tmp_path: Path, rng, read, num_parts, direction):
    graph = timed_graph(rng, timed=("user", "movie", RATES))
    write_parts(
        graph, tmp_path / "d", num_parts=num_parts, direction=direction, method="random", keep_edge_keys=False,
        time_attr="time", links=[KNOWS],
    )  # fmt: skip
    assert_same_graph(read(tmp_path / "d"), graph)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_without_edge_keys_edges_are_in_stored_order(typed_graph: Graph, tmp_path: Path, read, num_parts: int):
    write_parts(typed_graph, tmp_path / "d", num_parts=num_parts, method="hash", keep_edge_keys=False)
    graph = read(tmp_path / "d")
    for edge_type, want in typed_graph.edges.items():
        got = graph.edges[edge_type]
        assert sorted(zip(got.src_keys.tolist(), got.dst_keys.tolist(), strict=True)) == sorted(
            zip(want.src_keys.tolist(), want.dst_keys.tolist(), strict=True)
        )
        # Edges of one node keep their original order, so its neighbours are the same list.
        for key in range(typed_graph.nodes[edge_type[2]].num_nodes):
            np.testing.assert_array_equal(got.src_keys[got.dst_keys == key], want.src_keys[want.dst_keys == key])
    writes = ("author", "writes", "paper")
    got, want = graph.edges[writes], typed_graph.edges[writes]
    rows = {(s, d, w) for s, d, w in zip(got.src_keys, got.dst_keys, got.features["weight"], strict=True)}
    assert rows == {(s, d, w) for s, d, w in zip(want.src_keys, want.dst_keys, want.features["weight"], strict=True)}


def test_writing_again_gives_the_dataset_that_the_original_gives(typed_graph: Graph, tmp_path: Path):
    write_parts(typed_graph, tmp_path / "three", num_parts=3, method="random", direction="out")
    again = graph_of_dataset(open_dataset(tmp_path / "three"))
    first = write_parts(typed_graph, tmp_path / "a", num_parts=2, method="hash", direction="both")
    second = write_parts(again, tmp_path / "b", num_parts=2, method="hash", direction="both")
    assert first.dataset_id == second.dataset_id
    assert first.graph_id == second.graph_id == typed_graph.fingerprint()


def test_columns_of_one_part_are_not_copied(typed_graph: Graph, tmp_path: Path):
    write_parts(typed_graph, tmp_path / "d", num_parts=1)
    graph = graph_of_dataset(open_dataset(tmp_path / "d"))
    assert mapped_file(graph.nodes["paper"].features["feat"])


def test_types_without_nodes_or_edges(tmp_path: Path, read):
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=0, features={"x": np.empty((0, 3), np.float32)})},
        edges={("node", "to", "node"): EdgeTable(src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64))},
        splits={"node": {"train": np.empty(0, np.int64)}},
    )
    write_parts(graph, tmp_path / "d", num_parts=2, method="random")
    assert_same_graph(read(tmp_path / "d"), graph)


def poke(path: Path, position: int, value: int):
    array = np.load(path)
    array[position] = value
    np.save(path, array)


CITES = "part-00001/edge/paper__cites__paper/in"


@pytest.mark.parametrize(
    ("name", "position", "value", "message"),
    [
        ("part-00001/node/paper/key.npy", 0, 1 << 40, "paper: keys must be 0..59, each once"),
        ("part-00001/node/paper/key.npy", 0, -1, "paper: keys must be 0..59, each once"),
        (f"{CITES}/key.npy", 0, 1 << 20, "paper__cites__paper/in: keys must be 0..359, each once"),
        (f"{CITES}/indices.npy", 0, 60, "indices.npy: it holds .*60; wanted 0..59"),
        (f"{CITES}/indptr.npy", 1, 300, "indptr.npy: offsets must ascend"),
        ("part-00001/node/paper/features/title.offsets.npy", 1, 1 << 20, "title.offsets.npy: offsets must ascend"),
    ],
)
def test_damage_is_reported(
    typed_graph: Graph, tmp_path: Path, monkeypatch, name: str, position: int, value: int, message: str
):
    write_parts(typed_graph, tmp_path, num_parts=2, method="random")
    poke(tmp_path / name, position, value)
    with pytest.raises(ChecksumError, match=Path(name).name):
        read_dataset(tmp_path)
    monkeypatch.setattr(Dataset, "verify", lambda _: None)  # as if the checksum fitted
    monkeypatch.setattr(rows, "check_file", lambda *_: None)
    with pytest.raises(FormatError, match=message):
        graph_of_dataset(open_dataset(tmp_path))


def test_a_changed_value_is_not_written_again(typed_graph: Graph, tmp_path: Path):
    write_parts(typed_graph, tmp_path, num_parts=2, method="random")
    poke(tmp_path / "part-00000/node/paper/features/feat.npy", 0, 7)
    with pytest.raises(ChecksumError, match=r"feat\.npy has crc32c"):
        read_dataset(tmp_path)


def test_a_repeated_key_is_reported(typed_graph: Graph, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Dataset, "verify", lambda _: None)
    write_parts(typed_graph, tmp_path, num_parts=2, method="random")
    path = tmp_path / CITES / "key.npy"
    poke(path, 0, int(np.load(path)[1]))
    with pytest.raises(FormatError, match="each once"):
        graph_of_dataset(open_dataset(tmp_path))
