"""Tests that a routed store names the servers that answer no ping, and the parts lost with them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import AccessDenied, StoreTimeout, StoreUnavailable
from hopstream.preparation.write import write_parts
from hopstream.store.facts import StoreFacts
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import GonePeer, RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.conftest import make_typed_graph

SETTINGS = StoreSettings(prefer_local=False, timeout_s=5.0)
SILENT_S = 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gone") / "parts"
    write_parts(make_typed_graph(np.random.default_rng(5)), path, num_parts=3, method="random")
    return path


@pytest.fixture
def servers(folder: Path) -> Iterator[list[StoreServer]]:
    """One of part 0, two of part 1, one of parts 1 and 2."""
    with ExitStack() as stack:
        started = []
        for parts in ([0], [1], [1], [1, 2]):
            store = stack.enter_context(LocalStore(open_dataset(folder), parts))
            started.append(stack.enter_context(StoreServer(store)))
        yield started


@contextmanager
def opened(servers: list[StoreServer]) -> Iterator[RoutedStore]:
    with RoutedStore([RemoteStore(server.location, SETTINGS) for server in servers], SETTINGS) as store:
        yield store


@contextmanager
def silent(folder: Path, parts: tuple[int, ...]) -> Iterator[RemoteStore]:
    """A listener in place of a server accepts connections and sends nothing."""
    with LocalStore(open_dataset(folder)) as known, socket.create_server(("127.0.0.1", 0)) as listener:
        facts = StoreFacts.of(known, max_ids=1 << 20, parts=parts)
        yield RemoteStore(f"tcp://127.0.0.1:{listener.getsockname()[1]}", SETTINGS, facts=facts)


def lost(gone: list[GonePeer]) -> dict[str, tuple[int, ...]]:
    return {peer.location: peer.lost_parts for peer in gone}


def test_no_peer_is_gone_if_all_answer(servers: list[StoreServer]):
    with opened(servers) as store:
        assert store.gone_peers(5.0) == []
        assert store.peer_failures() == {server.location: 0 for server in servers}


def test_local_parts_need_no_peer(servers: list[StoreServer], folder: Path):
    with RoutedStore([LocalStore(open_dataset(folder))]) as store:
        assert store.gone_peers(5.0) == [] and store.peer_failures() == {}
    here = LocalStore(open_dataset(folder), [0, 2])
    with RoutedStore([here, *(RemoteStore(server.location, SETTINGS) for server in servers)], SETTINGS) as store:
        for server in servers:
            server.close()
        assert lost(store.gone_peers(5.0)) == {
            servers[0].location: (), servers[1].location: (1,), servers[2].location: (1,), servers[3].location: (1,),
        }  # fmt: skip


def test_parts_are_lost_with_their_last_replica(servers: list[StoreServer]):
    with opened(servers) as store:
        servers[1].close()
        (gone,) = store.gone_peers(5.0)
        assert gone.location == servers[1].location and gone.lost_parts == ()
        assert gone.reason.startswith(f"part 1 at {gone.location} cannot be reached for ping: ")
        servers[3].close()
        assert lost(store.gone_peers(5.0)) == {servers[1].location: (), servers[3].location: (2,)}


def test_a_restarted_server_is_not_gone(servers: list[StoreServer], folder: Path):
    with opened(servers) as store:
        assert store.gone_peers(5.0) == []
        servers[0].close()
        with LocalStore(open_dataset(folder), [0]) as again, StoreServer(again, servers[0].location):
            assert store.gone_peers(5.0) == []


def test_silent_servers_are_waited_for_together(servers: list[StoreServer], folder: Path):
    with ExitStack() as stack:
        quiet = [stack.enter_context(silent(folder, (0, 1))) for _ in range(6)]
        known = [RemoteStore(server.location, SETTINGS) for server in servers]
        store = stack.enter_context(RoutedStore([*quiet, *known], SETTINGS))
        began = time.monotonic()
        gone = store.gone_peers(SILENT_S)
        assert SILENT_S <= time.monotonic() - began < 5 * SILENT_S
        assert lost(gone) == {peer.location: () for peer in quiet}
        assert all("gave no answer in 0.3 s to ping" in peer.reason for peer in gone)


def test_a_server_with_a_changed_token_counts_as_gone(folder: Path):
    settings = replace(SETTINGS, security=ClientSecurity(token="old"))
    with LocalStore(open_dataset(folder)) as held:
        with StoreServer(held, security=ServerSecurity(token="old")) as server:
            store = RemoteStore(server.location, settings)
            store.ping(5.0)
        with store, StoreServer(held, server.location, security=ServerSecurity(token="new")):
            with pytest.raises(AccessDenied):
                store.ping(5.0)
            with RoutedStore([store], settings) as routed:
                (gone,) = routed.gone_peers(5.0)
                assert gone.lost_parts == (0, 1, 2) and "token" in gone.reason


def test_a_ping_reports_the_reason_of_a_failure(servers: list[StoreServer], folder: Path):
    with RemoteStore(servers[0].location, SETTINGS) as store:
        store.ping(5.0)
        servers[0].close()
        with pytest.raises(StoreUnavailable, match=r"part 0 at .* cannot be reached for ping"):
            store.ping(5.0)
    with pytest.raises(StoreUnavailable, match="the store was closed"):
        store.ping(5.0)
    with silent(folder, (0,)) as quiet, quiet, pytest.raises(StoreTimeout, match=r"gave no answer in 0\.05 s to ping"):
        quiet.ping(0.05)


def test_attempts_that_failed_are_counted_by_server(servers: list[StoreServer]):
    with opened(servers) as store:
        servers[1].close()
        assert len(store.split("paper", "train")) > 0  # a replica answers
        assert store.peer_failures() == {
            servers[0].location: 0, servers[1].location: 1, servers[2].location: 0, servers[3].location: 0,
        }  # fmt: skip
        store.split("paper", "train")
        assert sum(store.peer_failures().values()) == 1, "the replica is asked first from now on"
