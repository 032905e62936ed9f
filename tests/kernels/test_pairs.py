"""Checks that the first edge between two nodes is found, and none if there is none."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.lookups import NO_INDEX, RowIndex, find_edges, index_rows
from hopstream.kernels.memory import address_table
from tests.kernels.draw_inputs import make_nodes, make_tables


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("min_degree", [None, 1, 4])
def test_pairs_are_found_as_a_scan_finds_them(rng: np.random.Generator, dtype: type, min_degree: int | None) -> None:
    """Without an index, with one of all rows, and with one of long rows only."""
    indices = [rng.integers(0, 6, 50).astype(dtype), rng.integers(0, 6, 30).astype(dtype)]
    edge_offsets = np.array([0, 50, 80])
    parts = rng.integers(0, 2, 200).astype(np.int32)
    starts = rng.integers(0, 25, 200)
    degrees = rng.integers(0, 6, 200)
    neighbor_ids = rng.integers(0, 7, 200)
    edge_ids = np.empty(200, np.int64)
    tables = make_tables(dtype, indices=address_table(indices), edge_offsets=edge_offsets)
    nodes = make_nodes(np.arange(200), parts=parts, starts=starts, degrees=degrees)
    index = NO_INDEX
    if min_degree is not None:
        is_long = degrees >= min_degree
        long = make_nodes(
            np.flatnonzero(is_long), parts=parts[is_long], starts=starts[is_long], degrees=degrees[is_long]
        )
        places, entries = np.full((512, 2), -1), np.zeros(int((long.degrees * 3 // 2 + 1).sum()), np.uint32)
        index_rows(tables, long, places, entries)
        index = RowIndex(min_degree, places.ctypes.data, len(places), entries.ctypes.data)
    find_edges(tables, index, nodes, neighbor_ids, edge_ids)
    for i, (part, start, degree, neighbor) in enumerate(zip(parts, starts, degrees, neighbor_ids, strict=True)):
        row = indices[part][start : start + degree].tolist()
        wanted = edge_offsets[part] + start + row.index(neighbor) if neighbor in row else -1
        assert edge_ids[i] == wanted


def test_long_rows_are_looked_up_in_their_index(rng: np.random.Generator) -> None:
    """Many neighbours occur twice; half of those looked for occur nowhere."""
    row = rng.integers(0, 3000, 4000).astype(np.uint32)
    tables = make_tables(np.uint32, indices=address_table([row]), edge_offsets=np.array([0, 4000]))
    ends = {"parts": np.zeros(6000, np.int32), "starts": np.zeros(6000, np.int64), "degrees": np.full(6000, 4000)}
    nodes = make_nodes(np.full(6000, 7), **ends)
    places, entries = np.full((4, 2), -1), np.zeros(6001, np.uint32)
    index_rows(tables, make_nodes(np.array([7]), **{name: each[:1] for name, each in ends.items()}), places, entries)
    edge_ids = np.empty(6000, np.int64)
    find_edges(tables, RowIndex(1, places.ctypes.data, 4, entries.ctypes.data), nodes, np.arange(6000), edge_ids)
    first = {int(neighbor): at for at, neighbor in reversed(list(enumerate(row)))}
    assert edge_ids.tolist() == [first.get(neighbor, -1) for neighbor in range(6000)]
