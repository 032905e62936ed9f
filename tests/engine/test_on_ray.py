"""Does a Ray cluster of two nodes run tasks, and the example for it?"""

from __future__ import annotations

import sys
import threading

import pytest

from hopstream.engine import Task, open_engine
from hopstream.engine.on_ray import ray_engine
from hopstream.errors import MissingDependencyError, TaskTimeout, WorkerLost
from tests.engine.contract import PROBE, SHORT, EngineContract, never
from tests.engine.test_local import begun, dying, waiting_task


@pytest.fixture(scope="module", autouse=True)
def connection(ray_cluster):
    """Connected once for all tests: a driver takes a second to come and go."""
    with ray_engine(ray_cluster.address) as engine:
        yield engine


class TestRay(EngineContract):
    @pytest.fixture
    def engine(self):
        with ray_engine(num_workers=2) as engine:
            yield engine


def test_both_nodes_run_tasks(connection, tmp_path):
    import ray

    assert connection.num_workers == 4
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    opener = threading.Thread(target=lambda: begun(tmp_path, 4) and (tmp_path / "go").touch())
    opener.start()  # four tasks at the same time take all processors of both nodes
    pids = set()
    connection.map([waiting_task(tmp_path, f"t{i}") for i in range(4)], lambda task, result: pids.add(result))
    opener.join()
    assert len(pids) == 4


def test_a_task_whose_worker_is_killed_is_tried_again_and_then_named(connection, tmp_path):
    got = []
    connection.map([dying(tmp_path / "once", 1)], lambda task, result: got.append(task.name))
    assert got == ["die"]
    with pytest.raises(WorkerLost, match=r"task die lost its worker twice .*Ray says: The worker died"):
        connection.map([dying(tmp_path / "marks", 9)], never)
    assert len(list((tmp_path / "marks").iterdir())) == 2


def test_a_task_past_its_deadline_is_ended(tmp_path):
    with ray_engine(settings=SHORT) as engine, pytest.raises(TaskTimeout, match="task wait was not done in 1 s"):
        engine.map([waiting_task(tmp_path)], never)
    (tmp_path / "go").touch()


def test_an_engine_leaves_a_connection_that_was_there(connection):
    import ray

    open_engine("ray").close()
    assert ray.is_initialized()
    connection.map([Task("t", f"{PROBE}:echo")], lambda task, result: None)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hopstream\[ray\]'"):
        ray_engine()
