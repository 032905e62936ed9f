"""Reads and writes TFRecord files.

A record is preceded by its size and the size's checksum, and followed by its own checksum. A whole file may be
compressed with gzip. A name such as ``nodes.tfrecords@15`` means 15 files; ``nodes.tfrecords-00003-of-00015`` is one of
them.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import google_crc32c
import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import ChecksumError, FormatError, SettingsError
from hopstream.places.paths import AnyPath, PathKind, path_of, sorted_files

HEAD_BYTES, TAIL_BYTES = 12, 4
MAX_RECORD_BYTES = 1 << 30
"""A longer record is refused: its size is damaged, or the file was made to exhaust memory."""
BLOCK_BYTES, SMALL_BLOCK_BYTES = 4 << 20, 1 << 20
"""Size of a block of records; the small one is for callers that keep many files open."""
BLOCK_RECORDS = 1 << 16
EXAMPLES_BYTES, MAX_EXAMPLES = 16 << 20, 1024
"""Largest size and number of examples of a block."""
MAX_SHARDS = 100_000
SMALL_BYTES = 4 << 10
"""Records with a smaller average size are framed faster by a kernel than one by one with the checksum library."""
LARGE_BYTES = 2 << 10
"""Larger records are checked faster one by one with the checksum library than by a kernel."""
_GZIP = b"\x1f\x8b"
_MASK = 0xA282EAD8
_SHARDED = re.compile(r"(.+)@(\d{1,6})")
_ALMOST_SHARDED = re.compile(r".*@[^@/.*?\[]*")
_OUTPUT = re.compile(r"(.+)-[\d?]{5}-of-(\d{5})")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)")


def masked_checksum(data: bytes) -> int:
    """Return TFRecord's masked CRC-32C: rotated, plus a constant.

    The mask keeps checksums of data that contains checksums from being degenerate.
    """
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class RecordWriter:
    """Writer of one file. Use it as a context manager, or ``close`` it."""

    def __init__(self, path: Path, *, is_compressed: bool = False) -> None:
        """Create the file, or truncate an existing one.

        Raises:
            OSError: The file cannot be written.
        """
        self._file: IO[bytes] = path.open("wb")
        # Without time and file name, equal records give equal files.
        self._out = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0) if is_compressed else self._file

    def write(self, record: bytes) -> None:
        """Write one record."""
        head = struct.pack("<Q", len(record))
        self._out.write(head + struct.pack("<I", masked_checksum(head)))
        self._out.write(record)
        self._out.write(struct.pack("<I", masked_checksum(record)))

    def write_framed(self, data: Array, offsets: IntArray) -> None:
        """Fill in sizes and checksums around records in a buffer, and write them.

        Args:
            data: uint8[...], changed in place.
            offsets: int64[num_records + 1]; each range has ``HEAD_BYTES`` before the record and ``TAIL_BYTES`` after
                it.
        """
        frame_records(data, offsets)
        self.write_bytes(data[int(offsets[0]) : int(offsets[-1])])

    def write_bytes(self, data: Array) -> None:
        """Write records completed by ``frame_records``: uint8[num_bytes]."""
        self._out.write(data.data)

    def close(self) -> None:
        """Flush and close the file; further calls do nothing."""
        if self._out is not self._file:
            self._out.close()
        self._file.close()

    def __enter__(self) -> RecordWriter:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def frame_records(data: Array, offsets: IntArray) -> None:
    """Fill in the sizes and checksums of records in place; see ``RecordWriter.write_framed``."""
    if int(offsets[-1] - offsets[0]) < SMALL_BYTES * len(offsets):
        from hopstream.kernels.records import put_frames  # imported here, because it loads numba

        put_frames(data, offsets)
        return
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        record = data[start + HEAD_BYTES : end - TAIL_BYTES].tobytes()
        head = struct.pack("<Q", len(record))
        head += struct.pack("<I", masked_checksum(head))
        data[start : start + HEAD_BYTES] = np.frombuffer(head, np.uint8)
        tail = struct.pack("<I", masked_checksum(record))
        data[end - TAIL_BYTES : end] = np.frombuffer(tail, np.uint8)


def is_gzip(path: AnyPath) -> bool:
    """Return whether a file starts with gzip's magic bytes."""
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Consecutive records of a file.

    Attributes:
        path: The file.
        data: uint8[...], the buffer of the records.
        bounds: int64[num_records, 2], start and end of each record in ``data``.
        first: Number of the first record in the file.
    """

    path: AnyPath
    data: Array
    bounds: IntArray
    first: int

    def records(self) -> list[bytes]:
        """Return the records as bytes."""
        return [self.data[start:end].tobytes() for start, end in self.bounds.tolist()]


def read_record_blocks(
    path: AnyPath, block_bytes: int | None = None, max_records: int = BLOCK_RECORDS
) -> Iterator[RecordBlock]:
    """Read the records of one file, plain or compressed with gzip, in blocks, and check their checksums.

    Args:
        path: The file.
        block_bytes: Approximate size of a block; a larger record is a block of its own.
        max_records: Most records of a block.

    Raises:
        FormatError: The file is truncated or not a TFRecord file, or a record is too long.
        ChecksumError: The checksum of a record or of its size is wrong.
        OSError: The file cannot be read.
    """
    from hopstream.kernels.records import MORE_NEEDED, WHOLE, find_records  # imported here, because it loads numba

    block_bytes = block_bytes or BLOCK_BYTES
    is_compressed = is_gzip(path)
    with path.open("rb") as file:
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=file) if is_compressed else file)
        limit = MAX_RECORD_BYTES if is_compressed else min(MAX_RECORD_BYTES, path.stat().st_size)
        number, rest, wanted = 0, b"", block_bytes
        try:
            while True:
                more = stream.read(wanted)
                data = np.frombuffer(rest + more, np.uint8)
                at = 0
                while True:
                    bounds = np.empty((min(max_records, len(data) // (HEAD_BYTES + TAIL_BYTES) + 1), 2), np.int64)
                    count, step, state = find_records(data[at:], limit, LARGE_BYTES, bounds)
                    if count:
                        yield from _checked(RecordBlock(path, data[at:], bounds[:count], number))
                    number, at = number + count, at + step
                    if state != WHOLE or at == len(data):
                        break
                if state not in (WHOLE, MORE_NEEDED):
                    raise broken_record(path, number, state, data[at:])
                rest = data[at:].tobytes()
                if not more:
                    if rest:
                        raise FormatError(f"{path} ends in the middle of record {number}")
                    return
                size = _size_of(rest) + HEAD_BYTES + TAIL_BYTES if len(rest) >= HEAD_BYTES else 0
                wanted = max(block_bytes, size - len(rest))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FormatError(f"{path}: the data from record {number} on cannot be decompressed: {error}") from error


def _checked(block: RecordBlock) -> Iterator[RecordBlock]:
    """Check the checksums of the large records of a block, which the kernel skips, and yield the block.

    Raises:
        ChecksumError: A checksum is wrong; the records before it are yielded first.
    """
    from hopstream.kernels.records import BAD_RECORD

    for row in np.flatnonzero(block.bounds[:, 1] - block.bounds[:, 0] > LARGE_BYTES).tolist():
        start, end = block.bounds[row].tolist()
        checksum = int.from_bytes(block.data[end : end + TAIL_BYTES].tobytes(), "little")
        if masked_checksum(block.data[start:end].tobytes()) != checksum:
            if row:
                yield replace(block, bounds=block.bounds[:row])
            raise broken_record(block.path, block.first + row, BAD_RECORD, block.data[start - HEAD_BYTES :])
    yield block


def broken_record(path: AnyPath, number: int, state: int, data: Array) -> FormatError:
    """Build the error for a record at which a kernel stopped; ``data`` begins with the record."""
    from hopstream.kernels.records import BAD_SIZE, TOO_LONG

    if state == TOO_LONG:
        size = _size_of(data[:8].tobytes())
        return FormatError(f"{path}: record {number} declares {size} bytes, more than the maximum")
    what = "the size of record" if state == BAD_SIZE else "record"
    return ChecksumError(f"{path}: {what} {number} does not match its checksum")


def _size_of(record: bytes) -> int:
    """Return the size in a record's header."""
    return int.from_bytes(record[:8], "little")


