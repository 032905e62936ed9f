"""Tests that changed files of tokens, certificates and keys are read again; errors name their line."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import ssl
import tempfile
from pathlib import Path

import pytest

from hopstream.errors import AccessDenied, SettingsError
from hopstream.store.settings import StoreSettings
from hopstream.transport.location import Location
from hopstream.transport.security import ClientSecurity, ServerSecurity
from hopstream.transport.tokens import MAX_TOKEN_BYTES, Tokens, read_token, read_tokens
from tests.store.authority import Authority, Identity

TABLE = "# who may what\n\n  trainer  read  rrr\nops\tadmin aaa\ntrainer read  r2\n"


def write(path: Path, text: str | bytes) -> Path:
    """Replace a file, with access for this user alone."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    return new.replace(path)


def test_a_table_gives_each_token_its_name_and_rights(tmp_path: Path) -> None:
    path = write(tmp_path / "t", TABLE)
    tokens = Tokens(path=path)
    found = {token: tokens.find(token.encode()) for token in ("rrr", "aaa", "r2")}
    assert {token: (who.name, who.rights, who.is_admin) for token, who in found.items() if who} == {
        "rrr": ("trainer", "read", False), "aaa": ("ops", "admin", True), "r2": ("trainer", "read", False),
    }  # fmt: skip
    assert [tokens.find(one) for one in (b"", b"rr", b"rrrr", b"trainer", b"read", b"#", TABLE.encode())] == [None] * 7
    assert len({who.digest for who in read_tokens(path)}) == 3


def test_one_token_alone_has_all_rights(tmp_path: Path) -> None:
    for text in ("s3cret", "  s3cret\n\n", "# of the whole cluster\ns3cret\n"):
        path = write(tmp_path / "t", text)
        (identity,) = read_tokens(path)
        assert (identity.name, identity.rights) == ("", "admin") and read_token(path) == "s3cret"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(TABLE, "aaa"), ("a read x\nb read y\n", "x"), ("a admin x\nb admin y\n", "x"), ("#a admin z\nb read y", "y")],
)
def test_a_client_prefers_the_first_token_with_admin_rights(tmp_path: Path, text: str, wanted: str) -> None:
    path = write(tmp_path / "t", text)
    assert read_token(path) == wanted == ClientSecurity(token_file=path).current_token()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no token"),
        ("# nothing\n\n", "holds no token"),
        ("hidden words", r"t:1 has 2 words; a token file is one token alone, or lines of: name read\|admin token$"),
        ("a read x\n\nhidden\n", "t:3 has 1 word; "),
        ("hidden\nother-hidden\n", "t:1 has 1 word; "),
        ("a read x y hidden\n", "t:1 has 5 words; "),
        (
            "a read x\nb write hidden\n",
            r"t:2 has a second word that is neither read nor admin; write: name read\|admin token",
        ),
        ("a read x\n# b\nb admin x\n", "t:3 has the token of line 1; give each line a token of its own"),
        (f"a read {'h' * (MAX_TOKEN_BYTES + 1)}\n", f"t:1: a token has at most {MAX_TOKEN_BYTES} characters"),
        ("a read hidden\x01\n", "t:1: a token must be one or more printable ASCII characters"),
        ("hidden\x7f", "a token must be one or more printable ASCII characters"),
        ("naïve", "cannot be read"),
        ("x" * (1 << 20) + "y", "has more than 1048576 bytes"),
    ],
)
def test_errors_name_wrong_lines_without_their_tokens(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "t", text)
    for read in (read_tokens, read_token, lambda one: ServerSecurity(token_file=one)):
        with pytest.raises(SettingsError, match=message) as failure:
            read(path)
        assert "hidden" not in str(failure.value)


def test_a_changed_table_applies_at_once_and_a_wrong_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "t", "a admin x\n")
    tokens = ServerSecurity(token_file=path).tokens
    assert tokens is not None and tokens.find(b"x") and not tokens.find(b"y")
    write(path, "a admin y\n")
    assert tokens.find(b"y") and not tokens.find(b"x")
    with caplog.at_level(logging.WARNING):
        write(path, "a admin y\nb admin\n")
        assert [bool(tokens.find(b"y")) for _ in range(3)] == [True] * 3
        path.unlink()
        assert tokens.find(b"y")
    told = [message for message in caplog.messages if message.endswith("the previous content stays in use")]
    assert len(told) == 2 and f"{path}:2 has 2 words" in told[0] and "cannot be read" in told[1]
    write(path, "a read z\n")
    assert tokens.find(b"z") and not tokens.find(b"y")


