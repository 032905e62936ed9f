"""Lists the columns that are stored of nodes or edges, their files, and their values in blocks.

Whoever writes a dataset, all at once or piece by piece, asks here what to write, so every way writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

import numpy as np

from hopstream.arrays import CHUNK_BYTES, Array, Column, IntArray, RaggedArray, column_schema, offsets_of
from hopstream.dataset.edge_weights import weight_aliases, weight_orders, weight_sums
from hopstream.dataset.paths import feature_paths
from hopstream.dataset.settings import PartitionSettings
from hopstream.dataset.times import EdgeTimes

CHUNK_ROWS = 1 << 20
INT64 = np.dtype(np.int64)
WEIGHT_COLUMNS = (
    ("weight_sums.npy", np.float64, weight_sums),
    ("weight_order.npy", np.uint32, weight_orders),
    ("weight_alias.npy", np.uint64, weight_aliases),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredColumn:
    """Values of one file.

    Attributes:
        path: The file, relative to the dataset.
        dtype: Its dtype, which blocks are converted to.
        shape: Of the values here, rows first.
        blocks: The values, one block after the other; made while they are taken.
    """

    path: PurePosixPath
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Iterable[Array]


class KeysOfIds(Protocol):
    """Looks up keys of nodes by their ids, as an array of all of them does."""

    def __getitem__(self, ids: Array, /) -> Array:
        """integer[n], the key of each id."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRun:
    """The edges of some rows that follow each other, of one type and direction, in stored order.

    Attributes:
        indptr: int64[num_rows + 1], from 0.
        indices: integer[num_edges], ids of the other ends.
        keys: integer[num_edges], edge keys.
        places: integer[num_edges], which row of ``features``, ``weights`` and ``times.own`` is each edge's.
        neighbor_keys: integer[num_nodes], the key of each id of the other end, or what looks them up.
        times: Where their times come from, or None.
        weights: real[n], or None where they have no weights.
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
        """The edges of rows ``[first, stop)`` alone."""
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
    """What is stored of edges but ``indptr``, in the folder of their part."""
    num_edges = len(run.indices)
    yield _flat(folder / "indices.npy", run.indices.dtype, num_edges, blocks_of(run.indices))
    if settings.keep_edge_keys:
        yield integers(folder / "key.npy", run.keys)
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
    """What is stored of features: the given rows of each."""
    for name in features:
        column = features[name]
        paths = feature_paths(folder, name, column_schema(column))
        if isinstance(column, RaggedArray):
            yield from _ragged_columns(paths, column, rows)
        else:
            shape = (len(rows), *column.shape[1:])
            yield StoredColumn(path=paths[0], dtype=column.dtype, shape=shape, blocks=_taken(column, rows))


def integers(path: PurePosixPath, values: Array) -> StoredColumn:
    """Integers of any width, stored as int64."""
    return _flat(path, INT64, len(values), blocks_of(values))


def _flat(path: PurePosixPath, dtype: np.dtype[Any], num_items: int, blocks: Iterable[Array]) -> StoredColumn:
    return StoredColumn(path=path, dtype=dtype, shape=(num_items,), blocks=blocks)


def _ragged_columns(paths: tuple[PurePosixPath, ...], column: RaggedArray, rows: Array) -> Iterator[StoredColumn]:
    offsets = offsets_of(column.offsets[rows + 1] - column.offsets[rows])
    shape = (int(offsets[-1]), *column.values.shape[1:])
    blocks = _ragged_blocks(column, rows, offsets)
    yield StoredColumn(path=paths[0], dtype=column.values.dtype, shape=shape, blocks=blocks)
    yield integers(paths[1], offsets)


def blocks_of(values: Array) -> Iterator[Array]:
    """An array in blocks of ``CHUNK_ROWS`` rows."""
    return (values[i : i + CHUNK_ROWS] for i in range(0, len(values), CHUNK_ROWS))


def _taken(column: Array, rows: Array) -> Iterator[Array]:
    """The given rows of a column, in blocks of about ``CHUNK_BYTES``."""
    row_bytes = max(1, int(np.prod(column.shape[1:], dtype=np.int64)) * column.itemsize)
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        # Ascending rows without gaps, as in a dataset of one part, are a view of the column.
        is_stretch = int(block[-1]) - int(block[0]) == len(block) - 1 and bool(np.all(block[1:] > block[:-1]))
        yield column[int(block[0]) : int(block[-1]) + 1] if is_stretch else column[block]


def _ragged_blocks(column: RaggedArray, rows: Array, offsets: IntArray) -> Iterator[Array]:
    """The values of the given rows, in blocks of about ``CHUNK_BYTES``; at least one row each."""
    element_bytes = max(1, int(np.prod(column.values.shape[1:], dtype=np.int64)) * column.values.itemsize)
    step = max(1, CHUNK_BYTES // element_bytes)
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(offsets, offsets[start] + step, side="right")) - 1
        stop = min(max(stop, start + 1), start + CHUNK_ROWS, len(rows))
        yield column.take(rows[start:stop]).values
        start = stop
