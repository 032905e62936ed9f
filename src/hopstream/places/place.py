"""Lists, reads and writes files in a folder of any file system or object store.

``Place`` names itself in every error, and repeats calls that fail for a passing reason. A file appears in it
atomically: it is written under a temporary name and renamed. Object stores do not rename. There an object appears when
its writer closes it, and a failed object is removed.
"""

from __future__ import annotations

import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import ArrowException, ArrowInvalid
from pyarrow import fs as arrow_fs

from hopstream.arrays import CHUNK_BYTES
from hopstream.engine.atomic_folder import sync
from hopstream.errors import FormatError, HopstreamError, SettingsError
from hopstream.uris import is_broken_uri, is_uri, scrubbed, shown_uri

OBJECT_STORES = ("s3", "gcs", "abfs")
"""Names of Arrow's file systems in which a rename is a copy, and folders are only prefixes of names."""
PARTIAL = ".partial"
RETRY_S = 60.0
"""A call that fails for a passing reason is repeated until this many seconds have gone by since its first failure."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
_PASSING = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTL|REQUEST_TIME|HTTP status (5\d\d|429)|"
    r"[Tt]imed? ?out|UNAVAILABLE|DEADLINE_EXCEEDED|curlCode",
)
"""Messages of failures that pass: the network, or a busy server. A refusal, such as of a password, is final."""
_REFUSED = re.compile(
    r"ACCESS_DENIED|HTTP status 40[13]|SIGNATURE|INVALID_ACCESS_KEY|[Cc]redential|UNRECOGNIZED_CLIENT"
)
_T = TypeVar("_T")


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

    @classmethod
    def split(cls, uri: str) -> tuple[Place, str]:
        """Open the bucket or the root of the file system that a URI names.

        Returns:
            The bucket or root, and the path in it.

        Raises:
            SettingsError: The URI names no known file system.
        """
        place = cls(uri)
        top, _, name = place._root.partition("/")
        base, mark, query = place.uri.partition("?")
        place.uri = base.rstrip("/").rsplit("/", name.count("/") + 1)[0] + mark + query if name else place.uri
        place.shown, place._root = shown_uri(place.uri), top
        place.local = None if place.local is None else Path("/")
        return place, name

    def names(self) -> list[str]:
        """Return the names in the folder itself, sorted; empty if there is no folder."""
        return sorted(info.base_name for info in self.infos("", is_recursive=False))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of every file in a folder and below, by path relative to the place."""
        infos = self.infos(folder, is_recursive=True)
        return {self.name_of(info): info.size for info in infos if info.type == arrow_fs.FileType.File}

    def size(self, name: str) -> int | None:
        """Return the bytes of one file, or None if there is none."""
        info = self.info(name)
        return int(info.size) if info.type == arrow_fs.FileType.File else None

    def info(self, name: str) -> Any:
        """Return Arrow's ``FileInfo`` of a name, which may be missing."""
        with self._named(name):
            return self._retried(lambda: self._files.get_file_info(self._at(name)))

    def infos(self, folder: str, *, is_recursive: bool) -> list[Any]:
        """Return Arrow's ``FileInfo`` of every file and folder in a folder; empty if there is no folder."""
        selector = arrow_fs.FileSelector(self._at(folder), allow_not_found=True, recursive=is_recursive)
        with self._named(folder):
            return list(self._retried(lambda: self._files.get_file_info(selector)))

    def name_of(self, info: Any) -> str:
        """Return the path of a ``FileInfo`` relative to the place."""
        return str(info.path)[len(self._root) + 1 :]

    def open(self, name: str) -> PlaceFile:
        """Open a file for reading.

        Raises:
            OSError: There is no such file, or it cannot be read; the error names it.
        """
        return PlaceFile(self, name)

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of one file."""
        with self.open(name) as file:
            while block := file.read(CHUNK_BYTES):
                yield block

    def read(self, name: str, max_bytes: int, what: str = "a dataset") -> bytes:
        """Read one small file.

        Raises:
            FormatError: It is missing, so that the place is not ``what``, or it is larger than ``max_bytes``.
        """
        size = self.size(name)
        if size is None:
            raise FormatError(f"{self.shown}/{name} is missing; {self.shown} is not {what}")
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
                self._retried(lambda: self._files.create_dir(folder, recursive=True))
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
            self._retried(lambda: self._files.delete_file(self._at(name)))

    def remove_folder(self, name: str) -> None:
        """Remove a folder and its content, if it exists."""
        with self._named(name), suppress(FileNotFoundError):
            self._retried(lambda: self._files.delete_dir(self._at(name)))

    def _write(self, path: str, blocks: Callable[[], Iterable[bytes]], num_bytes: int) -> None:
        self._retried(lambda: self._write_once(path, blocks, num_bytes))

    def _write_once(self, path: str, blocks: Callable[[], Iterable[bytes]], num_bytes: int) -> None:
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

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _retried(self, call: Callable[[], _T]) -> _T:
        """Call a function again while it fails for a passing reason, for at most ``RETRY_S``."""
        first_s, pause_s = 0.0, FIRST_PAUSE_S
        while True:
            try:
                return call()
            except OSError as error:
                first_s = first_s or time.monotonic()
                if not is_passing(error) or time.monotonic() + pause_s > first_s + RETRY_S:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

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
            raise _NamedError(f"{where}: {scrubbed(str(error), self.uri)}{_remedy(error)}") from None


class PlaceFile(io.RawIOBase):
    """File of a place, open for reading; a failed read is repeated at its offset."""

    def __init__(self, place: Place, name: str) -> None:
        """Open the file.

        Raises:
            OSError: There is no such file, or it cannot be read; the error names it.
        """
        self._place, self._name, self._offset = place, name, 0
        self._file: Any = None
        self._size = int(self._called(lambda file: file.size()))

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset."""
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the offset, and return it."""
        self._offset = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return their number; 0 at the end of the file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, or all others.

        Raises:
            OSError: The file cannot be read; the error names it.
        """
        left = max(0, self._size - self._offset)
        wanted = left if size is None or size < 0 else min(size, left)
        data: bytes = self._called(lambda file: file.read_at(wanted, self._offset)) if wanted else b""
        if len(data) < wanted:
            raise OSError(errno.EIO, f"{len(data)} of {wanted} bytes were read", f"{self._place.shown}/{self._name}")
        self._offset += len(data)
        return data

    def readall(self) -> bytes:
        """Read all other bytes."""
        return self.read()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        super().close()

    def _called(self, call: Callable[[Any], _T]) -> _T:
        place = self._place

        def opened() -> _T:
            if self._file is None:
                self._file = place._files.open_input_file(place._at(self._name))
            try:
                return call(self._file)
            except OSError:
                self._file = None  # opened anew if the call is repeated
                raise

        with place._named(self._name):
            return place._retried(opened)


def is_passing(error: OSError) -> bool:
    """Return whether an error is of a kind that passes: of the network, or of a busy server."""
    return error.errno is None and _PASSING.search(str(error)) is not None


def _remedy(error: BaseException) -> str:
    text = str(error)
    if _REFUSED.search(text):
        return (
            "; the place refuses these credentials: give others, for S3 by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "or AWS_PROFILE, for gs:// by GOOGLE_APPLICATION_CREDENTIALS"
        )
    if _PASSING.search(text):
        return (
            f"; it was tried for {RETRY_S:.0f} s: check the network, and for a store of your own the endpoint in "
            "AWS_ENDPOINT_URL"
        )
    return ""


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
    if uri.lower().startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:  # by default, it is 15 minutes
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={RETRY_S:.0f}"
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
    return _with_deadline(files), path.rstrip("/")


def _with_deadline(files: Any) -> Any:
    """Return a file system of S3 that gives up after three attempts; others as they are.

    What ``from_uri`` makes waits for minutes for a server that takes a connection and never answers.
    """
    if files.type_name != "s3":
        return files
    _, (options,) = files.__reduce__()  # the only way to its options: those of the URI, and the bucket's region
    return arrow_fs.S3FileSystem(**options, retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=3))
