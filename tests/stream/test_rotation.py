"""Tests that tokens and certificates are replaced while loaders run, without a lost or wrong batch."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from cryptography import x509

from hopstream.dataset.layout import open_dataset
from hopstream.errors import AccessDenied, StoreUnavailable
from hopstream.load.loader import NeighborLoader
from hopstream.store.cluster import open_cluster, parse_locations
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.stream.metrics import MetricsServer
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport import listener
from hopstream.transport.location import Location
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.load.graphs import flat
from tests.store.authority import Authority
from tests.store.processes import wait_until

NUM_LOADERS = 3
NUM_ROUNDS = 2
EPOCHS_PER_ROUND = 2
"""Epochs that every loader ends at least between two replacements."""
PATIENCE_S = 60.0


@dataclass
class Secrets:
    """Files of tokens, certificate, key and roots, replaced as administrators replace them."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority("our root"))

    def __post_init__(self) -> None:
        self.put("roots.pem", self.authority.root)
        self.new_certificate()
        self.table("t0")
        self.put("client", b"t0\n")

    def path(self, name: str) -> Path:
        return self.folder / name

    def put(self, name: str, content: bytes) -> None:
        """Replace a file atomically."""
        new = self.folder / f".{name}.new"
        new.touch(mode=0o600)
        new.write_bytes(content)
        new.replace(self.folder / name)

    def table(self, *tokens: str) -> None:
        """Write the lines in force; servers use the first one for each other."""
        self.put("tokens", "".join(f"trainer-{token} admin {token}\n" for token in tokens).encode())

    def new_certificate(self) -> int:
        """Issue another certificate of the same authority; return its serial number.

        For a moment the certificate and the key do not fit.
        """
        identity = self.authority.issue("store.example")
        self.put("server.key", identity.key)
        self.put("server.pem", identity.certificate)
        return x509.load_pem_x509_certificate(identity.certificate).serial_number

    def client(self, token_file: str = "client") -> StoreSettings:
        security = ClientSecurity(token_file=self.path(token_file), roots=self.path("roots.pem"))
        return StoreSettings(prefer_local=False, timeout_s=10.0, security=security)


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    monkeypatch.setattr(listener, "FREE_REFUSALS", 1 << 20)  # probes with old tokens are refused at once
    return Secrets(tmp_path)


@contextmanager
def serve(
    folder: Path,
    secrets: Secrets,
    own_files: Sequence[str] = ("tokens",),
    services: list[SamplingService] | None = None,
) -> Iterator[list[StoreServer]]:
    """A server per part, with TLS, that samples and asks the others with a token of its own file."""
    servers: list[StoreServer] = []

    def open_graph(own_file: str) -> Store:
        return open_cluster(parse_locations(",".join(one.location for one in servers)), secrets.client(own_file))

    dataset = open_dataset(folder)
    security = {"certificate": secrets.path("server.pem"), "private_key": secrets.path("server.key")}
    with ExitStack() as stack:
        for part in range(dataset.manifest.book.num_parts):
            own_file = own_files[part % len(own_files)]
            service = SamplingService(partial(open_graph, own_file), SamplingLimits(threads=1))
            stack.callback(service.close)
            if services is not None:
                services.append(service)
            server = StoreServer(
                stack.enter_context(LocalStore(dataset, [part])), "tls://127.0.0.1:0", operations=service.operations,
                security=ServerSecurity(token_file=secrets.path("tokens"), **security),
            )  # fmt: skip
            stack.callback(server.close)
            servers.append(server)
        yield servers


