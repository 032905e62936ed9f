"""Runs tasks by a Beam runner.

A pipeline returns nothing, so the outcome of a task is a file in a folder that all workers see: ``<name>.json``, with
the line of ``run_line``. Tasks never fail from Beam's view, because runners retry failed tasks. After the first error a
file named ``stop`` makes all tasks that have not started end at once.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopstream.arrays import write_text
from hopstream.checks import check_int
from hopstream.engine.contract import Engine, OnDone
from hopstream.engine.settings import MAX_WORKERS, EngineSettings
from hopstream.engine.tasks import Task, check_names, outcome, run_line
from hopstream.errors import EngineError, MissingDependencyError, SettingsError, TaskTimeout

LOOK_S = 0.05
"""Interval between checks of the folder of outcomes."""
STOP_FILE = "stop"
RUNNER_HERE = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Runs pipelines in this process. Beam's DirectRunner may first download another runner."""


def beam_engine(
    options: Sequence[str] = (), *, num_workers: int | None = None, settings: EngineSettings | None = None
) -> Engine:
    """Make an engine of a Beam runner.

    Args:
        options: Options of the pipeline, such as ``["--runner=FlinkRunner", "--flink_master=host:8081"]``. Without a
            runner, tasks run in this process, ``--direct_num_workers`` at once.
        num_workers: Number of tasks that the runner runs at once, for callers that size tasks by it; None for
            ``--direct_num_workers``, or else 1.
        settings: Deadlines; the runner itself decides about retries.

    Raises:
        MissingDependencyError: Beam is not installed.
        SettingsError: The options name no known runner, or ``num_workers`` is out of range.
    """
    if num_workers is not None:
        check_int("num_workers", num_workers, 1, MAX_WORKERS)
    try:
        from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
        from apache_beam.runners.runner import create_runner
    except ImportError as error:
        raise MissingDependencyError("the Beam engine needs apache-beam; pip install 'hopstream[beam]'") from error
    parsed = PipelineOptions(list(options))
    try:
        name = parsed.view_as(StandardOptions).runner or RUNNER_HERE
        at_once = num_workers or parsed.view_as(DirectOptions).direct_num_workers or 1
    except SystemExit as error:  # Beam parses options like a command line
        raise SettingsError(f"Beam does not accept beam_options {list(options)}; stderr shows which") from error
    try:
        create_runner(name)
    except (RuntimeError, ValueError, ImportError, AttributeError) as error:
        raise SettingsError(f"--runner={name} is not a runner of Beam: {error}") from error
    return BeamEngine([f"--runner={name}", *options], at_once, settings or EngineSettings())


def run_into(line: str, folder: str) -> None:
    """Run a task and write its outcome to a folder, unless the outcome exists or the job was stopped."""
    place = Path(folder)
    path = place / f"{json.loads(line)['name']}.json"
    if path.exists() or (place / STOP_FILE).exists() or not place.exists():
        return
    answer = run_line(line)
    if place.exists():
        write_text(path, answer)


class BeamEngine(Engine):
    """Engine that runs each ``map`` as one pipeline."""

    def __init__(self, options: list[str], num_workers: int, settings: EngineSettings) -> None:
        """Store what pipelines run with.

        Args:
            options: Options of the pipelines.
            num_workers: Number of tasks that run at once.
            settings: Deadlines.
        """
        self._options, self._num_workers, self._settings = options, num_workers, settings

    @property
    def num_workers(self) -> int:
        """Number of tasks that the runner is said to run at once."""
        return self._num_workers

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run the tasks as a pipeline; without a folder, outcomes go to a temporary folder of this machine."""
        check_names(tasks)
        if not tasks:
            return
        lines = [task.to_line() for task in tasks]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="outcomes-", dir=folder))
        run = _PipelineRun(self._options, lines, place)
        try:
            self._collect(run, {task.name: task for task in tasks}, on_done)
        except BaseException:
            (place / STOP_FILE).touch()  # removing the folder stops tasks too, but may race with a write
            run.cancel(self._settings.stop_s)
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _collect(self, run: _PipelineRun, waiting: dict[str, Task], on_done: OnDone) -> None:
        """Read outcomes as they appear, until every task has one."""
        last_news = time.monotonic()
        while waiting:
            has_ended = run.wait(LOOK_S)  # before the check, so that the last outcomes are found
            found = [name for name in waiting if (run.place / f"{name}.json").exists()]
            for name in found:
                _, result = outcome((run.place / f"{name}.json").read_text(encoding="utf-8"))
                on_done(waiting.pop(name), result)
                last_news = time.monotonic()
            if has_ended and waiting and not found:
                raise EngineError(
                    f"the Beam pipeline ended with {len(waiting)} unfinished tasks, first {next(iter(waiting))}: "
                    f"{run.error or 'no error was reported; do all workers see ' + str(run.place) + '?'}"
                ) from run.error
            if time.monotonic() - last_news > self._settings.task_timeout_s:
                raise TaskTimeout(
                    f"no task finished within {self._settings.task_timeout_s:g} s; {len(waiting)} are unfinished, "
                    f"first {next(iter(waiting))}; raise task_timeout_s"
                )
        run.wait(self._settings.stop_s)


class _PipelineRun:
    """Running pipeline, in its own thread, because some runners return at the end and others at once."""

    def __init__(self, options: list[str], lines: list[str], place: Path) -> None:
        self.place = place
        self.error: BaseException | None = None
        self._options, self._lines = options, lines
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, name="beam pipeline", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the pipeline has ended or the time is up; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Ask the runner to stop, and wait for running tasks."""
        if self._result is not None:
            with suppress(Exception):  # some runners cannot cancel, and an error is being raised already
                self._result.cancel()
        self.wait(timeout_s)

    def _run(self) -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        try:
            pipeline = beam.Pipeline(options=PipelineOptions(self._options))
            made = pipeline | "tasks" >> beam.Create(self._lines) | "spread" >> beam.Reshuffle()
            _ = made | "run" >> beam.Map(run_into, str(self.place))
            self._result = pipeline.run()
            self._result.wait_until_finish()
        except Exception as error:
            self.error = error
