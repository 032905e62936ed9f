"""How does one process at a time write to a place, and where does it keep what is not finished?

While somebody writes to a place ``X``, whatever the verb, a hidden folder ``.X.work`` is beside it. Who has locked the
file in it is alone; the system unlocks it when the process ends. All that a verb has not finished lies in it, and what
is replaced goes there too, so that whoever opens it next goes on, puts back, or clears it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hopstream.arrays import write_text
from hopstream.engine.job import JOB_FILE
from hopstream.errors import SettingsError, StateError
from hopstream.uris import local_path

LOCK_FILE, OLD, PLACED, CHOICE_FILE = "lock", "old", "placed.json", "choice.json"
ATTEMPTS = 10
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
"""What a file system says that has no locks."""
SETTLE_S = 0.1
"""How long is waited for what a process wrote that was ended a moment ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder:
    """The hidden folder of a place, which this process alone works in.

    Attributes:
        root: The place, links followed.
        top: The folder that is locked.
        path: Where to work: ``top``, or a folder in it.
        placed: What call was ended when its result was in place already and the rest not yet removed; None for none.
    """

    root: Path
    top: Path
    path: Path
    placed: str | None = None

    def inside(self, name: str) -> WorkFolder:
        """A folder in this one, for a step of the work."""
        return WorkFolder(root=self.root, top=self.top, path=self.path / name)

    def clear(self) -> None:
        """Remove what is in it: first what says that it may be gone on with, so that no half of it is ever believed."""
        (self.path / JOB_FILE).unlink(missing_ok=True)
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        # What tells that the work is done goes after all else, and after it what the same call is recognised by.
        for name in sorted(names, key=lambda name: (name == CHOICE_FILE, name == PLACED)):
            if name != LOCK_FILE:
                _remove(self.path / name)

    def put_in_place(self, new: Path, call: str | None = None) -> None:
        """Give the place to a complete folder, and remove all else.

        Args:
            new: A folder in this one.
            call: What ``placed`` says if the process is ended before all else is removed.

        Raises:
            OSError: The system failed; what was there is there.
        """
        old = self.top / OLD
        if call is not None:
            write_text(self.top / PLACED, json.dumps({"call": call, "inode": new.stat().st_ino}))
        try:
            if self.root.exists():
                sync_tree(new)  # what is replaced goes for good
                shutil.copymode(self.root, new)
                self.root.rename(old)
            new.rename(self.root)
            sync(self.root.parent)
        except BaseException:
            _put_back(old, self.root)
            raise
        WorkFolder(root=self.root, top=self.top, path=self.top).clear()


def work_path(root: Path) -> Path:
    """Where the work folder of a place is, if anybody writes to it or was ended; ``root`` has its links followed."""
    return root.with_name(f".{root.name}.work")


@contextmanager
def open_work(out: str | os.PathLike[str]) -> Iterator[WorkFolder]:
    """Be the only one who writes to a place; parents that are missing are made.

    What an ended process had moved away is put back. The folder goes at the end if nothing is in it.

    Raises:
        StateError: Another process, or thread, writes to the place.
        SettingsError: The place is the root of all file systems.
    """
    root = Path(os.path.realpath(local_path(out)))
    if not root.name:
        raise SettingsError(f"{out} is the root of a file system, which cannot be replaced; give a folder in it")
    top = work_path(root)
    missing = [folder for folder in root.parents if not folder.exists()]
    try:
        lock = _locked(top, root)
        try:
            yield WorkFolder(root=root, top=top, path=top, placed=_recover(root, top))
        finally:
            _leave(top)
            os.close(lock)
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _locked(top: Path, root: Path) -> int:
    """The open and locked file; it is still the one that others find."""
    for attempt in range(ATTEMPTS):
        try:
            top.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(top / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, FileExistsError):  # removed by who held it, or it can never be made
            if attempt == ATTEMPTS - 1:
                raise
            continue
        try:
            _lock(descriptor, root)
            if _is_still(top / LOCK_FILE, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StateError(f"{root} is written to by other processes again and again; wait for them, or end them")


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(f"{root} is being written to by another process; wait for it, or end it") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _recover(root: Path, top: Path) -> str | None:
    """Undo or finish what a process did that was ended while it replaced the place; the call that was finished."""
    _put_back(top / OLD, root)
    try:
        place = json.loads((top / PLACED).read_text(encoding="utf-8"))
        # A folder that is renamed keeps its number, so this tells whether the one that was to be placed is there.
        call = str(place["call"]) if root.stat().st_ino == place["inode"] else None
    except (OSError, ValueError, KeyError, TypeError):
        call = None
    if call is None:
        _remove(top / OLD)
        return None
    WorkFolder(root=root, top=top, path=top).clear()
    return call


def sync_tree(folder: Path) -> None:
    """Have the system bring all files of a folder, and their names, to the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Have the system bring a file, or the names in a folder, to the disk, where the file system can say so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def _put_back(old: Path, root: Path) -> None:
    if old.exists() and not root.exists():
        old.rename(root)


def _leave(top: Path) -> None:
    """Remove a folder with nothing in it; whoever makes another lock meanwhile keeps it."""
    with suppress(OSError):
        if [path.name for path in top.iterdir()] == [LOCK_FILE]:
            (top / LOCK_FILE).unlink()
            top.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or folder, also where workers of a process that was ended are about to end."""
    for _ in range(ATTEMPTS):
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            time.sleep(SETTLE_S)
        else:
            return
    shutil.rmtree(path)
