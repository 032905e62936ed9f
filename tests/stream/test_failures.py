"""Tests of what a consumer sees if a server, another consumer or the sampling itself fails.

Two servers, each with one of two parts and no replica, and four compute ranks.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import RemoteError, StoreTimeout, StoreUnavailable
from hopstream.load.loader import NeighborLoader
from hopstream.store.server import StoreServer
from hopstream.stream import client
from tests.load.graphs import flat
from tests.store.processes import wait_until
from tests.stream.serving import (
    ConsumerProcess,
    RankProcess,
    SamplingProcess,
    channels_at,
    digest_of,
    locations_of,
    node_loader,
    remote_graph,
    serve_here,
    serve_processes,
)

WORLD_SIZE = 4
LEASE_S = 1.5
LEASE_SLACK_S = 1.5
"""Seconds by which a channel may outlive its lease: servers check leases four times per lease."""
DEADLINE_S = 90.0
SOAK_ROUNDS, SOAK_S = 20, 300.0
Batches = list[dict[str, object]]


@pytest.fixture(scope="module")
def servers(timed_parts: dict[int, Path]) -> Iterator[list[SamplingProcess]]:
    with serve_processes(timed_parts[2], "--lease", LEASE_S, "--store-timeout", 5) as processes:
        yield processes


@pytest.fixture
def mortal_servers(timed_parts: dict[int, Path]) -> Iterator[list[SamplingProcess]]:
    """Servers of one test, which may end them."""
    with serve_processes(timed_parts[2], "--lease", LEASE_S, "--store-timeout", 5) as processes:
        yield processes


@pytest.fixture(scope="module")
def wanted(timed_parts: dict[int, Path]) -> list[Batches]:
    """Two epochs of every rank, undisturbed: rank ``r``'s epoch ``e`` is number ``2 * r + e``."""
    found = []
    for rank in range(WORLD_SIZE):
        with ranked_loader(timed_parts[1], rank) as loader:
            found += [[flat(batch) for batch in loader] for _ in range(2)]
    return found


@pytest.fixture(scope="module")
def wanted_digests(timed_parts: dict[int, Path]) -> list[list[str]]:
    """As ``wanted``, in digests of batches."""
    found = []
    for rank in range(WORLD_SIZE):
        with ranked_loader(timed_parts[1], rank) as loader:
            found += [[digest_of(batch) for batch in loader] for _ in range(2)]
    return found


def ranked_loader(source: Any, rank: int) -> NeighborLoader:
    return node_loader(source, rank=rank, world_size=WORLD_SIZE, num_threads=1 + rank % 2)


def disturbed_epochs(servers: list[SamplingProcess], epoch: int, at: int, disturb: Callable[[], None]) -> list[Batches]:
    """An epoch of every rank; ``disturb`` is called when all have had ``at`` batches, while they go on."""
    have_come = threading.Barrier(WORLD_SIZE + 1)

    def consume(rank: int) -> Batches:
        with ranked_loader(graph, rank) as loader:
            loader.set_epoch(epoch)
            got = []
            for number, batch in enumerate(loader):
                if number == at:
                    have_come.wait(DEADLINE_S)
                got.append(flat(batch))
            return got

    graph = remote_graph(locations_of(servers))
    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        futures = [pool.submit(consume, rank) for rank in range(WORLD_SIZE)]
        try:
            have_come.wait(DEADLINE_S)
            disturb()
            return [future.result(DEADLINE_S) for future in futures]
        finally:
            have_come.abort()


@contextmanager
def rank_processes(servers: list[SamplingProcess]) -> Iterator[list[RankProcess]]:
    """Every rank in a process of its own."""
    ranks: list[RankProcess] = []
    try:
        for rank in range(WORLD_SIZE):
            ranks.append(RankProcess(locations_of(servers), rank, WORLD_SIZE))  # noqa: PERF401 - all are ended
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def kill_a_server(ranks: list[RankProcess], victim: SamplingProcess, epoch: int, at: int) -> list[list[str]]:
    """Kill and restart a server in the middle of an epoch; return the digests of each rank's batches."""
    for rank in ranks:
        rank.begin(epoch, at)
    for rank in ranks:
        rank.go_on()
    victim.kill()
    assert not any(rank.has_finished for rank in ranks)
    victim.start()
    victim.wait_ready()
    return [rank.digests() for rank in ranks]


def dataset_id_of(folder: Path) -> str:
    return open_dataset(folder).manifest.dataset_id


@pytest.mark.slow
@pytest.mark.parametrize("victims", [[1], [0, 1]])
def test_a_restarted_server_loses_no_batch(
    mortal_servers: list[SamplingProcess], wanted_digests: list[list[str]], victims: list[int]
) -> None:
    with rank_processes(mortal_servers) as ranks:
        for epoch, victim in enumerate(victims):
            # While it starts, the other server's requests to it fail, and so do that server's batches.
            assert kill_a_server(ranks, mortal_servers[victim], epoch, 5) == wanted_digests[epoch::2]


