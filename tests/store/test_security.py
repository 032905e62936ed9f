"""Checks that a server answers only known clients, and that a client trusts only its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopstream.errors import AccessDenied, SettingsError, StoreUnavailable
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.location import Location
from hopstream.transport.messages import PING, REQUEST, Frame, Status, encode_hello
from hopstream.transport.security import ClientSecurity, ServerSecurity, read_pem
from hopstream.transport.tokens import read_token
from tests.store.authority import Authority, Identity
from tests.store.cases import Case
from tests.store.processes import ServerProcess, wait_until
from tests.transport.peer import Peer, message_bytes

TOKEN = "correct-horse-battery-staple"
TLS = "tls://127.0.0.1:0"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("our root")


@pytest.fixture(scope="module")
def server_identity(authority: Authority) -> Identity:
    return authority.issue("store.example")


@pytest.fixture
def guarded(typed_case: Case, server_identity: Identity) -> Iterator[StoreServer]:
    """A server with TLS and a token."""
    security = ServerSecurity(token=TOKEN, certificate=server_identity.certificate, private_key=server_identity.key)
    with StoreServer(typed_case.shared(), TLS, security=security) as server:
        yield server


def connect(location: str, security: ClientSecurity) -> RemoteStore:
    return RemoteStore(location, StoreSettings(timeout_s=10, security=security))


@pytest.mark.parametrize("roots", [Path("no-such-file.pem"), b"no PEM"])
def test_roots_that_cannot_be_read_are_refused_at_once(roots: Path | bytes) -> None:
    with pytest.raises(SettingsError, match=r"no-such-file.pem|TLS cannot be set up"):
        ClientSecurity(roots=roots)


def test_token_and_roots_open_a_guarded_server(guarded: StoreServer, authority: Authority) -> None:
    with connect(guarded.location, ClientSecurity(token=TOKEN, roots=authority.root)) as store:
        assert store.location.startswith("tls://127.0.0.1:")
        assert len(store.lookup("paper", np.arange(5))) == 5


@pytest.mark.parametrize("token", [None, "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
def test_another_token_is_refused(guarded: StoreServer, authority: Authority, token: str | None) -> None:
    with pytest.raises(AccessDenied, match=r"refused describe.*token is missing or wrong") as caught:
        connect(guarded.location, ClientSecurity(token=token, roots=authority.root))
    assert ("none was sent" in str(caught.value)) is (token is None)


def test_nothing_is_answered_before_the_token(typed_case: Case) -> None:
    describe = Frame({"op": "describe"})
    with StoreServer(typed_case.shared(), security=ServerSecurity(token=TOKEN)) as server:
        for first in (message_bytes(REQUEST, 1, describe), message_bytes(PING, 1), b"nonsense", b"GET / HTTP/1.1\r\n"):
            with Peer(server.location, says_hello=False) as peer:
                peer.send(first)
                assert peer.is_closed_within(5)
        for token in (None, "wrong", TOKEN + TOKEN):
            with Peer(server.location, says_hello=False) as peer:
                peer.send(encode_hello(token) + message_bytes(REQUEST, 1, describe))
                with suppress(ConnectionError):  # the end of a connection with unread bytes may come first
                    assert peer.read_welcome() == (Status.REFUSED, "the token is missing or wrong")
                assert peer.is_closed_within(5)
        assert server.stats.num_requests == 0
        with Peer(server.location, TOKEN) as peer:
            assert len(peer.ask(describe)) == 1


def test_a_refused_call_does_not_reach_the_store(guarded: StoreServer, authority: Authority) -> None:
    with pytest.raises(AccessDenied):
        connect(guarded.location, ClientSecurity(token="wrong", roots=authority.root))
    assert guarded.stats.num_requests == 0


def test_a_server_signed_by_others_is_not_trusted(guarded: StoreServer, authority: Authority) -> None:
    for roots in (Authority("their root").root, None):
        with pytest.raises(StoreUnavailable, match=r"cannot be reached .*certificates"):
            connect(guarded.location, ClientSecurity(token=TOKEN, roots=roots))


def test_a_certificate_must_carry_the_servers_name(
    typed_case: Case, authority: Authority, guarded: StoreServer
) -> None:
    good = ClientSecurity(token=TOKEN, roots=authority.root, server_name="store.example")
    connect(guarded.location, good).close()
    with pytest.raises(StoreUnavailable):
        connect(guarded.location, replace(good, server_name="other.example"))


def test_a_client_without_tls_is_refused(guarded: StoreServer) -> None:
    plain = guarded.location.replace("tls", "tcp")
    with pytest.raises(StoreUnavailable, match="write tls://"):
        connect(plain, ClientSecurity(token=TOKEN))


def test_client_certificates_are_required(typed_case: Case, authority: Authority, server_identity: Identity) -> None:
    security = ServerSecurity(
        certificate=server_identity.certificate, private_key=server_identity.key, client_roots=authority.root
    )
    ours, theirs = authority.issue("trainer"), Authority("their root").issue("trainer")
    with StoreServer(typed_case.shared(), TLS, security=security) as server:
        known = ClientSecurity(roots=authority.root, certificate=ours.certificate, private_key=ours.key)
        with connect(server.location, known) as store:
            assert store.parts == (0, 1, 2)
        with pytest.raises(StoreUnavailable):
            connect(server.location, ClientSecurity(roots=authority.root))
        with pytest.raises(StoreUnavailable):
            connect(server.location, replace(known, certificate=theirs.certificate, private_key=theirs.key))
        wait_until(lambda: server.stats.num_requests == 1, "the one request is counted")


@pytest.mark.slow
def test_a_guarded_server_process_is_started_from_files(
    typed_case: Case, authority: Authority, server_identity: Identity, tmp_path: Path
) -> None:
    files = {"token": TOKEN.encode() + b"\n", "cert": server_identity.certificate, "key": server_identity.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "roots").write_bytes(authority.root)
    ours = authority.issue("trainer")
    arguments = [
        "--location", "tls://0.0.0.0:0", "--token", tmp_path / "token", "--certificate", tmp_path / "cert",
        "--key", tmp_path / "key", "--client-roots", tmp_path / "roots",
    ]  # fmt: skip
    with ServerProcess(typed_case.root, *arguments) as process:
        location = process.location.replace("0.0.0.0", "127.0.0.1")
        full = ClientSecurity(token=TOKEN, roots=authority.root, certificate=ours.certificate, private_key=ours.key)
        with connect(location, full) as store:
            assert store.split("paper", "train").tolist() == typed_case.graph.splits["paper"]["train"].tolist()
        with pytest.raises(AccessDenied):
            connect(location, replace(full, token=None))
        with pytest.raises(StoreUnavailable):
            connect(location, replace(full, certificate=None, private_key=None))
        process.terminate()
        assert process.wait() == 0


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(AccessDenied, match=r"token would go to tcp://10\.0\.0\.7:7001 in the clear"):
        connect("tcp://10.0.0.7:7001", ClientSecurity(token=TOKEN))


def test_tokens_and_keys_are_not_shown() -> None:
    shown = repr(ServerSecurity(token=TOKEN)) + repr(StoreSettings(security=ClientSecurity(token=TOKEN)))
    assert TOKEN not in shown


@pytest.mark.parametrize("token", ["", "two words", "tab\t", "naïve", "new\nline"])
def test_tokens_unfit_for_a_header_are_refused(token: str) -> None:
    for kind in (ServerSecurity, ClientSecurity):
        with pytest.raises(SettingsError, match="a token must be"):
            kind(token=token)


def test_names_of_pem_files_are_paths() -> None:
    for kind, name in ((ServerSecurity, "certificate"), (ClientSecurity, "roots")):
        with pytest.raises(SettingsError, match=f"{name} is a str; give the Path of a PEM file, or its bytes"):
            kind(**{name: "root.pem"})


def test_incomplete_certificate_settings_are_refused(server_identity: Identity, authority: Authority) -> None:
    for kind in (ServerSecurity, ClientSecurity):
        with pytest.raises(SettingsError, match="must be given together"):
            kind(certificate=server_identity.certificate)
        with pytest.raises(SettingsError, match="must be given together"):
            kind(private_key=server_identity.key)
    with pytest.raises(SettingsError, match="only with TLS"):
        ServerSecurity(client_roots=authority.root)


def test_scheme_and_certificate_must_agree(typed_case: Case, server_identity: Identity) -> None:
    with_tls = ServerSecurity(token=TOKEN, certificate=server_identity.certificate, private_key=server_identity.key)
    with pytest.raises(SettingsError, match="listen at tls://"):
        StoreServer(typed_case.shared(), "tcp://127.0.0.1:0", security=with_tls)
    with pytest.raises(SettingsError, match="listen at tcp://"):
        StoreServer(typed_case.shared(), TLS)


def test_invalid_certificates_are_refused(typed_case: Case) -> None:
    security = ServerSecurity(token=TOKEN, certificate=b"not PEM", private_key=b"not PEM")
    with pytest.raises(SettingsError, match=r"is not a PEM file|TLS cannot be set up .* PEM"):
        StoreServer(typed_case.shared(), TLS, security=security)


@pytest.mark.parametrize(
    ("location", "is_loopback"),
    [
        ("tcp://localhost:1", True), ("tcp://127.0.0.1:1", True), ("tcp://127.8.9.1:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://0.0.0.0:1", False), ("tcp://[::]:1", False), ("tcp://10.0.0.1:1", False),
        ("tcp://localhost.example:1", False), ("tls://127.0.0.1.example:1", False),
    ],
)  # fmt: skip
def test_loopback_addresses_are_recognized(location: str, is_loopback: bool) -> None:
    assert Location.parse(location).is_loopback == is_loopback
    assert str(Location.parse(location)) == location


def test_files_of_secrets_are_read_and_checked(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(f"  {TOKEN}\n", encoding="ascii")
    (tmp_path / "token").chmod(0o640)  # a group that is meant to read it
    assert read_token(tmp_path / "token") == TOKEN and caplog.records == []
    (tmp_path / "token").chmod(0o644)
    assert [read_token(tmp_path / "token") for _ in range(2)] == [TOKEN, TOKEN]
    told = (
        f"token file {tmp_path / 'token'} can be read by every user of the machine; run chmod 600 {tmp_path / 'token'}"
    )
    assert caplog.messages == [told]  # once
    (tmp_path / "empty").write_text("\n", encoding="ascii")
    (tmp_path / "root").write_bytes(authority.root)
    assert read_pem(tmp_path / "root") == authority.root
    for name in ("empty", "missing"):
        with pytest.raises(SettingsError):
            read_token(tmp_path / name)
        with pytest.raises(SettingsError):
            read_pem(tmp_path / name)
