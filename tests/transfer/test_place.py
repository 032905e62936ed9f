"""Checks that parts arrive whole at their roots, once, whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hopstream
from hopstream.dataset.copying import delivery
from hopstream.dataset.copying.placing import is_being_placed
from hopstream.dataset.layout import open_dataset
from hopstream.engine.atomic_folder import locked
from hopstream.errors import ChecksumError, FormatError, SettingsError, StateError
from hopstream.places import place as places
from hopstream.store.local import LocalStore
from hopstream.transfer.place import place
from tests.dataset.graphs import tree_of
from tests.killing import kill_again_and_again, left_beside
from tests.transfer.conftest import files_of, other_dataset, without_beside, write_tree
from tests.transfer.faulty_files import Faults, mounted


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small datasets take many tasks."""
    monkeypatch.setattr(delivery, "GROUP_FILES", 3)


def check_roots(written: dict[str, bytes], *roots: tuple[Path, tuple[int, ...]]) -> None:
    """Check that each root has the files of its parts, and no others."""
    for root, parts in roots:
        assert without_beside(tree_of(root)) == files_of(written, parts)
        open_dataset(root).verify(parts)
    assert len({(root / "roots.json").read_bytes() for root, _ in roots}) == 1


def test_parts_are_assigned_to_roots_in_turn(mag: Path, written, tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    found = hopstream.dataset.place(
        mag, [tmp_path / "a", f"file://{tmp_path}/b"], num_workers=0, progress=lambda *args: told.append(args)
    )
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))
    assert without_beside(tree_of(mag)) == written
    assert [(root.uri, root.parts) for root in found.entries] == [
        (str(tmp_path / "a"), (0, 2)),
        (str(tmp_path / "b"), (1, 3)),
    ]
    assert not (mag / "roots.json").exists()
    assert json.loads((tmp_path / "a/roots.json").read_text())["roots"][1] == {
        "uri": str(tmp_path / "b"),
        "parts": [1, 3],
    }
    assert {stage for stage, _, _ in told} == {"place"}
    assert told[0][1:] == (0, told[-1][2])
    assert told[-1][1] == told[-1][2] > sum(map(len, written.values())) // 2
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("ray", marks=pytest.mark.soak), pytest.param("beam", marks=pytest.mark.soak)]
)
def test_every_engine_gives_the_same_copies(
    mag: Path, written, tmp_path: Path, request: pytest.FixtureRequest, engine: str
):
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    place(mag, [tmp_path / "a", tmp_path / "b"], engine=engine, num_workers=2, move=True)
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))


def test_each_root_may_have_its_own_parts_and_parts_several_roots(mag: Path, written, tmp_path: Path):
    place(mag, {str(tmp_path / "a"): [1, 0, 3], str(tmp_path / "b"): [2, 3]}, num_workers=0, move=True)
    check_roots(written, (tmp_path / "a", (0, 1, 3)), (tmp_path / "b", (2, 3)))
    with pytest.raises(FormatError, match=rf"lists part 3 in {tmp_path}/a and in {tmp_path}/b; open it there"):
        open_dataset(mag).open_part(3)


def test_present_files_are_not_copied_again(mag: Path, written, tmp_path: Path):
    faults = Faults()
    with mounted(tmp_path / "far", faults) as uri:
        place(mag, [uri], num_workers=0)
        num_written = len(faults.written)
        place(mag, [uri], num_workers=0)
        assert {Path(path).name.split(".")[1] for path in faults.written[num_written:]} == {"manifest", "roots"}
        (tmp_path / "far/mag/part-00002/node/paper/key.npy").unlink()
        (tmp_path / "far/mag/part-00001/node/paper/key.npy").write_bytes(b"other")
        place(mag, [uri], num_workers=0)
    check_roots(written, (tmp_path / "far/mag", (0, 1, 2, 3)))


def test_moved_parts_leave_the_folder(mag: Path, written, tmp_path: Path):
    for _ in range(2):
        place(mag, [tmp_path / "a", tmp_path / "b"], move=True, num_workers=0)
        check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))
        assert sorted(tree_of(mag)) == ["manifest.json", "roots.json"]
    assert not list(mag.glob("part-*"))
    with pytest.raises(FormatError, match=rf"part-00001 is missing: roots.json lists part 1 in {tmp_path}/b;"):
        open_dataset(tmp_path / "a").open_part(1)


