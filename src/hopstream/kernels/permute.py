"""Finds the i-th position of a shuffled order without storing the order.

[Algorithm] A Feistel network over the smallest even number of bits that can hold ``n`` values is a permutation of those
    values whatever its round function; values outside ``[0, n)`` are sent through again until they fall inside (cycle
    walking), which leaves a permutation of ``[0, n)``. Eight rounds, because small orders have few bits per half and
    must still look uniform. Rounds add instead of xor: xor makes even permutations only, and walking then prefers some
    orders (10 % too often for n = 5).
    Source: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
[Cost] O(1) memory; 8 to 32 hashes per index, about 0.1 ms per thousand indices at worst.
[Not chosen] A stored permutation: 8 GB for a billion seeds, on every rank, drawn again every epoch.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import GOLDEN, mix64

ROUNDS = 8


@kernel
def permute_range(start: np.int64, num_positions: np.int64, order_seed: np.uint64, out: np.ndarray) -> None:
    """Write the images of ``start, start + 1, …`` under the permutation of ``[0, num_positions)`` that a seed names.

    Args:
        start: First index; ``start + len(out) <= num_positions``.
        num_positions: Size of the permuted range, at least 1 and below 2**62.
        order_seed: uint64; equal seeds give equal permutations.
        out: int64[m], the images of ``start … start + m - 1``.
    """
    half_bits = np.uint64(1)
    while (np.int64(1) << np.int64(2 * half_bits)) < num_positions:
        half_bits += np.uint64(1)
    half_mask = (np.uint64(1) << half_bits) - np.uint64(1)
    for i in range(len(out)):
        value = np.uint64(start + i)
        while True:
            left = value >> half_bits
            right = value & half_mask
            for turn in range(ROUNDS):
                round_seed = mix64(np.uint64(order_seed) + np.uint64(turn + 1) * GOLDEN)
                left, right = right, (left + mix64(round_seed ^ right)) & half_mask
            value = (left << half_bits) | right
            if value < np.uint64(num_positions):
                break
        out[i] = np.int64(value)
