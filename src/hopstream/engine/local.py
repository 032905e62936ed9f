"""Runs tasks on this machine, in this process or in worker processes."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from hopstream.checks import check_int
from hopstream.engine.contract import Engine, Losses, OnDone
from hopstream.engine.machine import num_processors
from hopstream.engine.settings import MAX_WORKERS, EngineSettings
from hopstream.engine.tasks import Task, check_names, outcome, run_task
from hopstream.engine.worker_process import WorkerProcess
from hopstream.errors import TaskTimeout

LOOK_S = 1.0
"""Interval between checks of deadlines."""


def local_engine(num_workers: int = 0, *, settings: EngineSettings | None = None) -> Engine:
    """Make an engine of this machine.

    Args:
        num_workers: Worker processes; 0 runs tasks in this process, one at a time and without deadlines.
        settings: Deadlines and retries.

    Raises:
        SettingsError: ``num_workers`` is out of range.
    """
    check_int("num_workers", num_workers, 0, MAX_WORKERS)
    return WorkerPool(num_workers, settings or EngineSettings()) if num_workers else InProcessEngine()


class InProcessEngine(Engine):
    """Engine that runs tasks one after the other in this process."""

    @property
    def num_workers(self) -> int:
        """1, as tasks run one at a time."""
        return 1

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run the tasks one after the other."""
        check_names(tasks)
        for task in tasks:
            task.to_line()  # refuses arguments that are not JSON
            on_done(task, run_task(task.name, task.kind, task.args))


class WorkerPool(Engine):
    """Engine that runs tasks in worker processes, which start on first use and live until ``close``."""

    def __init__(self, num_workers: int, settings: EngineSettings) -> None:
        """Start no worker yet."""
        self._num_workers = num_workers
        self._num_threads = max(1, num_processors() // num_workers)
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._workers: list[WorkerProcess] = []

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self._num_workers

    @property
    def pids(self) -> list[int]:
        """Ids of the current worker processes."""
        return [worker.pid for worker in self._workers]

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run the tasks in the worker processes."""
        check_names(tasks)
        waiting = deque(tasks)
        losses = Losses(self._settings.retries)
        try:
            while waiting or self._busy():
                self._give_out(waiting)
                for worker, line in self._lines():
                    self._on_line(worker, line, on_done)
                self._replace_lost(waiting, losses)
                self._check_deadlines()
        except BaseException:
            self._stop_busy()
            raise

    def close(self) -> None:
        """Stop all workers."""
        self._end(self._workers)
        self._selector.close()

    def _busy(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.task is not None]

    def _give_out(self, waiting: deque[Task]) -> None:
        """Give each idle worker a task, and start workers while tasks are waiting."""
        for worker in self._workers:
            if waiting and worker.task is None:
                worker.give(waiting.popleft())
        while waiting and len(self._workers) < self._num_workers:
            worker = WorkerProcess(self._selector, self._num_threads)
            self._workers.append(worker)
            worker.give(waiting.popleft())

    def _lines(self) -> list[tuple[WorkerProcess, str]]:
        """Wait for output of workers, a second at most, and return their complete lines."""
        return [(key.data, line) for key, _ in self._selector.select(LOOK_S) for line in key.data.on_event(key.fileobj)]

    def _on_line(self, worker: WorkerProcess, line: str, on_done: OnDone) -> None:
        if line.startswith('{"beat"'):
            return
        task, worker.task = worker.task, None
        _, result = outcome(line)
        if task is not None:
            on_done(task, result)

    def _replace_lost(self, waiting: deque[Task], losses: Losses) -> None:
        """Remove lost workers, and put their tasks at the head of the queue; ``_give_out`` starts new workers."""
        for worker in [worker for worker in self._workers if worker.has_ended]:
            self._workers.remove(worker)
            ending = worker.ending_text()
            worker.end(0.0)
            if worker.task is not None:
                losses.count(worker.task, ending)
                waiting.appendleft(worker.task)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for worker in self._busy():
            if now - worker.last_sign > self._settings.silence_s:
                worker.kill()  # its task is retried like that of any lost worker
            if worker.task is not None and now - worker.task_since > self._settings.task_timeout_s:
                raise TaskTimeout(
                    f"task {worker.task.name} did not finish within {self._settings.task_timeout_s:g} s in worker "
                    f"process {worker.pid}; raise task_timeout_s"
                )

    def _stop_busy(self) -> None:
        """Stop the workers that run tasks, with time to remove unfinished files."""
        busy = self._busy()
        deadline = time.monotonic() + self._settings.stop_s
        for worker in busy:
            worker.terminate()
        for worker in busy:
            worker.wait(deadline - time.monotonic())
        self._end(busy)

    def _end(self, workers: Sequence[WorkerProcess]) -> None:
        deadline = time.monotonic() + self._settings.stop_s
        for worker in list(workers):
            worker.end(deadline - time.monotonic())
            self._workers.remove(worker)
