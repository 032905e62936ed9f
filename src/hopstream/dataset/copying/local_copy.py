"""Opens datasets at URIs: copies them to the cache folder of this machine, where files can be mapped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.dataset.manifest import MAX_MANIFEST_BYTES, Manifest
from hopstream.dataset.paths import MANIFEST, part_folder
from hopstream.engine.settings import Progress, WorkerSettings
from hopstream.places.paths import AnyPath, path_of
from hopstream.uris import is_uri

if TYPE_CHECKING:
    from hopstream.places.place import Place

SMALL_BYTES = 64 << 20
"""Up to this size a dataset is copied without workers, whose start takes a second."""


def folder_of(
    dataset: str | os.PathLike[str], parts: Sequence[int] | None = None, *, progress: Progress | None = None
) -> Path:
    """Return the folder of a dataset on this machine; for a URI, that of a copy.

    The first call for a dataset copies it, as ``pull`` does: checked against the manifest and resumable. Later calls,
    also of other processes, use the copy. The copy is identified by the content, so a changed dataset is copied again.

    Args:
        dataset: A folder, which is returned, or a URI of Arrow's file systems.
        parts: The parts to copy; None for all that are at the URI, or at others that its ``roots.json`` lists.
        progress: Called as ``progress("pull", done, total)`` in bytes; None writes a line to a terminal if the copying
            takes longer.

    Raises:
        SettingsError: The URI cannot be opened, holds a password, or is a server's address; or the disk has no room.
        FormatError: There is no dataset at the URI.
        ChecksumError: A file does not match its checksum.
        UnknownNameError: The dataset has no such part.
        StateError: Another process copies the dataset, and has made no progress for two minutes.
        OSError: A system call failed; the error names the place.
    """
    path = path_of(dataset)
    if isinstance(path, Path):
        return path
    # Imported here, because they load Arrow and the engine.
    from hopstream.dataset.copying.pull import manifest_of, pull
    from hopstream.places.cache import KEY_LENGTH, cache_folder, copied_once
    from hopstream.places.place import Place

    place = Place(path.uri)
    manifest = manifest_of(place, place.read(MANIFEST, MAX_MANIFEST_BYTES))
    halo = "" if manifest.halo is None else f"-{manifest.halo.halo_id[:KEY_LENGTH]}"
    top = cache_folder() / (manifest.dataset_id[:KEY_LENGTH] + halo)
    folder = top / (path.name or "dataset")
    all_parts = range(manifest.book.num_parts)
    if _is_complete(folder, manifest, all_parts if parts is None else parts):
        return folder
    sources = {path.uri: list(parts)} if parts is not None else _sources(path.uri, place, manifest)
    wanted = sorted({part for found in sources.values() for part in found})
    is_small = sum(record.num_bytes for record in manifest.all_files.values()) <= SMALL_BYTES
    settings = WorkerSettings(num_workers=0 if is_small else None)

    def copy(told: Progress) -> None:
        for uri, found in sources.items():
            pull(uri, folder, parts=found, settings=settings, progress=told)

    copied_once(top, str(path), lambda: _is_complete(folder, manifest, wanted), copy, progress)
    return folder


def _sources(uri: str, place: Place, manifest: Manifest) -> dict[str, list[int]]:
    """Return the parts at a URI, and at other URIs that its ``roots.json`` lists."""
    from hopstream.dataset.copying.pull import known_roots, parts_at

    sources = {uri: list(parts_at(place, manifest))}
    roots = known_roots(place, manifest)
    for part in sorted(set(range(manifest.book.num_parts)) - set(sources[uri])):
        others = [root for root in roots.get(str(part_folder(part)), ()) if is_uri(root)]
        if others:
            sources.setdefault(others[0], []).append(part)
    return {root: parts for root, parts in sources.items() if parts or len(sources) == 1}


def source_path(source: str | os.PathLike[str]) -> AnyPath:
    """Return the path to read a graph from.

    ``folder_of`` gives that of a dataset, ``source_here`` that of another source.
    """
    path = path_of(source)
    if isinstance(path, Path):
        return path
    from hopstream.ingest.source_paths import source_here  # imported here: a dataset is opened without it

    return folder_of(path.uri) if (path / MANIFEST).is_file() else source_here(path)


def _is_complete(folder: Path, manifest: Manifest, parts: Sequence[int]) -> bool:
    """Return whether a copy has every file of some parts; files appear when they are complete and checked."""
    from hopstream.dataset.copying.targets import files_by_folder, target_of
    from hopstream.places.place import Place

    if not parts or not (folder / MANIFEST).is_file():
        return False
    target = target_of(Place(str(folder)), manifest, tuple(parts), files_by_folder(manifest))
    target.look(overwrite=False)
    return target.is_finished and all(map(target.has, target.names))
