"""Lists, reads and writes files in a folder of any file system or object store.

``Place`` names itself in every error, and a file appears in it whole: it is written beside its name and renamed. Object
stores do not rename; there an object appears when its writer closes it, and one that went wrong is removed again.
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
"""Names of Arrow's file systems in which a rename is a copy, and folders are made of names."""
PARTIAL = ".partial"


class _NamedError(OSError):
    """A failure whose message says in which place it happened."""


class Place:
    """A folder, here or elsewhere.

    Attributes:
        uri: Where it is, as the user gave it: it may hold a password.
        shown: The same as messages name it.
        local: The folder as a path, where it is on this machine.
    """

    def __init__(self, uri: str) -> None:
        """Find the file system; nothing is read yet.

        Raises:
            SettingsError: The URI names no file system that is known here.
        """
        self.uri, self.shown = uri, shown_uri(uri)
        self._files, self._root = _open(uri)
        is_local = self._files.type_name == "local"
        self.local = Path(self._root) if is_local else None
        self._has_folders = self._renames = self._files.type_name not in OBJECT_STORES

    def names(self) -> list[str]:
        """Names in the folder itself, sorted; none where there is no folder."""
        return sorted(info.base_name for info in self._list("", recursive=False))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Bytes of every file in a folder of the place and below, by path relative to the place."""
        start = len(self._root) + 1
        infos = self._list(folder, recursive=True)
        return {info.path[start:]: info.size for info in infos if info.type == arrow_fs.FileType.File}

    def size(self, name: str) -> int | None:
        """Bytes of one file, or None where there is none."""
        with self._named(name):
            info = self._files.get_file_info(self._at(name))
        return int(info.size) if info.type == arrow_fs.FileType.File else None

    def blocks(self, name: str) -> Iterator[bytes]:
        """The bytes of one file, from its begin to its end."""
        with self._named(name), self._files.open_input_stream(self._at(name), compression=None) as stream:
            while block := stream.read(CHUNK_BYTES):
                yield block

    def read(self, name: str, max_bytes: int) -> bytes:
        """One small file.

        Raises:
            FormatError: It is missing, or larger than that.
        """
        size = self.size(name)
        if size is None:
            raise FormatError(f"{self.shown}/{name} is missing; {self.shown} is not a dataset")
        if size > max_bytes:
            raise FormatError(f"{self.shown}/{name} has {size} bytes; at most {max_bytes} are read")
        return b"".join(self.blocks(name))

    def make(self) -> None:
        """Make the folder, on this machine so that it is still there after a power cut; elsewhere files make it."""
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
            for folder in (self.local, *self.local.parents):
                with suppress(PermissionError):  # who may not read a folder above has made nothing in it
                    sync(folder)

    def write(
        self, name: str, blocks: Callable[[], Iterable[bytes]], num_bytes: int, *, is_durable: bool = False
    ) -> None:
        """Write one file so that nobody sees half of it.

        Args:
            name: Its path in the place.
            blocks: Called for its bytes; where it raises, no file is left.
            num_bytes: How many there are.
            is_durable: On this machine, have the system bring the file and its folders to the disk, so that a power
                cut does not take them. Other places answer for what they took.

        Raises:
            OSError: The system failed, or wrote fewer bytes than it was given; the error names the file.
        """
        with self._named(name):
            folder, _, base = self._at(name).rpartition("/")
            if self._has_folders:
                self._files.create_dir(folder, recursive=True)
            if self._renames:
                partial = f"{folder}/.{base}.{os.getpid()}{PARTIAL}"
                self._write(partial, blocks, num_bytes)
                if is_durable and self.local is not None:
                    sync(Path(partial))  # before it has its name: no name without all of its bytes
                if self._move(partial, self._at(name)):
                    if is_durable:
                        self._sync_folders(name)
                    return
                self._renames = False
            self._write(self._at(name), blocks, num_bytes)

    def write_text(self, name: str, data: bytes) -> None:
        """Write one small file, so that a power cut does not take it."""
        self.write(name, lambda: [data], len(data), is_durable=True)

    def _sync_folders(self, name: str) -> None:
        """Have the system bring the folders of a file to the disk, that of the place itself included."""
        if self.local is not None:
            folder = (self.local / name).parent
            while folder != self.local:
                sync(folder)
                folder = folder.parent
            sync(folder)

    def remove(self, name: str) -> None:
        """Remove one file; it may be gone already."""
        with self._named(name), suppress(FileNotFoundError):
            self._files.delete_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder and what is in it; it may be gone already."""
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
        """Rename a file; False where this file system cannot."""
        try:
            if self.local is None and self._files.get_file_info(path).type != arrow_fs.FileType.NotFound:
                self._files.delete_file(path)  # HDFS does not rename over a file
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
        """Name the file in what the file system raises; what is of another place keeps its name."""
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
    """The file system of a place, and the path in it."""
    if is_broken_uri(uri):
        raise SettingsError(
            f"{uri.partition(':')[0]}:/ is no place; write a URI with two slashes, as text and not as a Path"
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
