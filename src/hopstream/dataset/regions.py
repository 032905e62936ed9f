"""Writes byte ranges of one ``.npy`` file from many tasks, and combines their checksums.

A file is created with its header and full length. Tasks then write ranges that do not overlap. The content of a range
follows from the input alone, so a task that runs twice, even concurrently, writes the same bytes. Checksums of ranges
are combined in file order, so nothing is read again.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, FileRecord, array_header, combine_checksums, extend_checksum, read_header
from hopstream.dataset.stored_columns import StoredColumn
from hopstream.errors import FormatError

Stretch = tuple[int, int, int]
"""A range of bytes: first byte after the header, number of bytes, CRC-32C."""

Stretches = dict[str, list[Stretch]]
"""Path relative to the dataset to the written ranges of the file; JSON turns the tuples into lists."""

HEADER_START_BYTES = 10
"""Length of the magic, the version and the header's length field."""


def make_file(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Create a file with its header and full length; an existing file keeps its content."""
    header = array_header(dtype, shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _write_all(descriptor, header, 0, path)
        os.ftruncate(descriptor, len(header) + math.prod(shape) * dtype.itemsize)
    finally:
        os.close(descriptor)


class RegionWriter:
    """Writer of ranges of a dataset's files, which records them."""

    def __init__(self, root: Path) -> None:
        """Set the root folder. Nothing is written yet."""
        self._root = root
        self.stretches: Stretches = {}

    def write(self, column: StoredColumn, first_row: int) -> None:
        """Write the values of a column, starting at a row of its file.

        Raises:
            OSError: A system call failed; the error names the file.
        """
        row_bytes = math.prod(column.shape[1:]) * column.dtype.itemsize
        self.write_blocks(column.path, column.dtype, first_row * row_bytes, column.blocks)

    def write_blocks(self, name: PurePosixPath, dtype: np.dtype[Any], first_byte: int, blocks: Iterable[Array]) -> None:
        """Write blocks of values, starting at a byte after the header; see ``write``."""
        path = self._root / name
        stretches = self.stretches.setdefault(str(name), [])
        num_bytes = 0
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = _header_bytes(descriptor, path) + first_byte
            for block in blocks:
                values = np.ascontiguousarray(block, dtype)
                add_stretch(stretches, first_byte + num_bytes, values)
                _write_all(descriptor, values.reshape(-1).view(np.uint8), start + num_bytes, path)
                num_bytes += values.nbytes
        finally:
            os.close(descriptor)


def add_stretch(stretches: list[Stretch], first_byte: int, values: Array) -> None:
    """Record values that were written or read at a byte; extend the last range if they continue it."""
    if not values.nbytes:
        return
    is_next = bool(stretches) and stretches[-1][0] + stretches[-1][1] == first_byte
    begun, before, checksum = stretches.pop() if is_next else (first_byte, 0, 0)
    stretches.append((begun, before + values.nbytes, extend_checksum(checksum, values)))


def _header_bytes(descriptor: int, path: Path) -> int:
    start = os.pread(descriptor, HEADER_START_BYTES, 0)
    if len(start) < HEADER_START_BYTES:
        raise FormatError(f"{path} has no header; another process has changed it: remove the folder and start again")
    return HEADER_START_BYTES + int.from_bytes(start[8:10], "little")


def _write_all(descriptor: int, data: bytes | Array, offset: int, path: Path) -> None:
    """Write all bytes at an offset; a system error names the file."""
    left = memoryview(data)  # type: ignore[arg-type]
    try:
        while len(left):
            written = os.pwrite(descriptor, left, offset)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            left, offset = left[written:], offset + written
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def merge_stretches(results: Iterable[Mapping[str, Sequence[Sequence[int]]]]) -> Stretches:
    """Merge the ranges that several tasks wrote."""
    merged: Stretches = {}
    for result in results:
        for name, stretches in result.items():
            merged.setdefault(name, []).extend((int(a), int(b), int(c)) for a, b, c in stretches)
    return merged


def file_record(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], stretches: Sequence[Stretch]) -> FileRecord:
    """Make the record of a file from its ranges.

    Raises:
        FormatError: The ranges do not cover each byte of the file exactly once.
    """
    header = array_header(dtype, shape)
    checksum, end = extend_checksum(0, np.frombuffer(header, np.uint8)), 0
    for first, num_bytes, stretch_checksum in sorted(stretches):
        if first != end:
            raise FormatError(f"{name}: bytes {end}..{first} were written never or more than once; start again")
        checksum, end = combine_checksums(checksum, stretch_checksum, num_bytes), end + num_bytes
    wanted = math.prod(shape) * dtype.itemsize
    if end != wanted:
        raise FormatError(f"{name}: {end} of {wanted} bytes were written; start again")
    return FileRecord(dtype.name, shape, len(header) + end, checksum)


def read_into(path: Path, offset: int, array: Array) -> None:
    """Fill an array from an offset in a file.

    Raises:
        FormatError: The file is too short.
    """
    left = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while len(left):
            num_bytes = file.readinto(left)
            if not num_bytes:
                raise FormatError(f"{path} ends before byte {offset + array.nbytes}; remove its folder and start again")
            left = left[num_bytes:]


def read_array(path: Path, start: int, stop: int) -> Array:
    """Read rows ``[start, stop)`` of a ``.npy`` file that ``make_file`` created, without mapping it."""
    with path.open("rb") as file:
        shape, _, dtype = read_header(file)
        first_byte = file.tell()
    values = np.empty((stop - start, *shape[1:]), dtype)
    if values.nbytes:
        read_into(path, first_byte + start * (values.nbytes // len(values)), values)
    return values