def kill_a_client(servers: list[SamplingProcess], wanted: list[Batches], dataset_id: str) -> None:
    """Kill a rank in mid-epoch: its channels end with their leases, and others get their batches."""

    def workers_at(server: SamplingProcess) -> set[str]:
        return {str(channel["worker"]) for channel in channels_at(server.location, dataset_id)}

    locations = locations_of(servers)
    victim = ConsumerProcess(locations, 3)
    try:
        victim.wait_ready()
        for server in servers:
            wait_until(lambda server=server: len(workers_at(server)) == 1, "the victim's channel is the only one")
        (of_victim,) = workers_at(servers[0])
        with ExitStack() as stack:
            graph = remote_graph(locations)
            loaders = [stack.enter_context(ranked_loader(graph, rank)) for rank in range(WORLD_SIZE - 1)]
            iterators = [iter(loader) for loader in loaders]
            got = [[flat(next(iterator)) for _ in range(5)] for iterator in iterators]
            victim.kill()
            killed_at = time.monotonic()
            while any(of_victim in workers_at(server) for server in servers):
                assert time.monotonic() < killed_at + LEASE_S + LEASE_SLACK_S
                for batches, iterator in zip(got, iterators, strict=True):
                    batches += [flat(batch) for batch in islice(iterator, 1)]
            for batches, iterator in zip(got, iterators, strict=True):
                batches += [flat(batch) for batch in iterator]
            assert got == wanted[0 : 2 * (WORLD_SIZE - 1) : 2]
        for server in servers:
            assert workers_at(server) == set()
    finally:
        victim.kill()


@pytest.mark.slow
def test_a_killed_clients_channels_are_gone_within_the_lease(
    servers: list[SamplingProcess], wanted: list[Batches], timed_parts: dict[int, Path]
) -> None:
    kill_a_client(servers, wanted, dataset_id_of(timed_parts[2]))


@pytest.mark.slow
def test_a_stopped_server_times_out_and_resumes(servers: list[SamplingProcess], wanted: list[Batches]) -> None:
    with ranked_loader(remote_graph(locations_of(servers), timeout_s=2.0), 0) as loader:
        got: Batches = []
        servers[1].freeze()
        try:
            started = time.monotonic()
            with pytest.raises((StoreTimeout, StoreUnavailable), match=r"in 2 s|in .* s to") as raised:
                for batch in loader:
                    got.append(flat(batch))
            assert time.monotonic() - started < 30
            assert re.search(f"{servers[1].location}.* gave no answer in", str(raised.value))
        finally:
            servers[1].thaw()
        patient = ranked_loader(remote_graph(locations_of(servers)), 0)
        with patient:
            patient.load_state_dict(loader.state_dict())
            assert got + [flat(batch) for batch in patient] == wanted[0]


