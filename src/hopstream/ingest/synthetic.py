"""Makes R-MAT graphs, for benchmarks and demos.

R-MAT graphs have skewed degrees and communities like real graphs, and scale to any size.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.engine.machine import num_processors
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.kernels.hashing import derive_seed, hash_keys, permute_range
from hopstream.kernels.rmat import draw_edges, fill_features
from hopstream.schema import EDGE, NODE

MAX_SCALE = 32
CHUNK_EDGES = 1 << 20
NOISE = np.float32(3.0)
"""Standard deviation of the noise in features. Class centroids are corners of the cube with coordinates -1 and 1."""
SPLIT_SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}


def rmat_graph(
    scale: int, *, edges_per_node: int = 32, num_features: int = 0, num_classes: int = 0, rng_seed: int = 0
) -> Graph:
    """Make an R-MAT graph (a = .57, b = .19, c = .19) with one node type and one edge type.

    Equal arguments give equal graphs on every machine. As usual for R-MAT, there are parallel edges, self loops and
    isolated nodes. A node's label follows its community, so neighbours tend to share labels. A node's features are the
    centroid of its class plus noise: one node's features predict its label poorly, those of a neighbourhood predict it
    well.

    Args:
        scale: The graph has ``2**scale`` nodes, at most 2**32.
        edges_per_node: The graph has ``edges_per_node * 2**scale`` directed edges.
        num_features: Width of the float32 feature ``x``; 0 for no feature.
        num_classes: Number of equally frequent values of the int64 feature ``y``; 0 for no labels. Without labels all
            nodes are of one class, so ``x`` tells nothing about a node.
        rng_seed: Seed of all random draws.

    Returns:
        A graph whose nodes are in splits ``train`` (60 %), ``val`` (20 %) and ``test`` (20 %).

    Raises:
        SettingsError: An argument is out of range.
    """
    _check_settings(scale, edges_per_node, num_features, num_classes)
    num_nodes = 1 << scale
    key_of = np.empty(num_nodes, np.int64)
    permute_range(0, num_nodes, np.uint64(derive_seed(rng_seed, "keys")), key_of)
    features: dict[str, NDArray[np.float32] | IntArray] = {}
    labels = np.zeros(num_nodes, np.int64)
    if num_classes:
        labels[key_of] = np.arange(num_nodes, dtype=np.int64) * num_classes // num_nodes
    if num_features:
        features["x"] = _make_features(labels, max(1, num_classes), num_features, rng_seed)
    if num_classes:
        features["y"] = labels
    src_keys, dst_keys = _make_edges(key_of, scale, edges_per_node, rng_seed)
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features=features)},
        edges={EDGE: EdgeTable(src_keys=src_keys, dst_keys=dst_keys)},
        splits={NODE: _make_splits(num_nodes, rng_seed)},
    )


def _check_settings(scale: int, edges_per_node: int, num_features: int, num_classes: int) -> None:
    if not 0 <= scale <= MAX_SCALE:
        raise SettingsError(f"scale is {scale}; scales are 0..{MAX_SCALE}")
    for name, count in (("edges_per_node", edges_per_node), ("num_features", num_features)):
        if count < 0:
            raise SettingsError(f"{name} is {count}; wanted 0 or more")
    if not 0 <= num_classes <= 1 << scale:
        raise SettingsError(f"num_classes is {num_classes}; a graph of {1 << scale} nodes has 0..{1 << scale} classes")


def _make_edges(key_of: IntArray, scale: int, edges_per_node: int, rng_seed: int) -> tuple[IntArray, IntArray]:
    num_edges = edges_per_node << scale
    src_keys, dst_keys = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64)
    edge_seed = np.uint64(derive_seed(rng_seed, "edges"))

    def draw(first: int) -> None:
        window = slice(first, first + CHUNK_EDGES)
        draw_edges(first, scale, edge_seed, key_of, src_keys[window], dst_keys[window])

    draw_edges(0, scale, edge_seed, key_of, src_keys[:0], dst_keys[:0])  # compiled before threads start
    with ThreadPoolExecutor(num_processors()) as pool:
        list(pool.map(draw, range(0, num_edges, CHUNK_EDGES)))
    return src_keys, dst_keys


def _make_features(labels: IntArray, num_classes: int, num_features: int, rng_seed: int) -> NDArray[np.float32]:
    centroids = np.empty(num_classes * num_features, np.uint64)
    hash_keys(np.arange(centroids.size, dtype=np.int64), np.uint64(derive_seed(rng_seed, "centroids")), centroids)
    signs = np.where(centroids >> np.uint64(63), np.float32(1), np.float32(-1)).reshape(num_classes, num_features)
    out = np.empty((len(labels), num_features), np.float32)
    fill_features(0, np.uint64(derive_seed(rng_seed, "features")), labels, signs, NOISE, out)
    return out


def _make_splits(num_nodes: int, rng_seed: int) -> dict[str, IntArray]:
    """Draw each node's split independently; the shares hold on average only."""
    draws = np.empty(num_nodes, np.uint64)
    hash_keys(np.arange(num_nodes, dtype=np.int64), np.uint64(derive_seed(rng_seed, "splits")), draws)
    bounds = np.cumsum([0.0, *SPLIT_SHARES.values()])
    position = np.searchsorted(bounds[1:-1], draws / 2.0**64, side="right")
    return {name: np.flatnonzero(position == i) for i, name in enumerate(SPLIT_SHARES)}
