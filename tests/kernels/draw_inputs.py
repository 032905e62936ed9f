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
    """Tables of parts, some of which are absent."""
    none = {"offsets": NOTHING, "edge_offsets": NOTHING, "keys": NO_TABLE, "indptrs": NO_TABLE, "indices": NO_TABLE}
    return AddressTables(item=np.empty(0, dtype), **{**none, **tables})


def make_nodes(ids: NDArray[np.int64], **columns: NDArray[Any]) -> Nodes:
    """Nodes of one tree whose other columns are not written yet, but for those given."""
    n = len(ids)
    int64s = {name: np.empty(n, np.int64) for name in ("starts", "degrees", "row_degrees")}
    int32s = {name: np.full(n, -1, np.int32) for name in ("parts", "counts")}
    return Nodes(**{"ids": ids, "trees": NOTHING, **int64s, **int32s, **columns})


def excluding(node: int, neighbors: list[int]) -> tuple[Filter, Any]:
    """A filter by which a node may not draw some neighbours, and what holds its memory."""
    sets = filter_sets((np.full(len(neighbors), node), np.array(neighbors, np.int64)), None)
    return sets.to_filter(0), sets


@cache
def for_python(function: Any) -> Callable[..., Any]:
    """A kernel that only calls a function that is part of others."""

    @numba.njit
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call
