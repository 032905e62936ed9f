"""Checks that child processes are watched, and ended whatever they do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from hopstream.cli import up as children_module
from hopstream.cli.up import Child, Children, stop_signals
from hopstream.errors import StoreUnavailable

DEADLINE_S = 30.0
SAY = "import sys; print('one\\ntwo', flush=True); print('oops', file=sys.stderr, flush=True); "
WAIT = "sys.stdin.read()"
STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "


def start(children: Children, code: str) -> Child:
    return children.start("the child", ["-c", code], dict(os.environ))


def wait_until(children: Children, is_done: Callable[[], bool]) -> list[Child]:
    ends = time.monotonic() + DEADLINE_S
    ended: list[Child] = []
    while not is_done():
        assert time.monotonic() < ends
        ended += children.wait(0.2)
    return ended


def test_output_of_a_child_is_kept():
    with Children(grace_s=DEADLINE_S) as children:
        child = start(children, SAY + WAIT)
        wait_until(children, lambda: len(child.lines) == 2 and len(child.errors) == 1)
        assert (child.lines, list(child.errors)) == (["one", "two"], ["oops"])
        assert not child.has_ended and "is still running" in child.ending_text()
    assert child.has_ended and child.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("ending", "text"), [("sys.exit(3)", "ended with exit status 3"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")]
)
def test_ending_text_includes_the_last_error_lines(ending: str, text: str):
    with Children(grace_s=DEADLINE_S) as children:
        child = start(children, SAY + ending)
        assert wait_until(children, lambda: child.has_ended) == [child]
        assert text in child.ending_text() and child.ending_text().endswith("\n  oops")
        assert children.wait(0) == [] and children.stop() == []


def test_only_the_last_error_lines_are_kept():
    with Children(grace_s=DEADLINE_S) as children:
        child = start(children, "import sys\nfor i in range(100): print(i, file=sys.stderr)\nprint('end', end='')")
        wait_until(children, lambda: child.has_ended)
        assert list(child.errors) == [str(i) for i in range(80, 100)]
        assert child.lines == ["end"]


def test_a_child_that_ignores_sigterm_is_killed():
    with Children(grace_s=0.2) as children:
        child = start(children, STUBBORN + WAIT)
        wait_until(children, lambda: bool(child.lines))
        assert children.stop() == [child]
    assert child.process.returncode == -signal.SIGKILL


def test_a_second_request_kills_at_once():
    with Children(grace_s=10 * DEADLINE_S) as children, stop_signals(children) as signals:
        child = start(children, STUBBORN + WAIT)
        wait_until(children, lambda: bool(child.lines))
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(children, lambda: signals.count == 1)
        started = time.monotonic()
        children.stop(lambda: signals.count > 0)
        assert time.monotonic() - started < DEADLINE_S
    assert child.process.returncode == -signal.SIGKILL


def test_a_signal_wakes_wait():
    with Children(grace_s=DEADLINE_S) as children, stop_signals(children) as signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        ends = time.monotonic() + DEADLINE_S
        assert children.wait(10 * DEADLINE_S) == [] and time.monotonic() < ends
        assert signals.count == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_does_not_reach_children():
    with Children(grace_s=DEADLINE_S) as children:
        child = start(children, SAY + WAIT)
        assert os.getsid(child.process.pid) == child.process.pid


def test_children_end_when_their_end_of_the_pipe_is_closed():
    with Children(grace_s=DEADLINE_S) as children:
        child = start(children, SAY + WAIT)
        wait_until(children, lambda: bool(child.lines))
        assert child.process.stdin is not None
        child.process.stdin.close()
        wait_until(children, lambda: child.has_ended)
        assert child.process.returncode == 0 and not psutil.pid_exists(child.process.pid)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children_module.sys, "executable", "/no/such/python")
    with Children(grace_s=DEADLINE_S) as children, pytest.raises(StoreUnavailable, match="the child cannot be started"):
        start(children, "")
