"""How is a job gone on with, or cleared, when its work is started again?

A job works in the work folder of what it makes. What it makes lies below a folder that is named by the job's digest.
"""

from __future__ import annotations

from pathlib import Path

from hopstream.engine.contract import Engine
from hopstream.engine.job import DONE_FOLDER, Job, job_digest
from hopstream.engine.settings import Progress
from hopstream.engine.work_folder import WorkFolder


def job_folder(work: WorkFolder, digest: str) -> Path:
    """Where the tasks of a job work."""
    return work.path / digest[:16]


def resumed_job(
    work: WorkFolder, digest: str, engine: Engine, progress: Progress | None = None, *, product: str | None = None
) -> Job:
    """Begin a job, or go on with it; what another one left is removed.

    Args:
        work: Where it works.
        digest: Of all that decides over the job.
        engine: What runs its tasks.
        progress: As ``Job`` takes it.
        product: The folder that the job makes, in its own folder; the job is done anew where it is not there any more.
            None where it makes none.
    """
    if not _is_there(work, digest, product):
        work.clear()
    return Job(work.path, digest, engine, progress)


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
