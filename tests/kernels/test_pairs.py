"""Checks that the first edge between two nodes is found, and none if there is none."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.lookups import find_edges
from hopstream.kernels.memory import address_table
from tests.kernels.draw_inputs import make_nodes, make_tables


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_pairs_are_found_as_a_scan_finds_them(rng: np.random.Generator, dtype: type) -> None:
    indices = [rng.integers(0, 6, 50).astype(dtype), rng.integers(0, 6, 30).astype(dtype)]
    edge_offsets = np.array([0, 50, 80])
    parts = rng.integers(0, 2, 200).astype(np.int32)
    starts = rng.integers(0, 25, 200)
    degrees = rng.integers(0, 6, 200)
    neighbor_ids = rng.integers(0, 7, 200)
    edge_ids = np.empty(200, np.int64)
    tables = make_tables(dtype, indices=address_table(indices), edge_offsets=edge_offsets)
    nodes = make_nodes(np.arange(200), parts=parts, starts=starts, degrees=degrees)
    find_edges(tables, nodes, neighbor_ids, edge_ids)
    for i, (part, start, degree, neighbor) in enumerate(zip(parts, starts, degrees, neighbor_ids, strict=True)):
        row = indices[part][start : start + degree].tolist()
        wanted = edge_offsets[part] + start + row.index(neighbor) if neighbor in row else -1
        assert edge_ids[i] == wanted
