"""Targets of copies: inspects a place, decides whether to copy to it, and makes it a dataset."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from hopstream.dataset.manifest import MAX_MANIFEST_BYTES, Manifest
from hopstream.dataset.paths import BESIDE_MANIFEST, CLUSTER, MANIFEST, PART_FOLDER, ROOTS, part_folder
from hopstream.errors import FormatError, SettingsError
from hopstream.places.place import PARTIAL, Place


@dataclass(slots=True)
class Target:
    """Place with the files that it is to hold.

    Attributes:
        place: The place.
        manifest: Manifest of the dataset.
        parts: The parts whose folders are copied to the place.
        files: Every file of the copy but the manifest, by its top folder; see ``files_by_folder``.
        dataset_id: Id of the dataset in the place; None if there is none.
        halo_id: Id of the halo of that dataset; None if it has none.
        sizes: Bytes of every file found in the place.
        others: Folders of further parts in the place. Only their halos are copied, because the halo has changed.
    """

    place: Place
    manifest: Manifest
    parts: tuple[int, ...]
    files: Mapping[str, Sequence[str]]
    dataset_id: str | None = None
    halo_id: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def look(self, *, overwrite: bool) -> None:
        """Inspect the place.

        Raises:
            SettingsError: The place holds foreign files, or another dataset without ``overwrite``.
            OSError: The place cannot be read.
        """
        names = [name for name in self.place.names() if not name.endswith(PARTIAL)]
        check_servers(self.place, names)
        check_foreign(self.place)
        self.dataset_id, self.halo_id = ids_of(self.place) if MANIFEST in names else (None, None)
        if self.dataset_id not in (None, self.manifest.dataset_id) and not overwrite:
            raise SettingsError(f"{self.place.shown} holds another dataset; give overwrite=True or another place")
        self.sizes = self.place.sizes()
        if self.is_finished and not self._has_halo:  # the manifest will name the new halo of every part here
            others = {name.partition("/")[0] for name in self.sizes if PART_FOLDER.match(name)} - set(self.files)
            self.others = tuple(sorted(others))
            self.files = {**self.files, **{folder: self._halo_files(folder) for folder in self.others}}

    def _halo_files(self, folder: str) -> list[str]:
        halo = self.manifest.halo
        return [] if halo is None else [name for name in halo.files if name.startswith(f"{folder}/")]

    @property
    def _has_halo(self) -> bool:
        """Whether the halo in the place is the dataset's."""
        return self.halo_id == (None if self.manifest.halo is None else self.manifest.halo.halo_id)

    @property
    def is_finished(self) -> bool:
        """Whether the dataset itself is in the place, so that files of the right size are its files."""
        return self.dataset_id == self.manifest.dataset_id

    @property
    def names(self) -> Iterator[str]:
        """Every file of the copy but the manifest."""
        return itertools.chain.from_iterable(self.files.values())

    def has(self, name: str) -> bool:
        """Return whether a file of the right size is there; a halo's file counts only for the same halo."""
        if self.is_finished and not self._has_halo and name not in self.manifest.files:
            return False
        return self.sizes.get(name) == self.manifest.all_files[name].num_bytes

    def clear(self) -> None:
        """Remove another dataset, its manifest first."""
        if self.dataset_id is None or self.is_finished:
            return
        for name in (MANIFEST, *BESIDE_MANIFEST):
            self.place.remove(name)
        for name in self.place.names():
            if PART_FOLDER.fullmatch(name):
                self.place.remove_folder(name)
        self.sizes = {}

    def finish(self, manifest: bytes, beside: Mapping[str, bytes]) -> None:
        """Make the place a dataset: remove leftovers, then write the root list and the manifest.

        Raises:
            FormatError: A file is missing or has the wrong size.
            OSError: A system call failed.
        """
        sizes = self.place.sizes()
        belong = set(self.names)
        for name in sizes:
            is_left = name not in belong and PART_FOLDER.match(name) is not None and not self.is_finished
            if is_left or name.endswith(PARTIAL):
                self.place.remove(name)
        for name in sorted(belong):
            if sizes.get(name) != self.manifest.all_files[name].num_bytes:
                raise FormatError(
                    f"{self.place.shown}/{name} has {sizes.get(name, 'no')} bytes after copying; the manifest says "
                    f"{self.manifest.all_files[name].num_bytes}; repeat the command while no other process writes there"
                )
        for name in BESIDE_MANIFEST:
            if name in beside:
                self.place.write_text(name, beside[name])
            elif name in sizes and not self.is_finished:
                self.place.remove(name)
        self.place.write_text(MANIFEST, manifest)
        if self.is_finished:
            self._remove_halo(belong, sizes)

    def _remove_halo(self, belong: Set[str], names: Iterable[str]) -> None:
        """Remove old halo files; folders of parts that another command copied here stay."""
        for name in names:
            if name not in belong and name.partition("/")[0] in self.files and name.split("/")[1:2] == ["halo"]:
                self.place.remove(name)


