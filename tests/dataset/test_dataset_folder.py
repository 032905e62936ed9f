"""Checks that a folder is replaced as a whole, and that the old one stays until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.dataset import dataset_folder
from hopstream.dataset.dataset_folder import check_target, replaced_folder
from hopstream.dataset.layout import open_dataset
from hopstream.engine.atomic_folder import shown_path
from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of


@pytest.fixture
def dataset(typed_graph: Graph, tmp_path: Path) -> Path:
    write_parts(typed_graph, tmp_path / "d")
    return tmp_path / "d"


def test_the_old_folder_stays_until_the_new_one_is_complete(dataset: Path):
    before = tree_of(dataset)
    with replaced_folder(dataset, overwrite=True) as new:
        assert new.parent == dataset.with_name(".d.work") and tree_of(dataset) == before
        (new / "manifest.json").write_text("new")
    assert tree_of(dataset.parent) == {"d/manifest.json": b"new"}


def test_a_failed_swap_puts_the_old_folder_back(dataset: Path, monkeypatch: pytest.MonkeyPatch):
    before = tree_of(dataset.parent)
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(5, "input/output error", str(path), None, str(target))
        return real(path, target)

    monkeypatch.setattr("hopstream.engine.atomic_folder._exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", rename)
    with (
        pytest.raises(OSError, match=rf"input/output error: '{dataset}'$"),
        replaced_folder(dataset, overwrite=True) as new,
    ):
        (new / "manifest.json").write_text("new")
    assert tree_of(dataset.parent) == before


def test_a_swap_that_was_killed_is_undone(dataset: Path, typed_graph: Graph):
    before = tree_of(dataset)
    dataset.with_name(".d.work").mkdir()
    dataset.rename(dataset.with_name(".d.work") / "old")
    with pytest.raises(SettingsError, match="holds a dataset; give overwrite=True"):
        write_parts(typed_graph, dataset, num_parts=2)
    assert tree_of(dataset) == before


def test_leftovers_of_dead_processes_are_removed(dataset: Path):
    for name in ("new", "old", "0123456789abcdef", "append"):
        (dataset.with_name(".d.work") / name / "part-00000").mkdir(parents=True)
    (dataset / ".manifest.json.17.partial").touch()
    others = [".e.work", ".d.work.npy", "d.old"]
    for name in others:
        dataset.with_name(name).mkdir()
    with replaced_folder(dataset, overwrite=True):
        pass
    assert sorted(p.name for p in dataset.parent.iterdir()) == sorted(["d", *others])


def test_a_dataset_created_meanwhile_is_not_replaced(tmp_path: Path, typed_graph: Graph):
    with (
        pytest.raises(SettingsError, match="holds a dataset; give overwrite=True"),
        replaced_folder(tmp_path / "d", overwrite=False) as new,
    ):
        (new / "manifest.json").write_text("mine")
        write_parts(typed_graph, tmp_path / "aside")
        (tmp_path / "aside").rename(tmp_path / "d")
    open_dataset(tmp_path / "d", verify=True)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_failed_write_removes_the_folders_it_created(tmp_path: Path):
    with pytest.raises(ValueError, match="stop"), replaced_folder(tmp_path / "a" / "b" / "c", overwrite=False):
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_folder_stays_a_link(dataset: Path):
    link = dataset.with_name("link")
    link.symlink_to(dataset)
    with replaced_folder(link, overwrite=True) as new:
        (new / "manifest.json").write_text("new")
    assert link.is_symlink() and tree_of(dataset) == {"manifest.json": b"new"}


def test_the_mode_of_the_folder_is_kept(dataset: Path):
    dataset.chmod(0o750)
    with replaced_folder(dataset, overwrite=True) as new:
        (new / "manifest.json").write_text("new")
    assert dataset.stat().st_mode & 0o777 == 0o750


def test_folders_that_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"is the current folder, .* give a folder in it"):
        check_target(Path(), overwrite=True)
    monkeypatch.setattr(dataset_folder.os.path, "ismount", lambda _: True)
    with pytest.raises(SettingsError, match="is the root of a file system"):
        check_target(tmp_path, overwrite=True)


@pytest.mark.parametrize("number", [28, 27, 13, 2])
def test_errors_name_the_path_given_by_the_caller(tmp_path: Path, number: int):
    kind = type(OSError(number, ""))
    for inside, shown in ((None, "d"), (".x.npy.7.partial", "d/x.npy")):
        with pytest.raises(kind) as caught, replaced_folder(tmp_path / "d", overwrite=False) as new:
            raise OSError(number, "no", None if inside is None else str(new / inside))
        assert caught.value.filename == str(tmp_path / shown)


def test_paths_in_work_folders_are_shown_at_their_place():
    inside = "part-00000/.x.npy.12.partial"
    for hidden in ("new", "append/dataset", "0123456789abcdef/dataset", "01abcdef/dispatch/23abcdef/dataset"):
        assert shown_path(f"/a/.b.c.work/{hidden}/{inside}") == "/a/b.c/part-00000/x.npy"
    assert shown_path("/a/.b.work/new/part-00000/node/new/key.npy") == "/a/b/part-00000/node/new/key.npy"
    assert shown_path("/a/.hidden/x.partial") == "/a/.hidden/x.partial"
