"""Checks that ``hopstream up`` serves a dataset from several processes and outlives them all."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hopstream
from hopstream.cli.server_flags import WatchSettings
from hopstream.cli.up import metrics_flags, share_parts
from hopstream.errors import SettingsError, StoreUnavailable
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.store import open_store
from hopstream.store.cluster import Cluster, ServerEntry, write_cluster
from hopstream.store.settings import StoreSettings

DEADLINE_S = 60.0
REMOTE = StoreSettings(prefer_local=False, timeout_s=10.0)


@pytest.mark.parametrize(
    ("num_parts", "num_servers", "shares"),
    [
        (3, None, [(0,), (1,), (2,)]),
        (5, 2, [(0, 1), (2, 3, 4)]),
        (4, 1, [(0, 1, 2, 3)]),
        (4, 4, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_parts_are_distributed_over_servers(num_parts: int, num_servers: int | None, shares: list[tuple[int, ...]]):
    assert share_parts(num_parts, num_servers) == shares


def test_more_servers_than_parts():
    with pytest.raises(SettingsError, match="--servers is 3; the dataset has 2 parts to share"):
        share_parts(2, 3)


@pytest.mark.parametrize(
    ("port", "ports"), [(None, None), (0, [0, 0, 0]), (9100, [9100, 9101, 9102]), (65533, [65533, 65534, 65535])]
)
def test_each_server_is_watched_at_a_port_of_its_own(port: int | None, ports: list[int] | None):
    flags = metrics_flags(WatchSettings(metrics_port=port), 3)
    assert flags == [
        [] if ports is None else ["--metrics-port", str(ports[number]), "--metrics-host", "127.0.0.1"]
        for number in range(3)
    ]


def test_too_few_ports_are_left():
    with pytest.raises(SettingsError, match="--metrics-port 65534 is the first of 3, one per server"):
        metrics_flags(WatchSettings(metrics_port=65534), 3)


def servers_of(up: Any) -> list[dict[str, Any]]:
    return [fact for fact in map(json.loads, up.lines) if "server" in fact and "stage" not in fact]


def wait_until_gone(pids: list[int]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < ends, f"{pids} still run"
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=0.2)


@pytest.mark.slow
def test_from_tables_to_servers_and_back(processes, tables: Path, tmp_path: Path):
    raw, parts = tmp_path / "raw", tmp_path / "parts"
    for arguments in (
        ("ingest", tables, "--out", raw, "--on-dangling", "drop"),
        ("partition", raw, "--parts", 2, "--out", parts, "--direction", "both"),
        ("inspect", parts, "--verify", "--html", tmp_path / "page.html"),
    ):
        result = processes.wait_for_end(processes.start(*arguments))
        assert result.status == 0, result.err
    up = processes.start("up", parts, "--json")
    ready = processes.wait_for_fact(up, "stage", "ready")
    assert (ready["cluster_file"], ready["servers"]) == (str(parts / "cluster.json"), 2)
    servers = servers_of(up)
    assert [server["parts"] for server in servers] == [[0], [1]]
    with open_store(parts / "cluster.json", REMOTE) as store, open_store(parts) as local:
        ids = np.arange(4)
        writes = ("author", "writes", "paper")
        np.testing.assert_array_equal(store.degrees(writes, "in", ids), local.degrees(writes, "in", ids))
        assert store.degrees(writes, "in", ids).sum() == 3
        np.testing.assert_array_equal(store.split("paper", "train"), [0, 1])
    os.kill(up.process.pid, signal.SIGINT)
    result = processes.wait_for_end(up)
    assert (result.status, result.err) == (0, "")
    stopped = result.fact("stage", "stop")
    # Two servers were greeted, asked for degrees, and asked for a split.
    assert stopped["peak_bytes"] >= ready["peak_bytes"]  # also of servers that have ended
    assert (stopped["servers"], stopped["failures"]) == (2, 0) and stopped["requests"] >= 4 and stopped["bytes"] > 0
    assert not (parts / "cluster.json").exists()
    wait_until_gone([server["process"] for server in servers])


@pytest.mark.slow
def test_servers_check_their_parts_before_they_are_ready(processes, parts: Path):
    path = parts / "part-00001/node/paper/key.npy"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    result = processes.wait_for_end(processes.start("up", parts, "--verify", "sample"))
    assert result.status == 1 and f"{path} has crc32c" in result.err


@pytest.mark.slow
def test_servers_end_with_a_killed_command(processes, parts: Path):
    up = processes.start("up", parts, "--json")
    processes.wait_for_fact(up, "stage", "ready")
    pids = [server["process"] for server in servers_of(up)]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    os.kill(up.process.pid, signal.SIGKILL)
    wait_until_gone(pids)
    assert processes.wait_for_end(up).status == -signal.SIGKILL
    # The file that it could not remove names lost servers: clients get an error, the next run replaces it.
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_store(parts / "cluster.json", REMOTE)
    again = processes.start("up", parts, "--servers", 1, "--json")
    processes.wait_for_fact(again, "stage", "ready")
    open_store(parts / "cluster.json", REMOTE).close()
    os.kill(again.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(again).status == 0


@pytest.mark.slow
def test_a_server_that_dies_is_reported_and_ends_the_rest(processes, parts: Path, tmp_path: Path):
    up = processes.start("up", parts, "--cluster-file", tmp_path / "c.json", "--json")
    processes.wait_for_fact(up, "stage", "ready")
    victim, other = servers_of(up)
    os.kill(victim["process"], signal.SIGKILL)
    result = processes.wait_for_end(up)
    assert result.status == 1
    assert f"error: the server of part 0 of 2 (process {victim['process']}) was ended by SIGKILL" in result.err
    assert not (tmp_path / "c.json").exists()
    wait_until_gone([other["process"]])


@pytest.mark.slow
def test_with_replicas_other_servers_continue(processes, parts: Path):
    up = processes.start("up", parts, "--servers", 1, "--replicas", 2, "--json", "--log-json")
    processes.wait_for_fact(up, "stage", "ready")
    victim, other = servers_of(up)
    assert victim["parts"] == other["parts"] == [0, 1]
    with open_store(parts / "cluster.json", REMOTE) as store:
        os.kill(victim["process"], signal.SIGKILL)
        lost = processes.wait_for_fact(up, "stage", "lost")
        assert lost["server"] == victim["server"] and lost["status"] == -signal.SIGKILL
        told = "the server of parts 0-1 of 2"
        processes.wait_for(up, lambda: any(json.loads(line)["message"].startswith(told) for line in up.errors))
        assert len(store.split("paper", "train")) == 30
    entries = json.loads((parts / "cluster.json").read_text())["servers"]
    assert [entry["location"] for entry in entries] == [other["server"]]
    os.kill(up.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(up).status == 0
    wait_until_gone([other["process"]])


@pytest.mark.slow
def test_a_server_that_does_not_start(processes, typed_graph: Graph, tmp_path: Path):
    write_parts(typed_graph, tmp_path / "d", num_parts=2, method="hash")
    (tmp_path / "d/part-00001/node/paper/key.npy").unlink()
    result = processes.wait_for_end(processes.start("up", tmp_path / "d"))
    assert result.status == 1 and result.out == ""
    assert "the server of part 1 of 2" in result.err and "ended with exit status 2" in result.err
    assert "key.npy is missing" in result.err and not (tmp_path / "d/cluster.json").exists()


@pytest.mark.slow
def test_servers_that_take_too_long(processes, parts: Path):
    result = processes.wait_for_end(processes.start("up", parts, "--start-timeout-s", "0.01"))
    assert result.status == 1 and "not ready in 0.01 s; the first start on a machine compiles kernels" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--servers", "3"), "the dataset has 2 parts to share"),
        (("--servers", "0"), "servers is 0; it must be 1 or more"),
        (("--cluster-file", "{}/manifest.json"), "is not a cluster file; give another path"),
        (("--cluster-file", "{}/no/such/cluster.json"), "does not exist; give a path in an existing folder"),
        (("--cluster-file", "/proc/cluster.json"), "the cluster file /proc/cluster.json cannot be written: "),
        (("--start-timeout-s", "0"), "--start-timeout-s is 0"),
    ],
)
def test_up_refuses_bad_options(run_command, parts: Path, arguments: tuple[str, str], message: str):
    result = run_command("up", parts, arguments[0], arguments[1].format(parts))
    assert result.status == 2 and message in result.err and result.out == "", result.err


def test_up_prints_its_servers_when_they_are_ready(processes, parts: Path):
    up = processes.start("up", parts, "--metrics-port", 0)
    processes.wait_for(up, lambda: any(line.startswith("ready ") for line in up.lines))
    assert up.lines[0].split() == ["server", "parts", "process", "metrics"]
    assert up.lines[1].startswith("unix:///") and " part 0 of 2 " in up.lines[1]
    assert " http://127.0.0.1:" in up.lines[1]
    with hopstream.open_store(str(parts / "cluster.json")) as store:
        assert store.book.num_ids("paper") == 60
    os.kill(up.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(up).out.splitlines()[-1].startswith("stop    2 servers  0 requests, 0 B ")


@pytest.mark.slow
def test_a_cluster_file_has_one_owner(run_command, processes, parts: Path):
    up = processes.start("up", parts, "--servers", 1, "--json")
    processes.wait_for_fact(up, "stage", "ready")
    before = (parts / "cluster.json").read_text()
    result = run_command("up", parts)
    location = json.loads(before)["servers"][0]["location"]
    assert result.status == 2 and f"names {location}, which is running; stop it, or give another" in result.err
    assert (parts / "cluster.json").read_text() == before
    os.kill(up.process.pid, signal.SIGINT)
    assert processes.wait_for_end(up).status == 0


@pytest.mark.slow
def test_a_stale_cluster_file_is_removed_before_servers_are_ready(run_command, parts: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        location = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    cluster = Cluster(dataset_id="0" * 32, servers=(ServerEntry(location=location, parts=(0, 1)),))
    write_cluster(parts / "cluster.json", cluster)
    (parts / "part-00001/node/paper/key.npy").unlink()  # so that no server becomes ready
    result = run_command("up", parts)
    assert result.status == 1 and not (parts / "cluster.json").exists()
