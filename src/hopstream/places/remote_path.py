"""Path of a file or folder at a URI, with the methods of ``Path`` that readers of files use."""

from __future__ import annotations

import errno
import fnmatch
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote

from pyarrow.fs import FileType

from hopstream.errors import FormatError, SettingsError
from hopstream.places.place import Place
from hopstream.uris import shown_uri, stored_uri

BUFFER_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 26
"""A larger file is not read as one text."""
_SAFE = "/=@:+,~!$&'()*;-._"


@dataclass(frozen=True, slots=True)
class RemoteStat:
    """Size in bytes, and time of the last change in nanoseconds, as of ``os.stat_result``."""

    st_size: int
    st_mtime_ns: int


@total_ordering
class RemotePath:
    """Path of a file or folder at a URI.

    What ``glob`` and ``iterdir`` yield keeps the size and time of the listing.
    """

    def __init__(self, place: Place, name: str, info: Any = None) -> None:
        """Refer to a path; nothing is read.

        Args:
            place: A bucket, or the root of a file system.
            name: Path in it, without a slash at its start or end.
            info: Arrow's ``FileInfo`` of the path, if a listing gave it.
        """
        self._place, self._name, self._info = place, name, info

    @classmethod
    def of(cls, uri: str) -> RemotePath:
        """Return the path of a URI.

        Raises:
            SettingsError: The URI names no known file system, or holds a password.
        """
        if stored_uri(uri).rstrip("?&") != uri.rstrip("?&"):
            raise SettingsError(
                f"{shown_uri(uri)} holds a password, which would be written to the files of the job; leave it out, and "
                "give it by the environment, for S3 by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
            )
        return cls(*Place.split(uri))

    @property
    def uri(self) -> str:
        """The URI, from which ``of`` makes an equal path."""
        base, mark, query = self._place.uri.partition("?")
        return f"{base.rstrip('/')}/{quote(self._name, safe=_SAFE)}{mark}{query}"

    @property
    def name(self) -> str:
        """Last component."""
        return PurePosixPath(self._name).name

    @property
    def suffix(self) -> str:
        """Suffix of the last component, with its dot."""
        return PurePosixPath(self._name).suffix

    @property
    def parent(self) -> RemotePath:
        """Folder of the path."""
        return RemotePath(self._place, self._name.rpartition("/")[0])

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        """Return the path of a file or folder in this folder."""
        return RemotePath(self._place, f"{self._name}/{os.fspath(name)}".lstrip("/"))

    @property
    def local(self) -> Path | None:
        """The path on this machine, if the URI is one of its files; else None."""
        return None if self._place.local is None else self._place.local / self._name

    def with_name(self, name: str) -> RemotePath:
        """Return the path with another last component."""
        return self.parent / name

    def absolute(self) -> RemotePath:
        """Return the path, as every URI is absolute."""
        return self

    def resolve(self) -> RemotePath:
        """Return the path, as object stores have no links."""
        return self

    def is_relative_to(self, other: RemotePath | Path) -> bool:
        """Return whether the path is another one, or lies in it."""
        if not isinstance(other, RemotePath) or self._place.uri != other._place.uri:
            return False
        return not other._name or f"{self._name}/".startswith(f"{other._name}/")

    def relative_to(self, other: RemotePath | Path) -> PurePosixPath:
        """Return the path relative to a folder that holds it.

        Raises:
            ValueError: It does not lie in ``other``.
        """
        if not isinstance(other, RemotePath) or not self.is_relative_to(other):
            raise ValueError(f"{self} does not lie in {other}")
        return PurePosixPath(self._name).relative_to(other._name)

    def exists(self) -> bool:
        """Return whether there is a file or folder."""
        return bool(self._found().type != FileType.NotFound)

    def is_file(self) -> bool:
        """Return whether there is a file."""
        return bool(self._found().type == FileType.File)

    def is_dir(self) -> bool:
        """Return whether there is a folder, or files whose names begin with it."""
        return not self._name or bool(self._found().type == FileType.Directory)

    def stat(self) -> RemoteStat:
        """Return size and time of a file.

        Raises:
            FileNotFoundError: There is no file.
        """
        info = self._found()
        if info.type != FileType.File:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return RemoteStat(int(info.size), int(info.mtime_ns or 0))

    def iterdir(self) -> Iterator[RemotePath]:
        """List the files and folders in a folder; none if it is missing."""
        return self._listed(self._name, is_recursive=False)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """List the files and folders below a folder whose relative paths match a pattern, in any order."""
        parts = PurePosixPath(pattern).parts
        fixed = next((i for i, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts) - 1)
        folder = self / "/".join(parts[:fixed]) if fixed else self
        for path in self._listed(folder._name, is_recursive=len(parts) - fixed > 1):
            if _matches(path.relative_to(folder).parts, parts[fixed:]):
                yield path

    def open(self, mode: str = "rb", *, encoding: str | None = None, newline: str | None = None) -> IO[Any]:
        """Open a file for reading.

        Raises:
            OSError: There is no such file, or it cannot be read; the error names it.
        """
        if mode not in ("r", "rb"):
            raise ValueError(f"mode is {mode!r}; a file at a URI is only read")
        file = io.BufferedReader(self.open_raw(), BUFFER_BYTES)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding=encoding, newline=newline)

    def open_raw(self) -> io.RawIOBase:
        """Open a file for reading without a buffer."""
        return self._place.open(self._name)

    def read_text(self, encoding: str | None = None) -> str:
        """Read a small file.

        Raises:
            FileNotFoundError: There is no such file.
            FormatError: It has more than ``MAX_TEXT_BYTES``.
        """
        return self.read_bytes().decode(encoding or "utf-8")

    def read_bytes(self) -> bytes:
        """Read a small file.

        Raises:
            FileNotFoundError: There is no such file.
            FormatError: It has more than ``MAX_TEXT_BYTES``.
        """
        size = self.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise FormatError(f"{self} has {size} bytes; at most {MAX_TEXT_BYTES} are read")
        with self.open_raw() as file:
            return file.read()

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: There is no such file, unless ``missing_ok``.
        """
        if not missing_ok:
            self.stat()
        self._place.remove(self._name)

    def get(self, path: Path) -> None:
        """Copy the file to a path of this machine; it appears when it is complete, and its size is checked."""
        here = Place(str(path.parent))
        here.write(path.name, lambda: self._place.blocks(self._name), self.stat().st_size)

    def put(self, path: Path) -> None:
        """Copy a file of this machine here; it appears when it is complete, and its size is checked."""

        def blocks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while block := file.read(8 * BUFFER_BYTES):
                    yield block

        self._place.write(self._name, blocks, path.stat().st_size)

    def __str__(self) -> str:
        """Return the URI without its query, for messages."""
        return f"{self._place.shown}/{self._name}".rstrip("/")

    def __fspath__(self) -> str:
        """Refuse to be a path of this machine.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(f"{self} is at a URI, which is not read here; copy it to this machine, or mount the bucket")

    def __repr__(self) -> str:
        """Return the URI without its query, for messages."""
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether two paths have one URI."""
        return isinstance(other, RemotePath) and self.uri == other.uri

    def __lt__(self, other: RemotePath) -> bool:
        """Return whether a path comes first in order of names."""
        return self._name.split("/") < other._name.split("/")

    def __hash__(self) -> int:
        """Return a hash of the URI."""
        return hash(self.uri)

    def _found(self) -> Any:
        return self._place.info(self._name) if self._info is None else self._info

    def _listed(self, name: str, *, is_recursive: bool) -> Iterator[RemotePath]:
        for info in self._place.infos(name, is_recursive=is_recursive):
            yield RemotePath(self._place, self._place.name_of(info), info)


def _matches(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether the components of a path match those of a pattern; ``**`` matches any number of them."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_matches(names[i:], parts[1:]) for i in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
