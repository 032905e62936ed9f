"""Tests that flags and files decide which clients a server admits, also after files have changed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopstream
from hopstream.cli.server_flags import TOKEN_VARIABLE, ClientAccess, ServerAccess
from hopstream.errors import AccessDenied, SettingsError, StoreUnavailable
from hopstream.store.remote import RemoteStore
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.transport.security import ClientSecurity
from tests.store.authority import Authority
from tests.store.processes import wait_until


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the token from the environment that the tests run in."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def put(path: Path, content: str | bytes) -> Path:
    """Replace a file atomically, with access for this user alone."""
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    return new.replace(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A table of tokens, and a certificate with its key and roots."""
    authority = Authority("our root")
    identity = authority.issue("store.example")
    contents = {
        "table": "trainer read rrr\nops admin aaa\n", "cert": identity.certificate, "key": identity.key,
        "ca": authority.root, "other-key": authority.issue("x").key,
    }  # fmt: skip
    return {name: put(tmp_path / name, content) for name, content in contents.items()}


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def stop(processes: Any, child: Any) -> Any:
    os.kill(child.process.pid, signal.SIGTERM)
    return processes.wait_for_end(child)


def opens(location: str, **security: Any) -> bool:
    """Whether a server admits a client."""
    try:
        RemoteStore(location, StoreSettings(timeout_s=20.0, security=ClientSecurity(**security))).close()
    except AccessDenied:
        return False
    return True


def test_files_are_named_and_not_copied(files: dict[str, Path]):
    server = ServerAccess(
        tls_cert=files["cert"], tls_key=files["key"], client_ca=files["ca"], token_file=files["table"], insecure=True
    ).read()
    assert (server.certificate, server.private_key, server.client_roots) == (files["cert"], files["key"], files["ca"])
    assert (server.token, server.token_file, server.is_insecure) == (None, files["table"], True)
    client = ClientAccess(
        server_ca=files["ca"], tls_cert=files["cert"], tls_key=files["key"], token_file=files["table"]
    ).read()
    assert (client.roots, client.certificate, client.private_key) == (files["ca"], files["cert"], files["key"])
    assert client.token_file == files["table"] and client.current_token() == "aaa"


def test_the_environment_is_used_without_a_file(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    assert ServerAccess().read().tokens is None and not ClientAccess().read().has_token
    monkeypatch.setenv(TOKEN_VARIABLE, "eee")
    for access in (ServerAccess, ClientAccess):
        assert (access().read().token, access().read().token_file) == ("eee", None)
        found = access(token_file=files["table"]).read()
        assert (found.token, found.token_file) == (None, files["table"])


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        (ServerAccess, {"tls_cert": "cert", "tls_key": "other-key"}, "TLS cannot be set up"),
        (ClientAccess, {"tls_cert": "cert", "tls_key": "other-key"}, "TLS cannot be set up"),
        (ServerAccess, {"tls_cert": "cert", "tls_key": "key", "client_ca": "table"}, "is not a PEM file"),
        (ClientAccess, {"server_ca": "table"}, "is not a PEM file"),
        (ClientAccess, {"server_ca": "none"}, "none cannot be read"),
        (ServerAccess, {"tls_key": "key"}, "give --tls-cert too"),
        (ServerAccess, {"client_ca": "ca"}, "--client-ca is only for TLS"),
    ],
    ids=range(7),
)
def test_bad_access_files_are_refused_before_any_connection(
    files: dict[str, Path], kind: Any, flags: dict[str, str], message: str
):
    files["none"] = files["ca"].with_name("none")
    with pytest.raises(SettingsError, match=message):
        kind(**{flag: files[name] for flag, name in flags.items()}).read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--token-file", "{wrong}"), "wrong:3 has 2 words; a token file is one token alone, or lines of"),
        (("--location", "unix://relative"), "is not a location; write unix:// and an absolute path"),
        (("--location", f"unix:///{'x' * 107}"), "of at most 107 bytes"),
        (
            ("--location", "unix:///run/s", "--tls-cert", "{cert}", "--tls-key", "{key}"),
            "--tls-cert is only for tls://",
        ),
        (("--location", "grpc+tls://127.0.0.1:0"), "needs a certificate; give --tls-cert and --tls-key"),
        (("--location", "udp://127.0.0.1:0"), "write tcp://host:port, tls://host:port or unix:///path"),
    ],
)
def test_serve_refuses_bad_options_of_access(
    run_command, parts: Path, files: dict[str, Path], arguments: tuple[str, ...], message: str
):
    files["wrong"] = put(files["table"].with_name("wrong"), "a read x\n# b\nb read\n")
    result = run_command("serve", parts, *(word.format(**files) for word in arguments))
    assert result.status == 2 and message in result.err and result.out == "", result.err


