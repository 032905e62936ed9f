"""Copies dataset files from one place to others, checked against the manifest, in resumable tasks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hopstream.arrays import FileRecord, extend_checksum
from hopstream.dataset.copying.targets import Target, check_servers, ids_of
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import ROOTS, part_folder
from hopstream.engine import Progress, Task, kind_of, open_engine, task
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.engine.job import DONE_FOLDER, digest_of, job_digest
from hopstream.engine.machine import watched
from hopstream.engine.settings import Needs, WorkerSettings, allot, bytes_text
from hopstream.errors import ChecksumError, FormatError, SettingsError
from hopstream.places.place import Place
from hopstream.uris import stored_uri

GROUP_BYTES, GROUP_FILES = 256 << 20, 256
"""Most bytes and most files of one task."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """File of a dataset.

    Attributes:
        name: Path in the dataset.
        num_bytes: Size.
        crc32c: Checksum.
    """

    name: str
    num_bytes: int
    crc32c: int


def group_files(names: Sequence[str], records: Mapping[str, FileRecord]) -> list[list[CopiedFile]]:
    """Group files into tasks."""
    groups: list[list[CopiedFile]] = []
    room_bytes = 0
    for name in names:
        record = records[name]
        if not groups or len(groups[-1]) >= GROUP_FILES or room_bytes < record.num_bytes:
            groups.append([])
            room_bytes = GROUP_BYTES
        groups[-1].append(CopiedFile(name, record.num_bytes, record.crc32c))
        room_bytes -= record.num_bytes
    return groups


@task
def copy_files(args: dict[str, Any]) -> int:
    """Copy some files; with ``move`` remove each after its arrival. Return the number of bytes."""
    source, target = Place(args["source"]), Place(args["target"])
    files = [CopiedFile(str(name), int(size), int(crc32c)) for name, size, crc32c in args["files"]]
    for file in files:
        copy_file(source, target, file, move=bool(args["move"]), is_durable=bool(args["is_durable"]))
    return sum(file.num_bytes for file in files)


def copy_file(source: Place, target: Place, file: CopiedFile, *, move: bool, is_durable: bool) -> None:
    """Copy one file, unless a killed worker has already moved it.

    Args:
        source: Place of the file.
        target: Place to copy it to.
        file: The file.
        move: Remove it from the source afterwards.
        is_durable: The source will lose the file, so the copy must survive a power cut.

    Raises:
        FormatError: The source has no such file, or one of another size.
        ChecksumError: The file does not match the checksum in the manifest.
        OSError: A system call failed.
    """
    size = source.size(file.name)
    if size is None:
        if not move or target.size(file.name) != file.num_bytes:
            raise FormatError(
                f"{source.shown}/{file.name} is missing, and {target.shown} does not have it; write the dataset again"
            )
        for _ in checked_blocks(target, file):
            pass
        return
    if size != file.num_bytes:
        raise FormatError(
            f"{source.shown}/{file.name} is {size} bytes; the manifest says {file.num_bytes}; write the dataset again"
        )
    target.write(file.name, lambda: checked_blocks(source, file), file.num_bytes, is_durable=is_durable)
    if move:
        source.remove(file.name)


def checked_blocks(place: Place, file: CopiedFile) -> Iterator[bytes]:
    """Yield the bytes of a file, and check them.

    Raises:
        ChecksumError: After the last block, if the bytes do not match the checksum in the manifest.
    """
    checksum = 0
    for block in place.blocks(file.name):
        checksum = extend_checksum(checksum, np.frombuffer(block, np.uint8))
        yield block
    if checksum != file.crc32c:
        raise ChecksumError(
            f"{place.shown}/{file.name} has crc32c {checksum:08x}; the manifest says {file.crc32c:08x}; write the "
            "dataset again, or copy it again"
        )


COPY_NEEDS = (Needs(alone_bytes=120 << 20, parent_bytes=120 << 20, worker_bytes=120 << 20),)
"""Memory of processes that have loaded their libraries, and copy blocks of 8 MB."""
FORMAT = 1
"""Format of the hidden folder; work of another format is not resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Copy job from a source to targets.

    Attributes:
        source: Place of the dataset now.
        manifest: Manifest of the dataset.
        manifest_bytes: Content of the manifest file.
        targets: Places to copy parts to.
        moved: Parts whose files are removed from the source, each after its arrival.
        leaving: Parts whose folders are removed from the source at the end; a superset of ``moved``.
        is_source_told: Whether the files beside the manifest are written to the source too.
        hidden: Work folder on this machine, with the markers of finished tasks.
        roots: Folder of a part to the roots that have it, as far as the source knows.
        origins: Folder of a part to the root to read its halo from, if the source lacks it; ``look`` fills it.
    """

    source: Place
    manifest: Manifest
    manifest_bytes: bytes
    targets: Sequence[Target]
    moved: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    is_source_told: bool = False
    hidden: Path
    roots: Mapping[str, Sequence[str]] = field(default_factory=dict)
    origins: dict[str, Place] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of everything that determines the work."""
        targets = [[stored_uri(target.place.uri), list(target.parts)] for target in self.targets]
        halo_id = None if self.manifest.halo is None else self.manifest.halo.halo_id
        what = [self.manifest.dataset_id, halo_id, stored_uri(self.source.uri), targets, sorted(self.moved)]
        return digest_of([FORMAT, *what])

    @property
    def is_under_way(self) -> bool:
        """Whether the same work has started and not finished."""
        return job_digest(self.hidden) == self.digest

    def look(self, *, overwrite: bool) -> None:
        """Inspect the targets without writing.

        Raises:
            SettingsError: A target must not be written, or its disk has no room.
            FormatError: A file is neither in the source nor in its target.
            OSError: A place cannot be read.
        """
        if self.is_source_told:
            check_servers(self.source, self.source.names())
        for target in self.targets:
            target.look(overwrite=overwrite)
        self._find_origins()
        self._check_files()
        self._check_disks()

    def run(
        self, work: WorkFolder, stage: str, settings: WorkerSettings, beside: Mapping[str, bytes],
        progress: Progress | None,
    ) -> None:  # fmt: skip
        """Copy the missing files, then make datasets of all targets. Call ``look`` first.

        Raises:
            FormatError: A file of the source is missing, truncated, or does not match its checksum.
            OSError: A system call failed; finished tasks are kept for the next call.
        """
        copying = allot(None, settings, COPY_NEEDS)
        with watched(), open_engine(copying.engine, num_workers=copying.num_workers) as engine:
            job = work.resume(self.digest, engine, progress)
            for name in beside if self.is_source_told else ():  # first, because the source may already lack parts
                self.source.write_text(name, beside[name])
            for target in self.targets:
                target.place.make()
                target.clear()
            job.run(stage, self._tasks())
            for target in self.targets:
                target.finish(self.manifest_bytes, beside)
            for part in sorted(self.leaving):
                self._leave(str(part_folder(part)))
            work.clear()

    def _tasks(self) -> list[Task]:
        """Make tasks for groups of files that are not yet in a finished target.

        If the source is to lose a file, it is always copied, because a matching size is no proof that the other copy is
        good.
        """
        moved = {str(part_folder(part)) for part in self.moved}
        moved -= {folder for target in self.targets for folder in target.others}  # several targets read these
        leaving = {str(part_folder(part)) for part in self.leaving}
        sizes = self.source.sizes() if leaving else {}
        tasks = []
        for number, target in enumerate(self.targets):
            for folder, names in target.files.items():
                for i, group in enumerate(group_files(names, self.manifest.all_files)):
                    name = f"{number:05d}-{folder}-{i:06d}"
                    is_there = all(target.has(file.name) for file in group)
                    is_last = folder in leaving and any(file.name in sizes for file in group)
                    if is_there and target.is_finished and not is_last:
                        continue
                    if not is_there:  # even if there is a marker
                        (self.hidden / DONE_FOLDER / f"{name}.json").unlink(missing_ok=True)
                    args: dict[str, Any] = {
                        "source": self.origins.get(folder, self.source).uri, "target": target.place.uri,
                        "move": folder in moved, "is_durable": folder in leaving,
                        "files": [[file.name, file.num_bytes, file.crc32c] for file in group],
                    }  # fmt: skip
                    size = sum(file.num_bytes for file in group) + len(group)
                    tasks.append(Task(name, kind_of(copy_files), args, size))
        return tasks

    def _leave(self, folder: str) -> None:
        """Remove a part's files from the source, and its folder if that has no other files."""
        names = self.source.sizes(folder)
        own = [name for name in names if name in self.manifest.all_files]
        for name in own:
            self.source.remove(name)
        if len(own) == len(names):
            self.source.remove_folder(folder)

    def _check_files(self) -> None:
        """Refuse a source that lacks files which are not in their targets yet.

        Raises:
            FormatError: A file is missing.
        """
        sizes = self.source.sizes()
        folders = {name.partition("/")[0] for name in sizes}
        for folder, place in self.origins.items():
            sizes |= place.sizes(folder)
        for target in self.targets:
            for name in target.names:
                record = self.manifest.all_files[name]
                if not target.has(name) and sizes.get(name) != record.num_bytes:
                    if name.partition("/")[0] not in {*folders, *self.origins}:
                        self._refuse_part(target, name.partition("/")[0])
                    got = (
                        f"is {sizes[name]} bytes; the manifest says {record.num_bytes}"
                        if name in sizes
                        else "is missing"
                    )
                    raise FormatError(
                        f"{self.source.shown}/{name} {got}, and {target.place.shown} does not have it; place a dataset "
                        "that has all of its parts, or write it again"
                    )

    def _refuse_part(self, target: Target, folder: str) -> NoReturn:
        """Raise the error for a missing part, with its location if known."""
        uris = self.roots.get(folder, ())
        where = f"; {ROOTS} lists it in {' and in '.join(uris)}" if uris else ""
        raise FormatError(
            f"{self.source.shown} lacks the folder {folder}, and {target.place.shown} does not have it{where}: place a "
            "dataset that has all of its parts, such as the folder that was placed first, or pull all parts into one "
            "folder (hopstream pull) and place that"
        )

    def _find_origins(self) -> None:
        """Find the roots with the halos of parts that are in a target and not in the source.

        Raises:
            FormatError: No known root has the halo.
        """
        wanted = (self.manifest.dataset_id, None if self.manifest.halo is None else self.manifest.halo.halo_id)
        for target in self.targets:
            for folder in target.others:
                names = target.files[folder]
                if not names or folder in self.origins or self.source.size(names[0]) is not None:
                    continue
                found = _root_with(self.roots.get(folder, ()), wanted)
                if found is None:
                    raise FormatError(
                        f"{target.place.shown} has {folder} with another halo than {self.source.shown}, and none of "
                        "its known roots has the new halo; place the dataset again, so that all roots are listed in "
                        f"{ROOTS}, or pull all parts into a new folder"
                    )
                self.origins[folder] = found

    def _check_disks(self) -> None:
        """Refuse local targets whose disks have no room.

        Raises:
            SettingsError: A disk has too little room.
        """
        needed: dict[int, tuple[int, Target]] = {}
        for target in self.targets:
            if target.place.local is None:
                continue
            there = _existing(target.place.local)
            device = there.stat().st_dev
            if self.moved and self.source.local is not None and self.source.local.stat().st_dev == device:
                continue  # moves one file at a time
            num_bytes = sum(self.manifest.all_files[name].num_bytes for name in target.names if not target.has(name))
            needed[device] = (needed.get(device, (0, target))[0] + num_bytes, target)
        for num_bytes, target in needed.values():
            free = shutil.disk_usage(_existing(Path(target.place.local or ""))).free
            if num_bytes > free:
                raise SettingsError(
                    f"{target.place.shown} needs {bytes_text(num_bytes)}; its disk has {bytes_text(free)}: make "
                    "room, or give another place"
                )


def _root_with(uris: Sequence[str], ids: tuple[str, str | None]) -> Place | None:
    """Return the first readable root that has a dataset and its halo."""
    for uri in uris:
        with suppress(OSError, SettingsError):
            place = Place(uri)
            if ids_of(place) == ids:
                return place
    return None


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
