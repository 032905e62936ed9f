"""Checks that a job that was ended resumes, and that a failed one is never taken for a dataset."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset import regions
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.engine import atomic_folder, settings
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.engine.machine import Machine
from hopstream.engine.settings import Progress, no_progress
from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.dataset_job import DatasetEstimate, DatasetTarget
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.halo.settings import HaloSettings
from tests.dataset.graphs import community_graph
from tests.killing import left_beside
from tests.preparation.dispatch.sources import check_equal, check_same, cut_small, use_graph, write_owners
from tests.preparation.test_resume import SMALL_DISPATCH, write_for_dispatch


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A chunked graph, its owners, and the wanted dataset."""
    write_for_dispatch(tmp_path, rng)
    return tmp_path


def check_done(folder: Path) -> None:
    check_same(folder / "got", folder / "wanted", read_manifest(folder / "got"), read_manifest(folder / "wanted"))
    assert left_beside(folder) == []


@pytest.mark.parametrize("is_removed_in_part", [False, True])
def test_interrupted_after_the_dataset_was_in_place(tmp_path, monkeypatch, rng, is_removed_in_part):
    """The same call finds the finished result; another call does not resume from the remains."""
    graph = community_graph(rng, 60, 400)
    write_owners(tmp_path / "owners", graph, 2, rng)
    use_graph(monkeypatch, graph)
    places = (tmp_path / "in", tmp_path / "owners", tmp_path / "got")

    def stop(work: WorkFolder) -> None:
        if (tmp_path / "got").exists():
            if is_removed_in_part:
                (work.path / "job.json").unlink()
            raise KeyboardInterrupt

    def end() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(WorkFolder, "clear", stop)
            with pytest.raises(KeyboardInterrupt):
                dispatch(*places, num_workers=0, num_parts=2)
        open_dataset(tmp_path / "got", verify=True)
        assert left_beside(tmp_path) == [".got.work"]

    end()
    before = (tmp_path / "got").stat().st_ino
    assert dispatch(*places, num_workers=0, num_parts=2).dataset_id == read_manifest(tmp_path / "got").dataset_id
    assert (tmp_path / "got").stat().st_ino == before and left_beside(tmp_path) == []
    shutil.rmtree(tmp_path / "got")
    end()
    with pytest.raises(SettingsError, match="holds a dataset"):
        dispatch(*places, num_workers=0, num_parts=2, direction="out")
    assert left_beside(tmp_path) == []
    shutil.rmtree(tmp_path / "got")
    end()
    shutil.rmtree(tmp_path / "got")
    check_equal(graph, tmp_path, 2)
    assert left_beside(tmp_path) == []


def test_a_full_disk_leaves_nothing_that_looks_complete(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 60, 400)
    write_owners(tmp_path / "owners", graph, 2, rng)
    use_graph(monkeypatch, graph)
    cut_small(monkeypatch, 30)
    real, left = os.pwrite, [0]

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    for room in (100, 1500, 1500):
        left[0] = room
        with monkeypatch.context() as patch:
            patch.setattr(regions.os, "pwrite", full)
            with pytest.raises(OSError, match="No space left on device") as caught:
                check_equal(graph, tmp_path, 2)
        assert re.search(r"got/part-0000\d/.*\.npy|scratch/", str(caught.value.filename))
        assert "partial" not in str(caught.value.filename) or "scratch" in str(caught.value.filename)
        assert not (tmp_path / "got").exists()
    check_equal(graph, tmp_path, 2)  # resumes once there is room


