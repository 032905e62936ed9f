"""What does a file of edges answer, however it is written?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import IdRangeError, SchemaError
from hopstream.ingest.chunked.metadata import FileSpec
from hopstream.ingest.chunked.npy import NpyFile, open_npy
from hopstream.ingest.chunked.sources import BLOCK_ROWS, Span

Rows = tuple[int, IntArray, IntArray]
"""First row of a block in its file, then sources and destinations, int64[num_rows] each."""
MAX_KEY = (1 << 63) - 1


class EdgeFile(ABC):
    """One file of edges."""

    shown: str
    """What messages call it."""

    @abstractmethod
    def place(self, row: int) -> str:
        """A row, as messages show it."""

    @abstractmethod
    def count(self, declared: int | None) -> int | None:
        """How many edges the file has; None where only reading it would tell.

        Raises:
            SchemaError: It cannot have as many as are declared.
        """

    @abstractmethod
    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """Cut the rows into spans of at most ``max_rows``; ``number`` is the file's in its table."""

    @abstractmethod
    def read(self, span: Span) -> Iterator[Rows]:
        """Read blocks of at most ``BLOCK_ROWS``."""


class CountedFile(EdgeFile):
    """A file that says how many rows it has."""

    num_rows: int

    def count(self, declared: int | None) -> int:
        """As ``EdgeFile.count``."""
        if declared is not None and self.num_rows != declared:
            raise SchemaError(f"{self.shown} has {self.num_rows} edges; the metadata says {declared}")
        return self.num_rows

    def ends(self) -> Sequence[int]:
        """Rows before which it is good to cut, ascending; the last is the number of rows."""
        return [self.num_rows]

    def spans(self, number: int, declared: int | None, max_rows: int) -> list[Span]:
        """As ``EdgeFile.spans``; row groups stay whole where they are small enough, so that none is decoded twice."""
        cuts, last = [0], 0
        for end in self.ends():
            if end - cuts[-1] > max_rows and last > cuts[-1]:
                cuts.append(last)
            cuts.extend(range(cuts[-1] + max_rows, end, max_rows))
            last = end
        if last > cuts[-1]:
            cuts.append(last)
        return [Span(file=number, first_row=start, num_rows=end - start) for start, end in pairwise(cuts)]

    def keys(self, row: int, values: Array) -> IntArray:
        """Integers of any dtype as int64; ``row`` is the first one's."""
        if values.dtype == np.uint64 and len(values) and int(values.max()) > MAX_KEY:
            bad_row = int(np.argmax(values > MAX_KEY))
            raise IdRangeError(f"{self.place(row + bad_row)} has {int(values[bad_row])}; keys are below 2**63")
        return np.ascontiguousarray(values, np.int64)


class NpyEdges(CountedFile):
    """An ``.npy`` file of integers [num_edges, 2]."""

    def __init__(self, file: NpyFile) -> None:
        """Refuse other shapes."""
        self._file, self.shown, self.num_rows = file, file.shown, file.num_rows
        if file.shape != (2,) or file.dtype.kind not in "iu":
            is_turned = len(file.shape) == 1 and file.num_rows == 2
            remedy = "transpose them" if is_turned else "a row is a source and a destination"
            shape = [file.num_rows, *file.shape]
            raise SchemaError(f"{file.shown} is {file.dtype}{shape}; wanted integers [num_edges, 2]: {remedy}")

    def place(self, row: int) -> str:
        """As ``EdgeFile.place``."""
        return f"{self.shown} row {row}"

    def read(self, span: Span) -> Iterator[Rows]:
        """As ``EdgeFile.read``."""
        end = span.first_row + span.num_rows
        for row in range(span.first_row, end, BLOCK_ROWS):
            pairs = np.empty((min(BLOCK_ROWS, end - row), 2), self._file.dtype.newbyteorder("="))
            self._file.read_into(row, pairs)
            yield row, self.keys(row, pairs[:, 0]), self.keys(row, pairs[:, 1])


def open_edge_file(spec: FileSpec, number: int) -> EdgeFile:
    """Look at a file's size, header or footer.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: It does not hold pairs of integers.
    """
    path, shown = spec.path(number), spec.shown(number)
    if spec.format == "csv":
        from hopstream.ingest.chunked.lines import LinesFile  # Arrow costs a worker 40 MB

        return LinesFile(path, shown, spec.delimiter)
    if spec.format == "parquet":
        from hopstream.ingest.chunked.parquet_edges import ParquetEdges

        return ParquetEdges(path, shown)
    return NpyEdges(open_npy(path, shown))
