"""Checks that a dataset holds exactly its source graph, and that damage is noticed."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.arrays import write_array
from hopstream.dataset import stored_columns as stored
from hopstream.dataset.book import PartitionBook, ends_of
from hopstream.dataset.layout import Dataset, PartArrays, open_dataset, read_manifest
from hopstream.errors import ChecksumError, FormatError, HopstreamError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE, NUMERIC_DTYPES
from tests import naive
from tests.conftest import mapped_file
from tests.dataset.graphs import same_column, take_rows, typed_graphs


def check_dataset(dataset: Dataset, graph: Graph):
    """Every node, edge, feature and split of the graph is in its place, once."""
    book = dataset.manifest.book
    parts = [dataset.open_part(p) for p in range(book.num_parts)]
    assert dataset.manifest.schema == graph.schema
    owners = {t: [0] * n.num_nodes for t, n in graph.nodes.items()}
    for part in parts:
        for node_type, keys in part.node_keys.items():
            for key in keys:
                owners[node_type][int(key)] = part.part
    for node_type in graph.nodes:
        check_nodes(book, parts, graph, node_type, owners[node_type])
    for part in parts:
        for edge_type, direction in part.edges:
            check_edges(dataset, part, graph, (edge_type, direction), owners)


def check_nodes(book: PartitionBook, parts: list[PartArrays], graph: Graph, node_type: str, owner: list[int]):
    keys_of_ids, ids_of_keys = naive.split_nodes(owner, book.num_parts)
    slices = book.key_offsets(node_type)
    assert [key for part in parts for key in part.node_keys[node_type].tolist()] == keys_of_ids
    assert [i for part in parts for i in part.ids_of_keys[node_type].tolist()] == ids_of_keys
    assert [len(p.node_keys[node_type]) for p in parts] == np.diff(book.node_offsets[node_type]).tolist()
    assert [len(p.ids_of_keys[node_type]) for p in parts] == np.diff(slices).tolist()
    for name, keys in graph.splits.get(node_type, {}).items():
        got = [part.splits[node_type][name].tolist() for part in parts]
        assert got == [keys[(keys >= a) & (keys < b)].tolist() for a, b in pairwise(slices)]
    for part in parts:
        for name, column in graph.nodes[node_type].features.items():
            assert same_column(part.node_features[node_type][name], take_rows(column, part.node_keys[node_type]))


def check_edges(dataset: Dataset, part: PartArrays, graph: Graph, owner, owners: dict[str, list[int]]):
    (edge_type, direction), edges, manifest = owner, part.edges[owner], dataset.manifest
    neighbor_keys, _ = naive.split_nodes(owners[ends_of(edge_type, direction)[1]], manifest.book.num_parts)
    want = naive.part_edges(graph, edge_type, direction, owners, part.part)
    assert np.diff(edges.indptr).tolist() == [len(row) for row in want]
    edge_keys = np.array([key for row in want for _, key in row], np.int64)
    assert [neighbor_keys[i] for i in edges.indices] == [other for row in want for other, _ in row]
    assert (edges.keys is not None) == manifest.has_edge_keys
    assert edges.keys is None or edges.keys.tolist() == edge_keys.tolist()
    for name, column in graph.edges[edge_type].features.items():
        assert same_column(edges.features[name], take_rows(column, edge_keys))
    start, stop = manifest.book.edge_offsets[owner][part.part : part.part + 2]
    assert stop - start == len(edges.indices)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    graph=typed_graphs(),
    num_parts=st.integers(1, 6) | st.just(30),
    method=st.sampled_from(["kaminpar", "metis", "random", "hash"]),
    direction=st.sampled_from(["in", "out", "both"]),
    keep_edge_keys=st.booleans(),
)
def test_a_graph_is_written_and_read_back(tmp_path, graph, num_parts, method, direction, keep_edge_keys):
    written = write_parts(
        graph, tmp_path, num_parts=num_parts, method=method, direction=direction, keep_edge_keys=keep_edge_keys,
        overwrite=True,
    )  # fmt: skip
    dataset = open_dataset(tmp_path, verify=True)
    assert dataset.manifest.dataset_id == written.dataset_id
    assert dataset.manifest.to_json() == written.to_json()
    assert set(dataset.manifest.directions) == ({"in", "out"} if direction == "both" else {direction})
    check_dataset(dataset, graph)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_block_size_does_not_change_files(tmp_path, monkeypatch, typed_graph: Graph, num_parts: int):
    whole = write_parts(typed_graph, tmp_path / "a", num_parts=num_parts, method="random", direction="both")
    monkeypatch.setattr(stored, "CHUNK_BYTES", 16)
    monkeypatch.setattr(stored, "CHUNK_ROWS", 3)
    blocks = write_parts(typed_graph, tmp_path / "b", num_parts=num_parts, method="random", direction="both")
    assert blocks.dataset_id == whole.dataset_id


@pytest.mark.parametrize("dtype", NUMERIC_DTYPES)
def test_every_dtype_and_rank(tmp_path, rng, dtype):
    shapes = [(), (2,), (2, 3), (1, 2, 2)]
    features = {
        f"rank{len(shape) + 1}": rng.integers(0, 256, (20, *shape, np.dtype(dtype).itemsize), np.uint8)
        .view(np.bool_ if dtype == "bool" else dtype).reshape(20, *shape)
        for shape in shapes
    }  # fmt: skip
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=20, features=features)},
        edges={EDGE: EdgeTable(src_keys=np.arange(20), dst_keys=np.arange(20)[::-1].copy(), features=features)},
    )
    write_parts(graph, tmp_path, num_parts=3, method="random", direction="both")
    check_dataset(open_dataset(tmp_path, verify=True), graph)


def test_with_one_part_id_is_key(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path)
    part = open_dataset(tmp_path).open_part(0)
    for node_type, nodes in typed_graph.nodes.items():
        assert part.node_keys[node_type].tolist() == part.ids_of_keys[node_type].tolist() == [*range(nodes.num_nodes)]


def test_arrays_are_maps(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path, num_parts=2)
    part = open_dataset(tmp_path).open_part(1)
    edges = part.edges[("paper", "cites", "paper"), "in"]
    for array in (part.node_keys["paper"], part.node_features["paper"]["feat"], edges.indptr, edges.indices):
        assert mapped_file(array) and not array.flags.writeable
    assert edges.indices.dtype == np.uint32


def test_a_machine_may_hold_one_part_only(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path, num_parts=3)
    shutil.rmtree(tmp_path / "part-00000")
    dataset = open_dataset(str(tmp_path))
    assert dataset.open_part(2).part == 2
    dataset.verify([1, 2])
    with pytest.raises(FormatError, match=r"part-00000 is missing; write the dataset again or copy the folder"):
        dataset.open_part(0)
    for part in (-1, 3):
        with pytest.raises(UnknownNameError, match=rf"has no part {part}; parts are numbered 0..2"):
            dataset.open_part(part)


@pytest.fixture
def written(tmp_path, typed_graph: Graph):
    """A dataset of two parts, both directions."""
    write_parts(typed_graph, tmp_path / "d", num_parts=2, method="random", direction="both")
    return tmp_path / "d"


def open_all(root, verify=False):
    dataset = open_dataset(root, verify=verify)
    return [dataset.open_part(part) for part in range(dataset.manifest.book.num_parts)]


def test_every_missing_or_truncated_file_is_noticed(written):
    files = sorted(written.rglob("*.npy"))
    assert len(files) == len(read_manifest(written).files) == 2 * (3 * 2 + 2 + 2 + 4 + 1 + 3 * 3 * 2 + 2)
    for path in files:
        whole = path.read_bytes()
        for damaged in (None, b"", whole[:-1], whole + b"\0", whole[:40]):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(FormatError, match=path.name):
                open_all(written)
            path.write_bytes(whole)
    open_all(written, verify=True)


def test_a_flipped_bit_in_any_file_is_noticed_by_verify(written, rng):
    for path in sorted(written.rglob("*.npy")):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[int(rng.integers(0, len(whole)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError, match=path.name):
            open_dataset(written, verify=True)
        path.write_bytes(whole)
    open_dataset(written, verify=True)


def test_a_file_of_another_dtype_or_shape_is_noticed(written):
    path = written / "part-00001/node/author/features/feat.npy"
    array = np.load(path)
    for other in (array.astype(np.float32), array.reshape(-1, 4), array[1:], array.astype(">f8")):
        np.save(path, other)
        with pytest.raises(FormatError, match=r"feat.npy is .*; the manifest says float64\[\d+, 2, 2\]"):
            open_all(written)


def test_wrong_offsets_are_refused_when_opening(written):
    for name, position in (
        ("edge/paper__cites__paper/in/indptr.npy", 0),
        ("edge/paper__cites__paper/out/indptr.npy", -1),
        ("node/paper/features/title.offsets.npy", -1),
    ):
        path = written / "part-00000" / name
        before = path.read_bytes()
        array = np.load(path)
        array[position] += 1
        np.save(path, array)
        with pytest.raises(FormatError, match="must ascend from 0 to"):
            open_all(written)
        path.write_bytes(before)


FORGERIES = [
    ("node/paper/key.npy", slice(0, 2), [1, 0], "keys of paper do not ascend"),
    ("node/paper/key.npy", -1, 60, r"keys of paper lie in \d+..60; they must be in 0..59"),
    ("node/paper/id_of_key.npy", 0, -1, "ids of keys of paper lie in -1"),
    ("node/paper/splits/train.npy", 0, -7, "split 'train' of paper lie in -7"),
    ("node/paper/features/title.offsets.npy", 2, 1 << 40, "paper.title: offsets must ascend"),
    ("edge/paper__cites__paper/in/indptr.npy", 2, 1 << 40, "paper__cites__paper/in: indptr does not ascend"),
    ("edge/author__writes__paper/in/indices.npy", 0, 25, "author__writes__paper/in: indices lie in"),
    ("edge/author__writes__paper/out/key.npy", 0, 1 << 20, r"author__writes__paper/out: keys lie in \d+..1048576"),
]


@pytest.mark.parametrize(("name", "position", "value", "message"), FORGERIES)
def test_verify_checks_values_besides_checksums(written, name, position, value, message):
    """A file with a matching checksum may still hold values that kernels must not be given."""
    relative = f"part-00000/{name}"
    array = np.load(written / relative)
    array[position] = value
    record = write_array(written / relative, array)
    manifest = read_manifest(written)
    forged = type(manifest)(
        **{
            field: getattr(manifest, field)
            for field in (
                "schema",
                "directions",
                "book",
                "has_edge_keys",
                "has_narrow_keys",
                "made_by",
                "report",
                "graph_id",
                "checksums",
            )
        },
        files={**manifest.files, relative: record},
    )
    forged.write(written)
    dataset = open_dataset(written)
    with pytest.raises(FormatError, match=message):
        dataset.verify()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_the_manifest_raises_a_hopstream_error(written, data):
    """A value that is changed or dropped anywhere in the JSON is an error, or makes no difference."""
    path = written / "manifest.json"
    whole = path.read_text()
    value = json.loads(whole)
    node, trail = value, []
    while isinstance(node, (dict, list)) and node:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        trail.append((node, key))
        node = node[key]
        if data.draw(st.booleans()):
            break
    container, key = trail[-1]
    change = data.draw(st.sampled_from(["drop", None, -1, 1 << 70, 0.5, "../../etc", [], {}, [[]], {"a": 1}, True]))
    if change == "drop":
        del container[key]
    else:
        container[key] = change
    path.write_text(json.dumps(value))
    try:
        manifest = read_manifest(written)
        assert manifest.to_json() == json.loads(whole)
    except HopstreamError as error:
        assert isinstance(error, FormatError)
        assert str(path) in str(error)
    finally:
        path.write_text(whole)
