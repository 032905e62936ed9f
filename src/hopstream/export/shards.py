"""Writes a batch of subgraphs to a file, as records of TFRecord or as rows of Parquet."""

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
"""What the values of a row group have, or one row more."""


class Encoded(Protocol):
    """Subgraphs as they are written."""

    @property
    def num_bytes(self) -> int:
        """About how much memory they take."""
        ...


class ShardWriter(Protocol):
    """Writes one file. ``encode`` may be called by several threads, ``write`` and ``close`` by one.

    What is encoded is written once, and its memory is used again then.
    """

    def encode(self, pieces: GraphPieces) -> Encoded:
        """Subgraphs as they are written."""
        ...

    def write(self, encoded: Encoded) -> None:
        """Append them to the file."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class Records:
    """Framed messages."""

    def __init__(self, examples: EncodedExamples, room: Array) -> None:
        """Fill in sizes and checksums.

        Args:
            examples: The messages.
            room: What is used again when they are written.
        """
        frame_records(examples.data, examples.offsets)
        self.data: Array = examples.data
        self.room = room

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return len(self.data)


class RecordShard:
    """A TFRecord file with a message per subgraph."""

    def __init__(self, path: Path, compression: Compression) -> None:
        """Make the file."""
        self._writer = RecordWriter(path, is_compressed=compression == "gzip")
        self._rooms: list[Array] = []
        """What was written, to be written over: fresh memory costs more than filling it, and what many threads take
        and give back is not all given to the system."""

    def encode(self, pieces: GraphPieces) -> Records:
        """Messages with their checksums."""
        try:
            room = self._rooms.pop()  # by one thread, whichever others pop
        except IndexError:
            room = np.empty(0, np.uint8)
        examples = encode_examples(graph_lists(pieces), pieces.num_graphs, room=room)
        if len(examples.data) > len(room):
            room = np.empty(len(examples.data) * 5 // 4, np.uint8)
        return Records(examples, room)

    def write(self, encoded: Encoded) -> None:
        """Append them in one write."""
        if isinstance(encoded, Records):
            self._writer.write_bytes(encoded.data)
            self._rooms.append(encoded.room)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class TableRows:
    """Rows of a table."""

    def __init__(self, lists: Mapping[str, ValueLists], num_rows: int) -> None:
        """Hold them, and what each of them has."""
        self.batch = _batch(lists)
        self.ends = np.cumsum(sum((_row_bytes(of) for of in lists.values()), np.zeros(num_rows, np.int64)))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return int(self.ends[-1]) if len(self.ends) else 0


class TableShard:
    """A Parquet file with a row per subgraph and a column of lists per feature of a message, named like it.

    A row group ends with the row that makes it some megabytes, whatever batches rows come in.
    """

    def __init__(self, path: Path, compression: Compression, none: GraphPieces) -> None:
        """Make the file.

        Args:
            path: The file.
            compression: How pages are compressed.
            none: No subgraphs; they tell which columns there are.
        """
        schema = _batch(graph_lists(none)).schema
        self._writer = pq.ParquetWriter(path, schema, compression=compression, write_page_checksum=True)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def encode(self, pieces: GraphPieces) -> TableRows:
        """Rows of lists."""
        return TableRows(graph_lists(pieces), pieces.num_graphs)

    def write(self, encoded: Encoded) -> None:
        """Append them, and write the row groups that are full."""
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
        """Write what is held, and the footer."""
        if self._held:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._held).combine_chunks()  # pages end where chunks do
        self._held, self._held_bytes = [], 0
        self._writer.write_table(rows, row_group_size=rows.num_rows)


def open_shard(path: Path, file_format: FileFormat, compression: Compression, none: GraphPieces) -> ShardWriter:
    """Make a file to write subgraphs to; ``none`` tells which columns there are.

    Raises:
        OSError: It cannot be made.
    """
    if file_format == "parquet":
        return TableShard(path, compression, none)
    return RecordShard(path, compression)


def _batch(lists: Mapping[str, ValueLists]) -> pa.RecordBatch:
    names = sorted(lists)
    return pa.RecordBatch.from_arrays([_lists_array(lists[name]) for name in names], names=names)


def _row_bytes(lists: ValueLists) -> IntArray:
    """int64[num_rows], the bytes of each row's list."""
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
