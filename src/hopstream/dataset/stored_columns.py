"""Columns that are stored of nodes and edges: times, weights, features, and the order of edges.

Every writer of datasets, in one step or piece by piece, uses this, so all of them write the same bytes.

An edge's time is its own, the time of its neighbour, or the later of the two. So the same edge may have another time in
the other direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import CHUNK_BYTES, Array, Column, IntArray, RaggedArray, column_schema, offsets_of
from hopstream.checks import did_you_mean
from hopstream.dataset.book import ends_of
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import feature_paths
from hopstream.dataset.settings import PartitionSettings, TimeUnit
from hopstream.dataset.split import EdgeSplit, NodeSplit
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.kernels.adjacency import sort_rows, sum_rows
from hopstream.kernels.alias import build_aliases
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label

CHUNK_ROWS = 1 << 20
MAX_SUM = float(np.finfo(np.float64).max) / 2
"""Largest sum of the weights of one node's edges, whatever the order of the additions."""

MAX_INTEGER = 1 << 53
"""Largest integer weight: weights are compared as float64, which represents all integers up to here."""

UNITS_PER_DAY: dict[TimeUnit, int] = {
    "D": 1, "h": 24, "m": 1440, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9,
}  # fmt: skip


def weight_sums(indptr: IntArray, weights: Array, places: Array) -> Iterator[NDArray[np.float64]]:
    """Yield float64 blocks of the running sums of weights inside each row.

    Args:
        indptr: int64[rows + 1], from 0.
        weights: real[num_edges], the weight of each edge (by key, or by its position in a run).
        places: integer[indptr[-1]], the index in ``weights`` of each edge of the rows, in stored order.
    """
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_sums(offsets, values)


