"""Copies the parts of a dataset to roots, such as one per machine, and writes a file that lists them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hopstream.dataset.chunks import parse_parts, read_listing
from hopstream.dataset.copying.delivery import Delivery
from hopstream.dataset.copying.targets import Target, check_apart, files_by_folder, target_of
from hopstream.dataset.dataset_folder import dataset_to_change, folder_to_write
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import CLUSTER, MANIFEST, ROOTS, Root, Roots, check_is_here, part_folder, read_roots
from hopstream.engine.atomic_folder import work_path
from hopstream.engine.settings import Progress, WorkerSettings
from hopstream.errors import FormatError, SettingsError
from hopstream.places.place import Place
from hopstream.uris import local_path, shown_uri, stored_uri

ClusterOf = Callable[[Roots, Manifest], str]
RootList = Sequence[str | Path] | Mapping[str, Sequence[int]]
"""Roots for parts: round-robin, or each with its own parts."""


def place_parts(  # noqa: PLR0913  what is copied where, and how
    folder: Path, roots: RootList, *, move: bool = False, cluster_of: ClusterOf | None = None, overwrite: bool = False,
    settings: WorkerSettings | None = None, progress: Progress | None = None,
) -> Roots:  # fmt: skip
    """Copy the parts of a dataset to roots.

    ``hopstream.dataset.place`` describes the arguments, the result and the errors.

    Args:
        folder: The folder of the dataset.
        roots: As of ``place``.
        move: As of ``place``.
        cluster_of: Returns the content of a ``cluster.json`` to write beside every manifest.
        overwrite: As of ``place``.
        settings: As of ``place``.
        progress: As of ``place``.
    """
    with ExitStack() as locks:
        work = locks.enter_context(dataset_to_change(folder))
        delivery, found = _plan(folder, roots, move=move, has_machines=cluster_of is not None)
        local = [target.place.local for target in delivery.targets if target.place.local is not None]
        for path in sorted(local, key=os.path.realpath):  # a fixed order, so that one of two concurrent calls succeeds
            locks.enter_context(folder_to_write(path))
        beside = {ROOTS: found.to_text().encode()}
        if cluster_of is not None:
            beside[CLUSTER] = cluster_of(found, delivery.manifest).encode()
        delivery.look(overwrite=overwrite)
        delivery.run(work, "place", settings or WorkerSettings(), beside, progress)
    return found


def is_being_placed(dataset: str | Path, roots: RootList, *, move: bool = False) -> bool:
    """Return whether ``place`` has started with these arguments and not finished."""
    folder = local_path(dataset)
    return (folder / MANIFEST).is_file() and _plan(folder, roots, move=move)[0].is_under_way


def assign_roots(roots: RootList, num_parts: int) -> tuple[Root, ...]:
    """Return the roots with their parts; URIs are as given.

    Raises:
        SettingsError: A root is given twice or gets no part, or a part gets no root.
    """
    if isinstance(roots, Mapping):
        entries = tuple(Root(str(uri), tuple(sorted(set(parts)))) for uri, parts in roots.items())
    else:
        uris = [str(uri) for uri in roots]
        entries = tuple(Root(uri, tuple(range(k, num_parts, len(uris)))) for k, uri in enumerate(uris))
    _check_roots(entries, num_parts)
    return entries


def _check_roots(entries: Sequence[Root], num_parts: int) -> None:
    for entry in entries:
        wrong = [part for part in entry.parts if not 0 <= part < num_parts]
        if wrong:
            raise SettingsError(
                f"part {wrong[0]} is assigned to {stored_uri(entry.uri)}; parts are numbered 0..{num_parts - 1}"
            )
        if not entry.parts:
            raise SettingsError(
                f"{stored_uri(entry.uri)} gets no part: there are {num_parts} parts for {len(entries)} roots; "
                "leave out roots, or cut the graph into more parts"
            )
    missing = sorted(set(range(num_parts)) - {part for entry in entries for part in entry.parts})
    if missing:
        raise SettingsError(f"part {missing[0]} is assigned to no root; assign every part of 0..{num_parts - 1}")
    stored = [stored_uri(entry.uri).rstrip("/") for entry in entries]
    twice = sorted({uri for uri in stored if stored.count(uri) > 1})
    if twice:
        raise SettingsError(f"{twice[0]} is given as a root twice; name it once, with all of its parts")


def _plan(folder: Path, roots: RootList, *, move: bool, has_machines: bool = False) -> tuple[Delivery, Roots]:
    """Plan the copies; the parts of a root that is the dataset's own folder stay."""
    manifest = read_manifest(folder)
    source = Path(os.path.realpath(folder))
    if move and not roots:
        raise SettingsError("move needs roots to move parts to, got none")
    entries = assign_roots(roots or _present_roots(folder, manifest), manifest.book.num_parts)
    folders = files_by_folder(manifest)
    targets: list[Target] = []
    stored: list[Root] = []
    kept: set[int] = set()
    for entry in entries:
        place = Place(entry.uri)
        stored.append(Root(stored_uri(entry.uri) if place.local is None else str(place.local), entry.parts))
        there = None if place.local is None else Path(os.path.realpath(place.local))
        if there == source:
            kept |= set(entry.parts)
            for part in entry.parts:
                check_is_here(source, part, manifest.dataset_id)
            continue
        targets.append(target_of(place, manifest, entry.parts, folders))
    check_apart(Place(str(source)), [target.place for target in targets])
    homes = Counter(part for target in targets for part in target.parts)
    leaving = frozenset(homes) - kept if move else frozenset()
    moved = frozenset(part for part in leaving if homes[part] == 1)  # several roots read the other parts from here
    delivery = Delivery(
        source=Place(str(source)), manifest=manifest, manifest_bytes=(folder / MANIFEST).read_bytes(),
        targets=targets, moved=moved, leaving=leaving, is_source_told=bool(kept) or move or has_machines,
        hidden=work_path(source), roots=_known_roots(folder, manifest),
    )  # fmt: skip
    return delivery, Roots(manifest.dataset_id, tuple(stored))


