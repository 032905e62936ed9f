"""Metrics and health pages of a server: counters, liveness and readiness.

``/metrics`` is for Prometheus; ``/healthz`` and ``/readyz`` are for supervisors. Counters are converted to Prometheus
metrics only when ``/metrics`` is requested, so counting costs about a microsecond per request.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hopstream import __version__
from hopstream.errors import StateError
from hopstream.store.contract import Store
from hopstream.store.routed import GonePeer, RoutedStore
from hopstream.store.server import UNKNOWN, Outcome, StoreServer
from hopstream.stream.endpoint import Endpoint, Page, Pages
from hopstream.stream.service import SamplingService
from hopstream.transport.listener import Listener
from hopstream.transport.messages import VERSION

LOG = logging.getLogger(__name__)
SECONDS_BOUNDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds of the histograms' buckets, in seconds."""
READY_WAIT_S = 2.0
"""Time limit of ``/readyz`` in seconds."""
PING_S = 1.5
"""Time limit in seconds for other servers to answer the pings of ``/readyz``."""
KEPT_S = 2.0
"""Seconds for which the result of the pings is kept, so that frequent probes are cheap."""
JOIN_S = 5.0
"""Seconds that ``close`` waits for an attempt to open the graph."""
MAX_LABEL = 100
MAX_REASON = 1000
CHANNEL_LABELS = ("worker", "loader")
CHANNEL_COUNTERS = {
    "num_made": ("hopstream_channel_batches_made", "Batches made for the channel, failed and repeated ones included."),
    "num_failed": ("hopstream_channel_batches_failed", "Batches of the channel that failed."),
    "num_fetched": ("hopstream_channel_batches_fetched", "Batches of the channel that were fetched."),
    "num_bytes": ("hopstream_channel_fetched_bytes", "Bytes of the channel that were fetched."),
    "sampling_s": ("hopstream_channel_sampling_seconds", "Time of sampling threads that the channel took."),
}
"""Metric and help text, by the scheduler's name of the number."""
MADE_FOLDER = re.compile(r"/hopstream-[a-z0-9_]{8}/")
"""A socket folder of ``hopstream up``. Its name is random, so labels leave it out."""
RANK_WITH_PROCESS = re.compile(r"(rank \d+ at .+):\d+")
"""Name of a loader's worker. It ends in the process id, which labels leave out: each run would be a new series."""
TOTAL_GAUGES = {
    "num_channels": ("hopstream_channels", "Sampling channels that are registered."),
    "num_runnable": ("hopstream_runnable_channels", "Channels for which there is a batch to make now."),
    "num_in_flight": ("hopstream_batches_in_flight", "Batches that are being made."),
    "num_waiting": ("hopstream_batches_waiting", "Batches that wait to be fetched."),
    "num_buffered_bytes": ("hopstream_buffered_bytes", "Bytes of batches that wait to be fetched."),
    "num_threads": ("hopstream_sampling_threads", "Threads that sample."),
}
TRAFFIC_COUNTERS = {
    "remote_requests": ("hopstream_remote_requests", "Requests to servers of other parts."),
    "remote_ids": ("hopstream_remote_ids", "Nodes and edges requested from servers of other parts."),
    "remote_bytes": ("hopstream_remote_bytes", "Bytes that servers of other parts answered."),
    "halo_ids": ("hopstream_halo_ids", "Nodes and edges of other parts that local halos answered."),
    "halo_bytes": ("hopstream_halo_bytes", "Bytes that local halos answered."),
    "cache_ids": ("hopstream_row_cache_ids", "Nodes and edges of other parts whose rows were in the cache of rows."),
    "cache_bytes": ("hopstream_row_cache_bytes", "Bytes of rows that were in the cache of rows."),
    "cache_evictions": ("hopstream_row_cache_evictions", "Rows that the cache of rows dropped for others."),
}


