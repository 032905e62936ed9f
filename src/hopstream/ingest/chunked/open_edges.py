"""Opens a file of edges in the format that its table names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopstream.errors import SchemaError
from hopstream.ingest.chunked.edge_files import CountedFile, EdgeFile, Rows
from hopstream.ingest.chunked.metadata import FileSpec
from hopstream.ingest.chunked.npy import NpyFile, open_npy
from hopstream.ingest.chunked.sources import BLOCK_ROWS, Span


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
