"""Checks that servers of the command sample for trainers and report unfinished channels at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.cli.sampling import Leftovers, Sampler
from hopstream.cli.server_flags import TOKEN_VARIABLE
from hopstream.errors import SettingsError, StoreError, StoreTimeout, StoreUnavailable
from hopstream.preparation.write import write_parts
from hopstream.store.cluster import Cluster, ServerEntry, read_cluster, write_cluster
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.transport.security import ClientSecurity
from tests.cli.test_watching import page
from tests.load.graphs import flat
from tests.store.authority import Authority

SEEDS = ("paper", "train")
REMOTE = StoreSettings(prefer_local=False)


def loader_of(source: Any, **more: Any) -> hopstream.NeighborLoader:
    options = {"num_neighbors": [3, 2], "seeds": SEEDS, "batch_size": 4, "shuffle": True, "collate": "numpy", **more}
    return hopstream.NeighborLoader(source, **options)


def all_batches(source: Any, num_epochs: int = 2, **more: Any) -> list[list[Any]]:
    loader = loader_of(source, **more)
    try:
        return [[flat(batch) for batch in loader] for _ in range(num_epochs)]
    finally:
        loader.close()


def stop(processes: Any, child: Any, number: int = signal.SIGTERM) -> Any:
    os.kill(child.process.pid, number)
    return processes.wait_for_end(child)


@pytest.fixture
def half_fetched() -> Iterator[list[hopstream.NeighborLoader]]:
    """Loaders in the middle of an epoch; they close after their servers have ended."""
    loaders: list[hopstream.NeighborLoader] = []
    yield loaders
    for loader in loaders:
        loader.close()


def fetch_one(source: Any) -> hopstream.NeighborLoader:
    """A loader that has one batch of its epoch and does not go on."""
    loader = loader_of(source, batch_size=2, prefetch=2, num_threads=1)
    next(iter(loader))
    return loader


@pytest.mark.slow
def test_up_gives_the_batches_of_the_folder(processes, parts: Path):
    up = processes.start("up", parts, "--metrics-port", 0, "--json")
    processes.wait_for_fact(up, "stage", "ready")
    wanted = all_batches(parts)
    cluster = parts / "cluster.json"
    assert all_batches(RemoteGraph(str(cluster))) == wanted
    assert all_batches(RemoteGraph(cluster, settings=REMOTE), num_threads=3) == wanted
    locations = ",".join(entry.location for entry in read_cluster(cluster).servers)
    assert all_batches(RemoteGraph(locations, settings=REMOTE)) == wanted
    watched = [fact["metrics"] for fact in map(json.loads, up.lines) if "process" in fact]
    assert len(set(watched)) == 2
    assert all('operation="fetch_one_sampled_message"' in page(location, "/metrics")[1] for location in watched)
    result = stop(processes, up, signal.SIGINT)
    assert result.status == 0 and "left" not in result.err
    assert result.fact("stage", "stop")["left"] == []


@pytest.mark.slow
def test_servers_that_query_each_other(processes, parts: Path, tmp_path: Path):
    """Servers map only their own parts and use the token; the cluster file appears after they started."""
    path, environment = tmp_path / "cluster.json", {TOKEN_VARIABLE: "s3cret"}
    words = ("--cluster", path, "--no-map-local", "--threads", 1, "--json")
    servers = [processes.start("serve", parts, "--parts", n, *words, environment=environment) for n in (0, 1)]
    ready = [processes.wait_for_fact(server, "stage", "ready") for server in servers]
    assert [fact["sampling_threads"] for fact in ready] == [1, 1]
    entries = [ServerEntry(location=fact["location"], parts=tuple(fact["parts"])) for fact in ready]
    write_cluster(path, Cluster(dataset_id=ready[0]["dataset_id"], servers=tuple(entries)))
    settings = StoreSettings(prefer_local=False, security=ClientSecurity(token="s3cret"))
    assert all_batches(RemoteGraph(path, settings=settings)) == all_batches(parts)
    results = [stop(processes, server) for server in servers]
    for result in results:
        assert (result.status, result.err.count("\n")) == (0, 0)
        assert result.err.startswith(f"WARNING: {path} does not exist yet, so this server cannot find the other")


@pytest.fixture
def pems(tmp_path: Path) -> dict[str, Path]:
    """Files of a token, of a server's certificate and key, and of the roots that signed it and of others."""
    authority = Authority("our root")
    identity = authority.issue("store.example")
    contents = {
        "token": b"s3cret", "cert": identity.certificate, "key": identity.key, "ca": authority.root,
        "other-ca": Authority("their root").root,
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / f"{name}.pem").write_bytes(content)
    return {name: tmp_path / f"{name}.pem" for name in contents}


