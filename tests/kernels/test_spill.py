"""Checks that the kernels that number nodes and deal out edges agree with slow, obvious code."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import offsets_of
from hopstream.kernels.spill import (
    count_between,
    count_ids,
    find_buckets,
    group_buckets,
    number_nodes,
    place_edges,
    take_ids,
)
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.dispatch_folder import make_buckets


def test_nodes_are_numbered_part_by_part(rng):
    owners = rng.integers(0, 4, 50).astype(np.int32)
    offsets = offsets_of(np.bincount(owners, minlength=4))
    next_ids, ids = offsets[:-1].copy(), np.empty(50, np.uint32)
    number_nodes(owners, next_ids, ids)
    order = np.argsort(owners, kind="stable")
    assert ids[order].tolist() == list(range(50))
    assert next_ids.tolist() == offsets[1:].tolist()


@pytest.mark.parametrize("sizes", [[7, 0, 30], [0, 0, 1], [64], [1, 1, 1, 1], [5, 0, 0, 900, 2]])
@pytest.mark.parametrize("num_buckets", [0, 1, 5, 100])
@pytest.mark.parametrize("guesses", [1, 4, 4096])
def test_every_id_finds_its_bucket(monkeypatch, sizes, num_buckets, guesses):
    monkeypatch.setattr(dispatch_folder, "GUESSES", guesses)
    offsets = offsets_of(np.array(sizes))
    buckets = make_buckets(offsets, num_buckets)
    assert (buckets.starts[0], buckets.starts[-1]) == (0, offsets[-1])
    assert (np.diff(buckets.starts) >= 0).all()
    assert set(offsets.tolist()) <= set(buckets.starts.tolist())
    assert buckets.parts.tolist() == sorted(buckets.parts.tolist())
    assert set(buckets.parts.tolist()) == set(range(len(sizes)))
    assert buckets.part_firsts().tolist() == [*np.searchsorted(buckets.parts, range(len(sizes))), len(buckets)]
    ids = np.arange(offsets[-1]).astype(np.uint32)
    counts, found = np.zeros(len(buckets), np.int64), np.empty(len(ids), np.uint32)
    find_buckets(ids, buckets.starts, buckets.guesses, buckets.shift, counts, found)
    for node, bucket in zip(ids.tolist(), found.tolist(), strict=True):
        assert buckets.starts[bucket] <= node < buckets.starts[bucket + 1]
        assert offsets[buckets.parts[bucket]] <= node < offsets[buckets.parts[bucket] + 1]
    assert counts.tolist() == np.bincount(found, minlength=len(buckets)).tolist()


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_pieces_are_placed_in_original_order(rng, dtype):
    """Two pieces, grouped by bucket, then placed a few rows at a time: the order is that of a stable sort."""
    num_nodes, num_edges, cut = 20, 300, 120
    own, other = (rng.integers(0, num_nodes, num_edges).astype(dtype) for _ in range(2))
    order = np.argsort(own, kind="stable")
    table = make_buckets(np.array([0, num_nodes]), 4)
    shares = []
    for first, stop in ((0, cut), (cut, num_edges)):
        counts, buckets = np.zeros(len(table), np.int64), np.empty(stop - first, np.uint32)
        find_buckets(own[first:stop], table.starts, table.guesses, table.shift, counts, buckets)
        rows, others, offsets = np.empty_like(own[first:stop]), np.empty_like(own[first:stop]), np.empty(
            stop - first, np.uint32)  # fmt: skip
        starts = offsets_of(counts)
        group_buckets(own[first:stop], other[first:stop], buckets, starts[:-1].copy(), rows, others, offsets)
        assert offsets.tolist() == np.argsort(buckets, kind="stable").tolist()
        shares.append((first, starts, rows, others, offsets))
    for first_row, last_row in ((0, 7), (7, 8), (8, num_nodes)):
        degrees = np.zeros(num_nodes, np.int64)
        for _, _, rows, _, _ in shares:
            count_ids(rows, 0, degrees)
        indptr = offsets_of(degrees[first_row:last_row])
        wanted = order[(own[order] >= first_row) & (own[order] < last_row)]
        indices, keys, places = np.empty(len(wanted), dtype), np.empty(len(wanted), np.int64), np.empty(
            len(wanted), np.uint32)  # fmt: skip
        next_places, placed, taken = indptr[:-1].copy(), 0, []
        for first, _, rows, others, offsets in shares:
            is_here = (rows >= first_row) & (rows < last_row)
            taken += (first + offsets[is_here].astype(np.int64)).tolist()
            placed += place_edges(rows, others, offsets, first_row, first, placed, next_places, indices, keys, places)
        assert (placed, keys.tolist(), indices.tolist()) == (len(wanted), wanted.tolist(), other[wanted].tolist())
        assert np.array(taken)[places].tolist() == wanted.tolist()
        assert next_places.tolist() == indptr[1:].tolist()


def test_ids_are_taken_and_edges_between_parts_counted(rng):
    table, keys = rng.permutation(30).astype(np.uint32), rng.integers(0, 30, 100)
    ids = np.empty(100, np.uint32)
    take_ids(keys, table, ids)
    assert ids.tolist() == table[keys].tolist()
    src, dst = rng.integers(0, 5, (2, 100)).astype(np.uint32)
    src_parts, dst_parts = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 1, 2])
    between = np.zeros((3, 3), np.int64)
    num_cut = count_between(src, src_parts, dst, dst_parts, between)
    wanted = np.zeros((3, 3), np.int64)
    np.add.at(wanted, (src_parts[src], dst_parts[dst]), 1)
    assert between.tolist() == wanted.tolist()
    assert num_cut == 100 - np.trace(wanted)
    assert count_between(src, src_parts, dst, dst_parts, between[:0, :0]) == num_cut