@pytest.mark.parametrize("roots", [["a"], {"a": [0, 1, 2, 3], "b": [2]}])
def test_moved_files_are_verified_by_checksum_not_by_size(mag: Path, written, tmp_path: Path, monkeypatch, roots):
    monkeypatch.chdir(tmp_path)
    place(mag, roots, num_workers=0)
    path = tmp_path / "a/part-00002/node/paper/key.npy"
    path.write_bytes(bytes(len(path.read_bytes())))
    (mag / "part-00003/notes.txt").write_text("mine")
    place(mag, roots, num_workers=0, move=True)
    check_roots(written, (tmp_path / "a", (0, 1, 2, 3)))
    assert sorted(tree_of(mag)) == ["manifest.json", "part-00003/notes.txt", "roots.json"]


def test_the_folder_itself_may_be_a_root(mag: Path, written, tmp_path: Path):
    (tmp_path / "link").symlink_to(mag)
    place(mag, [tmp_path / "link", tmp_path / "b"], move=True, num_workers=0)
    check_roots(written, (mag, (0, 2)), (tmp_path / "b", (1, 3)))


PROGRAM = """
import os, signal, sys
from hopstream.places import place as places
from hopstream.dataset.copying import delivery
from hopstream.transfer import place
delivery.GROUP_FILES = 3
real, left = places.Place._write, [int(sys.argv[1])]

def write(self, path, blocks, num_bytes):
    left[0] -= 1
    if left[0] == 0:
        open(path, "wb").write(next(iter(blocks()))[:10])
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, path, blocks, num_bytes)

places.Place._write = write
place.place(sys.argv[2], sys.argv[3:5], move=sys.argv[5] == "move", num_workers=0)
"""
"""Place a dataset; the process is killed in the middle of a file."""


@pytest.mark.parametrize("how", ["copy", "move"])
def test_a_killed_placement_resumes(mag: Path, written, tmp_path: Path, how: str):
    roots = (tmp_path / "a", tmp_path / "b")
    for limit in (10, 15):
        words = [sys.executable, "-c", PROGRAM, str(limit), str(mag), *map(str, roots), how]
        done = subprocess.run(words, timeout=60, check=False, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert [root.joinpath("manifest.json").exists() for root in roots] == [False, False]
        assert is_being_placed(mag, roots, move=how == "move")
        assert not is_being_placed(mag, roots, move=how != "move")
    copied: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "checked_blocks", watched(delivery.checked_blocks, copied))
        place(mag, roots, move=how == "move", num_workers=0)
    assert len(copied) < len(written) - 18
    check_roots(written, (roots[0], (0, 2)), (roots[1], (1, 3)))
    assert not is_being_placed(mag, roots, move=how == "move")
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.soak
@pytest.mark.parametrize("how", ["copy", "move"])
def test_a_placement_killed_twenty_times_is_complete(mag: Path, written, tmp_path: Path, how: str):
    """Worker processes are killed with their parent, at random moments."""
    roots = (tmp_path / "a", tmp_path / "b")

    def check() -> None:
        check_roots(written, (roots[0], (0, 2)), (roots[1], (1, 3)))
        assert left_beside(tmp_path) == []

    def again() -> None:
        shutil.rmtree(mag)
        for root in roots:
            shutil.rmtree(root)
        write_tree(mag, written)

    args = [mag, *roots, how]
    kill_again_and_again(SLOW_PROGRAM, args, num_kills=20, max_lines=8, check=check, again=again)


SLOW_PROGRAM = """
import sys
from hopstream.dataset.copying import delivery
from hopstream.transfer import place
delivery.GROUP_FILES = 1
place.place(sys.argv[1], sys.argv[2:4], move=sys.argv[4] == "move", num_workers=2,
            progress=lambda *told: print(*told, flush=True))
"""


