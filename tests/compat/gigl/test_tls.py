"""Tests of TLS, tokens and limits of storage servers that other machines can reach."""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hopstream.compat.gigl.distributed import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import dist_server as gigl_server
from hopstream.compat.gigl.distributed.graph_store.compute import init_compute_process, shutdown_compute_process
from hopstream.compat.gigl.distributed.graph_store.dist_server import (
    DistServer,
    get_server,
    init_server,
    wait_and_shutdown_server,
)
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.distributed.utils.networking import write_readiness_signal
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.glt.distributed import dist_server
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.roster import Meeting
from hopstream.errors import AccessDenied, SettingsError, StoreUnavailable
from hopstream.store.settings import StoreSettings
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.location import Location
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.compat.gigl.ring import NUM_NODES, check_ring_batch, write_ring
from tests.compat.gigl.test_processes import check_training
from tests.compat.gigl.world import running
from tests.ports import free_port, free_ports
from tests.store.authority import Authority

TOKEN, NAME = "word", "store.example"
WAIT_S, SOON_S = 60, 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 3)


@pytest.fixture(scope="module")
def home() -> str:
    """An address of this machine that is not loopback."""
    found = [one for of_card in psutil.net_if_addrs().values() for one in of_card if one.family is socket.AF_INET]
    addresses = [one.address for one in found if not Location(one.address, 0).is_loopback]
    if not addresses:
        pytest.skip("this machine has a loopback address only")
    return addresses[0]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("tests")


def trusting(authority: Authority, **more: Any) -> StoreSettings:
    """Certificates that a process shows and trusts; ``more`` replaces some of them."""
    return StoreSettings(
        security=ClientSecurity(**{"token": TOKEN, "roots": authority.root, "server_name": NAME, **more})
    )


@contextmanager
def guarded(folder: Path, home: str, authority: Authority, **more: Any) -> Iterator[GraphStoreInfo]:
    """The only server of a cluster, in this process, with TLS and a token."""
    identity = authority.issue(NAME)
    port, compute_port = free_ports(2)
    ready = folder.parent / f"ready-{port}"
    security = ServerSecurity(token=TOKEN, certificate=identity.certificate, private_key=identity.key)
    init_server(
        1, 0, DistDataset(folder), home, port, request_timeout=WAIT_S, security=security,
        store_settings=trusting(authority), **more,
    )  # fmt: skip
    write_readiness_signal(ready)
    try:
        yield GraphStoreInfo(1, 1, home, home, home, 1, 2, compute_port, 1, port, 4, str(ready))
    finally:
        if dist_server._SERVER is not None:
            get_server().exit()
            wait_and_shutdown_server()


def test_a_session_with_tls_and_token(
    folder: Path, home: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    with guarded(folder, home, authority) as info:
        init_compute_process(0, info, "gloo", WAIT_S, store_settings=trusting(authority))
        dataset = RemoteDistDataset(info, 0)
        loader = DistNeighborLoader(dataset, [2, 2], dataset.fetch_node_ids(0, 1), batch_size=7, shuffle=True)
        seeds: list[int] = []
        for data in loader:
            check_ring_batch(data.node, data.edge_index, data.x, data.batch)
            seeds += data.batch.tolist()
        assert sorted(seeds) == list(range(NUM_NODES))
        loader.shutdown()
        shutdown_compute_process()
        wait_and_shutdown_server()


@pytest.mark.slow
def test_processes_with_tls_and_token_trust_the_roots_of_the_system(folder: Path, home: str) -> None:
    with running(folder, of_environment=True, home=home, token=TOKEN) as world:
        check_training(world, 1)
        world.check_all_well()


def test_wrong_tokens_and_roots_are_refused_within_the_deadline(
    folder: Path, home: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    token_wanted, no_tls = "give a token that is in the server's --token-file now", "check the roots, the certificates"
    bad: list[tuple[StoreSettings | None, type[Exception], str]] = [
        (trusting(authority, token="other"), AccessDenied, token_wanted),
        (trusting(authority, token=None), AccessDenied, token_wanted),
        (trusting(authority, roots=None), StoreUnavailable, no_tls),
        (trusting(authority, roots=Authority("others").root), StoreUnavailable, no_tls),
        (trusting(authority, server_name="other.example"), StoreUnavailable, no_tls),
        (None, StoreUnavailable, r"has TLS; .*write tls://"),
    ]
    with guarded(folder, home, authority) as info:
        for settings, kind, message in bad:
            begun = time.monotonic()
            with pytest.raises(kind, match=message):
                init_compute_process(0, info, "gloo", SOON_S, store_settings=settings)
            assert time.monotonic() - begun < 20 * SOON_S
            assert not torch.distributed.is_initialized()


def test_an_address_reachable_from_other_machines_needs_tls_and_token(
    folder: Path, home: str, authority: Authority
) -> None:
    identity = authority.issue(NAME)
    with_tls = ServerSecurity(certificate=identity.certificate, private_key=identity.key)
    for security in (None, ServerSecurity(token=TOKEN), with_tls):
        with closing(DistDataset(folder)) as dataset, pytest.raises(AccessDenied, match="give TLS and a token"):
            init_server(1, 0, dataset, home, free_port(), security=security)
    assert dist_server._SERVER is None


def test_a_token_needs_tls_on_shared_networks(authority: Authority) -> None:
    identity = authority.issue(NAME)

    def has_tls(address: str, **security: Any) -> bool:
        settings = StoreSettings(security=ClientSecurity(**security))
        return Meeting(master_addr=address, master_port=1, settings=settings).location.has_tls

    assert has_tls("10.0.0.1", token=TOKEN) and has_tls("storage-0", token=TOKEN)
    assert has_tls("127.0.0.1", roots=authority.root)
    assert has_tls("10.0.0.1", certificate=identity.certificate, private_key=identity.key)
    assert not has_tls("127.0.0.1", token=TOKEN) and not has_tls("10.0.0.1", token=TOKEN, is_insecure=True)
    assert not has_tls("10.0.0.1")


# --- Bounds -----------------------------------------------------------------------------------------------------------


def test_server_limits_apply_to_loaders(
    folder: Path, home: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    limits = SamplingLimits(threads=1, max_channels=1, max_request_bytes=20_000)
    with guarded(folder, home, authority, limits=limits) as info:
        init_compute_process(0, info, "gloo", WAIT_S, store_settings=trusting(authority))
        dataset = RemoteDistDataset(info, 0)
        ids = dataset.fetch_node_ids()
        with pytest.raises(SettingsError, match="the server takes 20000"):
            many = {0: ids[0].repeat(100)}
            next(iter(DistNeighborLoader(dataset, [2], many, batch_size=7)))
        loader = DistNeighborLoader(dataset, [2], ids, batch_size=7)
        next(iter(loader))
        with pytest.raises(StoreUnavailable, match="the server has 1 channels"):
            next(iter(DistNeighborLoader(dataset, [2], ids, batch_size=7)))
        loader.shutdown()
        shutdown_compute_process()
        wait_and_shutdown_server()


def test_both_modules_share_one_init_server() -> None:
    signatures = [inspect.signature(module.init_server) for module in (gigl_server, dist_server)]
    assert signatures[0] == signatures[1] and "limits" in signatures[0].parameters
    assert init_server.__doc__ == dist_server.init_server.__doc__ is not None
    assert init_server == DistServer.init_server != dist_server.init_server
