"""Tests where servers of ``up`` listen, whom they admit, and that they leave nothing at their end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hopstream
from hopstream.cli.doors import Doors, remove_made
from hopstream.cli.server_flags import TOKEN_VARIABLE
from hopstream.errors import AccessDenied, SettingsError
from hopstream.store import open_store
from hopstream.store.cluster import Cluster, ServerEntry, read_cluster
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.transport.location import MAX_SOCKET_PATH
from hopstream.transport.security import ClientSecurity

REMOTE = StoreSettings(prefer_local=False, timeout_s=20.0)


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the token from the environment that the tests run in."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def doors(folder: Path, **options: Any) -> Doors:
    return Doors(folder / "c.json", **{"has_sockets": True, "token_file": None, "asks_token": True, **options})


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def socket_folder(made: Doors) -> Path:
    flag, location = made.flags(3)
    assert flag == "--location" and location.endswith("/3")
    return Path(location.removeprefix("unix://")).parent


def test_sockets_are_in_a_folder_private_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runtime = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    try:
        with doors(tmp_path) as made:
            folder = socket_folder(made)
            assert folder.parent == runtime and mode_of(folder) == 0o700
            assert (made.token_file, made.named_token) == (None, None)
            (folder / "3").touch()
        assert not folder.exists() and list(tmp_path.iterdir()) == []
    finally:
        runtime.rmdir()


@pytest.mark.parametrize("name", ["relative", "missing", "long", "comma", "locked"])
def test_folders_that_cannot_hold_sockets_are_skipped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parent = {
        "relative": "run", "missing": str(tmp_path / "none"), "long": str(tmp_path / ("x" * MAX_SOCKET_PATH)),
        "comma": str(tmp_path / "a,b"), "locked": "/proc",
    }[name]  # fmt: skip
    if name in ("long", "comma"):
        Path(parent).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", parent)
    with doors(tmp_path) as made:
        folder = socket_folder(made)
        assert folder.is_dir() and not folder.is_relative_to(Path(parent).absolute())
        assert len(os.fsencode(folder / "1234567")) <= MAX_SOCKET_PATH


def test_no_folder_can_hold_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hopstream.cli.doors.mkdtemp", lambda **_: (_ for _ in ()).throw(PermissionError()))
    with pytest.raises(SettingsError, match="set XDG_RUNTIME_DIR to one, or give --bind tcp"), doors(tmp_path):
        pass


def test_a_token_is_made_for_ports(tmp_path: Path):
    tokens = set()
    for _ in range(2):
        with doors(tmp_path, has_sockets=False) as made:
            path = made.token_file
            assert path is not None and path.parent == tmp_path and path.name.startswith("c.json.")
            assert made.named_token == path and mode_of(path) == 0o600
            assert made.flags(0) == ["--token-file", str(path)]
            assert re.fullmatch("[0-9a-f]{64}\n", path.read_text())
            tokens.add(path.read_text())
        assert list(tmp_path.iterdir()) == []
    assert len(tokens) == 2


def test_a_generated_token_file_does_not_fail_verification(run_command, parts: Path):
    with Doors(parts / "cluster.json", has_sockets=False, token_file=None, asks_token=True):
        assert run_command("verify", parts).status == 0
        (parts / "mine.token").touch()
        result = run_command("verify", parts)
        assert result.status == 1 and "mine.token: is not a file of this dataset" in result.out
        assert "cluster.json." not in result.out


def test_given_tokens_replace_the_generated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "beside").write_text("s3cret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/token").write_text("s3cret")
    for has_sockets in (True, False):
        with doors(tmp_path, has_sockets=has_sockets, token_file=tmp_path / "beside") as made:
            assert made.named_token == made.token_file == tmp_path / "beside"
            assert made.flags(0)[-2:] == ["--token-file", str(tmp_path / "beside")]
        with doors(tmp_path, has_sockets=has_sockets, token_file=tmp_path / "other/token") as made:
            assert made.named_token is None and made.token_file == tmp_path / "other/token"
        monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
        with doors(tmp_path, has_sockets=has_sockets) as made:
            assert made.token_file is None and made.environment()[TOKEN_VARIABLE] == "from-the-environment"
        with doors(tmp_path, has_sockets=has_sockets, asks_token=False) as made:
            assert made.token_file is None and TOKEN_VARIABLE not in made.environment()
        monkeypatch.delenv(TOKEN_VARIABLE)
    assert (tmp_path / "beside").exists() and (tmp_path / "other/token").exists()


def test_leftovers_of_a_killed_command_are_removed_and_nothing_else(tmp_path: Path):
    path = tmp_path / "c.json"
    for name in ("c.json.0a1b2c3d.token", "mine.token", "c.json.notes"):
        (tmp_path / name).write_text("x")
    for folder, is_empty in (("hopstream-a", True), ("hopstream-b", False), ("others", True)):
        (tmp_path / folder).mkdir()
        if not is_empty:
            (tmp_path / folder / "x").touch()
        locations = [f"unix://{tmp_path / folder}/{n}" for n in (0, 1)]
        servers = tuple(ServerEntry(location=one, parts=(0,)) for one in [*locations, "tcp://127.0.0.1:1"])
        for name in ("c.json.0a1b2c3d.token", "mine.token", "c.json.notes"):
            remove_made(path, Cluster(dataset_id="0", servers=servers, token_file=tmp_path / name))
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {"mine.token", "c.json.notes", "hopstream-b", "others"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bind", "udp"), "--bind is 'udp'; it must be one of unix, tcp"),
        (("--token-file", "none"), "token file none cannot be read"),
        (("--token-file", "{}", "--no-token"), "--token-file and --no-token are both given"),
        (("--token-file", "{}"), ":2 has 2 words; a token file is one token alone, or lines of: name read|admin token"),
    ],
)
def test_up_refuses_bad_options_of_access(
    run_command, parts: Path, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table").write_text("trainer read abc\nops admin\n")
    result = run_command("up", parts, *(word.format(tmp_path / "table") for word in arguments))
    assert result.status == 2 and message in result.err and result.out == "", result.err
    assert not (parts / "cluster.json").exists()


def start(processes: Any, parts: Path, *arguments: object, **options: Any) -> tuple[Any, dict[str, Any]]:
    up = processes.start("up", parts, *arguments, "--json", **options)
    return up, processes.wait_for_fact(up, "stage", "ready")


def end(processes: Any, up: Any) -> None:
    os.kill(up.process.pid, signal.SIGTERM)
    result = processes.wait_for_end(up)
    # On a busy machine the command reports after a while that it still waits.
    said = [line for line in result.err.splitlines() if not line.startswith("WARNING: waiting")]
    assert (result.status, said) == (0, [])


def batches(source: object) -> int:
    options = {"batch_size": 30, "collate": "numpy"}
    with hopstream.NeighborLoader(source, [2], ("paper", "train"), **options) as loader:
        return sum(1 for _ in loader)


def test_by_default_at_sockets(processes, run_command, parts: Path):
    before = set(parts.iterdir())
    up, ready = start(processes, parts)
    assert ready["token_file"] is None
    cluster = read_cluster(parts / "cluster.json")
    sockets = [Path(entry.location.removeprefix("unix://")) for entry in cluster.servers]
    assert len(sockets) == 2 and cluster.token_file is None
    for path in sockets:
        assert path.is_socket() and mode_of(path) == 0o600 and mode_of(path.parent) == 0o700
    assert batches(RemoteGraph(parts / "cluster.json", settings=REMOTE)) == 1
    assert run_command("top", parts / "cluster.json", "--once").status == 0
    joined = ",".join(entry.location for entry in cluster.servers)
    assert run_command("top", joined, "--once").status == 0  # also by addresses
    assert batches(RemoteGraph(joined, settings=REMOTE)) == 1
    end(processes, up)
    assert not sockets[0].parent.exists() and set(parts.iterdir()) == before


@pytest.mark.slow
def test_at_ports_readers_of_the_token_file_need_no_flag(processes, run_command, parts: Path):
    before = set(parts.iterdir())
    up, ready = start(processes, parts, "--bind", "tcp")
    path, token = parts / "cluster.json", Path(ready["token_file"])
    value = json.loads(path.read_text())
    assert value["format"] == 1 and value["token_file"] == token.name and token.parent == parts
    assert mode_of(token) == 0o600
    assert all(server["location"].startswith("tcp://127.0.0.1:") for server in value["servers"])
    assert batches(RemoteGraph(path, settings=REMOTE)) == 1
    with open_store(path, REMOTE) as store:
        assert store.book.num_ids("paper") == 60
    for words in (("top", path, "--once"), ("inspect", path)):
        assert run_command(*words).status == 0
    secret = token.read_text().strip()
    assert not any(secret in word for word in _words_of_children(up.process.pid)) and secret not in "".join(up.lines)
    # An address alone, or another token, is refused.
    joined = ",".join(server["location"] for server in value["servers"])
    for source, security in ((joined, ClientSecurity()), (path, ClientSecurity(token="another"))):
        settings = StoreSettings(prefer_local=False, timeout_s=20.0, security=security)
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            open_store(source, settings)
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            RemoteGraph(source, settings=settings).fetch_schema()
    result = run_command("top", joined, "--once")
    assert result.status == 1 and "token is missing or wrong" in result.err
    assert run_command("top", joined, "--once", "--token-file", token).status == 0
    # The cluster's token is an admin's: the servers tell their path, so parts are mapped.
    settings = StoreSettings(timeout_s=20.0, security=ClientSecurity(token=secret))
    with open_store(joined, settings) as store:
        assert type(store).__name__ == "LocalStore"
    end(processes, up)
    assert set(parts.iterdir()) == before


def _words_of_children(pid: int) -> list[str]:
    import psutil

    return [word for child in psutil.Process(pid).children() for word in child.cmdline()]


@pytest.mark.slow
def test_without_a_token_all_local_users_are_admitted(processes, parts: Path):
    environment = {TOKEN_VARIABLE: "ignored"}
    up, ready = start(processes, parts, "--bind", "tcp", "--no-token", environment=environment)
    cluster = read_cluster(parts / "cluster.json")
    assert ready["token_file"] is None and cluster.token_file is None
    joined = ",".join(entry.location for entry in cluster.servers)
    assert batches(RemoteGraph(joined, settings=REMOTE)) == 1
    end(processes, up)


@pytest.mark.slow
@pytest.mark.parametrize("bind", ["unix", "tcp"])
def test_a_table_of_tokens(processes, run_command, parts: Path, tmp_path: Path, bind: str):
    """Servers use the table's first admin token for each other; read tokens may sample but not watch."""
    table, one = tmp_path / "table", tmp_path / "one"
    table.write_text("# who may what\ntrainer read rrr\nops admin aaa\n")
    one.write_text("rrr\n")
    for path in (table, one):
        path.chmod(0o600)
    up, ready = start(
        processes, parts, "--bind", bind, "--token-file", table, "--cluster-file", tmp_path / "c.json",
    )  # fmt: skip
    assert ready["token_file"] == str(table) and read_cluster(tmp_path / "c.json").token_file == table
    assert run_command("top", tmp_path / "c.json", "--once").status == 0
    result = run_command("top", tmp_path / "c.json", "--once", "--token-file", one)
    assert result.status == 1 and "stats needs admin rights, and the token of 'trainer' has read rights" in result.err
    assert "top needs a token with admin rights: give --token-file" in result.err and "refused: " in result.out
    assert run_command("inspect", tmp_path / "c.json", "--token-file", one).status == 0
    reader = StoreSettings(prefer_local=False, timeout_s=20.0, security=ClientSecurity(token_file=one))
    assert batches(RemoteGraph(tmp_path / "c.json", settings=reader)) == 1
    end(processes, up)
    assert table.exists() and not (tmp_path / "c.json").exists()


