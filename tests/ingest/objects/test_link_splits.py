"""Checks that links of PyG's ``RandomLinkSplit`` become edge types and splits, each link once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

import hopstream
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.schema import EDGE, EdgeType

LIKES, LIKED, KNOWS = ("user", "likes", "item"), ("item", "rev_likes", "user"), ("user", "knows", "user")
NAMES = ("train", "val", "test")


def edges(num_nodes: int, num_edges: int) -> torch.Tensor:
    numbers = torch.randperm(num_nodes * num_nodes, generator=torch.Generator().manual_seed(1))[:num_edges]
    return torch.stack([numbers // num_nodes, numbers % num_nodes])


def untyped(**options: Any) -> list[Data]:
    torch.manual_seed(0)
    pairs = edges(20, 60)
    both = torch.cat([pairs, pairs.flip(0)], dim=1).unique(dim=1)
    return list(RandomLinkSplit(**options)(Data(x=torch.ones(20, 2), edge_index=both)))


def links(data: Any, *, has_class_0: bool = False) -> tuple[Counter[Any], Counter[Any]]:
    """Positive links with their labels, and negative ones, of one store of PyG's."""
    sides: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    for kind in ("", "pos_", "neg_"):
        if f"{kind}edge_label_index" in data:
            ends, labels = data[f"{kind}edge_label_index"].tolist(), data[f"{kind}edge_label"].tolist()
            for link in zip(*ends, labels, strict=True):
                is_negative = kind == "neg_" or (kind == "" and link[2] == 0 and not has_class_0)
                sides[is_negative][link] += 1
    return sides


def kept(graph: Graph, edge_type: EdgeType, split: str, label: float) -> Counter[Any]:
    if edge_type not in graph.edges or split not in graph.edge_splits[edge_type]:
        return Counter()
    table, keys = graph.edges[edge_type], graph.edge_splits[edge_type][split]
    labels = table.features["label"][keys].tolist() if "label" in table.features else [label] * len(keys)
    return Counter(zip(table.src_keys[keys].tolist(), table.dst_keys[keys].tolist(), labels, strict=True))


def check(graph: Graph, edge_type: EdgeType, stores: list[Any], class_0: tuple[str, ...] = ()) -> None:
    src, relation, dst = edge_type
    assert graph.edges[edge_type].num_edges == stores[0].edge_index.shape[1]
    for name, store in zip(NAMES, stores, strict=True):
        positive, negative = links(store, has_class_0=name in class_0)
        assert kept(graph, (src, relation + "_label", dst), name, 1.0) == positive
        assert kept(graph, (src, relation + "_negative", dst), name, 0.0) == negative


@pytest.mark.parametrize(
    "options",
    [
        {}, {"is_undirected": True}, {"add_negative_train_samples": False}, {"split_labels": True},
        {"split_labels": True, "add_negative_train_samples": False}, {"neg_sampling_ratio": 0.0}, {"num_val": 0.0},
        {"disjoint_train_ratio": 0.3},
    ],
    ids=str,
)  # fmt: skip
def test_links_are_kept(options: dict[str, Any]):
    objects = untyped(**options)
    graph = hopstream.read_graph(objects)
    check(graph, EDGE, objects)
    assert all(of == (EDGE,) for of in graph.label_types.values())


def classes(num_classes: int = 4, **options: Any) -> list[Data]:
    torch.manual_seed(0)
    labels = torch.arange(120) % num_classes
    return list(RandomLinkSplit(**options)(Data(x=torch.ones(20, 2), edge_index=edges(20, 120), edge_label=labels)))


@pytest.mark.parametrize(
    "options, class_0",
    [
        ({"neg_sampling_ratio": 0.0}, NAMES), ({"neg_sampling_ratio": 0.0, "disjoint_train_ratio": 0.3}, NAMES),
        ({"neg_sampling_ratio": 0.0, "num_val": 0.0}, NAMES), ({"neg_sampling_ratio": 0.0, "num_classes": 1}, NAMES),
        ({"neg_sampling_ratio": 0.0, "split_labels": True}, ()), ({}, ()), ({"num_val": 0.0}, ()),
        ({"add_negative_train_samples": False}, ("train",)), ({"neg_sampling_ratio": 0.3}, ()),
    ],
    ids=str,
)  # fmt: skip
def test_label_0_is_a_class_without_negatives(options: dict[str, Any], class_0: tuple[str, ...]):
    objects = classes(**options)
    graph = hopstream.read_graph(objects)
    check(graph, EDGE, objects, class_0)
    table = graph.edges["node", "to_label", "node"]
    assert "edge_label" not in table.features
    assert table.features.get("label", np.empty(0, np.int64)).dtype == np.int64


def test_labels_ambiguous_with_negatives_are_refused():
    objects = classes(neg_sampling_ratio=0.0, num_val=0.0)
    order = objects[2].edge_label.argsort(descending=True)
    objects[2].edge_label, objects[2].edge_label_index = (
        objects[2].edge_label[order], objects[2].edge_label_index[:, order],
    )  # fmt: skip
    with pytest.raises(SchemaError, match=r"object for test has \d+ links with label 0, .*split_labels=True"):
        hopstream.read_graph(objects)
    objects = classes()
    objects[0].edge_label_index[:, -1] = objects[0].edge_index[:, 0]
    with pytest.raises(SchemaError, match=r"object for train has \d+ links with label 0, .*split_labels=True"):
        hopstream.read_graph(objects)


