"""Times of edges, and the order of a node's edges by time.

An edge's time is its own, that of the neighbour it leads to, or the later of the two, so the same edge may have another
time in the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.checks import did_you_mean
from hopstream.dataset.book import ends_of
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.split import EdgeSplit, NodeSplit
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.kernels.rows import sort_rows
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label

CHUNK_ROWS = 1 << 20
MAX_TIME = np.iinfo(np.int64).max
MAX_DEGREE = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTimes:
    """Where the times of one type's edges in one direction come from; at least one of the two is there.

    Attributes:
        own: integer[num_edges], the time of each edge (by key, or by its place in a run), or None where edges have none
            of their own.
        neighbor: integer[num_nodes], the time of each key of the neighbours' type, or None where it has none.
        neighbor_keys: integer[num_nodes], the key of each neighbour's id; None where ``neighbor`` has the time of each
            id.
    """

    own: Array | None
    neighbor: Array | None
    neighbor_keys: Array | None

    def of(self, places: Array, neighbor_ids: Array) -> IntArray:
        """int64[n], the times of edges given by where ``own`` has theirs and by neighbour."""
        times = None if self.own is None else self.own[places].astype(np.int64, copy=False)
        if self.neighbor is None:
            return times if times is not None else np.empty(0, np.int64)
        neighbors = neighbor_ids if self.neighbor_keys is None else self.neighbor_keys[neighbor_ids]
        later: IntArray = self.neighbor[neighbors].astype(np.int64, copy=False)
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
    sort_edges(split.indptr, split.keys, split.indices, times)


def sort_edges(indptr: IntArray, places: Array, indices: Array, times: EdgeTimes, *others: Array) -> None:
    """Bring the edges of each row into the order of their times, in place.

    Args:
        indptr: int64[num_rows + 1], from 0.
        places: integer[num_edges], where ``times`` has the time of each edge; put in order too.
        indices: integer[num_edges], ids of neighbours; put in order too.
        times: Where times come from.
        *others: More columns of num_edges rows to put in order.
    """
    for first, last, start, stop in row_chunks(indptr):
        offsets = indptr[first : last + 1] - start
        order = row_order(offsets, times.of(places[start:stop], indices[start:stop]), is_descending=False)
        order = order + np.repeat(offsets[:-1], np.diff(offsets))
        for column in (places, indices, *others):
            column[start:stop] = column[start:stop][order]


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
    check_time_schema(graph.schema, time_attr)
    tables: dict[str | EdgeType, Mapping[str, Column]] = {t: n.features for t, n in graph.nodes.items()}
    tables |= {t: e.features for t, e in graph.edges.items()}
    for owner, features in tables.items():
        column = _values(features.get(time_attr))
        if column is not None:
            for start in range(0, len(column), CHUNK_ROWS):
                check_time_values(f"{type_label(owner)}.{time_attr}", start, column[start : start + CHUNK_ROWS])


def check_time_schema(schema: GraphSchema, time_attr: str) -> None:
    """Refuse types of columns that cannot be times; see ``check_times``."""
    tables: list[tuple[str | EdgeType, Mapping[str, FeatureSchema]]] = [*schema.nodes.items(), *schema.edges.items()]
    if not any(time_attr in features for _, features in tables):
        known = {type_label(t): list(features) for t, features in tables if features}
        raise UnknownNameError(
            f"time_attr is {time_attr!r}; no node or edge type has such a feature; "
            f"known: {known}{did_you_mean(time_attr, {name for _, of in tables for name in of})}"
        )
    for owner, features in tables:
        feature = features.get(time_attr)
        if feature is None or (feature.is_fixed_width and not feature.shape and feature.numpy_dtype.kind in "iu"):
            continue
        remedy = "one integer per row, or rename the feature"
        if feature.is_fixed_width and feature.numpy_dtype.kind == "f":
            remedy = "integers: choose a unit in which they are whole, for example milliseconds, and convert to int64"
        raise SchemaError(f"{type_label(owner)}.{time_attr} is {feature}; times are {remedy}")


def check_time_values(where: str, first_row: int, values: Array) -> None:
    """Refuse times that do not fit int64, in rows of a column from ``first_row``.

    Raises:
        SchemaError: One does not.
    """
    if values.dtype == np.uint64 and (is_late := values > MAX_TIME).any():
        row = int(np.argmax(is_late))
        raise SchemaError(
            f"{where}[{first_row + row}] is {int(values[row])}; times fit int64: subtract an epoch of your own"
        )
