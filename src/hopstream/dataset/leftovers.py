"""What lies in a dataset that its manifest does not name, because a process was ended while it changed it?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from hopstream.dataset.halo_record import Halo, halo_root
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import PART_FOLDER, part_folder


def remove_unnamed(root: Path, manifest: Manifest) -> None:
    """Remove parts, deltas and halos that are none of the manifest's."""
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