def files_by_folder(manifest: Manifest) -> dict[str, list[str]]:
    """Return every file of a dataset but the manifest, by the first name of its path."""
    folders: dict[str, list[str]] = {}
    for name in manifest.all_files:
        folders.setdefault(name.partition("/")[0], []).append(name)
    return folders


def target_of(place: Place, manifest: Manifest, parts: tuple[int, ...], folders: Mapping[str, list[str]]) -> Target:
    """Make the target for some parts and for files that belong to no part."""
    wanted = {str(part_folder(part)) for part in parts}
    files = {name: paths for name, paths in folders.items() if name in wanted or not PART_FOLDER.fullmatch(name)}
    return Target(place, manifest, parts, files)


def check_foreign(place: Place) -> None:
    """Refuse a place that holds foreign files.

    Raises:
        SettingsError: The place holds foreign files.
        OSError: The place cannot be read.
    """
    names = [name for name in place.names() if not name.endswith(PARTIAL)]
    known = {MANIFEST, *BESIDE_MANIFEST}
    foreign = [name for name in names if name not in known and not PART_FOLDER.fullmatch(name)]
    if foreign:
        raise SettingsError(
            f"{place.shown} holds {foreign[0]!r}, which does not belong to a dataset; move it away, or give another "
            "place"
        )


def check_servers(place: Place, names: Sequence[str]) -> None:
    """Refuse a place with a ``cluster.json`` but no ``roots.json``: it belongs to running servers.

    Raises:
        SettingsError: The place has such a file.
    """
    if CLUSTER in names and ROOTS not in names:
        raise SettingsError(
            f"{place.shown} holds {CLUSTER} of servers that may still run; stop them, or remove the file"
        )


def ids_of(place: Place) -> tuple[str, str | None]:
    """Return the ids of dataset and halo in a place's manifest, or an empty id if it cannot be read."""
    try:
        value = json.loads(place.read(MANIFEST, MAX_MANIFEST_BYTES))
        halo = value.get("halo")
        return str(value["dataset_id"]), None if halo is None else str(halo["halo_id"])
    except (FormatError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return "", None


def check_apart(source: Place, targets: Sequence[Place]) -> None:
    """Refuse places that are equal or nested, or that lie in a dataset.

    Args:
        source: The dataset.
        targets: Places to copy parts to.

    Raises:
        SettingsError: Two places are equal or nested, or a target lies in a dataset.
    """
    for target in targets:
        if _is_in(target, source) or _is_in(source, target):
            raise SettingsError(
                f"one of {target.shown} and the dataset {source.shown} contains the other; give a folder next to the "
                "dataset"
            )
    for first, second in itertools.permutations(targets, 2):
        if _where(first) == _where(second):
            raise SettingsError(f"{first.shown} and {second.shown} are one folder; name a root once, with its parts")
        if _is_in(second, first):
            raise SettingsError(f"{second.shown} lies in {first.shown}, another root; give separate folders")
    for target in targets:
        _refuse_dataset_above(target)


def _refuse_dataset_above(place: Place) -> None:
    if place.local is None:
        return
    for folder in Path(os.path.realpath(place.local)).parents:
        if (folder / MANIFEST).is_file() and ids_of(Place(str(folder)))[0]:
            raise SettingsError(f"{place.shown} lies in the dataset {folder}; give a folder outside of it")


def _is_in(inner: Place, outer: Place) -> bool:
    return _where(inner).startswith(f"{_where(outer)}/")


def _where(place: Place) -> str:
    return place.shown if place.local is None else os.path.realpath(place.local)
