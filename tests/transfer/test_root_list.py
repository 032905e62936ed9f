"""Checks that a file of roots is read, and that each wrong line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.dataset.copying.placing import read_root_list, roots_of_list
from hopstream.errors import FormatError, SettingsError


def test_a_list_of_uris_gives_each_root_a_share_of_the_parts(tmp_path: Path):
    path = tmp_path / "roots.txt"
    path.write_text("# one per machine\n\n/nfs/m0\n  s3://bucket/a#b # the second\n")
    listed = read_root_list(path)
    assert listed == [("/nfs/m0", None), ("s3://bucket/a#b", None)]
    assert roots_of_list(listed, 4) == ["/nfs/m0", "s3://bucket/a#b"]


def test_uris_with_parts(tmp_path: Path):
    path = tmp_path / "roots.txt"
    path.write_text("/nfs/m0 0,2-3\n/nfs/m1\t1\n")
    assert roots_of_list(read_root_list(path), 4) == {"/nfs/m0": (0, 2, 3), "/nfs/m1": (1,)}
    with pytest.raises(SettingsError, match=r"the line of /nfs/m0 has '2-3'; .* numbered 0\.\.2"):
        roots_of_list(read_root_list(path), 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no root"),
        ("# nothing\n", "names no root"),
        ("/a 1 2\n", r"roots\.txt:1 has 3 words"),
        ("\n/a 1\n/b\n", r"roots\.txt:3 and the lines before differ"),
        ("/a\n/b 0\n", r"roots\.txt:2 and the lines before differ"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_invalid_lists_are_refused(tmp_path: Path, text: str | bytes, message: str):
    path = tmp_path / "roots.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError, match=message):
        read_root_list(path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(FormatError, match="is missing; write a line"):
        read_root_list(tmp_path / "none")


def test_a_root_twice_is_refused():
    with pytest.raises(SettingsError, match="s3://bucket/a is given as a root twice"):
        roots_of_list([("s3://k:hidden@bucket/a", "0"), ("s3://k:hidden@bucket/a", "1")], 2)
