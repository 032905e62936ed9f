"""Checks that an ``.npz`` file reads back as the written graph, and that other files are refused."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray, column_schema
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest import read_graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.npz import read_npz, write_npz
from hopstream.schema import EDGE, NODE

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY.parent / "shared" / "data"
WRITES = ("author", "writes", "paper")


def assert_equal(got: Graph, wanted: Graph) -> None:
    assert got.schema == wanted.schema
    assert {t: n.num_nodes for t, n in got.nodes.items()} == {t: n.num_nodes for t, n in wanted.nodes.items()}
    for tables, others in ((got.nodes, wanted.nodes), (got.edges, wanted.edges)):
        for owner, table in tables.items():
            for name, column in table.features.items():
                other = others[owner].features[name]
                assert column_schema(column) == column_schema(other)
                assert all(np.array_equal(a, b) for a, b in zip(column, other, strict=True))
    for edge_type, edges in got.edges.items():
        assert np.array_equal(edges.src_keys, wanted.edges[edge_type].src_keys)
        assert np.array_equal(edges.dst_keys, wanted.edges[edge_type].dst_keys)
    for node_type, splits in wanted.splits.items():
        for name, keys in splits.items():
            assert np.array_equal(got.splits[node_type][name], keys)
    for edge_type, splits in wanted.edge_splits.items():
        for name, keys in splits.items():
            assert np.array_equal(got.edge_splits[edge_type][name], keys)


def test_a_typed_graph_survives_a_round_trip(tmp_path, typed_graph):
    typed_graph = replace(typed_graph, edge_splits={WRITES: {"train": np.arange(0, 70, 3), "none": np.arange(0)}})
    write_npz(typed_graph, tmp_path / "deep" / "graph.npz")
    assert_equal(read_npz(tmp_path / "deep" / "graph.npz"), typed_graph)
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["graph.npz"]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=30
)
@given(
    num_nodes=st.integers(0, 3),
    strings=st.lists(st.text(max_size=3), min_size=3, max_size=3),
    rows=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=3, max_size=3),
)
def test_columns_of_any_kind_survive_a_round_trip(tmp_path, num_nodes, strings, rows):
    ragged = RaggedArray.from_rows([np.array(row, np.int16) for row in rows])
    few = np.arange(num_nodes)
    graph = Graph(
        nodes={
            "a": NodeTable(
                num_nodes=num_nodes,
                features={
                    "text": RaggedArray.from_strings(strings).take(few),
                    "tags": ragged.take(few),
                    "matrix": np.arange(6 * num_nodes, dtype=np.float16).reshape(num_nodes, 2, 3),
                    "a/b.c": few,
                },
            )
        },
        edges={("a", "to", "a"): EdgeTable(src_keys=few, dst_keys=few, features={"w": few > 1})},
        splits={"a": {"train": few, "odd": few[1::2]}},
    ).check()
    write_npz(graph, tmp_path / "graph.npz")
    assert_equal(read_npz(tmp_path / "graph.npz"), graph)


def test_names_without_types(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        edge_index=np.array([[0, 1], [1, 2]]),
        x=np.ones((4, 2), np.float32),
        title=np.array(["a", "b", "c", "d"]),
        train_mask=np.array([True, False, False, True]),
        edge_attr=np.ones((2, 1)),
        **{"core.split": np.array([3, 1]), "tags.values": np.arange(3), "tags.offsets": np.array([0, 1, 1, 2, 3])},
    )
    graph = read_npz(tmp_path / "a.npz")
    assert graph.schema.is_homogeneous
    assert set(graph.nodes[NODE].features) == {"x", "title", "tags"}
    assert list(graph.nodes[NODE].features["title"]) == ["a", "b", "c", "d"]
    assert [row.tolist() for row in graph.nodes[NODE].features["tags"]] == [[0], [], [1], [2]]
    assert set(graph.edges[EDGE].features) == {"edge_attr"}
    assert {n: k.tolist() for n, k in graph.splits[NODE].items()} == {"core": [1, 3], "train": [0, 3]}


def test_names_with_types(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        **{
            "paper/x": np.ones((3, 2)),
            "paper/val_mask": np.array([False, True, False]),
            "author/num_nodes": np.array(5),
            "author__writes__paper/edge_index": np.array([[4], [0]]),
            "author__writes__paper/edge_weight": np.array([0.5]),
            "author__writes__paper/val.split": np.array([0]),
            "author__writes__paper/train.split": np.array([False]),
        },
    )
    graph = read_npz(tmp_path / "a.npz")
    assert {n: k.tolist() for n, k in graph.edge_splits[WRITES].items()} == {"val": [0], "train": []}
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {"paper": 3, "author": 5}
    assert graph.edges[WRITES].features["edge_weight"].tolist() == [0.5]
    assert graph.splits["paper"]["val"].tolist() == [1]


NO_EDGES = {"edge_index": np.empty((2, 0), int)}
SOME_EDGES = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((4, 2))}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"edges": np.zeros((9, 2), int), "node_features": np.ones((4, 2)), "train_masks": np.ones((10, 4), bool)},
            r"has no edge_index, integers \[2, num_edges\]; it has edges int64\[9, 2\], node_features .*, train_masks",
        ),
        (
            {**SOME_EDGES, "train_masks": np.ones((10, 4), bool)},
            r"train_masks bool\[10, 4\] match neither nodes nor edges",
        ),
        ({**SOME_EDGES, "neg_index": np.zeros((2, 3), int), "w": np.ones(3)}, r"neg_index .*, w .* match neither"),
        ({**SOME_EDGES, "t.values": np.ones(2), "t.offsets": np.array([0, 1, 2, 2])}, r"t.values float64\[2\] match"),
        (
            {"a/x": np.ones(2), "a_to_a/edge_index": np.zeros((2, 1), int)},
            "'a_to_a' is not an edge type; name it source__r",
        ),
        ({"a/x": np.ones(2), "a/face": np.ones((3, 2))}, r"a/face float64\[3, 2\] match neither"),
        (
            {"a__to__a/edge_index": np.zeros((2, 1), int), "a__to__a/edge_label_index": np.zeros((2, 1), int)},
            "label_in",
        ),
    ],
)
def test_unused_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SchemaError, match=message):
        read_npz(tmp_path / "a.npz")


def test_arrays_are_ignored_by_name_or_all(tmp_path):
    masks = np.ones((10, 4), bool)
    np.savez(tmp_path / "a.npz", **SOME_EDGES, train_masks=masks, w=np.ones(3), num_classes=np.array(3))
    for ignore in (["train_masks", "w"], "all"):
        graph = read_graph(tmp_path / "a.npz", ignore=ignore)
        assert set(graph.nodes[NODE].features) == {"x"} and graph.edges[EDGE].num_edges == 2
    assert set(read_npz(tmp_path / "a.npz", ["train_masks", "w", "x"]).nodes[NODE].features) == set()
    with pytest.raises(SchemaError, match=r"w float64\[3\] match"):
        read_npz(tmp_path / "a.npz", ["train_masks"])
    with pytest.raises(SettingsError, match=r"ignore names 'y'; .*a\.npz has edge_index int64\[2, 2\], x"):
        read_npz(tmp_path / "a.npz", ["y"])
    with pytest.raises(SettingsError, match="ignore is 'w'; wanted a list of names of arrays, or 'all'"):
        read_graph(tmp_path / "a.npz", ignore="w")
    with pytest.raises(SettingsError, match=r"no option 'ignored'; known: \['ignore'\]"):
        read_graph(tmp_path / "a.npz", ignored=["w"])


def test_a_typed_graph_without_edge_types(tmp_path):
    np.savez(tmp_path / "a.npz", **{"paper/x": np.ones((3, 2))})
    assert read_npz(tmp_path / "a.npz").nodes["paper"].num_nodes == 3


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"edge_index": np.zeros((2, 1), int), "paper/x": np.ones(1)}, FormatError, "some arrays with a type and some"),
        ({"edge_index": np.array([[0], [3]]), "x": np.ones(2)}, IdRangeError, r"dst_keys\[0\] is 3"),
        ({"edge_index": np.zeros((2, 1))}, SchemaError, "keys are integers"),
        ({"a__to__a/w": np.ones(1)}, SchemaError, "a__to__a has no edge_index"),
        ({"x": np.ones(1), "t.values": np.ones(1)}, FormatError, "t.values needs t.offsets"),
        (
            {**NO_EDGES, "x": np.ones(1), "t.values": np.ones(1), "t.offsets": np.array([0, 2])},
            SchemaError,
            "ascend from 0 to 1",
        ),
        ({**NO_EDGES, "x": np.ones(1), "a.split": np.array([0, 0])}, SchemaError, "names node 0 twice"),
        (
            {**NO_EDGES, "x": np.ones(1), "t.utf8": np.ones(1), "t.offsets": np.array([0, 1])},
            SchemaError,
            "UTF-8 bytes",
        ),
    ],
)
def test_arrays_without_a_graph_are_refused(tmp_path, arrays, error, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(error, match=message):
        read_npz(tmp_path / "a.npz")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(FormatError, match="is missing"):
        read_npz(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(FormatError, match=r"cannot be read as \.npz"):
        read_npz(path)
    with pytest.raises(FormatError, match=r"cannot be read as \.npz"):
        read_npz(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FormatError, match=r"holds 'readme.txt', which is not a \.npy array"):
        read_npz(path)


def test_pickles_are_never_loaded(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="Python objects"):
        read_npz(path)


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(FormatError, match="its header says"):
        read_npz(path)


def test_every_truncation_is_noticed(tmp_path, typed_graph):
    path = tmp_path / "a.npz"
    write_npz(typed_graph, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_npz(path)


def test_damaged_bytes_never_pass_unnoticed(tmp_path, rng):
    """The archive's CRC covers every array; damage elsewhere may change no value."""
    path = tmp_path / "a.npz"
    graph = graph_from_arrays([[0, 1], [1, 2]], node_features={"x": np.arange(3.0)})
    write_npz(graph, path)
    whole = path.read_bytes()
    for position in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            got = read_npz(path)
        except (FormatError, SchemaError, IdRangeError):
            continue
        if got.schema == graph.schema:
            assert_equal(got, graph)


