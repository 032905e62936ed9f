"""Draws the edges, labels and features of an R-MAT graph.

[Algorithm] Each edge walks down ``scale`` levels of the adjacency matrix's quadtree and picks a quadrant at each with
    probabilities a, b, c, d; the final corner is its (source, destination). A level takes sixteen random bits, so one
    hash of a counter serves four levels. An edge depends on its own number and the rng seed only.
    Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004; a, b, c of Graph500.
[Cost] 60 ns per edge at scale 21 on one core, with or without the permutation; features 0.6 ns per value.
[Not chosen] Signs of differences in place of comparisons: the same time, and harder to read.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN, mix64

LEVELS_PER_HASH = 4
TOP_LEFT = np.uint64(round(0.57 * 2**16))
TOP = np.uint64(round((0.57 + 0.19) * 2**16))
BOTTOM_LEFT = np.uint64(round((0.57 + 0.19 + 0.19) * 2**16))


@kernel
def draw_edges(
    first: np.int64,
    scale: np.int64,
    rng_seed: np.uint64,
    key_of: np.ndarray,
    src_keys: np.ndarray,
    dst_keys: np.ndarray,
) -> None:
    """Write the ends of edges ``first, first + 1, …``.

    Args:
        first: Number of the first edge.
        scale: Levels, so corners are in ``[0, 2**scale)``; at most 32.
        rng_seed: uint64.
        key_of: int64[2**scale], the key of each corner.
        src_keys: int64[m], out.
        dst_keys: int64[m], out.
    """
    quarter = np.uint64(0xFFFF)
    for i in range(len(src_keys)):
        stream = mix64(np.uint64(rng_seed) + np.uint64(first + i) * GOLDEN)
        src = np.uint64(0)
        dst = np.uint64(0)
        bits = np.uint64(0)
        for level in range(scale):
            if level % LEVELS_PER_HASH == 0:
                bits = mix64(stream + np.uint64(level + 1) * GOLDEN)
            draw = bits & quarter
            bits >>= np.uint64(16)
            is_bottom = draw >= TOP
            is_right = ((draw >= TOP_LEFT) & (draw < TOP)) | (draw >= BOTTOM_LEFT)
            src = (src << np.uint64(1)) | np.uint64(is_bottom)
            dst = (dst << np.uint64(1)) | np.uint64(is_right)
        src_keys[i] = key_of[src]
        dst_keys[i] = key_of[dst]


@kernel
def fill_features(
    first: np.int64, rng_seed: np.uint64, labels: np.ndarray, centroids: np.ndarray, noise: np.float32, out: np.ndarray
) -> None:
    """Write each node's features: the centroid of its label plus noise, uniform with mean 0.

    Args:
        first: Key of the first row.
        rng_seed: uint64.
        labels: int64[m], rows of ``centroids``.
        centroids: float32[num_classes, num_features].
        noise: Standard deviation of the noise.
        out: float32[m, num_features].
    """
    quarter = np.uint64(0xFFFF)
    step = np.float32(noise * np.sqrt(12.0) / 65536.0)
    offset = np.float32(-0.5 * 65535.0) * step
    for i in range(len(out)):
        stream = mix64(np.uint64(rng_seed) + np.uint64(first + i) * GOLDEN)
        bits = np.uint64(0)
        label = labels[i]
        for j in range(out.shape[1]):
            if j % LEVELS_PER_HASH == 0:
                bits = mix64(stream + np.uint64(j + 1) * GOLDEN)
            out[i, j] = centroids[label, j] + offset + step * np.float32(bits & quarter)
            bits >>= np.uint64(16)