def test_a_client_sends_the_current_token(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "one\n")
    security = ClientSecurity(token_file=path)
    assert security.current_token() == "one" and security.has_token
    write(path, "two\n")
    assert security.current_token() == "two"
    path.unlink()
    assert security.current_token() == "two"
    with pytest.raises(AccessDenied, match=r"token would go to tcp://10\.0\.0\.7:1 in the clear"):
        security.check_location(Location.parse("tcp://10.0.0.7:1"))
    with pytest.raises(SettingsError, match=r"token file .* cannot be read"):
        ClientSecurity(token_file=path)
    for kind in (ClientSecurity, ServerSecurity):
        with pytest.raises(SettingsError, match="a token and a token file were given"):
            kind(token="x", token_file=path)


def put(folder: Path, identity: Identity, *names: str) -> None:
    for name in names:
        write(folder / name, identity.key if name == "key" else identity.certificate)


def test_certificates_are_reread_when_they_match_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority("our root")
    first, second = (authority.issue(name) for name in ("one.example", "two.example"))
    put(tmp_path, first, "cert", "key")
    security = ServerSecurity(certificate=tmp_path / "cert", private_key=tmp_path / "key")
    before = security.context()
    assert before is security.context() and before is not None and before.minimum_version == ssl.TLSVersion.TLSv1_3
    put(tmp_path, second, "key")
    assert security.context() is before  # the certificate is still the first one's
    assert [message for message in caplog.messages if "stays in use" in message]
    put(tmp_path, second, "cert")
    assert security.context() is not before
    write(tmp_path / "cert", "no PEM")
    last = security.context()
    assert last is not before and last is security.context()
    with pytest.raises(SettingsError, match="is not a PEM file"):
        ServerSecurity(certificate=tmp_path / "cert", private_key=tmp_path / "key").context()


@pytest.mark.parametrize(("as_bytes", "num_copies"), [((), 0), (("cert",), 1), (("key",), 1), (("cert", "key"), 2)])
def test_a_private_key_in_a_file_is_not_copied(
    tmp_path: Path, as_bytes: tuple[str, ...], num_copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, Authority("our root").issue("x"), "cert", "key")
    (copies := tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    loaded: list[tuple[str, str]] = []
    real = ssl.SSLContext.load_cert_chain

    def load(context: ssl.SSLContext, certificate: str, key: str) -> None:
        assert len(list(copies.iterdir())) == num_copies
        loaded.append((certificate, key))
        real(context, certificate, key)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    given = {name: tmp_path / name for name in ("cert", "key")}
    certificate, key = ((path.read_bytes() if name in as_bytes else path) for name, path in given.items())
    assert ServerSecurity(certificate=certificate, private_key=key).context() is not None
    assert ClientSecurity(certificate=certificate, private_key=key).context() is not None
    for pair in loaded:
        assert [one == str(path) for one, path in zip(pair, given.values(), strict=True)] == [
            name not in as_bytes for name in given
        ]
    assert len(loaded) == 2 and not list(copies.iterdir())


def test_settings_are_sent_to_other_processes_which_read_the_files_themselves(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "one\n")
    put(tmp_path, Authority("our root").issue("x"), "cert", "key")
    certificate, key = tmp_path / "cert", tmp_path / "key"
    client = StoreSettings(security=ClientSecurity(token_file=path, certificate=certificate, private_key=key))
    client.security.context()
    server = ServerSecurity(token_file=path, certificate=certificate, private_key=key)
    assert server.context() is not None
    stored = pickle.dumps((client, server))
    write(path, "two\n")
    for one, other in (pickle.loads(stored), copy.deepcopy((client, server))):
        assert one == client and one.security.current_token() == "two" and one.security.context() is not None
        assert other == server and other.tokens.find(b"two") and other.context() is not None
    assert b"one\n" not in stored


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_token_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "one\n")
    path.chmod(0)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_token(path)