@pytest.mark.parametrize(
    "graph",
    [
        Graph(nodes={"a/b": NodeTable(num_nodes=1)}),
        Graph(nodes={"a__b__c": NodeTable(num_nodes=1)}),
        Graph(
            nodes={"a_": NodeTable(num_nodes=1)},
            edges={("a_", "to", "a_"): EdgeTable(src_keys=np.zeros(1, int), dst_keys=np.zeros(1, int))},
        ),
        *(
            Graph(nodes={"a": NodeTable(num_nodes=2, features={name: np.ones((2, 2))})})
            for name in ("edge_index", "num_nodes", "train_mask", "face", "my_index", "a.split", "a.utf8", "adj_t")
        ),
    ],
)
def test_names_changed_by_a_round_trip_are_refused(tmp_path, graph):
    with pytest.raises(SchemaError):
        write_npz(graph.check(), tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "num_features", "num_train"),
    [("cora", 2708, 10858, 1433, 140), ("citeseer", 3327, 9464, 3703, 120)],
)
def test_planetoid_files_have_their_known_sizes(name, num_nodes, num_edges, num_features, num_train):
    path = DATA / name / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    graph = read_npz(path)
    assert (graph.nodes[NODE].num_nodes, graph.edges[EDGE].num_edges) == (num_nodes, num_edges)
    assert str(graph.schema.feature(NODE, "x")) == f"float32[rows, {num_features}]"
    assert {n: len(k) for n, k in graph.splits[NODE].items()} == {"train": num_train, "val": 500, "test": 1000}


def test_the_cora_of_the_examples():
    graph = read_npz(REPOSITORY / "examples" / "data" / "cora.npz")
    assert graph.schema.is_homogeneous
    assert graph.nodes[NODE].num_nodes == 2708
    assert np.bincount(graph.nodes[NODE].features["y"]).tolist() == [351, 217, 418, 818, 426, 298, 180]


def test_tolokers_by_hand():
    path = DATA / "tolokers" / "tolokers.npz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    with np.load(path, allow_pickle=False) as arrays:
        edges = arrays["edges"]
        with pytest.raises(SchemaError, match="transpose them"):
            graph_from_arrays(edges)
        graph = graph_from_arrays(
            np.concatenate([edges, edges[:, ::-1]]).T,
            node_features={"x": arrays["node_features"], "y": arrays["node_labels"]},
            splits={split: arrays[f"{split}_masks"][0] for split in ("train", "val", "test")},
        )
    assert graph.edges[EDGE].num_edges == 2 * 519_000
    assert {n: len(k) for n, k in graph.splits[NODE].items()} == {"train": 5879, "val": 2939, "test": 2940}
