"""Runs a job that makes a folder, and gives its tasks what they share."""

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
"""What is raised where the input or a setting is at fault."""
Made = TypeVar("Made")


class JobSpec(Protocol):
    """All that decides over what the tasks of a job do, as a JSON value."""

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what ``to_json`` wrote."""


Spec = TypeVar("Spec", bound=JobSpec)


class JobFolder(Generic[Spec]):
    """The folder of a job, seen by a task: what decides over the job, and files that its tasks share in ``scratch``.

    All workers see the folder. A task gets the folder and a few numbers; the rest it finds here.
    """

    spec_type: ClassVar[type[Any]]

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        self.root = root
        self.scratch = root / "scratch"

    @cached_property
    def spec(self) -> Spec:
        """What decides over the job."""
        spec: Spec = self.spec_type.from_json(json.loads((self.scratch / SPEC).read_text(encoding="utf-8")))
        return spec

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """The folder of a task's arguments; it stays open for the tasks that follow."""
        with _OPENING:
            folder = _OPENED.get(args["folder"])
            if not isinstance(folder, cls):
                folder = _OPENED[args["folder"]] = cls(Path(args["folder"]))
            return folder

    def close(self) -> None:
        """Let go of what was opened."""


def write_spec(root: Path, spec: JobSpec) -> None:
    """Let the tasks of a job in a folder know what decides over the job."""
    write_text(root / "scratch" / SPEC, json.dumps(spec.to_json()))


_OPENED: dict[str, JobFolder[Any]] = {}
_OPENING = threading.Lock()


def close_folder(root: Path) -> None:
    """Let go of what tasks of this process have opened in the folder of a job."""
    with _OPENING:
        folder = _OPENED.pop(str(root), None)
    if folder is not None:
        folder.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderJob:
    """A job that makes a folder, which then comes into its place.

    Attributes:
        out: The place, as the caller named it.
        work: Where the job works.
        digest: Of all that decides over the job.
        product: The name of the folder in ``root``.
        allotted: What memory and workers the job gets.
        call: Of all that decides over what the caller gets, for ``WorkFolder.finished_call``.
    """

    out: Path
    work: WorkFolder
    digest: str
    product: str
    allotted: Allotment
    call: str

    @property
    def root(self) -> Path:
        """Where its tasks work: a folder with what the job makes, and what else they keep."""
        return self.work.job_root(self.digest)

    @property
    def num_done(self) -> int:
        """How many of its tasks an earlier call has done."""
        return self.work.num_done(self.digest, product=self.product)

    def check_disk(self, disk_bytes: int, made: str) -> None:
        """Refuse a disk that cannot hold the work.

        Args:
            disk_bytes: The most that is on the disk at any time.
            made: How much of it is for what the job makes, for the error.

        Raises:
            NoDiskRoomError: It cannot.
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
        """Make the folder, or go on with it, and bring it into its place.

        Args:
            make: Does the work; the folder is complete when it returns.
            progress: What the job tells of each stage.
            check_place: Refuses to replace what is at the place when the folder is complete.

        Raises:
            HopstreamError: What ``make`` raises. Where the input is at fault, nothing is left of the work.
        """
        work, allotted = self.work, self.allotted
        close_folder(self.root)  # it may have held other work in this process before
        with (
            watched(), errors_named(self.out), open_engine(allotted.engine, num_workers=allotted.num_workers) as engine
        ):  # fmt: skip
            try:
                made = make(work.resume(self.digest, engine, progress, product=self.product, choice=allotted))
            except INPUT_ERRORS:
                # There is nothing to go on with; lost workers and full disks are another matter.
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
