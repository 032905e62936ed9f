"""Does work that was ended at any moment go on, on every engine, and is work that fails never taken for a graph?"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from hopstream import read_graph
from hopstream.engine import folder_job
from hopstream.errors import SettingsError, StateError
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import chunk_tables
from tests.ingest.chunking.test_equality import check_equal
from tests.ingest.chunking.worlds import SMALL, make_world, tree_of
from tests.killing import kill_again_and_again, left_beside, run_until

PROGRAM = """
import sys
from hopstream.errors import SettingsError
from hopstream.ingest.chunking import plan
from hopstream.ingest.chunking.run import chunk_tables
plan.LIMITS = plan.ChunkLimits(part_bytes=400, block_bytes=2000, block_rows=9, bucket_bytes=900, lookup_bytes=900)
def tell(stage, done, total):
    print(done, total, flush=True)
try:
    chunk_tables(*sys.argv[1:3], num_workers=int(sys.argv[3]), on_dangling="drop", on_duplicate="drop",
                 keep_raw_ids=False, progress=tell)
except SettingsError as error:  # it was killed when all was in its place
    if "holds something" not in str(error):
        raise
"""
"""Work of many small tasks, which says how far it is."""
OPTIONS = {"on_dangling": "drop", "on_duplicate": "drop", "keep_raw_ids": False}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Tables, beside the chunked graph that they must become."""
    path = make_world(tmp_path, 3, ("mixed", "int"), ("csv", "parquet"), (30, 10, 40), (True, True)).write()
    chunk_tables(path, tmp_path / "wanted", name="got", num_workers=0, **OPTIONS)
    return path


def words(source: Path, num_workers: int = 0) -> list[object]:
    return [source, source.parent / "got", num_workers]


def check_done(folder: Path) -> None:
    assert tree_of(folder / "got") == tree_of(folder / "wanted")
    assert left_beside(folder) == []


@pytest.mark.slow
def test_killed_work_goes_on(source: Path):
    for limit in (20, 60):
        assert run_until(PROGRAM, words(source), limit) == -signal.SIGKILL
        assert not (source.parent / "got").exists()
        assert left_beside(source.parent) == [".got.work"]
    assert run_until(PROGRAM, words(source)) == 0
    check_done(source.parent)


@pytest.mark.soak
def test_twenty_kills(source: Path):
    """Workers are killed with the job, at moments of any kind."""
    kill_again_and_again(
        PROGRAM, words(source, num_workers=2), num_kills=20, max_lines=150, check=lambda: check_done(source.parent),
        again=lambda: shutil.rmtree(source.parent / "got"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "num_workers"),
    [("local", 2), pytest.param("ray", 2, marks=pytest.mark.soak), pytest.param("beam", None, marks=pytest.mark.soak)],
)
def test_every_engine_writes_the_same(source: Path, engine, num_workers, request):
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    check_equal(source, source.parent / engine, engine=engine, num_workers=num_workers, **OPTIONS)


def test_work_stopped_anywhere_goes_on_and_other_settings_start_anew(source: Path, monkeypatch):
    monkeypatch.setattr(plan, "LIMITS", SMALL)
    place = source.parent / "got"
    limits: list[float] = []

    def stop(stage: str, done: int, total: int) -> None:
        if done > total * limits[-1]:
            raise KeyboardInterrupt

    for share, num_chunks in ((0.3, 4), (0.8, 4), (0.5, 2)):
        limits.append(share)
        with pytest.raises(KeyboardInterrupt):
            chunk_tables(source, place, num_workers=0, num_chunks=num_chunks, progress=stop, **OPTIONS)
    chunk_tables(source, place, num_workers=0, **OPTIONS)
    check_done(source.parent)


def test_progress_ends_at_its_total(source: Path):
    told: list[tuple[int, int]] = []
    chunk_tables(source, source.parent / "got", num_workers=0, progress=lambda _, *done: told.append(done), **OPTIONS)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1 and told[-1][0] == told[-1][1]


def test_two_processes_do_not_write_to_one_place(source: Path):
    place, seen = source.parent / "got", []

    def second(stage: str, done: int, total: int) -> None:
        if not seen and done:
            seen.append(stage)
            with pytest.raises(StateError, match="another process"):
                chunk_tables(source, place, num_workers=0, **OPTIONS)

    chunk_tables(source, place, num_workers=0, progress=second, **OPTIONS)
    assert seen and read_graph(place).nodes["room"].num_nodes == 7


def test_a_disk_or_memory_too_small_is_refused(source: Path, monkeypatch):
    for memory in ("100MB", "lots", "-1"):
        with pytest.raises(SettingsError, match="memory is"):
            chunk_tables(source, source.parent / "got", memory=memory, num_workers=0)
    monkeypatch.setattr(folder_job.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(SettingsError, match=r"needs about .*B of disk while it is written"):
        chunk_tables(source, source.parent / "got", num_workers=0)
    assert not (source.parent / "got").exists() and list(source.parent.glob(".*")) == []
