"""The ring of GraphLearn-for-PyTorch's tests: 40 nodes, edges v to v+1 and v to v+2, features equal to ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopstream.graph.graph import Graph
from hopstream.ingest.build import graph_from_arrays
from hopstream.partition.layout import write_parts
from hopstream.schema import EDGE, NODE

NUM_NODES = 40


def ring_graph() -> Graph:
    """The ring, with features of 8 numbers, labels, and three splits."""
    src = np.repeat(np.arange(NUM_NODES), 2)
    dst = (src + np.tile([1, 2], NUM_NODES)) % NUM_NODES
    ids = np.arange(NUM_NODES)
    return graph_from_arrays(
        {EDGE: np.stack([src, dst])}, num_nodes={NODE: NUM_NODES},
        node_features={NODE: {"x": np.repeat(ids[:, None], 8, axis=1).astype(np.float32), "y": ids % 4}},
        edge_features={EDGE: {"edge_attr": np.stack([src, dst], axis=1).astype(np.float32)}},
        splits={NODE: {"train": ids[::2], "val": ids[1::4], "test": ids[3::4]}},
    )  # fmt: skip


def write_ring(folder: Path, num_parts: int, method: str = "hash", **options: Any) -> Path:
    """The ring as a dataset."""
    write_parts(ring_graph(), folder, num_parts=num_parts, method=method, direction="both", **options)
    return folder


def write_range_ring(folder: Path, num_parts: int) -> Path:
    """The ring in parts of consecutive nodes."""
    owners = np.arange(NUM_NODES) * num_parts // NUM_NODES
    write_parts(ring_graph(), folder, owners={NODE: owners}, num_parts=num_parts, direction="both")
    return folder


def check_ring_batch(node: Any, edge_index: Any, x: Any, batch: Any) -> None:
    """Check a batch that followed edges backwards from ids alone; arguments are tensors."""
    ids = node.tolist()
    assert len(set(ids)) == len(ids) and ids[: len(batch)] == batch.tolist()
    assert (x == node[:, None]).all()
    for src, dst in edge_index.t().tolist():
        assert (ids[dst] - ids[src]) % NUM_NODES in (1, 2)
