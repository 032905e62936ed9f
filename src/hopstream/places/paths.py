"""Distinguishes local paths from URIs, and opens both for Arrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from hopstream.uris import is_address, is_broken_uri, is_uri, local_path

if TYPE_CHECKING:
    from hopstream.places.remote_path import RemotePath

AnyPath: TypeAlias = "Path | RemotePath"
PathKind = TypeVar("PathKind", bound=AnyPath)
"""Any path; functions return the kind that they are given."""


def path_of(given: str | os.PathLike[str] | RemotePath) -> AnyPath:
    """Return the path of a file or folder to read: of this machine, or at a URI.

    A ``file://`` URI is a path of this machine.

    Raises:
        SettingsError: The URI names no known file system or holds a password, is a server's address, or was converted
            to a ``Path``.
    """
    if is_remote(given):
        return cast("RemotePath", given)
    text = os.fsdecode(given).lstrip()
    if is_broken_uri(text) or is_address(text) or not is_uri(text):
        return local_path(given)
    from hopstream.places.remote_path import RemotePath  # imported here, because it loads Arrow

    path = RemotePath.of(text)
    return path.local or path


def is_remote(path: str | os.PathLike[str] | AnyPath) -> bool:
    """Return whether a path is a ``RemotePath``."""
    return hasattr(path, "open_raw")


def uri_of(path: AnyPath) -> str:
    """Return the text from which ``path_of`` makes an equal path in any process."""
    return str(path.absolute()) if isinstance(path, Path) else path.uri


def arrow_source(path: AnyPath) -> Any:
    """Return what Arrow's readers take: the path, or an open file whose reads are repeated if they fail."""
    if isinstance(path, Path):
        return path
    import pyarrow as pa  # imported here, because it is heavy

    return pa.PythonFile(path.open_raw(), mode="r")


def sorted_files(folder: PathKind, pattern: str) -> list[PathKind]:
    """Return the files below a folder whose relative paths match a pattern, in order of names."""
    found = [path for path in cast(Path, folder).glob(pattern) if path.is_file()]
    return cast("list[PathKind]", sorted(found))


def is_below(path: AnyPath, folder: AnyPath) -> bool:
    """Return whether a path, with links resolved, is a folder or lies in it."""
    return cast(Path, path).resolve().is_relative_to(cast(Path, folder).resolve())


def shown_below(path: AnyPath, folder: AnyPath) -> str:
    """Return a path relative to a folder that holds it, for messages."""
    return str(cast(Path, path).relative_to(cast(Path, folder)))


def put_file(made: Path, path: AnyPath) -> None:
    """Move a complete file of this machine to a path: rename it, or copy it to the URI and remove it.

    Raises:
        OSError: A system call failed, or the copy has another size; the error names the path.
    """
    if isinstance(path, Path):
        made.replace(path)
        return
    path.put(made)
    made.unlink()