def test_a_limit_of_the_system_is_named(tmp_path, monkeypatch, rng):
    """A child process may not extend a file, as on a full disk."""
    graph: Graph = rmat_graph(8, edges_per_node=20, num_features=6)
    write_chunked(graph, tmp_path / "in", num_chunks=2, edges_format="parquet")
    write_owners(tmp_path / "owners", graph, 2, rng)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = [sys.executable, "-m", "hopstream.cli", "dispatch", "--workers", "0"]
    for flag, name in (("--in-dir", "in"), ("--partitions-dir", "owners"), ("--out-dir", "got")):
        words += [flag, str(tmp_path / name)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # compiled code would be written to a file
    done = subprocess.run(
        words, preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 1
    assert re.search(r"error: .*File too large: .*(got/part-0000\d/.*npy|spill)", done.stderr), done.stderr
    assert not (tmp_path / "got").exists()


def test_a_job_resumes_with_its_memory_and_workers_if_available(folder: Path, monkeypatch):
    """The job begins with 9.6 GB of 16 free, and 2 workers."""
    monkeypatch.setattr(dispatch_folder, "LIMITS", SMALL_DISPATCH)

    def run(free: int, processors: int, progress: Progress) -> DatasetEstimate:
        machine = Machine(num_processors=processors, free_bytes=free * 10**9)
        monkeypatch.setattr(settings, "this_machine", lambda: machine)
        told: list[DatasetEstimate] = []

        def estimate(costs: DatasetEstimate, _: object) -> None:
            told.append(costs)
            if progress is no_progress:  # the estimate is all that is needed
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dispatch(
                folder / "in", folder / "owners", folder / "got", direction="both", progress=progress,
                on_estimate=estimate,
            )  # fmt: skip
        return told[0]

    def end(_: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    before = run(16, 2, end).work
    assert before and (before.memory_bytes, before.num_workers) == (9_600_000_000, 2)
    shutil.copytree(folder / ".got.work", folder / "kept")
    for free, processors, goes_on in ((40, 2, True), (9, 2, False), (40, 64, True), (40, 1, False), (10, 2, True)):
        shutil.rmtree(folder / ".got.work")
        shutil.copytree(folder / "kept", folder / ".got.work")
        told = run(free, processors, no_progress)
        after = told.work
        assert after and after.memory_bytes == (before.memory_bytes if goes_on else int(0.6 * (free * 10**9)))
        assert after.num_workers == min(2, processors) and bool(told.num_done) == goes_on


def test_the_choice_of_another_job_is_not_taken_over(folder: Path, monkeypatch):
    """The second job has other settings and the same place."""

    def run(free: int, **options: Any) -> DatasetEstimate:
        machine = Machine(num_processors=1, free_bytes=free * 10**9)
        monkeypatch.setattr(settings, "this_machine", lambda: machine)
        told: list[DatasetEstimate] = []
        dispatch(
            folder / "in", folder / "owners", folder / "got", on_estimate=lambda costs, _: told.append(costs), **options
        )
        return told[0]

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(16, direction="both", progress=end)
    remove = atomic_folder._remove
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(atomic_folder, "_remove", lambda path: remove(path) if path.name == "old" else end())
        run(40, direction="out")  # ended while it removes the remains of the first run
    work = run(40, direction="out").work
    assert work and work.memory_bytes == 24 * 10**9


def test_a_halo_of_an_interrupted_run_is_removed(tmp_path, monkeypatch, rng):
    graph = rmat_graph(7, edges_per_node=8, num_features=2)
    write_owners(tmp_path / "owners", graph, 2, rng)
    use_graph(monkeypatch, graph)

    check = DatasetTarget.check

    def stop_when_complete(target: DatasetTarget, out: Path) -> None:
        check(target, out)
        if any(target.work.path.glob("*/dataset/part-*/halo")):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DatasetTarget, "check", stop_when_complete)
        with pytest.raises(KeyboardInterrupt):
            dispatch(
                tmp_path / "in", tmp_path / "owners", tmp_path / "got", num_workers=0, num_parts=2,
                halo=HaloSettings(hops=1),
            )  # fmt: skip
    check_equal(graph, tmp_path, 2)
    assert not list((tmp_path / "got").glob("part-*/halo"))
