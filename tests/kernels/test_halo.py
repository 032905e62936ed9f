"""Checks that the kernels of halos mark, spread, find and number as slow code does."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.halo import (
    clear_range,
    count_marks,
    find_edge_rows,
    find_rows,
    list_marks,
    mark_above,
    mark_ids,
    mark_neighbors,
    mark_range,
    number_edges,
    split_replicated,
    spread_chances,
    weigh_chances,
)
from hopstream.kernels.memory import address_table


def rows_of(rng, num_rows, num_others, dtype=np.uint32):
    degrees = rng.integers(0, 6, num_rows)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return indptr, rng.integers(0, num_others, indptr[-1]).astype(dtype)


def listed(marks):
    """All bits, read in ranges of one word each."""
    found, word, out = [], 0, np.empty(64, np.int64)
    while word < len(marks):
        word, count = list_marks(marks, word, out)
        found += out[:count].tolist()
    assert len(found) == count_marks(marks)
    return found


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_neighbors_are_marked(dtype):
    rng = np.random.default_rng(1)
    parts = [rows_of(rng, n, 130, dtype) for n in (9, 0, 14)]
    offsets = np.array([0, 9, 9, 23])
    tables = [address_table([part[i] for part in parts]) for i in (0, 1)]
    for num_ids in (0, 1, 7):
        ids, marks = rng.integers(0, 23, num_ids), np.zeros(3, np.uint64)
        assert mark_neighbors(ids, offsets, *tables, np.empty(0, dtype), 130, marks) == 0
        wanted = set()
        for i in ids.tolist():
            part = 0 if i < 9 else 2
            indptr, indices = parts[part]
            row = i - offsets[part]
            wanted |= set(indices[indptr[row] : indptr[row + 1]].tolist())
        assert listed(marks) == sorted(wanted)
        clear_range(marks, 60, 70)
        assert listed(marks) == sorted(wanted - set(range(60, 70)))
    ids, full = np.arange(23), np.zeros(3, np.uint64)
    high = max(int(part[1].max(initial=0)) for part in parts)
    assert mark_neighbors(ids, offsets, *tables, np.empty(0, dtype), high, full) < 0, "a neighbour is out of range"
    parts[2][0][3] = 10_000
    assert mark_neighbors(ids, offsets, *tables, np.empty(0, dtype), 130, full) == -1 - 11


def test_sets_of_bits():
    marks = np.zeros(4, np.uint64)
    mark_range(marks, 60, 130)
    mark_ids(np.array([0, 63, 64, 255]), marks)
    assert listed(marks) == [0, *range(60, 130), 255]
    out = np.empty(70, np.int64)
    assert list_marks(marks, 0, out) == (2, 69) and out[:6].tolist() == [0, 60, 61, 62, 63, 64]
    assert list_marks(marks, 1, out) == (2, 64) and list_marks(marks, 4, out) == (4, 0)


def test_rows_are_weighed_by_the_bits_of_their_chances():
    rng = np.random.default_rng(5)
    chances = np.where(rng.random(50) < 0.2, 0, rng.choice([1.0, 0.5, 0.3, 1e-9, 5e-324], 50))
    bits, row_bytes = chances.view(np.uint64), rng.integers(1, 9, 50)
    for shift, prefix in ((48, 0), (32, 0x3FE0), (16, 0x3FD33333), (0, 0)):
        totals, wanted = np.zeros((2, 1 << 16), np.int64)
        weigh_chances(bits, prefix, shift, row_bytes, totals)
        for value, width in zip(bits.tolist(), row_bytes.tolist(), strict=True):
            if value and value >> (shift + 16) == prefix:
                wanted[value >> shift & 0xFFFF] += width
        assert totals.tolist() == wanted.tolist() and wanted.any()
    marks = np.zeros(2, np.uint64)
    mark_above(bits, 30, int(np.float64(0.3).view(np.uint64)), marks)
    assert listed(marks) == (30 + np.flatnonzero(chances > 0.3)).tolist()


@pytest.mark.parametrize("fanout", [-1, 0, 1, 3, 100])
def test_chances_spread_as_products_of_misses(fanout):
    rng = np.random.default_rng(2)
    indptr, indices = rows_of(rng, 40, 30)
    chances = rng.random(40) * (rng.random(40) < 0.7)
    misses = np.ones(30)
    assert spread_chances(indptr, indices, chances, fanout, misses) == 0
    wanted = [1.0] * 30
    for row in range(40):
        others = indices[indptr[row] : indptr[row + 1]].tolist()
        taken = len(others) if fanout < 0 else min(fanout, len(others))
        for other in others:
            wanted[other] *= 1 - chances[row] * taken / len(others)
    assert np.allclose(misses, wanted, rtol=1e-12)
    indptr[-1] += 1
    chances[-1] = 1
    assert spread_chances(indptr, indices, chances, fanout, misses) == -40


@pytest.mark.parametrize("num_halo", [0, 1, 20, 90])
@pytest.mark.parametrize("shift", [0, 2, 8])
def test_ids_are_found(num_halo, shift):
    rng = np.random.default_rng(num_halo)
    offsets, is_here = np.array([0, 30, 60, 100]), np.array([True, False, False])
    halo_ids = np.sort(rng.choice(100, num_halo, replace=False))
    starts = np.searchsorted(halo_ids, np.arange((100 >> shift) + 2) << shift)
    ids = rng.permutation(100)
    rows = np.full(100, -1)
    rows[:5] = 7777
    find_rows(ids, offsets, is_here, halo_ids, starts, shift, 1000, rows)
    assert (rows[:5] == 7777).all()
    for i, row in zip(ids[5:].tolist(), rows[5:].tolist(), strict=True):
        known = np.flatnonzero(halo_ids == i)
        assert row == (1000 + known[0] if len(known) and i >= 30 else -1)


def test_edges_are_found_and_numbered():
    rng = np.random.default_rng(4)
    owner_indptr, _ = rows_of(rng, 50, 10)
    halo_ids = np.sort(rng.choice(50, 20, replace=False))
    degrees = np.diff(owner_indptr)[halo_ids]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    edge_starts = owner_indptr[halo_ids] + 1000
    wanted = {}
    for row, start in enumerate(edge_starts.tolist()):
        wanted |= {start + k: int(indptr[row]) + k for k in range(degrees[row])}
    offsets, is_here = np.array([0, 1000, 1000 + owner_indptr[-1]]), np.array([True, False])
    edge_ids = np.arange(int(offsets[-1]))
    rows = np.full(len(edge_ids), -1)
    find_edge_rows(edge_ids, offsets, is_here, edge_starts, indptr, 5, rows)
    assert rows.tolist() == [5 + wanted[i] if i in wanted else -1 for i in edge_ids.tolist()]

    places = np.concatenate([np.arange(indptr[row], indptr[row + 1]) for row in range(20)])
    counts = degrees.astype(np.int32)
    halves = [(indptr[:13], edge_starts[:12]), (indptr[12:] - indptr[12], edge_starts[12:])]
    local = np.where(places < indptr[12], places, places - indptr[12])
    number_edges(
        np.arange(20), np.array([0, 12, 20]), address_table([np.ascontiguousarray(h[0]) for h in halves]),
        address_table([np.ascontiguousarray(h[1]) for h in halves]), counts, local,
    )  # fmt: skip
    assert local.tolist() == sorted(wanted)


def test_replicated_ids_are_grouped_last():
    rng = np.random.default_rng(5)
    offsets = np.array([0, 10, 10, 30])
    ids = rng.integers(0, 30, 80)
    rows = np.where(rng.random(80) < 0.4, rng.integers(0, 9, 80), -1)
    starts, positions, out = np.empty(5, np.int64), np.empty(80, np.int64), np.empty(80, np.int64)
    split_replicated(ids, offsets, rows, starts, positions, out)
    groups = [np.flatnonzero((rows < 0) & (ids >= low) & (ids < high)) for low, high in ((0, 10), (10, 10), (10, 30))]
    groups.append(np.flatnonzero(rows >= 0))
    assert positions.tolist() == np.concatenate(groups).tolist()
    assert starts.tolist() == [0, *np.cumsum([len(g) for g in groups]).tolist()]
    assert out.tolist() == np.where(rows >= 0, rows, ids)[positions].tolist()
