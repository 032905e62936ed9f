"""Goes on with a job, or clears it, when its work is started again.

A job works in the work folder of what it makes. What it makes lies below a folder that is named by the job's digest.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from hopstream.arrays import write_text
from hopstream.engine.contract import Engine
from hopstream.engine.job import DONE_FOLDER, Job, job_digest
from hopstream.engine.machine import Machine, this_machine
from hopstream.engine.settings import MEMORY_SHARE, Progress
from hopstream.engine.work_folder import MACHINE_FILE, WorkFolder, work_path


def job_folder(work: WorkFolder, digest: str) -> Path:
    """Where the tasks of a job work."""
    return work.path / digest[:16]


def resumed_job(
    work: WorkFolder, digest: str, engine: Engine, progress: Progress | None = None, *, product: str | None = None,
    machine: Machine | None = None,
) -> Job:  # fmt: skip
    """Begin a job, or go on with it; what another one left is removed.

    Args:
        work: Where it works.
        digest: Of all that decides over the job.
        engine: What runs its tasks.
        progress: As ``Job`` takes it.
        product: The folder that the job makes, in its own folder; the job is done anew where it is not there any more.
            None where it makes none.
        machine: By what the job's memory and workers were chosen, for ``machine_for``.
    """
    if not _is_there(work, digest, product):
        work.clear()
    job = Job(work.path, digest, engine, progress)
    if machine is not None:
        write_text(work.path / MACHINE_FILE, json.dumps(asdict(machine)))
    return job


def machine_for(out: str | os.PathLike[str]) -> Machine:
    """The machine by which to choose memory and workers of a job that writes to a place.

    A job that goes on is cut as it was, or it would begin anew. So it is the machine as it was when the job was begun,
    as long as what was taken of its memory is still free.
    """
    now = this_machine()
    try:
        path = work_path(Path(os.path.realpath(out))) / MACHINE_FILE
        record = json.loads(path.read_text(encoding="utf-8"))
        begun = Machine(num_processors=int(record["num_processors"]), free_bytes=int(record["free_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return now
    return begun if MEMORY_SHARE * begun.free_bytes <= now.free_bytes else now


def num_done(work: WorkFolder, digest: str, *, product: str | None = None) -> int:
    """How many tasks of a job have been done that would be gone on with."""
    return len(list((work.path / DONE_FOLDER).glob("*.json"))) if _is_there(work, digest, product) else 0


def _is_there(work: WorkFolder, digest: str, product: str | None) -> bool:
    return job_digest(work.path) == digest and (product is None or (job_folder(work, digest) / product).is_dir())


def held_bytes(folder: Path) -> int:
    """Bytes of disk that a folder takes; 0 where it is not there."""
    return sum(_disk_bytes(path) for path in folder.rglob("*")) if folder.is_dir() else 0


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
