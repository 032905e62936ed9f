"""How is a batch of subgraphs brought into a file, as records of TFRecord or as rows of Parquet?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.arrays import Array, RaggedArray
from hopstream.export.settings import Compression, FileFormat
from hopstream.tfgnn.example import EncodedExamples, ValueLists, encode_examples
from hopstream.tfgnn.graph_tensor import GraphPieces, graph_lists
from hopstream.tfgnn.tfrecord import RecordWriter, frame_records


class Encoded(Protocol):
    """Subgraphs as they are written."""

    @property
    def num_bytes(self) -> int:
        """About how much memory they take."""
        ...


class ShardWriter(Protocol):
    """Writes one file. ``encode`` may be called by several threads, ``write`` and ``close`` by one."""

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

    def __init__(self, examples: EncodedExamples) -> None:
        """Fill in sizes and checksums."""
        frame_records(examples.data, examples.offsets)
        self.data: Array = examples.data

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return len(self.data)


class RecordShard:
    """A TFRecord file with a message per subgraph."""

    def __init__(self, path: Path, compression: Compression, *, is_one_at_a_time: bool) -> None:
        """Make the file; what is encoded one at a time is written before the next, and uses the same memory."""
        self._writer = RecordWriter(path, is_compressed=compression == "gzip")
        self._room = np.empty(0, np.uint8)
        self._is_one_at_a_time = is_one_at_a_time

    def encode(self, pieces: GraphPieces) -> Records:
        """Messages with their checksums."""
        room = self._room if self._is_one_at_a_time else None
        examples = encode_examples(graph_lists(pieces), pieces.num_graphs, room=room)
        if self._is_one_at_a_time and len(examples.data) > len(self._room):
            self._room = np.empty(len(examples.data) * 5 // 4, np.uint8)
        return Records(examples)

    def write(self, encoded: Encoded) -> None:
        """Append them in one write."""
        if isinstance(encoded, Records):
            self._writer.write_bytes(encoded.data)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class Rows:
    """Rows of a table."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Hold them."""
        self.batch = batch

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return int(self.batch.nbytes)


class TableShard:
    """A Parquet file with a row per subgraph and a column of lists per feature of a message, named like it."""

    def __init__(self, path: Path, compression: Compression, none: GraphPieces) -> None:
        """Make the file.

        Args:
            path: The file.
            compression: How pages are compressed.
            none: No subgraphs; they tell which columns there are.
        """
        schema = _batch(graph_lists(none)).schema
        self._writer = pq.ParquetWriter(path, schema, compression=compression, write_page_checksum=True)

    def encode(self, pieces: GraphPieces) -> Rows:
        """Rows of lists."""
        return Rows(_batch(graph_lists(pieces)))

    def write(self, encoded: Encoded) -> None:
        """Append them as a row group."""
        if isinstance(encoded, Rows):
            self._writer.write_batch(encoded.batch, row_group_size=max(1, encoded.batch.num_rows))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def open_shard(
    path: Path, file_format: FileFormat, compression: Compression, none: GraphPieces, *, is_one_at_a_time: bool
) -> ShardWriter:
    """Make a file to write subgraphs to.

    Raises:
        OSError: It cannot be made.
    """
    if file_format == "parquet":
        return TableShard(path, compression, none)
    return RecordShard(path, compression, is_one_at_a_time=is_one_at_a_time)


def _batch(lists: Mapping[str, ValueLists]) -> pa.RecordBatch:
    names = sorted(lists)
    return pa.RecordBatch.from_arrays([_lists_array(lists[name]) for name in names], names=names)


def _lists_array(lists: ValueLists) -> pa.Array:
    values: pa.Array
    if isinstance(lists.values, RaggedArray):
        strings = lists.values
        buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(np.ascontiguousarray(strings.values))]
        values = pa.Array.from_buffers(pa.large_binary(), len(strings), buffers)
    else:
        values = pa.array(lists.values)
    return pa.LargeListArray.from_arrays(pa.array(lists.offsets), values)
