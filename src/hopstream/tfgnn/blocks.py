"""How are the examples of many files read one after the other, in blocks that fit into memory?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hopstream.errors import FormatError
from hopstream.tfgnn.tfrecord import read_records

BLOCK_BYTES, BLOCK_RECORDS = 16 << 20, 1024


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of one file that follow each other.

    Attributes:
        path: The file.
        first: The number of the first record in it.
        records: The records.
    """

    path: Path
    first: int
    records: list[bytes]


def record_blocks(paths: Iterable[Path]) -> Iterator[Block]:
    """The records of files, in order; no block holds more than ``BLOCK_RECORDS``, or ``BLOCK_BYTES`` and one record.

    Raises:
        FormatError: A file is cut off, or is no TFRecord file.
        ChecksumError: A record is not what was written.
        OSError: A file cannot be read.
    """
    for path in paths:
        first, records, num_bytes = 0, list[bytes](), 0
        stream = read_records(path)
        failure: FormatError | None = None
        while True:
            try:
                record = next(stream, None)
            except FormatError as error:  # told when what lies before has been handed out
                record, failure = None, error
            if record is not None:
                records.append(record)
                num_bytes += len(record)
            if records and (record is None or num_bytes >= BLOCK_BYTES or len(records) == BLOCK_RECORDS):
                yield Block(path, first, records)
                first, records, num_bytes = first + len(records), [], 0
            if record is None:
                break
        if failure is not None:
            raise failure
