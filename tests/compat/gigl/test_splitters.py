"""Tests of splitters and labels: shares, agreement of ranks, whole anchors, and padding."""

from __future__ import annotations

import inspect
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hopstream.compat.gigl.types import graph as types
from hopstream.compat.gigl.types.graph import EdgeType
from hopstream.compat.gigl.utils import data_splitters
from hopstream.compat.gigl.utils.data_splitters import (
    DistNodeAnchorLinkSplitter,
    DistNodeSplitter,
    NodeAnchorLinkSplitter,
    NodeSplitter,
    get_labels_for_anchor_nodes,
    get_max_labels_per_anchor_node_from_runtime_args,
    padded_labels,
    select_ssl_positive_label_edges,
    validate_max_labels_per_anchor_node,
)
from hopstream.graph.splits import split_nodes
from tests.conftest import make_typed_graph

BUYS = EdgeType("user", "buys", "item")
LABELS = types.message_passing_to_positive_label(BUYS)
NEGATIVES = types.message_passing_to_negative_label(BUYS)


def sets(splits):
    return [set(ids.tolist()) for ids in splits]


def test_arguments_have_their_order_and_defaults():
    defaults = {
        splitter: {name: each.default for name, each in inspect.signature(splitter).parameters.items()}
        for splitter in (DistNodeAnchorLinkSplitter, DistNodeSplitter)
    }
    shares = {"num_val": 0.1, "num_test": 0.1, "hash_function": None}
    assert defaults[DistNodeSplitter] == shares
    others = {"supervision_edge_types": None, "should_convert_labels_to_edges": True}
    assert defaults[DistNodeAnchorLinkSplitter] == {"sampling_direction": inspect.Parameter.empty} | shares | others
    assert isinstance(DistNodeSplitter(), NodeSplitter)
    assert isinstance(DistNodeAnchorLinkSplitter("in"), NodeAnchorLinkSplitter)
    assert not isinstance(DistNodeSplitter(), NodeAnchorLinkSplitter)
    assert data_splitters.PADDING_NODE.item() == -1


def test_splits_are_disjoint_and_meet_their_shares(rng: np.random.Generator):
    ids = torch.from_numpy(rng.permutation(20_000))
    splits = DistNodeSplitter(num_val=0.2, num_test=0.1)(ids)
    assert torch.cat(splits).sort().values.tolist() == list(range(20_000))
    for found, share in zip(splits, (0.7, 0.2, 0.1), strict=True):
        assert abs(len(found) / 20_000 - share) < 5 * (share * (1 - share) / 20_000) ** 0.5
    order = {node: place for place, node in enumerate(ids.tolist())}
    places = [[order[node] for node in found.tolist()] for found in splits]
    assert places == [sorted(each) for each in places]


def test_ranks_agree_for_any_nodes():
    splitter = DistNodeSplitter(0.3, 0.3)
    whole = sets(splitter(torch.arange(1000)))
    for piece in (torch.arange(500), torch.arange(500, 1000), torch.tensor([7]), torch.tensor([], dtype=torch.int64)):
        assert sets(splitter(piece)) == [split & set(piece.tolist()) for split in whole]


def test_splits_are_those_of_a_graph_that_is_split_by_hash(rng: np.random.Generator):
    graph = split_nodes(make_typed_graph(rng), "paper", method="hash", val=0.3, test=0.2)
    found = DistNodeSplitter(0.3, 0.2)({"paper": torch.arange(graph.nodes["paper"].num_nodes)})["paper"]
    assert [ids.tolist() for ids in found] == [
        graph.splits["paper"][name].tolist() for name in ("train", "val", "test")
    ]


def test_nodes_without_a_type_are_nodes_of_the_default_type():
    ids, splitter = torch.arange(200), DistNodeSplitter(0.3, 0.3)
    typed = splitter({types.DEFAULT_HOMOGENEOUS_NODE_TYPE: ids, "user": ids})
    assert sets(splitter(ids)) == sets(typed[types.DEFAULT_HOMOGENEOUS_NODE_TYPE])
    assert sets(splitter(ids)) != sets(typed["user"])
    edges = torch.stack([ids, ids])
    assert sets(DistNodeAnchorLinkSplitter("out", 0.3, 0.3)(edges)) == sets(splitter(ids))


