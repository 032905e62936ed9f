"""Locks a place for one writer, replaces it atomically, and resumes after a killed process.

While a process writes to a place ``X``, a hidden folder ``.X.work`` lies beside it. The process holds a lock on a file
in that folder, which the kernel releases when the process ends. Unfinished files and the replaced folder lie there. The
next process that opens the folder resumes the work, restores the replaced folder, or clears it. Jobs work there: a job
writes to a folder named by the job's digest.
"""

from __future__ import annotations

import ctypes
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
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of Linux for ``renameat2``."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
"""Errors of file systems without locks."""
SETTLE_S = 0.1
"""Pause between attempts to remove a folder into which workers of a killed process may still write."""
_HIDDEN_NAME = re.compile(r"\.([^/]+)\.(?:\d+\.partial|work(?:/(?:[0-9a-z]+/)*(?:new|dataset|chunked))?)(?=/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder:
    """Hidden work folder of a place, locked by this process.

    Attributes:
        root: The place, with symbolic links resolved.
        top: The locked folder.
        path: The folder to work in: ``top``, or a folder in it.
        finished_call: The call of a killed process that had already put its result in place, or None.
    """

    root: Path
    top: Path
    path: Path
    finished_call: str | None = None

    def inside(self, name: str) -> WorkFolder:
        """Return a folder in this one, for a step of the work."""
        return WorkFolder(root=self.root, top=self.top, path=self.path / name)

    def clear(self) -> None:
        """Remove the content of the folder, the job file first, so that no run resumes from half of a job."""
        (self.path / JOB_FILE).unlink(missing_ok=True)
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        # PLACED, the record of a finished job, is removed after all other files. CHOICE_FILE, which identifies the
        # same call, is removed last.
        for name in sorted(names, key=lambda name: (name == CHOICE_FILE, name == PLACED)):
            if name != LOCK_FILE:
                _remove(self.path / name)

    def put_in_place(self, new: Path, call: str | None = None) -> None:
        """Rename a complete folder to the place, and remove everything else.

        Args:
            new: A folder in this one.
            call: Value of ``finished_call`` if the process is killed before everything else is removed.

        Raises:
            OSError: A system call failed; the previous folder is back in place.
        """
        old = self.top / OLD
        if call is not None:
            write_text(self.top / PLACED, json.dumps({"call": call, "inode": new.stat().st_ino}))
        try:
            if self.root.exists():
                sync_tree(new)  # before the replaced folder is removed for good
                shutil.copymode(self.root, new)
                if not _exchange(new, self.root):
                    self.root.rename(old)
                    new.rename(self.root)
            else:
                new.rename(self.root)
            sync(self.root.parent)
        except BaseException:
            _put_back(old, self.root)
            raise
        WorkFolder(root=self.root, top=self.top, path=self.top).clear()

    @contextmanager
    def new_folder(self, check_place: Callable[[], None]) -> Iterator[Path]:
        """Yield an empty folder that is renamed to the place on success and removed on failure.

        Args:
            check_place: Refuses a place that must not be replaced; called first, and again before the rename.
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
        """Return the folder that a job's tasks work in."""
        return self.path / digest[:16]

    def num_done(self, digest: str, *, product: str | None = None) -> int:
        """Return the number of finished tasks that ``resume`` would find for a job."""
        return len(list((self.path / DONE_FOLDER).glob("*.json"))) if self._has_job(digest, product) else 0

    def resume(
        self, digest: str, engine: Engine, progress: Progress | None = None, *, product: str | None = None,
        choice: Choice | None = None,
    ) -> Job:  # fmt: skip
        """Start a job or resume it; work of another job is removed.

        Args:
            digest: Digest of everything that determines the job.
            engine: The engine that runs the tasks.
            progress: As of ``Job``.
            product: The folder in ``job_root`` that the job makes, or None. If the folder is gone, the job starts over.
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
        """Store the memory and workers of the current job, for ``choice_before``."""
        record = {"memory_bytes": choice.memory_bytes, "num_workers": choice.num_workers}
        write_text(self.path / CHOICE_FILE, json.dumps(record))

    def disk_bytes(self) -> int:
        """Return the bytes that the folder takes on disk."""
        return sum(_disk_bytes(path) for path in self.path.rglob("*")) if self.path.is_dir() else 0


def work_path(root: Path) -> Path:
    """Return the path of a place's work folder; ``root`` must have its links resolved."""
    return root.with_name(f".{root.name}.work")


@contextmanager
def open_work(out: str | os.PathLike[str]) -> Iterator[WorkFolder]:
    """Lock a place for writing; create missing parents.

    Restores a folder that a killed process had moved away. At the end removes the work folder if it is empty.

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
    """Return the memory and workers of an unfinished job at a place, if this call would resume it.

    Memory and workers decide how a job is divided, so a job resumes only with the same values.

    Args:
        out: The place that the job writes to.
        digest_with: Returns this call's digest for given memory and workers.

    Returns:
        None if this call is another job.
    """
    path = work_path(Path(os.path.realpath(out)))
    try:
        record = json.loads((path / CHOICE_FILE).read_text(encoding="utf-8"))
        choice = Choice(memory_bytes=int(record["memory_bytes"]), num_workers=int(record["num_workers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    began = job_digest(path)
    if began is None:  # ``clear`` was interrupted; with PLACED, the job had finished
        return choice if (path / PLACED).exists() else None
    return choice if began == digest_with(choice) else None


@contextmanager
def locked(root: Path, *, is_reader: bool = False) -> Iterator[None]:
    """Lock a folder itself, if its file system has locks; the lock ends with the process.

    Several readers may hold the lock at once, but only without a writer.

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
            _lock(
                descriptor,
                f"{root} is being {how} by another process; wait until it finishes, or stop it",
                is_shared=is_reader,
            )
            if _is_still(root, descriptor):  # else another process replaced it between opening and locking
                yield
                return
        finally:
            os.close(descriptor)
    raise StateError(f"other processes keep replacing {root}; wait until they finish, or stop them")


def no_folder(root: Path) -> FormatError:
    """Build the error for a missing folder."""
    return FormatError(f"{root} is not a folder; give the folder of a dataset")


def hold(locks: ExitStack, folder: Path | None, *, is_reader: bool = False) -> None:
    """Lock an existing local folder until a stack closes."""
    if folder is not None and folder.is_dir():
        locks.enter_context(locked(folder, is_reader=is_reader))


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Name the written path in errors of the system that have no name or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, HopstreamError):
            raise
        raise OSError(error.errno, error.strerror, shown_path(error.filename or path)) from error


