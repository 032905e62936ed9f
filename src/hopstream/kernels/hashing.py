"""Makes every random bit.

[Algorithm] SplitMix64's finalizer over a counter, and 128-bit multiplication to bring 64 bits into a range.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; Lemire, "Fast random
    integer generation in an interval", 2019 (without rejection: the bias is below range / 2**64).
[Cost] About 5 cycles per draw; no state, so any thread, process or machine computes the same draw.
[Not chosen] A generator object per thread: its draws would depend on which thread ran what before.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hopstream.kernels.compiling import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@intrinsic
def high_product(typing_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the 128-bit product of two uint64."""
    signature = types.uint64(types.uint64, types.uint64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return signature, emit


@njit(inline="always")
def mix64(value: np.uint64) -> np.uint64:
    """Spread every input bit over all 64 output bits; a bijection."""
    value = np.uint64(value)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(inline="always")
def node_stream(rng_seed: np.uint64, key: np.int64) -> np.uint64:
    """The start of a node's own stream of draws under one seed."""
    return mix64(np.uint64(rng_seed) ^ mix64(np.uint64(key) + GOLDEN))


@njit(inline="always")
def tree_stream(stream: np.uint64, tree: np.int64) -> np.uint64:
    """The start of a node's stream of draws in one tree, from its stream under the seed."""
    return node_stream(stream, tree)


@njit(inline="always")
def draw_below(stream: np.uint64, turn: np.uint64, bound: np.uint64) -> np.uint64:
    """The draw of one turn, uniform in ``[0, bound)``."""
    return high_product(mix64(stream + np.uint64(turn) * GOLDEN), np.uint64(bound))


@kernel
def hash_keys(keys: np.ndarray, rng_seed: np.uint64, out: np.ndarray) -> None:
    """Write ``node_stream(rng_seed, key)`` of every key.

    Args:
        keys: int64[n].
        rng_seed: uint64.
        out: uint64[n].
    """
    for i in range(len(keys)):
        out[i] = node_stream(rng_seed, keys[i])


def derive_seed(*values: int | str) -> int:
    """64 bits that depend on all values and their order, the same on every machine and Python version."""
    text = "\x1f".join(f"{type(value).__name__}:{value}" for value in values)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") & _MASK
