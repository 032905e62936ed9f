"""Checks that a server's counters match its work, and that its health pages are right in time."""

from __future__ import annotations

import http.client
import platform
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.errors import (
    AccessDenied,
    ChannelLost,
    FormatError,
    RemoteError,
    SettingsError,
    StateError,
    StoreUnavailable,
)
from hopstream.store.cluster import open_cluster, parse_locations
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits
from hopstream.stream import endpoint, metrics
from hopstream.stream.channel import ChannelStats
from hopstream.stream.endpoint import Endpoint, Page
from hopstream.stream.metrics import SECONDS_BOUNDS, Meter, MetricsServer, _channel_families, _failure_family
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.calls import Call
from hopstream.transport.connection import Connection, OneFrame
from hopstream.transport.location import Location
from hopstream.transport.messages import VERSION, Frame
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.store.processes import ROOT, wait_until
from tests.stream.serving import SETTINGS, Served, asked, asked_all, node_loader, remote_graph, serve_here

LIMITS = SamplingLimits(threads=1, credit=3)
NUM_BATCHES = 120


def request(location: str, path: str, method: str = "GET") -> tuple[int, str, Mapping[str, str]]:
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection(urlsplit(location).netloc, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


class Numbers:
    """Contents of ``/metrics``, read by Prometheus's own parser."""

    def __init__(self, location: str) -> None:
        status, text, headers = request(location, "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def of(self, name: str, **labels: str) -> float:
        """The value of one series; 0 where there is none."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else 0.0

    def sum_of(self, name: str) -> float:
        return sum(s.value for s in self.samples if s.name == name)

    def labels(self, name: str) -> list[Mapping[str, str]]:
        return [s.labels for s in self.samples if s.name == name]


@pytest.fixture(scope="module")
def served_folder(timed_parts: dict[int, Path]) -> Path:
    return timed_parts[1]


@pytest.fixture
def served(served_folder: Path) -> Iterator[Served]:
    with serve_here(served_folder, LIMITS) as served:
        yield served


@pytest.fixture
def watched(served: Served) -> Iterator[MetricsServer]:
    with MetricsServer("127.0.0.1", 0, served.servers[0], served.services[0]) as watched:
        yield watched


@pytest.fixture
def store_server(served_folder: Path) -> Iterator[StoreServer]:
    """A server without sampling."""
    with LocalStore(open_dataset(served_folder)) as store, StoreServer(store) as server:
        yield server


class Failing:
    """Opener of a graph that fails until it is repaired, and waits on an event."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store
        self.error: Exception | None = StoreUnavailable("part 1 at tcp://10.0.0.9:7001 cannot be reached\nmore")
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.num_calls = 0

    def __call__(self) -> Store:
        self.num_calls += 1
        assert self.may_go_on.wait(20)
        if self.error is not None:
            raise self.error
        assert self.store is not None
        return self.store


def test_requests_are_counted_by_operation_and_outcome(watched: MetricsServer, served: Served):
    server = served.servers[0]
    for _ in range(3):
        asked(server, "stats")
    with pytest.raises(ChannelLost):
        asked(server, "describe_channel", channel_id=5)
    for unknown in ("x" * 500, '"}\n'):
        with pytest.raises(FormatError, match="unknown operation"):
            asked(server, unknown)
    with pytest.raises(FormatError, match="header field 'op'"):
        asked(server, None)
    asked_all(server, "split", node_type="paper", name="train")
    wait_until(lambda: Numbers(watched.location).sum_of("hopstream_requests_total") == 8, "eight requests")
    numbers = Numbers(watched.location)
    assert numbers.of("hopstream_requests_total", operation="stats", outcome="ok") == 3
    assert numbers.of("hopstream_requests_total", operation="describe_channel", outcome="refused") == 1
    assert numbers.of("hopstream_requests_total", operation="unknown", outcome="refused") == 3
    assert {one["operation"] for one in numbers.labels("hopstream_requests_total")} <= server.operation_names | {
        "unknown"
    }
    assert numbers.of("hopstream_request_duration_seconds_count", operation="stats") == 3
    assert numbers.of("hopstream_request_duration_seconds_bucket", operation="stats", le="+Inf") == 3
    assert 0 < numbers.of("hopstream_request_duration_seconds_sum", operation="stats") < 20
    assert numbers.of("hopstream_sent_bytes_total", operation="split") > 0
    assert numbers.sum_of("hopstream_sent_bytes_total") == server.stats.num_bytes
    assert served.services[0].report()["totals"]["num_channels"] == numbers.of("hopstream_channels") == 0


def test_cache_hits_and_misses_are_counted(watched: MetricsServer, served: Served):
    def lookups(cache: str) -> tuple[float, float]:
        numbers = Numbers(watched.location)
        names = ("hopstream_cache_hits_total", "hopstream_cache_misses_total")
        hits, misses = (numbers.of(name, cache=cache) for name in names)
        return hits, misses

    assert lookups("batches") == (0, 0)
    with remote_graph(served.locations) as graph, node_loader(graph) as loader:
        assert len(list(loader)) == NUM_BATCHES
    hits, misses = lookups("batches")
    assert hits + misses == NUM_BATCHES


def test_failures_and_abandoned_requests_are_counted_separately(store_server: StoreServer, served_folder: Path):
    def fail(_: object) -> Iterator[bytes]:
        raise ZeroDivisionError("a bug")
        yield b""

    with (
        LocalStore(open_dataset(served_folder)) as store,
        StoreServer(store, operations={"fail": fail}) as server,
        MetricsServer("127.0.0.1", 0, server) as watched,
    ):
        with pytest.raises(RemoteError, match="a bug"):
            asked(server, "fail")
        wait_until(
            lambda: Numbers(watched.location).of("hopstream_requests_total", operation="fail", outcome="failed") == 1,
            "one failure",
        )


def test_abandoned_requests_are_counted(served_folder: Path):
    has_left = threading.Event()

    def hold(call: Frame) -> Iterator[Frame]:
        assert isinstance(call, Call)
        call.on_over(has_left.set)
        assert has_left.wait(20)
        yield Frame({}, is_last=True)

    with (
        LocalStore(open_dataset(served_folder)) as store,
        StoreServer(store, operations={"hold": hold}) as server,
        MetricsServer("127.0.0.1", 0, server) as watched,
        closing(connected_to(server)) as connection,
    ):
        asking = connection.start(Frame({"op": "hold", "dataset": store.dataset_id}), 20.0, "hold", OneFrame())
        wait_until(lambda: Numbers(watched.location).of("hopstream_calls_under_way") == 1, "the request is there")
        del asking  # the answer will not be read
        abandoned = {"operation": "hold", "outcome": "abandoned"}
        wait_until(lambda: Numbers(watched.location).of("hopstream_requests_total", **abandoned) == 1, "it is counted")
        wait_until(lambda: Numbers(watched.location).of("hopstream_calls_under_way") == 0, "it has ended")


def test_build_info_names_versions(watched: MetricsServer):
    (labels,) = Numbers(watched.location).labels("hopstream_build_info")
    assert labels == {
        "version": hopstream.__version__, "python": platform.python_version(), "protocol": str(VERSION),
    }  # fmt: skip
    assert Numbers(watched.location).of("hopstream_build_info") == 1


def test_connections_and_refusals_of_clients_are_counted(served_folder: Path):
    limits = ServerLimits(max_request_bytes=10_000, max_bytes=1 << 22)
    with (
        LocalStore(open_dataset(served_folder)) as store,
        StoreServer(store, security=ServerSecurity(token="right"), limits=limits) as server,
        MetricsServer("127.0.0.1", 0, server) as watched,
    ):

        def number(name: str) -> float:
            return Numbers(watched.location).of(f"hopstream_{name}")

        with closing(connected_to(server, "wrong")) as stranger, pytest.raises(AccessDenied):
            stranger.ping(20.0)
        assert number("refused_tokens_total") == 1
        with closing(connected_to(server, "right")) as known:
            known.ping(20.0)
            assert number("connections") == 1 and number("refused_requests_total") == 0
            with pytest.raises(SettingsError, match="max-request-bytes"):
                known.ask(Frame({"op": "stats"}, [np.zeros(10_000)]), 20.0, "stats")
        wait_until(lambda: number("connections") == 0, "the client is gone")
        assert number("refused_requests_total") == number("refused_tokens_total") == 1
        assert number("transport_limit_bytes") == 1 << 22
        assert number("transport_bytes") == number("calls_under_way") == 0


def test_bytes_of_requests_under_way_are_reported(served_folder: Path):
    may_end = threading.Event()

    def hold(_: Frame) -> Iterator[Frame]:
        assert may_end.wait(20)
        yield Frame({}, is_last=True)

    with (
        LocalStore(open_dataset(served_folder)) as store,
        StoreServer(store, operations={"hold": hold}) as server,
        MetricsServer("127.0.0.1", 0, server) as watched,
        closing(connected_to(server)) as connection,
    ):
        request_frame = Frame({"op": "hold", "dataset": store.dataset_id}, [np.zeros(100_000)])
        asking = connection.start(request_frame, 20.0, "hold", OneFrame())
        wait_until(lambda: Numbers(watched.location).of("hopstream_calls_under_way") == 1, "the request is there")
        assert Numbers(watched.location).of("hopstream_transport_bytes") >= 800_000
        may_end.set()
        asking.result()


def test_sampling_is_counted_as_it_happens(watched: MetricsServer, served: Served):
    assert Numbers(watched.location).labels("hopstream_channel_batches_made_total") == []
    with node_loader(remote_graph(served.locations)) as loader:
        assert len(loader) == NUM_BATCHES
        batches = iter(loader)
        for _ in range(10):
            next(batches)

        settled: list[tuple[Numbers, ChannelStats]] = []

        def has_settled() -> bool:
            """Whether no batch was made or fetched while the numbers were read."""
            (channel,) = served.services[0]._scheduler._channels.values()
            before = replace(channel.stats)
            numbers = Numbers(watched.location)
            is_idle = numbers.of("hopstream_batches_in_flight") == numbers.of("hopstream_runnable_channels") == 0
            if is_idle and numbers.of("hopstream_batches_waiting") and channel.stats == before:
                settled.append((numbers, before))
            return bool(settled)

        wait_until(has_settled, "the credit is used up")
        ((numbers, stats),) = settled
        (labels,) = numbers.labels("hopstream_channel_batches_made_total")
        assert labels["loader"] == "NeighborLoader" and set(labels) == {"worker", "loader"}
        assert labels["worker"] == f"rank 0 at {socket.gethostname()[:64]}"
        made, fetched = (
            numbers.of(f"hopstream_channel_batches_{kind}_total", loader="NeighborLoader")
            for kind in ("made", "fetched")
        )
        assert fetched >= 10
        assert made == fetched + numbers.of("hopstream_batches_waiting")
        assert numbers.of("hopstream_batches_waiting") <= numbers.of("hopstream_credit_batches") <= LIMITS.credit
        assert numbers.of("hopstream_buffered_bytes") > 0
        assert numbers.of("hopstream_channels") == numbers.of("hopstream_sampling_threads") == 1
        assert numbers.of("hopstream_sampling_duration_seconds_count") == made
        assert numbers.of("hopstream_channel_sampling_seconds_total") == stats.sampling_s
        assert numbers.of("hopstream_sampling_duration_seconds_sum") == pytest.approx(stats.sampling_s)
        assert numbers.of("hopstream_channel_batches_failed_total", **labels) == 0
        assert (made, fetched) == (stats.num_made, stats.num_fetched)
        assert numbers.of("hopstream_channel_fetched_bytes_total") == stats.num_bytes > 0
    wait_until(lambda: Numbers(watched.location).of("hopstream_channels") == 0, "the channel is gone")
    numbers = Numbers(watched.location)
    assert not [s for s in numbers.samples if "worker" in s.labels]
    assert numbers.of("hopstream_buffered_bytes") == numbers.of("hopstream_batches_waiting") == 0
    assert numbers.of("hopstream_sampling_duration_seconds_count") >= made
    fetches = numbers.of("hopstream_requests_total", operation="fetch_one_sampled_message", outcome="ok")
    assert fetches >= 10


def test_every_metric_is_documented(watched: MetricsServer, served: Served):
    asked(served.servers[0], "stats")
    with node_loader(remote_graph(served.locations)) as loader:
        next(iter(loader))
        families = Numbers(watched.location).families
    told = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("### Outcomes")[0]
    rows = re.findall(r"^\| `(hopstream_\w+)` \| (\w+)(?:; ([^|]+?))? \|", told, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    found = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type, {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
        if family.name.startswith("hopstream_")
    }  # fmt: skip
    assert documented == found


def test_leases_that_run_out_are_counted(served_folder: Path):
    with (
        serve_here(served_folder, SamplingLimits(threads=1, lease_s=0.05)) as served,
        MetricsServer("127.0.0.1", 0, served.servers[0], served.services[0]) as watched,
    ):
        assert Numbers(watched.location).of("hopstream_leases_expired_total") == 0
        with node_loader(remote_graph(served.locations)) as loader:
            next(iter(loader))
            wait_until(
                lambda: Numbers(watched.location).of("hopstream_leases_expired_total") >= 1, "the lease runs out"
            )


def test_metrics_cover_only_the_process_and_its_server(watched: MetricsServer, store_server: StoreServer):
    with MetricsServer("127.0.0.1", 0, store_server) as other:
        names = {sample.name for sample in Numbers(watched.location).samples}
        others = {sample.name for sample in Numbers(other.location).samples}
        asked(store_server, "stats")
        wait_until(lambda: Numbers(other.location).sum_of("hopstream_requests_total") == 1, "one request")
        assert Numbers(watched.location).sum_of("hopstream_requests_total") == 0
    assert {"process_resident_memory_bytes", "process_open_fds", "hopstream_uptime_seconds"} <= names
    assert "hopstream_channels" in names and "hopstream_channels" not in others
    assert not [name for name in names if not name.startswith(("hopstream_", "process_"))]


def test_equal_labels_share_a_series_and_any_text_is_allowed():
    channels = [
        {"worker": worker, "loader": "PPRLoader", "num_made": 2, "num_failed": 0, "num_fetched": 1, "num_bytes": 8,
         "sampling_s": 0.5}
        for worker in (
            "rank 0 at host:17", "rank 0 at host:18", "rank 1 at host:17", "shard:3", "", 'a"b\\c\nd\ud800é',
            "x" * 5000,
        )
    ]  # fmt: skip
    made = next(iter(_channel_families(channels)))
    values = {sample.labels["worker"]: sample.value for sample in made.samples}
    assert values == {
        "rank 0 at host": 4, "rank 1 at host": 2, "shard:3": 2, "unknown": 2, 'a"b\\c\nd\\ud800é': 2, "x" * 100: 2,
    }  # fmt: skip


def test_a_peer_label_does_not_depend_on_its_socket_folder():
    class Counted(RoutedStore):
        def __init__(self, counts: dict[str, int]) -> None:
            self._counts = counts

        def peer_failures(self) -> dict[str, int]:
            return self._counts

    counts = {
        "tcp://10.0.0.9:7001": 3, "unix:///run/user/0/hopstream-ab_12xyz/0": 2,
        "unix:///run/user/0/hopstream-ab_12xyz/1": 1,
        "unix:///srv/hopstream-graph/0": 0,
    }  # fmt: skip
    family = _failure_family(Counted(counts))
    assert {sample.labels["peer"]: sample.value for sample in family.samples} == {
        "tcp://10.0.0.9:7001": 3, "unix:///run/user/0/hopstream-*/0": 2, "unix:///run/user/0/hopstream-*/1": 1,
        "unix:///srv/hopstream-graph/0": 0,
    }  # fmt: skip
    assert list(_failure_family(None).samples) == []


def test_hostile_labels_come_through_the_parser(served_folder: Path, watched: MetricsServer, served: Served):
    with node_loader(remote_graph(served.locations)) as loader:
        next(iter(loader))
        scheduler = served.services[0]._scheduler
        (channel,) = scheduler._channels.values()
        channel.worker = 'a"b\\c\nd\ud800'
        workers = {one["worker"] for one in Numbers(watched.location).labels("hopstream_channel_batches_made_total")}
        assert workers == {'a"b\\c\nd\\ud800'}


def test_a_duration_falls_into_its_bucket():
    meter = Meter()
    for seconds in (0.0005, 0.0006, 29.0, 31.0):
        meter.observe_batch(seconds)
    (family,) = meter.batch_families()
    values = {s.labels.get("le", s.name): s.value for s in family.samples}
    assert (values["0.0005"], values["0.001"], values["10.0"], values["30.0"], values["+Inf"]) == (1, 2, 2, 3, 4)
    assert values["hopstream_sampling_duration_seconds_sum"] == pytest.approx(60.0011)
    assert len(values) == len(SECONDS_BOUNDS) + 3


def test_a_server_is_healthy_and_ready(watched: MetricsServer, store_server: StoreServer, served: Served):
    assert watched.location.startswith("http://127.0.0.1:")
    assert request(watched.location, "/healthz")[:2] == (200, "ok\n")
    assert not served.services[0].has_graph
    assert request(watched.location, "/readyz")[:2] == (200, "ready\n")
    assert served.services[0].has_graph
    with MetricsServer("127.0.0.1", 0, store_server) as other:
        assert request(other.location, "/readyz")[0] == 200
        store_server.close()
        status, reason, _ = request(other.location, "/readyz")
        assert (status, reason) == (503, "the server is shutting down\n")
        assert request(other.location, "/healthz")[0] == 200


def test_a_server_whose_graph_cannot_be_opened_is_not_ready(store_server: StoreServer, served_folder: Path):
    opened = Failing()
    service = SamplingService(opened, LIMITS)
    try:
        with MetricsServer("127.0.0.1", 0, store_server, service) as watched:
            status, reason, headers = request(watched.location, "/readyz")
            assert status == 503 and headers["Content-Type"].startswith("text/plain")
            assert reason == (
                "the graph cannot be opened: StoreUnavailable: part 1 at tcp://10.0.0.9:7001 cannot be reached\n"
            )
            opened.error, opened.store = None, LocalStore(open_dataset(served_folder))
            assert request(watched.location, "/readyz")[0] == 200
            assert request(watched.location, "/readyz")[0] == 200
            assert opened.num_calls == 2
    finally:
        service.close()
    with pytest.raises(StoreUnavailable, match="shutting down"):
        service.open_graph()


@pytest.fixture
def in_two_parts(timed_parts: dict[int, Path]) -> Iterator[Served]:
    with serve_here(timed_parts[2], LIMITS) as served:
        yield served


def test_a_server_is_not_ready_while_a_peer_that_it_needs_is_gone(
    in_two_parts: Served, timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "KEPT_S", 0.0)
    here, there = in_two_parts.servers
    with MetricsServer("127.0.0.1", 0, here, in_two_parts.services[0]) as watched:
        assert request(watched.location, "/readyz")[:2] == (200, "ready\n")
        there.close()
        status, reason, _ = request(watched.location, "/readyz")
        assert status == 503
        assert reason.startswith(f"gone: {there.location}; part 1 at {there.location} cannot be reached for ping: ")
        assert reason.count("\n") == 1 and here.location not in reason
        assert request(watched.location, "/healthz")[0] == 200
        with LocalStore(open_dataset(timed_parts[2]), [1]) as store, StoreServer(store, there.location):
            assert request(watched.location, "/readyz")[:2] == (200, "ready\n")


def test_a_peer_whose_parts_another_serves_may_be_gone(
    store_server: StoreServer, timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "KEPT_S", 0.0)
    dataset = open_dataset(timed_parts[2])
    with ExitStack() as stack:
        servers = []
        for part in (0, 1, 1):
            store = stack.enter_context(LocalStore(dataset, [part]))
            servers.append(stack.enter_context(StoreServer(store)))
        locations = ",".join(server.location for server in servers)
        service = SamplingService(lambda: open_cluster(parse_locations(locations), SETTINGS), LIMITS)
        stack.callback(service.close)
        watched = stack.enter_context(MetricsServer("127.0.0.1", 0, store_server, service))
        assert request(watched.location, "/readyz")[:2] == (200, "ready\n")
        servers[1].close()
        assert request(watched.location, "/readyz")[:2] == (200, f"ready; gone: {servers[1].location}\n")
        servers[2].close()
        status, reason, _ = request(watched.location, "/readyz")
        assert status == 503
        assert reason.startswith(f"gone: {servers[1].location}, {servers[2].location}; ")


def test_probes_share_one_result(in_two_parts: Served, monkeypatch: pytest.MonkeyPatch):
    num_rounds = 0
    gone_peers = RoutedStore.gone_peers

    def counted(store: RoutedStore, timeout_s: float) -> object:
        nonlocal num_rounds
        num_rounds += 1
        return gone_peers(store, timeout_s)

    monkeypatch.setattr(RoutedStore, "gone_peers", counted)
    monkeypatch.setattr(metrics, "KEPT_S", 60.0)
    with MetricsServer("127.0.0.1", 0, in_two_parts.servers[0], in_two_parts.services[0]) as watched:
        for _ in range(5):
            assert request(watched.location, "/readyz")[0] == 200
    assert num_rounds == 1


def test_a_silent_peer_does_not_delay_probes(in_two_parts: Served, monkeypatch: pytest.MonkeyPatch):
    may_answer = threading.Event()

    def slow(_: RoutedStore, timeout_s: float) -> Sequence[object]:
        assert timeout_s < metrics.READY_WAIT_S + 2.0 and may_answer.wait(20)
        return []

    monkeypatch.setattr(RoutedStore, "gone_peers", slow)
    monkeypatch.setattr(metrics, "READY_WAIT_S", 0.05)
    in_two_parts.services[0].open_graph()
    with MetricsServer("127.0.0.1", 0, in_two_parts.servers[0], in_two_parts.services[0]) as watched:
        wait_until(
            lambda: (
                request(watched.location, "/readyz")[:2]
                == (503, "the answers of other servers to pings are still awaited\n")
            ),
            "the peers are being asked",
        )
        may_answer.set()
        wait_until(lambda: request(watched.location, "/readyz")[0] == 200, "they have answered")


def test_failures_are_counted_by_peer(in_two_parts: Served):
    here, there = in_two_parts.servers
    settings = replace(SETTINGS, timeout_s=1.0)
    service = SamplingService(lambda: open_cluster(parse_locations(in_two_parts.locations), settings), LIMITS)
    with closing(service), MetricsServer("127.0.0.1", 0, here, service) as watched:
        assert Numbers(watched.location).labels("hopstream_peer_failures_total") == []
        service.open_graph()
        assert service.graph is not None
        peers = {one["peer"] for one in Numbers(watched.location).labels("hopstream_peer_failures_total")}
        assert peers == {here.location, there.location}
        there.close()
        with pytest.raises(StoreUnavailable):
            service.graph.split("paper", "train")
        numbers = Numbers(watched.location)
        assert numbers.of("hopstream_peer_failures_total", peer=there.location) == 1
        assert numbers.of("hopstream_peer_failures_total", peer=here.location) == 0
        assert request(watched.location, "/readyz")[0] == 503
        assert Numbers(watched.location).sum_of("hopstream_peer_failures_total") == 1, "pings do not count"


def test_readiness_does_not_wait_for_a_graph_that_takes_long(
    store_server: StoreServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "READY_WAIT_S", 0.05)
    opened = Failing()
    opened.may_go_on.clear()
    service = SamplingService(opened, LIMITS)
    try:
        with MetricsServer("127.0.0.1", 0, store_server, service) as watched:
            for _ in range(3):
                status, reason, _ = request(watched.location, "/readyz")
                assert (status, reason) == (503, "the graph is still being opened\n")
            assert opened.num_calls == 1
            assert request(watched.location, "/healthz")[0] == request(watched.location, "/metrics")[0] == 200
            opened.may_go_on.set()
    finally:
        opened.may_go_on.set()
        service.close()


def test_closing_ends_waiting_probes(store_server: StoreServer, served_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "READY_WAIT_S", 60.0)
    monkeypatch.setattr(metrics, "JOIN_S", 0.05)
    opened = Failing()
    opened.may_go_on.clear()
    service = SamplingService(opened, LIMITS)
    answers: list[int] = []

    def probe(location: str) -> None:
        try:
            answers.append(request(location, "/readyz")[0])
        except (OSError, http.client.HTTPException):  # cut off
            answers.append(0)

    try:
        watched = MetricsServer("127.0.0.1", 0, store_server, service)
        asking = threading.Thread(target=probe, args=(watched.location,))
        asking.start()
        wait_until(lambda: opened.num_calls == 1, "the graph is being opened")
        watched.close()
        asking.join(20)
        assert not asking.is_alive() and answers[0] in (0, 503)
        service.close()  # does not wait for the graph either
        opened.error, opened.store = None, LocalStore(open_dataset(served_folder))
        (opening,) = (t for t in threading.enumerate() if t.name == "hopstream-ready")
        opened.may_go_on.set()
        opening.join(20)
        assert opened.store._is_closed and not service.has_graph
    finally:
        opened.may_go_on.set()
        service.close()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/\u00e9".encode()])
def test_other_paths_are_not_found(watched: MetricsServer, path: str | bytes):
    path = path.decode("latin-1") if isinstance(path, bytes) else path
    answer = raw(watched.location, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.0 404 ")


def test_a_query_is_ignored_and_head_has_no_body(watched: MetricsServer):
    assert request(watched.location, "/healthz?verbose=1")[0] == 200
    for path in ("/metrics", "/healthz", "/readyz", "/none"):
        status, body, headers = request(watched.location, path, "HEAD")
        assert status == (404 if path == "/none" else 200)
        assert body == "" and int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("method", ["POST", "XYZZY"])
def test_other_methods_are_refused(watched: MetricsServer, method: str):
    assert request(watched.location, "/metrics", method)[0] == 501


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.0\r\n\r\n", 414),
        (b"GET /metrics HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /metrics HTTP/1.0\r\na: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /metrics HTTP/9.9\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00 \x00 \x00\r\n\r\n", 400),
    ],
)
def test_hostile_requests_are_refused(watched: MetricsServer, sent: bytes, status: int):
    assert f" {status} ".encode() in raw(watched.location, sent).partition(b"\r\n")[0]
    assert request(watched.location, "/healthz")[0] == 200


def test_a_slow_client_does_not_block_others(watched: MetricsServer):
    with ExitStack() as stack:
        for _ in range(endpoint.MAX_CONNECTIONS // 2):
            slow = stack.enter_context(connected(watched.location))
            slow.sendall(b"GET /metr")
        assert request(watched.location, "/healthz")[0] == 200
        assert request(watched.location, "/metrics")[0] == 200


def test_the_oldest_of_too_many_connections_is_cut_off(watched: MetricsServer):
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(watched.location)) for _ in range(endpoint.MAX_CONNECTIONS)]
        wait_until(lambda: len(watched._endpoint._listener._open) == len(slow), "all are connected")
        assert request(watched.location, "/healthz")[0] == 200
        assert slow[0].recv(1) == b""  # cut off
        slow[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert received(slow[-1]).endswith(b"ok\n")


def test_a_connection_has_a_deadline(watched: MetricsServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.05)
    with connected(watched.location) as slow:
        slow.sendall(b"GET /metr")
        assert received(slow) == b""


def test_closing_frees_the_port_and_drops_open_connections(served: Served):
    service = served.services[0]
    watched = MetricsServer("127.0.0.1", 0, served.servers[0], service)
    port = urlsplit(watched.location).port
    assert port is not None
    with pytest.raises(StateError, match="already has a MetricsServer"):
        MetricsServer("127.0.0.1", 0, served.servers[0], service)
    with connected(watched.location) as slow:
        slow.sendall(b"GET /metr")
        wait_until(lambda: len(watched._endpoint._listener._open) == 1, "the connection is there")
        watched.close()
        assert received(slow) == b""
    watched.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("hopstream-http", "hopstream-ready"))]
    assert served.servers[0].observer is None
    with MetricsServer("127.0.0.1", port, served.servers[0], service) as again:
        assert urlsplit(again.location).port == port
        assert request(again.location, "/readyz")[0] == 200


