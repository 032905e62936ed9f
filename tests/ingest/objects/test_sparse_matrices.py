"""Checks the graphs of SciPy's sparse matrices and of arrays that only give DLPack."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import hopstream
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.ingest.objects.sparse_matrices import graph_from_scipy
from hopstream.schema import EDGE, NODE

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "lil_array", "dok_array"])
def test_a_square_matrix(rng, kind):
    dense = np.where(rng.random((9, 9)) < 0.3, rng.random((9, 9)), 0)
    dense[8] = dense[:, 8] = 0
    features = {"x": rng.random((9, 2))}
    graph = graph_from_scipy(
        getattr(scipy.sparse, kind)(dense), node_features=features, splits={"train": np.array([3, 1])}
    )
    table = graph.edges[EDGE]
    again = np.zeros((9, 9))
    again[table.src_keys, table.dst_keys] = table.features["weight"]
    assert np.array_equal(again, dense) and len(table.src_keys) == np.count_nonzero(dense)
    assert graph.nodes[NODE].num_nodes == 9 and graph.nodes[NODE].features["x"] is features["x"]
    assert graph.splits[NODE]["train"].tolist() == [1, 3]
    assert not graph_from_scipy(getattr(scipy.sparse, kind)(dense), weight=None).edges[EDGE].features


def test_matrices_by_type():
    writes = scipy.sparse.coo_array(([2.0, 0, 1], ([0, 1, 1], [3, 0, 0])), shape=(2, 4))
    cites = scipy.sparse.csr_array((4, 4), dtype=np.int8)
    graph = graph_from_scipy({WRITES: writes, CITES: cites}, weight="count")
    assert {t: of.num_nodes for t, of in graph.nodes.items()} == {"author": 2, "paper": 4}
    assert graph.edges[WRITES].dst_keys.tolist() == [3, 0, 0]  # a stored zero and a repeated place are edges
    assert graph.edges[WRITES].features["count"].tolist() == [2, 0, 1]
    assert graph.edges[CITES].num_edges == 0
    with pytest.raises(SchemaError, match=r"paper__cites__paper is a matrix \[5, 5\], but 'paper' has 4 nodes"):
        graph_from_scipy({WRITES: writes, CITES: scipy.sparse.eye_array(5)})


def test_invalid_adjacency_matrices_are_refused():
    with pytest.raises(SchemaError, match=r"is a matrix \[2, 3\]"):
        graph_from_scipy(scipy.sparse.csr_array((2, 3)))
    with pytest.raises(SchemaError, match="is ndarray; wanted a sparse matrix"):
        graph_from_scipy(np.eye(3))
    with pytest.raises(SchemaError, match=r"hopstream\.graph\.graph_from_scipy"):
        hopstream.graph_from_arrays(scipy.sparse.eye_array(3))


def test_a_matrix_that_contradicts_itself_is_refused():
    """SciPy's ``tocoo`` accesses memory outside of such matrices."""
    for name, place, value in (("indices", 0, 7), ("indptr", 1, 900), ("indices", 0, -1)):
        matrix = scipy.sparse.csr_array((np.ones(3), np.array([2, 0, 1]), np.array([0, 2, 3, 3])), shape=(3, 3))
        getattr(matrix, name)[place] = value
        with pytest.raises(SchemaError, match=r"node__to__node is a matrix \[3, 3\] that contradicts itself"):
            graph_from_scipy(matrix)
    for wrong in ("a", ("a", "b"), (1, 2, 3)):
        with pytest.raises(SchemaError, match=r"must be a \(source, relation, destination\) tuple"):
            graph_from_scipy({wrong: scipy.sparse.eye_array(3)})
    with pytest.raises(SchemaError, match="wanted a sparse matrix"):
        graph_from_scipy(scipy.sparse.csr_array)


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_matrix"])
def test_files_of_scipy(tmp_path, rng, kind):
    matrix = getattr(scipy.sparse, kind)(scipy.sparse.random_array((9, 9), density=0.3, rng=rng))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    assert hopstream.read_graph(tmp_path / "a.npz").fingerprint() == graph_from_scipy(matrix).fingerprint()
    with np.load(tmp_path / "a.npz") as file:
        unsigned = {name: array.astype(np.uint64) if name == "indptr" else array for name, array in file.items()}
    np.savez(tmp_path / "a.npz", **unsigned)
    assert hopstream.read_graph(tmp_path / "a.npz").fingerprint() == graph_from_scipy(matrix).fingerprint()


