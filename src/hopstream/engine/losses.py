"""How often did a task lose its worker, and is that too often?"""

from __future__ import annotations

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
