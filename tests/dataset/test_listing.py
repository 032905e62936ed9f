"""Checks that the lines of a user's list are read, and that wrong ones are named by their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.dataset import chunks
from hopstream.dataset.chunks import read_listing
from hopstream.errors import FormatError


def test_lines_comments_and_blanks(tmp_path: Path):
    path = tmp_path / "list"
    path.write_text("# all\n\n a#b\tc  # the first\n  #d\ne #\n")
    assert read_listing(path, "thing", "name [other]") == [(f"{path}:3", ["a#b", "c"]), (f"{path}:5", ["e"])]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "list names no thing; write a line 'name' for each"),
        (b" \n# a\n", "list names no thing"),
        (b"a\nb c\n", "list:2 has 2 words; a line is 'name'"),
        (b"\xff\xfe", "list cannot be read"),
        (b"a" * 20, "list has more than 19 bytes, so it is not a list of things"),
    ],
)
def test_invalid_lists_are_refused(tmp_path: Path, monkeypatch, data: bytes, message: str):
    monkeypatch.setattr(chunks, "MAX_FILE_BYTES", 19)
    path = tmp_path / "list"
    with pytest.raises(FormatError, match="list is missing; write a line 'name' for each thing"):
        read_listing(path, "thing", "name")
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_listing(path, "thing", "name")