def watched(real, names):
    def instead(source, file):
        names.append(file.name)
        return real(source, file)

    return instead


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "No space left on device"), (errno.EACCES, "Permission denied")]
)
def test_system_errors_name_the_root_and_leave_no_complete_dataset(
    mag: Path, written, tmp_path: Path, number: int, message: str
):
    faults = Faults(fail_at=lambda path: OSError(number, os.strerror(number)) if "part-00003" in path else None)
    with mounted(tmp_path / "far", faults) as uri:
        with pytest.raises(OSError, match=message) as caught:
            place(mag, [tmp_path / "a", uri], num_workers=0)
        assert caught.value.errno == number
        assert caught.value.filename.startswith("faulty://host/mag/part-00003/")
        assert "hidden" not in "".join([str(caught.value), *caught.value.__notes__])
        assert not (tmp_path / "a/manifest.json").exists()
        assert not (tmp_path / "far/mag/manifest.json").exists()
        assert not list(tmp_path.rglob("*.npy.*partial"))
        faults.fail_at = lambda path: None
        place(mag, [tmp_path / "a", uri], num_workers=0)
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "far/mag", (1, 3)))
    assert "hidden" not in (tmp_path / "a/roots.json").read_text()


@pytest.mark.parametrize("can_rename", [True, False])
def test_lost_bytes_are_reported(mag: Path, tmp_path: Path, can_rename: bool):
    faults = Faults(can_rename=can_rename, is_short=lambda path: "part-00001" in path and "indices" in path)
    with mounted(tmp_path / "far", faults) as uri:
        with pytest.raises(OSError, match=r"^faulty://host/mag/part-00001/.*/indices\.npy: .* bytes were written"):
            place(mag, [uri], num_workers=0)
        assert not list(tmp_path.glob("far/mag/part-00001/**/*indices*"))
        assert not (tmp_path / "far/mag/manifest.json").exists()
        faults.is_short = lambda path: False
        place(mag, [uri], num_workers=0)
    open_dataset(tmp_path / "far/mag", verify=True)


def test_a_damaged_file_is_not_copied(mag: Path, tmp_path: Path):
    path = mag / "part-00002/node/paper/key.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"mag/part-00002/node/paper/key\.npy has crc32c .* the manifest says"):
        place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    assert not (tmp_path / "a/part-00002/node/paper/key.npy").exists()
    assert not (tmp_path / "a/manifest.json").exists()


def test_a_folder_without_all_parts_is_refused_before_anything_is_written(mag: Path, tmp_path: Path):
    shutil.rmtree(mag / "part-00001")
    with pytest.raises(
        FormatError, match=rf"mag lacks the folder part-00001, and {tmp_path}/b does not have it: place"
    ):
        place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mag"]
    assert not (mag / "roots.json").exists()


def test_another_dataset_is_replaced_only_with_overwrite(mag: Path, written, tmp_path: Path):
    other_dataset(tmp_path / "a")
    before = tree_of(tmp_path / "a")
    with pytest.raises(SettingsError, match=rf"{tmp_path}/a holds another dataset; give overwrite=True or another"):
        place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    assert tree_of(tmp_path / "a") == before
    assert not (tmp_path / "b").exists()
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0, overwrite=True)
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))


def test_leftovers_of_an_interrupted_placement_are_removed(mag: Path, written, tmp_path: Path):
    """Parts without a manifest are no dataset; they may be of another one."""
    other_dataset(tmp_path / "a")
    (tmp_path / "a/manifest.json").unlink()
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))