def test_nodes_of_equal_hashes_are_together_and_repeated_ones_stay():
    splits = sets(DistNodeSplitter(0.3, 0.3, lambda ids: ids // 4)(torch.arange(400)))
    assert all({node // 4 * 4 + place for place in range(4)} <= split for split in splits for node in split)
    assert sum(map(len, DistNodeSplitter()(torch.tensor([5, 5, 5])))) == 3
    with pytest.raises(ValueError, match="hash_function returns 1 numbers for 2 ids"):
        DistNodeSplitter(hash_function=lambda ids: ids[:1])(torch.tensor([1, 2]))


@pytest.mark.parametrize(("direction", "row"), [("out", 0), ("in", 1)])
def test_an_anchor_is_in_one_split_once(direction: str, row: int, rng: np.random.Generator):
    edges = torch.from_numpy(rng.integers(0, 50, (2, 400)))
    splits = DistNodeAnchorLinkSplitter(direction, 0.3, 0.3)(edges)
    assert torch.cat(splits).sort().values.tolist() == sorted(set(edges[row].tolist()))
    assert all(ids.tolist() == sorted(set(ids.tolist())) for ids in splits)


def test_only_edges_that_hold_labels_have_anchors():
    def edges(*ids: int) -> torch.Tensor:
        return torch.tensor([ids, [node + 100 for node in ids]])

    all_edges = {BUYS: edges(1, 2), LABELS: edges(3, 4, 4), NEGATIVES: edges(4, 5)}
    found = DistNodeAnchorLinkSplitter("out", supervision_edge_types=[tuple(BUYS)])(all_edges)
    assert list(found) == ["user"]
    assert set.union(*sets(found["user"])) == {3, 4, 5}
    reverse = {types.reverse_edge_type(edge_type): rows.flip(0) for edge_type, rows in all_edges.items()}
    assert sets(DistNodeAnchorLinkSplitter("in", supervision_edge_types=[BUYS])(reverse)["user"]) == sets(found["user"])
    given = DistNodeAnchorLinkSplitter("in", supervision_edge_types=[BUYS], should_convert_labels_to_edges=False)
    assert not given.should_convert_labels_to_edges
    assert set.union(*sets(given(all_edges)["item"])) == {101, 102}
    with pytest.raises(ValueError, match="which have labels"):
        DistNodeAnchorLinkSplitter("out")(all_edges)


@pytest.mark.parametrize("splitter", [DistNodeSplitter, lambda *shares: DistNodeAnchorLinkSplitter("in", *shares)])
@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5), (0.9, 0.2), (3, 0.1), (0.1, 1.5)])
def test_invalid_shares_are_refused(splitter, shares):
    with pytest.raises(ValueError, match=r"val|test"):
        splitter(*shares)


def test_invalid_directions_edges_and_ids_are_refused():
    with pytest.raises(ValueError, match="sampling_direction is 'both'"):
        DistNodeAnchorLinkSplitter("both")
    with pytest.raises(ValueError, match=r"edge_index is torch.int64\[3, 2\]; wanted int64\[2, n\]"):
        DistNodeAnchorLinkSplitter("in")(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"node_ids is torch.float32\[2\]"):
        DistNodeSplitter()(torch.zeros(2))


def dataset_of(**rows: list[list[int]]) -> SimpleNamespace:
    graph = {}
    for relation, labels in rows.items():
        indptr = np.cumsum([0, *map(len, labels)])
        topo = SimpleNamespace(indptr=torch.from_numpy(indptr), indices=np.array(list(chain(*labels)), np.int64))
        graph["user", relation, "item"] = SimpleNamespace(topo=topo)
    return SimpleNamespace(graph=graph)


def test_labels_are_padded_to_the_longest_row():
    dataset = dataset_of(yes=[[1, 2, 3], [4], [], [5, 6]], no=[[7], [8, 9]])
    yes, no = ("user", "yes", "item"), ("user", "no", "item")
    positives, negatives = get_labels_for_anchor_nodes(dataset, torch.tensor([3, 1, 0]), yes)
    assert negatives is None
    assert positives.tolist() == [[5, 6, -1], [4, -1, -1], [1, 2, 3]]
    positives, negatives = get_labels_for_anchor_nodes(dataset, torch.tensor([3, 1, 2]), yes, no, 1)
    assert (positives.tolist(), negatives.tolist()) == ([[5], [4], [-1]], [[-1], [8], [-1]])
    positives, negatives = get_labels_for_anchor_nodes(dataset, torch.tensor([], dtype=torch.int64), yes, no)
    assert positives.shape == negatives.shape == (0, 0)
    assert get_labels_for_anchor_nodes(dataset, torch.tensor([2]), yes)[0].shape == (1, 0)
    with pytest.raises(IndexError, match=r"ids in 4..4; anchors of .* are 0..3"):
        get_labels_for_anchor_nodes(dataset, torch.tensor([4]), yes)
    with pytest.raises(KeyError, match="did you mean"):
        get_labels_for_anchor_nodes(dataset, torch.tensor([0]), ("user", "yess", "item"))
    with pytest.raises(ValueError, match="labels need edge types of their own"):
        get_labels_for_anchor_nodes(SimpleNamespace(graph=None), torch.tensor([0]), yes)


def test_padded_labels_are_those_of_a_loop(rng: np.random.Generator):
    for limit in (None, 1, 3, 50):
        counts = rng.integers(0, 6, 30)
        indptr, indices = torch.from_numpy(np.cumsum([0, *counts])), torch.from_numpy(rng.integers(0, 99, counts.sum()))
        anchors = torch.from_numpy(rng.integers(0, 35, 20))
        rows = [
            indices[indptr[a] : indptr[a + 1]].tolist()[:limit] if a < 30 else [] for a in map(int, anchors)
        ]  # fmt: skip
        width = max(map(len, rows))
        found = padded_labels(anchors, indptr, indices, limit)
        assert found.tolist() == [row + [-1] * (width - len(row)) for row in rows]


def test_limits_of_labels_are_integers_above_0():
    name = data_splitters.MAX_LABELS_PER_ANCHOR_NODE_RUNTIME_ARG
    assert name == "max_labels_per_anchor_node"
    assert validate_max_labels_per_anchor_node(None) is None
    assert validate_max_labels_per_anchor_node(3) == 3
    assert get_max_labels_per_anchor_node_from_runtime_args({}) is None
    assert get_max_labels_per_anchor_node_from_runtime_args({name: "7"}) == 7
    with pytest.raises(ValueError, match=f"{name} is 0"):
        validate_max_labels_per_anchor_node(0)
    for text in ("0", "-2", "many"):
        with pytest.raises(ValueError, match=f"{name} is '{text}'; it must be an integer, 1 or above"):
            get_max_labels_per_anchor_node_from_runtime_args({name: text})


def test_some_edges_become_labels():
    edges = torch.stack([torch.arange(10), torch.arange(10) + 50])
    drawn = select_ssl_positive_label_edges(edges, 0.45, generator=torch.Generator().manual_seed(3))
    assert drawn.shape == (2, 4)
    assert (drawn[1] - drawn[0]).tolist() == [50] * 4
    assert len(set(drawn[0].tolist())) == 4
    again = select_ssl_positive_label_edges(edges, 0.45, generator=torch.Generator().manual_seed(3))
    assert again.tolist() == drawn.tolist()
    assert select_ssl_positive_label_edges(edges, 1).shape == (2, 10)
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match="positive_label_percentage is"):
            select_ssl_positive_label_edges(edges, share)
    with pytest.raises(ValueError, match="wanted int64"):
        select_ssl_positive_label_edges(edges.T, 0.5)
