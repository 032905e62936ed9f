"""Contract of a file of edges, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import IdRangeError, SchemaError
from hopstream.ingest.chunked.sources import Span

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