def test_a_root_with_something_else_is_refused(mag: Path, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.tex").write_text("")
    with pytest.raises(SettingsError, match=r"a holds 'thesis\.tex', which does not belong to a dataset"):
        place(mag, [tmp_path / "a"], num_workers=0, overwrite=True)
    assert (tmp_path / "a/thesis.tex").exists()


def test_a_disk_without_room_is_refused(mag: Path, tmp_path: Path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(delivery.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SettingsError, match=r"needs .* kB; its disk has 1\.0 kB"):
        place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mag"]
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0, move=True)  # takes a file's room on the same disk


def test_concurrent_placements_of_one_dataset_are_refused(mag: Path, tmp_path: Path):
    seen = []

    def second(stage: str, done: int, total: int) -> None:
        if not seen:
            seen.append(stage)
            for root in ("a", "b"):
                with pytest.raises(StateError, match="another process"):
                    place(mag, [tmp_path / root], num_workers=0, move=True)

    place(mag, [tmp_path / "a"], num_workers=0, progress=second)
    assert seen
    assert not (mag / "roots.json").exists()


def test_a_root_in_an_unwritable_folder_is_locked_itself(mag: Path, written, tmp_path: Path):
    """Like a mount point; here the name of its work folder would be too long."""
    root, seen = tmp_path / "far" / ("x" * 252), []
    other_dataset(tmp_path / "other")

    def second(stage: str, done: int, total: int) -> None:
        if done and not seen:
            seen.append(stage)
            with pytest.raises(StateError, match="by another process"):
                place(tmp_path / "other", [root], overwrite=True, num_workers=0)

    (mag / "part-00001").rename(tmp_path / "part-00001")
    with pytest.raises(FormatError, match="lacks the folder part-00001"):
        place(mag, [root], num_workers=0)
    assert not root.parent.exists()
    (tmp_path / "part-00001").rename(mag / "part-00001")
    place(mag, [root], num_workers=0, progress=second)
    assert seen
    check_roots(written, (root, (0, 1, 2, 3)))


def test_unfinished_work_of_other_verbs_at_a_root_is_kept(mag: Path, written, tmp_path: Path):
    work = write_tree(tmp_path / ".a.work", {"job.json": b"{}", "done/x.json": b"{}"})
    before = tree_of(work)
    place(mag, [tmp_path / "a"], num_workers=0)
    check_roots(written, (tmp_path / "a", (0, 1, 2, 3)))
    assert {name: data for name, data in tree_of(work).items() if name != "lock"} == before


def test_a_root_that_is_a_file_is_refused(mag: Path, tmp_path: Path):
    (tmp_path / "a").write_text("")
    with pytest.raises(SettingsError, match="a is a file; move it away, or give another place"):
        place(mag, [tmp_path / "a"], num_workers=0)
    assert left_beside(tmp_path) == []


@pytest.mark.parametrize(
    ("roots", "message"),
    [
        (["a", "a/"], "is given as a root twice"),
        (["a", "b", "c", "d", "e"], "e gets no part: there are 4 parts for 5 roots"),
        ({"a": [0, 1]}, "part 2 is assigned to no root; assign every part of 0..3"),
        ({"a": [0, 1, 2, 3, 4]}, "part 4 is assigned to .*a; parts are numbered 0..3"),
        ({"a": [0, 1, 2, 3], "b": []}, "b gets no part"),
        (["mag/part-00000/x"], "contains the other"),
        ([".."], "contains the other"),
        (["a/b", "a"], "a/b lies in a, another root"),
        (["a", "a/../a/b/../c"], "c lies in a, another root"),
        (["a", "a/../a"], "are one folder"),
        (["file:///nowhere/a", "/nowhere/a/b"], "/nowhere/a/b lies in file:///nowhere/a, another root"),
        (["nope://x/y"], "nope://x/y cannot be opened"),
    ],
)
def test_invalid_roots_are_refused(mag: Path, tmp_path: Path, monkeypatch, roots, message):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here" if roots == [".."] else tmp_path)
    with pytest.raises(SettingsError, match=message):
        place(mag, roots, num_workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "mag"]


def test_machines_may_be_given_later(mag: Path, written, tmp_path: Path):
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0, move=True)
    before = (mag / "roots.json").read_bytes()
    (tmp_path / "hosts").write_text("127.0.0.1 7001\n127.0.0.1 7002\n")
    place(mag, [], ip_config=tmp_path / "hosts", num_workers=0)
    check_roots(written, (tmp_path / "a", (0, 2)), (tmp_path / "b", (1, 3)))
    clusters = {(root / "cluster.json").read_bytes() for root in (mag, tmp_path / "a", tmp_path / "b")}
    assert (len(clusters), (mag / "roots.json").read_bytes()) == (1, before)


