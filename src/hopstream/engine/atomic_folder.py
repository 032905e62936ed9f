"""Lets one process at a time write to a place, shows nobody half of it, and goes on where a process was ended.

While a process writes to a place ``X``, a hidden folder ``.X.work`` lies beside it. The process that has locked the
file in that folder is alone; the system unlocks the file when the process ends. All that is unfinished lies there, and
what is replaced goes there too. The next process that opens the folder goes on with it, puts back, or clears it. Jobs
work there: what a job makes lies in a folder that is named by the job's digest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hopstream.arrays import write_text
from hopstream.engine.contract import Engine
from hopstream.engine.job import DONE_FOLDER, JOB_FILE, Job, job_digest
from hopstream.engine.settings import Choice, Progress
from hopstream.errors import FormatError, HopstreamError, SettingsError, StateError
from hopstream.uris import local_path

LOCK_FILE, OLD, PLACED, CHOICE_FILE = "lock", "old", "placed.json", "choice.json"
ATTEMPTS = 10
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
"""What a file system says that has no locks."""
SETTLE_S = 0.1
"""How long a removal waits for what a process wrote that was ended a moment ago."""
_HIDDEN_NAME = re.compile(r"\.([^/]+)\.(?:\d+\.partial|work(?:/(?:[0-9a-z]+/)*(?:new|dataset|chunked))?)(?=/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder:
    """The hidden folder of a place, which this process alone works in.

    Attributes:
        root: The place, links followed.
        top: The folder that is locked.
        path: Where to work: ``top``, or a folder in it.
        finished_call: The call that was ended when its result was in place already and the rest not yet removed.
    """

    root: Path
    top: Path
    path: Path
    finished_call: str | None = None

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
            call: What ``finished_call`` says if the process is ended before all else is removed.

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

    @contextmanager
    def new_folder(self, check_place: Callable[[], None]) -> Iterator[Path]:
        """An empty folder in this one, which takes the place when all is done, and is gone if anything fails.

        Args:
            check_place: Refuses to replace what is at the place; called first, and again before it is replaced.
        """
        check_place()
        self.clear()
        new = self.path / "new"
        try:
            new.mkdir()
            yield new
            check_place()
            self.put_in_place(new)
        except BaseException:
            self.clear()
            raise

    def job_root(self, digest: str) -> Path:
        """Where the tasks of a job work."""
        return self.path / digest[:16]

    def num_done(self, digest: str, *, product: str | None = None) -> int:
        """How many tasks of a job ``resume`` would find done."""
        return len(list((self.path / DONE_FOLDER).glob("*.json"))) if self._has_job(digest, product) else 0

    def resume(
        self, digest: str, engine: Engine, progress: Progress | None = None, *, product: str | None = None,
        choice: Choice | None = None,
    ) -> Job:  # fmt: skip
        """Begin a job, or go on with it; what another one left is removed.

        Args:
            digest: Of all that decides over the job.
            engine: What runs its tasks.
            progress: As ``Job`` takes it.
            product: The folder that the job makes, in ``job_root``; the job is done anew where it is not there any
                more. None where the job makes none.
            choice: The job's memory and workers, for ``choice_before``.
        """
        if not self._has_job(digest, product):
            self.clear()
        job = Job(self.path, digest, engine, progress)
        if choice is not None:
            self.keep_choice(choice)
        return job

    def _has_job(self, digest: str, product: str | None) -> bool:
        is_there = product is None or (self.job_root(digest) / product).is_dir()
        return is_there and job_digest(self.path) == digest

    def keep_choice(self, choice: Choice) -> None:
        """Keep the memory and workers of the job that works here, for ``choice_before``."""
        record = {"memory_bytes": choice.memory_bytes, "num_workers": choice.num_workers}
        write_text(self.path / CHOICE_FILE, json.dumps(record))

    def disk_bytes(self) -> int:
        """Bytes of disk that it takes."""
        return sum(_disk_bytes(path) for path in self.path.rglob("*")) if self.path.is_dir() else 0


def work_path(root: Path) -> Path:
    """Where the work folder of a place is, if a process writes to it or was ended; ``root`` has its links followed."""
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
        lock = _locked_file(top, root)
        try:
            yield WorkFolder(root=root, top=top, path=top, finished_call=_recover(root, top))
        finally:
            _leave(top)
            os.close(lock)
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def choice_before(out: str | os.PathLike[str], digest_with: Callable[[Choice], str]) -> Choice | None:
    """The memory and workers of the job that was begun at a place, where this call goes on with it.

    A job goes on only if it is cut as it was, and memory and workers decide over that.

    Args:
        out: Where the job writes to.
        digest_with: Gives this call's digest where it prefers such memory and workers.

    Returns:
        None where it would be another job.
    """
    path = work_path(Path(os.path.realpath(out)))
    try:
        record = json.loads((path / CHOICE_FILE).read_text(encoding="utf-8"))
        choice = Choice(memory_bytes=int(record["memory_bytes"]), num_workers=int(record["num_workers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    began = job_digest(path)
    if began is None:  # what was left is being removed: that of a job that was done, or of another one
        return choice if (path / PLACED).exists() else None
    return choice if began == digest_with(choice) else None


@contextmanager
def locked(root: Path, *, is_reader: bool = False) -> Iterator[None]:
    """Hold the lock of a folder itself, where its file system has locks; it goes when the process does.

    Several readers may hold it at once, and nobody else then.

    Raises:
        FormatError: There is no such folder.
        StateError: Another process, or thread, holds the lock.
    """
    how = "changed" if is_reader else "read or changed"
    for _ in range(ATTEMPTS):
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_folder(root) from error
        try:
            _lock(descriptor, f"{root} is being {how} by another process; wait for it, or end it", is_shared=is_reader)
            if _is_still(root, descriptor):  # else it was replaced between opening and locking
                yield
                return
        finally:
            os.close(descriptor)
    raise StateError(f"{root} is replaced again and again by other processes; wait for them, or end them")


def no_folder(root: Path) -> FormatError:
    """The error to raise where there is no folder."""
    return FormatError(f"{root} is no folder; give the folder of a dataset")


def hold(locks: ExitStack, folder: Path | None, *, is_reader: bool = False) -> None:
    """Lock a folder for as long as a stack is open, where it is a folder of this machine that is there."""
    if folder is not None and folder.is_dir():
        locks.enter_context(locked(folder, is_reader=is_reader))


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Give what the system refuses inside the name of what was written, where it has none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, HopstreamError):
            raise
        raise OSError(error.errno, error.strerror, shown_path(error.filename or path)) from error


def shown_path(path: str | bytes | os.PathLike[str] | int) -> str:
    """A path as the user gave it: without the temporary names under which files and folders are written."""
    return _HIDDEN_NAME.sub(r"\1", os.fsdecode(path) if not isinstance(path, int) else str(path))


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


def _locked_file(top: Path, root: Path) -> int:
    """The open and locked file of a work folder; it is still the one that others find."""
    for attempt in range(ATTEMPTS):
        try:
            top.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(top / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, FileExistsError):  # removed by its holder, or it can never be made
            if attempt == ATTEMPTS - 1:
                raise
            continue
        try:
            _lock(descriptor, f"{root} is being written to by another process; wait for it, or end it")
            if _is_still(top / LOCK_FILE, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StateError(f"{root} is written to by other processes again and again; wait for them, or end them")


def _lock(descriptor: int, refusal: str, *, is_shared: bool = False) -> None:
    """Lock an open file or folder, where its file system has locks.

    Raises:
        StateError: Another process, or thread, holds the lock; ``refusal`` says so.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(refusal) from error
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
        # A folder that is renamed keeps its number, so this tells whether the one that was to come here is there.
        call = str(place["call"]) if root.stat().st_ino == place["inode"] else None
    except (OSError, ValueError, KeyError, TypeError):
        call = None
    if call is None:
        _remove(top / OLD)
        return None
    WorkFolder(root=root, top=top, path=top).clear()
    return call


def _put_back(old: Path, root: Path) -> None:
    if old.exists() and not root.exists():
        old.rename(root)


def _leave(top: Path) -> None:
    """Remove a folder with nothing in it; a process that makes another lock meanwhile keeps it."""
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


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