class Loading:
    """Loaders that take epochs in threads, and compare them with those of the folder."""

    def __init__(self, folder: Path, locations: str, secrets: Secrets) -> None:
        self._folder, self._locations, self._secrets = folder, locations, secrets
        self.is_over = threading.Event()
        self.failures: list[BaseException] = []
        self.num_epochs = [0] * NUM_LOADERS
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_LOADERS)]

    def __enter__(self) -> Loading:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for_more(self) -> None:
        """Wait until every loader has ended some more epochs."""
        wanted = [number + EPOCHS_PER_ROUND for number in self.num_epochs]

        def are_there() -> bool:
            return bool(self.failures) or all(n >= w for n, w in zip(self.num_epochs, wanted, strict=True))

        wait_until(are_there, "every loader has ended some more epochs", PATIENCE_S)
        assert self.failures == []

    def _run(self, number: int) -> None:
        try:
            self._take_epochs(number)
        except BaseException as error:
            self.failures.append(error)

    def _take_epochs(self, number: int) -> None:
        options: dict[str, Any] = {
            "num_neighbors": [3, 2], "seeds": ("paper", None), "batch_size": 8, "shuffle": True, "collate": "numpy",
            "rng_seed": number, "num_threads": 1,
        }  # fmt: skip
        graph = RemoteGraph(self._locations, settings=self._secrets.client(), timeout_s=30.0)
        with NeighborLoader(graph, **options) as served, NeighborLoader(self._folder, **options) as local:
            while not self.is_over.is_set():
                for loader in (served, local):
                    loader.set_epoch(self.num_epochs[number])
                for got, wanted in zip(served, local, strict=True):
                    assert flat(got) == flat(wanted)
                self.num_epochs[number] += 1


