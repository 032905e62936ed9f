"""Reads and writes the part of each node, in files and in folders of owners.

A folder has ``<type>.npy`` (int32) and ``<type>.txt`` (one part per line) for each node type, and
``partition_meta.json`` with version, number of parts and method. Folders written by other programs may lack
``partition_meta.json``, and may have only one of both files for a node type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import BROKEN_ARRAY_ERRORS, Array, array_header, read_header
from hopstream.dataset.dataset_folder import replaceable, replaced_folder
from hopstream.dataset.paths import path_name
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.uris import local_path

META = "partition_meta.json"
META_VERSION = "1.0.0"
BLOCK_ROWS = 1 << 20

OwnerArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class OwnerBlocks:
    """Parts of nodes that are computed while they are written.

    Attributes:
        num_nodes: Number of nodes.
        blocks: int32 arrays, in the order of keys.
    """

    num_nodes: int
    blocks: Iterable[OwnerArray]

    @classmethod
    def of(cls, owner: OwnerArray) -> OwnerBlocks:
        """Split an array into blocks."""
        starts = range(0, len(owner), BLOCK_ROWS)
        return cls(len(owner), (owner[start : start + BLOCK_ROWS] for start in starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignMeta:
    """Content of ``partition_meta.json``.

    Attributes:
        num_parts: Number of parts. A part may own nothing.
        method: The method of assignment, in the writer's words; empty if the file does not name it.
    """

    num_parts: int
    method: str


@contextmanager
def write_owners(
    out: Path, num_parts: int, method: str, *, overwrite: bool = False
) -> Iterator[tuple[Path, Callable[[Mapping[str, OwnerArray | OwnerBlocks]], None]]]:
    """Write the parts of all nodes to a folder that appears atomically.

    Yields:
        The hidden folder that is renamed to ``out`` at the end, and a function that writes the parts into it.

    Raises:
        SettingsError: ``out`` holds something that must not be replaced.
    """

    def write(owners: Mapping[str, OwnerArray | OwnerBlocks]) -> None:
        for node_type, entity in owners.items():
            of_type = entity if isinstance(entity, OwnerBlocks) else OwnerBlocks.of(entity)
            path = folder / f"{path_name(node_type)}.npy"
            with path.open("wb") as file, path.with_suffix(".txt").open("wb") as lines:
                file.write(array_header(np.dtype(np.int32), (of_type.num_nodes,)))
                for block in of_type.blocks:
                    file.write(np.ascontiguousarray(block, np.int32).data)
                    lines.write(_lines(block, num_parts))
        meta = {"version": META_VERSION, "num_parts": num_parts, "algo_name": method}
        (folder / META).write_text(json.dumps(meta) + "\n")

    with replaced_folder(out, overwrite=overwrite, check=check_owners_target) as folder:
        yield folder, write


def check_owners_target(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that holds something else, or a folder of owners without ``overwrite``.

    Raises:
        SettingsError: The place is a file, the current folder, holds other things, or owners without ``overwrite``.
    """
    root = replaceable(out)
    if root is None:
        return
    names = sorted(entry.name for entry in root.iterdir())
    foreign = [n for n in names if n != META and not ((root / n).is_file() and n.endswith((".npy", ".txt")))]
    if foreign or (names and META not in names):
        raise SettingsError(
            f"{out} holds {(foreign or names)[0]!r}, so it is not a folder of parts of nodes; move it away, or give a "
            "new or empty folder"
        )
    if names and not overwrite:
        raise SettingsError(f"{out} holds parts of nodes; give overwrite=True or another folder")


def read_meta(folder: Path) -> AssignMeta | None:
    """Read ``partition_meta.json``; return None if there is none.

    Raises:
        FormatError: The file is not JSON, has another major version, or an invalid number of parts.
    """
    path = folder / META
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FormatError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} is {type(value).__name__}; it must be an object with version, num_parts, algo_name")
    version, num_parts = value.get("version", META_VERSION), value.get("num_parts")
    if not isinstance(version, str) or version.split(".")[0] != META_VERSION.split(".")[0]:
        raise FormatError(f"{path} has version {version!r}; this version reads {META_VERSION}")
    if not isinstance(num_parts, int) or isinstance(num_parts, bool) or not 1 <= num_parts <= MAX_PARTS:
        raise FormatError(f"{path} has num_parts {num_parts!r}; it must be an integer from 1 to {MAX_PARTS}")
    method = value.get("algo_name", "")
    if not isinstance(method, str):
        raise FormatError(f"{path} has algo_name {method!r}; it must be a string")
    return AssignMeta(num_parts=num_parts, method=method)