def test_a_server_at_a_socket(processes, run_command, parts: Path, sockets: Path):
    location = f"unix://{sockets / 's'}"
    server = processes.start("serve", parts, "--sample", "--location", location, "--json")
    assert processes.wait_for_fact(server, "stage", "ready")["location"] == location
    options: dict[str, Any] = {"num_neighbors": [2], "seeds": ("paper", "train"), "batch_size": 30}
    settings = StoreSettings(prefer_local=False)
    with hopstream.NeighborLoader(RemoteGraph(location, settings=settings), **options, collate="numpy") as loader:
        assert len(list(loader)) == 1
    result = run_command("top", location, "--once")
    assert result.status == 0 and result.out.splitlines()[1].startswith(location)
    again = run_command("serve", parts, "--location", location)
    assert again.status == 1 and f"cannot listen at {location}: another server listens there" in again.err
    assert stop(processes, server).status == 0
    assert list(sockets.iterdir()) == []
    with pytest.raises(StoreUnavailable, match="nothing listens there"):
        RemoteStore(location)


@pytest.mark.slow
def test_a_socket_that_a_killed_server_left_is_used_again(processes, parts: Path, sockets: Path):
    location = f"unix://{sockets / 's'}"
    for number in (signal.SIGKILL, signal.SIGTERM):
        server = processes.start("serve", parts, "--location", location, "--json")
        processes.wait_for_fact(server, "stage", "ready")
        assert opens(location)
        os.kill(server.process.pid, number)
        processes.wait_for_end(server)


def test_a_changed_token_table_is_reread(processes, run_command, parts: Path, files: dict[str, Path]):
    server = processes.start("serve", parts, "--sample", "--token-file", files["table"], "--json")
    location = processes.wait_for_fact(server, "stage", "ready")["location"]
    one = put(files["table"].with_name("one"), "rrr\n")
    assert [opens(location, token=token) for token in ("rrr", "aaa", "bbb", None)] == [True, True, False, False]
    result = run_command("top", location, "--once", "--token-file", one)
    assert result.status == 1 and result.err == (
        f"error: {location}: stats needs admin rights, and the token of 'trainer' has read rights; "
        "top needs a token with admin rights: give --token-file\n"
    )
    refused = run_command("top", location, "--once", "--json", "--token-file", one)
    assert refused.facts[0]["answers"] is False and "stats needs admin rights" in refused.facts[0]["reason"]
    assert run_command("top", location, "--once", "--token-file", files["table"]).status == 0
    put(files["table"], "trainer admin rrr\nwrong\n")  # told in the log
    assert opens(location, token="aaa")
    put(files["table"], "trainer admin rrr\n")
    assert not opens(location, token="aaa")
    assert run_command("top", location, "--once", "--token-file", one).status == 0
    result = stop(processes, server)
    assert result.status == 0 and f"{files['table']}:2 has 1 word; " in result.err
    assert "the previous content stays in use" in result.err


@pytest.mark.slow
def test_servers_send_the_current_token_of_their_file_to_peers(processes, parts: Path, files: dict[str, Path]):
    """The token file changes while the graph is open; the second server maps no local parts."""
    words = ("--token-file", files["table"], "--tls-cert", files["cert"], "--tls-key", files["key"], "--json")
    words += ("--location", "tls://127.0.0.1:0")
    first = processes.start("serve", parts, "--sample", *words)
    location = processes.wait_for_fact(first, "stage", "ready")["location"]
    second = processes.start(
        "serve", parts, "--parts", 1, *words, "--cluster", location, "--no-map-local", "--peer-ca", files["ca"],
    )  # fmt: skip
    own = processes.wait_for_fact(second, "stage", "ready")["location"]
    mine = put(files["table"].with_name("mine"), "rrr\n")
    security = ClientSecurity(token_file=mine, roots=files["ca"])
    options: dict[str, Any] = {"num_neighbors": [2], "seeds": ("paper", "train"), "batch_size": 10, "shuffle": False}
    with hopstream.NeighborLoader(parts, **options, collate="numpy") as local:
        wanted = [[batch.node_keys["paper"].tolist() for batch in local] for _ in range(2)]
    joined = RemoteGraph(f"{own},{location}", settings=StoreSettings(prefer_local=False, security=security))
    with hopstream.NeighborLoader(joined, **options, collate="numpy") as loader:
        assert [batch.node_keys["paper"].tolist() for batch in loader] == wanted[0]
        put(files["table"], "trainer read r2\nops admin a2\n")
        put(mine, "r2\n")
        wait_until(lambda: not opens(location, token="rrr", roots=files["ca"]), "the old token is not in force")
        assert [batch.node_keys["paper"].tolist() for batch in loader] == wanted[1]
    assert [stop(processes, server).status for server in (second, first)] == [0, 0]
