"""Checks that R-MAT edges follow the model, whatever is drawn together."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.rmat import draw_edges, fill_features
from tests import naive


def _draw(first: int, num_edges: int, scale: int, rng_seed: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64)
    draw_edges(first, scale, np.uint64(rng_seed), np.arange(1 << scale), src, dst)
    return src, dst


def test_edges_are_pinned():
    src, dst = _draw(5, 8, scale=7, rng_seed=42)
    assert src.tolist() == [65, 19, 110, 16, 0, 34, 40, 41]
    assert dst.tolist() == [52, 1, 0, 2, 21, 97, 32, 12]


@pytest.mark.parametrize("scale", [0, 1, 4, 5, 13])
def test_edges_equal_the_naive_reference(rng: np.random.Generator, scale: int):
    first, rng_seed = int(rng.integers(0, 1 << 40)), int(rng.integers(0, 1 << 63))
    src, dst = _draw(first, 50, scale, rng_seed)
    expected = [naive.rmat_edge(first + i, scale, rng_seed) for i in range(50)]
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == expected


def test_edges_do_not_depend_on_the_batch():
    whole = np.stack(_draw(0, 100, 10, 3))
    pieces = np.concatenate([np.stack(_draw(first, 25, 10, 3)) for first in (0, 25, 50, 75)], axis=1)
    assert np.array_equal(whole, pieces)


def test_each_level_meets_the_quadrant_shares_within_five_sigma():
    num_edges, scale = 200_000, 9
    src, dst = _draw(0, num_edges, scale, 11)
    for level in range(scale):
        counts = np.bincount(2 * (src >> level & 1) + (dst >> level & 1), minlength=4)
        for count, share in zip(counts, (0.57, 0.19, 0.19, 0.05), strict=True):
            assert abs(count - num_edges * share) < 5 * np.sqrt(num_edges * share * (1 - share))


def test_corners_are_renamed():
    key_of = np.random.default_rng(1).permutation(256)
    src, dst = np.empty(40, np.int64), np.empty(40, np.int64)
    draw_edges(0, 8, np.uint64(3), key_of, src, dst)
    plain_src, plain_dst = _draw(0, 40, 8, 3)
    assert np.array_equal(src, key_of[plain_src])
    assert np.array_equal(dst, key_of[plain_dst])


def test_features_are_centroids_under_noise_of_mean_0():
    num_rows, num_features, noise = 4000, 7, 2.0
    labels = np.arange(num_rows) % 3
    centroids = np.arange(3 * num_features, dtype=np.float32).reshape(3, num_features)
    out = np.empty((num_rows, num_features), np.float32)
    fill_features(0, np.uint64(5), labels, centroids, np.float32(noise), out)
    residue = out - centroids[labels]
    assert np.abs(residue.mean(axis=0)).max() < 5 * noise / np.sqrt(num_rows)
    assert abs(residue.std() - noise) < 0.05
    correlations = np.corrcoef(residue.T) - np.eye(num_features)
    assert np.abs(correlations).max() < 5 / np.sqrt(num_rows)


def test_features_do_not_depend_on_the_batch():
    centroids = np.zeros((1, 5), np.float32)
    whole, piece = np.empty((10, 5), np.float32), np.empty((4, 5), np.float32)
    fill_features(0, np.uint64(9), np.zeros(10, np.int64), centroids, np.float32(1), whole)
    fill_features(6, np.uint64(9), np.zeros(4, np.int64), centroids, np.float32(1), piece)
    assert np.array_equal(whole[6:], piece)
