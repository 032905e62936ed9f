"""Helpers for tests of drawing kernels: input records, and Python calls of kernel-only functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hopstream.kernels.eligible import AddressTables, Filter, Nodes, filter_sets

NOTHING = np.empty(0, np.int64)
NO_TABLE = np.empty((0, 2), np.int64)


def make_tables(dtype: type = np.uint32, **tables: NDArray[Any]) -> AddressTables:
    """Tables of parts; some parts are absent."""
    none = {"offsets": NOTHING, "edge_offsets": NOTHING, "keys": NO_TABLE, "indptrs": NO_TABLE, "indices": NO_TABLE}
    return AddressTables(item=np.empty(0, dtype), **{**none, **tables})


def make_nodes(ids: NDArray[np.int64], **columns: NDArray[Any]) -> Nodes:
    """Nodes of one tree; columns that are not given are uninitialized."""
    n = len(ids)
    int64s = {name: np.empty(n, np.int64) for name in ("starts", "degrees", "row_degrees")}
    int32s = {name: np.full(n, -1, np.int32) for name in ("parts", "counts")}
    return Nodes(**{"ids": ids, "trees": NOTHING, **int64s, **int32s, **columns})


def excluding(node: int, neighbors: list[int]) -> tuple[Filter, Any]:
    """A filter that excludes some neighbours of a node, and the object that owns its memory."""
    sets = filter_sets((np.full(len(neighbors), node), np.array(neighbors, np.int64)), None)
    return sets.to_filter(0), sets


@cache
def for_python(function: Any) -> Callable[..., Any]:
    """A kernel that calls a function that only kernels can call."""

    @numba.njit
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call