def shown_path(path: str | bytes | os.PathLike[str] | int) -> str:
    """Format a path as the user gave it, without temporary names."""
    return _HIDDEN_NAME.sub(r"\1", os.fsdecode(path) if not isinstance(path, int) else str(path))


def sync_tree(folder: Path) -> None:
    """Flush all files and names of a folder to disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def _locked_file(top: Path, root: Path) -> int:
    """Open and lock the lock file of a work folder, and make sure that it is still the current one."""
    for attempt in range(ATTEMPTS):
        try:
            top.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(top / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, FileExistsError):  # another process removed the folder, or it cannot be created
            if attempt == ATTEMPTS - 1:
                raise
            continue
        try:
            _lock(descriptor, f"{root} is being written to by another process; wait until it finishes, or stop it")
            if _is_still(top / LOCK_FILE, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StateError(f"other processes keep writing to {root}; wait until they finish, or stop them")


def _lock(descriptor: int, refusal: str, *, is_shared: bool = False) -> None:
    """Lock an open file or folder, if its file system has locks.

    Raises:
        StateError: Another process, or thread, holds the lock; the message is ``refusal``.
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
    """Undo or finish a replacement that a killed process left; return the finished call or None."""
    _put_back(top / OLD, root)
    try:
        place = json.loads((top / PLACED).read_text(encoding="utf-8"))
        # A renamed folder keeps its inode number, so this shows whether the new folder is in place.
        call = str(place["call"]) if root.stat().st_ino == place["inode"] else None
    except (OSError, ValueError, KeyError, TypeError):
        call = None
    if call is None:
        _remove(top / OLD)
        return None
    WorkFolder(root=root, top=top, path=top).clear()
    return call


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _put_back(old: Path, root: Path) -> None:
    if old.exists() and not root.exists():
        old.rename(root)


def _leave(top: Path) -> None:
    """Remove a work folder that holds only the lock file; keep it if another process adds files."""
    with suppress(OSError):
        if [path.name for path in top.iterdir()] == [LOCK_FILE]:
            (top / LOCK_FILE).unlink()
            top.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or folder, with retries while workers of a killed process still write to it."""
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
