"""Random access to the records of many TFRecord files.

Plain files are memory-mapped, and the offsets of all records are found once, from the sizes in the records' headers.
Files compressed with gzip can only be read from the start, so chunks of their records are cached.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import ChecksumError, FormatError, IdRangeError
from hopstream.kernels.records import MORE_NEEDED, WHOLE, find_starts
from hopstream.tfgnn.tfrecord import (
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    TAIL_BYTES,
    broken_record,
    is_gzip,
    masked_checksum,
    read_record_blocks,
    read_records,
)

T = TypeVar("T")
MAX_STREAMS = 8
"""Compressed files that are open at once."""
STARTS_ROOM = 1 << 16


class RowCache(Generic[T]):
    """LRU cache with a limit on the total number of rows. Thread-safe; one thread loads at a time."""

    def __init__(self, max_rows: int) -> None:
        """Keep entries of up to ``max_rows`` rows in total, and always the last one."""
        self._max_rows, self._num_rows = max_rows, 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """Return the value of a key; on a cache miss, ``load`` returns the value and its number of rows."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = load()
                self._num_rows += found[1]
            self._kept.move_to_end(key)
            while self._num_rows > self._max_rows and len(self._kept) > 1:
                self._num_rows -= self._kept.popitem(last=False)[1][1]
            return found[0]

    def __reduce__(self) -> tuple[type[RowCache[T]], tuple[int]]:
        """Pickle the cache without its entries."""
        return RowCache, (self._max_rows,)


class RecordFiles:
    """Random access to the records of files by their number across all files, in the order of the files.

    Thread-safe. Pickled copies contain the offsets of records, so other processes need not search for them again.
    """

    def __init__(self, paths: Sequence[Path], *, stretch: int = 1024) -> None:
        """Find the records of all files.

        Args:
            paths: TFRecord files, plain or compressed with gzip. Compressed files are read once to count the records.
            stretch: Records per cached chunk of a compressed file; about four chunks are in memory at a time.

        Raises:
            FormatError: A file is truncated, or not a TFRecord file.
            ChecksumError: The checksum of a record or of its size is wrong.
            OSError: A file cannot be read.
        """
        self.paths = tuple(paths)
        self._stretch = stretch
        self._maps: list[Array | None] = [None if is_gzip(path) else _mapped(path) for path in self.paths]
        self._starts: list[IntArray | None] = [
            None if data is None else _starts(path, data) for path, data in zip(self.paths, self._maps, strict=True)
        ]
        self.sizes = tuple(
            _num_records(path) if starts is None else len(starts) - 1
            for path, starts in zip(self.paths, self._starts, strict=True)
        )
        """Number of records of each file."""
        self._offsets = offsets_of(np.array(self.sizes, np.int64))
        self._cache: RowCache[list[bytes]] = RowCache(4 * stretch)
        self._streams: OrderedDict[int, tuple[int, Iterator[bytes]]] = OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without maps and open files."""
        return {**self.__dict__, "_maps": [None for _ in self.paths], "_streams": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, and map the files again."""
        self.__dict__.update(state)
        self._maps = [
            None if starts is None else _mapped(path) for path, starts in zip(self.paths, self._starts, strict=True)
        ]

    def __len__(self) -> int:
        """Return the number of records of all files."""
        return int(self._offsets[-1])

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of a record, and the record's number in the file."""
        file = int(np.searchsorted(self._offsets, number, side="right")) - 1
        return self.paths[file], number - int(self._offsets[file])

    def read(self, numbers: IntArray) -> list[bytes]:
        """Read records, in the order of ``numbers``.

        Raises:
            IdRangeError: A number is out of range.
            ChecksumError: The checksum of a record is wrong.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IdRangeError(f"records {int(numbers.min())}..{int(numbers.max())} of files that have {len(self)}")
        files = np.searchsorted(self._offsets, numbers, side="right") - 1
        rows = numbers - self._offsets[files]
        return [self._record(file, row) for file, row in zip(files.tolist(), rows.tolist(), strict=True)]

    def _record(self, file: int, row: int) -> bytes:
        data, starts = self._maps[file], self._starts[file]
        if data is None or starts is None:
            number, place = divmod(row, self._stretch)
            return self._cache.get((file, number), lambda: self._load(file, number))[place]
        start, end = int(starts[row]) + HEAD_BYTES, int(starts[row + 1]) - TAIL_BYTES
        record = data[start:end].tobytes()
        if masked_checksum(record) != int.from_bytes(data[end : end + TAIL_BYTES].tobytes(), "little"):
            raise ChecksumError(f"{self.paths[file]}: record {row} does not match its checksum")
        return record

    def _load(self, file: int, number: int) -> tuple[list[bytes], int]:
        """Read a chunk of a compressed file; reuse the open stream if the chunk is not before its position."""
        if self._process != os.getpid():  # after a fork, parent and child share file positions
            self._streams.clear()
            self._process = os.getpid()
        first = number * self._stretch
        at, stream = self._streams.pop(file, (0, read_records(self.paths[file])))
        if at > first:
            at, stream = 0, read_records(self.paths[file])
        for _ in islice(stream, first - at):
            pass
        records = list(islice(stream, self._stretch))
        self._streams[file] = (first + len(records), stream)
        if len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return records, len(records)


def _mapped(path: Path) -> Array:
    """Map the bytes of a plain file."""
    return np.memmap(path, np.uint8, "r").view(np.ndarray) if path.stat().st_size else np.empty(0, np.uint8)


def _starts(path: Path, data: Array) -> IntArray:
    """Find the offsets of the records of a plain file: int64[num_records + 1].

    The last value is the end of the last record.
    """
    pieces, at, num_records, state = [np.empty(0, np.int64)], 0, 0, WHOLE
    while at < len(data) and state == WHOLE:
        starts = np.empty(STARTS_ROOM, np.int64)
        count, at, state = find_starts(data, at, MAX_RECORD_BYTES, starts)
        pieces.append(starts[:count])
        num_records += count
    if state == MORE_NEEDED:
        raise FormatError(f"{path} ends in the middle of record {num_records}")
    if state != WHOLE:
        raise broken_record(path, num_records, state, data[at:])
    return np.concatenate([*pieces, np.array([len(data)], np.int64)])


def _num_records(path: Path) -> int:
    """Count the records of a compressed file by reading it."""
    return sum(len(block.bounds) for block in read_record_blocks(path))
