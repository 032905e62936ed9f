"""Does a job that was ended at any moment go on, and give what it would have given?"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset import regions
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.errors import StateError
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.reshard.reshard_job import reshard
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import community_graph
from tests.killing import kill_again_and_again, left_beside, run_until
from tests.preparation.dispatch.sources import check_same, write_owners
from tests.preparation.reshard.sources import cut_small

PROGRAM = """
import sys
from hopstream.preparation.reshard import reshard_spec
from hopstream.preparation.reshard.reshard_job import reshard
reshard_spec.LIMITS = reshard_spec.ReshardLimits(block_rows=100, piece_bytes=2000, run_bytes=(9000, 9000))
def tell(stage, done, total):
    print(done, total, flush=True)
reshard(sys.argv[1], sys.argv[2], num_workers=int(sys.argv[3]), num_parts=3, method=sys.argv[4], progress=tell,
        overwrite=True)
"""
"""A job of many small tasks, which says how far it is."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset, and the one that it must become."""
    graph = rmat_graph(9, edges_per_node=20, num_features=6, num_classes=3)
    write_parts(graph, tmp_path / "old", num_parts=4, method="random", direction="both")
    write_parts(graph, tmp_path / "wanted", num_parts=3, method="hash", direction="both")
    return tmp_path


def words(folder: Path, num_workers: int = 0) -> list[object]:
    return [folder / "old", folder / "got", num_workers, "hash"]


def check_done(folder: Path) -> None:
    got, wanted = (read_manifest(folder / name) for name in ("got", "wanted"))
    check_same(folder / "got", folder / "wanted", got, wanted, ignored=("made_by",))
    assert left_beside(folder) == []


@pytest.mark.slow
def test_killed_and_gone_on_with(folder: Path):
    for limit in (4, 25):
        assert run_until(PROGRAM, words(folder), limit) == -signal.SIGKILL
        assert not (folder / "got").exists()
    assert run_until(PROGRAM, words(folder)) == 0
    check_done(folder)


@pytest.mark.soak
def test_twenty_kills(folder: Path):
    """Workers are killed with the job, at moments of any kind."""
    kill_again_and_again(
        PROGRAM, words(folder, num_workers=2), num_kills=20, max_lines=50, check=lambda: check_done(folder),
        again=lambda: shutil.rmtree(folder / "got"),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray", "beam"])
def test_engines_write_the_same(folder: Path, engine, request):
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    reshard(folder / "old", folder / "got", num_parts=3, method="hash", num_workers=2, engine=engine)
    check_done(folder)


def test_what_was_done_is_not_done_again(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 60, 400)
    write_parts(graph, tmp_path / "old", num_parts=2, method="random")
    cut_small(monkeypatch, 20)
    told: list[int] = []

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "reshard":
            told.append(done)
            if 2 * done > total:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard(tmp_path / "old", tmp_path / "got", num_workers=0, num_parts=3, progress=stop)
    assert told[-1] > 0
    written: list[str] = []
    write = regions.RegionWriter.write_blocks

    def watched(self, name, *args):
        written.append(str(name))
        return write(self, name, *args)

    monkeypatch.setattr(regions.RegionWriter, "write_blocks", watched)
    monkeypatch.setattr("hopstream.preparation.reshard.reshard_job.assign_nodes", None)  # owners are kept
    reshard(tmp_path / "old", tmp_path / "got", num_workers=0, num_parts=3)
    assert written and not any(name.endswith("key.npy") and "/node/" in name for name in written)
    open_dataset(tmp_path / "got", verify=True)
    assert list(tmp_path.glob(".*")) == []


def test_other_settings_or_another_dataset_start_anew(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 60, 400)
    write_parts(graph, tmp_path / "old", num_parts=2, method="random")

    def stop(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    places = (tmp_path / "old", tmp_path / "got")

    def interrupt(num_parts: int) -> None:
        with pytest.raises(KeyboardInterrupt):
            reshard(*places, num_workers=0, num_parts=num_parts, method="hash", progress=stop)

    interrupt(3)
    interrupt(4)
    write_parts(graph, tmp_path / "old", num_parts=5, method="random", overwrite=True, direction="out")
    got = reshard(*places, num_workers=0, num_parts=4, method="hash")
    assert got.directions == ("out",)
    open_dataset(tmp_path / "got", verify=True)
    assert list(tmp_path.glob(".*")) == []


def test_two_jobs_do_not_write_to_one_place(tmp_path, rng):
    graph = community_graph(rng, 60, 400)
    write_parts(graph, tmp_path / "old", num_parts=2, method="random")
    write_owners(tmp_path / "owners", graph, 2, np.random.default_rng(1))
    seen = []

    def second(stage: str, done: int, total: int) -> None:
        if not seen:
            seen.append(stage)
            for num_parts in (3, 4):
                with pytest.raises(StateError, match="another process"):
                    reshard(tmp_path / "old", tmp_path / "got", num_workers=0, num_parts=num_parts, method="hash")

    reshard(tmp_path / "old", tmp_path / "got", num_workers=0, num_parts=3, method="hash", progress=second)
    assert seen
    open_dataset(tmp_path / "got", verify=True)
