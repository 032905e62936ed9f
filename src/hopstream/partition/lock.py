"""How is it made sure that one process at a time changes a dataset that is there?"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopstream.errors import FormatError, SettingsError, StateError


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the lock of a dataset's folder, where its file system has locks; it goes when the process does.

    Raises:
        FormatError: There is no such folder.
        StateError: Another process, or thread, holds the lock.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FormatError(f"{root} is no folder; give the folder of a dataset") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"{root} is being changed by another process; wait for it, or end it") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL):
                raise
        yield
    finally:
        os.close(descriptor)


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
