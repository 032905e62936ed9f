"""How does a folder come into its place whole, and the one that was there stay whole until then?

A dataset is written in a hidden folder beside its place, ``.<name>.<process>.partial``, and renamed when it is
complete. What it replaces is renamed to ``.<name>.<process>.old`` first and removed last. What a killed process left of
either is found by the next write to the same place.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from hopstream.errors import HopstreamError, SettingsError
from hopstream.partition.paths import MANIFEST, PART_FOLDER
from hopstream.partition.roots import BESIDE_MANIFEST, ROOTS

_HIDDEN_NAME = re.compile(
    r"\.([^/]+)\.(?:\d+\.(?:partial|old)|append\.partial(?:/dataset)?|dispatch\.partial(?:/[0-9a-f]{16}/dataset)?)(?=/|$)"
)
_BEING_WRITTEN: set[Path] = set()
"""Hidden folders of this process, whose number an earlier process may have had."""


class CheckTarget(Protocol):
    """Refuses a place that must not be replaced, as ``check_target`` does for datasets."""

    def __call__(self, out: Path, /, *, overwrite: bool) -> None:
        """Raise SettingsError."""


@contextmanager
def replaced_folder(out: Path, *, overwrite: bool, check: CheckTarget | None = None) -> Iterator[Path]:
    """A hidden folder to write to, which takes the place of ``out`` when all is done, and is gone if anything fails.

    Args:
        out: The place.
        overwrite: Replace what is there.
        check: Refuses places that must not be replaced; ``check_target`` if None.

    Raises:
        SettingsError: ``out`` may not be written, or came to be while the folder was written.
        OSError: The system failed; the error names a path that the caller knows.
    """
    with errors_named(out), _hidden_folder(out, overwrite, check or check_target) as new:
        yield new


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Give what the system refuses inside the name of what was written, where it has none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, HopstreamError):
            raise
        raise OSError(error.errno, error.strerror, shown_path(error.filename or path)) from error


@contextmanager
def _hidden_folder(out: Path, overwrite: bool, check: CheckTarget) -> Iterator[Path]:
    root = Path(os.path.realpath(out))
    new, old = (root.with_name(f".{root.name}.{os.getpid()}.{what}") for what in ("partial", "old"))
    missing = [folder for folder in root.parents if not folder.exists()]
    try:
        _put_back(root)
        check(out, overwrite=overwrite)
        _remove_leftovers(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        _BEING_WRITTEN.add(new)
        yield new
        check(out, overwrite=overwrite)
        _swap(new, root, old)
    except BaseException:
        if new in _BEING_WRITTEN:
            _undo(new, root, old)
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise
    finally:
        _BEING_WRITTEN.discard(new)


def resumed_folder(out: Path) -> Path:
    """The hidden folder beside ``out`` in which work goes on that was ended; it may not be there."""
    root = Path(os.path.realpath(out))
    return root.with_name(f".{root.name}.dispatch.partial")


def place_folder(new: Path, out: Path, *, overwrite: bool) -> None:
    """Bring a whole dataset into its place; one that is there is replaced where that is allowed.

    Raises:
        SettingsError: ``out`` may not be written.
    """
    root = Path(os.path.realpath(out))
    old = root.with_name(f".{root.name}.{os.getpid()}.old")
    check_target(out, overwrite=overwrite)
    try:
        _swap(new, root, old)
    except BaseException:
        if old.exists() and not root.exists():
            old.rename(root)
        raise


def put_back(out: Path) -> None:
    """Put back what a process that was killed while it replaced ``out`` had moved away, and remove what it left."""
    root = Path(os.path.realpath(out))
    _put_back(root)
    _remove_leftovers(root)


def replaceable(out: Path) -> Path | None:
    """The folder that is to be replaced, or None where there is none.

    Raises:
        SettingsError: The place is a file, the root of a file system, or the current folder.
    """
    root = Path(os.path.realpath(out))
    if not root.exists():
        return None
    if not root.is_dir():
        raise SettingsError(f"{out} is a file; give a folder to write")
    if os.path.ismount(root) or root == Path(os.path.realpath(os.curdir)):
        what = "the root of a file system" if os.path.ismount(root) else "the current folder"
        raise SettingsError(f"{out} is {what}, which cannot be replaced by renaming; give a folder in it")
    return root


def check_target(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that holds something else, or a dataset that is not to be overwritten.

    Raises:
        SettingsError: The place is a file, holds what is of no dataset, or holds a dataset without ``overwrite``.
    """
    root = replaceable(out)
    if root is None:
        return
    foreign = _foreign_name(root)
    if foreign is not None:
        state = "beside a dataset" if (root / MANIFEST).is_file() else "and is not a dataset"
        raise SettingsError(f"{out} holds {foreign!r} {state}; move it away, or give a new or empty folder")
    if not overwrite and any(root.iterdir()):
        raise SettingsError(f"{out} holds a dataset; give overwrite=True or another folder")


def shown_path(path: str | bytes | os.PathLike[str] | int) -> str:
    """A path as the user gave it: without the temporary names under which files and folders are written."""
    return _HIDDEN_NAME.sub(r"\1", os.fsdecode(path) if not isinstance(path, int) else str(path))


def _foreign_name(root: Path) -> str | None:
    """The first path in a folder that no dataset has; None where the folder is a dataset, or empty."""
    has_manifest = (root / MANIFEST).is_file()
    # A cluster.json without a roots.json is that of servers that run.
    known = (MANIFEST, *BESIDE_MANIFEST) if (root / ROOTS).is_file() else (MANIFEST,)
    for entry in sorted(root.iterdir()):
        if entry.name in known and has_manifest:
            continue
        if not has_manifest or not PART_FOLDER.fullmatch(entry.name) or entry.is_symlink() or not entry.is_dir():
            return entry.name
        for path in sorted(entry.rglob("*")):
            if path.is_symlink() or not (path.is_dir() or path.name.endswith(".npy")):
                return str(path.relative_to(root))
    return None


def _swap(new: Path, root: Path, old: Path) -> None:
    if root.exists():
        shutil.copymode(root, new)
        root.rename(old)
    new.rename(root)
    shutil.rmtree(old, ignore_errors=True)


def _undo(new: Path, root: Path, old: Path) -> None:
    """Put everything back; where the new folder is in place already, all that is left is to remove the old one."""
    if old.exists() and not root.exists():
        old.rename(root)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def _put_back(root: Path) -> None:
    """Undo the swap of a process that was killed between its two renames."""
    for leftover in _leftovers(root, "old"):
        if not root.exists():
            leftover.rename(root)


def _remove_leftovers(root: Path) -> None:
    for what in ("partial", "old"):
        for leftover in _leftovers(root, what):
            shutil.rmtree(leftover, ignore_errors=True)


def _leftovers(root: Path, what: str) -> list[Path]:
    """Hidden folders that dead processes left beside a place."""
    wanted = re.compile(rf"\.{re.escape(root.name)}\.(\d{{1,9}})\.{what}")
    if not root.parent.is_dir():
        return []
    found = [(wanted.fullmatch(entry.name), entry) for entry in root.parent.iterdir()]
    return [entry for match, entry in found if match and not _is_in_use(entry, int(match[1]))]


def _is_in_use(folder: Path, process: int) -> bool:
    if process == os.getpid():
        return folder.with_suffix(".partial") in _BEING_WRITTEN
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