@pytest.mark.slow
def test_the_next_run_removes_leftovers_of_a_killed_run(processes, parts: Path):
    before = set(parts.iterdir())
    up, ready = start(processes, parts, "--bind", "tcp")
    os.kill(up.process.pid, signal.SIGKILL)
    processes.wait_for_end(up)
    assert Path(ready["token_file"]).exists()
    up, _ = start(processes, parts)
    assert not Path(ready["token_file"]).exists()
    folder = Path(read_cluster(parts / "cluster.json").servers[0].location.removeprefix("unix://")).parent
    os.kill(up.process.pid, signal.SIGKILL)
    processes.wait_for_end(up)
    up, _ = start(processes, parts)
    assert not folder.exists() or list(folder.iterdir()) != []  # sockets of servers that end last are still there
    end(processes, up)
    assert set(parts.iterdir()) == before


def test_a_socket_with_a_listener_counts_as_running(run_command, parts: Path, tmp_path: Path):
    where = Path(tempfile.mkdtemp(dir="/tmp"))
    location = f"unix://{where / 's'}"
    (parts / "cluster.json").write_text(
        json.dumps({"format": 1, "dataset_id": "0", "servers": [{"location": location, "parts": [0, 1]}]})
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(where / "s"))
            listening.listen()
            result = run_command("up", parts)
            assert result.status == 2 and f"names {location}, which is running" in result.err
        assert (parts / "cluster.json").exists()
    finally:
        (where / "s").unlink()
        where.rmdir()
