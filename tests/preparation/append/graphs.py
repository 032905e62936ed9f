"""Graphs that datasets are grown from in tests of appending."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopstream.dataset.manifest import Manifest
from tests.grown import Grown, grow
from tests.preparation.audit.forging import full_graph

OPTIONS = {
    "direction": "both", "time_attr": "time", "weight_attr": "rating", "neighbor_keys": True,
    "links": ["user__knows__user"],
}  # fmt: skip


def grown_graph(seed: int = 3) -> Grown:
    """Graph in four steps with times, weights, links, and splits of nodes and edges.

    Features have a fixed width, are ragged, or are strings.
    """
    return grow(full_graph(seed), np.random.default_rng(seed))


def written(folder: Path, num_parts: int = 3, num_appends: int = 3, **options: object) -> Manifest:
    """Write the graph with some appends."""
    return grown_graph().write(folder, num_parts, num_appends, **{**OPTIONS, **options})
