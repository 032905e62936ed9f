"""Checks that ``hopstream top`` shows what servers and channels do and which do not answer."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopstream
from hopstream.cli.survey import Answer, ServerState
from hopstream.cli.units import printable_text
from hopstream.store.cluster import Cluster, ServerEntry, read_cluster, write_cluster
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph

REMOTE = StoreSettings(prefer_local=False)
ENTRY = ServerEntry(location="tcp://127.0.0.1:1", parts=(0,))


@pytest.fixture
def up(processes, parts: Path) -> Any:
    """Two servers that sample."""
    child = processes.start("up", parts, "--json")
    processes.wait_for_fact(child, "stage", "ready")
    return child


@pytest.fixture
def loader(up: Any, parts: Path) -> Iterator[hopstream.NeighborLoader]:
    """A loader that has fetched one epoch of 8 batches, 4 from each server."""
    made = hopstream.NeighborLoader(
        RemoteGraph(parts / "cluster.json", settings=REMOTE), [2], ("paper", "train"), batch_size=4, collate="numpy"
    )
    assert len(list(made)) == 8
    yield made
    made.close()


def stop(processes: Any, child: Any, number: int = signal.SIGTERM) -> Any:
    os.kill(child.process.pid, number)
    return processes.wait_for_end(child)


def test_once_shows_servers_and_channels(run_command, parts: Path, up, loader):
    result = run_command("top", parts / "cluster.json", "--once")
    assert result.status == 0, result.err
    head, *rows = result.out.splitlines()
    assert head.split()[:4] == ["server", "parts", "requests/s", "bytes/s"]
    locations = [entry.location for entry in read_cluster(parts / "cluster.json").servers]
    assert [row.split()[0] for row in rows[:2]] == locations and rows[0].endswith("ok") and " part 0 of 2 " in rows[0]
    assert rows[2] == "" and rows[3].startswith("channel of")
    for row, location in zip(rows[4:], locations, strict=True):
        assert row.startswith(location) and " NeighborLoader " in row and " 4/4 " in row and row.endswith("100.0 %")


@pytest.mark.slow
def test_json_has_all_numbers(run_command, parts: Path, up, loader):
    locations = ",".join(entry.location for entry in read_cluster(parts / "cluster.json").servers)
    result = run_command("top", locations, "--once", "--json")
    assert result.status == 0, result.err
    servers = [fact for fact in result.facts if next(iter(fact)) == "server"]
    assert [server["parts"] for server in servers] == [[0], [1]]
    for server in servers:
        assert server["answers"] and server["samples"] and server["channels"] == 1 and server["runnable"] == 0
        assert server["waiting"] == server["in_flight"] == server["buffered_bytes"] == 0 and server["threads"] >= 1
        assert server["requests"] > 4 and server["requests_per_s"] > 0 and server["bytes_per_s"] > 0
    channels = [fact for fact in result.facts if "channel" in fact]
    assert len({(channel["server"], channel["channel"]) for channel in channels}) == 2
    for channel in channels:
        assert (channel["loader"], channel["epoch"], channel["fetched"], channel["steps"]) == (
            "NeighborLoader",
            0,
            4,
            4,
        )
        assert not channel["mid_epoch"] and channel["failed"] == 0 and channel["batches_per_s"] > 0
        assert channel["sampling_share"] == 1.0 and channel["age_s"] >= channel["idle_s"] >= 0


@pytest.mark.slow
def test_a_server_that_does_not_answer(run_command, processes, parts: Path, tmp_path: Path):
    server = processes.start("serve", parts, "--parts", 0, "--json")
    ready = processes.wait_for_fact(server, "stage", "ready")
    gone = processes.start("serve", parts, "--parts", 1, "--json")
    lost = processes.wait_for_fact(gone, "stage", "ready")["location"]
    assert stop(processes, gone).status == 0
    entries = ServerEntry(location=ready["location"], parts=(0,)), ServerEntry(location=lost, parts=(1,))
    write_cluster(tmp_path / "c.json", Cluster(dataset_id=ready["dataset_id"], servers=entries))
    result = run_command("top", tmp_path / "c.json", "--once")
    assert result.status == 1 and result.err == f"error: 1 of 2 servers did not answer: {lost}\n"
    rows = result.out.splitlines()
    assert rows[1].endswith("does not sample")
    assert rows[2].startswith(lost) and " part 1 " in rows[2] and f"no answer: {lost} cannot be reached" in rows[2]
    result = run_command("top", tmp_path / "c.json", "--once", "--json")
    assert result.status == 1
    assert [(fact["server"], fact["answers"]) for fact in result.facts] == [(ready["location"], True), (lost, False)]
    assert "cannot be reached" in result.facts[1]["reason"] and result.facts[0]["samples"] is False


@pytest.mark.slow
def test_round_after_round_until_ctrl_c(processes, parts: Path, up, loader):
    top = processes.start("top", parts / "cluster.json", "--json", "--interval-s", "0.01")

    def num_rounds() -> int:
        return sum("answers" in json.loads(line) for line in top.lines) // 2

    processes.wait_for(top, lambda: num_rounds() >= 4)
    result = stop(processes, top, signal.SIGINT)
    assert (result.status, result.err) == (0, "")
    # Sampling has ended, which a rate since the start would not show.
    channels = [fact for fact in result.facts if "channel" in fact]
    assert channels[0]["batches_per_s"] > 0 and channels[-1]["batches_per_s"] == 0


@pytest.mark.slow
def test_top_survives_a_restarted_server(processes, parts: Path):
    first = processes.start("serve", parts, "--sample", "--json")
    location = processes.wait_for_fact(first, "stage", "ready")["location"]
    top = processes.start("top", location, "--json", "--interval-s", "0.01", "--timeout-s", "2")

    def last_answers(wanted: bool) -> bool:
        return bool(top.lines) and json.loads(top.lines[-1])["answers"] is wanted

    processes.wait_for(top, lambda: last_answers(True))
    assert stop(processes, first).status == 0
    processes.wait_for(top, lambda: last_answers(False))
    again = processes.start("serve", parts, "--sample", "--json", "--location", location)
    processes.wait_for(top, lambda: last_answers(True))
    assert stop(processes, top, signal.SIGINT).status == 0
    assert stop(processes, again).status == 0


@pytest.mark.slow
def test_on_a_terminal(processes, parts: Path, up, loader):
    outer, inner = pty.openpty()
    words = [sys.executable, "-m", "hopstream.cli", "top", str(parts / "cluster.json"), "--interval-s", "0.01"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
    try:
        with subprocess.Popen(words, stdout=inner, stderr=subprocess.PIPE, env=environment) as top:
            os.close(inner)
            seen = b""
            ends = time.monotonic() + 60
            while seen.count(b"channel of") < 3:
                assert time.monotonic() < ends, seen[-2000:]
                if select.select([outer], [], [], 1)[0]:
                    seen += os.read(outer, 1 << 16)
            top.send_signal(signal.SIGINT)
            while True:
                try:
                    if not os.read(outer, 1 << 16):
                        break
                except OSError:  # the error by which Linux reports that the other end was closed
                    break
            assert top.stderr is not None
            assert (top.wait(60), top.stderr.read()) == (0, b"")
    finally:
        os.close(outer)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.json",), "none.json is missing"),
        (("tcp://nowhere",), "is not a location"),
        (("tcp://127.0.0.1:1", "--interval-s", "0"), "--interval-s is 0"),
        (("tcp://127.0.0.1:1", "--timeout-s", "-1"), "--timeout-s is -1"),
    ],
)
def test_top_refuses_bad_options(run_command, words: tuple[str, ...], message: str):
    result = run_command("top", *words)
    assert result.status == 2 and message in result.err and result.out == "", result.err


def stats(uptime_s: float, num_requests: int) -> dict[str, float]:
    return {"num_requests": num_requests, "num_refusals": 0, "num_failures": 0, "num_bytes": 0, "uptime_s": uptime_s}


def channel(number: int, sampling_s: float, num_fetched: int) -> dict[str, Any]:
    return {"channel": number, "sampling_s": sampling_s, "num_fetched": num_fetched, "age_s": 10.0}


def test_rates_are_since_the_round_before():
    before = Answer(at=1.0, parts=(0,), num_parts=1, stats=stats(4.0, 8), channels={1: channel(1, 6.0, 10)})
    old, new = channel(1, 7.0, 30), channel(2, 3.0, 20)
    after = Answer(at=3.0, parts=(0,), num_parts=1, stats=stats(6.0, 18), channels={1: old, 2: new})
    first = ServerState(entry=ENTRY, answer=before)
    assert first.per_s("num_requests") == 2.0 and first.batches_per_s(before.channels[1]) == 1.0
    second = ServerState(entry=ENTRY, answer=after, before=before)
    assert second.per_s("num_requests") == 5.0
    assert [second.batches_per_s(one) for one in (old, new)] == [10.0, 2.0]
    assert [second.sampling_share(one) for one in (old, new)] == [0.25, 0.75]
    assert ServerState(entry=ENTRY).per_s("num_requests") == 0.0


def test_text_of_clients_does_not_move_the_cursor():
    assert printable_text("a\x1b[2Jb\n") == "a?[2Jb?"
    assert printable_text("abcdef", 4) == "abc…"
