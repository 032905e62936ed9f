"""Runs tasks on a Ray cluster.

Ray runs only ``run_line``, by its name in this package, so every machine needs the same version of the package. Tasks
and outcomes are lines of JSON.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopstream.checks import check_int
from hopstream.engine.contract import Engine, Losses, OnDone
from hopstream.engine.settings import MAX_WORKERS, EngineSettings
from hopstream.engine.tasks import Task, check_names, outcome, run_line
from hopstream.errors import EngineError, MissingDependencyError, TaskTimeout

LOOK_S = 1.0
"""Interval between checks of deadlines."""


def ray_engine(
    address: str | None = None, *, num_workers: int | None = None, settings: EngineSettings | None = None
) -> Engine:
    """Make an engine of a Ray cluster.

    Args:
        address: ``host:port`` of the cluster, or ``auto`` for the cluster that runs on this machine. None means the
            cluster that this process is connected to, or else the one in ``RAY_ADDRESS``, or else a new one on this
            machine. A connected process keeps its connection.
        num_workers: Number of tasks that run at once; None means the cluster's current number of processors.
        settings: Deadlines and retries; Ray itself decides about ``silence_s``.

    Raises:
        MissingDependencyError: Ray is not installed.
        EngineError: The cluster cannot be reached.
        SettingsError: ``num_workers`` is out of range.
    """
    if num_workers is not None:
        check_int("num_workers", num_workers, 1, MAX_WORKERS)
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("the Ray engine needs ray; pip install 'hopstream[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            remedy = "; set RAY_TMPDIR to a folder with a shorter path" if "AF_UNIX" in str(error) else ""
            raise EngineError(f"no Ray cluster at {address or 'this machine'}: {error}{remedy}") from error
    return RayEngine(num_workers, settings or EngineSettings(), is_ours=is_ours)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    task: Task
    since: float


class RayEngine(Engine):
    """Engine that runs each task as a Ray task of one processor."""

    def __init__(self, num_workers: int | None, settings: EngineSettings, *, is_ours: bool) -> None:
        """Use the cluster that this process is connected to.

        Args:
            num_workers: Number of tasks that run at once; None means the number of processors.
            settings: Deadlines and retries.
            is_ours: Whether ``close`` disconnects.
        """
        import ray

        self._ray = ray
        self._settings = settings
        self._is_ours = is_ours
        self._num_workers = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray's own retries are off: it retries without end after memory ran out. ``Losses`` counts retries per task.
        self._remote = ray.remote(num_cpus=1, max_retries=0)(run_line)

    @property
    def num_workers(self) -> int:
        """Number of tasks that the engine submits to the cluster at once."""
        return self._num_workers

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run the tasks in Ray workers."""
        check_names(tasks)
        waiting = deque(tasks)
        running: dict[Any, _Running] = {}
        losses = Losses(self._settings.retries)
        try:
            while waiting or running:
                while waiting and len(running) < self._num_workers:
                    task = waiting.popleft()
                    running[self._remote.remote(task.to_line())] = _Running(task, time.monotonic())
                ended, _ = self._ray.wait(list(running), num_returns=1, timeout=LOOK_S)
                for reference in ended:
                    task = running.pop(reference).task
                    line = self._outcome_line(reference, task, losses)
                    if line is None:
                        waiting.appendleft(task)
                    else:
                        on_done(task, outcome(line)[1])
                self._check_deadlines(running)
        except BaseException:
            self._cancel(list(running))
            raise

    def close(self) -> None:
        """Disconnect, and stop the cluster if it was started for this engine."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _outcome_line(self, reference: Any, task: Task, losses: Losses) -> str | None:
        """Return the outcome of a task, or None if its worker was lost and the task is to be retried."""
        try:
            return str(self._ray.get(reference))
        except (self._ray.exceptions.RayTaskError, self._ray.exceptions.RuntimeEnvSetupError) as error:
            raise EngineError(f"task {task.name} could not be run by Ray: {error}") from error
        except self._ray.exceptions.RayError as error:
            losses.count(task, f"Ray says: {error}")
            return None

    def _check_deadlines(self, running: dict[Any, _Running]) -> None:
        now = time.monotonic()
        for one in running.values():
            if now - one.since > self._settings.task_timeout_s:
                raise TaskTimeout(
                    f"task {one.task.name} did not finish within {self._settings.task_timeout_s:g} s, including the "
                    "wait for a free processor; raise task_timeout_s"
                )

    def _cancel(self, references: list[Any]) -> None:
        """Cancel the running tasks, and wait for their end."""
        if not references or not self._ray.is_initialized():
            return
        with suppress(self._ray.exceptions.RayError):
            for reference in references:
                self._ray.cancel(reference, force=True)
            self._ray.wait(references, num_returns=len(references), timeout=self._settings.stop_s)
