"""Contract of all engines, and the count of workers that tasks have lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopstream.engine.tasks import Task
from hopstream.errors import WorkerLost


class Losses:
    """Counts the workers that tasks have lost."""

    def __init__(self, retries: int) -> None:
        """Allow each task to be tried again so often."""
        self._retries = retries
        self._of: dict[str, int] = {}

    def count(self, task: Task, ending: str) -> None:
        """Count one more.

        Args:
            task: The task.
            ending: How its worker ended.

        Raises:
            WorkerLost: The task has been tried often enough.
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
    """Runs tasks somewhere. An engine belongs to one thread and is closed by who opened it."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many tasks run at once, at least 1."""

    @abstractmethod
    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run tasks, in any order and several at once; return when all are done.

        Where a task fails, or ``on_done`` does, the tasks that run are stopped, and the error is raised when they have
        ended. What a stopped task had begun to write stays, under whatever temporary name.

        Args:
            tasks: The tasks, of different names.
            on_done: Told of each task once, when it has ended.
            folder: A folder that all workers see, where an engine that needs one may keep what came of tasks.

        Raises:
            HopstreamError: What a task raised, in its own class, with the task's name and traceback as notes.
            OSError: Likewise.
            MemoryError: Likewise.
            WorkerLost: The worker of a task was lost, again after it was tried again.
            TaskTimeout: A task took too long.
            EngineError: A task failed with an error of another kind, or the engine could not run it.
            SettingsError: Two tasks have one name, or arguments are not JSON.
        """

    def close(self) -> None:
        """End what the engine started; it may be called again."""
        return

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()