def check_owners(where: str, owner: Array, num_nodes: int, num_parts: int) -> OwnerArray:
    """Return the parts as int32[num_nodes], checked.

    Raises:
        SchemaError: The array is not one integer per node.
        IdRangeError: A value is not a part.
    """
    if owner.shape != (num_nodes,) or not (np.issubdtype(owner.dtype, np.integer) or not num_nodes):
        raise SchemaError(
            f"{where} is {owner.dtype}{list(owner.shape)}; it must be one integer for each of {num_nodes} nodes"
        )
    checked = np.empty(num_nodes, np.int32)
    for start in range(0, num_nodes, BLOCK_ROWS):
        block = owner[start : start + BLOCK_ROWS]
        outside = np.flatnonzero((block < 0) | (block >= num_parts))
        if len(outside):
            row = start + int(outside[0])
            raise IdRangeError(f"{where}[{row}] is {owner[row]}; parts are numbered 0..{num_parts - 1}")
        checked[start : start + len(block)] = block
    return checked


def _lines(owner: OwnerArray, num_parts: int) -> bytes:
    """Format each part on a line of its own."""
    numbers = np.array([f"{part}\n".encode() for part in range(num_parts)])
    return bytes(numbers[owner].tobytes().replace(b"\0", b""))


TEXT_BYTES = 1 << 20

MAX_CHARS = 18
_LINES = re.compile(rb"(?:[ \t]*+-?[0-9]{1,17}[ \t\r]*+\n)*+")


def owners_path(folder: Path, node_type: str) -> Path:
    """Return the path of the file with the part of each node of a type.

    Raises:
        FormatError: There is no such file.
    """
    binary, text = (folder / f"{path_name(node_type)}{suffix}" for suffix in (".npy", ".txt"))
    plain = folder / f"{node_type}.txt"  # the name that other projects use
    for path in (binary, text, plain):
        if path.is_file() and path.parent == folder:
            return path
    if not folder.is_dir():
        raise FormatError(f"{folder} is not a folder; give the folder with the part of each node that assign writes")
    raise FormatError(f"{folder} has neither {binary.name} nor {text.name}; write the part of each node")


def owner_blocks(path: Path, num_nodes: int, num_parts: int) -> Iterator[tuple[int, Array]]:
    """Yield ``(first key, integer[n])``, the parts of nodes in the order of keys, checked.

    Raises:
        FormatError: The file cannot be read.
        SchemaError: The file does not have one integer for each node.
        IdRangeError: The file names a part that does not exist.
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
    """Return the number of parts, from ``partition_meta.json`` or else from the largest part in the files.

    Args:
        folder: The folder of owners.
        sizes: Node type to number of nodes.
        wanted: The number that the caller asks for, if any.

    Raises:
        FormatError: A file cannot be read.
        SettingsError: ``partition_meta.json`` has another number of parts than ``wanted``.
    """
    meta = read_meta(folder)
    if meta is not None and wanted not in (None, meta.num_parts):
        raise SettingsError(
            f"{folder / META} is for {meta.num_parts} parts, but num_parts is {wanted}; give the same number"
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
        num_nodes: Node type to its number of nodes; files of other types are ignored.
        num_parts: Number of parts; None takes the number in ``partition_meta.json``, or else the smallest that the
            files fit.

    Returns:
        owners: Node type to int32[num_nodes].
        num_parts: Number of parts.

    Raises:
        FormatError: A file is missing or unreadable, or ``partition_meta.json`` is invalid.
        SchemaError: A file has the wrong length or is not integers.
        SettingsError: ``partition_meta.json`` has another number of parts than ``num_parts``.
        IdRangeError: A file names a part that does not exist.
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
        f"{path} line {first + wrong + 1} is {lines[wrong].strip()[:40].decode(errors='replace')!r}; wanted one part "
        "number per line"
    )
