"""How is any record of many TFRecord files read, without reading what lies before it?

Plain files are mapped, and the place of each record is found once, from the sizes that records begin with. Files that
are compressed with gzip can only be read from their beginning: stretches of records are kept while they are in use.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import ChecksumError, FormatError, IdRangeError
from hopstream.tfgnn.tfrecord import HEAD_BYTES, MAX_RECORD_BYTES, TAIL_BYTES, is_gzip, masked_checksum, read_records

T = TypeVar("T")
MAX_STREAMS = 8
"""Compressed files that are open at once."""


class RowCache(Generic[T]):
    """Keeps what was loaded last, up to a number of rows. Safe to use from many threads, of which one loads."""

    def __init__(self, max_rows: int) -> None:
        """Keep up to ``max_rows``, and always what was loaded last."""
        self._max_rows, self._num_rows = max_rows, 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """What a key stands for; ``load`` brings it, and its number of rows, where it is not kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = load()
                self._num_rows += found[1]
            self._kept.move_to_end(key)
            while self._num_rows > self._max_rows and len(self._kept) > 1:
                self._num_rows -= self._kept.popitem(last=False)[1][1]
            return found[0]


class RecordFiles:
    """Any record of some files, by its number: those of the first file, then those of the second, and so on.

    Safe to use from many threads.
    """

    def __init__(self, paths: Sequence[Path], *, stretch: int = 1024) -> None:
        """Find the records of all files.

        Args:
            paths: TFRecord files, plain or compressed with gzip, which are read through once to count their records.
            stretch: Records of a compressed file that are kept together; some four stretches are in memory at a time.

        Raises:
            FormatError: A file is cut off, or no TFRecord file.
            ChecksumError: The size of a record is not what was written.
            OSError: A file cannot be read.
        """
        self.paths = tuple(paths)
        self._stretch = stretch
        self._maps: list[tuple[Array, IntArray] | None] = []
        sizes = []
        for path in self.paths:
            is_compressed = is_gzip(path)
            self._maps.append(None if is_compressed else _mapped(path))
            found = self._maps[-1]
            sizes.append(sum(1 for _ in read_records(path)) if found is None else len(found[1]) - 1)
        self.sizes = tuple(sizes)
        """Records of each file."""
        self._offsets = offsets_of(np.array(self.sizes, np.int64))
        self._cache: RowCache[list[bytes]] = RowCache(4 * stretch)
        self._streams: OrderedDict[int, tuple[int, Iterator[bytes]]] = OrderedDict()

    def __len__(self) -> int:
        """Records of all files."""
        return int(self._offsets[-1])

    def place(self, number: int) -> tuple[Path, int]:
        """The file of a record, and its number in the file."""
        file = int(np.searchsorted(self._offsets, number, side="right")) - 1
        return self.paths[file], number - int(self._offsets[file])

    def read(self, numbers: IntArray) -> list[bytes]:
        """The records of some numbers, in the order of the numbers.

        Raises:
            IdRangeError: There is no such record.
            ChecksumError: A record is not what was written.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IdRangeError(f"records {int(numbers.min())}..{int(numbers.max())} of files that have {len(self)}")
        files = np.searchsorted(self._offsets, numbers, side="right") - 1
        rows = numbers - self._offsets[files]
        return [self._record(file, row) for file, row in zip(files.tolist(), rows.tolist(), strict=True)]

    def _record(self, file: int, row: int) -> bytes:
        found = self._maps[file]
        if found is None:
            number, place = divmod(row, self._stretch)
            return self._cache.get((file, number), lambda: self._load(file, number))[place]
        data, offsets = found
        start, end = int(offsets[row]) + HEAD_BYTES, int(offsets[row + 1]) - TAIL_BYTES
        record = data[start:end].tobytes()
        if masked_checksum(record) != int.from_bytes(data[end : end + TAIL_BYTES].tobytes(), "little"):
            raise ChecksumError(f"{self.paths[file]}: record {row} does not match its checksum")
        return record

    def _load(self, file: int, number: int) -> tuple[list[bytes], int]:
        """A stretch of a compressed file; where it follows the last one, what lies before is not read again."""
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


def _mapped(path: Path) -> tuple[Array, IntArray]:
    """The bytes of a plain file, and where its records begin."""
    num_bytes = path.stat().st_size
    data = np.memmap(path, np.uint8, "r") if num_bytes else np.empty(0, np.uint8)
    starts, at = [0], 0
    while at < num_bytes:
        head = data[at : at + HEAD_BYTES].tobytes()
        number = len(starts) - 1
        if len(head) < HEAD_BYTES:
            raise FormatError(f"{path} ends in the middle of record {number}")
        size, checksum = struct.unpack("<QI", head)
        if masked_checksum(head[:8]) != checksum:
            raise ChecksumError(f"{path}: the size of record {number} does not match its checksum")
        if size > MAX_RECORD_BYTES:
            raise FormatError(f"{path}: record {number} is said to have {size} bytes, more than there can be")
        at += HEAD_BYTES + size + TAIL_BYTES
        starts.append(at)
    if at != num_bytes:
        raise FormatError(f"{path} ends in the middle of record {len(starts) - 2}")
    return data, np.array(starts, np.int64)
