"""How is a file of a dataset copied, so that only the bytes that the manifest names arrive?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import FileRecord, extend_checksum
from hopstream.engine import task
from hopstream.errors import ChecksumError, FormatError
from hopstream.transfer.places import Place

GROUP_BYTES, GROUP_FILES = 256 << 20, 256
"""One task copies files until it has as many bytes, or as many files."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a dataset.

    Attributes:
        name: Its path in the dataset.
        num_bytes: Its size.
        crc32c: Its checksum.
    """

    name: str
    num_bytes: int
    crc32c: int


def group_files(names: Sequence[str], records: Mapping[str, FileRecord]) -> list[list[CopiedFile]]:
    """Files in groups, each of which is a task's."""
    groups: list[list[CopiedFile]] = []
    room_bytes = 0
    for name in names:
        record = records[name]
        if not groups or len(groups[-1]) >= GROUP_FILES or room_bytes < record.num_bytes:
            groups.append([])
            room_bytes = GROUP_BYTES
        groups[-1].append(CopiedFile(name, record.num_bytes, record.crc32c))
        room_bytes -= record.num_bytes
    return groups


@task
def copy_files(args: dict[str, Any]) -> int:
    """Copy some files, and with ``move`` remove each when it has arrived; how many bytes."""
    source, target = Place(args["source"]), Place(args["target"])
    files = [CopiedFile(str(name), int(size), int(crc32c)) for name, size, crc32c in args["files"]]
    for file in files:
        copy_file(source, target, file, move=bool(args["move"]), is_durable=bool(args["is_durable"]))
    return sum(file.num_bytes for file in files)


def copy_file(source: Place, target: Place, file: CopiedFile, *, move: bool, is_durable: bool) -> None:
    """Copy one file; a worker that was ended while it moved the file may have done so already.

    Args:
        source: Where it is.
        target: Where it goes.
        file: The file.
        move: Remove it from the source then.
        is_durable: The source will not keep it, so no power cut may take the copy.

    Raises:
        FormatError: The source has no such file, or one of another size.
        ChecksumError: The source's bytes are not those that the manifest names.
        OSError: The system failed.
    """
    size = source.size(file.name)
    if size is None:
        if not move or target.size(file.name) != file.num_bytes:
            raise FormatError(
                f"{source.shown}/{file.name} is missing, and {target.shown} does not have it; write the dataset again"
            )
        for _ in checked_blocks(target, file):
            pass
        return
    if size != file.num_bytes:
        raise FormatError(
            f"{source.shown}/{file.name} is {size} bytes; the manifest says {file.num_bytes}; write the dataset again"
        )
    target.write(file.name, lambda: checked_blocks(source, file), file.num_bytes, is_durable=is_durable)
    if move:
        source.remove(file.name)


def checked_blocks(place: Place, file: CopiedFile) -> Iterator[bytes]:
    """The bytes of a file.

    Raises:
        ChecksumError: After the last block, where the bytes are not those that the manifest names.
    """
    checksum = 0
    for block in place.blocks(file.name):
        checksum = extend_checksum(checksum, np.frombuffer(block, np.uint8))
        yield block
    if checksum != file.crc32c:
        raise ChecksumError(
            f"{place.shown}/{file.name} has crc32c {checksum:08x}; the manifest says {file.crc32c:08x}; write the "
            "dataset again, or copy it anew"
        )
