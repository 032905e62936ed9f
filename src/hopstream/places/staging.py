"""Writes folders to URIs.

A folder is made in the cache folder of this machine, copied when it is complete, and removed.
A killed call is resumed: what was made is not made again, and what was copied is not copied again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopstream.arrays import write_text
from hopstream.engine.atomic_folder import locked
from hopstream.engine.job import digest_of
from hopstream.engine.settings import Progress, no_progress
from hopstream.errors import SettingsError
from hopstream.places.cache import KEY_LENGTH, cache_folder
from hopstream.places.paths import AnyPath, sorted_files

if TYPE_CHECKING:
    from hopstream.places.remote_path import RemotePath

CALL, COPIED = "call", "copied"


@dataclass(frozen=True, slots=True)
class Staging:
    """Work folder for one URI, locked by this process.

    Attributes:
        out: The URI.
        top: The locked folder.
    """

    out: RemotePath
    top: Path

    @property
    def folder(self) -> Path:
        """The folder to make."""
        return self.top / (self.out.name or "root")

    def is_made(self, call: str | None) -> bool:
        """Return whether a killed process made the folder by the same call; None matches no call."""
        record = self.top / CALL
        is_there = call is not None and self.folder.is_dir() and record.is_file()
        return is_there and json.loads(record.read_text(encoding="utf-8"))["call"] == call

    def make(self, write: Callable[[Path], Any], call: str | None = None) -> Any:
        """Make the folder, unless ``is_made``.

        Args:
            write: Writes the folder, which does not exist, and returns a JSON value; may resume unfinished work.
            call: Digest of everything that determines the folder's content; None if that is unknown.

        Returns:
            What ``write`` returned, also in an earlier process.
        """
        record = self.top / CALL
        if not self.is_made(call):
            record.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            write_text(record, json.dumps({"call": call, "result": write(self.folder)}))
        return json.loads(record.read_text(encoding="utf-8"))["result"]

    def check_free(self) -> None:
        """Refuse a URI with files, unless an earlier, killed process copied them from here.

        Raises:
            SettingsError: There are files.
            OSError: The URI cannot be read.
        """
        if not (self.top / COPIED).exists() and next(self.out.iterdir(), None) is not None:
            raise SettingsError(
                f"{self.out} is not empty; remove its files, give another folder, or repeat the interrupted call"
            )

    def copy(self, last: str, progress: Progress | None = None) -> None:
        """Copy the files of the folder to the URI.

        Args:
            last: Name of the file to copy last; it makes the others complete.
            progress: Called as ``progress("copy", done, total)`` in bytes.

        Raises:
            OSError: A file cannot be written; the error names it.
        """
        record = self.top / COPIED
        copied = set(record.read_text().splitlines()) if record.exists() else set[str]()
        record.touch()
        files = sorted(sorted_files(self.folder, "**/*"), key=lambda path: path == self.folder / last)
        sizes = [path.stat().st_size for path in files]
        done, tell = 0, progress or no_progress
        for path, size in zip(files, sizes, strict=True):
            name = path.relative_to(self.folder)
            state, target = json.dumps([str(name), size, path.stat().st_mtime_ns]), self.out / name
            if state not in copied or not target.is_file() or target.stat().st_size != size:
                target.put(path)
                with record.open("a") as lines:
                    lines.write(state + "\n")
            done += size
            tell("copy", done, sum(sizes))


def write_folder_at(out: RemotePath, write: Callable[[Path], object], last: str, progress: Progress | None) -> AnyPath:
    """Write a folder to a URI, and return the path of the file that is copied last; see ``Staging``.

    Raises:
        SettingsError: The URI is not empty.
        StateError: Another process of this machine writes to the URI.
        OSError: A system call failed.
    """

    def made(here: Path) -> None:
        write(here)

    with staging_of(out) as staging:
        staging.check_free()
        staging.make(made)
        staging.copy(last, progress)
    return out / last


@contextmanager
def staging_of(out: RemotePath) -> Iterator[Staging]:
    """Lock the work folder of a URI; remove it on success.

    Raises:
        StateError: Another process of this machine writes to the URI.
    """
    top = cache_folder() / f"to-{digest_of(out.uri)[:KEY_LENGTH]}"
    top.mkdir(parents=True, exist_ok=True)
    with locked(top):
        try:
            yield Staging(out, top)
        except BaseException:
            with suppress(OSError):
                top.rmdir()
            raise
        shutil.rmtree(top)
