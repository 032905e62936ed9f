"""Reader and writer of numbers, names and arrays in DGL's ``.dgl`` files.

The reader checks every size against the size of the file before it allocates memory.

All numbers are little-endian. A list is its length in 8 bytes, then its elements. A name is a list of bytes. An array
is a magic number, 8 bytes of zero, its device, its rank and dtype, its shape, its size in bytes, and the bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import FormatError, SchemaError

TENSORS_MAGIC, ARRAY_MAGIC = 0xDD5A9FBE3FA2443F, 0xDD5E40F096B4A13F
CPU = 1
KINDS = {"i": 0, "u": 1, "f": 2, "b": 1, "c": 5}
"""Map numpy's kind of a dtype to DLPack's; a bool is written as uint8, as DGL does."""
MAX_RANK = 32

BLOCK_BYTES = 1 << 24
"""Bytes per block when rows are copied."""

_ARRAY_HEAD = struct.Struct("<QQiiiBBH")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedRows:
    """Rows of an array in some order; they are copied block by block, never all at once.

    Attributes:
        array: The array, which may be a memory map of a file.
        places: int64[n], indices of the rows, in order; None for all rows in their order.
    """

    array: Array
    places: IntArray | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selected rows as one array."""
        num_rows = len(self.array if self.places is None else self.places)
        return (num_rows, *self.array.shape[1:])

    def blocks(self) -> Iterator[Array]:
        """Yield the rows in blocks of about ``BLOCK_BYTES``."""
        row_bytes = max(1, self.dtype.itemsize * int(np.prod(self.array.shape[1:], dtype=np.int64)))
        at_once = max(1, BLOCK_BYTES // row_bytes)
        for first in range(0, self.shape[0], at_once):
            block = slice(first, first + at_once)
            yield self.array[block if self.places is None else self.places[block]]


class DglWriter:
    """Writer of the ``.dgl`` format."""

    def __init__(self, file: IO[bytes]) -> None:
        """Start at the position of the file."""
        self._file = file
        self.position = 0

    def raw(self, data: bytes | memoryview) -> None:
        """Write bytes unchanged."""
        self._file.write(data)
        self.position += len(data)

    def uint64(self, *values: int) -> None:
        """Write numbers of 8 bytes each."""
        for value in values:
            self.raw(struct.pack("<Q", value))

    def name(self, text: str) -> None:
        """Write a name."""
        data = text.encode()
        self.uint64(len(data))
        self.raw(data)

    def array(self, array: Array | OrderedRows, where: str) -> None:
        """Write an array, or rows of one.

        Raises:
            SchemaError: DGL has no such dtype.
        """
        if _dtype_of(KINDS.get(array.dtype.kind, -1), array.dtype.itemsize * 8, 1) is None:
            raise SchemaError(f"{where} is {array.dtype}, which DGL's files cannot hold; leave it out")
        dtype = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype.newbyteorder("<")
        kind, shape = KINDS[array.dtype.kind], array.shape
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.raw(_ARRAY_HEAD.pack(ARRAY_MAGIC, 0, CPU, 0, len(shape), kind, dtype.itemsize * 8, 1))
        self.raw(struct.pack(f"<{len(shape) + 1}q", *shape, num_bytes))
        for block in array.blocks() if isinstance(array, OrderedRows) else (array,):
            if block.size:
                self.raw(bytes_of(np.ascontiguousarray(block, dtype)))

    def arrays(self, arrays: Mapping[str, Array | OrderedRows], where: str) -> None:
        """Write arrays by name."""
        self.uint64(len(arrays))
        for name, array in arrays.items():
            self.name(name)
            self.array(array, f"{where} {name!r}")


class DglReader:
    """Reader of the ``.dgl`` format; a size or position outside the file raises ``FormatError``."""

    def __init__(self, file: IO[bytes], path: Path, *, is_mapped: bool = False) -> None:
        """Start at the position of the file.

        Args:
            file: The file.
            path: Its path, for errors.
            is_mapped: Return arrays as read-only memory maps of the file, which need no memory of their own.
        """
        self._file = file
        self.path = path
        self._num_bytes = os.fstat(file.fileno()).st_size
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if is_mapped and self._num_bytes else None

    def seek(self, position: int) -> None:
        """Move to a position, in bytes from the start of the file."""
        if not 0 <= position <= self._num_bytes:
            self.refuse(f"names position {position} of {self._num_bytes} bytes")
        self._file.seek(position)

    def raw(self, num_bytes: int) -> bytes:
        """Read bytes unchanged."""
        self._check(num_bytes)
        return self._file.read(num_bytes)

    def uint64(self) -> int:
        """Read a number of 8 bytes."""
        return int.from_bytes(self.raw(8), "little")

    def magic(self, wanted: int, what: str) -> None:
        """Read a magic number and check it."""
        found = self.uint64()
        if found != wanted:
            self.refuse(f"has {found:#x} where {what} starts with {wanted:#x}")

    def count(self, item_bytes: int) -> int:
        """Read the length of a list whose items take at least ``item_bytes`` bytes each."""
        number = self.uint64()
        self._check(number * item_bytes)
        return number

    def name(self) -> str:
        """Read a name."""
        data = self.raw(self.count(1))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path} has the name {data[:40]!r}, which is not text") from error

    def array(self) -> Array:
        """Read an array. The caller owns its memory, unless it is mapped."""
        magic, _, device, _, rank, kind, bits, lanes = _ARRAY_HEAD.unpack(self.raw(_ARRAY_HEAD.size))
        if magic != ARRAY_MAGIC or device != CPU or not 0 <= rank <= MAX_RANK:
            self.refuse(f"has no array at byte {self._file.tell() - _ARRAY_HEAD.size}")
        *shape, num_bytes = struct.unpack(f"<{rank + 1}q", self.raw(8 * (rank + 1)))
        dtype = _dtype_of(kind, bits, lanes)
        if dtype is None:
            self.refuse(f"has an array of DLPack's type {kind} with {bits} bits in {lanes} lanes, which is not read")
        num_items = 1
        for size in shape:
            num_items *= size
        if min(shape, default=0) < 0 or num_bytes != num_items * dtype.itemsize:
            self.refuse(f"has an array {dtype}{shape} of {num_bytes} bytes")
        self._check(num_bytes)
        if self._map is not None and num_bytes:
            start = self._file.tell()
            self.seek(start + num_bytes)
            return np.frombuffer(self._map, dtype, num_items, start).reshape(shape)
        try:
            array = np.empty(shape, dtype)
        except ValueError:  # one size is 0, so there are no bytes, but another size is too large for numpy
            self.refuse(f"has an array {dtype}{shape}, which is too large")
        if num_bytes and self._file.readinto(bytes_of(array)) != num_bytes:  # type: ignore[attr-defined]
            self.refuse("ends in an array")
        return array

    def arrays(self) -> dict[str, Array]:
        """Read arrays by name."""
        return {self.name(): self.array() for _ in range(self.count(8 + _ARRAY_HEAD.size))}

    def refuse(self, what: str) -> NoReturn:
        """Raise an error that says what is wrong with the file.

        Raises:
            FormatError: Always.
        """
        raise FormatError(f"{self.path} {what}; it is damaged, or not a DGL file of this kind")

    def _check(self, num_bytes: int) -> None:
        left = self._num_bytes - self._file.tell()
        if num_bytes > left:
            self.refuse(f"needs {num_bytes} more bytes and has {left}")


