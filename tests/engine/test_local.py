"""Tests of worker processes: tasks run, and kills of workers or of their parent are handled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hopstream.engine import EngineSettings, Task, open_engine
from hopstream.engine.local import local_engine
from hopstream.errors import SettingsError, TaskTimeout, WorkerLost
from tests.engine.contract import PROBE, SHORT, EngineContract, echoes, failing, never

SOON_S = 20.0
PARENT = """
import sys
from hopstream.engine import Task, open_engine

folder = sys.argv[1]
args = {"begun": folder + "/begun", "until": folder + "/never"}
with open_engine("local", num_workers=2) as engine:
    engine.map([Task(f"t{i}", "hopstream.engine.probe:wait", args) for i in range(2)], print)
"""


class TestInProcess(EngineContract):
    @pytest.fixture
    def engine(self):
        with local_engine() as engine:
            yield engine


class TestProcesses(EngineContract):
    @pytest.fixture
    def engine(self):
        with local_engine(2) as engine:
            yield engine


@pytest.fixture
def pool():
    with local_engine(2) as pool:
        yield pool


def begun(folder: Path, count: int) -> list[int]:
    """Process ids of waiting tasks, once there are as many as asked for."""
    ends = time.monotonic() + SOON_S
    while len(found := [int(path.name.split(".")[1]) for path in folder.glob("begun.*")]) < count:
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found


def waiting_task(folder: Path, name: str = "wait") -> Task:
    return Task(name, f"{PROBE}:wait", {"begun": str(folder / "begun"), "until": str(folder / "go")})


def dying(folder: Path, times: int, name: str = "SIGKILL") -> Task:
    folder.mkdir(exist_ok=True)
    return Task("die", f"{PROBE}:die", {"marks": str(folder), "times": times, "signal": name})


def ended_within(pids: list[int], timeout_s: float) -> bool:
    ends = time.monotonic() + timeout_s
    while any(map(_is_alive, pids)):
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


def _is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_workers_are_kept_and_end_when_they_are_closed():
    pool = local_engine(2)
    pids = set()
    for _ in range(3):
        pool.map([Task(f"t{i}", f"{PROBE}:where") for i in range(4)], lambda task, result: pids.add(result["pid"]))
    assert pids <= set(pool.pids)
    assert len(pool.pids) == 2
    pool.close()
    pool.close()
    assert not any(map(_is_alive, pids))


def test_tasks_run_at_the_same_time(pool, tmp_path):
    tasks = [waiting_task(tmp_path, "a"), waiting_task(tmp_path, "b")]
    opener = threading.Thread(target=lambda: begun(tmp_path, 2) and (tmp_path / "go").touch())
    opener.start()
    pids = set()
    pool.map(tasks, lambda task, result: pids.add(result))
    opener.join()
    assert len(pids) == 2


def test_output_of_a_task_is_not_a_result(pool, capfd):
    got = []
    pool.map([Task("say", f"{PROBE}:say", {"text": '{"name": "say", "result": 1}'})], lambda *what: got.append(what[1]))
    assert got == [None]
    pool.close()
    assert capfd.readouterr().out == ""


def test_a_task_whose_worker_is_killed_is_tried_again(pool, tmp_path):
    got = []
    pool.map([*echoes(3), dying(tmp_path / "marks", 1)], lambda task, result: got.append(task.name))
    assert sorted(got) == ["die", "echo-000", "echo-001", "echo-002"]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_task_that_kills_its_workers_is_named_with_the_signal(pool, tmp_path, name):
    with pytest.raises(WorkerLost, match=f"task die lost its worker twice (?s:.*) was ended by {name}") as raised:
        pool.map([dying(tmp_path / "marks", 9, name)], never)
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert ("in die" in str(raised.value)) == (name == "SIGSEGV"), "the stack is told"


def test_a_worker_that_is_killed_from_outside_is_replaced(pool, tmp_path):
    def kill() -> None:
        os.kill(begun(tmp_path, 1)[0], signal.SIGKILL)
        begun(tmp_path, 2)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    got = []
    pool.map([waiting_task(tmp_path)], lambda task, result: got.append(result))
    killer.join()
    assert got == [pid for pid in begun(tmp_path, 2) if pid in pool.pids]


@pytest.mark.slow
def test_a_worker_without_heartbeat_is_replaced(tmp_path):
    def stop() -> None:
        os.kill(begun(tmp_path, 1)[0], signal.SIGSTOP)
        begun(tmp_path, 2)
        (tmp_path / "go").touch()

    stopper = threading.Thread(target=stop)
    stopper.start()
    got = []
    with local_engine(1, settings=EngineSettings(silence_s=3.0)) as pool:
        pool.map([waiting_task(tmp_path)], lambda task, result: got.append(result))
    stopper.join()
    assert len(got) == 1
    assert not any(map(_is_alive, begun(tmp_path, 2)))


def test_a_task_past_its_deadline_is_ended(tmp_path):
    with (
        local_engine(1, settings=SHORT) as pool,
        pytest.raises(TaskTimeout, match=r"task wait did not finish within 1 s"),
    ):
        pool.map([waiting_task(tmp_path)], never)
    assert not any(map(_is_alive, begun(tmp_path, 1)))


def test_tasks_that_run_end_when_another_fails(pool, tmp_path):
    class Told(Exception):
        pass

    def tell(task, result):
        begun(tmp_path, 1)
        raise Told

    with pytest.raises(Told):
        pool.map([waiting_task(tmp_path), *echoes(1)], tell)
    assert not any(map(_is_alive, begun(tmp_path, 1)))
    with pytest.raises(ValueError, match="as told"):
        pool.map([failing("FormatError")], never)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_busy_workers_end_with_their_parent(tmp_path, name):
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.PIPE)
    try:
        workers = begun(tmp_path, 2)
        process.send_signal(signal.Signals[name])
        assert ended_within(workers, 3.0)
        process.communicate(timeout=SOON_S)
    finally:
        process.kill()
    assert process.returncode != 0


def test_an_idle_worker_uses_little_memory(pool):
    pool.map(echoes(2), lambda task, result: None)
    assert max(psutil.Process(pid).memory_info().rss for pid in pool.pids) < 24 << 20


@pytest.mark.parametrize(
    "options",
    [
        {"name": "spark"},
        {"num_workers": -1},
        {"num_workers": True},
        {"address": "auto"},
        {"name": "ray", "beam_options": ["--x"]},
        {"name": "ray", "num_workers": 0},
    ],
)
def test_invalid_engines_are_refused(options):
    with pytest.raises(SettingsError):
        open_engine(**options)


@pytest.mark.parametrize(
    "field", [{"task_timeout_s": 0}, {"silence_s": 1}, {"retries": -1}, {"retries": 1.5}, {"stop_s": "3"}]
)
def test_invalid_settings_are_refused(field):
    with pytest.raises(SettingsError, match=next(iter(field))):
        EngineSettings(**field)
