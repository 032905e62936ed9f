"""Checks that a server answers for its health where it was configured to, and nowhere else."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from hopstream.cli.server_flags import WatchSettings, watched, watched_early
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer


def page(location: str, path: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        with urlopen(location + path, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_server_answers_health_and_metrics_requests(processes, parts: Path):
    server = processes.start("serve", parts, "--metrics-port", "0", "--json")
    ready = processes.wait_for_fact(server, "stage", "ready")
    location = ready["metrics"]
    assert location.startswith("http://127.0.0.1:")
    assert page(location, "/healthz") == (200, "ok\n")
    assert page(location, "/readyz") == (200, "ready\n")
    RemoteStore(ready["location"]).close()
    ends = time.monotonic() + 10
    while 'hopstream_requests_total{operation="describe"' not in (text := page(location, "/metrics")[1]):
        assert time.monotonic() < ends, text  # a request counts when its answer has been sent
    assert "hopstream_channels" not in text
    assert page(location, "/")[0] == 404
    os.kill(server.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(server).status == 0


def test_a_readiness_probe_opens_the_graph_of_a_sampling_server(processes, parts: Path):
    server = processes.start("serve", parts, "--sample", "--metrics-port", "0")
    processes.wait_for(server, lambda: bool(server.lines))
    location = next(word for word in server.lines[0].split() if word.startswith("http://"))
    assert page(location, "/readyz") == (200, "ready\n")
    assert "\nhopstream_channels 0.0\n" in page(location, "/metrics")[1]
    os.kill(server.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(server).status == 0


def test_a_starting_server_is_alive_but_not_ready(parts: Path):
    with watched_early(WatchSettings(metrics_port=0)) as endpoint:
        assert endpoint is not None
        assert page(endpoint.location, "/healthz") == (200, "ok\n")
        assert page(endpoint.location, "/readyz") == page(endpoint.location, "/metrics")
        assert page(endpoint.location, "/readyz") == (503, "the server is starting\n")
        store = LocalStore(open_dataset(parts))
        with StoreServer(store) as server, watched(server, None, endpoint) as location:
            assert location == endpoint.location
            assert page(location, "/readyz") == (200, "ready\n")
            assert page(location, "/metrics")[0] == 200


def test_a_port_in_use_is_not_the_users_fault(run_command, parts: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run_command("serve", parts, "--metrics-port", taken.getsockname()[1])
    assert result.status == 1 and "cannot listen at http://127.0.0.1:" in result.err and result.out == ""


@pytest.mark.parametrize("port", [-1, 65536])
def test_other_ports_are_refused(run_command, parts: Path, port: int):
    result = run_command("serve", parts, f"--metrics-port={port}")
    assert result.status == 2 and f"--metrics-port is {port}; ports are numbered 0..65535" in result.err


def test_a_host_needs_a_port():
    with pytest.raises(SettingsError, match="given without --metrics-port; give both"):
        WatchSettings(metrics_host="0.0.0.0")