def test_places_with_cluster_files_of_running_servers_are_refused(mag: Path, tmp_path: Path):
    (tmp_path / "hosts").write_text("127.0.0.1 7001\n")
    (mag / "cluster.json").write_text("{}")
    for target in ([], [tmp_path / "a"]):
        with pytest.raises(SettingsError, match=r"mag holds cluster\.json of servers that may still run"):
            place(mag, target, ip_config=tmp_path / "hosts", num_workers=0)
    place(mag, [tmp_path / "a"], num_workers=0)
    (tmp_path / "a/roots.json").unlink()
    (tmp_path / "a/cluster.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"a holds cluster\.json of servers that may still run"):
        place(mag, [tmp_path / "a"], num_workers=0)


def test_move_needs_roots(mag: Path):
    with pytest.raises(SettingsError, match="move needs roots"):
        place(mag, [], move=True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_error_names_an_unwritable_root(mag: Path, tmp_path: Path):
    (tmp_path / "a").mkdir(mode=0o555)
    with pytest.raises(PermissionError, match=f"{tmp_path}/a/part-00000"):
        place(mag, [tmp_path / "a"], num_workers=0)


def test_halos_are_copied_and_old_ones_removed(mag: Path, tmp_path: Path):
    roots = [tmp_path / "a", tmp_path / "b"]
    place(mag, roots, num_workers=0)
    for hops in (1, 2):
        hopstream.dataset.add_halo(mag, hops=hops)
        place(mag, roots, num_workers=0)
        check_roots(without_beside(tree_of(mag)), (roots[0], (0, 2)), (roots[1], (1, 3)))
    hopstream.dataset.pull(str(roots[0]), tmp_path / "c", num_workers=0)
    check_roots(without_beside(tree_of(mag)), (tmp_path / "c", (0, 2)))


def test_placing_and_pulling_lock_datasets(mag: Path, tmp_path: Path):
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    for folder in (mag, tmp_path / "a"):
        with locked(folder), pytest.raises(StateError, match="by another process"):
            place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    for folder in (tmp_path / "a", tmp_path / "b"):
        with locked(folder), pytest.raises(StateError, match="by another process"):
            hopstream.dataset.pull(tmp_path / "a", tmp_path / "b", num_workers=0)
    with locked(tmp_path / "a", is_reader=True):
        hopstream.dataset.pull(tmp_path / "a", tmp_path / "c", num_workers=0)


def test_a_halo_of_other_rows_under_the_same_names_is_copied(mag: Path, tmp_path: Path):
    """A halo written after another was removed has the same file names, and here the same sizes."""
    copies = []
    for fanouts in ((1,), (40, 40)):
        hopstream.dataset.add_halo(mag, hops=0, features="none")
        hopstream.dataset.add_halo(mag, hops=0, features="paper:feat", budget="400", fanouts=fanouts, batch_size=1)
        place(mag, [tmp_path / "a"], num_workers=0)
        assert without_beside(tree_of(tmp_path / "a")) == without_beside(tree_of(mag))
        open_dataset(tmp_path / "a").verify()
        copies.append({name: data for name, data in tree_of(mag).items() if "/halo/" in name})
    assert copies[0].keys() == copies[1].keys() and copies[0] != copies[1]


def test_present_parts_get_the_halo_of_added_parts(mag: Path, tmp_path: Path):
    hopstream.dataset.add_halo(mag, hops=1)
    hopstream.dataset.pull(mag, tmp_path / "a", parts=[0], num_workers=0)
    hopstream.dataset.add_halo(mag, hops=2)
    hopstream.dataset.pull(mag, tmp_path / "a", parts=[2], num_workers=0)
    check_roots_without_beside(mag, tmp_path / "a", (0, 2))
    with LocalStore(open_dataset(tmp_path / "a"), [0, 2]) as store:
        assert len(store.open_halos()) == 2


def test_a_root_in_another_dataset_is_refused(mag: Path, tmp_path: Path):
    other_dataset(tmp_path / "other")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    before = tree_of(tmp_path / "other")
    for inner in ("other/x", "other/part-00000/x", "link/x/y"):
        for work in (
            lambda out: place(mag, [out], num_workers=0),
            lambda out: hopstream.dataset.pull(mag, out, num_workers=0),
        ):
            with pytest.raises(
                SettingsError, match=rf"lies in the dataset {tmp_path}/other; give a folder outside of it"
            ):
                work(tmp_path / inner)
    assert tree_of(tmp_path / "other") == before
    (tmp_path / "web").mkdir()
    (tmp_path / "web/manifest.json").write_text('{"name": "a page of something else"}')
    place(mag, [tmp_path / "web/mag"], num_workers=0)


def test_a_root_of_several_is_not_placed_as_if_it_were_all(mag: Path, tmp_path: Path):
    hopstream.append(mag, edges={"paper__cites__paper": ([0, 1], [2, 3])})
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    message = rf"a lacks the folder part-00001, and {tmp_path}/c does not have it; roots.json lists it in "
    with pytest.raises(FormatError, match=rf"{message}{tmp_path}/b: place a dataset that has all of its parts"):
        place(tmp_path / "a", [tmp_path / "c"], num_workers=0)
    assert not (tmp_path / "c").exists()


def test_moved_files_are_synced_before_removal(mag: Path, tmp_path: Path, monkeypatch):
    """First a file's bytes before its rename, then each folder up to one that existed before."""
    events: list[tuple[str, str]] = []
    real_fsync, real_move, real_remove = os.fsync, places.Place._move, places.Place.remove

    def fsync(descriptor):
        events.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_fsync(descriptor)

    def move(self, partial, path):
        events.append(("rename", path))
        assert ("sync", partial) in events
        return real_move(self, partial, path)

    def remove(self, name):
        events.append(("remove", name))
        real_remove(self, name)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(places.Place, "_move", move)
    monkeypatch.setattr(places.Place, "remove", remove)
    roots = {str(tmp_path / "x/y/a"): [0, 1, 2], str(tmp_path / "b"): [2, 3]}  # part 2 leaves when both have it
    place(mag, roots, move=True, num_workers=0)
    removed = {name: i for i, (what, name) in enumerate(events) if what == "remove" and name.endswith(".npy")}
    assert len(removed) > 20
    for name, removal in removed.items():
        homes = [root for root, parts in roots.items() if int(name[5:10]) in parts]
        for root in homes:
            path = Path(root) / name
            renamed = events.index(("rename", str(path)))
            synced = {what for kind, what in events[renamed:removal] if kind == "sync"}
            folders = [folder for folder in path.parents if folder == Path(root) or Path(root) in folder.parents]
            assert {str(folder) for folder in folders} <= synced
    made = [what for kind, what in events[: min(removed.values())] if kind == "sync"]
    assert {str(tmp_path), str(tmp_path / "x"), str(tmp_path / "x/y")} <= set(made)


def test_roots_with_a_new_halo_are_pulled_beside_older_parts(mag: Path, tmp_path: Path):
    """The other root provides what the pulled root lacks."""
    roots, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "c"
    hopstream.dataset.add_halo(mag, hops=1)
    place(mag, roots, num_workers=0)
    for root in roots:
        hopstream.dataset.pull(root, out, num_workers=0)
    for hops in (2, 0, 1):
        hopstream.dataset.add_halo(mag, **({"hops": hops} if hops else {"hops": 0, "features": "none"}))
        place(mag, roots, num_workers=0)
        for root in roots:
            hopstream.dataset.pull(root, out, num_workers=0)
            check_roots_without_beside(mag, out, (0, 1, 2, 3))
    assert hopstream.verify_dataset(out).is_ok


def test_a_new_halo_of_parts_that_are_in_two_roots_is_moved_to_both(mag: Path, written, tmp_path: Path):
    roots = [tmp_path / "a", tmp_path / "b"]
    hopstream.dataset.pull(mag, roots[0], num_workers=0)
    hopstream.dataset.add_halo(mag, hops=1)
    before = tree_of(mag)
    place(mag, roots, move=True, num_workers=0)
    assert without_beside(tree_of(roots[0])) == before
    assert without_beside(tree_of(roots[1])) == files_of(before, (1, 3))
    assert sorted(tree_of(mag)) == ["manifest.json", "roots.json"]


def test_a_halo_that_no_root_has_is_refused_before_anything_is_written(mag: Path, tmp_path: Path):
    roots, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "c"
    hopstream.dataset.add_halo(mag, hops=1)
    place(mag, roots, num_workers=0)
    hopstream.dataset.pull(roots[0], out, num_workers=0)
    hopstream.dataset.add_halo(mag, hops=2)
    place(mag, {str(tmp_path / "far"): [0, 2], str(roots[1]): [1, 3]}, num_workers=0)
    shutil.rmtree(tmp_path / "far")  # no machine sees it
    before = tree_of(out)
    message = (
        rf"c has part-00000 with another halo than {tmp_path}/b, and none of its known roots .* pull all parts into a"
    )
    with pytest.raises(FormatError, match=message):
        hopstream.dataset.pull(roots[1], out, num_workers=0)
    assert tree_of(out) == before
    place(mag, roots, num_workers=0)
    hopstream.dataset.pull(roots[1], out, num_workers=0)
    check_roots_without_beside(mag, out, (0, 1, 2, 3))


def check_roots_without_beside(dataset: Path, root: Path, parts: tuple[int, ...]) -> None:
    assert without_beside(tree_of(root)) == files_of(without_beside(tree_of(dataset)), parts)
    open_dataset(root).verify(parts)
