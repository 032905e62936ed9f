"""How is a job's folder taken over, gone on with, or cleared, when its work is started again?

The folder is hidden beside what the job makes. What it makes lies below a folder that is named by the job's digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopstream.engine.contract import Engine
from hopstream.engine.job import JOB_FILE, LOCK_FILE, Job, job_digest
from hopstream.engine.settings import Progress


def work_folder(hidden: Path, digest: str) -> Path:
    """Where a job works, in its hidden folder."""
    return hidden / digest[:16]


def discard(hidden: Path) -> None:
    """Remove what a job left: first what says that it may be gone on with, so that no half of it is ever believed."""
    (hidden / JOB_FILE).unlink(missing_ok=True)
    for path in hidden.iterdir():
        if path.name != LOCK_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_work(hidden: Path) -> None:
    """Remove a job's folder, with nothing in it that is ever gone on with."""
    discard(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def resumed_job(
    hidden: Path, digest: str, engine: Engine, progress: Progress | None, *, product: str | None = None
) -> Iterator[Job]:
    """Begin a job, or go on with it; what another one left is removed, unless it is still at work.

    Args:
        hidden: The job's folder.
        digest: Of all that decides over the job.
        engine: What runs its tasks.
        progress: As ``Job`` takes it.
        product: The folder that the job makes, in its work folder; the job is done anew where it is not there any more.
            None where it makes none.

    Raises:
        StateError: Another process is at work in the folder.
    """
    before = job_digest(hidden)
    # A job whose product is not there was ended between bringing it into its place and removing the rest.
    is_same = before == digest and (product is None or (work_folder(hidden, digest) / product).is_dir())
    if before is not None and not is_same:
        with Job(hidden, before, engine):
            discard(hidden)
    elif before is None and hidden.exists():
        shutil.rmtree(hidden)
    with Job(hidden, digest, engine, progress) as job:
        yield job


def held_bytes(folder: Path) -> int:
    """Bytes of disk that a folder takes; 0 where it is not there."""
    return sum(_disk_bytes(path) for path in folder.rglob("*")) if folder.is_dir() else 0


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
