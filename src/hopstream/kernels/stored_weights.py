"""Computes what an edge weighs, exactly, from what is stored.

[Algorithm] Weights are read where the part stores them, in the dtype they have there. Kernels are given the address and
    the place of the dtype in ``WEIGHT_DTYPES``, so that one compiled kernel serves all dtypes.
[Cost] A chain of comparisons that go the same way for a whole row, beside the read.
[Not chosen] Differences of running sums: an edge stored after one that is 1e16 times as heavy has any weight then. The
    array itself as an argument: every kernel compiled once per dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hopstream.kernels.memory import array_at

WEIGHT_DTYPES = (
    "float64", "float32", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"
)  # fmt: skip
"""Weights are read in the dtype in which they are stored; its place here is their kind."""
FLOAT64 = 0
UNREADABLE = -1
"""The kind of other weights (float16), which are only known by their order and by their running sums."""


def weight_kind(dtype: np.dtype[Any] | None) -> int:
    """How kernels are told of the dtype of weights; None is none."""
    return WEIGHT_DTYPES.index(dtype.name) if dtype is not None and dtype.name in WEIGHT_DTYPES else UNREADABLE


@njit(inline="always")
def stored_weight(address: int, kind: int, position: int) -> float:
    """One of the weights at an address; kinds are the places of ``WEIGHT_DTYPES``."""
    place, num = np.uint64(position), position + 1
    weight = 0.0
    if kind == 0:
        weight = array_at(address, num, np.float64)[place]
    elif kind == 1:
        weight = np.float64(array_at(address, num, np.float32)[place])
    elif kind == 2:
        weight = np.float64(array_at(address, num, np.int64)[place])
    elif kind == 3:
        weight = np.float64(array_at(address, num, np.int32)[place])
    elif kind == 4:
        weight = np.float64(array_at(address, num, np.int16)[place])
    elif kind == 5:
        weight = np.float64(array_at(address, num, np.int8)[place])
    elif kind == 6:
        weight = np.float64(array_at(address, num, np.uint64)[place])
    elif kind == 7:
        weight = np.float64(array_at(address, num, np.uint32)[place])
    elif kind == 8:
        weight = np.float64(array_at(address, num, np.uint16)[place])
    elif kind == 9:
        weight = np.float64(array_at(address, num, np.uint8)[place])
    return weight
