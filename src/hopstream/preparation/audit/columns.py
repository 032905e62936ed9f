"""Reads, compares and sums rows of a column that lies in several parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopstream.arrays import (
    CHUNK_BYTES,
    Array,
    Column,
    IntArray,
    RaggedArray,
    combine_checksums,
    extend_checksum,
    offsets_of,
)
from hopstream.schema import FeatureSchema

MAX_BLOCK_ROWS = 1 << 18
RAGGED_BLOCK_ROWS = 1 << 14


def block_rows(feature: FeatureSchema) -> int:
    """How many rows are compared at a time."""
    if not feature.is_fixed_width:
        return RAGGED_BLOCK_ROWS
    return min(MAX_BLOCK_ROWS, max(1, CHUNK_BYTES // max(1, feature.row_bytes)))


def take_ids(columns: Sequence[Column], offsets: IntArray, ids: IntArray, feature: FeatureSchema) -> Column:
    """The rows of some ids, in the order of the ids.

    Args:
        columns: The column of each part.
        offsets: int64[num_parts + 1], the ids of each part.
        ids: int64[n], inside the offsets.
        feature: The schema of the column.
    """
    parts = np.searchsorted(offsets, ids, side="right") - 1
    places = [np.flatnonzero(parts == part) for part in range(len(columns))]
    if feature.is_fixed_width:
        out = np.empty((len(ids), *feature.shape), feature.numpy_dtype)
        for column, found, first in zip(columns, places, offsets, strict=False):
            if isinstance(column, np.ndarray) and len(found):
                out[found] = column[ids[found] - first]
        return out
    taken = [
        column.take(ids[found] - first)
        for column, found, first in zip(columns, places, offsets, strict=False)
        if isinstance(column, RaggedArray)
    ]
    lengths = np.concatenate([np.diff(rows.offsets) for rows in taken])
    joined = RaggedArray(np.concatenate([rows.values for rows in taken]), offsets_of(lengths), feature.is_string)
    back = np.empty(len(ids), np.int64)
    back[np.concatenate(places)] = np.arange(len(ids))
    return joined.take(back)


def differing_rows(got: Column, want: Column) -> IntArray:
    """int64[n], the rows in which two columns of as many rows are not the same bytes."""
    if isinstance(got, RaggedArray) and isinstance(want, RaggedArray):
        differs = np.diff(got.offsets) != np.diff(want.offsets)
        alike = np.flatnonzero(~differs)
        left, right = got.take(alike), want.take(alike)
        items = _differing_items(left.values, right.values)
        differs[alike[np.searchsorted(left.offsets, items, side="right") - 1]] = True
        return np.flatnonzero(differs)
    if isinstance(got, np.ndarray) and isinstance(want, np.ndarray):
        return _differing_items(got, want)
    return np.arange(len(got))


def _differing_items(got: Array, want: Array) -> IntArray:
    if not got.size:
        return np.empty(0, np.int64)
    left, right = (np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1) for a in (got, want))
    return np.flatnonzero((left != right).any(axis=1))


class ColumnSum:
    """The CRC-32C of a column's values, and of its offsets where it has any, taken block by block."""

    def __init__(self, feature: FeatureSchema) -> None:
        """Start."""
        self._is_fixed_width = feature.is_fixed_width
        self._values, self._num_values = 0, 0
        self._offsets = 0 if feature.is_fixed_width else extend_checksum(0, np.zeros(1, np.int64))
        self._num_rows = 0

    def add(self, column: Column) -> None:
        """Take the next rows."""
        if isinstance(column, RaggedArray):
            self._values = extend_checksum(self._values, column.values)
            self._offsets = extend_checksum(self._offsets, column.offsets[1:] + self._num_values)
            self._num_values += len(column.values)
        elif column.size:
            self._values = extend_checksum(self._values, column)
        self._num_rows += len(column)

    @property
    def crc32c(self) -> int:
        """Of the rows so far."""
        if self._is_fixed_width:
            return self._values
        return combine_checksums(self._values, self._offsets, 8 * (self._num_rows + 1))