@pytest.mark.slow
def test_servers_that_query_each_other_over_tls(processes, parts: Path, tmp_path: Path, pems: dict[str, Path]):
    """Each server trusts certificates of --peer-ca; with another authority it opens no graph and says why."""
    path = tmp_path / "cluster.json"
    words = ("--location", "tls://127.0.0.1:0", "--cluster", path, "--no-map-local", "--peer-timeout-s", 5)
    words += ("--tls-cert", pems["cert"], "--tls-key", pems["key"], "--token-file", pems["token"], "--metrics-port", 0)
    trusted = ("ca", "other-ca")
    servers = [
        processes.start("serve", parts, "--json", "--parts", n, *words, "--peer-ca", pems[ca])
        for n, ca in enumerate(trusted)
    ]
    ready = [processes.wait_for_fact(server, "stage", "ready") for server in servers]
    entries = [ServerEntry(location=fact["location"], parts=tuple(fact["parts"])) for fact in ready]
    write_cluster(path, Cluster(dataset_id=ready[0]["dataset_id"], servers=tuple(entries)))
    settings = StoreSettings(prefer_local=False, security=ClientSecurity(token="s3cret", roots=pems["ca"].read_bytes()))
    assert all_batches(RemoteGraph(path, settings=settings)) == all_batches(parts)  # the first server made all of them
    assert page(ready[0]["metrics"], "/readyz") == (200, "ready\n")
    reasons: list[str] = []

    def is_told() -> bool:
        status, text = page(ready[1]["metrics"], "/readyz")
        reasons.append(text)
        return status == 503 and "still being opened" not in text

    processes.wait_for(servers[1], is_told)
    assert f"{entries[0].location} cannot be reached for describe(): no TLS connection could be made" in reasons[-1]
    assert "check the roots" in reasons[-1]
    assert [stop(processes, server).status for server in servers] == [0, 0]


@pytest.mark.slow
def test_addresses_in_place_of_a_file(processes, parts: Path):
    """The second server has one part and asks the first one, which has both parts and asks no server."""
    first = processes.start("serve", parts, "--sample", "--json")
    location = processes.wait_for_fact(first, "stage", "ready")["location"]
    second = processes.start("serve", parts, "--parts", 1, "--cluster", location, "--no-map-local", "--json")
    own = processes.wait_for_fact(second, "stage", "ready")["location"]
    graph = RemoteGraph(f"{location},{own}", settings=REMOTE)
    assert all_batches(graph, 1) == all_batches(parts, 1)
    assert [stop(processes, server).status for server in (second, first)] == [0, 0]


def test_one_server_of_all_parts(processes, parts: Path):
    server = processes.start("serve", parts, "--sample", "--credit", 2, "--threads", 2)
    processes.wait_for(server, lambda: bool(server.lines))
    assert "parts 0-1 of 2; samples in 2 threads" in server.lines[0]
    location = server.lines[0].split()[1]
    assert all_batches(RemoteGraph(location, settings=REMOTE), 1) == all_batches(parts, 1)
    result = stop(processes, server)
    assert (result.status, result.err) == (0, "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the bound is one of Linux")
def test_a_batch_without_enough_memory_fails_alone(processes, tmp_path: Path):
    keys = np.random.default_rng(0).integers(0, 2000, (2, 40_000))
    hopstream.write_parts(hopstream.graph_from_arrays(keys, num_nodes=2000), tmp_path / "parts", method="hash")
    words = (tmp_path / "parts", "--sample", "--threads", 1, "--memory-bytes", 400 << 20, "--json")
    server = processes.start("serve", *words)
    graph = RemoteGraph(processes.wait_for_fact(server, "stage", "ready")["location"], settings=REMOTE)
    small: dict[str, Any] = {"num_neighbors": [3], "batch_size": 2000, "collate": "numpy"}
    with hopstream.NeighborLoader(graph, **small) as loader:
        wanted = [batch.node_keys["node"].tolist() for batch in loader]
        large = {**small, "num_neighbors": [20_000], "replace": True}
        with (
            hopstream.NeighborLoader(graph, **large) as hungry,
            pytest.raises((SettingsError, MemoryError, StoreError), match="memory"),
        ):
            next(iter(hungry))
        loader.set_epoch(0)
        assert [batch.node_keys["node"].tolist() for batch in loader] == wanted
    assert stop(processes, server).status == 0


