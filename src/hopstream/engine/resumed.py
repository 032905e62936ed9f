"""Goes on with a job, or clears it, when its work is started again.

A job works in the work folder of what it makes. What it makes lies below a folder that is named by the job's digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from hopstream.arrays import write_text
from hopstream.engine.allotment import Choice
from hopstream.engine.contract import Engine
from hopstream.engine.job import DONE_FOLDER, Job, job_digest
from hopstream.engine.settings import Progress
from hopstream.engine.work_folder import CHOICE_FILE, PLACED, WorkFolder, work_path


def job_folder(work: WorkFolder, digest: str) -> Path:
    """Where the tasks of a job work."""
    return work.path / digest[:16]


def resumed_job(
    work: WorkFolder, digest: str, engine: Engine, progress: Progress | None = None, *, product: str | None = None,
    choice: Choice | None = None,
) -> Job:  # fmt: skip
    """Begin a job, or go on with it; what another one left is removed.

    Args:
        work: Where it works.
        digest: Of all that decides over the job.
        engine: What runs its tasks.
        progress: As ``Job`` takes it.
        product: The folder that the job makes, in its own folder; the job is done anew where it is not there any more.
            None where it makes none.
        choice: The job's memory and workers, for ``choice_before``.
    """
    if not _is_there(work, digest, product):
        work.clear()
    job = Job(work.path, digest, engine, progress)
    if choice is not None:
        keep_choice(work, choice)
    return job


def keep_choice(work: WorkFolder, choice: Choice) -> None:
    """Keep the memory and workers of the job that works in a folder, for ``choice_before``."""
    record = {"memory_bytes": choice.memory_bytes, "num_workers": choice.num_workers}
    write_text(work.path / CHOICE_FILE, json.dumps(record))


def choice_before(out: str | os.PathLike[str], digest_with: Callable[[Choice], str]) -> Choice | None:
    """The memory and workers of the job that was begun at a place, where this call goes on with it.

    A job goes on only if it is cut as it was, and memory and workers decide over that.

    Args:
        out: Where the job writes to.
        digest_with: Gives this call's digest where it prefers such memory and workers.

    Returns:
        None where it would be another job.
    """
    path = work_path(Path(os.path.realpath(out)))
    try:
        record = json.loads((path / CHOICE_FILE).read_text(encoding="utf-8"))
        choice = Choice(memory_bytes=int(record["memory_bytes"]), num_workers=int(record["num_workers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    began = job_digest(path)
    if began is None:  # what was left is being removed: that of a job that was done, or of another one
        return choice if (path / PLACED).exists() else None
    return choice if began == digest_with(choice) else None


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
