"""Checks that interrupted compacting resumes, and is done once its result is in its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import read_manifest
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.preparation.append.run import append
from hopstream.preparation.compact import compact
from hopstream.preparation.dataset_job import DatasetJob
from tests.killing import left_beside
from tests.preparation.append.graphs import grown_graph, written
from tests.preparation.dispatch.sources import check_same, write_owners


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset after an append, and its compacted copy."""
    folder = tmp_path_factory.mktemp("datasets")
    written(folder / "old", 2, 1)
    shutil.copytree(folder / "old", folder / "wanted")
    compact(folder / "wanted", num_workers=0)
    return folder


@pytest.fixture
def folder(datasets: Path, tmp_path: Path) -> Path:
    """Copies of both datasets, and one more of the first to work on."""
    for name, source in (("old", "old"), ("wanted", "wanted"), ("got", "old")):
        shutil.copytree(datasets / source, tmp_path / name)
    return tmp_path


def check_done(folder: Path) -> None:
    got, wanted = (read_manifest(folder / name) for name in ("got", "wanted"))
    check_same(folder / "got", folder / "wanted", got, wanted)
    assert left_beside(folder) == []


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_compaction_resumes_with_the_owners_it_assigned(folder: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DatasetJob, "make_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compact(folder / "got", num_workers=0)
    said: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("hopstream.preparation.compact.kept_owners", interrupt)
        compact(folder / "got", num_workers=0, on_estimate=lambda costs, _: said.append(costs.num_done))
    check_done(folder)
    assert said[0] > 10


@pytest.mark.parametrize("has_owners", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_interrupted_after_the_result_was_in_place(folder: Path, monkeypatch, rng, has_owners: bool):
    """The same call finds the finished result; any other call clears the remains."""
    owners = write_owners(folder / "owners", grown_graph().graph, 2, rng) if has_owners else None
    if has_owners:
        shutil.rmtree(folder / "wanted")
        shutil.copytree(folder / "old", folder / "wanted")
        compact(folder / "wanted", partitions_dir=owners, num_workers=0)
    with monkeypatch.context() as patch:
        patch.setattr("hopstream.engine.atomic_folder._exchange", lambda *_: False)
        patch.setattr(WorkFolder, "clear", lambda work: interrupt() if (work.path / "old").exists() else None)
        with pytest.raises(KeyboardInterrupt):
            compact(folder / "got", partitions_dir=owners, num_workers=0)
    assert left_beside(folder) == [".got.work"] and (folder / ".got.work/old").is_dir()
    shutil.copytree(folder / ".got.work", folder / ".other.work")
    shutil.copytree(folder / "got", folder / "other")
    compact(folder / "got", partitions_dir=owners, num_workers=0)
    append(folder / "other", nodes={"movie": {"time": np.zeros(2, np.uint64)}})
    check_done(folder)
    assert len(read_manifest(folder / "other").book.deltas) == 1