def serial_of(server: StoreServer, secrets: Secrets) -> int:
    """Serial number of the certificate that a new connection gets."""
    place = Location.parse(server.location)
    context = ssl.create_default_context(cafile=str(secrets.path("roots.pem")))
    with (
        socket.create_connection((place.host, place.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=place.host) as sock,
    ):
        shown = sock.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def wait_for_tokens(servers: list[StoreServer], tokens: set[str]) -> None:
    """Wait until servers have no connection with another token than these."""
    digests = {hashlib.sha256(token.encode()).digest() for token in tokens}

    def are_gone() -> bool:
        peers = [peer for server in servers for peer in list(server.listener._peers.values())]
        return {peer.identity.digest for peer in peers if peer.identity is not None} <= digests

    wait_until(are_gone, "no connection has another token", PATIENCE_S)


def check_new_connections(servers: list[StoreServer], secrets: Secrets, old: str, new: str, serial: int) -> None:
    """Check that new connections get the new certificate, and need the new token instead of the old one."""
    roots = secrets.path("roots.pem")
    for server in servers:
        assert serial_of(server, secrets) == serial
        RemoteStore(server.location, StoreSettings(security=ClientSecurity(token=new, roots=roots))).close()
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            RemoteStore(server.location, StoreSettings(security=ClientSecurity(token=old, roots=roots)))


@pytest.mark.slow
def test_tokens_and_certificates_are_replaced_under_load(
    timed_parts: dict[int, Path], secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(timed_parts[2], secrets) as servers:
        locations = ",".join(server.location for server in servers)
        with Loading(timed_parts[2], locations, secrets) as loading:
            loading.wait_for_more()
            for number in range(NUM_ROUNDS):
                old, new = f"t{number}", f"t{number + 1}"
                secrets.table(old, new)
                loading.wait_for_more()
                secrets.put("client", f"{new}\n".encode())
                serial = secrets.new_certificate()
                loading.wait_for_more()
                secrets.table(new)
                wait_for_tokens(servers, {new})
                check_new_connections(servers, secrets, old, new, serial)
                loading.wait_for_more()
        assert loading.failures == []
        assert [server.stats.num_failures for server in servers] == [0, 0]
        assert not [record for record in caplog.records if "asking again" in record.getMessage()]


def test_clients_with_an_old_token_are_refused(timed_parts: dict[int, Path], secrets: Secrets) -> None:
    with serve(timed_parts[1], secrets) as (server,), RemoteStore(server.location, secrets.client()) as store:
        assert len(store.split("paper", "train")) == 60
        secrets.table("t1")
        wait_for_tokens([server], set())
        with pytest.raises(AccessDenied, match="token is missing or wrong"):
            store.split("paper", "train")
        secrets.put("client", b"t1\n")
        assert len(store.split("paper", "train")) == 60


OPTIONS: dict[str, Any] = {"num_neighbors": [3, 2], "seeds": ("paper", None), "batch_size": 8, "collate": "numpy"}
OWN_REFUSAL = (
    r"the server cannot {what}: its own token \(the first admin token of its --token-file\) is refused: "
    r".*tls://127\.0\.0\.1:\d+ refused {op}: the token is missing or wrong; correct that line, which the server reads "
    r"again without a restart$"
)


def keys_of(loader: NeighborLoader) -> list[list[int]]:
    return [batch.node_keys["paper"].tolist() for batch in loader]


def test_a_server_whose_own_token_is_wrong_ends_no_trainer(timed_parts: dict[int, Path], secrets: Secrets) -> None:
    secrets.put("wrong", b"unknown\n")
    services: list[SamplingService] = []
    with (
        serve(timed_parts[2], secrets, ("tokens", "wrong"), services) as servers,
        NeighborLoader(timed_parts[2], **OPTIONS) as local,
    ):
        wanted = keys_of(local)
        graph = RemoteGraph(",".join(one.location for one in servers), settings=secrets.client(), timeout_s=30.0)
        with NeighborLoader(graph, **OPTIONS) as loader:
            assert keys_of(loader) == wanted
        with pytest.raises(StoreUnavailable, match=OWN_REFUSAL.format(what="open the graph", op=r"describe\(\)")):
            services[1].open_graph()
        with MetricsServer("127.0.0.1", 0, servers[1], services[1]) as watched, pytest.raises(HTTPError) as told:
            urlopen(f"{watched.location}/readyz", timeout=10)
        with told.value as page:
            text = page.read().decode().strip()
        assert re.search(OWN_REFUSAL.format(what="open the graph", op=r"describe\(\)"), text), text
        secrets.put("wrong", b"t0\n")
        services[1].open_graph()


def test_a_server_whose_own_token_becomes_wrong_ends_no_trainer(
    timed_parts: dict[int, Path], secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    secrets.put("own", b"t0\n")
    services: list[SamplingService] = []
    with (
        serve(timed_parts[2], secrets, ("tokens", "own"), services) as servers,
        NeighborLoader(timed_parts[2], **OPTIONS) as local,
    ):
        wanted = [keys_of(local), keys_of(local)]
        graph = RemoteGraph(",".join(one.location for one in servers), settings=secrets.client(), timeout_s=30.0)
        with NeighborLoader(graph, **OPTIONS) as loader:
            assert keys_of(loader) == wanted[0]
            secrets.put("client", b"t1\n")
            secrets.table("t1")
            wait_for_tokens(servers, {"t1"})
            assert keys_of(loader) == wanted[1]
        assert any(
            re.search(OWN_REFUSAL.format(what="make the batch", op=".*"), record.getMessage().partition("; asking")[0])
            for record in caplog.records
        )
        asked = services[1].graph
        assert isinstance(asked, RoutedStore)
        for peer in asked.gone_peers(5.0):
            assert re.search(OWN_REFUSAL.format(what=f"ping {peer.location}", op="ping"), peer.reason)


def test_another_authority_is_trusted_once_its_roots_are_added(timed_parts: dict[int, Path], secrets: Secrets) -> None:
    with serve(timed_parts[1], secrets) as (server,):
        RemoteStore(server.location, secrets.client()).close()
        secrets.authority = Authority("another root")
        secrets.new_certificate()
        with pytest.raises(StoreUnavailable, match="check the roots"):
            RemoteStore(server.location, secrets.client())
        secrets.put("roots.pem", secrets.authority.root)
        RemoteStore(server.location, secrets.client()).close()
