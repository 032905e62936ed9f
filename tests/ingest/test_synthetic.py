"""Checks that R-MAT graphs are whole, repeatable, skewed, and worth learning on."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest import synthetic
from hopstream.ingest.synthetic import rmat_graph
from hopstream.schema import EDGE, NODE


def _arrays(graph: Graph) -> list[np.ndarray]:
    edges = graph.edges[EDGE]
    return [edges.src_keys, edges.dst_keys, *graph.nodes[NODE].features.values(), *graph.splits[NODE].values()]


def test_shape_and_schema():
    graph = rmat_graph(10, edges_per_node=7, num_features=5, num_classes=3).check()
    assert graph.schema.is_homogeneous
    assert graph.nodes[NODE].num_nodes == 1024
    assert graph.edges[EDGE].num_edges == 7 * 1024
    assert str(graph.schema.feature(NODE, "x")) == "float32[rows, 5]"
    assert str(graph.schema.feature(NODE, "y")) == "int64[rows]"
    assert graph.schema.splits[NODE] == ("train", "val", "test")


def test_features_and_labels_are_made_only_if_requested():
    assert list(rmat_graph(3).nodes[NODE].features) == []
    assert list(rmat_graph(3, num_features=2).nodes[NODE].features) == ["x"]
    assert list(rmat_graph(3, num_classes=2).nodes[NODE].features) == ["y"]


def test_equal_arguments_give_equal_graphs_for_any_chunks(monkeypatch: pytest.MonkeyPatch):
    one = rmat_graph(8, num_features=3, num_classes=4, rng_seed=5)
    monkeypatch.setattr(synthetic, "CHUNK_EDGES", 100)
    again = rmat_graph(8, num_features=3, num_classes=4, rng_seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(_arrays(one), _arrays(again), strict=True))


def test_another_seed_gives_another_graph():
    one, other = (_arrays(rmat_graph(8, num_features=3, num_classes=4, rng_seed=s)) for s in (5, 6))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_degrees_are_skewed_and_ids_are_shuffled():
    graph = rmat_graph(12, edges_per_node=16)
    degrees = np.bincount(graph.edges[EDGE].dst_keys, minlength=4096)
    assert degrees.max() > 30 * degrees.mean()
    assert (degrees == 0).mean() > 0.1
    assert abs(np.corrcoef(degrees, np.arange(4096))[0, 1]) < 0.1


def test_splits_contain_every_node():
    splits = rmat_graph(12).splits[NODE]
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(4096))
    for name, share in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        assert abs(len(splits[name]) - 4096 * share) < 5 * np.sqrt(4096 * share * (1 - share))


def test_labels_can_be_learned_from_features_and_neighbours():
    graph = rmat_graph(12, num_features=16, num_classes=8)
    labels, x = (graph.nodes[NODE].features[name] for name in ("y", "x"))
    edges = graph.edges[EDGE]
    train, test = graph.splits[NODE]["train"], graph.splits[NODE]["test"]
    centroids = np.stack([x[train][labels[train] == c].mean(axis=0) for c in range(8)])
    distances = ((x[test][:, None] - centroids[None]) ** 2).sum(axis=2)
    accuracy = (distances.argmin(axis=1) == labels[test]).mean()
    homophily = (labels[edges.src_keys] == labels[edges.dst_keys]).mean()
    assert np.bincount(labels).tolist() == [512] * 8
    assert 0.3 < accuracy < 0.95  # chance is 0.125; features alone leave something to the neighbours
    assert (
        abs(homophily - 0.62**3) < 0.02
    )  # a node's three top bits are its label; an edge keeps each with a + d = 0.62


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 33}, r"scale is 33; scales are 0\.\.32"),
        ({"scale": -1}, "scale is -1"),
        ({"scale": 3, "edges_per_node": -2}, "edges_per_node is -2"),
        ({"scale": 3, "num_features": -1}, "num_features is -1"),
        ({"scale": 3, "num_classes": 9}, r"num_classes is 9; a graph of 8 nodes has 0\.\.8 classes"),
    ],
    ids=["scale", "negative", "edges", "features", "classes"],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], message: str):
    with pytest.raises(SettingsError, match=message):
        rmat_graph(**settings)


@pytest.mark.parametrize("scale", [0, 1])
def test_the_smallest_graphs(scale: int):
    graph = rmat_graph(scale, edges_per_node=2, num_features=1, num_classes=1).check()
    assert graph.nodes[NODE].num_nodes == 1 << scale
