"""Spills columns to disk between steps, and partitions raw ids into buckets.

The raw ids of a table are partitioned by hash. The raw ids of nodes without a table are partitioned by range, because
their keys follow their order. A block's raw ids are grouped by bucket; nulls come last and belong to no bucket.

A column is a file of raw values without a header, so many tasks can read or write parts of it. The caller knows the
dtype. A folder of columns appears by an atomic rename.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, IntArray, offsets_of, open_array, write_array
from hopstream.errors import StateError
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, text_of
from hopstream.kernels.hashing import hash_keys
from hopstream.kernels.spill import find_ranges, group_rows, hash_strings


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a folder under a temporary name, and rename it when it is complete.

    If the folder exists already, it has the same content and stays.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(partial)
        else:
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def append_values(file: IO[bytes], values: Array) -> None:
    """Write an array's values at the end of a file."""
    if values.size:
        file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def read_values(path: Path, dtype: np.dtype[Any] | type[Any], start: int, count: int, width: int = 1) -> Array:
    """Read a range of the rows of a column.

    Args:
        path: The file.
        dtype: Dtype of its values.
        start: The first row.
        count: Number of rows.
        width: Values per row.

    Returns:
        dtype[count * width].

    Raises:
        StateError: The file is too short, for example after a power failure.
    """
    values = np.empty(count * width, dtype)
    left = memoryview(values.view(np.uint8))  # type: ignore[arg-type]
    if not count:
        return values
    with path.open("rb", buffering=0) as file:
        file.seek(start * width * values.itemsize)
        while len(left):
            num_bytes = file.readinto(left)
            if not num_bytes:
                raise StateError(f"{path} ends before row {start + count}; remove its folder and start again")
            left = left[num_bytes:]
    return values


def write_values(path: Path, start: int, values: Array) -> None:
    """Overwrite values of an existing file from the value at index ``start`` on."""
    left = memoryview(np.ascontiguousarray(values).view(np.uint8))  # type: ignore[arg-type]
    offset = start * values.itemsize
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while len(left):
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def make_file(path: Path, num_bytes: int) -> None:
    """Create a sparse file of zeros, which takes no disk space until it is written to."""
    with path.open("wb") as file:
        file.truncate(num_bytes)


HASH_SEED = np.uint64(0x5EED)


def strings_of(values: Array, lengths: Array) -> pa.Array:
    """Return ``large_string`` values from their bytes and lengths."""
    buffers = [None, pa.py_buffer(offsets_of(lengths)), pa.py_buffer(values)]
    return pa.Array.from_buffers(NAME, len(lengths), buffers)


