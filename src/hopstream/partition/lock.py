"""How is it made sure that one process at a time changes a dataset that is there?"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hopstream.errors import FormatError, SettingsError, StateError

ATTEMPTS = 10


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
            _lock(root, descriptor, fcntl.LOCK_SH if is_reader else fcntl.LOCK_EX)
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
        raise FormatError(f"{root} is no folder; give the folder of a dataset") from error


def _lock(root: Path, descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(f"{root} is being changed by another process; wait for it, or end it") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL):
            raise


def _is_still(root: Path, descriptor: int) -> bool:
    held = os.fstat(descriptor)
    try:
        now = root.stat()
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino)


def check_same_folder(root: Path, before: os.stat_result) -> None:
    """Refuse to go on where the folder has been replaced since.

    Raises:
        SettingsError: It has been.
    """
    try:
        now = root.stat()
    except FileNotFoundError as error:
        raise SettingsError(f"{root} was removed in the meantime; nothing was added") from error
    if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
        raise SettingsError(f"{root} was written again in the meantime; nothing was added: append to the new one")


def hold(locks: ExitStack, folder: Path | None, *, is_reader: bool = False) -> None:
    """Lock a folder for as long as a stack is open, where it is a folder of this machine that is there."""
    if folder is not None and folder.is_dir():
        locks.enter_context(locked(folder, is_reader=is_reader))
