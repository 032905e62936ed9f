"""Columns in memory and on disk, their checksums, and atomic writes of files.

On disk a column is one ``.npy`` file; a column of ragged rows or strings is ``.values.npy`` and ``.offsets.npy``. Files
are written under a temporary name in the same folder and renamed, so readers never see a partial file. Arrays are
opened as read-only memory maps.
"""

from __future__ import annotations

import ctypes
import functools
import io
import math
import mmap
import operator
import os
import re
import threading
import tokenize
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from hopstream.errors import ChecksumError, FormatError, IdRangeError, SchemaError
from hopstream.schema import NUMERIC_DTYPES, STRING, FeatureSchema

IntArray = NDArray[np.int64]
Array = NDArray[Any]
FEW = 16
"""Up to this many values, Python compares faster than numpy."""
CHUNK_BYTES = 8 << 20
LARGE_PAGE_BYTES = 2 << 20
CHECKSUM_BYTES = 1 << 20
"""Bytes per checksum call: the library takes only ``bytes``, and a copy of this size stays in the cache."""
BLOCK_BYTES, MAX_BLOCKS = 64 << 10, 65
"""Size of a block with its own checksum, and the largest number of such blocks of one file."""

_CRC32C = 0x82F63B78
"""Castagnoli's polynomial; the highest bit is the lowest power."""

