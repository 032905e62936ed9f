"""Reads the part of each node from files, a block at a time or all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hopstream.arrays import BROKEN_ARRAY_ERRORS, Array, read_header
from hopstream.assign.folder import META, OwnerArray, read_meta
from hopstream.dataset.paths import path_name
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.uris import local_path

BLOCK_ROWS = 1 << 20
TEXT_BYTES = 1 << 20

MAX_CHARS = 18
_LINES = re.compile(rb"(?:[ \t]*+-?[0-9]{1,17}[ \t\r]*+\n)*+")


def owners_path(folder: Path, node_type: str) -> Path:
    """The file with the part of each node of a type.

    Raises:
        FormatError: There is none.
    """
    binary, text = (folder / f"{path_name(node_type)}{suffix}" for suffix in (".npy", ".txt"))
    plain = folder / f"{node_type}.txt"  # as other projects name it
    for path in (binary, text, plain):
        if path.is_file() and path.parent == folder:
            return path
    if not folder.is_dir():
        raise FormatError(f"{folder} is no folder; give the one with the part of each node, as assign writes it")
    raise FormatError(f"{folder} has neither {binary.name} nor {text.name}; write the part of each node")


def owner_blocks(path: Path, num_nodes: int, num_parts: int) -> Iterator[tuple[int, Array]]:
    """``(first key, integer[n])``: the parts of nodes in the order of keys, checked.

    Raises:
        FormatError: The file cannot be read.
        SchemaError: It does not have one integer for each node.
        IdRangeError: It names a part that is not there.
    """
    first = 0
    for block in _text_blocks(path) if path.suffix == ".txt" else _binary_blocks(path, num_nodes):
        if first + len(block) > num_nodes:
            raise SchemaError(f"{path} has more than {num_nodes} parts; it must be one integer for each node")
        if len(block) and (int(block.min()) < 0 or int(block.max()) >= num_parts):
            row = int(np.flatnonzero((block < 0) | (block >= num_parts))[0])
            raise IdRangeError(f"{path}[{first + row}] is {block[row]}; parts are numbered 0..{num_parts - 1}")
        yield first, block
        first += len(block)
    if first != num_nodes:
        raise SchemaError(f"{path} has {first} parts; it must be one integer for each of {num_nodes} nodes")


def find_num_parts(folder: Path, sizes: Mapping[str, int], wanted: int | None) -> int:
    """How many parts there are: what ``partition_meta.json`` says, or one more than the largest that a file names.

    Args:
        folder: The folder.
        sizes: Node type to number of nodes.
        wanted: The number that was asked for, if any.

    Raises:
        FormatError: A file cannot be read.
        SettingsError: The folder was written for another number of parts than was asked for.
    """
    meta = read_meta(folder)
    if meta is not None and wanted not in (None, meta.num_parts):
        raise SettingsError(
            f"{folder / META} is for {meta.num_parts} parts and {wanted} are asked for; give one number"
        )
    if meta is not None or wanted is not None:
        return meta.num_parts if meta is not None else wanted or 1
    largest = 0
    for node_type, num_nodes in sizes.items():
        path = owners_path(folder, node_type)
        for _, block in owner_blocks(path, num_nodes, MAX_PARTS):
            largest = max(largest, int(block.max(initial=0)))
    return largest + 1


def read_owners(
    folder: str | Path, num_nodes: Mapping[str, int], num_parts: int | None = None
) -> tuple[dict[str, OwnerArray], int]:
    """Read the parts of all nodes.

    Args:
        folder: The folder.
        num_nodes: Node type to its number of nodes; files of other types are left alone.
        num_parts: The number of parts wanted; None takes what the folder says, or else the least that its files need.

    Returns:
        owners: Node type to int32[num_nodes].
        num_parts: Number of parts.

    Raises:
        FormatError: A file is missing or unreadable, or ``partition_meta.json`` is not what it must be.
        SchemaError: A file has the wrong length or is not integers.
        SettingsError: The folder was written for more parts than are wanted.
        IdRangeError: A file names a part that is not there.
    """
    folder = local_path(folder)
    limit = find_num_parts(folder, num_nodes, num_parts)
    owners = {t: np.empty(num_of_type, np.int32) for t, num_of_type in num_nodes.items()}
    for node_type, owner in owners.items():
        for first, block in owner_blocks(owners_path(folder, node_type), len(owner), limit):
            owner[first : first + len(block)] = block
    return owners, limit


def _binary_blocks(path: Path, num_nodes: int) -> Iterator[Array]:
    try:
        with path.open("rb") as file:
            shape, _, dtype = read_header(file)
            if len(shape) != 1 or (dtype.kind not in "iu" and shape[0]) or shape[0] != num_nodes:
                raise SchemaError(
                    f"{path} is {dtype}{list(shape)}; it must be one integer for each of {num_nodes} nodes"
                )
            for first in range(0, num_nodes, BLOCK_ROWS):
                block = np.fromfile(file, dtype, min(BLOCK_ROWS, num_nodes - first))
                if len(block) < min(BLOCK_ROWS, num_nodes - first):
                    raise FormatError(f"{path} ends after {first + len(block)} of {num_nodes} values; copy it again")
                yield block
    except (SchemaError, FormatError):
        raise
    except BROKEN_ARRAY_ERRORS as error:
        raise FormatError(f"{path} cannot be read as .npy ({error}); it may be truncated") from error


def _text_blocks(path: Path) -> Iterator[Array]:
    first, rest = 0, b""
    with path.open("rb") as file:
        while data := file.read(TEXT_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            block = _parsed(path, first, whole + newline)
            first += len(block)
            yield block
    yield _parsed(path, first, rest)


def _parsed(path: Path, first: int, text: bytes) -> Array:
    if text and not text.endswith(b"\n"):
        text += b"\n"
    if _LINES.fullmatch(text):
        return np.array(text.split(), f"S{MAX_CHARS}").astype(np.int64) if text else np.empty(0, np.int64)
    lines = text.splitlines(keepends=True)
    wrong = next(i for i, line in enumerate(lines) if not _LINES.fullmatch(line))
    raise FormatError(
        f"{path} line {first + wrong + 1} is {lines[wrong].strip()[:40].decode(errors='replace')!r}; "
        "one part number per line is wanted"
    )
