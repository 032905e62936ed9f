"""How does a folder come into its place whole, and the one that was there stay whole until then?

A dataset is written in the work folder beside its place and renamed when it is complete. What it replaces is moved into
the work folder first and removed last. What a killed process left of either is found by whoever writes to the place
next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hopstream.dataset.lock import place_to_write
from hopstream.dataset.paths import FOR_DGL, MANIFEST, PART_FOLDER
from hopstream.dataset.roots import BESIDE_MANIFEST, ROOTS
from hopstream.engine.work_folder import WorkFolder
from hopstream.errors import HopstreamError, SettingsError
from hopstream.uris import local_path

_HIDDEN_NAME = re.compile(r"\.([^/]+)\.(?:\d+\.partial|work(?:/(?:[0-9a-z]+/)*(?:new|dataset))?)(?=/|$)")


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
        StateError: Another process writes to the place, or reads the dataset that is there.
        OSError: The system failed; the error names a path that the caller knows.
    """
    check = check or check_target
    with errors_named(out), place_to_write(out) as work:
        check(out, overwrite=overwrite)
        work.clear()
        new = work.path / "new"
        try:
            new.mkdir()
            yield new
            place_folder(new, work, out, overwrite=overwrite, check=check)
        except BaseException:
            work.clear()
            raise


def place_folder(
    new: Path, work: WorkFolder, out: Path, *, overwrite: bool, check: CheckTarget | None = None,
    call: str | None = None,
) -> None:  # fmt: skip
    """Bring a whole folder into its place; one that is there is replaced where that is allowed.

    Args:
        new: A folder in ``work``.
        work: The work folder of the place.
        out: The place, as the caller named it.
        overwrite: Replace what is there.
        check: As of ``replaced_folder``.
        call: As of ``WorkFolder.put_in_place``.

    Raises:
        SettingsError: ``out`` may not be written.
    """
    (check or check_target)(out, overwrite=overwrite)
    work.put_in_place(new, call)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Give what the system refuses inside the name of what was written, where it has none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, HopstreamError):
            raise
        raise OSError(error.errno, error.strerror, shown_path(error.filename or path)) from error


def replaceable(out: Path) -> Path | None:
    """The folder that is to be replaced, or None where there is none.

    Raises:
        SettingsError: The place is a file, the root of a file system, or the current folder.
    """
    root = Path(os.path.realpath(local_path(out)))
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
        if has_manifest and (entry.name in known or _is_for_dgl(entry)):
            continue
        if not has_manifest or not PART_FOLDER.fullmatch(entry.name) or entry.is_symlink() or not entry.is_dir():
            return entry.name
        for path in sorted(entry.rglob("*")):
            if path.is_symlink() or not (path.is_dir() or path.name.endswith(".npy")):
                return str(path.relative_to(root))
    return None


def _is_for_dgl(entry: Path) -> bool:
    """Whether a file or folder beside a manifest is what ``compat.dgl`` left there."""
    if not FOR_DGL.fullmatch(entry.name) or entry.is_symlink():
        return False
    inside = entry.iterdir() if entry.is_dir() else ()
    return all(FOR_DGL.fullmatch(f"{entry.name}/{path.name}") and path.is_file() for path in inside)