def test_invalid_adjacency_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, scipy.sparse.dia_array(np.eye(3)))
    with pytest.raises(FormatError, match=r"a\.npz holds a dia matrix of .*; wanted csr, csc or coo"):
        hopstream.read_graph(path)
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(np.eye(3)))
    with np.load(path) as file:
        arrays = dict(file)
    for name, wrong, error in (
        ("indptr", np.array([0, 1, 2, 9]), FormatError), ("indptr", np.array([0, 2, 1, 3]), FormatError),
        ("data", np.ones(2), FormatError), ("shape", np.array([4, 4]), FormatError),
        ("shape", np.array([3, 4]), SchemaError), ("indices", np.array([0, 1, 3]), IdRangeError),
        ("indices", np.array([0, 1, -1]), IdRangeError),
    ):  # fmt: skip
        np.savez(path, **{**arrays, name: wrong})
        with pytest.raises(error):
            hopstream.read_graph(path)


class OnlyDLPack:
    """An array of a library that is unknown to numpy."""

    def __init__(self, array, is_far=False):
        self._array, self._is_far = array, is_far

    def __dlpack__(self, **options):
        if self._is_far:
            raise BufferError("it lies on another device")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_arrays_with_dlpack_are_read():
    x, pairs = np.arange(6.0).reshape(3, 2), np.array([[0, 1], [2, 0]])
    graph = hopstream.graph_from_arrays(
        OnlyDLPack(pairs), node_features={"x": OnlyDLPack(x)}, splits={"train": OnlyDLPack(np.array([2, 0]))}
    )
    found = graph.nodes[NODE].features["x"]
    assert np.shares_memory(found, x) and np.array_equal(found, x)
    assert graph.edges[EDGE].dst_keys.tolist() == [2, 0] and graph.splits[NODE]["train"].tolist() == [0, 2]
    with pytest.raises(SchemaError, match=r"node\.x is a OnlyDLPack that numpy cannot share"):
        hopstream.graph_from_arrays(pairs, node_features={"x": OnlyDLPack(x, is_far=True)})


class Broken(OnlyDLPack):
    """An array whose library raises a given error."""

    def __dlpack__(self, **options):
        raise ZeroDivisionError("no memory of this kind")


def test_arrays_unsupported_by_numpy_are_refused():
    pairs = np.array([[0, 1], [1, 0]])
    for value, message in (
        (Broken(np.ones(2)), r"node\.x is a Broken that numpy cannot share \(no memory of this kind\)"),
        (OnlyDLPack(torch.ones(2).bfloat16()), "or convert it, first"),
        (torch.ones(2).bfloat16(), "a tensor that numpy cannot hold"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), r"node\.x has masked values; fill them first"),
        ([1 << 63, -1], r"node\.x has integers that fit neither int64 nor uint64"),
        ([1 << 70, 1], r"node\.x: row 0 is int"),
    ):
        with pytest.raises(SchemaError, match=message):
            hopstream.graph_from_arrays(pairs, node_features={"x": value})
    with pytest.raises(SchemaError, match=r"twice, one value per row; if it is a mask, use astype\(bool\)"):
        hopstream.graph_from_arrays(np.array([[0, 1], [2, 0]]), splits={"train": np.array([1, 0, 1], np.uint8)})
    for value, wanted in (
        ([1 << 63, 1], np.array([1 << 63, 1], np.uint64)), (np.ma.array([1.0, 2.0]), np.array([1.0, 2.0])),
        (OnlyDLPack(torch.arange(8.0).reshape(2, 4)[:, ::2]), np.array([[0, 2], [4, 6]], np.float32)),
        (OnlyDLPack(torch.ones(2).half()), np.ones(2, np.float16)),
    ):  # fmt: skip
        found = hopstream.graph_from_arrays(pairs, node_features={"x": value}).nodes[NODE].features["x"]
        assert type(found) is np.ndarray and found.dtype == wanted.dtype and np.array_equal(found, wanted)