class MetricsServer:
    """HTTP endpoint for ``/metrics``, ``/healthz`` and ``/readyz``; the caller owns the server.

    Everyone who can reach the address can read the metrics. They name workers, loaders, operations and peers, but hold
    no data of the graph.
    """

    def __init__(
        self,
        location_host: str,
        port: int,
        server: StoreServer,
        service: SamplingService | None = None,
        *,
        endpoint: Endpoint | None = None,
    ) -> None:
        """Start to listen and to count.

        Args:
            location_host: Host to listen at: ``127.0.0.1``, unless other machines need the pages.
            port: Port; 0 lets the system choose.
            server: Server whose requests are counted.
            service: Sampling service of the server, or None.
            endpoint: Endpoint that already listens with ``starting_pages``, instead of host and port. This object
                closes it.

        Raises:
            SettingsError: ``port`` is out of range.
            StateError: The server has another observer.
            StoreUnavailable: The endpoint cannot listen at the address, for example because the port is in use.
        """
        if server.observer is not None:
            raise StateError(f"{server.location} already has a MetricsServer; close that one first")
        self._meter = meter = Meter()
        self._server, self._service = server, service
        self._registry = CollectorRegistry()
        self._registry.register(_ServerCollector(meter, server.listener, service))
        ProcessCollector(registry=self._registry)
        self._readiness = Readiness(server, service)
        pages = {"/metrics": self._metrics, "/healthz": lambda: Page.of_text("ok"), "/readyz": self._ready}
        if endpoint is None:
            endpoint = Endpoint(location_host, port, pages)
        endpoint.answer(pages)
        self._endpoint = endpoint
        self.location = self._endpoint.location
        """Address as ``http://host:port``, with the port that the system chose."""
        server.observer = meter
        if service is not None:
            service.observe_batches(meter.observe_batch)
        LOG.info("metrics of %s at %s/metrics", server.location, self.location)

    def close(self) -> None:
        """Stop counting, release the port and end all threads; a second call does nothing."""
        if self._server.observer is self._meter:
            self._server.observer = None
            if self._service is not None:
                self._service.observe_batches(None)
        self._readiness.close()
        self._endpoint.close()

    def __enter__(self) -> MetricsServer:
        """Return this object; the ``with`` block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the endpoint and stop counting."""
        self.close()

    def _metrics(self) -> Page:
        return Page(body=generate_latest(self._registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _ready(self) -> Page:
        found = self._readiness.find(READY_WAIT_S)
        if found.reason:
            return Page.of_text(found.reason, HTTPStatus.SERVICE_UNAVAILABLE)
        return Page.of_text(f"ready; gone: {', '.join(found.spared)}" if found.spared else "ready")


def starting_pages() -> Pages:
    """Return the pages until the server has started: alive, but not ready."""

    def not_yet() -> Page:
        return Page.of_text("the server is starting", HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": not_yet, "/healthz": lambda: Page.of_text("ok"), "/readyz": not_yet}


@dataclass(slots=True)
class Durations:
    """Histogram of durations with the buckets ``SECONDS_BOUNDS``."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds and cumulative counts."""
        num, found = 0, []
        for bound, count in zip((*SECONDS_BOUNDS, float("inf")), self.counts, strict=True):
            num += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(num)))
        return found


class Meter:
    """Counters of requests and batches. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._num_requests: dict[tuple[str, str], int] = defaultdict(int)
        self._num_bytes: dict[str, int] = defaultdict(int)
        self._requests: dict[str, Durations] = defaultdict(Durations)
        self._batches = Durations()

    def observe(self, operation: str, outcome: Outcome, seconds: float, num_bytes: int) -> None:
        """Count a request."""
        with self._lock:
            self._num_requests[operation, outcome] += 1
            self._num_bytes[operation] += num_bytes
            self._requests[operation].add(seconds)

    def observe_batch(self, seconds: float) -> None:
        """Count a batch."""
        with self._lock:
            self._batches.add(seconds)

    def request_families(self) -> Iterator[Metric]:
        """Yield the metrics of requests."""
        requests = CounterMetricFamily(
            "hopstream_requests", "Requests that have ended.", labels=("operation", "outcome")
        )
        sent = CounterMetricFamily("hopstream_sent_bytes", "Bytes of answers.", labels=("operation",))
        durations = HistogramMetricFamily(
            "hopstream_request_duration_seconds", "Time from a request to the end of its answer.", labels=("operation",)
        )
        with self._lock:
            for (operation, outcome), num in sorted(self._num_requests.items()):
                requests.add_metric((operation, outcome), num)
            for operation, num in sorted(self._num_bytes.items()):
                sent.add_metric((operation,), num)
            for operation, known in sorted(self._requests.items()):
                durations.add_metric((operation,), known.buckets(), known.sum_s)
        yield from (requests, sent, durations)

    def batch_families(self) -> Iterator[Metric]:
        """Yield the metrics of sampling."""
        with self._lock:
            buckets, sum_s = self._batches.buckets(), self._batches.sum_s
        yield HistogramMetricFamily(
            "hopstream_sampling_duration_seconds", "Time to make a batch.", buckets=buckets, sum_value=sum_s
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Readiness of a server.

    Attributes:
        reason: Why the server is not ready; empty if it is.
        spared: Locations of unreachable servers whose parts other servers hold.
    """

    reason: str = ""
    spared: tuple[str, ...] = ()

    @classmethod
    def of(cls, gone: Sequence[GonePeer]) -> Found:
        """Derive the readiness from the servers that do not answer."""
        needed = [peer for peer in gone if peer.lost_parts]
        reason = ""
        if needed:
            why = "; ".join(peer.reason for peer in needed)[:MAX_REASON]
            reason = f"gone: {', '.join(peer.location for peer in needed)}; {why}"
        return cls(reason, tuple(peer.location for peer in gone if not peer.lost_parts))


CLOSING = Found("the server is shutting down")


class Readiness:
    """Readiness check of a server: opens its graph if needed, and pings the servers of other parts."""

    def __init__(self, server: StoreServer, service: SamplingService | None) -> None:
        """Keep the server and its sampling service, or None."""
        self._server, self._service = server, service
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._is_closed = False

    def find(self, timeout_s: float) -> Found:
        """Check whether the server is ready, within ``timeout_s`` seconds."""
        if self._is_closed or not self._server.is_serving:
            return CLOSING
        if self._service is None:
            return Found()
        attempt = self._attempt_now(self._service)
        if attempt is None:
            return CLOSING
        attempt.ended.wait(timeout_s)
        return attempt.found

    def close(self) -> None:
        """End all waits, and wait up to ``JOIN_S`` for an attempt to open the graph."""
        with self._lock:
            self._is_closed = True
            attempt = self._attempt
        if attempt is not None:
            attempt.ended.set()
            attempt.thread.join(JOIN_S)
            if attempt.thread.is_alive():
                LOG.warning("the graph was still being opened %g s after the server began to stop", JOIN_S)

    def _attempt_now(self, service: SamplingService) -> _Attempt | None:
        """Return the current, a recent or a new attempt, so that probes share a thread. None when closed."""
        with self._lock:
            if self._is_closed:
                return None
            if self._attempt is None or (self._attempt.ended.is_set() and time.monotonic() >= self._attempt.kept_until):
                attempt = _Attempt(service)
                attempt.thread.start()
                self._attempt = attempt
            return self._attempt


class _Attempt:
    """Attempt to open the graph and to ping its servers, in its own thread."""

    def __init__(self, service: SamplingService) -> None:
        self.found = Found("the graph is still being opened")
        self.ended = threading.Event()
        self.kept_until = 0.0
        """Time until which the result is kept. A failure to open the graph is not kept: the next probe retries."""
        self._service = service
        self.thread = threading.Thread(target=self._run, name="hopstream-ready", daemon=True)

    def _run(self) -> None:
        try:
            self._service.open_graph()
            self.found = Found("the answers of other servers to pings are still awaited")
            self.found = self._peers()
            self.kept_until = time.monotonic() + KEPT_S
        except Exception as error:  # every error means that the graph cannot be opened
            said = str(error).partition("\n")[0]  # without the traceback of a server
            self.found = Found(f"the graph cannot be opened: {type(error).__name__}: {said}"[:MAX_REASON])
        finally:
            self.ended.set()

    def _peers(self) -> Found:
        graph = self._service.graph
        return Found.of(graph.gone_peers(PING_S)) if isinstance(graph, RoutedStore) else Found()


class _ServerCollector(Collector):
    """Collector that converts a server's counters to Prometheus metrics."""

    def __init__(self, meter: Meter, listener: Listener, service: SamplingService | None) -> None:
        self._meter = meter
        self._listener = listener
        self._service = service
        self._started_at = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; series of closed channels end."""
        uptime_s = time.monotonic() - self._started_at
        yield GaugeMetricFamily("hopstream_uptime_seconds", "Time since the server began to count.", value=uptime_s)
        yield _build_family()
        yield from self._meter.request_families()
        yield from _transport_families(self._listener)
        if self._service is None:
            return
        yield from self._meter.batch_families()
        report = self._service.report()
        yield from _total_families(report["totals"], report["channels"])
        yield from _cache_families(report["caches"])
        yield from _traffic_families(report["traffic"])
        yield _failure_family(self._service.graph)
        yield from _channel_families(report["channels"])


def _build_family() -> Metric:
    build = {"version": __version__, "python": platform.python_version(), "protocol": str(VERSION)}
    family = GaugeMetricFamily("hopstream_build_info", "1; the labels say what runs.", labels=tuple(build))
    family.add_metric(tuple(build.values()), 1)
    return family


def _transport_families(listener: Listener) -> Iterator[Metric]:
    """Yield metrics of connections, requests and refusals."""
    gauges = {
        "hopstream_connections": ("Connections of clients.", listener.num_connections),
        "hopstream_calls_under_way": ("Requests that are being answered.", listener.num_calls),
        "hopstream_transport_bytes": (
            "Bytes of requests, and of answers that are being sent.", listener.account.taken,
        ),
        "hopstream_transport_limit_bytes": ("Limit of these bytes.", listener.account.limit),
    }  # fmt: skip
    for name, (help_text, value) in gauges.items():
        yield GaugeMetricFamily(name, help_text, value=value)
    yield CounterMetricFamily(
        "hopstream_refused_tokens", "Connections without a token, or with a wrong one.", listener.num_refused_tokens
    )
    yield CounterMetricFamily(
        "hopstream_refused_requests", "Requests that were too large or found no room.",
        listener.num_refused_calls,
    )  # fmt: skip


def _failure_family(graph: Store | None) -> Metric:
    """Return failed attempts by peer; empty before the graph is open."""
    family = CounterMetricFamily(
        "hopstream_peer_failures", "Requests that a server of other parts did not answer.", labels=("peer",)
    )
    sums: dict[str, int] = defaultdict(int)
    for location, num in graph.peer_failures().items() if isinstance(graph, RoutedStore) else ():
        sums[_label(MADE_FOLDER.sub("/hopstream-*/", location))] += num
    for peer, num in sums.items():
        family.add_metric((peer,), num)
    return family


def _total_families(totals: dict[str, float], channels: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    for name, (metric, help_text) in TOTAL_GAUGES.items():
        yield GaugeMetricFamily(metric, help_text, value=totals[name])
    credit = sum(channel["credit"] for channel in channels)
    yield GaugeMetricFamily("hopstream_credit_batches", "Most batches that all channels may have unfetched.", credit)
    yield CounterMetricFamily(
        "hopstream_leases_expired", "Channels given up because no client used them.", totals["num_expired"]
    )


def _cache_families(caches: dict[str, dict[str, int]]) -> Iterator[Metric]:
    """Yield hits and misses of caches."""
    for name, help_text in (
        ("hits", "Batches, or rows of other parts, that were ready when they were needed."),
        ("misses", "Batches, or rows of other parts, that had to be made or requested first."),
    ):
        family = CounterMetricFamily(f"hopstream_cache_{name}", help_text, labels=("cache",))
        for cache, counts in caches.items():
            family.add_metric((cache,), counts[name])
        yield family


def _traffic_families(traffic: dict[str, dict[str, int]]) -> Iterator[Metric]:
    """Yield traffic of sampling with other servers, halos and the cache; nothing if all parts are local."""
    for name, (metric, help_text) in TRAFFIC_COUNTERS.items():
        family = CounterMetricFamily(metric, help_text, labels=("kind",))
        for kind, counts in traffic.items():
            family.add_metric((kind,), counts[name])
        yield family


def _channel_families(channels: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    """Yield one series per worker and loader; several channels of a worker and loader are added up."""
    for name, (metric, help_text) in CHANNEL_COUNTERS.items():
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for channel in channels:
            sums[_worker(channel), _label(channel["loader"])] += channel[name]
        family = CounterMetricFamily(metric, help_text, labels=CHANNEL_LABELS)
        for labels, value in sorted(sums.items()):
            family.add_metric(labels, value)
        yield family


def _worker(channel: Mapping[str, Any]) -> str:
    """Return the ``worker`` label of a channel: ``rank 0 at host``, without the process id."""
    text = channel["worker"]
    rank = RANK_WITH_PROCESS.fullmatch(text)
    return _label(rank[1] if rank else text or UNKNOWN)


def _label(text: str) -> str:
    """Make a label: shortened, and with lone surrogates escaped, which JSON allows and UTF-8 does not."""
    return text[:MAX_LABEL].encode(errors="backslashreplace").decode()
