"""Tests of what a consumer sees if servers fail whose parts other servers hold too.

Two parts with two replicas each: four servers in processes of their own, all of which sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopstream.errors import StoreUnavailable
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import POLL_S, SLACK_S, RemoteGraph
from tests.load.graphs import flat
from tests.stream.serving import SamplingProcess, locations_of, node_loader, remote_graph, serve_processes

pytestmark = pytest.mark.slow

PEER_TIMEOUT_S = 2.0
"""Seconds that servers wait for one another."""
CALL_TIMEOUT_S = 4.0
"""Seconds that the loader waits for any answer but that to a fetch."""
PAUSED_S = POLL_S + SLACK_S
"""Seconds that a hanging server may hold up a batch, as documented."""
BUSY_S = 8.0
"""Seconds that the same may take longer on a busy machine."""
SECONDS_S = 5.0
"""Upper bound of the "seconds" in the documents."""
Batches = list[dict[str, object]]


@pytest.fixture(scope="module")
def servers(timed_parts: dict[int, Path]) -> Iterator[list[SamplingProcess]]:
    """Server ``n`` has part ``n % 2``."""
    with serve_processes(timed_parts[2], "--store-timeout", PEER_TIMEOUT_S, num_replicas=2) as processes:
        yield processes


@pytest.fixture
def victim(servers: list[SamplingProcess]) -> Iterator[SamplingProcess]:
    """The server that a test stops."""
    yield servers[1]
    servers[1].thaw()


@pytest.fixture
def mortal_servers(timed_parts: dict[int, Path]) -> Iterator[list[SamplingProcess]]:
    """Servers of one test, which may end them."""
    with serve_processes(timed_parts[2], "--store-timeout", PEER_TIMEOUT_S, num_replicas=2) as processes:
        yield processes


@pytest.fixture(scope="module")
def wanted(timed_parts: dict[int, Path]) -> Batches:
    with node_loader(timed_parts[1], batch_size=2) as loader:
        return [flat(batch) for batch in loader]


def take(
    servers: list[SamplingProcess], disturb_at: int, disturb: Callable[[], None], num_threads: int = 2
) -> tuple[Batches, float]:
    """Take an epoch; return it and the longest wait for a batch.

    ``disturb`` is called before batch ``disturb_at``.
    """
    settings = StoreSettings(prefer_local=False, timeout_s=CALL_TIMEOUT_S)
    graph = RemoteGraph(locations_of(servers), settings=settings, timeout_s=60.0)
    with node_loader(graph, batch_size=2, num_threads=num_threads, prefetch=2) as loader:
        iterator, got, longest_s = iter(loader), [], 0.0
        while True:
            if len(got) == disturb_at:
                disturb()
            asked_at = time.monotonic()
            batch = next(iterator, None)
            if batch is None:
                return got, longest_s
            longest_s = max(longest_s, time.monotonic() - asked_at)
            got.append(flat(batch))


def test_a_server_paused_before_the_first_batch_loses_no_batch(
    servers: list[SamplingProcess], victim: SamplingProcess, wanted: Batches
) -> None:
    """The server delays the loader's registration, and once each other server's request for rows."""
    got, longest_s = take(servers, 0, victim.freeze)
    assert got == wanted
    print(f"longest wait {longest_s:.2f} s")  # noqa: T201
    assert PEER_TIMEOUT_S / 2 < longest_s < max(PAUSED_S, CALL_TIMEOUT_S) + PEER_TIMEOUT_S + BUSY_S


def test_a_server_paused_mid_epoch_delays_batches_within_the_bound(
    servers: list[SamplingProcess], victim: SamplingProcess, wanted: Batches
) -> None:
    """With one thread, no other work hides the wait."""
    started = time.monotonic()
    got, longest_s = take(servers, 20, victim.freeze, num_threads=1)
    took_s = time.monotonic() - started
    assert got == wanted
    print(f"longest wait {longest_s:.2f} s, epoch {took_s:.2f} s")  # noqa: T201
    assert longest_s < PAUSED_S + PEER_TIMEOUT_S + BUSY_S
    assert took_s < 3 * (PAUSED_S + PEER_TIMEOUT_S) + 2 * BUSY_S  # not once per batch: from then on it is asked last


def test_killed_servers_with_replicas_lose_no_batch(mortal_servers: list[SamplingProcess], wanted: Batches) -> None:
    """Kill a server in mid-epoch, one before another epoch's first batch, and then the last of a part."""
    servers, waits_s = mortal_servers, []
    for at, number in ((20, 1), (0, 0)):
        got, longest_s = take(servers, at, servers[number].kill)
        assert got == wanted
        waits_s.append(longest_s)
    print(f"longest waits {waits_s}")  # noqa: T201
    assert max(waits_s) < SECONDS_S
    settings = StoreSettings(prefer_local=False, timeout_s=CALL_TIMEOUT_S)
    graph = RemoteGraph(locations_of(servers), settings=settings, timeout_s=3.0)
    with node_loader(graph, batch_size=2, num_threads=1, prefetch=2) as loader:
        got = []
        with pytest.raises(StoreUnavailable, match="no server gave batch") as raised:
            for batch in loader:
                got.append(flat(batch))
                if len(got) == 10:
                    servers[3].kill()
        assert got == wanted[: len(got)]
        assert all(servers[number].location in str(raised.value) for number in (0, 1, 3))
        servers[1].start()
        servers[1].wait_ready()
        assert got + [flat(batch) for batch in loader] == wanted
    assert [servers[number].stop() for number in (1, 2)] == [0, 0]


def test_rows_are_fetched_from_a_server_that_started_late(
    mortal_servers: list[SamplingProcess], wanted: Batches
) -> None:
    """The server is back, and the other server of its part is gone."""
    gone, _, replica, _ = mortal_servers
    gone.kill()
    with node_loader(remote_graph(locations_of(mortal_servers)), batch_size=2) as loader:
        assert loader.store.keeps_rows
        iterator = iter(loader)
        got = [flat(next(iterator)) for _ in range(5)]
        gone.start()
        gone.wait_ready()
        replica.kill()
        assert got + [flat(batch) for batch in iterator] == wanted
