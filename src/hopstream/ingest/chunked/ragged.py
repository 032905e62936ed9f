"""The interface of a feature of strings, or of lists of any length, whose rows are read block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, RaggedArray, offsets_of
from hopstream.errors import IdRangeError
from hopstream.schema import STRING, FeatureSchema

BLOCK_BYTES = 8 << 20
"""About what a block of rows takes; one that is a single row takes what the row takes."""
OFFSET_BYTES = 8


class RaggedSource(ABC):
    """The rows of one feature whose rows hold any number of elements, cut over files.

    Attributes:
        num_rows: How many rows.
        dtype: Of the elements; uint8 where rows are strings.
        shape: Of one element.
        is_string: Rows are UTF-8 strings.
        num_elements: Of all rows, about; it decides over how work is cut, and no more.
    """

    num_rows: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_string: bool
    num_elements: int

    @property
    def schema(self) -> FeatureSchema:
        """The schema of the feature."""
        if self.is_string:
            return FeatureSchema(dtype=STRING)
        return FeatureSchema(dtype=self.dtype.name, shape=self.shape, is_ragged=True)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.schema.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its offset, about and on average."""
        return OFFSET_BYTES + -(-self.num_elements * self.element_bytes // max(1, self.num_rows))

    def stretches(self, num_rows: int) -> Iterator[tuple[int, int]]:
        """``(first row, end row)`` of stretches of about so many rows; at least one, if of no rows.

        Where rows can only be read from certain ones on, stretches begin there and are longer: reading each is to be as
        cheap as reading all at once.
        """
        first = 0
        while first == 0 or first < self.num_rows:
            stop = min(self._next_start(first + num_rows), self.num_rows)
            yield first, stop
            first = max(stop, 1)

    def _next_start(self, row: int) -> int:
        """The first row, from one on, that reading can begin with."""
        return row

    @abstractmethod
    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read some rows in order, in pieces of at most about ``BLOCK_BYTES``, or of one row; see ``blocks``."""

    def blocks(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read some rows in order, in blocks of at most ``BLOCK_BYTES``, or of one row.

        Where blocks end follows from what the rows hold, wherever they are kept.

        Args:
            start: First row.
            stop: One after the last, ``start <= stop <= num_rows``.

        Raises:
            FormatError: A file is damaged, or has changed since it was opened.
            SchemaError: A row has no value, or is no UTF-8.
            IdRangeError: The rows are outside 0..num_rows.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IdRangeError(f"rows {start}..{stop} of a column of {self.num_rows} rows")
        waiting: list[RaggedArray] = []
        room = BLOCK_BYTES
        for piece in self.pieces(start, stop):
            sizes = piece.offsets * self.element_bytes + np.arange(len(piece) + 1) * OFFSET_BYTES
            first = 0
            while first < len(piece):
                last = int(np.searchsorted(sizes, sizes[first] + room, side="right")) - 1
                if last > first or not waiting:
                    last = max(last, first + 1)
                    waiting.append(slice_rows(piece, first, last))
                    room, first = room - int(sizes[last] - sizes[first]), last
                if first < len(piece):  # the next row has no room
                    yield self.joined(waiting)
                    waiting, room = [], BLOCK_BYTES
        if waiting:
            yield self.joined(waiting)

    def read(self, start: int, stop: int) -> RaggedArray:
        """Read some rows at once; see ``blocks``."""
        return self.joined(list(self.blocks(start, stop)))

    def lengths(self, start: int, stop: int) -> IntArray:
        """int64[stop - start], the elements of some rows; see ``blocks``."""
        found = np.empty(max(0, stop - start), np.int64)
        row = 0
        for block in self.blocks(start, stop):
            found[row : row + len(block)] = np.diff(block.offsets)
            row += len(block)
        return found

    def joined(self, blocks: Iterable[RaggedArray]) -> RaggedArray:
        """Blocks of the feature one after the other, as one."""
        held = list(blocks)
        if len(held) == 1:
            return held[0]
        values = [np.empty((0, *self.shape), self.dtype), *(block.values for block in held)]
        lengths = [np.empty(0, np.int64), *(np.diff(block.offsets) for block in held)]
        return RaggedArray(np.concatenate(values), offsets_of(np.concatenate(lengths)), self.is_string)


def slice_rows(rows: RaggedArray, first: int, stop: int) -> RaggedArray:
    """Rows ``[first, stop)``, which share memory."""
    offsets = rows.offsets[first : stop + 1]
    return RaggedArray(rows.values[offsets[0] : offsets[-1]], offsets - offsets[0], rows.is_string)


def cut_rows(offsets: IntArray, element_bytes: int) -> Iterator[tuple[int, int]]:
    """``(first row, end row)`` of stretches of about ``BLOCK_BYTES``, or of one row.

    Args:
        offsets: int64[num_rows + 1], ascending; where the elements of each row begin.
        element_bytes: Bytes of one element.
    """
    most = max(1, BLOCK_BYTES // max(1, element_bytes))
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(last, first + 1), first + max(1, BLOCK_BYTES // OFFSET_BYTES), num_rows)
        yield first, last
        first = last