def read_records(path: AnyPath) -> Iterator[bytes]:
    """Read the records of one file, plain or compressed with gzip, in order.

    Raises:
        FormatError: The file is truncated or not a TFRecord file, or a record is too long.
        ChecksumError: The checksum of a record or of its size is wrong.
        OSError: The file cannot be read.
    """
    for block in read_record_blocks(path, SMALL_BLOCK_BYTES):
        yield from block.records()


def example_blocks(paths: Iterable[AnyPath]) -> Iterator[RecordBlock]:
    """Read the records of files, in order, in blocks small enough to decode at once.

    Raises:
        FormatError: A file is truncated or not a TFRecord file, or a record is too long.
        ChecksumError: The checksum of a record or of its size is wrong.
        OSError: A file cannot be read.
    """
    for path in paths:
        yield from read_record_blocks(path, EXAMPLES_BYTES, MAX_EXAMPLES)


def shard_paths(path: PathKind, num_shards: int) -> list[PathKind]:
    """Return the files of a sharded name: ``name-00000-of-00003`` and so on."""
    names = (f"{path.name}-{shard:05}-of-{num_shards:05}" for shard in range(num_shards))
    return [cast(PathKind, path.with_name(name)) for name in names]


def sharded_name(name: str) -> tuple[str, int | None]:
    """Split ``name@15`` into a name and a number of shards; None for the name of one file.

    Raises:
        SettingsError: The text after @ is not a number from 1 to ``MAX_SHARDS``.
    """
    match = _SHARDED.fullmatch(name)
    if match is None:
        if _ALMOST_SHARDED.fullmatch(name):
            raise SettingsError(
                f"{name} ends in @{name.rpartition('@')[2]}; write @ and a number of files from 1 to {MAX_SHARDS}"
            )
        return name, None
    return match[1], _num_shards(name, int(match[2]))