def row_sums(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[n], the running sums of weights inside each row; see ``sum_rows``."""
    sums = np.empty(len(weights), np.float64)
    sum_rows(offsets, weights, sums)
    return sums


def weight_aliases(indptr: IntArray, weights: Array, places: Array) -> Iterator[NDArray[np.uint64]]:
    """Yield uint64 blocks of the alias tables of rows; arguments as of ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_aliases(offsets, values)


def row_aliases(offsets: IntArray, weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return uint64[n], the alias table of each row; see ``build_aliases``."""
    most = int(np.diff(offsets).max(initial=0))
    entries = np.empty(len(weights), np.uint64)
    build_aliases(offsets, weights, np.empty(most), np.empty(most, np.uint32), entries)
    return entries


def weight_orders(indptr: IntArray, weights: Array, places: Array) -> Iterator[Array]:
    """Yield uint32 blocks of positions inside each row, largest weight first; see ``weight_sums``."""
    for offsets, values in _weights_of_rows(indptr, weights, places):
        yield row_order(offsets, values, is_descending=True)


def _weights_of_rows(indptr: IntArray, weights: Array, places: Array) -> Iterator[tuple[IntArray, NDArray[np.float64]]]:
    for first, last, start, stop in row_chunks(indptr):
        yield indptr[first : last + 1] - start, weights[places[start:stop]].astype(np.float64, copy=False)


def weights_of(features: Mapping[str, Column], weight_attr: str | None) -> Array | None:
    """Return real[n], the weights of edges as a view of a feature real[n] or real[n, 1]; None without."""
    weights = features.get(weight_attr) if weight_attr is not None else None
    if not isinstance(weights, np.ndarray) or weights.shape[1:] not in ((), (1,)):
        return None
    return weights.reshape(-1)


def check_weights(graph: Graph, weight_attr: str, directions: tuple[Direction, ...]) -> None:
    """Refuse a weight feature that edges cannot be drawn by.

    Raises:
        UnknownNameError: No edge type has the feature.
        SchemaError: A type's feature of this name is not one real number per row. Or a weight is negative, infinite,
            not a number, or an integer above 2**53. Or all weights of a type are 0, or the weights of one node's edges
            add up to more than ``MAX_SUM``.
    """
    check_weight_schema(graph.schema, weight_attr)
    for edge_type, edges in graph.edges.items():
        weights = weights_of(edges.features, weight_attr)
        if weights is None:
            continue
        where = f"{type_label(edge_type)}.{weight_attr}"
        total = check_weight_values(where, 0, weights)
        check_weight_total(where, len(weights), total)
        if total > MAX_SUM:
            for direction in directions:
                num_nodes = graph.nodes[ends_of(edge_type, direction)[0]].num_nodes
                _check_sums(where, edges, weights, direction, num_nodes)


def check_weight_schema(schema: GraphSchema, weight_attr: str) -> None:
    """Refuse a feature whose type does not fit weights; see ``check_weights``."""
    if not any(weight_attr in features for features in schema.edges.values()):
        known = {type_label(t): list(features) for t, features in schema.edges.items()}
        raise UnknownNameError(
            f"weight_attr is {weight_attr!r}; no edge type has such a feature; "
            f"known: {known}{did_you_mean(weight_attr, {name for of in schema.edges.values() for name in of})}"
        )
    for edge_type, features in schema.edges.items():
        feature = features.get(weight_attr)
        if feature is not None and not feature.can_be_weights:
            raise SchemaError(
                f"{type_label(edge_type)}.{weight_attr} is {feature}; weights are one integer or float per edge: "
                "convert it, or rename it"
            )


def check_weight_values(where: str, first_row: int, weights: Array) -> float:
    """Check the weights of some rows of a column, and return their sum, which may be infinite.

    Raises:
        SchemaError: A weight is negative, infinite, not a number, or an integer above 2**53. The error counts rows from
            ``first_row``.
    """
    total = 0.0
    for start in range(0, len(weights), CHUNK_ROWS):
        block = weights[start : start + CHUNK_ROWS]
        values = block.astype(np.float64)
        if block.dtype.kind in "iu" and (is_large := block > MAX_INTEGER).any():
            row = int(np.argmax(is_large))
            raise SchemaError(
                f"{where}[{first_row + start + row}] is {block[row]}; integer weights go up to 2^53 = {MAX_INTEGER}, "
                "above which float64 is not exact: divide them by a constant, or convert them to float64"
            )
        is_wrong = ~((values >= 0) & np.isfinite(values))
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise SchemaError(
                f"{where}[{first_row + start + row}] is {block[row]}; weights are finite numbers that are 0 or more"
            )
        with np.errstate(over="ignore"):
            total += float(values.sum())
    return total


def check_weight_total(where: str, num_edges: int, total: float) -> None:
    """Refuse weights that are all 0.

    Raises:
        SchemaError: All weights are 0.
    """
    if num_edges and total == 0:
        raise SchemaError(f"{where} is 0 for all {num_edges} edges, so none can be sampled; leave weight_attr out")


def _check_sums(where: str, edges: EdgeTable, weights: Array, direction: Direction, num_nodes: int) -> None:
    own_keys = edges.dst_keys if direction == "in" else edges.src_keys
    with np.errstate(over="ignore"):
        sums = np.bincount(own_keys, weights=weights, minlength=num_nodes)
    is_large = sums > MAX_SUM
    if is_large.any():
        key = int(np.argmax(is_large))
        raise large_sum(where, direction, key, float(sums[key]))


def large_sum(where: str, direction: Direction, key: int, total: float) -> SchemaError:
    """Build the error for weights of one node's edges that add up to more than ``MAX_SUM``."""
    return SchemaError(
        f"{where}: the weights of the edges of {ends_word(direction)} {key} add up to {total:.4g}; "
        f"a sum must stay below {MAX_SUM:.4g}: divide them by a constant"
    )


def ends_word(direction: Direction) -> str:
    """Return the word for the end of an edge that owns it."""
    return "destination" if direction == "in" else "source"


MAX_TIME = np.iinfo(np.int64).max
MAX_DEGREE = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTimes:
    """Sources of the times of one type's edges in one direction: the edge, the neighbour, or both.

    Attributes:
        own: integer[num_edges], the time of each edge (by key, or by its position in a run), or None if edges have no
            times.
        neighbor: integer[num_nodes], the time of each key of the neighbours' type, or None if the type has no times.
        neighbor_keys: integer[num_nodes], the key of each neighbour's id; None if ``neighbor`` is indexed by id.
    """

    own: Array | None
    neighbor: Array | None
    neighbor_keys: Array | None

    def of(self, places: Array, neighbor_ids: Array) -> IntArray:
        """Return int64[n], the times of edges, given their indices in ``own`` and the ids of their neighbours."""
        times = None if self.own is None else self.own[places].astype(np.int64, copy=False)
        if self.neighbor is None:
            return times if times is not None else np.empty(0, np.int64)
        neighbors = neighbor_ids if self.neighbor_keys is None else self.neighbor_keys[neighbor_ids]
        later: IntArray = self.neighbor[neighbors].astype(np.int64, copy=False)
        return later if times is None else np.maximum(times, later)


def edge_times(
    graph: Graph, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, NodeSplit], time_attr: str | None
) -> EdgeTimes | None:
    """Return the times of one type's edges in one direction; None if they have no times."""
    other_type = ends_of(edge_type, direction)[1]
    own = graph.edges[edge_type].features.get(time_attr) if time_attr is not None else None
    neighbor = graph.nodes[other_type].features.get(time_attr) if time_attr is not None else None
    if own is None and neighbor is None:
        return None
    return EdgeTimes(own=_values(own), neighbor=_values(neighbor), neighbor_keys=nodes[other_type].keys)


def _values(column: Column | None) -> Array | None:
    """Return a column if ``check_times`` accepts it as an array, else None."""
    return column if isinstance(column, np.ndarray) else None


def sort_by_time(split: EdgeSplit, times: EdgeTimes) -> None:
    """Sort the edges of each row by time, in place and stable."""
    sort_edges(split.indptr, split.keys, split.indices, times)


def sort_edges(indptr: IntArray, places: Array, indices: Array, times: EdgeTimes, *others: Array) -> None:
    """Sort the edges of each row by time, in place and stable.

    Args:
        indptr: int64[num_rows + 1], from 0.
        places: integer[num_edges], the index of each edge in ``times.own``; sorted too.
        indices: integer[num_edges], ids of neighbours; sorted too.
        times: Sources of the times.
        *others: More columns of num_edges rows to sort.
    """
    for first, last, start, stop in row_chunks(indptr):
        offsets = indptr[first : last + 1] - start
        order = row_order(offsets, times.of(places[start:stop], indices[start:stop]), is_descending=False)
        order = order + np.repeat(offsets[:-1], np.diff(offsets))
        for column in (places, indices, *others):
            column[start:stop] = column[start:stop][order]


def row_order(offsets: IntArray, values: Array, *, is_descending: bool) -> Array:
    """Return uint32[n], the positions inside each row in the order of their values; see ``sort_rows``.

    Raises:
        SchemaError: A row has more items than 32 bits can count.
    """
    largest = int(np.diff(offsets).max(initial=0))
    if largest > MAX_DEGREE:
        raise SchemaError(f"a node has {largest} edges of one type; at most {MAX_DEGREE} can be sorted")
    order, scratch = np.empty(len(values), np.uint32), np.empty(largest, np.uint32)
    sort_rows(offsets, values, is_descending, order, scratch)
    return order


def check_times(graph: Graph, time_attr: str) -> None:
    """Refuse a feature that cannot hold times.

    Raises:
        UnknownNameError: No node or edge type has the feature.
        SchemaError: A type's feature of this name is not one integer per row, or does not fit int64.
    """
    check_time_schema(graph.schema, time_attr)
    tables: dict[str | EdgeType, Mapping[str, Column]] = {t: n.features for t, n in graph.nodes.items()}
    tables |= {t: e.features for t, e in graph.edges.items()}
    for entity, features in tables.items():
        column = _values(features.get(time_attr))
        if column is not None:
            check_time_values(f"{type_label(entity)}.{time_attr}", 0, column)


def times_in_unit(where: str, times: Array, unit: TimeUnit | None) -> IntArray:
    """Convert datetime64 values to int64 counts of a dataset's unit of times since 1970, exactly.

    Raises:
        SettingsError: The dataset states no unit, or a time is missing or no whole number of units.
    """
    if unit is None:
        raise SettingsError(
            f"{where} is {times.dtype}, and the dataset states no unit of its times; write it again with time_unit=, "
            "or convert the times, for example by astype('datetime64[s]').astype(np.int64)"
        )
    try:
        converted = times.astype(f"datetime64[{unit}]")
    except OverflowError:
        converted = np.full(times.shape, np.datetime64("NaT", unit))
    is_other = ~(converted.astype(times.dtype) == times)  # not equal to itself: a missing time
    if is_other.any():
        at = int(np.flatnonzero(is_other)[0])
        time = times.reshape(-1)[at]
        if np.isnat(time):
            problem = "a time that is missing; leave its row out, or give a time"
        elif abs(int(time.astype("datetime64[D]").astype(np.int64))) >= np.iinfo(np.int64).max // UNITS_PER_DAY[unit]:
            problem = (
                f"outside the range of the dataset's time unit {unit!r}; write the dataset with a coarser time_unit"
            )
        else:
            problem = (
                f"no whole number of the dataset's time unit {unit!r}; round the times, for example by "
                f"astype('datetime64[{unit}]')"
            )
        raise SettingsError(f"{where}[{at}] is {time}, {problem}")
    return converted.astype(np.int64)


def check_time_schema(schema: GraphSchema, time_attr: str) -> None:
    """Refuse a feature whose type does not fit times; see ``check_times``."""
    tables: list[tuple[str | EdgeType, Mapping[str, FeatureSchema]]] = [*schema.nodes.items(), *schema.edges.items()]
    if not any(time_attr in features for _, features in tables):
        known = {type_label(t): list(features) for t, features in tables if features}
        raise UnknownNameError(
            f"time_attr is {time_attr!r}; no node or edge type has such a feature; "
            f"known: {known}{did_you_mean(time_attr, {name for _, of in tables for name in of})}"
        )
    for entity, features in tables:
        feature = features.get(time_attr)
        if feature is None or feature.can_be_times:
            continue
        remedy = "one integer per row, or rename the feature"
        if feature.is_fixed_width and feature.numpy_dtype.kind == "f":
            remedy = "integers: choose a unit in which all are whole, for example milliseconds, and convert to int64"
        raise SchemaError(f"{type_label(entity)}.{time_attr} is {feature}; times are {remedy}")


def check_time_values(where: str, first_row: int, values: Array) -> None:
    """Refuse times that do not fit int64, in rows of a column from ``first_row``.

    Raises:
        SchemaError: A time does not fit.
    """
    for start in range(0, len(values) if values.dtype == np.uint64 else 0, CHUNK_ROWS):
        is_late = values[start : start + CHUNK_ROWS] > MAX_TIME
        if is_late.any():
            row = start + int(np.argmax(is_late))
            raise SchemaError(
                f"{where}[{first_row + row}] is {int(values[row])}; times must fit int64: subtract an epoch of your own"
            )


INT64 = np.dtype(np.int64)
WEIGHT_COLUMNS = (
    ("weight_sums.npy", np.float64, weight_sums),
    ("weight_order.npy", np.uint32, weight_orders),
    ("weight_alias.npy", np.uint64, weight_aliases),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredColumn:
    """Values of one file, or of some rows of it.

    Attributes:
        path: The file, relative to the dataset.
        dtype: dtype of the file; blocks are converted to it.
        shape: Shape of the values, rows first.
        blocks: The values, block by block, computed on iteration.
        source: An array that holds all values in this order, of any dtype; None if there is none.
    """

    path: PurePosixPath
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Iterable[Array]
    source: Array | None = None


class KeysOfIds(Protocol):
    """Lookup of node keys by id, with the indexing of an array."""

    def __getitem__(self, ids: Array, /) -> Array:
        """Return integer[n], the key of each id."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRun:
    """Edges of consecutive rows, of one type and direction, in stored order.

    Attributes:
        indptr: int64[num_rows + 1], from 0.
        indices: integer[num_edges], ids of the other ends, in their stored dtype.
        keys: integer[num_edges], edge keys, in their stored dtype.
        places: integer[num_edges], the row of each edge in ``features``, ``weights`` and ``times.own``.
        neighbor_keys: integer[num_nodes], the key of each id of the other end, or a lookup.
        times: Sources of the edges' times, or None.
        weights: real[n], or None if the edges have no weights.
        features: Feature name to column of n rows.
    """

    indptr: IntArray
    indices: Array
    keys: Array
    places: Array
    neighbor_keys: Array | KeysOfIds
    times: EdgeTimes | None
    weights: Array | None
    features: Mapping[str, Column]

    def rows(self, first: int, stop: int) -> EdgeRun:
        """Return the edges of rows ``[first, stop)``."""
        start, end = int(self.indptr[first]), int(self.indptr[stop])
        return EdgeRun(
            indptr=self.indptr[first : stop + 1] - start,
            indices=self.indices[start:end],
            keys=self.keys[start:end],
            places=self.places[start:end],
            neighbor_keys=self.neighbor_keys,
            times=self.times,
            weights=self.weights,
            features=self.features,
        )


def edge_columns(folder: PurePosixPath, run: EdgeRun, settings: PartitionSettings) -> Iterator[StoredColumn]:
    """Yield all stored columns of edges but ``indptr``, in the folder of their part."""
    num_edges = len(run.indices)
    indices = _flat(folder / "indices.npy", run.indices.dtype, num_edges, blocks_of(run.indices))
    yield replace(indices, source=run.indices)
    if settings.keep_edge_keys:
        keys = _flat(folder / "key.npy", run.keys.dtype, num_edges, blocks_of(run.keys))
        yield replace(keys, source=run.keys)
    if settings.neighbor_keys:
        neighbor_keys = (run.neighbor_keys[block] for block in blocks_of(run.indices))
        yield _flat(folder / "neighbor_key.npy", run.indices.dtype, num_edges, neighbor_keys)
    if run.times is not None:
        times = map(run.times.of, blocks_of(run.places), blocks_of(run.indices))
        yield _flat(folder / "time.npy", INT64, num_edges, times)
    if run.weights is not None:
        for name, dtype, make_blocks in WEIGHT_COLUMNS:
            blocks = make_blocks(run.indptr, run.weights, run.places)
            yield _flat(folder / name, np.dtype(dtype), num_edges, blocks)
    yield from feature_columns(folder, run.features, run.places)


def feature_columns(folder: PurePosixPath, features: Mapping[str, Column], rows: Array) -> Iterator[StoredColumn]:
    """Yield the stored columns of features, limited to the given rows."""
    is_stretch = _is_stretch(rows)
    for name in features:
        column = features[name]
        paths = feature_paths(folder, name, column_schema(column))
        if isinstance(column, RaggedArray):
            yield from _ragged_columns(paths, column, rows, is_stretch)
        else:
            yield StoredColumn(
                path=paths[0], dtype=column.dtype, shape=(len(rows), *column.shape[1:]), blocks=_taken(column, rows),
                source=column[int(rows[0]) : int(rows[-1]) + 1] if is_stretch else None,
            )  # fmt: skip


def integers(path: PurePosixPath, values: Array) -> StoredColumn:
    """Make a column of integers of any width, stored as int64."""
    return replace(_flat(path, INT64, len(values), blocks_of(values)), source=values)


def _flat(path: PurePosixPath, dtype: np.dtype[Any], num_items: int, blocks: Iterable[Array]) -> StoredColumn:
    return StoredColumn(path=path, dtype=dtype, shape=(num_items,), blocks=blocks)


def _ragged_columns(
    paths: tuple[PurePosixPath, ...], column: RaggedArray, rows: Array, is_stretch: bool
) -> Iterator[StoredColumn]:
    offsets = offsets_of(column.offsets[rows + 1] - column.offsets[rows])
    shape = (int(offsets[-1]), *column.values.shape[1:])
    blocks = _ragged_blocks(column, rows, offsets)
    source = None
    if is_stretch:
        source = column.values[int(column.offsets[rows[0]]) : int(column.offsets[rows[-1] + 1])]
    yield StoredColumn(path=paths[0], dtype=column.values.dtype, shape=shape, blocks=blocks, source=source)
    yield integers(paths[1], offsets)


def blocks_of(values: Array) -> Iterator[Array]:
    """Split an array into blocks of ``CHUNK_ROWS`` rows."""
    return (values[i : i + CHUNK_ROWS] for i in range(0, len(values), CHUNK_ROWS))


def _taken(column: Array, rows: Array) -> Iterator[Array]:
    """Yield the given rows of a column, in blocks of about ``CHUNK_BYTES``."""
    row_bytes = max(1, int(np.prod(column.shape[1:], dtype=np.int64)) * column.itemsize)
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        yield column[int(block[0]) : int(block[-1]) + 1] if _is_stretch(block) else column[block]


def _is_stretch(rows: Array) -> bool:
    """Return whether rows ascend without gaps and thus are a view of their column."""
    return len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool(np.all(rows[1:] > rows[:-1]))


def _ragged_blocks(column: RaggedArray, rows: Array, offsets: IntArray) -> Iterator[Array]:
    """Yield the values of the given rows, in blocks of about ``CHUNK_BYTES`` and at least one row."""
    element_bytes = max(1, int(np.prod(column.values.shape[1:], dtype=np.int64)) * column.values.itemsize)
    step = max(1, CHUNK_BYTES // element_bytes)
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(offsets, offsets[start] + step, side="right")) - 1
        stop = min(max(stop, start + 1), start + CHUNK_ROWS, len(rows))
        yield column.take(rows[start:stop]).values
        start = stop
