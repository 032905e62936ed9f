"""Writes subgraphs to a file, as records of TFRecord or as rows of Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.export.raw_ids import arrow_strings
from hopstream.export.settings import Compression, FileFormat
from hopstream.tfgnn.example import EncodedExamples, ValueLists, encode_examples
from hopstream.tfgnn.graph_tensor import GraphPieces, graph_lists
from hopstream.tfgnn.tfrecord import RecordWriter, frame_records

ROW_GROUP_BYTES = 8 << 20
"""A row group ends with the row that reaches this size."""


class Encoded(Protocol):
    """Encoded subgraphs."""

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the encoded subgraphs."""
        ...


class ShardWriter(Protocol):
    """Writer of one file.

    Any thread may call ``encode``; only one thread may call ``write`` and ``close``.

    Encoded subgraphs may be written only once, because ``write`` reuses their memory.
    """

    def encode(self, pieces: GraphPieces) -> Encoded:
        """Encode subgraphs."""
        ...

    def write(self, encoded: Encoded) -> None:
        """Append encoded subgraphs to the file."""
        ...

    def close(self) -> None:
        """Write buffered rows and close the file."""
        ...


class Records:
    """Framed messages."""

    def __init__(self, examples: EncodedExamples, room: Array) -> None:
        """Fill in sizes and checksums.

        Args:
            examples: The messages.
            room: Buffer to reuse after the records are written.
        """
        frame_records(examples.data, examples.offsets)
        self.data: Array = examples.data
        self.room = room

    @property
    def num_bytes(self) -> int:
        """Number of bytes in the file."""
        return len(self.data)


class RecordShard:
    """A TFRecord file with a message per subgraph."""

    def __init__(self, path: Path, compression: Compression) -> None:
        """Create the file."""
        self._writer = RecordWriter(path, is_compressed=compression == "gzip")
        self._rooms: list[Array] = []
        """Buffers to reuse: allocating new memory costs more than filling it, and the allocator does not return all
        memory to the system that many threads allocate and free."""

    def encode(self, pieces: GraphPieces) -> Records:
        """Encode subgraphs as messages with checksums."""
        try:
            room = self._rooms.pop()  # atomic, so threads need no lock
        except IndexError:
            room = np.empty(0, np.uint8)
        examples = encode_examples(graph_lists(pieces), pieces.num_graphs, room=room)
        if len(examples.data) > len(room):
            room = np.empty(len(examples.data) * 5 // 4, np.uint8)
        return Records(examples, room)

    def write(self, encoded: Encoded) -> None:
        """Append records in one write, and keep their buffer for reuse."""
        if isinstance(encoded, Records):
            self._writer.write_bytes(encoded.data)
            self._rooms.append(encoded.room)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class TableRows:
    """Encoded rows of a table."""

    def __init__(self, lists: Mapping[str, ValueLists], num_rows: int) -> None:
        """Convert lists to a record batch, and sum up the bytes of the rows."""
        self.batch = _batch(lists)
        self.ends = np.cumsum(sum((_row_bytes(of) for of in lists.values()), np.zeros(num_rows, np.int64)))

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return int(self.ends[-1]) if len(self.ends) else 0


class TableShard:
    """A Parquet file with a row per subgraph and a column of lists per feature of the message.

    A row group ends with the row that reaches ``ROW_GROUP_BYTES``, however rows are batched.
    """

    def __init__(self, path: Path, compression: Compression, none: GraphPieces) -> None:
        """Create the file.

        Args:
            path: The file.
            compression: Compression of pages.
            none: Pieces without subgraphs, which define the columns.
        """
        schema = _batch(graph_lists(none)).schema
        self._writer = pq.ParquetWriter(path, schema, compression=compression, write_page_checksum=True)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def encode(self, pieces: GraphPieces) -> TableRows:
        """Encode subgraphs as rows of lists."""
        return TableRows(graph_lists(pieces), pieces.num_graphs)

    def write(self, encoded: Encoded) -> None:
        """Buffer rows, and write full row groups."""
        if not isinstance(encoded, TableRows):
            return
        first, before = 0, 0
        while first < len(encoded.ends):
            full = before + ROW_GROUP_BYTES - self._held_bytes
            last = min(int(np.searchsorted(encoded.ends, full)) + 1, len(encoded.ends))
            self._held.append(encoded.batch.slice(first, last - first))
            self._held_bytes += int(encoded.ends[last - 1]) - before
            if self._held_bytes >= ROW_GROUP_BYTES:
                self._write_group()
            first, before = last, int(encoded.ends[last - 1])

    def close(self) -> None:
        """Write the buffered rows and the footer."""
        if self._held:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._held).combine_chunks()  # the ends of chunks would end pages
        self._held, self._held_bytes = [], 0
        self._writer.write_table(rows, row_group_size=rows.num_rows)


def open_shard(path: Path, file_format: FileFormat, compression: Compression, none: GraphPieces) -> ShardWriter:
    """Create a file for subgraphs; ``none``, pieces without subgraphs, defines the columns.

    Raises:
        OSError: The file cannot be created.
    """
    if file_format == "parquet":
        return TableShard(path, compression, none)
    return RecordShard(path, compression)


def _batch(lists: Mapping[str, ValueLists]) -> pa.RecordBatch:
    names = sorted(lists)
    return pa.RecordBatch.from_arrays([_lists_array(lists[name]) for name in names], names=names)


def _row_bytes(lists: ValueLists) -> IntArray:
    """Return int64[num_rows], the bytes of each row's list."""
    if isinstance(lists.values, RaggedArray):
        at: IntArray = lists.values.offsets[lists.offsets] + 8 * lists.offsets
    else:
        at = lists.offsets * lists.values.itemsize
    return np.diff(at) + 8


def _lists_array(lists: ValueLists) -> pa.Array:
    values: pa.Array
    if isinstance(lists.values, RaggedArray):
        values = arrow_strings(lists.values, pa.large_binary())
    else:
        values = pa.array(lists.values)
    return pa.LargeListArray.from_arrays(pa.array(lists.offsets), values)
