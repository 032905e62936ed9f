"""The links of PyG's ``RandomLinkSplit`` become edge types and splits, each link once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

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


def links(data: Any) -> tuple[Counter[Any], Counter[Any]]:
    """Positive links with their labels, and negative ones, of one store of PyG's."""
    pairs: list[tuple[int, int, float]] = []
    for kind in ("", "pos_", "neg_"):
        if f"{kind}edge_label_index" in data:
            ends, labels = data[f"{kind}edge_label_index"].tolist(), data[f"{kind}edge_label"].tolist()
            pairs += zip(*ends, labels, strict=True)
    return Counter(p for p in pairs if p[2] > 0), Counter(p for p in pairs if p[2] == 0)


def kept(graph: Graph, edge_type: EdgeType, split: str, label: float) -> Counter[Any]:
    if edge_type not in graph.edges or split not in graph.edge_splits[edge_type]:
        return Counter()
    table, keys = graph.edges[edge_type], graph.edge_splits[edge_type][split]
    labels = table.features["edge_label"][keys] if "edge_label" in table.features else [label] * len(keys)
    return Counter(zip(table.src_keys[keys].tolist(), table.dst_keys[keys].tolist(), map(float, labels), strict=True))


def check(graph: Graph, edge_type: EdgeType, stores: list[Any]) -> None:
    src, relation, dst = edge_type
    assert graph.edges[edge_type].num_edges == stores[0].edge_index.shape[1]
    for name, store in zip(NAMES, stores, strict=True):
        positive, negative = links(store)
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


def test_loaders_take_them_and_do_not_follow_them(tmp_path: Path):
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


def test_what_is_no_split_of_links_is_refused():
    train, val, test = untyped()
    with pytest.raises(SchemaError, match="got 2 data objects; give one, or the three"):
        hopstream.read_graph([train, val])  # type: ignore[arg-type]
    plain = Data(x=train.x, edge_index=train.edge_index)
    with pytest.raises(SchemaError, match="no data object has links"):
        hopstream.read_graph([plain, plain, plain])
    test.edge_label = test.edge_label[1:]
    with pytest.raises(SchemaError, match=r"edge_label is float32\[\d+\]; wanted a number for each of \d+ links"):
        hopstream.read_graph([train, val, test])