def test_invalid_addresses_are_refused(served: Served):
    server = served.servers[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            StoreUnavailable,
            match=r"cannot listen at http://127\.0\.0\.1:(\d+): port \1 is in use; choose another, or port 0",
        ):
            MetricsServer("127.0.0.1", taken.getsockname()[1], server)
    for port in (-1, 1 << 16):
        with pytest.raises(SettingsError, match=r"port is .*; ports are numbered 0\.\.65535"):
            MetricsServer("127.0.0.1", port, server)
    for host in ("x" * 300, "203.0.113.1"):
        with pytest.raises(StoreUnavailable, match=r"cannot listen at .*; give a name or address of this machine$"):
            MetricsServer(host, 0, server)
    assert server.observer is None


def test_a_page_that_fails_is_an_error_of_its_own(caplog: pytest.LogCaptureFixture):
    def fail() -> Page:
        raise ZeroDivisionError("a bug")

    pages: Mapping[str, Callable[[], Page]] = {"/bad": fail, "/good": lambda: Page.of_text("\ud800")}
    serving = Endpoint("127.0.0.1", 0, pages)
    try:
        assert request(serving.location, "/bad")[:2] == (500, "the server failed; its log says how\n")
        assert request(serving.location, "/good")[:2] == (200, "\\ud800\n")
    finally:
        serving.close()
    assert "the page /bad could not be made" in caplog.text


