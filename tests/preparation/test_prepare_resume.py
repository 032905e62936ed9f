"""Checks that preparation that was ended at any moment, in any step, resumes."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import read_manifest
from hopstream.engine.atomic_folder import WorkFolder
from hopstream.engine.settings import WorkSettings
from hopstream.errors import NoRoomError
from hopstream.ingest.chunking.run import ChunkReport
from hopstream.ingest.tables import TableSettings
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.plan import PreparePlan
from hopstream.preparation.prepare import News, Resumed, prepare
from tests.killing import kill_again_and_again, left_beside
from tests.preparation.dispatch.sources import check_same
from tests.preparation.test_prepare import WORK, write_tables

PROGRAM = """
import sys
from hopstream.ingest.chunking import plan as chunking
from hopstream.ingest.tables import TableSettings
from hopstream.engine.settings import WorkSettings
from hopstream.preparation.dispatch import dispatch_folder
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.prepare import prepare
dispatch_folder.LIMITS = dispatch_folder.DispatchLimits(
    piece_edges=(200, 200), bucket_edges=(100, 100), column_bytes=(400, 400)
)
chunking.LIMITS = chunking.ChunkLimits(
    part_bytes=4000, block_bytes=2000, block_rows=99, bucket_bytes=900, lookup_bytes=900
)
def tell(stage, done, total):
    print(stage, done, total, flush=True)
prepare(*sys.argv[1:3], work=WorkSettings(memory="2GiB", num_workers=int(sys.argv[3])), num_parts=2, method="ldg",
        tables=TableSettings(keep_raw_ids=False), halo=HaloSettings(hops=1), overwrite=True, progress=tell)
"""
"""Run a job of many small tasks, which reports its progress."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and the wanted dataset."""
    folder = tmp_path_factory.mktemp("origin")
    source = write_tables(folder / "tables", np.random.default_rng(3))
    reading, halo = TableSettings(keep_raw_ids=False), HaloSettings(hops=1)
    prepare(source, folder / "wanted", work=WORK, tables=reading, halo=halo, num_parts=2, method="ldg")
    return folder


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> Path:
    """A copy of the tables and of the wanted dataset, to work on."""
    return shutil.copytree(origin, tmp_path / "work")


def check_done(folder: Path) -> None:
    got, wanted = (read_manifest(folder / name) for name in ("got", "wanted"))
    check_same(folder / "got", folder / "wanted", got, wanted)
    assert left_beside(folder) == []


@pytest.mark.parametrize(
    "num_kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.soak)]
)
def test_a_preparation_killed_repeatedly_is_the_same(folder: Path, num_kills: int):
    kill_again_and_again(
        PROGRAM, [folder / "tables", folder / "got", 2 if num_kills > 1 else 0], num_kills=num_kills, max_lines=80,
        check=lambda: check_done(folder), again=lambda: shutil.rmtree(folder / "got"),
    )  # fmt: skip


def test_resuming_reports_earlier_phases(folder: Path):
    """Ended while it chunks, while it dispatches, and where its dataset is in its place."""

    def call(stop: str = "") -> None:
        def tell(stage: str, done: int, total: int) -> None:
            if stage == stop and 2 * done > total:
                raise KeyboardInterrupt

        prepare(
            folder / "tables", folder / "got", work=WORK, num_parts=2, method="ldg", halo=HaloSettings(hops=1),
            tables=TableSettings(keep_raw_ids=False), progress=tell, on_news=said.append,
        )  # fmt: skip

    said: list[News] = []

    def resumed() -> list[str]:
        assert all(news.num_tasks > 0 for news in said if isinstance(news, Resumed))
        return [news.phase for news in said if isinstance(news, Resumed)]

    for stop in ("chunk", "dispatch"):
        with pytest.raises(KeyboardInterrupt):
            call(stop)
    assert resumed() == ["chunk"]
    call()
    assert resumed() == ["chunk", "dispatch"]
    last = [news for news in said if isinstance(news, PreparePlan)][-1]
    assert {phase.name: phase.is_done for phase in last.phases} == {
        "chunk": True, "assign": True, "dispatch": False, "halo": False,
    }  # fmt: skip
    check_done(folder)


def _full_for_dispatch(work: WorkFolder) -> int:
    return -(1 << 60) if work.path.name == "dispatch" else 0


def test_a_full_disk_in_the_last_phase_keeps_earlier_phases(folder: Path, monkeypatch):
    monkeypatch.setattr("hopstream.engine.atomic_folder.WorkFolder.disk_bytes", _full_for_dispatch)
    call = partial(prepare, folder / "tables", folder / "got", work=WORK, num_parts=2, method="ldg")
    with pytest.raises(NoRoomError, match="make room"):
        call()
    monkeypatch.undo()
    said: list[News] = []
    call(on_news=said.append)
    last = [news for news in said if isinstance(news, PreparePlan)][-1]
    assert [phase.name for phase in last.phases if phase.is_done] == ["chunk", "assign"]
    assert left_beside(folder) == []


def test_tables_are_not_chunked_again_for_more_memory(folder: Path, monkeypatch):
    """Nodes are counted when they are chunked."""
    monkeypatch.setattr("hopstream.assign.libraries.NODE_BYTES", 1 << 24)
    said: list[News] = []

    def call(memory: str) -> None:
        work = WorkSettings(memory=memory, num_workers=0)
        prepare(
            folder / "tables", folder / "got", work=work, num_parts=2, method="ldg", on_news=said.append,
            tables=TableSettings(keep_raw_ids=False), halo=HaloSettings(hops=1),
        )  # fmt: skip

    with pytest.raises(NoRoomError, match=r"memory is 600MB; method 'ldg' on \d+ nodes and \d+ edges needs at least"):
        call("600MB")
    assert any(isinstance(news, ChunkReport) for news in said)
    said.clear()
    call("1TB")
    assert not any(isinstance(news, ChunkReport) for news in said)
    check_done(folder)
