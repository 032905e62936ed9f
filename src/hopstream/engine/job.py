"""Records which tasks of a job are finished, so that a killed job can resume.

A job writes a marker file ``done/<name>.json`` for each finished task, with the task's result. When the job is started
again, it skips the tasks that have a marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hopstream.arrays import write_text
from hopstream.engine.contract import Engine
from hopstream.engine.settings import Progress, no_progress
from hopstream.engine.tasks import Task, check_names
from hopstream.errors import StateError

JOB_FILE, DONE_FOLDER, OUTCOMES_FOLDER = "job.json", "done", "outcomes"
FORMAT = 1


def job_digest(folder: Path) -> str | None:
    """Return the digest of the job in a folder, or None if there is no job."""
    try:
        record = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    return str(record.get("digest"))


def digest_of(value: Any) -> str:
    """Return the SHA-256 hash of a JSON value, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


class FilePath(Protocol):
    """Path of a file, here or at a URI."""

    def exists(self) -> bool:
        """Return whether there is a file."""
        ...

    def stat(self) -> Any:
        """Return its size and time, as of ``os.stat_result``."""
        ...


def file_states(paths: Iterable[FilePath]) -> list[tuple[str, int, int]]:
    """Return path, size and modification time of existing files, for ``digest_of`` to detect changes."""
    return [(str(path), s.st_size, s.st_mtime_ns) for path in paths if path.exists() for s in (path.stat(),)]


class Job:
    """Tasks in stages; each task runs once.

    One process at a time uses a job's folder; see ``engine.atomic_folder``.
    """

    def __init__(self, folder: Path, digest: str, engine: Engine, progress: Progress | None = None) -> None:
        """Start a job, or resume the one in the folder.

        Args:
            folder: The folder of the markers, created if it is missing. All workers see it.
            digest: Digest of everything that determines the tasks' results: source, settings, version of the format.
            engine: The engine that runs the tasks; it stays open.
            progress: Called as ``progress(stage, done, total)`` in units of ``Task.size``, first with the tasks of an
                earlier run.

        Raises:
            StateError: The folder holds a job with another digest; see ``job_digest``.
        """
        self._folder, self._digest, self._engine = folder, digest, engine
        self._progress = progress or no_progress
        (folder / DONE_FOLDER).mkdir(parents=True, exist_ok=True)
        self._check_digest()

    def run(self, stage: str, tasks: Sequence[Task]) -> dict[str, Any]:
        """Run the tasks of a stage that have no marker for the same arguments.

        Returns:
            The result of every task by its name, in the order of the tasks.

        Raises:
            HopstreamError: See ``Engine.map``.
            OSError: See ``Engine.map``; or a marker cannot be written.
        """
        check_names(tasks)
        found = {task.name: self._done_before(task) for task in tasks}
        results = {name: marker["result"] for name, marker in found.items() if marker is not None}
        total = sum(task.size for task in tasks)
        done = sum(task.size for task in tasks if task.name in results)
        self._progress(stage, done, total)

        def on_done(task: Task, result: Any) -> None:
            nonlocal done
            marker = {"digest": self._digest_of(task), "result": result}
            write_text(self._marker(task), json.dumps(marker, allow_nan=False))
            results[task.name] = result
            done += task.size
            self._progress(stage, done, total)

        waiting = [task for task in tasks if task.name not in results]
        if waiting:
            self._engine.map(waiting, on_done, folder=self._folder / OUTCOMES_FOLDER)
        return {task.name: results[task.name] for task in tasks}

    def result_of(self, task: Task) -> Any:
        """Return the result of a finished task, or None."""
        marker = self._done_before(task)
        return None if marker is None else marker["result"]

    def forget(self, task: Task) -> None:
        """Remove a task's marker, because its output is gone, so that it runs again."""
        self._marker(task).unlink(missing_ok=True)

    def _check_digest(self) -> None:
        found = job_digest(self._folder)
        if found is None and not any((self._folder / DONE_FOLDER).iterdir()):
            write_text(self._folder / JOB_FILE, json.dumps({"format": FORMAT, "digest": self._digest}))
        elif found != self._digest:
            raise StateError(
                f"{self._folder} holds the work of a job with another source or other settings (digest {found}; this "
                f"job has {self._digest}); remove the folder, or choose another"
            )

    def _digest_of(self, task: Task) -> str:
        return digest_of([self._digest, task.kind, task.args])

    def _marker(self, task: Task) -> Path:
        return self._folder / DONE_FOLDER / f"{task.name}.json"

    def _done_before(self, task: Task) -> dict[str, Any] | None:
        """Return the marker of a task, or None if it is missing, truncated, or of other arguments."""
        try:
            marker = json.loads(self._marker(task).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(marker, dict) or marker.get("digest") != self._digest_of(task) or "result" not in marker:
            return None
        return marker
