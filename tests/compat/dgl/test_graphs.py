"""Checks that graphs count edges, and name missing nodes."""

import pytest
import torch

import hopstream.compat.dgl as dgl
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError

TYPED = {("u", "r", "v"): ([0, 1, 1, 4], [0, 0, 1, 1]), ("v", "s", "u"): ([1, 0], [2, 2])}


def test_degrees_are_numbers_of_edges():
    g = dgl.graph(([0, 0, 1, 1], [1, 1, 2, 3]), num_nodes=5)
    assert g.in_degrees().tolist() == [0, 2, 1, 1, 0] and g.out_degrees().tolist() == [2, 2, 0, 0, 0]
    assert g.in_degrees(1) == 2 and g.in_degrees(torch.tensor([1, 4])).tolist() == [2, 0]
    assert g.in_degrees().dtype == torch.int64 and g.out_degrees([]).tolist() == []
    typed = dgl.heterograph(TYPED, {"u": 5, "v": 3})
    assert typed.in_degrees(etype="r").tolist() == [2, 2, 0] and typed.out_degrees(4, etype="r") == 1
    assert typed.in_degrees([2, 0], ("v", "s", "u")).tolist() == [2, 0]
    with pytest.raises(UnknownNameError, match=r"edge type must be given; known: "):
        typed.in_degrees()
    for wrong in (3, -1):
        with pytest.raises(IdRangeError, match=rf"node {wrong} in position 1 does not exist; nodes of 'v' are 0\.\.2"):
            typed.in_degrees([0, wrong], "r")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dgl.graph(([0, 9], [1, 2]), num_nodes=5), r"edge 1 of .* leads from node 9; nodes of '_N' are 0\.\.4"),
        (lambda: dgl.graph(([0, 3], [-1, 2])), r"edge 0 of .* leads to node -1; nodes of '_N' are 0\.\.3"),
        (lambda: dgl.graph(([0], [0]), num_nodes=0), "nodes of '_N' are none"),
        (
            lambda: dgl.heterograph(TYPED, {"u": 5, "v": 1}),
            r"edge 2 of \('u', 'r', 'v'\) leads to node 1; nodes of 'v'",
        ),
    ],
)
def test_error_names_the_missing_node_and_its_edge(make, said):
    with pytest.raises(IdRangeError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dgl.graph(([0, [1, 2]], [1])), "is a list that is not an array"),
        (lambda: dgl.graph(([0.5], [1])), "is float64"),
        (lambda: dgl.heterograph({"abc": ([0], [1])}), "edge type is 'abc'; wanted"),
        (lambda: dgl.heterograph({("a", "b"): ([0], [1])}), r"edge type is \('a', 'b'\); wanted"),
        (lambda: dgl.heterograph({(1, 2, 3): ([0], [1])}), r"edge type is \(1, 2, 3\); wanted"),
        (lambda: dgl.heterograph(None), "a NoneType and a NoneType are given"),
        (lambda: dgl.heterograph(TYPED, [5, 3]), "a dict and a list are given"),
        (lambda: dgl.graph(([0], [1])).ndata.update(q=["a", "b"]), "an array of <U1 is given; tensors hold numbers"),
    ],
)
def test_invalid_graphs_are_refused(make, said):
    with pytest.raises(SchemaError, match=said):
        make()


def test_ends_are_a_pair():
    for data in (5, None, [], ([0],), ([0], [1], [2]), torch.zeros(3, 4), [(0, 1), (2, 3)]):
        with pytest.raises(SchemaError, match=r"edges of \('_N', '_E', '_N'\) are .*; wanted \(sources"):
            dgl.graph(data)
    assert dgl.graph(torch.tensor([[0, 1], [1, 2]])).num_nodes() == 3


@pytest.mark.parametrize("number", [1.5, -1, "3", True])
def test_numbers_of_nodes_are_integers(number):
    with pytest.raises(SettingsError, match=rf"the number of nodes of '_N' is {number!r}; it must be an integer"):
        dgl.graph(([], []), num_nodes=number)


def test_a_type_is_required_if_there_are_several():
    typed = dgl.heterograph(TYPED)
    for call in (typed.nodes, lambda: typed.ndata):
        with pytest.raises(UnknownNameError, match=r"node type must be given; known: \['u', 'v'\]"):
            call()
    assert typed.nodes("v").tolist() == [0, 1]


def test_error_for_a_missing_attribute_names_the_replacement():
    g = dgl.graph(([0], [1]))
    with pytest.raises(AttributeError, match=r"have no 'update_all': .* hopstream\.NeighborLoader"):
        g.update_all()
    assert not hasattr(g, "add_edges")
