"""Checks that tasks and their outcomes survive serialization."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import hopstream
from hopstream import errors
from hopstream.engine import tasks
from hopstream.engine.tasks import Task, kind_of, outcome, run_line
from hopstream.errors import ChannelLost, EngineError, HopstreamError, RemoteError, StoreTimeout, VersionMismatch

KIND = "hopstream.engine.probe:echo"


@pytest.fixture
def function(monkeypatch):
    """Register a function under the name ``KIND``."""
    return lambda function: monkeypatch.setitem(tasks._FUNCTIONS, KIND, function)


def run(args=None):
    return outcome(run_line(Task("t", KIND, args or {}).to_line()))


def raise_it(error):
    def function(args):
        raise error

    return function


@pytest.mark.parametrize(
    "error",
    [
        *(kind("what was wrong") for kind in vars(errors).values() if isinstance(kind, type)),
        RemoteError("a server failed", "its traceback"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/nodes.csv"),
        OSError(errno.EIO, "Input/output error"),
        OSError("in a library's words"),
        TimeoutError("nobody came"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_error_keeps_its_class(function, error):
    function(raise_it(error))
    with pytest.raises(type(error)) as raised:
        run()
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    if isinstance(error, OSError) and not isinstance(error, HopstreamError):
        assert (raised.value.errno, raised.value.filename) == (error.errno, error.filename)
    assert raised.value.__notes__[0] == "in task t"
    assert "test_tasks.py" in raised.value.__notes__[1]


def test_an_error_of_an_unknown_class_becomes_its_base_class(function):
    class Lost(ChannelLost):
        pass

    function(raise_it(Lost("gone")))
    with pytest.raises(ChannelLost, match="gone"):
        run()


def test_memory_that_numpy_cannot_have_is_a_memory_error(function):
    function(lambda args: np.empty(1 << 60, np.uint8).sum())
    with pytest.raises(MemoryError, match="Unable to allocate"):
        run()


def test_the_cause_of_an_error_is_kept_as_a_note(function):
    def chained(args):
        try:
            return 1 / args["zero"]
        except ZeroDivisionError as error:
            raise StoreTimeout("part 2 gave no answer") from error

    function(chained)
    with pytest.raises(StoreTimeout) as raised:
        run({"zero": 0})
    assert "ZeroDivisionError" in raised.value.__notes__[-1]


@pytest.mark.parametrize("result", [object(), float("nan"), {1, 2}, np.int64(3)])
def test_a_result_that_is_not_json_is_an_error(function, result):
    function(lambda args: result)
    with pytest.raises(EngineError, match="task t: its result is not JSON"):
        run()


def test_a_task_of_another_version_is_refused(function):
    line = Task("t", KIND).to_line().replace(hopstream.__version__, "0.0.1")
    with pytest.raises(VersionMismatch, match=r"task t comes from hopstream 0\.0\.1"):
        outcome(run_line(line))


@pytest.mark.parametrize(
    "line",
    [
        "", "x", "[]", "{}", '{"name": "t"}', '{"name": "t", "error": {"class": "SystemExit", "args": []}}',
        '{"name": "t", "error": {"class": "FormatError"}}', '{"name": "t", "error": "bad"}',
    ],
)  # fmt: skip
def test_invalid_task_results_are_refused(line):
    with pytest.raises(EngineError, match="not a task result"):
        outcome(line)


def test_a_function_knows_its_kind():
    from hopstream.engine.probe import echo

    assert kind_of(echo) == KIND
