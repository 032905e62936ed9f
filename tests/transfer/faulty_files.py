"""File system with planned faults."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from hopstream.places import place as places


@dataclass
class Faults:
    """Planned faults; ``fail_at`` is called with the path of each file that is opened for writing.

    Attributes:
        can_rename: Whether the file system can rename.
        is_short: Whether the last byte written to a path is lost.
        fail_at: Returns the error to raise after the first bytes of a file, or None.
        written: Every path that was opened to be written.
    """

    can_rename: bool = True
    is_short: Callable[[str], bool] = lambda path: False
    fail_at: Callable[[str], BaseException | None] = lambda path: None
    written: list[str] = field(default_factory=list)


class FaultyFiles(fs.FileSystemHandler):
    """The folder of another file system, with faults."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self._inner = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self._faults = faults

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        if not self._faults.can_rename:
            raise NotImplementedError("this file system does not rename")
        self._inner.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        return self._inner.open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> Any:
        return self._inner.open_input_file(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._faults.written.append(path)
        stream = self._inner.open_output_stream(path, compression=None)
        return pa.PythonFile(_Stream(stream, self._faults.is_short(path), self._faults.fail_at(path)), mode="w")


class _Stream:
    def __init__(self, stream: Any, is_short: bool, failure: BaseException | None) -> None:
        self._stream, self._is_short, self._failure = stream, is_short, failure
        self.closed = False

    def write(self, data: bytes) -> int:
        self._stream.write(bytes(data)[:-1] if self._is_short else data)
        if self._failure is not None:
            raise self._failure
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


@contextmanager
def mounted(root: Path, faults: Faults) -> Iterator[str]:
    """Let ``faulty://`` be a folder; yields the URI, with a password in it."""
    real = places._open
    root.mkdir(parents=True, exist_ok=True)

    def opened(uri: str) -> tuple[Any, str]:
        if not uri.startswith("faulty://"):
            return real(uri)
        return fs.PyFileSystem(FaultyFiles(root, faults)), "mag"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_open", opened)
        yield "faulty://user:hidden@host/mag"


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
