"""Lists, reads and writes files in a folder of any file system or object store.

``Place`` names itself in every error. A file appears in it atomically: it is written under a temporary name and
renamed. Object stores do not rename. There an object appears when its writer closes it, and a failed object is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, ArrowInvalid
from pyarrow import fs as arrow_fs

from hopstream.arrays import CHUNK_BYTES
from hopstream.engine.atomic_folder import sync
from hopstream.errors import FormatError, HopstreamError, SettingsError
from hopstream.uris import is_broken_uri, is_uri, scrubbed, shown_uri

OBJECT_STORES = ("s3", "gcs", "abfs")
"""Names of Arrow's file systems in which a rename is a copy, and folders are only prefixes of names."""
PARTIAL = ".partial"


class _NamedError(OSError):
    """Failure whose message names the place."""


class Place:
    """Folder on this machine or elsewhere.

    Attributes:
        uri: Location as the user gave it; it may hold a password.
        shown: The location as messages show it, without the password.
        local: The folder as a path, or None if it is not on this machine.
    """

    def __init__(self, uri: str) -> None:
        """Open the file system; nothing is read yet.

        Raises:
            SettingsError: The URI names no known file system.
        """
        self.uri, self.shown = uri, shown_uri(uri)
        self._files, self._root = _open(uri)
        is_local = self._files.type_name == "local"
        self.local = Path(self._root) if is_local else None
        self._has_folders = self._renames = self._files.type_name not in OBJECT_STORES

    def names(self) -> list[str]:
        """Return the names in the folder itself, sorted; empty if there is no folder."""
        return sorted(info.base_name for info in self._list("", recursive=False))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of every file in a folder and below, by path relative to the place."""
        start = len(self._root) + 1
        infos = self._list(folder, recursive=True)
        return {info.path[start:]: info.size for info in infos if info.type == arrow_fs.FileType.File}

    def size(self, name: str) -> int | None:
        """Return the bytes of one file, or None if there is none."""
        with self._named(name):
            info = self._files.get_file_info(self._at(name))
        return int(info.size) if info.type == arrow_fs.FileType.File else None

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of one file."""
        with self._named(name), self._files.open_input_stream(self._at(name), compression=None) as stream:
            while block := stream.read(CHUNK_BYTES):
                yield block

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read one small file.

        Raises:
            FormatError: The file is missing, or larger than ``max_bytes``.
        """
        size = self.size(name)
        if size is None:
            raise FormatError(f"{self.shown}/{name} is missing; {self.shown} is not a dataset")
        if size > max_bytes:
            raise FormatError(f"{self.shown}/{name} has {size} bytes; at most {max_bytes} are read")
        return b"".join(self.blocks(name))

    def make(self) -> None:
        """Create a local folder durably; elsewhere writing a file creates it."""
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
            for folder in (self.local, *self.local.parents):
                with suppress(PermissionError):  # a parent that this user cannot read is not one that mkdir made
                    sync(folder)

    def write(
        self, name: str, blocks: Callable[[], Iterable[bytes]], num_bytes: int, *, is_durable: bool = False
    ) -> None:
        """Write one file atomically.

        Args:
            name: Path in the place.
            blocks: Called for the bytes; if it raises, no file is left.
            num_bytes: Number of bytes.
            is_durable: On this machine, flush the file and its folders to disk, so that they survive a power cut. Other
                places guarantee that themselves.

        Raises:
            OSError: A system call failed, or wrote too few bytes; the error names the file.
        """
        with self._named(name):
            folder, _, base = self._at(name).rpartition("/")
            if self._has_folders:
                self._files.create_dir(folder, recursive=True)
            if self._renames:
                partial = f"{folder}/.{base}.{os.getpid()}{PARTIAL}"
                self._write(partial, blocks, num_bytes)
                if is_durable and self.local is not None:
                    sync(Path(partial))  # before the rename, so that a named file is complete after a power cut
                if self._move(partial, self._at(name)):
                    if is_durable:
                        self._sync_folders(name)
                    return
                self._renames = False
            self._write(self._at(name), blocks, num_bytes)

    def write_text(self, name: str, data: bytes) -> None:
        """Write one small file that survives a power cut."""
        self.write(name, lambda: [data], len(data), is_durable=True)

    def _sync_folders(self, name: str) -> None:
        """Flush the folders of a file, up to the place itself, to disk."""
        if self.local is not None:
            folder = (self.local / name).parent
            while folder != self.local:
                sync(folder)
                folder = folder.parent
            sync(folder)

    def remove(self, name: str) -> None:
        """Remove one file, if it exists."""
        with self._named(name), suppress(FileNotFoundError):
            self._files.delete_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder and its content, if it exists."""
        with self._named(name), suppress(FileNotFoundError):
            self._files.delete_dir(self._at(name))

    def _write(self, path: str, blocks: Callable[[], Iterable[bytes]], num_bytes: int) -> None:
        try:
            with self._files.open_output_stream(path, compression=None) as stream:
                for block in blocks():
                    stream.write(block)
            size = self._files.get_file_info(path).size
            if size != num_bytes:
                raise OSError(f"{size} of {num_bytes} bytes were written")
        except BaseException:
            with suppress(OSError, ArrowException):
                self._files.delete_file(path)
            raise

    def _move(self, partial: str, path: str) -> bool:
        """Rename a file; return False if this file system cannot."""
        try:
            if self.local is None and self._files.get_file_info(path).type != arrow_fs.FileType.NotFound:
                self._files.delete_file(path)  # HDFS does not rename over an existing file
            self._files.move(partial, path)
        except NotImplementedError:
            self._files.delete_file(partial)
            return False
        except BaseException:
            with suppress(OSError, ArrowException):
                self._files.delete_file(partial)
            raise
        return True

    def _list(self, folder: str, *, recursive: bool) -> list[Any]:
        selector = arrow_fs.FileSelector(
            self._at(folder) if folder else self._root, allow_not_found=True, recursive=recursive
        )
        with self._named(folder):
            return list(self._files.get_file_info(selector))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Name the file in errors of the file system; errors that name another path are kept."""
        try:
            yield
        except (OSError, ArrowException, NotImplementedError) as error:
            if isinstance(error, HopstreamError | _NamedError) or getattr(error, "filename", None) is not None:
                raise
            where = f"{self.shown}/{name}".rstrip("/")
            if isinstance(error, OSError) and error.errno is not None:
                raise OSError(error.errno, os.strerror(error.errno), where) from None
            raise _NamedError(f"{where}: {scrubbed(str(error), self.uri)}") from None


def _open(uri: str) -> tuple[Any, str]:
    """Return the file system of a place, and the path in it."""
    if is_broken_uri(uri):
        raise SettingsError(
            f"{uri.partition(':')[0]}:/ looks like a URI that was converted to a Path; pass it as a string with two "
            "slashes, such as s3://bucket/mag"
        )
    if not is_uri(uri):
        path = str(Path(uri).absolute())
        if path == "/":
            raise SettingsError("/ is the root of a file system; write a folder in it")
        return arrow_fs.LocalFileSystem(), path
    try:
        files, path = arrow_fs.FileSystem.from_uri(uri)
    except (ArrowInvalid, ArrowException, OSError, NotImplementedError) as error:
        message = scrubbed(str(error), uri)
        raise SettingsError(
            f"{shown_uri(uri)} cannot be opened ({message}); write a local folder, or a URI such as file:///data/mag, "
            "s3://bucket/mag, gs://bucket/mag or hdfs://host:port/mag"
        ) from None
    if not path.strip("/"):
        raise SettingsError(f"{shown_uri(uri)} names no folder; write one, such as s3://bucket/mag")
    return files, path.rstrip("/")
