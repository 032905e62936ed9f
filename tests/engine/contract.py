"""Tests that every engine must pass.

Inherit from ``EngineContract`` and give the fixture ``engine``.
"""

from __future__ import annotations

import threading

import pytest

from hopstream.engine import EngineSettings, Task
from hopstream.engine.job import Job
from hopstream.errors import EngineError, FormatError, IdRangeError, SettingsError, UnknownNameError

PROBE = "hopstream.engine.probe"
SHORT = EngineSettings(task_timeout_s=1.0, stop_s=1.0)


def echoes(count: int) -> list[Task]:
    return [Task(f"echo-{i:03}", f"{PROBE}:echo", {"number": i, "text": "ü" * i}) for i in range(count)]


def failing(name: str, message: str = "as told", args: tuple = ()) -> Task:
    return Task(f"fail-{name}", f"{PROBE}:fail", {"class": name, "message": message, "args": list(args)})


def never(task: Task, result: object) -> None:
    raise AssertionError(f"{task.name} ended with {result}")


class EngineContract:
    """Checks of one engine."""

    def test_every_result_is_reported_once(self, engine):
        told = []
        threads = set()

        def on_done(task, result):
            told.append((task.name, result))
            threads.add(threading.current_thread())

        tasks = echoes(12)
        engine.map(tasks, on_done)
        assert sorted(told) == [(task.name, task.args) for task in tasks]
        assert threads == {threading.current_thread()}
        assert engine.num_workers >= 1

    def test_no_tasks_are_done_at_once(self, engine):
        engine.map([], never)

    def test_large_arguments_and_results_are_transferred(self, engine):
        task = Task("large", f"{PROBE}:echo", {"values": list(range(100_000)), "text": "x" * 1_000_000})
        got = []
        engine.map([task], lambda task, result: got.append(result))
        assert got == [task.args]

    @pytest.mark.parametrize("error", [FormatError, UnknownNameError, IdRangeError])
    def test_a_hopstream_error_keeps_its_class_and_names_the_task(self, engine, error):
        with pytest.raises(error) as raised:
            engine.map([failing(error.__name__, "nodes/paper.csv line 3")], never)
        assert type(raised.value) is error
        assert str(raised.value) == "nodes/paper.csv line 3"
        assert f"in task fail-{error.__name__}" in raised.value.__notes__

    def test_an_os_error_keeps_its_number_and_file(self, engine):
        with pytest.raises(OSError) as raised:
            engine.map([failing("OSError", args=(28, "No space left on device", "/data/x"))], never)
        assert (raised.value.errno, raised.value.filename) == (28, "/data/x")
        with pytest.raises(MemoryError, match="no room"):
            engine.map([failing("MemoryError", args=("no room",))], never)

    def test_any_other_error_names_its_class_and_task(self, engine):
        with pytest.raises(EngineError, match="task fail-X failed with ZeroDivisionError: as ever"):
            engine.map([failing("X", args=("as ever",))], never)

    def test_an_error_is_raised_and_the_engine_stays_usable(self, engine):
        with pytest.raises(FormatError):
            engine.map([*echoes(5), failing("FormatError"), *echoes(9)[5:]], lambda task, result: None)
        got = []
        engine.map(echoes(3), lambda task, result: got.append(task.name))
        assert sorted(got) == [task.name for task in echoes(3)]

    def test_an_error_in_the_callback_reaches_the_caller(self, engine):
        def refuse(task, result):
            raise LookupError(task.name)

        with pytest.raises(LookupError, match="echo-"):
            engine.map(echoes(4), refuse)

    def test_invalid_tasks_are_refused(self, engine):
        with pytest.raises(SettingsError, match="two tasks are named echo-000"):
            engine.map([*echoes(1), *echoes(1)], never)
        with pytest.raises(SettingsError, match="task a: its arguments are not JSON"):
            engine.map([Task("a", f"{PROBE}:echo", {"x": object()})], never)
        with pytest.raises(EngineError, match="has no task 'nothing'"):
            engine.map([Task("a", f"{PROBE}:nothing")], never)
        with pytest.raises(EngineError, match=r"hopstream\.nowhere cannot be imported"):
            engine.map([Task("a", "hopstream.nowhere:nothing")], never)

    def test_files_that_tasks_write_are_seen(self, engine, tmp_path):
        args = {"path": str(tmp_path / "words"), "text": "word ", "times": 3}
        engine.map([Task("write", f"{PROBE}:write", args)], lambda task, result: None)
        assert (tmp_path / "words").read_text() == "word word word "

    def test_a_failed_job_resumes_with_the_remaining_tasks(self, engine, tmp_path):
        said = []
        tasks = [Task(f"w{i}", f"{PROBE}:write", {"path": str(tmp_path / f"f{i}"), "text": f"{i}"}) for i in range(3)]
        job = Job(tmp_path / "job", "a", engine)
        job.run("write", tasks[:2])
        with pytest.raises(FormatError):
            job.run("more", [tasks[2], failing("FormatError")])
        (tmp_path / "f0").unlink()
        job = Job(tmp_path / "job", "a", engine, lambda *what: said.append(what))
        assert job.run("write", tasks) == {"w0": 1, "w1": 1, "w2": 1}
        assert not (tmp_path / "f0").exists(), "it was done before"
        assert said[-1] == ("write", 3, 3)
        assert said[0][1] >= 2
        assert list((tmp_path / "job").glob("outcomes/*")) == []
