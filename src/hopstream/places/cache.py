"""Folder of this machine for copies of files that lie at URIs.

A copy has a folder of its own, ``<cache folder>/<key>``. The key names the content, so a changed original gets a new
copy, and processes that use the old one are not disturbed. One process at a time copies; the others wait while its
bytes grow. Nothing is removed: a copy may be removed when no process uses it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hopstream.engine.atomic_folder import locked
from hopstream.engine.job import digest_of
from hopstream.engine.progress_line import ProgressLine
from hopstream.engine.settings import Progress, bytes_text
from hopstream.errors import FormatError, StateError
from hopstream.places.paths import AnyPath, sorted_files

if TYPE_CHECKING:
    from hopstream.places.remote_path import RemotePath

LOG = logging.getLogger(__name__)
CACHE_VARIABLE = "HOPSTREAM_CACHE_DIR"
STALL_S, POLL_S = 120.0, 0.1
"""A waiting process gives up when the copying process has copied nothing for ``STALL_S``."""
SHOWN_AFTER_S = 2.0
KEY_LENGTH = 24


def cache_folder() -> Path:
    """Return the folder of copies: ``HOPSTREAM_CACHE_DIR``, or else one in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if named:
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hopstream" / "copies"


def copied_once(
    folder: Path, uri: str, is_here: Callable[[], bool], copy: Callable[[Progress], object],
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Copy something to a folder of the cache, unless it is there or another process copies it.

    Args:
        folder: The folder, which is created and locked while this process copies.
        uri: The original, for messages.
        is_here: Returns whether the copy is complete.
        copy: Copies; called with a progress function.
        progress: Called with the bytes copied; None writes a line to a terminal after ``SHOWN_AFTER_S``.

    Raises:
        StateError: The process that copies has copied nothing for ``STALL_S``.
        OSError: A system call failed.
    """
    if is_here():
        return
    with _in_turn(folder):
        if not is_here():
            LOG.info("copying %s to %s", uri, folder)
            copy(progress or ProgressLine(f"copying {uri} to {folder}", bytes_text, after_s=SHOWN_AFTER_S))


def copied_here(path: AnyPath, names: Collection[str] | None = None) -> Path:
    """Return a local path of a file or folder: the path itself, or its cached copy.

    The copy is identified by names, sizes and times of the original's files. Every size is checked.

    Args:
        path: The file or folder.
        names: The only files of the folder to copy, relative to it; None for all.

    Raises:
        FormatError: There is no such file or folder.
        StateError: The original was changed while it was copied. Or see ``copied_once``.
        OSError: A file cannot be read, or the disk is full; the error names it.
    """
    if isinstance(path, Path):
        return path
    originals = _files_of(path, names)
    stats = {original.relative_to(path): original.stat() for original in originals}
    if any(".." in name.parts for name in stats):
        raise FormatError(f"{path} holds a file with .. in its name, which would be copied elsewhere; rename it")
    states = [[str(name), stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()]
    folder = cache_folder() / digest_of([path.uri, states])[:KEY_LENGTH]
    copy = folder / (path.name or "root")

    def is_left(name: PurePosixPath) -> bool:
        there = copy / name
        return not there.is_file() or there.stat().st_size != stats[name].st_size

    def fetch(progress: Progress) -> None:
        done, total = 0, sum(stat.st_size for stat in stats.values())
        for original, name in zip(originals, stats, strict=True):
            if is_left(name):
                original.get(copy / name)
            done += stats[name].st_size
            progress("copy", done, total)
        now = [original.stat() for original in originals]
        if [(stat.st_size, stat.st_mtime_ns) for stat in now] != [(size, mtime) for _, size, mtime in states]:
            for name in stats:
                (copy / name).unlink()
            raise StateError(f"{path} was changed while it was copied; repeat the call")

    copied_once(folder, str(path), lambda: not any(map(is_left, stats)), fetch)
    return copy


@contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """Create and lock a folder; wait while another process has the lock and the bytes in the folder grow."""
    folder.mkdir(parents=True, exist_ok=True)
    grown_s, num_bytes = time.monotonic(), -1
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder))
            except StateError as error:
                if (now := _bytes_in(folder)) != num_bytes:
                    grown_s, num_bytes = time.monotonic(), now
                if time.monotonic() - grown_s > STALL_S:
                    raise StateError(
                        f"another process copies to {folder}, and has copied nothing for {STALL_S:.0f} s; stop it, and "
                        "repeat the call"
                    ) from error
            else:
                yield
                return
        time.sleep(POLL_S)


def _files_of(path: RemotePath, names: Collection[str] | None) -> list[RemotePath]:
    found = [path] if path.is_file() else sorted_files(path, "**/*")
    if names is not None:
        found = [file for file in found if str(file.relative_to(path)) in names]
    if not found:
        raise FormatError(f"{path} is missing; give the URI of a file or folder")
    return found


def folder_copied_here(path: AnyPath) -> Path:
    """Return the local path of a JSON file, with copies of the files that it names; see ``copied_here``."""
    if isinstance(path, Path):
        return path
    try:
        named = _texts_of(json.loads(path.read_text(encoding="utf-8-sig")))
    except ValueError:  # its reader says what is wrong
        named = iter(())
    return copied_here(path.parent, {path.name, *(str(PurePosixPath(text)) for text in named)}) / path.name


def _texts_of(value: object) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(item)


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # skips folders that are removed meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total