@pytest.mark.slow
def test_a_channel_in_mid_epoch_is_named(processes, parts: Path, half_fetched):
    server = processes.start("serve", parts, "--sample", "--json")
    location = processes.wait_for_fact(server, "stage", "ready")["location"]
    half_fetched.append(fetch_one(RemoteGraph(location, settings=REMOTE, timeout_s=1.0)))
    result = stop(processes, server)
    assert result.status == 0
    stopped = result.fact("stage", "stop")
    (left,) = stopped["left"]
    assert left["epoch"] == 0 and 1 <= left["fetched"] < left["steps"] == 15 and left["mid_epoch"]
    assert stopped["clean"] and "stuck" not in stopped
    line = f"WARNING: channel {left['channel']} ({left['worker']}) was left in the middle of epoch 0: "
    assert result.err.startswith(line) and result.err.endswith(f"{left['fetched']} of 15 batches fetched")


@pytest.mark.slow
def test_up_reports_channels_left_at_its_servers(processes, parts: Path, half_fetched):
    up = processes.start("up", parts, "--json")
    processes.wait_for_fact(up, "stage", "ready")
    half_fetched.append(fetch_one(RemoteGraph(parts / "cluster.json", settings=REMOTE, timeout_s=1.0)))
    result = stop(processes, up)
    assert result.status == 0
    left = result.fact("stage", "stop")["left"]
    locations = {fact["server"] for fact in result.facts if "process" in fact}
    assert left and {one["server"] for one in left} <= locations and any(one["mid_epoch"] for one in left)
    named = [f"WARNING: {one['server']}: channel {one['channel']} ({one['worker']}) was left " for one in left]
    lines = [line for line in result.err.splitlines() if line.startswith("WARNING: ")]
    assert len(lines) == len(named) and all(map(str.startswith, lines, named))
    assert "was left in the middle of epoch 0: " in result.err


@pytest.mark.slow
def test_a_finished_epoch_is_not_mid_epoch(processes, parts: Path, half_fetched):
    server = processes.start("serve", parts, "--sample", "--json")
    location = processes.wait_for_fact(server, "stage", "ready")["location"]
    loader = loader_of(RemoteGraph(location, settings=REMOTE, timeout_s=1.0))
    half_fetched.append(loader)
    assert len(list(loader)) == len(loader)
    result = stop(processes, server)
    (left,) = result.fact("stage", "stop")["left"]
    assert result.status == 0 and not left["mid_epoch"] and left["fetched"] == left["steps"] == len(loader)
    assert "was left after epoch 0" in result.err


@pytest.mark.slow
def test_a_missing_cluster_file_makes_the_server_unavailable(processes, parts: Path, tmp_path: Path):
    words = ("--cluster", tmp_path / "none.json", "--json")
    servers = [processes.start("serve", parts, "--parts", part, *words) for part in (0, 1)]
    locations = ",".join(processes.wait_for_fact(server, "stage", "ready")["location"] for server in servers)
    with pytest.raises(StoreUnavailable, match=r"none\.json does not exist yet"):
        loader_of(RemoteGraph(locations, settings=REMOTE, timeout_s=0.5))
    assert [stop(processes, server).status for server in servers] == [0, 0]


