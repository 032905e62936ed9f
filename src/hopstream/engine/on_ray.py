"""Runs tasks on a Ray cluster.

The one thing that Ray is given to run is ``run_line``, by its name in this package, so every machine needs the same
version of it. Tasks and outcomes are lines of JSON.
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
"""How often deadlines are looked at."""


def ray_engine(
    address: str | None = None, *, num_workers: int | None = None, settings: EngineSettings | None = None
) -> Engine:
    """An engine of a Ray cluster.

    Args:
        address: ``host:port`` of the cluster, ``auto`` for the one that runs on this machine, or None: the one that
            this process is connected to, else the one that ``RAY_ADDRESS`` names, else one of this machine alone that
            is started for the engine. A process that is connected keeps its connection.
        num_workers: How many tasks run at once; None means as many as the cluster has processors now.
        settings: Deadlines and retries; ``silence_s`` is Ray's own affair.

    Raises:
        MissingDependencyError: Ray is not installed.
        EngineError: The cluster cannot be reached.
        SettingsError: ``num_workers`` is outside what can be had.
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
    """Runs each task as a Ray task of one processor."""

    def __init__(self, num_workers: int | None, settings: EngineSettings, *, is_ours: bool) -> None:
        """Use the cluster that this process is connected to.

        Args:
            num_workers: How many tasks run at once; None means as many as there are processors.
            settings: Deadlines and retries.
            is_ours: ``close`` disconnects.
        """
        import ray

        self._ray = ray
        self._settings = settings
        self._is_ours = is_ours
        self._num_workers = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray would try again by itself, without end where memory ran out; here tasks are counted and named.
        self._remote = ray.remote(num_cpus=1, max_retries=0)(run_line)

    @property
    def num_workers(self) -> int:
        """How many tasks are handed to the cluster at once."""
        return self._num_workers

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """See ``Engine.map``."""
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
        """Disconnect, and end the cluster where it was started for this engine."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _outcome_line(self, reference: Any, task: Task, losses: Losses) -> str | None:
        """What a task answered, or None where its worker was lost and it is to be tried again."""
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
                    f"task {one.task.name} was not done in {self._settings.task_timeout_s:g} s, the wait for a free "
                    "processor included; allow more with task_timeout_s"
                )

    def _cancel(self, references: list[Any]) -> None:
        """End the tasks that run, and wait until they have ended."""
        if not references or not self._ray.is_initialized():
            return
        with suppress(self._ray.exceptions.RayError):
            for reference in references:
                self._ray.cancel(reference, force=True)
            self._ray.wait(references, num_returns=len(references), timeout=self._settings.stop_s)