def test_labels_that_are_raised_in_some_splits_only_are_named(caplog: pytest.LogCaptureFixture):
    hopstream.read_graph(classes())
    assert not caplog.messages
    hopstream.read_graph(classes(add_negative_train_samples=False))
    assert caplog.messages[0].startswith("labels of node__to__node differ in meaning between splits")


def test_links_of_several_classes_are_loaded(tmp_path: Path):
    graph = hopstream.read_graph(classes(neg_sampling_ratio=0.0))
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=2, method="hash")
    label = ("node", "to_label", "node")
    labels = graph.edges[label].features["label"][graph.edge_splits[label]["test"]]
    with hopstream.LinkNeighborLoader(
        tmp_path / "parts", [5], (label, "test"), edge_label=labels, batch_size=7
    ) as loader:
        found: Counter[Any] = Counter()
        for batch in loader:
            ends = batch["node"].n_id[batch[label].edge_label_index]
            found.update(zip(*ends.tolist(), batch[label].edge_label.tolist(), strict=True))
    assert found == kept(graph, label, "test", 1)


def test_reverses_of_any_name_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    torch.manual_seed(0)
    liked_by, buys = ("item", "liked_by", "user"), ("item", "bought_by", "user")
    data = HeteroData(user={"num_nodes": 20}, item={"num_nodes": 20})
    data[LIKES].edge_index, data[buys].edge_index = edges(20, 80), edges(20, 81)
    unmatched = RandomLinkSplit(edge_types=[LIKES], rev_edge_types=[None])(data)
    assert hopstream.read_graph(unmatched).label_types["user", "likes_label", "item"] == (LIKES,)
    assert len(caplog.messages) == 1 and "item__bought_by__user" in caplog.messages[0]
    assert "reverse_types" in caplog.messages[0]
    data[liked_by].edge_index = data[LIKES].edge_index.flip(0)[:, torch.randperm(80)]
    objects = RandomLinkSplit(edge_types=[LIKES], rev_edge_types=[liked_by])(data)
    graph = hopstream.read_graph(objects)
    assert len(caplog.messages) == 1
    label = ("user", "likes_label", "item")
    assert graph.label_types[label] == (LIKES, liked_by)
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=2, method="hash")
    with hopstream.LinkNeighborLoader(
        tmp_path / "parts", [-1], (label, "train"), batch_size=8, exclude_links=True
    ) as loader:
        for batch in loader:
            links_of_batch = set(map(tuple, batch[label].edge_label_index.T.tolist()))
            assert not links_of_batch & set(map(tuple, batch[LIKES].edge_index.T.tolist()))
            assert not links_of_batch & set(map(tuple, batch[liked_by].edge_index.flip(0).T.tolist()))


def test_links_of_several_types_are_kept():
    torch.manual_seed(0)
    data = HeteroData(user={"num_nodes": 20}, item={"num_nodes": 20})
    data[LIKES].edge_index, data[LIKES].edge_label = edges(20, 80), torch.arange(80) % 4
    data[LIKED].edge_index, data[KNOWS].edge_index = edges(20, 80).flip(0), edges(20, 50)
    objects = RandomLinkSplit(edge_types=[LIKES, KNOWS], rev_edge_types=[LIKED, None])(data)
    graph = hopstream.read_graph(objects)
    for edge_type in (LIKES, KNOWS):
        check(graph, edge_type, [one[edge_type] for one in objects])
    assert graph.label_types["user", "likes_label", "item"] == (LIKES, LIKED)


def test_loaders_take_links_and_do_not_follow_them(tmp_path: Path):
    objects = untyped()
    hopstream.write_parts(hopstream.read_graph(objects), tmp_path / "parts", num_parts=2, method="hash")
    label, negative = ("node", "to_label", "node"), ("node", "to_negative", "node")
    for edge_type, wanted in zip((label, negative), links(objects[2]), strict=True):
        found: Counter[Any] = Counter()
        with hopstream.LinkNeighborLoader(tmp_path / "parts", [5], (edge_type, "test"), batch_size=7) as loader:
            for batch in loader:
                ends = batch["node"].n_id[batch[edge_type].edge_label_index]
                found.update(zip(*ends.tolist(), strict=True))
                assert batch[label].edge_index.shape[1] == batch[negative].edge_index.shape[1] == 0
        assert found == Counter((src, dst) for src, dst, _ in wanted.elements())


def test_invalid_link_splits_are_refused():
    train, val, test = untyped()
    with pytest.raises(SchemaError, match="got 2 data objects; give one, or the three"):
        hopstream.read_graph([train, val])  # type: ignore[arg-type]
    plain = Data(x=train.x, edge_index=train.edge_index)
    with pytest.raises(SchemaError, match="no data object has edge_label_index"):
        hopstream.read_graph([plain, plain, plain])
    test.edge_label = test.edge_label[1:]
    with pytest.raises(SchemaError, match=r"edge_label is float32\[\d+\]; wanted one number for each of \d+ links"):
        hopstream.read_graph([train, val, test])
