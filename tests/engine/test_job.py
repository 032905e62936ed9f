"""Checks that a job remembers finished tasks and no others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hopstream.engine import Task
from hopstream.engine.job import Job, digest_of, job_digest
from hopstream.engine.local import local_engine
from hopstream.errors import SettingsError, StateError
from tests.engine.contract import PROBE, echoes

KILLED = """
import os, signal, sys
from pathlib import Path
from hopstream.engine import Task, open_engine
from hopstream.engine.job import Job

folder, count, until = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def progress(stage, done, total):
    if done == until:
        os.kill(os.getpid(), signal.SIGKILL)

args = [{"path": str(folder / f"file-{i}"), "text": f"{i} ", "times": 1000} for i in range(count)]
with open_engine("local", num_workers=2) as engine:
    job = Job(folder / "job", "same", engine, progress)
    job.run("write", [Task(f"t{i}", "hopstream.engine.probe:write", one) for i, one in enumerate(args)])
"""


class Counting:
    """An engine of this process that remembers which tasks it ran."""

    def __init__(self) -> None:
        self.engine = local_engine()
        self.ran = []

    def map(self, tasks, on_done, *, folder=None):
        self.ran += [task.name for task in tasks]
        self.engine.map(tasks, on_done, folder=folder)


@pytest.fixture
def engine():
    return Counting()


def test_finished_tasks_are_not_repeated(engine, tmp_path):
    said = []
    tasks = [Task(f"t{i}", f"{PROBE}:echo", {"i": i}, size=10 + i) for i in range(3)]
    first = Job(tmp_path, "a", engine).run("stage", tasks[:2])
    job = Job(tmp_path, "a", engine, lambda *what: said.append(what))
    assert job.run("stage", tasks) == {**first, "t2": {"i": 2}}
    assert list(job.run("stage", tasks[::-1])) == ["t2", "t1", "t0"]
    assert engine.ran == ["t0", "t1", "t2"]
    assert said == [("stage", 21, 33), ("stage", 33, 33), ("stage", 33, 33)]


def test_a_task_with_other_arguments_is_repeated(engine, tmp_path):
    job = Job(tmp_path, "a", engine)
    job.run("stage", [Task("t", f"{PROBE}:echo", {"i": 1})])
    assert job.run("stage", [Task("t", f"{PROBE}:echo", {"i": 2})]) == {"t": {"i": 2}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": "x", "result": 1}'])
def test_a_broken_marker_is_ignored(engine, tmp_path, text):
    job = Job(tmp_path, "a", engine)
    job.run("stage", echoes(2))
    (tmp_path / "done" / "echo-000.json").write_text(text)
    assert job.run("stage", echoes(2))["echo-000"] == echoes(1)[0].args
    assert engine.ran == ["echo-000", "echo-001", "echo-000"]


def test_a_job_of_another_digest_is_refused(engine, tmp_path):
    Job(tmp_path, "a", engine).run("stage", echoes(1))
    assert job_digest(tmp_path) == "a"
    with pytest.raises(
        StateError, match=r"holds the work of a job with another source or other settings \(digest a; this job has b\)"
    ):
        Job(tmp_path, "b", engine)
    (tmp_path / "job.json").write_text("{")
    assert job_digest(tmp_path) is None
    with pytest.raises(StateError):
        Job(tmp_path, "a", engine)


def test_names_are_unique_and_fit_for_files(engine, tmp_path):
    job = Job(tmp_path, "a", engine)
    with pytest.raises(SettingsError, match="two tasks are named"):
        job.run("stage", [*echoes(1), *echoes(1)])
    for name in ("", "a/b", "../x", ".x", "x" * 201, "a b"):
        with pytest.raises(SettingsError, match="task name"):
            Task(name, f"{PROBE}:echo")
    for kind in ("os:system", "hopstream:x y", "hopstream.engine.probe", "hopstreams.x:y"):
        with pytest.raises(SettingsError, match=r"is not hopstream\.module:function"):
            Task("a", kind)


def test_the_digest_depends_on_the_value_only():
    assert digest_of({"a": 1, "b": [2, None]}) == digest_of({"b": [2, None], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": "1"})


def test_a_job_killed_repeatedly_gives_the_same_result(tmp_path):
    count = 12
    for until in (*range(2, count, 3), count + 1):
        done_before = len(list((tmp_path / "job" / "done").glob("*.json")))
        ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(count), str(until)], check=False)
        done = list((tmp_path / "job" / "done").glob("*.json"))
        assert ended.returncode == (0 if until > count else -9)
        assert len(done) == min(until, count) > done_before
        assert all(json.loads(path.read_text())["result"] > 0 for path in done)
    assert [(tmp_path / f"file-{i}").read_text() for i in range(count)] == [f"{i} " * 1000 for i in range(count)]
