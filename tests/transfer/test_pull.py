"""Checks that a machine gets the parts it asks for, and a message about others."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopstream
from hopstream.dataset.copying.pull import pull
from hopstream.dataset.layout import open_dataset
from hopstream.errors import ChecksumError, FormatError, SettingsError, UnknownNameError
from hopstream.transfer.place import place
from tests.dataset.graphs import tree_of
from tests.transfer.conftest import files_of, other_dataset, without_beside
from tests.transfer.faulty_files import Faults, mounted


def test_parts_are_pulled_one_after_the_other(mag: Path, written, tmp_path: Path):
    with mounted(tmp_path / "far", Faults()) as uri:
        place(mag, [uri], num_workers=0)
        told: list[tuple[str, int, int]] = []
        out = tmp_path / "new" / "mag"
        manifest = hopstream.dataset.pull(uri, out, parts=[2], num_workers=0, progress=lambda *args: told.append(args))
        assert without_beside(tree_of(out)) == files_of(written, (2,))
        assert told[-1][0] == "pull"
        assert manifest.book.num_parts == 4
        pull(uri, out, parts=[0, 2], num_workers=0)
        assert without_beside(tree_of(out)) == files_of(written, (0, 2))
        open_dataset(out).verify([0, 2])
        with pytest.raises(FormatError, match=r"part-00001 is missing: roots\.json lists part 1 in faulty://host"):
            open_dataset(out).open_part(1)
        pull(uri, out, num_workers=0)
        assert without_beside(tree_of(out)) == written
    assert [path.name for path in out.parent.iterdir()] == ["mag"]


def test_a_root_has_its_own_parts(mag: Path, written, tmp_path: Path):
    place(mag, [tmp_path / "a", tmp_path / "b"], num_workers=0)
    pull(tmp_path / "b", tmp_path / "out", num_workers=0)
    assert without_beside(tree_of(tmp_path / "out")) == files_of(written, (1, 3))
    with pytest.raises(FormatError, match=rf"b does not have part 2; roots.json lists it in {tmp_path}/a; pull"):
        pull(tmp_path / "b", tmp_path / "out", parts=[1, 2], num_workers=0)
    with pytest.raises(UnknownNameError, match=r"has no part 4; parts are numbered 0\.\.3"):
        pull(tmp_path / "b", tmp_path / "out", parts=[4], num_workers=0)
    (tmp_path / "b/roots.json").unlink()
    with pytest.raises(FormatError, match=r"b does not have part 2$"):
        pull(tmp_path / "b", tmp_path / "out", parts=[2], num_workers=0)
    with pytest.raises(SettingsError, match="b is the folder to pull from; give another one"):
        pull(tmp_path / "b", tmp_path / "b", num_workers=0)


def test_cluster_files_of_the_source_are_not_copied(mag: Path, written, tmp_path: Path):
    (mag / "cluster.json").write_text("{}")
    for parts in ([0], [1]):
        pull(mag, tmp_path / "out", parts=parts, num_workers=0)
    assert tree_of(tmp_path / "out") == files_of(written, (0, 1))


def test_a_damaged_file_is_not_copied_and_the_next_call_resumes(mag: Path, written, tmp_path: Path):
    path = mag / "part-00003/node/paper/key.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ChecksumError, match=r"mag/part-00003/node/paper/key\.npy has crc32c"):
        pull(mag, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out/manifest.json").exists()
    path.write_bytes(whole)
    pull(mag, tmp_path / "out", num_workers=0)
    assert tree_of(tmp_path / "out") == written
    assert not list(tmp_path.glob(".*"))


def test_another_dataset_is_replaced_only_with_overwrite(mag: Path, written, tmp_path: Path):
    other_dataset(tmp_path / "out")
    with pytest.raises(SettingsError, match="out holds another dataset"):
        pull(mag, tmp_path / "out", parts=[1], num_workers=0)
    pull(mag, tmp_path / "out", parts=[1], num_workers=0, overwrite=True)
    assert tree_of(tmp_path / "out") == files_of(written, (1,))


def test_error_names_a_source_without_dataset(mag: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=rf"{tmp_path}/empty/manifest\.json is missing; {tmp_path}/empty is not"):
        pull(tmp_path / "empty", tmp_path / "out", num_workers=0)
    with mounted(tmp_path / "far", Faults()) as uri:
        (tmp_path / "far/mag").mkdir()
        (tmp_path / "far/mag/manifest.json").write_text("{}")
        with pytest.raises(FormatError, match=r"^faulty://host/mag/manifest\.json has no format number"):
            pull(uri, tmp_path / "out", num_workers=0)
        (tmp_path / "far/mag/manifest.json").write_bytes((mag / "manifest.json").read_bytes())
        with pytest.raises(FormatError, match="has a manifest but no parts"):
            pull(uri, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()
