"""How do some features of a file of ``tf.Example`` messages become columns, block by block?"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import ChecksumError, FormatError
from hopstream.kernels import example_columns as kernels
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, UNUSUAL
from hopstream.tfgnn.example import ValueLists, decode_example, encode_examples
from hopstream.tfgnn.tfrecord import HEAD_BYTES, MAX_RECORD_BYTES, TAIL_BYTES, is_gzip

BLOCK_BYTES = 4 << 20
BLOCK_RECORDS = 1 << 16
FEATURES_ROOM = 64
NO_LIST = 0
"""The kind of a feature without a list."""
NOT_THERE = -1
"""The kind of a feature that a message does not have."""
KIND_NAMES = {BYTES_LIST: "strings", FLOAT_LIST: "reals"}


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Consecutive records of a file.

    Attributes:
        data: uint8[...], which holds them.
        bounds: int64[num_records, 2], begin and end of each.
        first: The number of the first one in the file.
    """

    data: Array
    bounds: IntArray
    first: int


def read_record_blocks(path: Path, block_bytes: int | None = None) -> Iterator[RecordBlock]:
    """The records of one file, plain or compressed with gzip, in blocks; checksums are checked.

    Args:
        path: The file.
        block_bytes: About what a block takes; one that is a single record takes what it takes.

    Raises:
        FormatError: The file is cut off, is no TFRecord file, or a record is longer than allowed.
        ChecksumError: A record or its size is not what was written.
        OSError: The file cannot be read.
    """
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
                    bounds = np.empty((min(BLOCK_RECORDS, len(data) // (HEAD_BYTES + TAIL_BYTES) + 1), 2), np.int64)
                    count, step, state = kernels.find_records(data[at:], limit, bounds)
                    if count:
                        yield RecordBlock(data[at:], bounds[:count], number)
                    number, at = number + count, at + step
                    if state != kernels.WHOLE or at == len(data):
                        break
                if state not in (kernels.WHOLE, kernels.MORE_NEEDED):
                    raise broken_record(path, number, state)
                rest = data[at:].tobytes()
                if not more:
                    if rest:
                        raise FormatError(f"{path} ends in the middle of record {number}")
                    return
                size = int.from_bytes(rest[:8], "little") + HEAD_BYTES + TAIL_BYTES if len(rest) >= HEAD_BYTES else 0
                wanted = max(block_bytes, size - len(rest))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FormatError(f"{path} cannot be uncompressed behind the first {number} records: {error}") from error


def broken_record(path: Path, number: int, state: int) -> FormatError:
    """What to raise about a record at which a kernel's walk ended."""
    if state == kernels.TOO_LONG:
        return FormatError(f"{path}: record {number} is said to have more bytes than there can be")
    what = "the size of record" if state == kernels.BAD_SIZE else "record"
    return ChecksumError(f"{path}: {what} {number} does not match its checksum")


@dataclass(frozen=True, slots=True, eq=False)
class FoundColumns:
    """Where some features are in the messages of a block.

    Attributes:
        data: uint8[...].
        found: int64[num_messages, num_names, 3]: kind of the list, its begin and its end.
    """

    data: Array
    found: IntArray

    @property
    def num_messages(self) -> int:
        """How many messages there are."""
        return len(self.found)

    def kinds(self, column: int) -> IntArray:
        """int64[num_messages]: ``BYTES_LIST``, ``FLOAT_LIST``, ``INT64_LIST``, ``NO_LIST`` or ``NOT_THERE``."""
        return self.found[:, column, 0]

    def lists(self, column: int, kind: int) -> ValueLists:
        """The lists of one feature, all of one kind; of messages without one, empty.

        Raises:
            FormatError: A list is damaged; the error names the message by its number among these.
        """
        starts, ends = np.ascontiguousarray(self.found[:, column, 1]), np.ascontiguousarray(self.found[:, column, 2])
        if kind == FLOAT_LIST:
            offsets = offsets_of((ends - starts) // 4)
            raw = np.empty(4 * int(offsets[-1]), np.uint8)
            kernels.take_bytes(self.data, starts, ends, 4 * offsets, raw)
            return ValueLists(raw.view("<f4").astype(np.float32, copy=False), offsets)
        counts = np.empty(len(starts), np.int64)
        count = kernels.count_strings if kind == BYTES_LIST else kernels.count_ints
        count(self.data, starts, ends, counts)
        if (counts == UNUSUAL).any():
            raise FormatError(f"message {int(np.argmax(counts == UNUSUAL))} is damaged")
        offsets = offsets_of(counts)
        if kind == BYTES_LIST:
            bounds = np.empty((int(offsets[-1]), 2), np.int64)
            kernels.find_strings(self.data, starts, ends, offsets, bounds)
            begins, stops = np.ascontiguousarray(bounds[:, 0]), np.ascontiguousarray(bounds[:, 1])
            text_offsets = offsets_of(stops - begins)
            text = np.empty(int(text_offsets[-1]), np.uint8)
            kernels.take_bytes(self.data, begins, stops, text_offsets, text)
            return ValueLists(RaggedArray(text, text_offsets, is_string=True), offsets)
        values = np.empty(int(offsets[-1]), np.int64)
        bad = kernels.take_ints(self.data, starts, ends, offsets, values)
        if bad >= 0:
            raise FormatError(f"message {bad} is damaged")
        return ValueLists(values, offsets)


def find_columns(block: RecordBlock, names: Sequence[str]) -> FoundColumns:
    """Find some features in the messages of a block.

    Raises:
        FormatError: A record is no ``tf.Example``; the error names it by its number in the block.
    """
    encoded = [name.encode() for name in names]
    keys, key_offsets = np.frombuffer(b"".join(encoded), np.uint8), offsets_of(np.array([*map(len, encoded)], np.int64))
    num_messages = len(block.bounds)
    found, is_unusual = np.empty((num_messages, len(names), 3), np.int64), np.empty(num_messages, np.bool_)
    data, bounds, room = block.data, block.bounds, FEATURES_ROOM
    while (most := kernels.find_columns(
        data, bounds, keys, key_offsets, np.empty((room, 5), np.int64), found, is_unusual
    )) > room:  # fmt: skip
        room = most
    unusual = np.flatnonzero(is_unusual)
    if len(unusual):
        data, bounds = _as_usual(block, unusual)
        return find_columns(RecordBlock(data, bounds, block.first), names)
    return FoundColumns(data, found)


def _as_usual(block: RecordBlock, unusual: IntArray) -> tuple[Array, IntArray]:
    """The block with some messages written again in the usual way, behind the others."""
    pieces, bounds, end = [block.data], block.bounds.copy(), len(block.data)
    for message in unusual.tolist():
        start, stop = block.bounds[message].tolist()
        try:
            lists = decode_example(block.data[start:stop].tobytes())
        except FormatError as error:
            raise FormatError(f"message {message} is {error}") from error
        whole = {name: ValueLists(values, np.array([0, len(values)], np.int64)) for name, values in lists.items()}
        piece = np.frombuffer(encode_examples(whole, 1)[0], np.uint8)
        pieces.append(piece)
        bounds[message] = end, end + len(piece)
        end += len(piece)
    return np.concatenate(pieces), bounds
