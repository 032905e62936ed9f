"""Writes a dataset by the tasks of a job, so that work that was ended goes on and nobody sees half of it.

All of it happens in the work folder beside the dataset's place, so that a job that was ended is found again. The folder
of parts is renamed into its place when its manifest is written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import FileRecord, with_blocks
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.costs import StageCost
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import Expected, expected_files
from hopstream.dataset.regions import Stretches, file_record, make_file, merge_stretches
from hopstream.dataset.replace import errors_named, place_folder
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.engine import Task, open_engine
from hopstream.engine.allotment import Allotment
from hopstream.engine.job import Job
from hopstream.engine.peak import peak_bytes, watched
from hopstream.engine.resumed import held_bytes, job_folder, num_done, resumed_job
from hopstream.engine.settings import bytes_text
from hopstream.engine.work_folder import WorkFolder
from hopstream.errors import FormatError, IdRangeError, NoRoomError, SchemaError, SettingsError, UnknownNameError
from hopstream.schema import Direction, GraphSchema

PRODUCT = "dataset"
"""What a job makes, in its own folder."""
INPUT_ERRORS = (FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError)
"""What is raised where the input or a setting is at fault."""


@dataclass(slots=True, kw_only=True)
class PlannedContents:
    """What decides which files a dataset has; ranges of edges are added to ``book`` when they are known."""

    schema: GraphSchema
    directions: tuple[Direction, ...]
    book: PartitionBook
    has_edge_keys: bool
    time_attr: str | None
    weight_attr: str | None
    has_neighbor_keys: bool

    @classmethod
    def of(cls, schema: GraphSchema, settings: PartitionSettings, book: PartitionBook) -> PlannedContents:
        """What settings say of it."""
        return cls(
            schema=schema, directions=settings.directions, book=book, has_edge_keys=settings.keep_edge_keys,
            time_attr=settings.time_attr, weight_attr=settings.weight_attr, has_neighbor_keys=settings.neighbor_keys,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Stages:
    """The stages of one run of a job, and what came of them.

    Attributes:
        name: What progress is called.
        dataset: The folder that tasks write to.
        total_work: What sizes of tasks add up to, roughly.
        progress: Told of the work of all stages together.
        started: When the run began, by ``time.perf_counter``.
        job: What runs tasks; set when it is open.
        stretches: What tasks have written.
    """

    name: str
    dataset: Path
    total_work: int
    progress: Progress
    started: float
    job: Job | None = None
    stretches: Stretches = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _work_done: int = 0

    def run(self, stage: str, tasks: list[Task]) -> dict[str, Any]:
        """Run the tasks of a stage; the result of each by its name, in the order of the tasks."""
        if self.job is None:
            raise SettingsError("stages are run in a job that is open")
        with self.timed(stage):
            results = self.job.run(stage, tasks)
            self._work_done += sum(task.size for task in tasks)
            self.tell(stage, 0, 0)
        return results

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time inside for a stage."""
        started = time.perf_counter()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - started

    def tell(self, stage: str, done: int, total: int) -> None:
        """What the job says of a stage, as progress of the whole."""
        self.progress(self.name, min(self._work_done + done, self.total_work), self.total_work)

    def end(self) -> None:
        """Say that all is done."""
        self.progress(self.name, self.total_work, self.total_work)

    def keep(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Take over what tasks have written."""
        for name, stretches in merge_stretches(result["stretches"] for result in results).items():
            self.stretches.setdefault(name, []).extend(stretches)

    def make_files(self, files: Iterable[tuple[str, Expected]], lengths: Mapping[str, int]) -> None:
        """Make files for tasks to write; lengths that only a file itself knows are looked up by its path."""
        for name, expected in files:
            make_file(self.dataset / name, np.dtype(expected.dtype), _shape(name, expected, lengths))

    def file_records(self, contents: PlannedContents, lengths: Mapping[str, int]) -> dict[str, FileRecord]:
        """The record of every file of the dataset.

        Raises:
            FormatError: A file was not written as a whole.
        """
        files: dict[str, FileRecord] = {}
        for part in range(contents.book.num_parts):
            for name, expected in expected_files(contents, part):
                shape = _shape(name, expected, lengths)
                record = file_record(name, np.dtype(expected.dtype), shape, self.stretches.get(name, []))
                files[name] = with_blocks(record, self.dataset / name)
        return files

    def costs(self) -> tuple[StageCost, ...]:
        """What each stage took, and all of them, which is called ``write``."""
        total = StageCost(name="write", seconds=time.perf_counter() - self.started, peak_bytes=peak_bytes())
        return (*(StageCost(name=n, seconds=s, peak_bytes=peak_bytes()) for n, s in self._seconds.items()), total)


def _shape(name: str, expected: Expected, lengths: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(lengths[name] if n is None else n for n in expected.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Where a dataset is written and where it goes.

    Attributes:
        out: The place, as the caller named it.
        work: Its work folder, or one in it.
        overwrite: Replace a dataset that is there.
        call: Of all that decides over what the caller gets. If the process is ended when the dataset is in its place
            and not all else is removed, the same call finds that it is done.
    """

    out: Path
    work: WorkFolder
    overwrite: bool
    call: str

    def root(self, digest: str) -> Path:
        """Where the job of a digest works: a folder with ``dataset`` and what else tasks keep."""
        return job_folder(self.work, digest)

    def num_done(self, digest: str) -> int:
        """How many of the job's tasks an earlier call has done."""
        return num_done(self.work, digest, product=PRODUCT)

    def placed(self) -> Manifest | None:
        """The dataset, where an earlier process was ended that had brought it into its place by the same call."""
        return read_manifest(self.work.root) if self.work.placed == self.call else None


def write_staged(
    staging: Staging, digest: str, write: Callable[[Job], Manifest], allotted: Allotment, progress: Progress
) -> Manifest:
    """Do work that writes a dataset, or go on with it, and bring the dataset into its place.

    Args:
        staging: Where it is written and where it goes.
        digest: Of all that decides over the work.
        write: Writes the dataset to ``dataset`` in ``staging.root(digest)``.
        allotted: What memory and workers it gets.
        progress: What the job tells of each stage.

    Raises:
        HopstreamError: What the work raises. Where the input is at fault, nothing is left of it.
    """
    work, num_workers = staging.work, allotted.num_workers
    with watched(), errors_named(staging.out), open_engine(allotted.engine, num_workers=num_workers) as opened:
        try:
            manifest = write(resumed_job(work, digest, opened, progress, product=PRODUCT, choice=allotted))
        except INPUT_ERRORS:
            # There is nothing to go on with; lost workers and full disks are another matter.
            work.clear()
            raise
        new = staging.root(digest) / PRODUCT
        place_folder(new, work, staging.out, overwrite=staging.overwrite, call=staging.call)
    return manifest


def check_disk(staging: Staging, disk_bytes: int, dataset_bytes: int) -> None:
    """Refuse a disk that cannot hold the work.

    Args:
        staging: Where the work is done.
        disk_bytes: The most that is on the disk at any time.
        dataset_bytes: Of the dataset.

    Raises:
        NoRoomError: It cannot.
    """
    out = staging.out
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    there = held_bytes(staging.work.path)
    if disk_bytes > free + there:
        raise NoRoomError(
            f"{out} needs {bytes_text(disk_bytes)} of disk while it is written, {bytes_text(dataset_bytes)} "
            f"for the dataset itself; {place} has {bytes_text(free + there)}: make room, or write elsewhere"
        )
