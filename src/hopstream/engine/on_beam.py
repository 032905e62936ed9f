"""Runs tasks by a Beam runner.

A pipeline has no way back, so what came of a task is a file in a folder that all workers see: ``<name>.json``, the line
that ``run_line`` makes. Tasks never fail in Beam's eyes, as runners try failed ones again; after the first error a file
named ``stop`` makes the tasks that have not begun end at once.
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
"""How often the folder of outcomes is looked at."""
STOP_FILE = "stop"
RUNNER_HERE = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Runs pipelines in this process. What Beam calls DirectRunner may first download a runner of another kind."""


def beam_engine(
    options: Sequence[str] = (), *, num_workers: int | None = None, settings: EngineSettings | None = None
) -> Engine:
    """An engine of a Beam runner.

    Args:
        options: Options of the pipeline, such as ``["--runner=FlinkRunner", "--flink_master=host:8081"]``; without a
            runner tasks run in this process, as many at once as ``--direct_num_workers`` says.
        num_workers: How many tasks the runner runs at once, for who sizes tasks by it; None means what
            ``--direct_num_workers`` says, else 1.
        settings: Deadlines; retries are the runner's own affair.

    Raises:
        MissingDependencyError: Beam is not installed.
        SettingsError: The options name no runner that there is, or ``num_workers`` is outside what can be had.
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
    except SystemExit as error:  # Beam reads options as a program does
        raise SettingsError(f"beam_options {list(options)} are not what Beam takes; stderr says which") from error
    try:
        create_runner(name)
    except (RuntimeError, ValueError, ImportError, AttributeError) as error:
        raise SettingsError(f"--runner={name} is no runner that Beam knows: {error}") from error
    return BeamEngine([f"--runner={name}", *options], at_once, settings or EngineSettings())


def run_into(line: str, folder: str) -> None:
    """Run a task and write what came of it to a folder, unless it is there or nobody waits for it any more."""
    place = Path(folder)
    path = place / f"{json.loads(line)['name']}.json"
    if path.exists() or (place / STOP_FILE).exists() or not place.exists():
        return
    answer = run_line(line)
    if place.exists():
        write_text(path, answer)


class BeamEngine(Engine):
    """Runs each ``map`` as one pipeline."""

    def __init__(self, options: list[str], num_workers: int, settings: EngineSettings) -> None:
        """Remember what pipelines are run with.

        Args:
            options: Options of the pipelines.
            num_workers: How many tasks run at once.
            settings: Deadlines.
        """
        self._options, self._num_workers, self._settings = options, num_workers, settings

    @property
    def num_workers(self) -> int:
        """How many tasks the runner is said to run at once."""
        return self._num_workers

    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """See ``Engine.map``; without a folder, outcomes are kept among this machine's temporary files."""
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
            (place / STOP_FILE).touch()  # the removal of the folder says the same, but may meet a file that is written
            run.cancel(self._settings.stop_s)
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _collect(self, run: _PipelineRun, waiting: dict[str, Task], on_done: OnDone) -> None:
        """Take outcomes as they come, until there are all."""
        last_news = time.monotonic()
        while waiting:
            has_ended = run.wait(LOOK_S)  # before the look: what it wrote last is found then
            found = [name for name in waiting if (run.place / f"{name}.json").exists()]
            for name in found:
                _, result = outcome((run.place / f"{name}.json").read_text(encoding="utf-8"))
                on_done(waiting.pop(name), result)
                last_news = time.monotonic()
            if has_ended and waiting and not found:
                raise EngineError(
                    f"the Beam pipeline ended without {len(waiting)} of its tasks, first {next(iter(waiting))}: "
                    f"{run.error or 'no error was told; do all workers see ' + str(run.place) + '?'}"
                ) from run.error
            if time.monotonic() - last_news > self._settings.task_timeout_s:
                raise TaskTimeout(
                    f"no task was done in {self._settings.task_timeout_s:g} s; {len(waiting)} are waited for, first "
                    f"{next(iter(waiting))}; allow more with task_timeout_s"
                )
        run.wait(self._settings.stop_s)


class _PipelineRun:
    """A pipeline that runs, in a thread of its own: some runners return when it is done, others at once."""

    def __init__(self, options: list[str], lines: list[str], place: Path) -> None:
        self.place = place
        self.error: BaseException | None = None
        self._options, self._lines = options, lines
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, name="beam pipeline", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the pipeline has ended, or so long; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Ask the runner to stop, and wait for tasks that have begun."""
        if self._result is not None:
            with suppress(Exception):  # not every runner can, and an error is on its way already
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
