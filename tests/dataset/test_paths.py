"""Checks that any name can be a path component, and that no two names share one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopstream.arrays import FileRecord
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.paths import MAX_PATH_NAME, Expected, edge_folder, expected_files, feature_paths, path_name
from hopstream.schema import FeatureSchema, GraphSchema


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The fields of a manifest that decide which files exist."""

    schema: GraphSchema
    book: PartitionBook
    directions: tuple
    has_edge_keys: bool = False
    time_attr: str | None = None
    weight_attr: str | None = None
    has_neighbor_keys: bool = False
    has_narrow_keys: bool = False


names = st.text(alphabet=st.sampled_from("ab_.%~/é-9 "), min_size=1, max_size=6) | st.text(min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("paper", "paper"),
        ("Field-of.study_2", "Field-of.study_2"),
        ("a b", "a%20b"),
        ("é", "%C3%A9"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".x", "%2Ex"),
        ("a__b", "a_%5Fb"),
        ("_a_", "%5Fa%5F"),
        ("100%", "100%25"),
        ("x.values", "x%2Evalues"),
    ],
)
def test_names_are_pinned(name, wanted):
    assert path_name(name) == wanted


@given(names)
def test_a_name_is_one_plain_part_of_a_path(name):
    encoded = path_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_.%~-]+", encoded)
    assert 0 < len(encoded) <= MAX_PATH_NAME
    assert encoded[0] not in "._" and encoded[-1] != "_" and "__" not in encoded


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_edge_types_never_meet(left, right):
    folders = [edge_folder(0, edge_type, "in") for edge_type in (left, right)]
    assert (folders[0] == folders[1]) == (left == right)
    assert folders[0].parts[2].split("__") == [path_name(name) for name in left]
    assert len(folders[0].parts) == 4


@given(names, names)
def test_features_never_meet(left, right):
    fixed, ragged = FeatureSchema(dtype="int8"), FeatureSchema(dtype="int8", is_ragged=True)
    paths = [{p for f in (fixed, ragged) for p in feature_paths(edge_folder(0, ("a", "b", "c"), "in"), name, f)}
             for name in (left, right)]  # fmt: skip
    assert len(paths[0]) == 3
    assert (paths[0] & paths[1] == set()) == (left != right)


def test_the_files_of_a_part():
    schema = GraphSchema(
        nodes={"a": {"x": FeatureSchema(dtype="float32", shape=(3,)), "s": FeatureSchema(dtype="string")}},
        edges={("a", "to", "a"): {"w": FeatureSchema(dtype="int8", is_ragged=True, shape=(2,))}},
        splits={"a": ("train",)},
    )
    owner = ("a", "to", "a"), "out"
    book = PartitionBook(
        num_parts=2, node_offsets={"a": np.array([0, 4, 7])}, edge_offsets={owner: np.array([0, 5, 15])}
    )
    files = dict(expected_files(Contents(schema=schema, book=book, directions=("out",)), 1))
    assert {path: str(expected) for path, expected in files.items()} == {
        "part-00001/node/a/key.npy": "int64[3]",
        "part-00001/node/a/id_of_key.npy": "int64[4]",
        "part-00001/node/a/splits/train.npy": "int64[any]",
        "part-00001/node/a/features/x.npy": "float32[3, 3]",
        "part-00001/node/a/features/s.values.npy": "uint8[any]",
        "part-00001/node/a/features/s.offsets.npy": "int64[4]",
        "part-00001/edge/a__to__a/out/indptr.npy": "int64[4]",
        "part-00001/edge/a__to__a/out/indices.npy": "uint32[10]",
        "part-00001/edge/a__to__a/out/features/w.values.npy": "int8[any, 2]",
        "part-00001/edge/a__to__a/out/features/w.offsets.npy": "int64[11]",
    }
    with_keys = Contents(schema=schema, book=book, directions=("out",), has_edge_keys=True)
    for contents, dtype in ((with_keys, "int64"), (replace(with_keys, has_narrow_keys=True), "uint32")):
        assert str(dict(expected_files(contents, 1))["part-00001/edge/a__to__a/out/key.npy"]) == f"{dtype}[10]"


