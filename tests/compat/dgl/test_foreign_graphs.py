"""Checks that graphs of NetworkX and matrices of SciPy become graphs, numbered as DGL numbers them."""

import sys

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

import hopstream.compat.dgl as dgl
from hopstream.errors import MissingDependencyError, SchemaError


def attributed():
    g = networkx.DiGraph()
    g.add_nodes_from(
        [(30, {"x": 3.5, "v": torch.ones(2)}), (10, {"x": 1, "v": torch.zeros(2)}), (20, {"x": 2, "v": [5, 6]})]
    )
    g.add_edges_from([(30, 10, {"w": np.float64(0.5), "id": [1]}), (10, 20, {"w": np.float64(1.5), "id": [0]})])
    return g


def test_nodes_are_numbered_in_the_order_of_their_names():
    g = dgl.from_networkx(attributed(), node_attrs=["x", "v"], edge_attrs=["w"])
    assert g.num_nodes() == 3 and [end.tolist() for end in g.edges()] == [[2, 0], [0, 1]]
    assert g.ndata["x"].dtype == torch.float32 and g.ndata["x"].tolist() == [1, 2, 3.5]
    assert g.ndata["v"].tolist() == [[0, 0], [5, 6], [1, 1]]
    assert g.edata["w"].dtype == torch.float64 and g.edata["w"].tolist() == [0.5, 1.5]
    assert not dgl.from_networkx(attributed()).ndata


def test_edges_are_numbered_by_an_attribute():
    g = dgl.from_networkx(attributed(), None, ["w"], "id")
    assert [end.tolist() for end in g.edges()] == [[0, 2], [1, 0]] and g.edata["w"].tolist() == [1.5, 0.5]
    wrong = attributed()
    wrong.edges[30, 10]["id"] = [0]
    with pytest.raises(SchemaError, match=r"'id' of edges are not 0\.\.1"):
        dgl.from_networkx(wrong, edge_id_attr_name="id")


def test_undirected_edges_are_stored_in_both_directions():
    g = dgl.from_networkx(networkx.path_graph(3))
    assert [end.tolist() for end in g.edges()] == [[0, 1, 1, 2], [1, 0, 2, 1]]
    weighted = dgl.from_networkx(networkx.Graph([("b", "a", {"w": 7})]), edge_attrs=["w"])
    assert [end.tolist() for end in weighted.edges()] == [[1, 0], [0, 1]] and weighted.edata["w"].tolist() == [7, 7]
    empty = dgl.from_networkx(networkx.Graph(), edge_attrs=["w"], edge_id_attr_name="id")
    assert (empty.num_nodes(), empty.num_edges()) == (0, 0) and len(empty.edata["w"]) == 0


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ([[0, 1]], {}, "nx_graph is list; wanted a NetworkX graph"),
        (networkx.Graph([(0, "a")]), {}, "cannot be sorted .*convert_node_labels_to_integers"),
        (attributed(), {"node_attrs": ["y"]}, "node 10 has no 'y'"),
        (attributed(), {"edge_attrs": ["y"]}, r"edge \(30, 10\) has no 'y'"),
        (networkx.DiGraph([("a", "b", {"t": "x"})]), {"edge_attrs": ["t"]}, "'t' of edges are texts"),
    ],
)
def test_invalid_graphs_are_refused(source, options, said):
    with pytest.raises(SchemaError, match=said):
        dgl.from_networkx(source, **options)


def test_without_networkx_the_package_is_named(monkeypatch):
    source = attributed()
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingDependencyError, match="pip install networkx"):
        dgl.from_networkx(source)


def test_stored_values_are_edges():
    matrix = scipy.sparse.coo_matrix((np.array([0.2, 0.3, 0.5]), ([2, 3, 4], [1, 2, 3])), shape=(6, 6))
    g = dgl.from_scipy(matrix, eweight_name="w")
    assert g.num_nodes() == 6 and [end.tolist() for end in g.edges()] == [[2, 3, 4], [1, 2, 3]]
    assert g.edata["w"].dtype == torch.float64 and g.edata["w"].tolist() == [0.2, 0.3, 0.5]
    assert not dgl.from_scipy(matrix.tocsr()).edata
    for wrong in (matrix.toarray(), scipy.sparse.coo_matrix((2, 3))):
        with pytest.raises(SchemaError):
            dgl.from_scipy(wrong)


def test_error_lists_available_names():
    assert "from_scipy" in dir(dgl)
    with pytest.raises(AttributeError, match=r"'to_bidirected'; it has .*from_networkx, from_scipy, graph"):
        dgl.to_bidirected  # noqa: B018
