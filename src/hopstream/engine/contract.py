"""Contract of all engines, and the count of lost workers per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopstream.engine.tasks import Task
from hopstream.errors import WorkerLost


class Losses:
    """Counter of the lost workers of each task."""

    def __init__(self, retries: int) -> None:
        """Allow each task this many retries."""
        self._retries = retries
        self._of: dict[str, int] = {}

    def count(self, task: Task, ending: str) -> None:
        """Count a lost worker.

        Args:
            task: The task.
            ending: How the worker ended.

        Raises:
            WorkerLost: The task has used all its retries.
        """
        times = self._of[task.name] = self._of.get(task.name, 0) + 1
        if times > self._retries:
            often = {1: "once", 2: "twice"}.get(times, f"{times} times")
            raise WorkerLost(
                f"task {task.name} lost its worker {often} (SIGKILL may mean that memory ran out: run fewer workers or "
                f"give each less to do); the last: {ending}"
            )


OnDone = Callable[[Task, Any], None]
"""Called as ``on_done(task, result)``, in the thread that called ``map``."""


class Engine(ABC):
    """Base class of engines, which run tasks. An engine belongs to one thread; its opener must close it."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Number of tasks that run at once, at least 1."""

    @abstractmethod
    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run tasks in any order, several at once, and return when all are finished.

        If a task or ``on_done`` raises, the engine stops the running tasks, waits for their end, and raises the error.
        A stopped task may leave unfinished files under temporary names.

        Args:
            tasks: The tasks, with unique names.
            on_done: Called once for each finished task.
            folder: A folder that all workers see. Engines that need one store outcomes of tasks there.

        Raises:
            HopstreamError: An error of a task, in its own class, with the task's name and traceback as notes.
            OSError: Likewise.
            MemoryError: Likewise.
            WorkerLost: A task lost its worker more often than it may be retried.
            TaskTimeout: A task took too long.
            EngineError: A task failed with an error of another kind, or the engine could not run it.
            SettingsError: Two tasks have the same name, or arguments are not JSON.
        """

    def close(self) -> None:
        """Stop everything that the engine started; further calls do nothing."""
        return

    def __enter__(self) -> Engine:
        """Return the engine."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the engine."""
        self.close()