@pytest.mark.parametrize("direction", ["in", "out"])
def test_files_of_times_weights_neighbors_and_links(direction):
    """``a`` and ``likes`` have times, ``likes`` alone has weights, and ``sees`` has links but no splits."""
    number = FeatureSchema(dtype="int32")
    likes, sees = ("a", "likes", "b"), ("b", "sees", "b")
    schema = GraphSchema(
        nodes={"a": {"t": number}, "b": {}},
        edges={likes: {"t": number, "w": number}, sees: {}},
        edge_splits={likes: ("train",), sees: ()},
    )
    book = PartitionBook(
        num_parts=2,
        node_offsets={"a": np.array([0, 1, 2]), "b": np.array([0, 2, 5])},
        edge_offsets={(likes, direction): np.array([0, 3, 9]), (sees, direction): np.array([0, 0, 4])},
    )
    contents = Contents(
        schema=schema, book=book, directions=(direction,), time_attr="t", weight_attr="w", has_neighbor_keys=True
    )
    files = {path: str(expected) for path, expected in expected_files(contents, 1)}
    folder = f"part-00001/edge/a__likes__b/{direction}"
    num_rows = 4 if direction == "in" else 2
    assert {path: what for path, what in files.items() if path.startswith((folder, "part-00001/link"))} == {
        f"{folder}/indptr.npy": f"int64[{num_rows}]",
        f"{folder}/indices.npy": "uint32[6]",
        f"{folder}/neighbor_key.npy": "uint32[6]",
        f"{folder}/time.npy": "int64[6]",
        f"{folder}/weight_sums.npy": "float64[6]",
        f"{folder}/weight_order.npy": "uint32[6]",
        f"{folder}/weight_alias.npy": "uint64[6]",
        f"{folder}/features/t.npy": "int32[6]",
        f"{folder}/features/w.npy": "int32[6]",
        "part-00001/link/a__likes__b/src_key.npy": "int64[5]",
        "part-00001/link/a__likes__b/dst_key.npy": "int64[5]",
        "part-00001/link/a__likes__b/time.npy": "int64[5]",
        "part-00001/link/a__likes__b/splits/train.npy": "int64[any]",
        "part-00001/link/b__sees__b/src_key.npy": "int64[2]",
        "part-00001/link/b__sees__b/dst_key.npy": "int64[2]",
    }
    assert f"part-00001/edge/b__sees__b/{direction}/time.npy" not in files


def test_the_neighbor_decides_whether_edges_have_times():
    schema = GraphSchema(nodes={"a": {"t": FeatureSchema(dtype="int8")}, "b": {}}, edges={("a", "to", "b"): {}})
    one = np.array([0, 1])
    owners = {(("a", "to", "b"), direction): one for direction in ("in", "out")}
    book = PartitionBook(num_parts=1, node_offsets={"a": one, "b": one}, edge_offsets=owners)
    contents = Contents(schema=schema, book=book, directions=("in", "out"), time_attr="t")
    times = [path for path, _ in expected_files(contents, 0) if path.endswith("/time.npy")]
    assert times == ["part-00000/edge/a__to__b/in/time.npy"]


@pytest.mark.parametrize(
    ("dtype", "shape", "fits"),
    [("int8", (5, 2), True), ("int8", (0, 2), True), ("int8", (-1, 2), False), ("int8", (5, 3), False),
     ("int8", (5,), False), ("int16", (5, 2), False)],
)  # fmt: skip
def test_a_record_fits_or_not(dtype, shape, fits):
    assert Expected("int8", (None, 2)).matches(FileRecord(dtype, shape, 1, 1)) is fits
