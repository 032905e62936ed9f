"""When did an edge come to be, and how are a node's edges brought into the order of time?

An edge's time is its own, that of the neighbour it leads to, or the later of the two, so the same edge may have another
time in the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, Column, IntArray, column_schema
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.kernels.rows import sort_rows
from hopstream.partition.book import ends_of
from hopstream.partition.chunks import row_chunks
from hopstream.partition.split import EdgeSplit, NodeSplit
from hopstream.schema import Direction, EdgeType, type_label

CHUNK_ROWS = 1 << 20
MAX_TIME = np.iinfo(np.int64).max
MAX_DEGREE = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTimes:
    """Where the times of one type's edges in one direction come from; at least one of the two is there.

    Attributes:
        own: integer[num_edges], the time of each edge key, or None where edges have none of their own.
        neighbor: integer[num_nodes], the time of each key of the neighbours' type, or None where it has none.
        neighbor_keys: integer[num_nodes], the key of each neighbour's id.
    """

    own: Array | None
    neighbor: Array | None
    neighbor_keys: Array

    def of(self, edge_keys: Array, neighbor_ids: Array) -> IntArray:
        """int64[n], the times of edges given by key and neighbour."""
        times = None if self.own is None else self.own[edge_keys].astype(np.int64, copy=False)
        if self.neighbor is None:
            return times if times is not None else np.empty(0, np.int64)
        later: IntArray = self.neighbor[self.neighbor_keys[neighbor_ids]].astype(np.int64, copy=False)
        return later if times is None else np.maximum(times, later)


def edge_times(
    graph: Graph, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, NodeSplit], time_attr: str | None
) -> EdgeTimes | None:
    """The times of one type's edges in one direction; None where they have none."""
    other_type = ends_of(edge_type, direction)[1]
    own = graph.edges[edge_type].features.get(time_attr) if time_attr is not None else None
    neighbor = graph.nodes[other_type].features.get(time_attr) if time_attr is not None else None
    if own is None and neighbor is None:
        return None
    return EdgeTimes(own=_values(own), neighbor=_values(neighbor), neighbor_keys=nodes[other_type].keys)


def _values(column: Column | None) -> Array | None:
    """A column that ``check_times`` let through."""
    return column if isinstance(column, np.ndarray) else None


def sort_by_time(split: EdgeSplit, times: EdgeTimes) -> None:
    """Bring the edges of each row into the order of their times, in place; edges of one time keep their order."""
    for first, last, start, stop in row_chunks(split.indptr):
        keys, indices = split.keys[start:stop], split.indices[start:stop]
        offsets = split.indptr[first : last + 1] - start
        places = row_order(offsets, times.of(keys, indices), is_descending=False) + np.repeat(
            offsets[:-1], np.diff(offsets)
        )
        keys[:], indices[:] = keys[places], indices[places]


def row_order(offsets: IntArray, values: Array, *, is_descending: bool) -> Array:
    """uint32[n], the positions inside each row in the order of their values; see ``sort_rows``.

    Raises:
        SchemaError: A row has more items than 32 bits can number.
    """
    largest = int(np.diff(offsets).max(initial=0))
    if largest > MAX_DEGREE:
        raise SchemaError(f"a node has {largest} edges of one type; they can be put in order up to {MAX_DEGREE}")
    order, scratch = np.empty(len(values), np.uint32), np.empty(largest, np.uint32)
    sort_rows(offsets, values, is_descending, order, scratch)
    return order


def check_times(graph: Graph, time_attr: str) -> None:
    """Refuse columns that cannot be times.

    Raises:
        UnknownNameError: No node or edge type has the feature.
        SchemaError: A type's feature of this name is not one integer per row, or does not fit int64.
    """
    tables: dict[str | EdgeType, Mapping[str, Column]] = {t: n.features for t, n in graph.nodes.items()}
    tables |= {t: e.features for t, e in graph.edges.items()}
    if not any(time_attr in features for features in tables.values()):
        known = {type_label(t): list(features) for t, features in tables.items() if features}
        raise UnknownNameError(f"time_attr is {time_attr!r}; no node or edge type has such a feature; known: {known}")
    for owner, features in tables.items():
        if time_attr in features:
            _check_column(f"{type_label(owner)}.{time_attr}", features[time_attr])


def _check_column(where: str, column: Column) -> None:
    schema = column_schema(column)
    if not isinstance(column, np.ndarray) or schema.shape or column.dtype.kind not in "iu":
        remedy = "one integer per row, or rename the feature"
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            remedy = "integers: choose a unit in which they are whole, for example milliseconds, and convert to int64"
        raise SchemaError(f"{where} is {schema}; times are {remedy}")
    if column.dtype != np.uint64:
        return
    for start in range(0, len(column), CHUNK_ROWS):
        is_late = column[start : start + CHUNK_ROWS] > MAX_TIME
        if is_late.any():
            row = start + int(np.argmax(is_late))
            raise SchemaError(f"{where}[{row}] is {int(column[row])}; times fit int64: subtract an epoch of your own")