def open_file(path: Path, holds: str) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        FormatError: The file is missing, or cannot be opened.
    """
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; it holds {holds}") from error
    except (OSError, ValueError) as error:  # a folder, a name that no file can have
        raise FormatError(f"{str(path)!r} cannot be read ({error}); it holds {holds}") from error


def write_tensor_file(path: Path, arrays: Mapping[str, Array | OrderedRows]) -> None:
    """Write arrays as ``dgl.data.save_tensors`` does.

    Raises:
        SchemaError: An array has a dtype that DGL does not know.
    """
    with path.open("wb") as file:
        writer = DglWriter(file)
        writer.uint64(TENSORS_MAGIC, len(arrays))
        writer.arrays(arrays, str(path))


def read_tensor_file(path: Path, *, is_mapped: bool = False) -> dict[str, Array]:
    """Read or map a file that ``dgl.data.save_tensors`` wrote.

    Raises:
        FormatError: The file is missing, damaged, or of another kind.
    """
    with open_file(path, "arrays by name") as file:
        reader = DglReader(file, path, is_mapped=is_mapped)
        reader.magic(TENSORS_MAGIC, "a file of tensors")
        reader.uint64()
        return reader.arrays()


def _dtype_of(kind: int, bits: int, lanes: int) -> np.dtype[np.generic] | None:
    if lanes != 1:
        return None
    if (kind, bits) in ((6, 8), (1, 1)):  # DLPack's bool, now and in older versions
        return np.dtype(np.bool_)
    letter = {0: "i", 1: "u", 2: "f", 5: "c"}.get(kind)
    sizes = {"i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
    if letter is None or bits not in sizes[letter]:
        return None
    return np.dtype(f"<{letter}{bits // 8}")


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array with at least one item, without a copy."""
    return memoryview(cast(Any, array.reshape(-1))).cast("B")
