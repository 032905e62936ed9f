"""Ring graph of GraphLearn-for-PyTorch's tests, and checks of batches around its nodes.

The ring has 40 nodes, edges from v to v+1 and from v to v+2, and features equal to ids.

With types, users lead to items v+1 and v+2 and items to users likewise. With labels, v has the labels v+5 and v+7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE

NUM_NODES = 40
SPLITS = {"train": range(0, NUM_NODES, 2), "val": range(1, NUM_NODES, 4), "test": range(3, NUM_NODES, 4)}
TO_ITEM, TO_USER = ("user", "to", "item"), ("item", "to", "user")
LABELS = (NODE, f"{EDGE[1]}_gigl_positive", NODE)


def ring_graph(kind: str = "homogeneous") -> Graph:
    """Ring with features of 8 numbers, labels and three splits; ``kind`` adds types or label edges."""
    ids = np.arange(NUM_NODES)
    near = np.repeat(ids, 2)
    edges, labels = (np.stack([near, (near + np.tile(steps, NUM_NODES)) % NUM_NODES]) for steps in ([1, 2], [5, 7]))
    rows = {"x": np.repeat(ids[:, None], 8, axis=1).astype(np.float32), "y": ids % 4}
    splits = {name: np.array(of_split) for name, of_split in SPLITS.items()}
    if kind == "typed":
        return graph_from_arrays(
            {TO_ITEM: edges, TO_USER: edges}, num_nodes={"user": NUM_NODES, "item": NUM_NODES},
            node_features={"user": rows, "item": {"x": rows["x"]}}, splits={"user": splits},
        )  # fmt: skip
    return graph_from_arrays(
        {EDGE: edges, **({LABELS: labels} if kind == "labeled" else {})}, num_nodes={NODE: NUM_NODES},
        node_features={NODE: rows}, edge_features={EDGE: {"edge_attr": edges.T.astype(np.float32)}},
        splits={NODE: splits},
    )  # fmt: skip


def write_ring(folder: Path, num_parts: int, method: str = "hash", kind: str = "homogeneous", **options: Any) -> Path:
    """The ring as a dataset."""
    write_parts(ring_graph(kind), folder, num_parts=num_parts, method=method, direction="both", **options)
    return folder


def write_range_ring(folder: Path, num_parts: int) -> Path:
    """The ring in parts of consecutive nodes."""
    owners = np.arange(NUM_NODES) * num_parts // NUM_NODES
    write_parts(ring_graph(), folder, owners={NODE: owners}, num_parts=num_parts, direction="both")
    return folder


def check_ring_batch(node: Any, edge_index: Any, x: Any, batch: Any) -> None:
    """Check, from ids alone, a batch of tensors that followed edges backwards from every seed."""
    ids = node.tolist()
    assert len(set(ids)) == len(ids) and ids[: len(batch)] == batch.tolist()
    assert (x == node[:, None]).all() and set(range(len(batch))) <= set(edge_index[1].tolist())
    for src, dst in edge_index.t().tolist():
        assert (ids[dst] - ids[src]) % NUM_NODES in (1, 2)


def check_batch(data: Any) -> list[int]:
    """Check a batch of GiGL's loaders from ids alone; return its seeds.

    The seeds are nodes, or users in a graph with types. The batch may have labels.
    """
    if "user" in data.to_dict():
        user, item = data["user"], data["item"]
        for (src, _, dst), edges in ((t, data[t].edge_index) for t in (TO_ITEM, TO_USER)):
            near, far = data[src].node[edges[0]], data[dst].node[edges[1]]
            assert set(((far - near) % NUM_NODES).tolist()) <= {1, 2}
        assert user.node[: len(user.batch)].equal(user.batch)
        assert set(range(len(user.batch))) <= set(data[TO_USER].edge_index[1].tolist())
        for store in (user, item):
            assert (store.x == store.node[:, None]).all() and len(set(store.node.tolist())) == len(store.node)
        assert (user.y == user.node % 4)[: len(user.batch)].all()
        seeds: list[int] = user.batch.tolist()
        return seeds
    check_ring_batch(data.node, data.edge_index, data.x, data.batch)
    assert (data.y == data.node % 4)[: len(data.batch)].all()
    if "y_positive" in data:
        anchors, labels = data.node[data.y_positive]
        assert anchors.tolist() == data.batch.repeat_interleave(2).tolist()
        assert set(((labels - anchors) % NUM_NODES).tolist()) == {5, 7}
    found: list[int] = data.batch.tolist()
    return found
