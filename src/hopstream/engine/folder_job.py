"""Runs a job that makes a folder, and opens the files that its tasks share."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from hopstream.arrays import write_text
from hopstream.engine import open_engine
from hopstream.engine.atomic_folder import WorkFolder, errors_named
from hopstream.engine.job import Job
from hopstream.engine.machine import watched
from hopstream.engine.settings import Allotment, Progress, bytes_text
from hopstream.errors import FormatError, IdRangeError, NoDiskRoomError, SchemaError, SettingsError, UnknownNameError

SPEC = "spec.json"
INPUT_ERRORS = (FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError)
"""Errors that an input or a setting causes."""
Made = TypeVar("Made")


class JobSpec(Protocol):
    """Everything that determines what the tasks of a job do, as a JSON value."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what ``to_json`` wrote."""


Spec = TypeVar("Spec", bound=JobSpec)


class JobFolder(Generic[Spec]):
    """Folder of a job as a task sees it: the job's specification, and shared files in ``scratch``.

    All workers see the folder. The arguments of a task are the folder and a few numbers; everything else lies here.
    """

    spec_type: ClassVar[type[Any]]

    def __init__(self, root: Path) -> None:
        """Take a folder without reading it."""
        self.root = root
        self.scratch = root / "scratch"

    @cached_property
    def spec(self) -> Spec:
        """The specification of the job."""
        spec: Spec = self.spec_type.from_json(json.loads((self.scratch / SPEC).read_text(encoding="utf-8")))
        return spec

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """Return the folder of a task's arguments; it stays open for later tasks."""
        with _OPENING:
            folder = _OPENED.get(args["folder"])
            if not isinstance(folder, cls):
                folder = _OPENED[args["folder"]] = cls(Path(args["folder"]))
            return folder

    def close(self) -> None:
        """Release what was opened."""


def write_spec(root: Path, spec: JobSpec) -> None:
    """Write the specification of a job for its tasks."""
    write_text(root / "scratch" / SPEC, json.dumps(spec.to_json()))


_OPENED: dict[str, JobFolder[Any]] = {}
_OPENING = threading.Lock()


def close_folder(root: Path) -> None:
    """Close the folder of a job that tasks of this process have opened."""
    with _OPENING:
        folder = _OPENED.pop(str(root), None)
    if folder is not None:
        folder.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderJob:
    """Job that makes a folder and renames it to its place.

    Attributes:
        out: The place, as the caller named it.
        work: The work folder.
        digest: Digest of everything that determines the job.
        product: Name of the folder in ``root``.
        allotted: Memory and workers of the job.
        call: Digest of everything that determines the caller's result, for ``WorkFolder.finished_call``.
    """

    out: Path
    work: WorkFolder
    digest: str
    product: str
    allotted: Allotment
    call: str

    @property
    def root(self) -> Path:
        """The folder that the job's tasks work in, with the product and scratch files."""
        return self.work.job_root(self.digest)

    @property
    def num_done(self) -> int:
        """Number of the job's tasks that an earlier call finished."""
        return self.work.num_done(self.digest, product=self.product)

    def check_disk(self, disk_bytes: int, made: str) -> None:
        """Refuse a disk without enough room.

        Args:
            disk_bytes: Peak of the bytes on disk.
            made: Text for the error: how much of that the product takes.

        Raises:
            NoDiskRoomError: The disk has too little room.
        """
        place = self.out.absolute()
        folder = next(folder for folder in (place, *place.parents) if folder.exists())
        room = shutil.disk_usage(folder).free + self.work.disk_bytes()
        if disk_bytes > room:
            raise NoDiskRoomError(
                f"{self.out} needs about {bytes_text(disk_bytes)} of disk while it is written, {made}; {folder} has "
                f"{bytes_text(room)}: make room, or write elsewhere"
            )

    def run(self, make: Callable[[Job], Made], progress: Progress, check_place: Callable[[Path], None]) -> Made:
        """Make the folder, or resume an earlier call, and rename it to its place.

        Args:
            make: Does the work; the folder is complete when it returns.
            progress: As of ``Job``.
            check_place: Refuses to replace the place; called when the folder is complete.

        Raises:
            HopstreamError: An error of ``make``. If the input is at fault, the work folder is cleared.
        """
        work, allotted = self.work, self.allotted
        close_folder(self.root)  # this process may have worked in it before
        with (
            watched(), errors_named(self.out), open_engine(allotted.engine, num_workers=allotted.num_workers) as engine
        ):  # fmt: skip
            try:
                made = make(work.resume(self.digest, engine, progress, product=self.product, choice=allotted))
            except INPUT_ERRORS:
                # A retry with the same input fails again, so the work is of no use. Lost workers and full disks are
                # resumed.
                work.clear()
                raise
            finally:
                close_folder(self.root)
            check_place(self.out)
            # A worker whose job was killed lives on for a moment, and may begin a file after the job has gone on.
            for partial in (self.root / self.product).rglob(".*.partial"):
                partial.unlink(missing_ok=True)
            work.put_in_place(self.root / self.product, self.call)
        return made
