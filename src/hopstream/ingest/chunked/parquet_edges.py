"""Reads edges from a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from hopstream.arrays import IntArray
from hopstream.errors import SchemaError
from hopstream.ingest.chunked.edge_files import CountedFile, Rows
from hopstream.ingest.chunked.parquet import open_parquet
from hopstream.ingest.chunked.sources import Span

BATCH_ROWS = 1 << 17


class ParquetEdges(CountedFile):
    """A Parquet file of two columns of integers with any names: sources, then destinations."""

    def __init__(self, path: Path, shown: str) -> None:
        """Read the footer.

        Raises:
            FormatError: The file is damaged or truncated.
            SchemaError: It has not two columns of integers.
        """
        self._file = open_parquet(path, shown)
        self.shown, self.num_rows = shown, self._file.num_rows
        schema = self._file.schema
        if len(schema) != 2 or not all(pa.types.is_integer(field.type) for field in schema):
            columns = {field.name: str(field.type) for field in schema}
            raise SchemaError(f"{shown} has columns {columns}; wanted two of integers, sources and destinations")

    def place(self, row: int) -> str:
        """As ``EdgeFile.place``."""
        return self._file.place(row)

    def ends(self) -> Sequence[int]:
        """As ``CountedFile.ends``: where row groups end."""
        return cast(list[int], self._file.group_offsets[1:].tolist())

    def read(self, span: Span) -> Iterator[Rows]:
        """As ``EdgeFile.read``."""
        for row, columns in self._file.batches(span.first_row, span.first_row + span.num_rows, BATCH_ROWS):
            src_keys, dst_keys = (self._integers(row, column) for column in columns)
            yield row, src_keys, dst_keys

    def _integers(self, row: int, column: pa.Array) -> IntArray:
        if column.null_count:
            bad_row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise SchemaError(f"{self.place(row + bad_row)} has no value; wanted an integer")
        return self.keys(row, column.to_numpy(zero_copy_only=False))