@pytest.mark.slow
def test_error_names_the_server_that_another_waits_for(
    servers: list[SamplingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server is still making the batch; the error names the frozen one that it waits for."""
    monkeypatch.setattr(client.RemoteSession, "_by_preference", lambda session, step: session._servers[:1])
    with ranked_loader(remote_graph(locations_of(servers), timeout_s=1.0), 0) as loader:
        iterator = iter(loader)
        next(iterator)
        servers[1].freeze()
        try:
            with pytest.raises(StoreUnavailable, match="no server gave batch") as raised:
                list(iterator)
            told = str(raised.value)
            assert f"{servers[0].location}: " in told
            assert f"\n  {servers[1].location} gave no answer in 1 s to ping" in told
        finally:
            servers[1].thaw()


@pytest.mark.slow
def test_a_temporarily_unreachable_peer_loses_no_batch(timed_parts: dict[int, Path], wanted: list[Batches]) -> None:
    """The freeze outlasts the servers' own timeout, but not the loader's timeout for a batch."""
    with serve_processes(timed_parts[2], "--store-timeout", 0.5) as servers:

        def hang() -> None:
            servers[1].freeze()
            threading.Event().wait(1.2)
            servers[1].thaw()

        assert disturbed_epochs(servers, 0, 5, hang) == wanted[0::2]


@pytest.mark.slow
def test_a_temporarily_stopped_server_loses_no_batch(servers: list[SamplingProcess], wanted: list[Batches]) -> None:
    def stop_for_a_while() -> None:
        servers[0].freeze()
        try:
            threading.Event().wait(1.0)  # longer than a batch takes, shorter than any deadline
        finally:
            servers[0].thaw()

    assert disturbed_epochs(servers, 1, 5, stop_for_a_while) == wanted[1::2]


@pytest.mark.slow
def test_a_recovered_server_samples_only_batches_still_needed(
    timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a server hangs, a replica makes its batches; what it had made before is not needed again."""
    monkeypatch.setattr(client, "POLL_S", 0.2)
    monkeypatch.setattr(client, "SLACK_S", 0.2)
    monkeypatch.setattr(client, "AVOID_S", 0.5)
    monkeypatch.setattr(client, "MAX_AVOID_S", 0.5)  # it doubles with every failure; a slow machine sees more of them
    with node_loader(timed_parts[1]) as local:
        wanted = [flat(batch) for batch in local]
    with serve_processes(timed_parts[2], "--all-parts") as servers:

        def described(server: SamplingProcess) -> dict[str, Any]:
            (channel,) = channels_at(server.location, dataset_id_of(timed_parts[2]))
            return channel

        with node_loader(remote_graph(locations_of(servers)), num_threads=2, prefetch=6, look_ahead=0) as loader:
            iterator = iter(loader)
            got = [flat(next(iterator)) for _ in range(10)]
            wait_until(lambda: described(servers[0])["num_waiting"] == described(servers[0])["credit"] == 4, "it waits")
            servers[0].freeze()
            try:
                got += [flat(next(iterator)) for _ in range(50)]
            finally:
                servers[0].thaw()
            threading.Event().wait(1.0)  # so that it is asked first again
            num_fetched = described(servers[0])["num_fetched"]
            got += [flat(batch) for batch in iterator]
            assert got == wanted
            assert described(servers[0])["num_fetched"] - num_fetched > 10
            for server in servers:
                assert described(server)["num_waiting"] == 0, described(server)


@pytest.mark.slow
def test_closing_a_loader_while_its_server_is_stopped_ends_soon(servers: list[SamplingProcess]) -> None:
    loader = ranked_loader(remote_graph(locations_of(servers)), 0)
    iterator = iter(loader)
    next(iterator)
    failures: list[BaseException] = []

    def consume() -> None:
        try:
            for _ in iterator:
                pass
        except Exception as error:
            failures.append(error)

    for server in servers:
        server.freeze()
    thread = threading.Thread(target=consume)
    try:
        thread.start()
        started = time.monotonic()
        loader.close()
        thread.join(20)
        assert time.monotonic() - started < 20
        assert not thread.is_alive()
        assert len(failures) == 1
    finally:
        for server in servers:
            server.thaw()


def test_an_exception_in_the_sampling_reaches_the_consumer(timed_parts: dict[int, Path], wanted: list[Batches]) -> None:
    with serve_processes(timed_parts[2], "--poison", 7) as servers:
        loader = ranked_loader(remote_graph(locations_of(servers)), 0)
        with loader:
            got = []
            with pytest.raises(RemoteError, match="ZeroDivisionError: a bug in the sampling") as raised:
                for batch in loader:
                    got.append(flat(batch))  # noqa: PERF401 - those before the failure count
            assert got == wanted[0][:7]
            assert 'raise ZeroDivisionError("a bug in the sampling")' in str(raised.value)
            assert "while batch 7 of epoch 0 was made on a server" in str(raised.value)
            loader.set_epoch(1)
            with pytest.raises(RemoteError, match="a bug in the sampling"):
                list(loader)  # the server is still there, and still wrong
        assert [server.stop() for server in servers] == [0, 0]


def test_a_lost_connection_is_reopened(timed_parts: dict[int, Path], wanted: list[Batches]) -> None:
    with serve_here(timed_parts[2]) as served, ranked_loader(remote_graph(served.locations), 0) as loader:
        iterator = iter(loader)
        got = [flat(next(iterator)) for _ in range(4)]
        old = served.servers[1]
        old.close(grace_s=5.0)
        served.servers[1] = StoreServer(
            old._answers._store, old.location, operations=served.services[1].operations
        )  # fmt: skip
        try:
            assert got + [flat(batch) for batch in iterator] == wanted[0]
        finally:
            served.servers[1].close()


@pytest.mark.soak
def test_servers_are_killed_repeatedly(mortal_servers: list[SamplingProcess], wanted_digests: list[list[str]]) -> None:
    ends = time.monotonic() + SOAK_S
    with rank_processes(mortal_servers) as ranks:
        for number in range(SOAK_ROUNDS):
            victim, epoch = mortal_servers[number % 2], number // 2 % 2
            assert kill_a_server(ranks, victim, epoch, number % 20) == wanted_digests[epoch::2]
            assert time.monotonic() < ends, f"{number + 1} rounds took {SOAK_S:g} s"


@pytest.mark.soak
def test_clients_are_killed_repeatedly(
    servers: list[SamplingProcess], wanted: list[Batches], timed_parts: dict[int, Path]
) -> None:
    ends = time.monotonic() + SOAK_S
    for number in range(SOAK_ROUNDS):
        kill_a_client(servers, wanted, dataset_id_of(timed_parts[2]))
        assert time.monotonic() < ends, f"{number + 1} rounds took {SOAK_S:g} s"
