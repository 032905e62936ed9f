"""How is it made sure that one process at a time changes a dataset, and none while another one reads it?

Who writes to a place holds its work folder, which may be there without a dataset, and the folder of the dataset that is
there, for as long as it works. Who reads a dataset file by file holds that folder together with other readers. Who has
opened a dataset holds nothing: what is mapped stays.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hopstream.dataset.leftovers import remove_unnamed
from hopstream.dataset.manifest import read_manifest
from hopstream.engine.work_folder import ATTEMPTS, NO_LOCKS, WorkFolder, open_work, work_path
from hopstream.errors import FormatError, SettingsError, StateError
from hopstream.uris import local_path

UNFINISHED = re.compile(r"\.(manifest|roots|cluster)\.json\.[0-9]+\.partial")
"""A file beside the manifest that a process was writing when it was ended."""


@contextmanager
def place_to_write(out: Path) -> Iterator[WorkFolder]:
    """Be the only one who writes to a place, and who is at the dataset that is there.

    Raises:
        StateError: Another process, or thread, writes to the place or reads the dataset.
        SettingsError: The place is the root of all file systems.
    """
    with open_work(out) as work, ExitStack() as locks:
        hold(locks, work.root)
        for path in work.root.iterdir() if work.root.is_dir() else ():
            if UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        yield work


@contextmanager
def folder_to_write(out: Path) -> Iterator[None]:
    """Be the only one who writes to a place file by file; its folder is made, and goes at the end if it is empty.

    Where no work folder can be made beside it, as beside a mount point, its folder alone is locked.

    Raises:
        StateError: Another process, or thread, writes to the place or reads the dataset that is there.
        SettingsError: The place is a file, or the root of all file systems.
        OSError: The folder cannot be made.
    """
    root = Path(os.path.realpath(local_path(out)))
    with ExitStack() as locks:
        try:
            locks.enter_context(open_work(root))
        except OSError:
            if os.path.lexists(work_path(root)):  # another user's, who may be writing
                raise
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        if not missing and not root.is_dir():
            raise SettingsError(f"{out} is a file; move it away, or give another place")
        locks.callback(_remove_empty, missing[1:])
        root.mkdir(parents=True, exist_ok=True)
        locks.enter_context(locked(root))
        locks.callback(_remove_empty, missing[:1])  # while it is locked
        yield


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def dataset_to_change(folder: Path) -> Iterator[WorkFolder]:
    """The same for a dataset that is there; what processes that were ended left in it is removed.

    Raises:
        FormatError: There is no such folder, or it is no dataset.
        ChecksumError: The manifest is not the one that was written.
        StateError: See ``place_to_write``.
    """
    root = Path(os.path.realpath(local_path(folder)))
    if not (root.is_dir() or work_path(root).is_dir()):
        raise _no_folder(root)
    with place_to_write(root) as work:
        if not root.is_dir():
            raise _no_folder(root)
        remove_unnamed(root, read_manifest(root))
        yield work


def _no_folder(root: Path) -> FormatError:
    return FormatError(f"{root} is no folder; give the folder of a dataset")


@contextmanager
def locked(root: Path, *, is_reader: bool = False) -> Iterator[None]:
    """Hold the lock of a dataset's folder, where its file system has locks; it goes when the process does.

    Several readers may hold it at once, and nobody else then.

    Raises:
        FormatError: There is no such folder.
        StateError: Another process, or thread, holds the lock.
    """
    for _ in range(ATTEMPTS):
        descriptor = _open(root)
        try:
            _lock(root, descriptor, is_reader=is_reader)
            if _is_still(root, descriptor):  # else it was replaced between opening and locking
                yield
                return
        finally:
            os.close(descriptor)
    raise StateError(f"{root} is replaced again and again by other processes; wait for them, or end them")


def _open(root: Path) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_folder(root) from error


def _lock(root: Path, descriptor: int, *, is_reader: bool) -> None:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_reader else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        how = "changed" if is_reader else "read or changed"
        raise StateError(f"{root} is being {how} by another process; wait for it, or end it") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_still(root: Path, descriptor: int) -> bool:
    held = os.fstat(descriptor)
    try:
        now = root.stat()
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino)


def hold(locks: ExitStack, folder: Path | None, *, is_reader: bool = False) -> None:
    """Lock a folder for as long as a stack is open, where it is a folder of this machine that is there."""
    if folder is not None and folder.is_dir():
        locks.enter_context(locked(folder, is_reader=is_reader))
