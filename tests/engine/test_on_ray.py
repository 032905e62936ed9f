"""Checks that a Ray cluster of two nodes runs tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil
import pytest

from hopstream.engine import Task, open_engine
from hopstream.engine.on_ray import ray_engine
from hopstream.errors import MissingDependencyError, TaskTimeout, WorkerLost
from tests.engine.contract import PROBE, SHORT, EngineContract, never
from tests.engine.test_local import PARENT, begun, dying, ended_within, waiting_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def connection(ray_cluster):
    """One connection for all tests, as a driver takes a second to connect and leave."""
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
    with ray_engine(settings=SHORT) as engine, pytest.raises(TaskTimeout, match="task wait did not finish within 1 s"):
        engine.map([waiting_task(tmp_path)], never)
    # On a busy machine it may not have begun: its wait for a processor counts.
    assert ended_within([int(path.name.split(".")[1]) for path in tmp_path.glob("begun.*")], 10.0)
    (tmp_path / "go").touch()


def test_tasks_of_a_killed_node_run_on_other_nodes(ray_cluster, tmp_path):
    lost: set[int] = set()

    def kill(node: subprocess.Popen[bytes]) -> None:
        begun(tmp_path, 6)  # they take all processors of the three nodes
        tree = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        lost.update(process.pid for process in tree)
        for process in tree:
            process.kill()
        (tmp_path / "go").touch()

    done_by = {}
    with ray_cluster.one_more() as node, ray_engine(num_workers=6) as engine:
        killer = threading.Thread(target=kill, args=(node,))
        killer.start()
        tasks = [waiting_task(tmp_path, f"t{i}") for i in range(6)]
        engine.map(tasks, lambda task, result: done_by.update({task.name: result}))
        killer.join()
    assert sorted(done_by) == [task.name for task in tasks]
    assert lost.isdisjoint(done_by.values())
    assert len(lost.intersection(begun(tmp_path, 6))) == 2


def test_tasks_end_with_a_killed_driver(ray_cluster, tmp_path):
    words = [sys.executable, "-c", PARENT.replace('"local"', '"ray"'), str(tmp_path)]
    driver = subprocess.Popen(words, env={**os.environ, **ray_cluster.environment})
    try:
        workers = begun(tmp_path, 2)
    finally:
        driver.kill()
        driver.wait()
    assert ended_within(workers, 20.0)


def test_an_engine_keeps_an_existing_connection(connection):
    import ray

    open_engine("ray").close()
    assert ray.is_initialized()
    connection.map([Task("t", f"{PROBE}:echo")], lambda task, result: None)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hopstream\[ray\]'"):
        ray_engine()


def test_a_temporary_folder_too_deep_for_ray_is_named_with_the_remedy(tmp_path):
    """The test runs in a child process, as this process is connected already."""
    words = "from hopstream.engine.on_ray import ray_engine\nray_engine()"
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path / ("d" * 90)), "RAY_ADDRESS": ""}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "EngineError: no Ray cluster at this machine" in done.stderr
    assert done.stderr.endswith("set RAY_TMPDIR to a folder with a shorter path\n")
