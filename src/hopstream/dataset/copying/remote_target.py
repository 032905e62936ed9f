"""Writes datasets to URIs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.dataset.copying.local_copy import SMALL_BYTES
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import MANIFEST
from hopstream.engine.settings import Progress, WorkerSettings
from hopstream.errors import SettingsError
from hopstream.places.paths import AnyPath

if TYPE_CHECKING:
    from hopstream.places.remote_path import RemotePath


def check_target_at(out: AnyPath, *, overwrite: bool) -> None:
    """Refuse a URI that holds something else, or a dataset without ``overwrite``.

    Local paths are not checked here; their writer does.

    Raises:
        SettingsError: The URI must not be written.
        OSError: It cannot be read.
    """
    if isinstance(out, Path):
        return
    from hopstream.dataset.copying.targets import check_foreign, check_servers  # imported here: they load Arrow
    from hopstream.places.place import Place

    place = Place(out.uri)
    names = place.names()
    check_servers(place, names)
    check_foreign(place)
    if MANIFEST in names and not overwrite:
        raise SettingsError(f"{place.shown} holds a dataset; give overwrite=True or another place")


def write_at(
    out: RemotePath, write: Callable[[Path], Manifest], *, overwrite: bool, call: str | None = None,
    progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Write a dataset to a URI: to a folder of the cache first, then as by ``place``, the manifest last.

    Args:
        out: The URI.
        write: Writes the dataset to a folder, which does not exist; may resume work.
        overwrite: Replace another dataset. It is removed when the new one is complete on this machine.
        call: Digest of everything that determines the dataset, so that a killed call resumes; None if unknown: then
            the dataset is written again, and only the copying resumes.
        progress: Called as ``progress("place", done, total)`` in bytes while it is copied.

    Raises:
        SettingsError: The URI must not be written.
        StateError: Another process of this machine writes to the URI.
        OSError: A system call failed; the same call resumes.
    """
    from hopstream.dataset.copying.placing import place_parts  # imported here: they load Arrow
    from hopstream.places.staging import staging_of

    def made(here: Path) -> None:
        write(here)

    with staging_of(out) as staging:
        check_target_at(out, overwrite=overwrite or staging.is_made(call))
        staging.make(made, call)
        manifest = read_manifest(staging.folder)
        settings = WorkerSettings(num_workers=0 if sum(manifest.report.bytes) <= SMALL_BYTES else None)
        place_parts(staging.folder, [out.uri], overwrite=overwrite, settings=settings, progress=progress)
    return manifest
