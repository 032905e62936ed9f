"""Tests that token files are read as documented, and again when they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopstream.errors import SettingsError
from hopstream.transport.tokens import ANYONE, MAX_FILE_BYTES, TokenFile, Tokens, read_token, read_tokens


def write(path: Path, text: str) -> Path:
    """Replace a file atomically, as a careful program does."""
    new = path.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    new.replace(path)
    return path


def test_one_token_has_all_rights(tmp_path: Path) -> None:
    (identity,) = read_tokens(write(tmp_path / "t", "# ours\n\n  secret \n"))
    assert (identity.name, identity.rights, identity.is_admin) == ("", "admin", True)
    assert identity in Tokens(token="secret").value()
    assert b"secret" not in identity.digest and len(identity.digest) == 32
    assert ANYONE.is_admin


def test_lines_give_names_and_rights(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "anna read one\n# bob has left\nops admin two\nanna read three\n")
    tokens = Tokens(path=path)
    found = {text: tokens.find(text.encode()) for text in ("one", "two", "three", "four", "", "one ", "on")}
    assert {t: i and (i.name, i.rights, i.is_admin) for t, i in found.items()} == {
        "one": ("anna", "read", False), "two": ("ops", "admin", True), "three": ("anna", "read", False),
        "four": None, "": None, "one ": None, "on": None,
    }  # fmt: skip
    assert read_token(path) == "two"  # the first with all rights


def test_a_server_without_tokens_finds_no_client() -> None:
    assert Tokens().find(b"") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no token"),
        ("# nothing\n", "holds no token"),
        ("anna one\n", "t:1 has 2 words; a token file is one token alone, or lines of: name read|admin token"),
        ("anna write one\n", "t:1 has a second word that is neither read nor admin"),
        ("one\ntwo\n", "t:1 has 1 word; "),
        ("anna read one two\n", "t:1 has 4 words; "),
        ("x" * 257, "at most 256 characters, got 257"),
        ("naïve", "cannot be read"),
        ("anna read a\x7f\n", "printable ASCII"),
        ("x" * (MAX_FILE_BYTES + 1), "more than"),
    ],
)
def test_invalid_token_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "t", text)
    with pytest.raises(SettingsError, match=message.replace("|", r"\|")):
        read_tokens(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for read in (read_tokens, read_token, TokenFile, lambda path: Tokens(path=path)):
        with pytest.raises(SettingsError, match="cannot be read"):
            path = TokenFile(tmp_path / "none").value() if read is TokenFile else read(tmp_path / "none")
            assert path is None
    with pytest.raises(SettingsError, match="cannot be read"):
        read_tokens(tmp_path)


def test_a_change_is_in_force_at_once_and_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "anna read one\n")
    tokens, mine = Tokens(path=path), TokenFile(path)
    before = tokens.value()
    assert tokens.value() is before
    assert mine.value() == "one"
    write(path, "anna read two\nanna read one\n")
    assert [tokens.find(text) is not None for text in (b"one", b"two")] == [True, True]
    assert mine.value() == "two"
    write(path, "anna admin two\n")
    found = tokens.find(b"two")
    assert tokens.find(b"one") is None
    assert found is not None and found.is_admin


def test_a_change_in_place_of_the_same_length_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "one")
    tokens = Tokens(path=path)
    path.write_text("two", encoding="ascii")
    os.utime(path, ns=(1, 1))
    assert (tokens.find(b"one"), tokens.find(b"two") is not None) == (None, True)


def test_tokens_stay_valid_when_the_file_is_broken_or_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "t", "one")
    tokens, mine = Tokens(path=path), TokenFile(path)
    assert mine.value() == "one"
    write(path, "a line that makes no sense\n")
    for _ in range(3):
        assert tokens.find(b"one") is not None
    assert [message for message in caplog.messages if "the previous content stays in use" in message] == [
        f"{path}:1 has 6 words; a token file is one token alone, or lines of: name read|admin token; "
        "the previous content stays in use"
    ]
    path.unlink()
    assert tokens.find(b"one") is not None
    assert mine.value() == "one"
    write(path, "two")
    assert (tokens.find(b"one"), tokens.find(b"two") is not None, mine.value()) == (None, True, "two")