_MAP_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
BROKEN_ARRAY_ERRORS = (
    ValueError, TypeError, EOFError, OSError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""Exceptions that numpy raises for a broken ``.npy`` header, including those of Python's parser and tokenizer."""
_USUAL_HEADER = re.compile(
    rb"\{'descr': '([<>][iuf][248]|[|][biu]1)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}, )+\d{1,19}|\d{1,19},|)\), \} *\n"
)
"""The header that numpy and this module write for an array of numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class RaggedArray:
    r"""Rows of different lengths: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: dtype[num_values, \*shape]; for strings, UTF-8 bytes, uint8[num_values].
        offsets: int64[rows + 1], ascending from 0 to num_values.
        is_string: Rows are UTF-8 strings.
    """

    values: Array
    offsets: IntArray
    is_string: bool = False

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        """Return the type and the number of rows."""
        return f"RaggedArray({len(self)} rows of {'strings' if self.is_string else self.values.dtype})"

    def __getitem__(self, row: int | slice) -> Any:
        """Return one row, or a ``RaggedArray`` of a slice of rows.

        Returns:
            A ``str``, or an array of the row's elements.

        Raises:
            IdRangeError: ``row`` is outside 0..rows-1; negative indices are not supported.
        """
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            offsets = self.offsets[start : max(start, stop) + 1]
            return RaggedArray(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], self.is_string)
        row = operator.index(row)
        if not 0 <= row < len(self):
            raise IdRangeError(f"row {row} of a ragged column of {len(self)} rows")
        values = self.values[self.offsets[row] : self.offsets[row + 1]]
        return values.tobytes().decode() if self.is_string else values

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        return (self[row] for row in range(len(self)))

    def tolist(self) -> list[Any]:
        """Return the rows as a list: strings, or a (nested) list of numbers per row."""
        return list(self) if self.is_string else [row.tolist() for row in self]

    @classmethod
    def from_strings(cls, strings: Sequence[object]) -> RaggedArray:
        """Encode strings as UTF-8 rows.

        Raises:
            SchemaError: An entry is not a string.
        """
        encoded: list[bytes] = []
        for row, value in enumerate(strings):
            if not isinstance(value, str):
                raise SchemaError(f"row {row} of a string column is {type(value).__name__} {value!r}, not str")
            try:
                encoded.append(value.encode())
            except UnicodeEncodeError as error:
                raise SchemaError(f"row {row} of a string column is {value!r}, which UTF-8 cannot hold") from error
        lengths = np.fromiter((len(b) for b in encoded), np.int64, len(encoded))
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets_of(lengths), is_string=True)

    @classmethod
    def from_rows(cls, rows: Sequence[Array]) -> RaggedArray:
        """Join arrays of equal dtype and equal trailing shape into one ragged column.

        Raises:
            SchemaError: Two rows differ in dtype or in trailing shape, or a row is a scalar.
        """
        if not rows:
            return cls(np.empty(0, np.float32), np.zeros(1, np.int64))
        arrays = [np.asarray(row) for row in rows]
        wanted = (arrays[0].dtype, arrays[0].shape[1:])
        for row, array in enumerate(arrays):
            if array.ndim < 1 or (array.dtype, array.shape[1:]) != wanted:
                raise SchemaError(
                    f"row {row} of a ragged column is {array.dtype}{list(array.shape)}; "
                    f"row 0 is {arrays[0].dtype}{list(arrays[0].shape)}, and only the first dimension may differ"
                )
        return cls(np.concatenate(arrays), offsets_of(np.fromiter((len(a) for a in arrays), np.int64, len(arrays))))

    def check(self, where: str) -> None:
        """Raise ``SchemaError`` unless offsets ascend from 0 to the number of values and strings are bytes."""
        offsets = self.offsets
        if self.is_string and (self.values.dtype != np.uint8 or self.values.ndim != 1):
            got = f"{self.values.dtype}{list(self.values.shape)}"
            raise SchemaError(f"{where}: strings must be UTF-8 bytes in uint8[n], got {got}")
        if offsets.ndim != 1 or offsets.dtype != np.int64 or len(offsets) < 1:
            raise SchemaError(f"{where}: offsets must be int64[rows + 1], got {offsets.dtype}{list(offsets.shape)}")
        if offsets[0] != 0 or offsets[-1] != len(self.values) or bool(np.any(offsets[1:] < offsets[:-1])):
            raise SchemaError(f"{where}: offsets must ascend from 0 to {len(self.values)}")

    def take(self, rows: IntArray) -> RaggedArray:
        """Return the given rows, in the given order.

        Raises:
            IdRangeError: A row is outside 0..rows-1.
        """
        if len(rows) and (int(np.min(rows)) < 0 or int(np.max(rows)) >= len(self)):
            raise IdRangeError(f"rows {int(np.min(rows))}..{int(np.max(rows))} of a ragged column of {len(self)} rows")
        starts = self.offsets[rows]
        lengths = self.offsets[np.asarray(rows) + 1] - starts
        offsets = offsets_of(lengths)
        positions = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
        return RaggedArray(self.values[positions], offsets, self.is_string)


Column = Array | RaggedArray


def take_column(column: Column, rows: Array) -> Column:
    """Return the given rows of a column, in the given order."""
    return column.take(rows) if isinstance(column, RaggedArray) else column[rows]


def join_columns(columns: Sequence[Column]) -> Column:
    """Concatenate columns of one schema."""
    if len(columns) == 1:
        return columns[0]
    ragged = [c for c in columns if isinstance(c, RaggedArray)]
    if not ragged:
        return np.concatenate([c for c in columns if isinstance(c, np.ndarray)])
    lengths = np.concatenate([np.diff(c.offsets) for c in ragged])
    return RaggedArray(np.concatenate([c.values for c in ragged]), offsets_of(lengths), ragged[0].is_string)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Record of one array file in the manifest.

    Attributes:
        dtype: Numpy dtype name.
        shape: Shape of the whole array.
        num_bytes: Size of the file.
        crc32c: Checksum of the whole file.
        blocks: Checksum of each block at ``block_starts(num_bytes)``, 8 hexadecimal digits each. Empty if the file is
            one block, or if an earlier revision wrote the record. Comparison of records ignores this field.
    """

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    crc32c: int
    blocks: str = field(default="", compare=False)

    def content_to_json(self) -> dict[str, Any]:
        """Return the record without the checksums of blocks, as a dataset's fingerprint contains it."""
        return {"dtype": self.dtype, "shape": list(self.shape), "bytes": self.num_bytes, "crc32c": f"{self.crc32c:08x}"}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``from_json``."""
        return self.content_to_json() | ({"blocks": self.blocks} if self.blocks else {})

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileRecord:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is not a file record.
        """
        try:
            shape, num_bytes = tuple(map(int, value["shape"])), int(value["bytes"])
            blocks = str(value.get("blocks", ""))
            if blocks and not re.fullmatch(f"([0-9a-f]{{8}}){{{len(block_starts(num_bytes))}}}", blocks):
                raise ValueError("the number of its blocks does not match its size")
            return cls(str(value["dtype"]), shape, num_bytes, int(value["crc32c"], 16), blocks)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not a file record ({error!r}): {value!r}") from error


def to_array(values: Any) -> Array:
    """Convert values to an array; torch tensors may be on any device and require gradients."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def offsets_of(lengths: NDArray[Any]) -> IntArray:
    """Return int64[n + 1], the running sum of lengths, starting at 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def find_sorted(ascending: IntArray, values: IntArray) -> IntArray:
    """Return int64[n], the index of each value in ascending, distinct integers; -1 for missing values."""
    if not len(ascending):
        return np.full(len(values), -1, np.int64)
    places: IntArray = np.searchsorted(ascending, values).astype(np.int64, copy=False)
    np.minimum(places, len(ascending) - 1, out=places)
    places[ascending[places] != values] = -1
    return places


def column_schema(column: Column) -> FeatureSchema:
    """Return the schema of a column.

    Raises:
        SchemaError: The column's dtype cannot be stored.
    """
    values = column.values if isinstance(column, RaggedArray) else column
    if isinstance(column, RaggedArray) and column.is_string:
        return FeatureSchema(dtype=STRING)
    if values.dtype.name not in NUMERIC_DTYPES:
        raise SchemaError(f"dtype {values.dtype} cannot be stored; use one of {', '.join(NUMERIC_DTYPES)} or strings")
    if not values.dtype.isnative:
        raise SchemaError(f"dtype {values.dtype} has the byte order of another machine; convert it with astype")
    if values.ndim < 1:
        raise SchemaError("a column needs a row dimension, got a scalar")
    return FeatureSchema(
        dtype=values.dtype.name, shape=tuple(values.shape[1:]), is_ragged=isinstance(column, RaggedArray)
    )


def empty_column(feature: FeatureSchema) -> Column:
    """Return a column of a feature without rows."""
    values = np.empty((0, *feature.shape), feature.numpy_dtype)
    return values if feature.is_fixed_width else RaggedArray(values, np.zeros(1, np.int64), feature.is_string)


def extend_checksum(checksum: int, array: Array) -> int:
    """Extend a CRC-32C by an array's values in C order."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(data), CHECKSUM_BYTES):
        checksum = google_crc32c.extend(checksum, data[start : start + CHECKSUM_BYTES].tobytes())
    return checksum


def combine_checksums(first: int, second: int, num_second_bytes: int) -> int:
    """Return the CRC-32C of two concatenated byte strings, given the CRC-32C of each.

    [Algorithm] Appending n bytes multiplies the first remainder by x^(8n), modulo the polynomial. The powers x^(2^k)
        are computed by repeated squaring, as in zlib's ``crc32_combine`` since 1.2.12.
    [Cost] About 0.1 ms for a new length, a few microseconds for a cached one.
    """
    return _multiply(_power_of_x(num_second_bytes), first) ^ second


def _multiply(left: int, right: int) -> int:
    """Multiply two polynomials over GF(2), modulo Castagnoli's polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_CRC32C if right & 1 else 0)
    return product


@functools.lru_cache(maxsize=1024)
def _power_of_x(num_bytes: int) -> int:
    """Compute ``x ** (8 * num_bytes)``, modulo Castagnoli's polynomial."""
    power, square = 1 << 31, 1 << 23  # x ** 0 and x ** 8
    while num_bytes:
        if num_bytes & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        num_bytes >>= 1
    return power


def column_paths(stem: Path, feature: FeatureSchema) -> tuple[Path, ...]:
    """Return the files of a column: one, or values and offsets."""
    if feature.is_fixed_width:
        return (stem.with_name(stem.name + ".npy"),)
    return (stem.with_name(stem.name + ".values.npy"), stem.with_name(stem.name + ".offsets.npy"))


class _ChecksumWriter:
    """A file that computes the CRC-32C of the written bytes.

    The file is written in whole large pages. So file systems with large folios, such as ext4 and XFS, cache it in large
    pages, which save address translation: up to a third of the time of a batch.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = google_crc32c.Checksum()
        self._held = bytearray()

    def write(self, data: bytes) -> None:
        self._sum.update(data)
        num_first = -len(self._held) % LARGE_PAGE_BYTES
        self._held += data[:num_first]
        if len(self._held) == LARGE_PAGE_BYTES:
            self._file.write(self._held)
            self._held.clear()
        rest = memoryview(data)[num_first:]
        num_whole = len(rest) - len(rest) % LARGE_PAGE_BYTES
        self._file.write(rest[:num_whole])
        self._held += rest[num_whole:]

    def end(self) -> tuple[int, int]:
        """Write the rest; return the size of the file and its CRC-32C."""
        self._file.write(self._held)
        return self._file.tell(), int.from_bytes(self._sum.digest(), "big")


def write_array(path: Path, array: Array) -> FileRecord:
    """Write one ``.npy`` file under a temporary name, rename it, and return its record.

    Rows are copied in blocks of about ``CHUNK_BYTES``, so a memory map of any memory order is never read as a whole.

    Raises:
        SchemaError: The dtype cannot be stored, for example ``object``.
    """
    table = array if array.ndim else array.reshape(1)
    step = max(1, CHUNK_BYTES // max(1, math.prod(table.shape[1:]) * array.itemsize))
    blocks = (table[start : start + step] for start in range(0, len(table), step))
    return write_blocks(path, array.dtype, array.shape, blocks)


def write_blocks(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> FileRecord:
    """Write one ``.npy`` file from an iterator of blocks; see ``write_array``.

    Args:
        path: The file.
        dtype: Dtype of the array; blocks are converted to it, in native byte order.
        shape: Shape of the whole array.
        blocks: Arrays whose concatenated items, in C order, are the items of the array.

    Raises:
        SchemaError: The dtype cannot be stored, or the number of items in the blocks contradicts the shape.
    """
    if dtype.name not in NUMERIC_DTYPES:
        raise SchemaError(f"{path.name}: dtype {dtype} cannot be stored; use one of {', '.join(NUMERIC_DTYPES)}")
    dtype = dtype.newbyteorder("=")
    num_items = 0
    with written_whole(path) as partial:
        with partial.open("wb") as file:
            writer = _ChecksumWriter(file)
            writer.write(array_header(dtype, shape))
            for block in blocks:
                num_items += block.size
                writer.write(block.astype(dtype, copy=False).tobytes())
            num_bytes, crc32c = writer.end()
        if num_items != math.prod(shape):
            raise SchemaError(f"{path.name}: the blocks hold {num_items} items, not those of shape {list(shape)}")
        return with_blocks(FileRecord(dtype.name, tuple(shape), num_bytes, crc32c), partial)


def array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a ``.npy`` file of version 1.0 in C order."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a hidden temporary path beside a file, and rename it to the file at the end.

    After an error, the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def open_array(path: Path, record: FileRecord | None = None) -> Array:
    """Map one ``.npy`` file read-only, after comparing its header, its size and its record.

    Raises:
        FormatError: The file is missing, truncated, too long, not ``.npy``, or contradicts its record.
    """
    try:
        num_bytes = path.stat().st_size
        array, array_bytes = _map_array(path)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; write the dataset again or copy the file") from error
    except BROKEN_ARRAY_ERRORS as error:
        raise FormatError(f"{path} cannot be read as .npy ({error}); it may be truncated") from error
    if array_bytes != num_bytes:
        raise FormatError(f"{path} is {num_bytes} bytes; its header says {array_bytes}; write or copy it again")
    if record is not None:
        if not array.flags.c_contiguous:
            raise FormatError(f"{path} is in Fortran order; a dataset's files are in C order; write it again")
        got = (array.dtype.name, tuple(array.shape), num_bytes)
        if got != (record.dtype, record.shape, record.num_bytes) or not array.dtype.isnative:
            raise FormatError(
                f"{path} is {array.dtype}{list(got[1])} in {num_bytes} bytes; "
                f"the manifest says {record.dtype}{list(record.shape)} in {record.num_bytes} bytes"
            )
    return array


def _map_array(path: Path) -> tuple[Array, int]:
    """Map the array, and return it with the size that the file must have according to its header."""
    with path.open("rb") as file:
        shape, is_fortran, dtype = read_header(file)
        start = file.tell()
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:  # mmap refuses a length of 0
            return np.empty(shape, dtype), start
        if start + num_bytes > os.fstat(file.fileno()).st_size:
            raise ValueError(f"its header needs {start + num_bytes} bytes")
        pages = _map_pages(file.fileno(), start + num_bytes)
    flat: Array = np.frombuffer(pages, dtype, math.prod(shape), start)
    flat.flags.writeable = False
    return flat.reshape(shape, order="F" if is_fortran else "C"), start + num_bytes


def _map_pages(descriptor: int, num_bytes: int) -> Any:
    """Map a file read-only; the map ends when the last reference to it goes away.

    Python's ``mmap`` (before 3.13) keeps a file descriptor for each map. A part of a typed graph has dozens of files,
    so a process would run out of descriptors after some thirty parts.
    """
    address = _LIBC.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    pages = (ctypes.c_char * num_bytes).from_address(address)
    _MAPS.add(address, num_bytes)
    weakref.finalize(pages, _MAPS.remove, address).atexit = False
    return pages


class _Maps:
    """The memory maps of this process. ``release`` drops their pages; the next access maps them again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector may end a map during ``release``
        self._sizes: dict[int, int] = {}
        self._is_releasing = False
        self._ended: list[int] = []
        # A forked child has no other threads to release the lock, so no thread may hold it during the fork.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def add(self, address: int, num_bytes: int) -> None:
        with self._lock:
            self._sizes[address] = num_bytes

    def remove(self, address: int) -> None:
        with self._lock:
            if self._is_releasing:
                self._ended.append(address)
            else:
                _LIBC.munmap(address, self._sizes.pop(address))

    def release(self) -> None:
        with self._lock:
            self._is_releasing = True
            for address, num_bytes in list(self._sizes.items()):
                _LIBC.madvise(address, num_bytes, mmap.MADV_DONTNEED)
            self._is_releasing = False
            while self._ended:
                self.remove(self._ended.pop())


_MAPS = _Maps()


def release_pages() -> None:
    """Drop the pages of all maps of ``open_array`` in this process.

    Reads fetch them again from the page cache.
    """
    _MAPS.release()


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a ``.npy`` array, and leave the file position at the first value.

    Returns:
        Shape, whether the values are in Fortran order, and dtype.

    Raises:
        ValueError: The array holds Python objects, or the header is invalid; ``BROKEN_ARRAY_ERRORS`` lists further
            exceptions for invalid headers.
    """
    if np.lib.format.read_magic(file) != (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        length = file.read(2)
        header = file.read(int.from_bytes(length, "little"))
        # numpy parses headers with Python's parser. For a dataset of small files, that is most of the time to open it.
        if usual := _USUAL_HEADER.fullmatch(header):
            shape = tuple(int(size) for size in usual[3].replace(b",", b" ").split())
            return shape, usual[2] == b"True", np.dtype(usual[1].decode("ascii"))
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(length + header))
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, is_fortran, dtype


def block_starts(num_bytes: int) -> list[int]:
    """Return the offsets of the blocks with checksums.

    These are all blocks, or ``MAX_BLOCKS`` blocks spread evenly over a larger file.
    """
    last = max(0, num_bytes - 1) // BLOCK_BYTES
    num_steps = min(last, MAX_BLOCKS - 1)
    return [step * last // max(1, num_steps) * BLOCK_BYTES for step in range(num_steps + 1)]


def with_blocks(record: FileRecord, path: Path) -> FileRecord:
    """Add the checksums of blocks to the record of a file; the blocks are read from the file."""
    if record.num_bytes <= BLOCK_BYTES:
        return record
    return replace(record, blocks="".join(_sum_blocks(path, block_starts(record.num_bytes))))


def _sum_blocks(path: Path, starts: Iterable[int]) -> list[str]:
    with path.open("rb", buffering=0) as file:
        return [f"{google_crc32c.value(os.pread(file.fileno(), BLOCK_BYTES, start)):08x}" for start in starts]


def check_blocks(path: Path, record: FileRecord, numbers: Sequence[int]) -> None:
    """Read some blocks of a file and compare their checksums with its record.

    Args:
        path: The file.
        record: Its record, with checksums of blocks unless the file is one block.
        numbers: Indices of the blocks in ``block_starts``.

    Raises:
        FormatError: The file is missing.
        ChecksumError: The checksum of a block differs.
    """
    starts, wanted = block_starts(record.num_bytes), record.blocks or f"{record.crc32c:08x}"
    try:
        sums = _sum_blocks(path, [starts[number] for number in numbers])
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; write the dataset again or copy the file") from error
    for number, got in zip(numbers, sums, strict=True):
        if got != (said := wanted[8 * number : 8 * number + 8]):
            raise ChecksumError(
                f"{path} has crc32c {got} in the block from byte {starts[number]} on; the manifest says {said}; copy "
                "the file again; hopstream verify finds what else is damaged"
            )


def check_file(path: Path, record: FileRecord) -> None:
    """Read a file and compare its checksum with its record.

    Raises:
        FormatError: The file is missing.
        ChecksumError: The checksum differs.
    """
    total = google_crc32c.Checksum()
    try:
        with path.open("rb") as file:
            while block := file.read(CHUNK_BYTES):
                total.update(block)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing; write the dataset again or copy the file") from error
    got = int.from_bytes(total.digest(), "big")
    if got != record.crc32c:
        raise ChecksumError(f"{path} has crc32c {got:08x}; the manifest says {record.crc32c:08x}; copy the file again")


def is_within(values: Array, first: int, stop: int) -> bool:
    """Return whether all integers of an array are in ``[first, stop)``."""
    if len(values) <= FEW:
        return all(first <= value < stop for value in values.tolist())
    if first == 0 and values.dtype == np.int64:  # negative numbers exceed every bound
        return int(values.view(np.uint64).max()) < stop
    return int(values.min()) >= first and int(values.max()) < stop
