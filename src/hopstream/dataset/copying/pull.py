"""Copies parts of a dataset from another place, such as an object store, before they are served."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from hopstream.dataset.copying.delivery import Delivery
from hopstream.dataset.copying.targets import check_apart, files_by_folder, target_of
from hopstream.dataset.dataset_folder import place_to_write
from hopstream.dataset.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest
from hopstream.dataset.paths import BESIDE_MANIFEST, MANIFEST, MAX_FILE_BYTES, ROOTS, parse_roots, part_folder
from hopstream.engine.atomic_folder import hold
from hopstream.engine.settings import Progress, WorkerOptions, WorkerSettings
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.places.place import Place
from hopstream.uris import local_path


def pull(
    source: str | Path, out: str | Path, *, parts: Sequence[int] | None = None, overwrite: bool = False,
    settings: WorkerSettings | None = None, progress: Progress | None = None, **options: Unpack[WorkerOptions],
) -> Manifest:  # fmt: skip
    """Copy parts of a dataset from one of its roots to a folder of this machine.

    Every file is checked against the manifest while it is copied, and the manifest is written last. After a kill the
    same call resumes. Parts in ``out`` stay, so other parts may be pulled later.

    Args:
        source: A local folder, or a URI of Arrow's file systems (``s3://``, ``gs://``, ``hdfs://`` …).
        out: The folder to write, created if it is missing.
        parts: The parts; None for all that the source has.
        overwrite: Replace another dataset in ``out``.
        settings: Number and kind of workers; None for the defaults.
        progress: Called as ``progress("pull", done, total)`` in bytes.
        **options: Fields of ``WorkerSettings``; they override ``settings``.

    Returns:
        The dataset's manifest.

    Raises:
        SettingsError: The source cannot be opened, or ``out`` holds what must not be replaced or has no room.
        UnknownNameError: The dataset has no such part.
        FormatError: The source is no dataset, or lacks a part; the message names the part's location, if known.
        ChecksumError: A file does not match its checksum.
        StateError: Another process pulls into the same folder, or changes it or the source.
        OSError: A system call failed; the error names the place.
    """
    settings = replace(settings or WorkerSettings(), **options)
    place, folder = Place(str(source)), Path(os.path.realpath(local_path(out)))
    origin = None if place.local is None else Path(os.path.realpath(place.local))
    if origin == folder:
        raise SettingsError(f"{out} is the folder to pull from; give another one")
    check_apart(place, [Place(str(folder))])
    with ExitStack() as locks:
        hold(locks, place.local, is_reader=True)
        work = locks.enter_context(place_to_write(folder))
        data = place.read(MANIFEST, MAX_MANIFEST_BYTES)
        manifest = manifest_of(place, data)
        here = parts_at(place, manifest)
        wanted = here if parts is None else tuple(sorted(set(parts)))
        _check_parts(place, manifest, wanted, here)
        target = target_of(Place(str(folder)), manifest, wanted, files_by_folder(manifest))
        delivery = Delivery(
            source=place, manifest=manifest, manifest_bytes=data, targets=[target],
            hidden=work.top, roots=known_roots(place, manifest),
        )  # fmt: skip
        delivery.look(overwrite=overwrite)
        for root in delivery.origins.values():
            hold(locks, root.local, is_reader=True)
        delivery.run(work, "pull", settings, _beside(place), progress)
        return manifest


def manifest_of(place: Place, data: bytes) -> Manifest:
    """Check a manifest from elsewhere like a local one."""
    with tempfile.TemporaryDirectory(prefix="hopstream-") as folder:
        path = Path(folder) / MANIFEST
        path.write_bytes(data)
        try:
            return read_manifest(folder)
        except FormatError as error:
            raise type(error)(str(error).replace(str(path), f"{place.shown}/{MANIFEST}")) from None


def _beside(place: Place) -> dict[str, bytes]:
    """Return the files that list roots and servers; a lone ``cluster.json`` belongs to running servers."""
    if place.size(ROOTS) is None:
        return {}
    return {name: place.read(name, MAX_FILE_BYTES) for name in BESIDE_MANIFEST if place.size(name) is not None}


def parts_at(place: Place, manifest: Manifest) -> tuple[int, ...]:
    """Return the parts whose folders are in a place."""
    names = {name.partition("/")[0] for name in place.sizes()}  # object stores may keep empty folders
    return tuple(part for part in range(manifest.book.num_parts) if str(part_folder(part)) in names)


def _check_parts(place: Place, manifest: Manifest, wanted: Sequence[int], here: Sequence[int]) -> None:
    num_parts = manifest.book.num_parts
    for part in wanted:
        if not 0 <= part < num_parts:
            raise UnknownNameError(f"{place.shown} has no part {part}; parts are numbered 0..{num_parts - 1}")
    missing = sorted(set(wanted) - set(here))
    if missing:
        uris = known_roots(place, manifest).get(str(part_folder(missing[0])), [])
        where = f"; {ROOTS} lists it in {' and in '.join(uris)}; pull it from there" if uris else ""
        raise FormatError(f"{place.shown} does not have part {missing[0]}{where}")
    if not wanted:
        raise FormatError(f"{place.shown} has a manifest but no parts; pull from a root that has parts")


def known_roots(place: Place, manifest: Manifest) -> dict[str, list[str]]:
    """Return the roots of each part's folder, if the source lists them."""
    if place.size(ROOTS) is None:
        return {}
    roots = parse_roots(place.read(ROOTS, MAX_FILE_BYTES))
    if roots.dataset_id != manifest.dataset_id:
        return {}
    return {str(part_folder(part)): roots.uris_of(part) for part in range(manifest.book.num_parts)}
