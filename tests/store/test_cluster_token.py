"""Tests that readers of the token file are admitted, and that the token goes to no other server."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopstream.cli.survey import Survey
from hopstream.errors import AccessDenied, FormatError, SettingsError
from hopstream.store import open_store
from hopstream.store.cluster import Cluster, ServerEntry, parse_locations, read_cluster, write_cluster
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.store.cases import Case

FAR = StoreSettings(prefer_local=False, timeout_s=20)


def write_token(path: Path, token: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(f"{token}\n", encoding="ascii")
    return path


@pytest.fixture
def server(typed_case: Case) -> Iterator[StoreServer]:
    """A server of all parts that asks for a token."""
    with StoreServer(typed_case.shared(), security=ServerSecurity(token="s3cret")) as running:
        yield running


@pytest.fixture
def cluster_file(typed_case: Case, server: StoreServer, tmp_path: Path) -> Path:
    """Its cluster file, with the token beside it."""
    entry = ServerEntry(location=server.location, parts=(0, 1, 2))
    token_file = write_token(tmp_path / "c.token", "s3cret")
    cluster = Cluster(dataset_id=typed_case.dataset.manifest.dataset_id, servers=(entry,), token_file=token_file)
    write_cluster(tmp_path / "c.json", cluster)
    return tmp_path / "c.json"


def test_the_cluster_file_names_the_token_file_without_folder(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.loads(cluster_file.read_text())
    assert (value["format"], value["token_file"]) == (1, "c.token") and "s3cret" not in cluster_file.read_text()
    assert read_cluster(cluster_file).token_file == cluster_file.parent / "c.token"
    monkeypatch.chdir(cluster_file.parent)
    assert read_cluster(Path("c.json")).token_file == Path("c.token")
    write_cluster(Path("again.json"), read_cluster(Path("c.json")))
    assert json.loads(Path("again.json").read_text()) == value


def test_every_way_to_open_the_file_uses_its_token(cluster_file: Path) -> None:
    with open_store(cluster_file, FAR) as store:
        assert len(store.split("paper", "train")) > 0
    with RemoteGraph(cluster_file, settings=FAR) as graph:
        assert "paper" in graph.fetch_node_types()
    with Survey(read_cluster(cluster_file), FAR) as survey:
        assert [state.reason for state in survey.ask()] == [""]


def test_without_the_token_file_access_is_denied(cluster_file: Path, server: StoreServer) -> None:
    with pytest.raises(AccessDenied, match="token is missing or wrong"):
        open_store(server.location, FAR)


def test_a_given_token_takes_precedence(cluster_file: Path, tmp_path: Path) -> None:
    for security in (ClientSecurity(token="wrong"), ClientSecurity(token_file=write_token(tmp_path / "x", "wrong"))):
        settings = StoreSettings(prefer_local=False, security=security)
        assert read_cluster(cluster_file).access(settings) is settings
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            open_store(cluster_file, settings)
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            RemoteGraph(cluster_file, settings=settings).fetch_node_types()


def test_other_settings_are_kept(cluster_file: Path) -> None:
    settings = StoreSettings(timeout_s=7, security=ClientSecurity(server_name="store.example", is_insecure=True))
    found = read_cluster(cluster_file).access(settings)
    assert (found.timeout_s, found.security.server_name, found.security.is_insecure) == (7, "store.example", True)
    assert found.security.current_token() == "s3cret" and found == read_cluster(cluster_file).access(found)
    assert read_cluster(cluster_file).access(None).security.current_token() == "s3cret"


def test_a_missing_token_file_is_logged_and_servers_deny_access(
    cluster_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cluster_file.parent / "c.token").unlink()
    with pytest.raises(AccessDenied, match="token is missing or wrong"):
        open_store(cluster_file, FAR)
    assert any("cannot be read" in m and "carry no token" in m for m in caplog.messages)


def with_token_file(path: Path, name: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), "token_file": name}))
    return path


@pytest.mark.parametrize("name", ["/etc/passwd", "../c.token", "a/b", "", ".", "..", "x\0y", 7, True, ["c.token"], {}])
def test_a_cluster_file_names_no_file_elsewhere(cluster_file: Path, name: Any) -> None:
    """Else the cluster file's author, who also names the servers, would get the content of a user's file."""
    with pytest.raises(FormatError, match=r"token_file is .*; it must be the name of a file beside the cluster file"):
        read_cluster(with_token_file(cluster_file, name))


def put_link(path: Path) -> None:
    secret = write_token(path.with_name("secret"), "of-the-victim")
    path.unlink()
    path.symlink_to(secret)


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_file_of_another(path: Path) -> None:
    path.unlink()
    os.chown(write_token(path, "of-the-victim"), 12345, -1)


OTHERS = [
    put_link, put_pipe,
    pytest.param(
        put_file_of_another, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    ),
]  # fmt: skip


@pytest.mark.parametrize("put", OTHERS)
def test_a_token_file_of_another_owner_is_not_used(
    cluster_file: Path, put: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    put(cluster_file.parent / "c.token")
    assert not read_cluster(cluster_file).access(None).security.has_token
    assert "carry no token" in caplog.text


@pytest.mark.parametrize("put", OTHERS)
def test_a_token_file_replaced_later_by_another_owner_is_not_used(
    cluster_file: Path, put: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Else a client that reconnects would send its own token to servers that another user has named."""
    security = read_cluster(cluster_file).access(None).security
    sent_elsewhere = pickle.loads(pickle.dumps(security))
    put(cluster_file.parent / "c.token")
    assert security.current_token() == "s3cret" and "the previous content stays in use" in caplog.text
    with pytest.raises(SettingsError, match="token file"):
        sent_elsewhere.current_token()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_replaced_cluster_folder_gives_no_token(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs, mine):
        folder.mkdir()
        write_token(folder / "c.token", f"of-{folder.name}")
    entry = ServerEntry(location="tcp://127.0.0.1:1", parts=(0,))
    write_cluster(theirs / "c.json", Cluster(dataset_id="0", servers=(entry,), token_file=theirs / "c.token"))
    for name in ("c.json", "c.token"):
        os.chown(theirs / name, 12345, -1)
    security = read_cluster(theirs / "c.json").access(None).security
    theirs.rename(tmp_path / "moved")
    theirs.symlink_to(mine)
    assert security.current_token() == "of-theirs"


