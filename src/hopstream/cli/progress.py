"""Shows the progress and the results of a verb.

Results are lines on stdout: aligned text, or one JSON object per line. Progress is written to stderr: as bars on a
terminal, otherwise as a line from time to time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopstream.cli.units import bytes_text, plural_text, seconds_text
from hopstream.engine.machine import peak_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from hopstream.dataset.settings import Progress

Json = bool | int | float | str | None | Sequence["Json"] | Mapping[str, "Json"]
Facts = Mapping[str, Json]

STAGE_WIDTH, SUBJECT_WIDTH, TEXT_WIDTH = 7, 8, 46
PIPE_WIDTH = 400
"""Columns that tables may use where stdout is not a terminal."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and memory of a stage.

    Attributes:
        seconds: Wall-clock time.
        peak_bytes: Peak memory of all processes together up to the end of the stage, see ``engine.machine``.
    """

    seconds: float
    peak_bytes: int


class Clock:
    """Stopwatch for a stage."""

    def __init__(self) -> None:
        """Start the stopwatch."""
        self._start = time.perf_counter()

    def cost(self) -> Cost:
        """Return the cost of the stage so far."""
        return Cost(time.perf_counter() - self._start, peak_bytes())


class Output:
    """Writer of a verb's results: text or JSON lines on stdout."""

    def __init__(self, *, is_json: bool) -> None:
        """Choose text or JSON."""
        self.is_json = is_json

    def stage(self, name: str, subject: str, text: str, facts: Facts, cost: Cost | None = None) -> None:
        """Write one line for one stage.

        Args:
            name: Name of the stage: ``read``, ``assign``, ``write``, ``done``.
            subject: What was read or written, in a word or two.
            text: The result for people, with units.
            facts: The result as JSON values, without units.
            cost: Cost of the stage.
        """
        if self.is_json:
            costs = {"seconds": round(cost.seconds, 3), "peak_bytes": cost.peak_bytes} if cost else {}
            self.facts({"stage": name, **facts, **costs})
            return
        gap = " " * (1 + (len(subject) > SUBJECT_WIDTH))
        line = f"{name:<{STAGE_WIDTH}} {subject:<{SUBJECT_WIDTH}}{gap}{text}"
        if cost:
            width = STAGE_WIDTH + SUBJECT_WIDTH + TEXT_WIDTH + 2
            line = f"{line:<{width}} {seconds_text(cost.seconds):>7}  {bytes_text(cost.peak_bytes):>8} peak"
        write_line(line.rstrip())

    def resumed(self, what: str, num_tasks: int) -> None:
        """Write a line if an earlier, interrupted command has done tasks of the same work."""
        if num_tasks:
            self.stage("resume", what, f"{plural_text(num_tasks, 'task')} done before", {"tasks": num_tasks})

    def facts(self, facts: Facts) -> None:
        """Write one JSON object if the output is JSON."""
        if self.is_json:
            write_line(json.dumps(facts))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], facts: Sequence[Facts]) -> None:
        """Write aligned rows under headers, or the facts as one JSON object each.

        The prefix ``>`` of a header marks a column of numbers, which is aligned to the right.
        """
        for fact in facts:
            self.facts(fact)
        if self.is_json or not rows:
            return
        from rich.console import Console

        table = table_of(headers, rows)
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
        with console.capture() as captured:
            console.print(table)
        write_line("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def text(self, line: str = "") -> None:
        """Write a line of text; nothing if the output is JSON."""
        if not self.is_json:
            write_line(line)


def table_of(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table of aligned rows; the prefix ``>`` of a header marks a column of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        is_number = header.startswith(">")
        table.add_column(
            Text(header.removeprefix(">")), justify="right" if is_number else "left", no_wrap=is_number,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def write_line(line: str) -> None:
    """Write a line to stdout and flush, so that the reader of a pipe gets it at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


FIRST_LINE_S, NEXT_LINES_S = 10.0, 30.0
"""Seconds until the first line of progress in a log, and between further lines."""


class ProgressLog:
    """Log with a line from time to time: the stage, its progress, and its running time.

    A thread writes the lines, so they appear even in a stage that reports nothing for an hour, such as a partitioning
    by a library.
    """

    def __init__(
        self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic,
        first_s: float = FIRST_LINE_S, next_s: float = NEXT_LINES_S,
    ) -> None:  # fmt: skip
        """Write lines with ``write``; ``now`` returns seconds."""
        self._write, self._now, self._first_s, self._next_s = write, now, first_s, next_s
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._last: tuple[str, int, int] | None = None

    def report(self, stage: str, done: int, total: int) -> None:
        """Record the progress of a stage."""
        self._starts.setdefault(stage, self._now())
        if 0 < total <= done:
            self._ends.setdefault(stage, self._now())
        self._last = stage, done, total

    def write_line(self) -> None:
        """Write the progress of the latest stage; if it is done, the running time of the next stage."""
        if self._last is not None:
            stage, done, total = self._last
            is_done = 0 < total <= done
            share = "done; the next stage: " if is_done else f"{100 * done / total:.0f} %, " if total else ""
            since = (self._ends if is_done else self._starts)[stage]
            self._write(f"{stage}: {share}{seconds_text(self._now() - since)} so far")

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """Write lines inside the context, which gives ``report``."""
        ended = threading.Event()

        def run() -> None:
            wait_s = self._first_s
            while not ended.wait(wait_s):
                self.write_line()
                wait_s = self._next_s

        thread = threading.Thread(target=run, name="progress", daemon=True)
        thread.start()
        try:
            yield self.report
        finally:
            ended.set()
            thread.join()


def _write_error_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Draw a bar for each reported stage inside the context; write lines if stderr is not a terminal."""
    if not sys.stderr.isatty():
        with ProgressLog(_write_error_line, first_s=FIRST_LINE_S, next_s=NEXT_LINES_S).running() as report:
            yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=max(total, 1))
            bars.update(tasks[stage], completed=done if total else 1, total=max(total, 1))

        yield report