@pytest.mark.slow
def test_error_says_that_the_server_does_not_sample(processes, parts: Path):
    server = processes.start("serve", parts, "--json")
    graph = RemoteGraph(processes.wait_for_fact(server, "stage", "ready")["location"], settings=REMOTE)
    with pytest.raises(SettingsError, match="the server does not sample; start it with --cluster"):
        loader_of(graph)
    assert stop(processes, server).status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--parts", "0", "--sample"), "--sample needs the whole graph, and this server serves 1 of its 2 parts"),
        (("--threads", "2"), "--threads: sampling is off; give --cluster, or --sample with all parts"),
        (("--no-map-local",), "--map-local: sampling is off"),
        (("--sample", "--threads", "-1"), "--threads is -1"),
        (("--sample", "--credit", "0"), "--credit is 0"),
        (("--sample", "--lease-s", "0"), "--lease-s is 0"),
        (("--sample", "--memory-bytes", "5000000"), "--memory-bytes is 5000000; a server needs at least 33554432"),
        (("--sample", "--peer-timeout-s", "0"), "--peer-timeout-s is 0"),
        (("--cluster", "tcp://nowhere"), "is not a location"),
        (("--log-level", "loud"), "--log-level is 'loud'; it must be one of debug, info, warning, error"),
    ],
)
def test_serve_refuses_bad_options_of_sampling(run_command, parts: Path, words: tuple[str, ...], message: str):
    result = run_command("serve", parts, *words)
    assert result.status == 2 and message in result.err, result.err


def test_another_datasets_cluster(run_command, parts: Path, tmp_path: Path):
    entry = ServerEntry(location="tcp://127.0.0.1:1", parts=(0, 1))
    write_cluster(tmp_path / "c.json", Cluster(dataset_id="0" * 32, servers=(entry,)))
    result = run_command("serve", parts, "--cluster", tmp_path / "c.json")
    assert result.status == 2 and f"is of dataset {'0' * 32}" in result.err
    (tmp_path / "c.json").write_text("{}")
    result = run_command("serve", parts, "--cluster", tmp_path / "c.json")
    assert result.status == 2 and "has format None" in result.err


def test_log_records_are_json_lines(processes, parts: Path):
    server = processes.start("serve", parts, "--sample", "--json", "--log-json", "--log-level", "info")
    location = processes.wait_for_fact(server, "stage", "ready")["location"]
    assert stop(processes, server).status == 0
    records = [json.loads(line) for line in server.errors]
    assert records and all({"time", "level", "logger", "message", "server"} <= set(record) for record in records)
    last = next(record for record in records if record["message"].startswith("stopping"))
    assert (last["level"], last["logger"], last["server"]) == ("info", "hopstream.cli.serve", location)
    assert last["time"].endswith("Z")


@pytest.mark.slow
def test_up_passes_records_on(processes, parts: Path):
    up = processes.start("up", parts, "--log-json", "--log-level", "info", "--json")
    processes.wait_for_fact(up, "stage", "ready")
    assert stop(processes, up).status == 0
    servers = {record["server"] for record in map(json.loads, up.errors)}
    assert len(servers - {None}) == 2


def test_own_parts_are_mapped_despite_other_cluster_locations(typed_graph, tmp_path: Path):
    from hopstream.store.cluster import open_cluster

    write_parts(typed_graph, tmp_path / "p", num_parts=2, method="hash", direction="both")
    own = ServerEntry(location="tcp://127.0.0.1:1", parts=(0, 1), path=tmp_path / "p")
    nobody = ServerEntry(location="tcp://127.0.0.1:2", parts=(1,))
    cluster = Cluster(dataset_id=None, servers=(own, nobody))
    with open_cluster(cluster, StoreSettings(prefer_local=False), own=own) as store:
        assert store.book.num_ids("paper") == 60


def test_a_stuck_thread_is_reported_with_its_channels(caplog: pytest.LogCaptureFixture):
    class Stuck:
        def describe(self) -> list[dict[str, Any]]:
            channel = {"channel": 7, "worker": "a\x1b[2J", "epoch": 1, "num_epoch_fetched": 2}
            return [{**channel, "num_own_steps": 3, "is_mid_epoch": True}]

        def close(self, join_s: float) -> None:
            raise StoreTimeout(f"hopstream-sampling-0 did not end in {join_s:g} s")

    left = Sampler(Stuck(), None).end(-5.0)
    left.log()
    assert not left.is_clean and left.threads == "hopstream-sampling-0 did not end in 1 s"
    said = ["channel 7 (a?[2J) was left in the middle of epoch 1: 2 of 3 batches fetched", left.threads]
    assert [record.getMessage() for record in caplog.records] == said
    assert Leftovers().is_clean and Leftovers(threads="x").is_clean is False