def _num_shards(name: str, number: int) -> int:
    if not 1 <= number <= MAX_SHARDS:
        raise SettingsError(f"{name} names {number} files; use 1 to {MAX_SHARDS}")
    return number


def output_name(name: str) -> tuple[str, int | None]:
    """Split an output name into the stem of the files' names and their number.

    The number is None for one file of this name.

    ``name@15``, ``name-?????-of-00015`` and ``name-00003-of-00015`` all ask for 15 files, as in TF-GNN.

    Raises:
        SettingsError: The number of files is not 1 to ``MAX_SHARDS``, or the name is another pattern.
    """
    match = _OUTPUT.fullmatch(name)
    stem, num_shards = sharded_name(name) if match is None else (match[1], _num_shards(name, int(match[2])))
    if any(sign in Path(stem).name for sign in "?*"):
        raise SettingsError(
            f"{name} has ? or *; names of files to write end in -?????-of-00015, five ? and the number of files in "
            "five digits, or in @15"
        )
    return stem, num_shards


def files_of(name: str | AnyPath, root: AnyPath | None = None) -> list[AnyPath]:
    """Find the files of a name: one file, the shards of ``name@15``, or the matches of a pattern.

    Args:
        name: The name.
        root: The folder that the name is relative to; None for the working directory.

    Raises:
        FormatError: A file is missing, a pattern has no match, or it matches shards of different exports.
        SettingsError: The number of shards is not 1 to ``MAX_SHARDS``.
    """
    path = path_of(name) if root is None else root / str(name)
    stem, num_shards = sharded_name(str(name))
    if num_shards is not None:
        paths = shard_paths(path.with_name(Path(stem).name), num_shards)
        _check_all_there(str(name), paths)
    elif path.exists() or not any(sign in str(name) for sign in "*?["):
        paths = [path]
        if not path.is_file():
            raise FormatError(f"{path} does not exist or is not a file")
    else:
        paths = sorted_files(path.parent, path.name) if root is None else sorted_files(root, str(name))
        if not paths:
            raise FormatError(f"no file matches {path}")
        _check_one_writing(str(name), paths)
    return paths


def _check_all_there(name: str, paths: Sequence[AnyPath]) -> None:
    """Refuse a sharded name if a shard is missing."""
    missing = [path for path in paths if not path.is_file()]
    if not missing:
        return
    begin = paths[0].name.removesuffix(f"00000-of-{len(paths):05}")
    names = {path.name for path in paths}
    others = sorted(
        path.name for path in paths[0].parent.glob("*-of-*") if path.name.startswith(begin) and path.name not in names
    )
    raise FormatError(
        f"{name} means {len(paths)} files; {missing[0]} is missing"
        + (", and all others too" if len(missing) == len(paths) > 1 else "")
        + (f"; there is {others[0]}, of another number of shards" if others else "; check the name and the folder")
    )


def _check_one_writing(name: str, paths: Sequence[AnyPath]) -> None:
    """Refuse matches of a pattern that are not all shards of one export."""
    shards: dict[tuple[AnyPath, str, str], dict[int, set[int]]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path.name)
        if match:
            of = shards.setdefault((path.parent, match[1], match[4]), {})
            of.setdefault(int(match[3]), set()).add(int(match[2]))
    for (folder, stem, end), of in shards.items():
        if len(of) > 1:
            raise FormatError(
                f"{name} is ambiguous: {folder / stem} has shards of {sorted(of)} files; give the file names"
            )
        ((num_shards, numbers),) = of.items()
        missing = next((shard for shard in range(num_shards) if shard not in numbers), None)
        if missing is not None:
            shard = folder / f"{stem}-{missing:05}-of-{num_shards:05}{end}"
            raise FormatError(
                f"{name}: {shard} is missing, but {len(numbers)} of {num_shards} exist; give their names to read those "
                "alone"
            )
