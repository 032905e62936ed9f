"""Checks that an export that was ended at any moment resumes, and is never taken for complete."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from hopstream.errors import SettingsError
from hopstream.export import export_folder
from hopstream.export import run as run_module
from hopstream.export.run import export_subgraphs
from tests.export.worlds import digests, some_seeds, write_world
from tests.killing import kill_again_and_again, left_beside, run_until

PROGRAM = """
import pathlib
import sys
from hopstream.export import export_folder
from hopstream.export.run import export_subgraphs
export_folder.BLOCK_BYTES = 1 << 13
def tell(stage, done, total):
    print(done, total, flush=True)
world, num_workers = sys.argv[1], int(sys.argv[2])
got = pathlib.Path(world, "got")
if (got / "x.pbtxt").exists() and {p.name for p in got.glob(".x.pbtxt.work/*")} <= {"lock"}:
    sys.exit()  # killed when all was done
export_subgraphs(world + "/parts", world + "/spec.pbtxt", got / "x@12", seeds=world + "/seeds.csv", rng_seed=5,
       seed_ids=True, num_workers=num_workers, progress=tell)
"""
"""Run a job of many small tasks, which reports its progress."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("made"))
    (folder / "seeds.csv").write_text("\n".join(["#id", *some_seeds(400)]))
    exported(folder, "wanted")
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "world"))


def exported(world: Path, name: str = "got", **options) -> None:
    options = {"rng_seed": 5, **options}
    export_subgraphs(
        world / "parts", world / "spec.pbtxt", world / name / "x@12", seeds=world / "seeds.csv", seed_ids=True,
        num_workers=0, **options,
    )  # fmt: skip


def check_done(world: Path) -> None:
    assert digests(world / "got") == digests(world / "wanted")
    assert len(digests(world / "got")) == 13
    assert left_beside(world / "got") == []


@pytest.mark.slow
def test_a_killed_export_resumes(world: Path):
    assert run_until(PROGRAM, (world, 0), 4) == -signal.SIGKILL
    there = digests(world / "got")
    assert 3 <= len(there) < 12 and there.items() <= digests(world / "wanted").items()
    assert left_beside(world / "got") == [".x.pbtxt.work"]
    assert run_until(PROGRAM, (world, 0)) == 0
    check_done(world)


@pytest.mark.soak
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_export_killed_twenty_times_is_the_same(world: Path, num_workers: int):
    """Workers are killed with the job, at random moments."""
    kill_again_and_again(
        PROGRAM, (world, num_workers), num_kills=20, max_lines=13, check=lambda: check_done(world),
        again=lambda: shutil.rmtree(world / "got"),
    )  # fmt: skip


def stopped(world: Path, after: int, **options) -> None:
    """Begin an export and end it when the given number of seeds is done."""

    def stop(stage: str, done: int, total: int) -> None:
        if done > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(world, progress=stop, **options)


def test_other_settings_restart_the_export(world: Path):
    stopped(world, 100, rng_seed=6)
    assert len(digests(world / "got")) == 4
    exported(world)
    check_done(world)


def test_other_seeds_restart_the_export(world: Path):
    seeds = (world / "seeds.csv").read_text()
    (world / "seeds.csv").write_text(seeds.replace("author 1\n", "author 2\n"))
    stopped(world, 100)
    (world / "seeds.csv").write_text(seeds)
    exported(world)
    check_done(world)


def test_a_shard_that_was_removed_or_cut_is_written_again(world: Path):
    stopped(world, 100)
    (world / "got" / "x-00001-of-00012").unlink()
    shard = world / "got" / "x-00002-of-00012"
    shard.write_bytes(shard.read_bytes()[:-20])
    told: list[int] = []
    exported(world, progress=lambda stage, done, total: told.append(done))
    assert told[0] == 66  # seeds of the first and the fourth of four shards
    check_done(world)


def test_leftovers_of_killed_workers_are_swept(world: Path):
    stopped(world, 100)
    [folder] = (world / "got" / ".x.pbtxt.work" / "export").glob("*/begun")
    (folder.parent / "00003.0123.partial").write_bytes(b"half")
    seen: list[bool] = []
    exported(world, progress=lambda *_: seen.append(any(folder.parent.glob("*.0123.partial"))))
    assert seen and not any(seen)
    check_done(world)


def test_shards_are_synced_before_they_are_renamed(world: Path, monkeypatch):
    there: list[int] = []
    monkeypatch.setattr(export_folder, "sync", lambda path: there.append(len(list((world / "got").glob("x-*")))))
    exported(world)
    assert there == list(range(12))


def test_progress_counts_seeds(world: Path):
    told: list[tuple[str, int, int]] = []
    stopped(world, 100)
    exported(world, progress=lambda *one: told.append(one))
    assert {(stage, total) for stage, _, total in told} == {("export", 400)}
    assert [done for _, done, _ in told] == [(shard * 400) // 12 for shard in range(4, 13)]


@pytest.mark.parametrize("is_removed_in_part", [False, True])
def test_interrupted_after_all_files_were_in_place(world: Path, monkeypatch, is_removed_in_part: bool):
    from hopstream.engine.atomic_folder import WorkFolder
    from hopstream.engine.job import JOB_FILE

    def end(self):
        if is_removed_in_part:
            (self.top / "export" / JOB_FILE).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(WorkFolder, "clear", end)
        patch.setattr(WorkFolder, "resume", lambda work, digest, *rest: run_module.Job(work.path, digest, *rest))
        exported(world)
    assert left_beside(world / "got") == [".x.pbtxt.work"]
    exported(world)
    check_done(world)
    with pytest.raises(SettingsError, match="exists already"):
        exported(world)


def test_an_interrupted_replacement_resumes(world: Path):
    exported(world, rng_seed=6)
    stopped(world, 100, overwrite=True)
    assert len(digests(world / "got")) == 4 and not (world / "got" / "x.pbtxt").exists()
    exported(world, overwrite=True)
    check_done(world)
