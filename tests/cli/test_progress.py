"""Checks that results are lines, and that progress is bars on a terminal and lines in a log."""

from __future__ import annotations

import io
import json
import queue
import sys
import threading

import pytest

from hopstream.cli import progress
from hopstream.cli.progress import Clock, Cost, Output, ProgressLog, progress_bars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_are_aligned(capsys: pytest.CaptureFixture[str]):
    output = Output(is_json=False)
    cost = Cost(1.94, 2_100_000_000)
    output.stage("read", "graph", "3 node types", {}, cost)
    output.stage("assign", "kaminpar", "4 parts", {}, cost)
    output.stage("done", "parts/mag/manifest.json", "format 1", {})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "read    graph    3 node types" + " " * 34 + "   1.9 s    2.1 GB peak"
    assert len(first) == len(second) and first.index("3 node") == second.index("4 parts")
    assert third == "done    parts/mag/manifest.json  format 1"


def test_json_has_the_same_facts_in_one_object_per_line(capsys: pytest.CaptureFixture[str]):
    output = Output(is_json=True)
    output.stage("read", "graph", "for people", {"edges": 5}, Cost(1.23456, 7))
    output.table(("a", ">b"), [("x", "1")], [{"a": "x", "b": 1}])
    output.text("for people")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"stage": "read", "edges": 5, "seconds": 1.235, "peak_bytes": 7},
        {"a": "x", "b": 1},
    ]


def test_tables_are_aligned_and_names_are_not_markup(capsys: pytest.CaptureFixture[str]):
    rows = [("[red]a", "1"), ("b", "1000")]
    Output(is_json=False).table(("name", ">count"), rows, ())
    assert capsys.readouterr().out == "name    count\n[red]a      1\nb        1000\n"


def test_an_empty_table_is_nothing(capsys: pytest.CaptureFixture[str]):
    Output(is_json=False).table(("name",), [], ())
    assert capsys.readouterr().out == ""


def test_a_clock_measures():
    cost = Clock().cost()
    assert cost.seconds >= 0 and cost.peak_bytes > 1 << 20


def test_short_work_logs_nothing(capsys: pytest.CaptureFixture[str]):
    with progress_bars() as report:
        report("write", 0, 2)
        report("write", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_log_has_progress_lines():
    seconds, lines = [0.0], []
    log = ProgressLog(lines.append, lambda: seconds[0])
    log.write_line()
    for at, stage, done, total in ((1, "1/2 assign", 0, 0), (5, "2/2 write", 0, 8), (15, "2/2 write", 2, 8)):
        seconds[0] = at
        log.report(stage, done, total)
        seconds[0] = at + 2
        log.write_line()
    assert lines == ["1/2 assign: 2.0 s so far", "2/2 write: 0 %, 2.0 s so far", "2/2 write: 25 %, 12.0 s so far"]


def test_a_log_shows_finished_stages_and_the_running_time():
    seconds, lines = [0.0], []
    log = ProgressLog(lines.append, lambda: seconds[0])
    for at, done in ((0, 0), (60, 4), (70, 4)):
        seconds[0] = at
        log.report("1/2 assign edges", done, 4)
    seconds[0] = 62 + 10
    log.write_line()
    log.report("2/2 write", 1, 4)
    log.write_line()
    assert lines == ["1/2 assign edges: done; the next stage: 12.0 s so far", "2/2 write: 25 %, 0.00 s so far"]


def test_log_lines_appear_without_new_progress_reports():
    """The first line comes after ``first_s``; none comes once the work is done."""
    lines: queue.Queue[str] = queue.Queue()
    with ProgressLog(lines.put, first_s=0.01, next_s=0.01).running() as report:
        report("assign", 1, 4)
        assert [lines.get(timeout=60).split(",")[0] for _ in range(2)] == ["assign: 25 %"] * 2
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_progress_lines_are_on_stderr_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert (progress.FIRST_LINE_S, progress.NEXT_LINES_S) == (10, 30)
    written = threading.Event()
    write = progress._write_error_line
    monkeypatch.setattr(progress, "_write_error_line", lambda line: (write(line), written.set()))
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.01)
    with progress_bars() as report:
        report("write", 1, 2)
        assert written.wait(60)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("write: 50 %, ") and shown.err.endswith(" s so far\n")


def test_bars_on_a_terminal_are_on_stderr_and_end_at_once(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars() as report:
        for done in range(3):
            report("write", done, 2)
        report("nothing", 0, 0)
    assert "write" in terminal.getvalue()
    with pytest.raises(KeyError), progress_bars() as report:
        report("write", 0, 2)
        raise KeyError
