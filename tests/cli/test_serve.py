"""Checks that the command serves parts to permitted clients until it gets a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hopstream.cli.serve import parts_text
from hopstream.cli.server_flags import TOKEN_VARIABLE
from hopstream.dataset.layout import read_manifest
from hopstream.errors import AccessDenied, FormatError, StoreUnavailable
from hopstream.store.remote import RemoteStore
from hopstream.store.settings import StoreSettings
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.security import ClientSecurity


def test_parts_are_shown_as_ranges():
    assert parts_text((0, 2, 3, 4, 7), 8) == "parts 0, 2-4, 7 of 8"
    assert parts_text((3,), 8) == "part 3 of 8"


def test_a_server_serves_until_sigterm(processes, parts: Path, tmp_path: Path):
    server = processes.start("serve", parts, "--parts", "1", "--announce", tmp_path / "one.json", "--json")
    ready = processes.wait_for_fact(server, "stage", "ready")
    manifest = read_manifest(parts)
    assert ready["parts"] == [1] and ready["dataset_id"] == manifest.dataset_id and ready["seconds"] > 0
    assert ready["process"] == server.process.pid and ready["metrics"] is None
    announced = json.loads((tmp_path / "one.json").read_text())
    assert announced["servers"] == [{"location": ready["location"], "parts": [1], "path": str(parts)}]
    with RemoteStore(ready["location"]) as store:
        ids = np.arange(*store.book.node_offsets["paper"][1:3])
        assert len(store.degrees(("paper", "cites", "paper"), "in", ids)) == len(ids)
    os.kill(server.process.pid, signal.SIGTERM)
    result = processes.wait_for_end(server)
    assert (result.status, result.err) == (0, "")
    stopped = result.fact("stage", "stop")
    assert stopped["requests"] >= 2 and stopped["failures"] == 0 and stopped["bytes"] > 0
    assert not (tmp_path / "one.json").exists()
    with pytest.raises(StoreUnavailable):
        RemoteStore(ready["location"], StoreSettings(timeout_s=5))


def test_ctrl_c_and_text(processes, parts: Path):
    server = processes.start("serve", parts)
    processes.wait_for(server, lambda: bool(server.lines))
    assert server.lines[0].startswith("ready   tcp://127.0.0.1:") and "  parts 0-1 of 2 " in server.lines[0]
    os.kill(server.process.pid, signal.SIGINT)
    result = processes.wait_for_end(server)
    assert result.status == 0 and result.out.splitlines()[-1].endswith("0 requests, 0 B")


def test_a_server_stops_when_its_parent_exits(processes, parts: Path):
    server = processes.start("serve", parts, "--stop-on-eof", "--json")
    processes.wait_for_fact(server, "stage", "ready")
    server.process.stdin.close()
    assert processes.wait_for_end(server).status == 0


def test_the_server_requires_the_token(processes, parts: Path, tmp_path: Path):
    (tmp_path / "token").write_text("  s3cret\n")
    server = processes.start(
        "serve", parts, "--token-file", tmp_path / "token", "--json", environment={TOKEN_VARIABLE: "another"}
    )
    location = processes.wait_for_fact(server, "stage", "ready")["location"]
    for token in (None, "another"):
        with pytest.raises(AccessDenied):
            RemoteStore(location, StoreSettings(security=ClientSecurity(token=token)))
    RemoteStore(location, StoreSettings(security=ClientSecurity(token="s3cret"))).close()
    assert not any("s3cret" in word for word in server.process.args)


def test_the_last_line_separates_refusals_from_failures(processes, parts: Path):
    server = processes.start("serve", parts)
    processes.wait_for(server, lambda: bool(server.lines))
    connection = Connection(Location.parse(server.lines[0].split()[1]), ClientSecurity())
    with closing(connection), pytest.raises(FormatError):
        connection.ask(Frame({"op": "nonsense"}), 10.0, "a test")
    os.kill(server.process.pid, signal.SIGTERM)
    last = processes.wait_for_end(server).out.splitlines()[-1]
    assert last.endswith(", 1 refused") and "failed" not in last, last


def test_the_token_of_the_environment(processes, run_command, parts: Path, tmp_path: Path, monkeypatch):
    environment = {TOKEN_VARIABLE: "from-the-environment"}
    path = tmp_path / "all.json"
    server = processes.start("serve", parts, "--announce", path, "--json", environment=environment)
    processes.wait_for_fact(server, "stage", "ready")
    result = run_command("inspect", path)
    assert result.status == 1 and "refused" in result.err
    monkeypatch.setenv(TOKEN_VARIABLE, environment[TOKEN_VARIABLE])
    result = run_command("inspect", path, "--json")
    assert result.status == 0 and result.fact("server")["parts"] == [0, 1]
    head = result.fact("stage", "inspect")
    manifest = read_manifest(parts)
    assert (head["dataset_id"], head["graph_id"]) == (manifest.dataset_id, manifest.graph_id)
    assert head["nodes"] == 88 and result.fact("part", 0)["nodes"] > 0
    assert "from-the-environment" not in result.out + result.err


def test_an_empty_token_is_refused(run_command, parts: Path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, " ")
    result = run_command("serve", parts)
    assert result.status == 2 and f"{TOKEN_VARIABLE} is empty" in result.err


def test_an_address_in_use_is_not_the_users_fault(run_command, parts: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run_command("serve", parts, "--location", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert result.status == 1 and "is in use" in result.err and result.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--location", "127.0.0.1:0"), "write tcp://127.0.0.1:0"),
        (("--cluster", "127.0.0.1:9"), "write tcp://127.0.0.1:9"),
        (("--location", "tcp://0.0.0.0:0"), "can be reached from other machines"),
        (("--parts", "7"), "the dataset's parts are numbered 0..1"),
        (("--tls-cert", "nothing.pem", "--tls-key", "nothing.pem"), "nothing.pem cannot be read"),
        (("--token-file", "nothing.txt"), "nothing.txt cannot be read"),
        (("--announce", "no/such/folder/x.json", "--parts", "7"), "numbered 0..1"),
    ],
)
def test_serve_refuses_bad_options(run_command, parts: Path, arguments: tuple[str, ...], message: str):
    before = signal.getsignal(signal.SIGTERM)
    result = run_command("serve", parts, *arguments)
    assert result.status == 2 and message in result.err, result.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_damaged_part(run_command, parts: Path):
    (parts / "part-00001/node/paper/key.npy").unlink()
    result = run_command("serve", parts)
    assert result.status == 2 and "key.npy is missing" in result.err


def test_damage_of_equal_length_is_found_before_anything_is_served(run_command, parts: Path):
    path = parts / "part-00001/node/paper/features/title.values.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for verify in ("sample", "full"):
        result = run_command("serve", parts, "--verify", verify)
        assert result.status == 2 and f"{path} has crc32c" in result.err and result.out == ""
    result = run_command("serve", parts, "--verify", "some")
    assert result.status == 2 and "--verify is 'some'; it must be one of none, sample, full" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--location", "tls://127.0.0.1:0"), "needs a certificate; give --tls-cert and --tls-key"),
        (("--tls-cert", "x"), "--tls-cert and --tls-key go together; give --tls-key too"),
        (("--client-ca", "x"), "--client-ca is only for TLS; give --tls-cert and --tls-key too"),
        (("--location", "tcp://0.0.0.0:0"), "or allow it with --insecure"),
    ],
)
def test_error_names_the_missing_flags(run_command, parts: Path, words: tuple[str, ...], message: str):
    result = run_command("serve", parts, *words)
    assert result.status == 2 and message in result.err
