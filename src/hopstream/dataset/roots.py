"""Finds the parts of a dataset that lie in other folders.

A dataset may be spread over several roots, each of which has the whole manifest and the folders of some parts.
``roots.json`` beside the manifest says which root has which parts. It is not part of the dataset's content.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopstream.dataset.digests import DIGEST, content_digest
from hopstream.dataset.paths import part_folder
from hopstream.errors import FormatError

ROOTS, CLUSTER = "roots.json", "cluster.json"
BESIDE_MANIFEST = (ROOTS, CLUSTER)
"""Files that may stand beside a manifest, and say where parts lie and who serves them."""
FORMAT = 1
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Root:
    """One place of a dataset.

    Attributes:
        uri: A local folder, or a URI of a file system or object store.
        parts: The parts whose folders are there, ascending.
    """

    uri: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roots:
    """All places of a dataset.

    Attributes:
        dataset_id: Fingerprint of the dataset.
        entries: The places; a part may be in several.
    """

    dataset_id: str
    entries: tuple[Root, ...]

    def to_text(self) -> str:
        """The content of ``roots.json``."""
        roots = [{"uri": root.uri, "parts": list(root.parts)} for root in self.entries]
        value = {"format": FORMAT, "dataset_id": self.dataset_id, "roots": roots}
        return json.dumps({**value, DIGEST: content_digest(value)}, indent=1) + "\n"

    def uris_of(self, part: int) -> list[str]:
        """Where a part lies."""
        return [root.uri for root in self.entries if part in root.parts]


def read_roots(folder: Path) -> Roots | None:
    """Read ``roots.json``; None where the folder has none.

    Raises:
        FormatError: It cannot be read.
    """
    path = folder / ROOTS
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes; remove it, or place the dataset again")
        return parse_roots(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read ({error}); remove it, or place the dataset again") from error


def parse_roots(data: bytes) -> Roots:
    """Read what ``Roots.to_text`` wrote.

    Raises:
        FormatError: It is something else.
    """
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            raise FormatError(f"it has format {str(value['format'])[:50]}; this version reads {FORMAT}")
        if DIGEST in value and value.pop(DIGEST) != content_digest(value):
            raise FormatError(f"it was edited: its {DIGEST} is that of other roots")
        return Roots(str(value["dataset_id"]), tuple(map(_root, value["roots"])))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, FormatError) else FormatError(f"it lists no roots: {error!r}") from error


def _root(value: dict[str, Any]) -> Root:
    parts = value["parts"]
    if not isinstance(parts, list) or not all(type(part) is int and part >= 0 for part in parts):
        raise FormatError(f"parts are {str(parts)[:100]}; they are numbers from 0")
    return Root(str(value["uri"]), tuple(parts))


def is_here(folder: Path, part: int) -> bool:
    """Whether a dataset's folder has the folder of a part."""
    return (folder / part_folder(part)).is_dir()


def check_is_here(folder: Path, part: int, dataset_id: str) -> None:
    """Raise ``FormatError`` where the folder of a part is missing; it says where the part lies, if that is known."""
    if is_here(folder, part):
        return
    where = f"{folder / part_folder(part)} is missing"
    roots = read_roots(folder)
    uris = roots.uris_of(part) if roots is not None and roots.dataset_id == dataset_id else []
    if not uris:
        raise FormatError(f"{where}; write the dataset again or copy the folder")
    raise FormatError(
        f"{where}: {ROOTS} says that part {part} lies in {' and in '.join(uris)}; open it there, get it with "
        "hopstream pull, or ask the server that has it"
    )