def _present_roots(folder: Path, manifest: Manifest) -> RootList:
    """Return the roots of an earlier ``place``, or else the dataset's folder."""
    known = read_roots(folder)
    if known is None or known.dataset_id != manifest.dataset_id:
        return [str(folder)]
    return {entry.uri: entry.parts for entry in known.entries}


def _known_roots(folder: Path, manifest: Manifest) -> dict[str, list[str]]:
    """Return the roots of each part's folder, if the dataset's folder lists them."""
    known = read_roots(folder)
    if known is None or known.dataset_id != manifest.dataset_id:
        return {}
    return {str(part_folder(part)): known.uris_of(part) for part in range(manifest.book.num_parts)}


def read_root_list(path: Path) -> list[tuple[str, str | None]]:
    """Read a file with a line ``URI [parts]`` per root; ``read_listing`` describes comments.

    Returns:
        The URI of each root and the text of its parts; either all roots have one or none.

    Raises:
        FormatError: The file is missing, lists nothing, or has an invalid line; the message has its number.
    """
    found: list[tuple[str, str | None]] = []
    for where, words in read_listing(path, "root", "URI [parts]"):
        parts = words[1] if len(words) == 2 else None
        if found and (found[0][1] is None) != (parts is None):
            raise FormatError(f"{where} and the lines before differ: give parts for all roots, or for none")
        found.append((words[0], parts))
    return found


def roots_of_list(listed: Sequence[tuple[str, str | None]], num_parts: int) -> RootList:
    """Convert the result of ``read_root_list`` to the roots of ``place``.

    Raises:
        SettingsError: The parts of a root are not numbers and ranges, or a root is listed twice.
    """
    if not listed or listed[0][1] is None:
        return [uri for uri, _ in listed]
    roots: dict[str, Sequence[int]] = {}
    for uri, text in listed:
        if uri in roots:
            raise SettingsError(f"{shown_uri(uri)} is given as a root twice; name it once, with all of its parts")
        roots[uri] = parse_parts(text or "all", num_parts, f"the line of {shown_uri(uri)}")
    return roots