def hashes_of(raw: pa.Array) -> Array:
    """Return uint64[n], a hash of each raw id."""
    hashes = np.empty(len(raw), np.uint64)
    if raw.type == INTEGER:
        hash_keys(raw.fill_null(0).to_numpy(), HASH_SEED, hashes)
    else:
        hash_strings(*text_of(raw), hashes)
    return hashes


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The partitioning of one node type's raw ids into buckets.

    Attributes:
        num_buckets: Number of buckets.
        bounds: For buckets that are ranges, the first raw id of each bucket but the first, ascending; for hashes None.
    """

    num_buckets: int
    bounds: pa.Array | None = None

    def find(self, raw: pa.Array) -> Array:
        """Return uint32[n], the bucket of each raw id; ``num_buckets`` for nulls."""
        if self.bounds is None:
            hashes = hashes_of(raw)
            found = ((hashes >> np.uint64(32)) * np.uint64(self.num_buckets) >> np.uint64(32)).astype(np.uint32)
        elif raw.type == INTEGER:
            numbers = raw.fill_null(0).to_numpy()
            found = np.searchsorted(self.bounds.to_numpy(), numbers, side="right").astype(np.uint32)
        else:
            found = np.empty(len(raw), np.uint32)
            find_ranges(*text_of(raw), *text_of(self.bounds), found)
        if raw.null_count:
            found[raw.is_null().to_numpy(zero_copy_only=False)] = self.num_buckets
        return found


class GroupedWriter:
    """Writer of a column of raw ids, block by block, each block grouped by bucket."""

    def __init__(self, folder: Path, name: str, buckets: Buckets, stack: ExitStack) -> None:
        """Open the files; ``stack`` closes them."""
        self._folder, self._name, self._buckets = folder, name, buckets
        self._values, self._lengths, self._order = (
            stack.enter_context((folder / f"{name}.{what}").open("wb")) for what in ("values", "lengths", "order")
        )
        self._starts: list[IntArray] = []
        self._byte_starts: list[IntArray] = []

    def write(self, chunks: Sequence[pa.Array], raw_type: pa.DataType) -> None:
        """Write a block."""
        block = pa.chunked_array(chunks, raw_type).combine_chunks()
        found = self._buckets.find(block)
        starts = offsets_of(np.bincount(found, minlength=self._buckets.num_buckets + 1))
        order = np.empty(len(block), np.uint32)
        group_rows(found, starts[:-1].copy(), order)
        del found
        append_values(self._order, order)
        grouped = block.take(pa.array(order))
        del block
        if raw_type == INTEGER:
            append_values(self._values, grouped.fill_null(0).to_numpy())
            byte_starts = starts * 8
        else:
            text, offsets = text_of(grouped)
            append_values(self._values, text[offsets[0] : offsets[-1]])
            append_values(self._lengths, np.diff(offsets).astype(np.uint32))
            byte_starts = (offsets - offsets[0])[starts]
        self._starts.append(starts)
        self._byte_starts.append(byte_starts)

    def finish(self, answers: str, answer_bytes: int) -> None:
        """Write the offsets of the buckets, and create the zero-filled file for the answers to the raw ids."""
        width = self._buckets.num_buckets + 2
        for name, starts in (("starts", self._starts), ("byte-starts", self._byte_starts)):
            write_array(self._folder / f"{self._name}.{name}.npy", np.array(starts, np.int64).reshape(-1, width))
        num_rows = int(sum(starts[-1] for starts in self._starts))
        make_file(self._folder / f"{self._name}.{answers}", num_rows * answer_bytes)


@dataclass(frozen=True, eq=False)
class GroupedColumn:
    """Reader of a column of raw ids of one part of a table, written by ``GroupedWriter``.

    Attributes:
        folder: Folder of its files.
        name: Prefix of its files' names.
        raw_type: Arrow type of the raw ids.
    """

    folder: Path
    name: str
    raw_type: pa.DataType

    def path(self, what: str) -> Path:
        """Return the path of one of the column's files."""
        return self.folder / f"{self.name}.{what}"

    @cached_property
    def starts(self) -> Array:
        """int64[num_blocks, num_buckets + 2], offset of each bucket in its block; memory-mapped."""
        return open_array(self.path("starts.npy"))

    @cached_property
    def byte_starts(self) -> Array:
        """int64[num_blocks, num_buckets + 2], offset of each bucket in the bytes of its block; memory-mapped."""
        return open_array(self.path("byte-starts.npy"))

    @cached_property
    def block_rows(self) -> IntArray:
        """int64[num_blocks + 1], the first row of each block."""
        return offsets_of(self.starts[:, -1])

    @cached_property
    def _block_bytes(self) -> IntArray:
        return offsets_of(self.byte_starts[:, -1])

    def place(self, block: int, bucket: int) -> tuple[int, int]:
        """Return the offset in the whole column, and the length, of a bucket's share of a block."""
        first, stop = (int(value) for value in self.starts[block, bucket : bucket + 2])
        return int(self.block_rows[block]) + first, stop - first

    def values(self, block: int, bucket: int) -> pa.Array:
        """Read the raw ids of a bucket in a block."""
        first, count = self.place(block, bucket)
        if self.raw_type == INTEGER:
            return pa.array(read_values(self.path("values"), np.int64, first, count))
        begin, end = (int(value) for value in self.byte_starts[block, bucket : bucket + 2])
        text = read_values(self.path("values"), np.uint8, int(self._block_bytes[block]) + begin, end - begin)
        return strings_of(text, read_values(self.path("lengths"), np.uint32, first, count))

    def order(self, block: int, bucket: int) -> Array:
        """Read uint32[n], the row in the block of each of a bucket's raw ids."""
        return read_values(self.path("order"), np.uint32, *self.place(block, bucket))

    def whole_order(self, block: int) -> Array:
        """Read uint32[num_rows], the row in the block of the raw ids of all buckets, nulls last."""
        first, stop = (int(value) for value in self.block_rows[block : block + 2])
        return read_values(self.path("order"), np.uint32, first, stop - first)