def test_token_files_in_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    entry = ServerEntry(location="tcp://127.0.0.1:1", parts=(0,))
    cluster = Cluster(dataset_id="0", servers=(entry,), token_file=write_token(tmp_path / "other/t", "x"))
    with pytest.raises(SettingsError, match="does not lie beside"):
        write_cluster(tmp_path / "c.json", cluster)
    assert not (tmp_path / "c.json").exists()


def test_addresses_with_other_names_of_schemes_are_read(tmp_path: Path) -> None:
    old = ["grpc://127.0.0.1:1", "grpc+tcp://a:2", "grpc+tls://b.example:3", "unix:///run/s", "tcp://[::1]:4"]
    new = ["tcp://127.0.0.1:1", "tcp://a:2", "tls://b.example:3", "unix:///run/s", "tcp://[::1]:4"]
    servers = [{"location": location, "parts": [0], "path": None} for location in old]
    (tmp_path / "c.json").write_text(json.dumps({"format": 1, "dataset_id": "0", "servers": servers}))
    assert [entry.location for entry in read_cluster(tmp_path / "c.json").servers] == new
    assert [entry.location for entry in parse_locations(" , ".join(old)).servers] == new
    with pytest.raises(SettingsError, match="a cluster names a server twice: tcp://a:2"):
        parse_locations("grpc://a:2,tcp://a:2")


def test_a_cluster_of_sockets_and_ports(typed_case: Case) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        StoreServer(typed_case.shared([0, 1]), f"unix://{folder}/s") as near,
        StoreServer(typed_case.shared([2])) as far,
        open_store(f"{near.location},{far.location}", FAR) as store,
    ):
        assert near.location == f"unix://{folder}/s" and store.parts == (0, 1, 2)
        assert len(store.split("paper", "train")) > 0
