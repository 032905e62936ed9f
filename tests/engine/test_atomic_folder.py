"""Checks that a place's work folder has one owner, and that remains of ended work are removed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hopstream.engine.atomic_folder import WorkFolder, open_work
from hopstream.engine.local import local_engine
from hopstream.errors import SettingsError, StateError
from tests.engine.contract import echoes
from tests.killing import left_beside


def test_one_at_a_time(tmp_path: Path):
    with open_work(tmp_path / "x") as work:
        assert work.path == tmp_path / ".x.work"
        with pytest.raises(StateError, match="x is being written to by another process"), open_work(tmp_path / "x"):
            pass
        with open_work(tmp_path / "y"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_concurrent_threads_hold_the_folder_one_at_a_time(tmp_path: Path):
    """The holder of the folder removes it when it leaves; no thread removes the folder of another."""
    inside: list[int] = []
    wrong: list[str] = []
    num_held = [0] * 4

    def come_and_go(me: int) -> None:
        while num_held[me] < 20 and not wrong:
            try:
                with open_work(tmp_path / "x") as work:
                    inside.append(me)
                    (work.path / f"{me}").mkdir()
                    if inside != [me] or [p.name for p in work.path.iterdir() if p.name != "lock"] != [str(me)]:
                        wrong.append(f"{inside}")
                    work.clear()
                    num_held[me] += 1
                    inside.remove(me)
            except StateError:
                pass
            except BaseException as error:
                wrong.append(repr(error))
                raise

    threads = [threading.Thread(target=come_and_go, args=(me,)) for me in range(len(num_held))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert list(tmp_path.iterdir()) == []


def test_unfinished_work_stays_until_cleared(tmp_path: Path):
    with open_work(tmp_path / "a" / "x") as work:
        work.resume("d" * 64, local_engine()).run("stage", echoes(3))
    with open_work(tmp_path / "a" / "x") as work:
        assert work.num_done("d" * 64) == 3
        assert work.num_done("d" * 64, product="made") == work.num_done("e" * 64) == 0
        work.resume("e" * 64, local_engine())
        assert work.num_done("d" * 64) == 0
        work.clear()
    assert left_beside(tmp_path / "a") == []


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def replace_place(root: Path) -> None:
    with open_work(root) as work:
        (work.path / "job" / "made").mkdir(parents=True)
        (work.path / "job" / "made" / "new").touch()
        work.put_in_place(work.path / "job" / "made", "a call")


def test_a_place_is_replaced(tmp_path: Path):
    (tmp_path / "x").mkdir(mode=0o750)
    (tmp_path / "x" / "old").touch()
    replace_place(tmp_path / "x")
    assert names(tmp_path / "x") == ["new"] and (tmp_path / "x").stat().st_mode & 0o777 == 0o750
    assert left_beside(tmp_path) == []


def test_interrupted_during_the_replacement(tmp_path: Path, monkeypatch):
    """Between both renames the old folder is put back; after them the new one stays."""
    root = tmp_path / "x"
    root.mkdir()
    (root / "old").touch()
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "clear", interrupted)
        patch.setattr("hopstream.engine.atomic_folder._exchange", lambda *_: False)
        with pytest.raises(KeyboardInterrupt):
            replace_place(root)
    assert (tmp_path / ".x.work" / "old").is_dir() and names(root) == ["new"]
    root.rename(tmp_path / ".x.work" / "job" / "made")  # the state between both renames
    with open_work(root) as work:
        assert work.finished_call is None and names(root) == ["old"]
        with monkeypatch.context() as patch:
            patch.setattr(WorkFolder, "clear", interrupted)
            with pytest.raises(KeyboardInterrupt):
                work.put_in_place(work.path / "job" / "made", "another call")
    with open_work(root) as work:
        assert work.finished_call == "another call" and names(root) == ["new"]
        assert names(work.path) == ["lock"]
    with open_work(root) as work:
        assert work.finished_call is None
    assert left_beside(tmp_path) == []


def test_interrupted_after_an_exchange(tmp_path: Path, monkeypatch):
    """The new folder is in place, and the old one is removed."""
    root = tmp_path / "x"
    root.mkdir()
    (root / "old").touch()
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "clear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replace_place(root)
    assert names(tmp_path / ".x.work" / "job" / "made") == ["old"] and names(root) == ["new"]
    with open_work(root) as work:
        assert work.finished_call == "a call" and names(work.path) == ["lock"]
    assert names(root) == ["new"] and left_beside(tmp_path) == []


def test_interrupted_before_the_replacement_and_cleared_by_another(tmp_path: Path, monkeypatch):
    """The record of a finished call stays, but its folder is gone: the call counts as not done."""
    root = tmp_path / "x"
    root.mkdir()
    (root / "old").touch()
    with open_work(root) as work:
        (work.path / "made").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr("hopstream.engine.atomic_folder.sync_tree", interrupted)
            with pytest.raises(KeyboardInterrupt):
                work.put_in_place(work.path / "made", "a call")
        (work.path / "made").rmdir()
        assert "placed.json" in names(work.path)
    with open_work(root) as work:
        assert work.finished_call is None and names(root) == ["old"]


def test_a_failed_placement_keeps_the_old_folder(tmp_path: Path):
    (tmp_path / "x").mkdir()
    with open_work(tmp_path / "x") as work:
        with pytest.raises(OSError, match="No such file"):
            work.put_in_place(work.path / "nothing")
        work.clear()
    assert names(tmp_path) == ["x"]


def test_the_root_of_all_file_systems():
    with pytest.raises(SettingsError, match="root of a file system"), open_work("/"):
        pass
