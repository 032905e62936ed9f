"""Folder of this machine for copies of files that lie at URIs.

A copy has a folder of its own, ``<cache folder>/<key>``. The key names the content, so a changed original gets a new
copy, and processes that use the old one are not disturbed. One process at a time copies; the others wait while its
bytes grow. Nothing is removed: a copy may be removed when no process uses it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from hopstream.engine.atomic_folder import locked
from hopstream.engine.job import digest_of
from hopstream.engine.progress_line import ProgressLine
from hopstream.engine.settings import Progress, bytes_text
from hopstream.errors import FormatError, StateError
from hopstream.places.paths import AnyPath, sorted_files

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


def copied_here(path: AnyPath) -> Path:
    """Return a path of this machine for a file or folder: the path, or a copy of what lies at the URI.

    The copy is identified by names, sizes and times of the original's files. Every size is checked.

    Raises:
        FormatError: There is no such file or folder.
        SettingsError: The disk has too little room.
        StateError: See ``copied_once``.
        OSError: A file cannot be read; the error names it.
    """
    if isinstance(path, Path):
        return path
    originals = [path] if path.is_file() else sorted_files(path, "**/*")
    if not originals:
        raise FormatError(f"{path} is missing; give the URI of a file or folder")
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


def folder_copied_here(path: AnyPath) -> Path:
    """Return a file's path on this machine, with the folder that it describes; see ``copied_here``."""
    return path if isinstance(path, Path) else copied_here(path.parent) / path.name


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total