def test_many_scrapes_at_once(watched: MetricsServer, served: Served):
    failures: list[BaseException] = []

    def scrape() -> None:
        try:
            for _ in range(5):
                Numbers(watched.location)
        except BaseException as error:
            failures.append(error)

    scrapers = [threading.Thread(target=scrape) for _ in range(4)]
    for scraper in scrapers:
        scraper.start()
    with node_loader(remote_graph(served.locations), batch_size=10) as loader:
        num_batches = sum(1 for _ in loader)
    for scraper in scrapers:
        scraper.join(60)
    assert failures == [] and num_batches == NUM_BATCHES // 10


def connected_to(server: StoreServer, token: str | None = None) -> Connection:
    """A connection of a client."""
    return Connection(Location.parse(server.location), ClientSecurity(token=token))


def connected(location: str) -> socket.socket:
    """A connection that has sent nothing yet."""
    host, port = urlsplit(location).hostname, urlsplit(location).port
    return socket.create_connection((host, port), timeout=20)


def received(connection: socket.socket) -> bytes:
    """All bytes until the other side ends the connection."""
    found = b""
    try:
        while more := connection.recv(65536):
            found += more
    except ConnectionResetError:
        pass
    return found


def raw(location: str, sent: bytes) -> bytes:
    """The answer to raw bytes."""
    with connected(location) as connection:
        connection.sendall(sent)
        return received(connection)
