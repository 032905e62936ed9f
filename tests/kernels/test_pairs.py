"""Is the first edge between two nodes found, and none where there is none?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.memory import address_table
from hopstream.kernels.pairs import find_edges


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_pairs_are_found_as_a_scan_finds_them(rng: np.random.Generator, dtype: type) -> None:
    indices = [rng.integers(0, 6, 50).astype(dtype), rng.integers(0, 6, 30).astype(dtype)]
    edge_offsets = np.array([0, 50, 80])
    parts = rng.integers(0, 2, 200).astype(np.int32)
    starts = rng.integers(0, 25, 200)
    degrees = rng.integers(0, 6, 200)
    neighbor_ids = rng.integers(0, 7, 200)
    edge_ids = np.empty(200, np.int64)
    item = np.empty(0, dtype)
    find_edges(neighbor_ids, address_table(indices), item, parts, starts, degrees, edge_offsets, edge_ids)
    for i, (part, start, degree, neighbor) in enumerate(zip(parts, starts, degrees, neighbor_ids, strict=True)):
        row = indices[part][start : start + degree].tolist()
        wanted = edge_offsets[part] + start + row.index(neighbor) if neighbor in row else -1
        assert edge_ids[i] == wanted
