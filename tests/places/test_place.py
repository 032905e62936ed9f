"""Checks that a file is whole or absent in every kind of place, and that errors name the place."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopstream.errors import FormatError, SettingsError
from hopstream.places import place as place_module
from hopstream.places.place import Place
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


class TestPassingFailures:
    """A busy server's failures are waited for, refusals are not."""

    @pytest.mark.parametrize(
        ("message", "num_opened"), [("AWS Error SLOW_DOWN", 3), ("HTTP status 503", 3), ("AWS Error ACCESS_DENIED", 1)]
    )
    def test_a_write_is_repeated_while_its_failure_passes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, num_opened: int
    ):
        monkeypatch.setattr(place_module, "FIRST_PAUSE_S", 0.001)
        faults = Faults(can_rename=False)
        faults.fail_at = lambda path: OSError(message) if len(faults.written) < 3 else None
        with mounted(tmp_path, faults) as uri:
            place = Place(uri)
            place._renames = False
            if num_opened == 3:
                place.write_text("a.npy", b"data")
                assert place.sizes() == {"a.npy": 4}
            else:
                with pytest.raises(OSError, match=r"a\.npy: .*ACCESS_DENIED; the place refuses these credentials"):
                    place.write_text("a.npy", b"data")
        assert len(faults.written) == num_opened

    def test_the_waiting_has_a_deadline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(place_module, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(place_module, "RETRY_S", 0.05)
        faults = Faults(fail_at=lambda path: OSError("AWS Error NETWORK_CONNECTION"))
        with mounted(tmp_path, faults) as uri, pytest.raises(OSError, match=r"a\.npy: .*; it was tried for 0 s"):
            Place(uri).write_text("a.npy", b"data")
        assert 3 < len(faults.written) < 50


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
