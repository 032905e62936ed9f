"""Checks that Beam's runners run tasks."""

from __future__ import annotations

import sys
import threading

import pytest

from hopstream.engine import Task, open_engine
from hopstream.engine.on_beam import STOP_FILE, beam_engine, run_into
from hopstream.errors import EngineError, MissingDependencyError, SettingsError, TaskTimeout
from tests.engine.contract import PROBE, SHORT, EngineContract, echoes, never
from tests.engine.test_local import begun, waiting_task

PROCESSES = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]


class TestBeam(EngineContract):
    @pytest.fixture
    def engine(self):
        with beam_engine() as engine:
            yield engine


def test_tasks_run_in_processes_of_the_runner(tmp_path):
    pids = set()
    with open_engine("beam", beam_options=PROCESSES) as engine:
        assert engine.num_workers == 2
        opener = threading.Thread(target=lambda: begun(tmp_path, 1) and (tmp_path / "go").touch())
        opener.start()
        tasks = [waiting_task(tmp_path), *(Task(f"t{i}", f"{PROBE}:where") for i in range(20))]
        engine.map(tasks, lambda task, result: pids.add(result if isinstance(result, int) else result["pid"]))
        opener.join()
    assert len(pids) == 2


@pytest.mark.slow
def test_a_task_past_its_deadline_is_an_error(tmp_path):
    try:
        with (
            beam_engine(settings=SHORT) as engine,
            pytest.raises(TaskTimeout, match="no task finished within 1 s; 1 are"),
        ):
            engine.map([waiting_task(tmp_path)], never, folder=tmp_path / "outcomes")
    finally:
        (tmp_path / "go").touch()


def test_tasks_that_have_not_begun_are_left_out_after_an_error(tmp_path):
    place = tmp_path / "place"
    line = Task("t", f"{PROBE}:echo").to_line()
    run_into(line, str(place))
    assert not place.exists(), "nobody waits for it any more"
    place.mkdir()
    (place / STOP_FILE).touch()
    run_into(line, str(place))
    assert not (place / "t.json").exists()
    (place / STOP_FILE).unlink()
    run_into(line, str(place))
    assert (place / "t.json").exists()


def test_a_failed_pipeline_is_an_engine_error(tmp_path):
    options = ["--runner=tests.engine.broken_runner.BrokenRunner"]
    with beam_engine(options) as engine, pytest.raises(EngineError, match="first echo-000: no machine is left"):
        engine.map(echoes(2), never, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bad_options_are_refused(monkeypatch):
    with pytest.raises(SettingsError, match="--runner=Nowhere is not a runner"):
        beam_engine(["--runner=Nowhere"])
    with pytest.raises(SettingsError, match="beam_options"):
        beam_engine(["--direct_running_mode=nonsense"])
    with pytest.raises(SettingsError, match="num_workers"):
        beam_engine(num_workers=0)
    for name in [name for name in sys.modules if name == "apache_beam" or name.startswith("apache_beam.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hopstream\[beam\]'"):
        beam_engine()
