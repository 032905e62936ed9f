"""Locks a dataset's folder, replaces it atomically, and removes what killed processes left in it.

A process that writes to a place holds two locks while it works: on the work folder, which may exist without a dataset,
and on the folder of the existing dataset. A process that reads a dataset file by file holds a shared lock on its
folder. A process that has opened a dataset holds no lock, because its memory maps stay valid. A new dataset is written
in the work folder and renamed when it is complete. The replaced dataset is moved into the work folder first and removed
last.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from hopstream.dataset.halo_record import Halo, halo_root
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import BESIDE_MANIFEST, FOR_DGL, MANIFEST, PART_FOLDER, ROOTS, part_folder
from hopstream.engine.atomic_folder import WorkFolder, errors_named, hold, locked, no_folder, open_work, work_path
from hopstream.errors import SettingsError
from hopstream.uris import local_path

UNFINISHED = re.compile(r"\.(manifest|roots|cluster)\.json\.[0-9]+\.partial")
"""A file beside the manifest that a killed process left half written."""


class CheckTarget(Protocol):
    """Function that refuses a place that must not be replaced, such as ``check_target`` for datasets."""

    def __call__(self, out: Path, /, *, overwrite: bool) -> None:
        """Raise ``SettingsError`` if the place must not be replaced."""


@contextmanager
def place_to_write(out: Path) -> Iterator[WorkFolder]:
    """Lock a place for writing, and the dataset there, exclusively.

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
    """Lock a folder for writing file by file; create it, and remove it at the end if it is empty.

    Beside a mount point no work folder can be made. Then the folder alone is locked.

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
            if os.path.lexists(work_path(root)):  # fail: the owner of the work folder may be writing
                raise
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        if not missing and not root.is_dir():
            raise SettingsError(f"{out} is a file; move it away, or give another place")
        locks.callback(_remove_empty, missing[1:])
        root.mkdir(parents=True, exist_ok=True)
        locks.enter_context(locked(root))
        locks.callback(_remove_empty, missing[:1])  # before the lock is released
        yield


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def dataset_to_change(folder: Path) -> Iterator[WorkFolder]:
    """Lock an existing dataset for changes, and remove what killed processes left in it.

    Raises:
        FormatError: The folder does not exist, or is no dataset.
        ChecksumError: The manifest does not match its checksum.
        StateError: See ``place_to_write``.
    """
    root = Path(os.path.realpath(local_path(folder)))
    if not (root.is_dir() or work_path(root).is_dir()):
        raise no_folder(root)
    with place_to_write(root) as work:
        if not root.is_dir():
            raise no_folder(root)
        remove_unnamed(root, read_manifest(root))
        yield work


@contextmanager
def replaced_folder(out: Path, *, overwrite: bool, check: CheckTarget | None = None) -> Iterator[Path]:
    """Yield a hidden folder that is renamed to ``out`` on success and removed on failure.

    Args:
        out: The place.
        overwrite: Replace an existing dataset.
        check: Refuses places that must not be replaced; ``check_target`` if None.

    Raises:
        SettingsError: ``out`` must not be written, or appeared while the folder was written.
        StateError: Another process writes to the place, or reads the dataset there.
        OSError: A system call failed; the error names a path that the caller knows.
    """
    check_place = partial(check or check_target, out, overwrite=overwrite)
    with errors_named(out), place_to_write(out) as work, work.new_folder(check_place) as new:
        yield new


def replaceable(out: Path) -> Path | None:
    """Return the folder to replace, or None if the place is free.

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
    """Refuse a place that holds something else, or an existing dataset without ``overwrite``.

    Raises:
        SettingsError: The place is a file, holds foreign files, or holds a dataset without ``overwrite``.
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


def remove_unnamed(root: Path, manifest: Manifest) -> None:
    """Remove parts, deltas and halos that the manifest does not list."""
    parts = {str(part_folder(part)) for part in range(manifest.book.num_parts)}
    deltas = {f"delta-{number:05d}" for number in range(1, len(manifest.book.deltas) + 1)}
    for folder in sorted(root.iterdir()):
        if not PART_FOLDER.fullmatch(folder.name):
            continue
        if folder.name not in parts:
            shutil.rmtree(folder)
            continue
        for inner in sorted(folder.glob("delta-*")):
            if inner.name not in deltas:
                shutil.rmtree(inner)
    remove_halos(root, manifest, manifest.halo)


def remove_halos(root: Path, manifest: Manifest, halo: Halo | None) -> None:
    """Remove the folders of every halo but one."""
    for part in range(manifest.book.num_parts):
        kept = None if halo is None else root / halo_root(part, halo.generation)
        for folder in _halo_folders(root, part):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
        if kept is None:
            shutil.rmtree(root / part_folder(part) / "halo", ignore_errors=True)


def _halo_folders(root: Path, part: int) -> Iterator[Path]:
    place = root / part_folder(part) / "halo"
    if place.is_dir():
        yield from sorted(place.iterdir())


def _foreign_name(root: Path) -> str | None:
    """Return the first path in a folder that belongs to no dataset, or None."""
    has_manifest = (root / MANIFEST).is_file()
    # Without a roots.json, a cluster.json belongs to running servers.
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
    """Return whether ``compat.dgl`` left this file or folder beside a manifest."""
    if not FOR_DGL.fullmatch(entry.name) or entry.is_symlink():
        return False
    inside = entry.iterdir() if entry.is_dir() else ()
    return all(FOR_DGL.fullmatch(f"{entry.name}/{path.name}") and path.is_file() for path in inside)
