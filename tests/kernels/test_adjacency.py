"""Checks that undirected rows are ascending, free of duplicates, and equal to a slow grouping."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.adjacency import count_buckets, deal_ends, group_rows, take_ends


@pytest.mark.parametrize("firsts", [(0, 0), (3, 40)])
def test_edges_without_self_loops_are_taken_and_counted_by_cell(
    rng: np.random.Generator, firsts: tuple[int, int]
) -> None:
    src, dst = rng.integers(0, 50, (2, 400))
    ends, counts = np.empty((2, 400), np.uint32), np.zeros(100 >> 2, np.int64)
    num_kept = take_ends(src, dst, *firsts, 2, ends, counts)
    pairs = np.array([src + firsts[0], dst + firsts[1]])
    pairs = pairs[:, pairs[0] != pairs[1]]
    assert num_kept == pairs.shape[1] and ends[:, :num_kept].tolist() == pairs.tolist()
    assert counts.tolist() == np.bincount(pairs.reshape(-1) >> 2, minlength=25).tolist()


def test_both_directions_of_every_edge_are_in_their_bucket(rng: np.random.Generator) -> None:
    ends, bucket_of = rng.integers(0, 64, (2, 300)).astype(np.uint32), np.array([0, 0, 1, 2, 2, 2, 2, 3], np.uint32)
    counts = np.zeros(4, np.int64)
    count_buckets(ends, 3, bucket_of, counts)
    stops = np.cumsum(counts)
    cursor, pairs = stops - counts, np.empty(600, np.uint64)
    deal_ends(ends, 3, bucket_of, cursor, pairs)
    assert cursor.tolist() == stops.tolist()
    both_ways = np.concatenate([ends, ends[::-1]], axis=1).astype(np.uint64)
    wanted = both_ways[0] << np.uint64(32) | both_ways[1]
    assert np.sort(pairs).tolist() == np.sort(wanted).tolist()
    buckets = bucket_of[(pairs >> np.uint64(35)).astype(np.int64)]
    assert (np.diff(buckets.astype(int)) >= 0).all()


@pytest.mark.parametrize(("digit_bits", "num_passes"), [(11, 2), (4, 4), (3, 5), (20, 1)])
@pytest.mark.parametrize("num_pairs", [0, 1, 40, 3000])
def test_rows_equal_a_slow_grouping(rng: np.random.Generator, num_pairs: int, digit_bits: int, num_passes: int) -> None:
    """Nodes 100..163 and neighbours below 512: 15 bits."""
    nodes, others = rng.integers(100, 164, num_pairs), rng.integers(0, 512, num_pairs)
    pairs = nodes.astype(np.uint64) << np.uint64(32) | others.astype(np.uint64)
    counts, scratch = np.empty((num_passes, 1 << digit_bits), np.int64), np.empty_like(pairs)
    degrees, neighbors = np.zeros(64, np.int64), np.empty(num_pairs, np.uint32)
    num_kept = group_rows(pairs, 100, 9, digit_bits, counts, scratch, degrees, neighbors)
    rows = [sorted(set(others[nodes == node].tolist())) for node in range(100, 164)]
    assert degrees.tolist() == [len(row) for row in rows]
    assert neighbors[:num_kept].tolist() == [neighbor for row in rows for neighbor in row]
