"""Checks that a file is whole or absent in every kind of place, and that errors name the place."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopstream.errors import FormatError, SettingsError
from hopstream.transfer.places import Place
from tests.transfer.faulty_files import Faults, full_disk, mounted


class PlaceContract:
    """Tests that every kind of place must pass."""

    def test_written_files_are_present(self, place: Place):
        assert (place.names(), place.sizes(), place.size("a/b.npy")) == ([], {}, None)
        place.write("a/b.npy", lambda: [b"one", b"two"], 6)
        place.write_text("c.json", b"{}")
        place.write("a/b.npy", lambda: [b"again"], 5)
        assert b"".join(place.blocks("a/b.npy")) == b"again"
        assert place.names() == ["a", "c.json"]
        assert place.sizes() == {"a/b.npy": 5, "c.json": 2}
        assert place.sizes("a") == {"a/b.npy": 5}
        assert (place.size("a/b.npy"), place.size("a")) == (5, None)

    def test_removing_is_idempotent(self, place: Place):
        place.write_text("a/b.npy", b"x")
        place.write_text("d/e.npy", b"x")
        for _ in range(2):
            place.remove("a/b.npy")
            place.remove_folder("d")
        assert place.sizes() == {}

    def test_a_failed_file_is_removed(self, place: Place):
        place.write_text("a.npy", b"before")

        def broken() -> Iterator[bytes]:
            yield b"half"
            raise FormatError("the source is broken")

        with pytest.raises(FormatError, match="the source is broken"):
            place.write("b.npy", broken, 8)
        with pytest.raises(OSError, match=r"b\.npy.*4 of 8 bytes were written"):
            place.write("b.npy", lambda: [b"half"], 8)
        assert place.sizes() == {"a.npy": 6}

    def test_error_names_a_missing_file(self, place: Place):
        with pytest.raises(FileNotFoundError, match=r"No such file.*/none\.npy"):
            list(place.blocks("none.npy"))
        with pytest.raises(FormatError, match=r"/none\.json is missing; .* is not a dataset"):
            place.read("none.json", 10)
        place.write_text("large.json", b"12345678901")
        with pytest.raises(FormatError, match=r"large\.json has 11 bytes; at most 10 are read"):
            place.read("large.json", 10)


class TestFolder(PlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(str(tmp_path / "new" / "mag"))

    def test_it_is_local(self, place: Place, tmp_path: Path):
        assert place.local == tmp_path / "new" / "mag"

    def test_error_names_an_unwritable_folder(self, tmp_path: Path):
        (tmp_path / "file").write_text("")
        with pytest.raises(NotADirectoryError, match=r"file/mag/a\.npy"):
            Place(str(tmp_path / "file" / "mag")).write_text("a.npy", b"x")

    def test_a_full_disk_is_named(self, place: Place, monkeypatch):
        with mounted(place.local, Faults(fail_at=lambda path: full_disk())) as uri:
            with pytest.raises(OSError, match="No space left on device") as caught:
                Place(uri).write_text("a.npy", b"x")
            assert caught.value.errno == errno.ENOSPC
            assert caught.value.filename == "faulty://host/mag/a.npy"


class TestFileUri(PlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"file://{tmp_path}/new/mag/")

    def test_it_is_local(self, place: Place, tmp_path: Path):
        assert place.local == tmp_path / "new" / "mag"


class TestElsewhere(PlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        with mounted(tmp_path, Faults()) as uri:
            yield Place(uri)

    def test_it_is_not_local(self, place: Place):
        assert (place.local, place.shown) == (None, "faulty://host/mag")


class TestWithoutRename(PlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        with mounted(tmp_path, Faults(can_rename=False)) as uri:
            yield Place(uri)

    def test_a_failed_rename_is_not_retried(self, tmp_path: Path):
        faults = Faults(can_rename=False)
        with mounted(tmp_path, faults) as uri:
            place = Place(uri)
            for name in ("a.npy", "b.npy"):
                place.write_text(name, b"x")
        assert [".partial" in path for path in faults.written] == [True, False, False]


def test_lost_bytes_are_reported(tmp_path: Path):
    with mounted(tmp_path, Faults(is_short=lambda path: True)) as uri:
        place = Place(uri)
        with pytest.raises(OSError, match=r"^faulty://host/mag/a\.npy: 3 of 4 bytes were written$"):
            place.write_text("a.npy", b"four")
        assert place.sizes() == {}


@pytest.mark.parametrize(
    "uri", ["nope://u:hidden@host/x", "s3://AKIA:hidden@", "s3://AKIA:hid den@bucket/x", "s3:/AKIA:hidden@bucket", "/"]
)
def test_invalid_places_are_refused(uri: str):
    with pytest.raises(
        SettingsError, match=r"cannot be opened|names no folder|is the root of|with two slashes"
    ) as caught:
        Place(uri)
    assert "hid" not in str(caught.value)
    assert caught.value.__cause__ is None
