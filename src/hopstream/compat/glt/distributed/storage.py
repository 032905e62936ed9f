"""Storage server process: serves the parts of a dataset, samples for clients, and answers calls of methods by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopstream.compat.glt.distributed.calls import OPERATION, answering
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.compat.glt.distributed.roster import Member, Roster
from hopstream.errors import StoreError, StoreTimeout
from hopstream.store.channel import Channel
from hopstream.store.cluster import Cluster, ServerEntry, open_cluster
from hopstream.store.contract import Store
from hopstream.store.rendezvous import location_towards
from hopstream.store.security import Location, ServerSecurity
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits

LOG = logging.getLogger(__name__)
GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the servers and clients of one session meet.

    Attributes:
        master_addr: A host name or IP address of the machine of server 0.
        master_port: The port at which server 0 listens.
        timeout_s: How long to wait for others, and for answers.
        security: What servers show and ask for; needed where ``master_addr`` is not loopback.
        settings: What this process shows to servers, and trusts.
    """

    master_addr: str
    master_port: int
    timeout_s: float = 180.0
    security: ServerSecurity | None = None
    settings: StoreSettings | None = None

    @property
    def location(self) -> Location:
        """Where server 0 listens.

        A server has TLS where it shows a certificate. A client uses TLS where it has roots or a certificate, or a token
        that must not go to another machine in the clear.
        """
        own = (self.settings or StoreSettings()).security
        plain = Location(self.master_addr, self.master_port)
        shows_certificate = self.security is not None and self.security.certificate is not None
        hides_token = own.token is not None and not (plain.is_loopback or own.is_insecure)
        has_tls = shows_certificate or own.roots is not None or own.certificate is not None or hides_token
        return replace(plain, has_tls=has_tls)

    def channel(self, location: Location | None = None) -> Channel:
        """A connection to server 0, or to another one."""
        return Channel(location or self.location, self.settings or StoreSettings())


class StorageServer:
    """One server of a session, from when it has joined until it is closed."""

    def __init__(
        self,
        dataset: DistDataset,
        methods: Mapping[str, Callable[..., Any]],
        meeting: Meeting,
        num_clients: int = 0,
        limits: SamplingLimits | None = None,
    ) -> None:
        """Serve a dataset's parts, and wait until all servers of the session do.

        Args:
            dataset: The parts; ``num_partitions`` servers are waited for, of which this is ``partition_idx``.
            methods: What clients may call by name.
            meeting: Where the session meets.
            num_clients: How many clients there will be; 0 where they come and go, and may all be away.
            limits: How much is sampled at once for loaders; None for ``SamplingLimits()``.

        Raises:
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: The address cannot be listened at, or server 0 cannot be reached.
            AccessDenied: Others could reach the server, and TLS or a token is missing.
        """
        self._dataset, self._meeting = dataset, meeting
        self._locations: list[str] = []
        limits = limits or SamplingLimits()
        self._service = SamplingService(self._open_graph, limits)
        self._joined = threading.Event()
        dataset.attach(self._open_graph)
        roster = Roster(dataset.num_partitions, num_clients).operations if dataset.partition_idx == 0 else {}
        try:
            self._server = StoreServer(
                dataset.store,
                str(meeting.location if dataset.partition_idx == 0 else location_towards(meeting.location)),
                security=meeting.security,
                path=dataset.folder,
                limits=ServerLimits(max_request_bytes=limits.max_request_bytes),
                operations={**self._service.operations, OPERATION: answering(methods), **roster},
            )
        except BaseException:
            self._service.close()
            raise
        self._member = Member(meeting.channel(), "server", dataset.partition_idx)
        try:
            self._locations = self._member.join(
                meeting.timeout_s, location=self._server.location, num_servers=dataset.num_partitions
            )
        except BaseException:
            self.close()
            raise
        self._joined.set()
        self._member.stay_present()

    @property
    def locations(self) -> list[str]:
        """Where the servers listen, in the order of ranks."""
        return list(self._locations)

    @property
    def clients(self) -> frozenset[str]:
        """Names of the clients that are present."""
        return self._member.clients

    @property
    def trouble(self) -> str | None:
        """Why nobody will tell this server to end; None as long as somebody may."""
        return self._member.trouble

    def leave(self, timeout_s: float) -> None:
        """Wait until all servers leave, or are gone.

        Raises:
            StoreTimeout: Some did not leave in time.
        """
        self._member.leave(timeout_s)

    def close(self) -> list[dict[str, object]]:
        """End sampling and serving; returns what is known of channels that clients left."""
        left: list[dict[str, object]] = []
        try:
            left = self._service.close()
        except StoreError:
            LOG.exception("sampling did not end in time")
        self._member.close()
        self._server.close(GRACE_S)
        self._dataset.close()
        return left

    def _open_graph(self) -> Store:
        if not self._joined.wait(self._meeting.timeout_s):  # a client may be here before this server knows the others
            raise StoreTimeout(f"the other servers were not there in {self._meeting.timeout_s:g} s")
        entries = tuple(ServerEntry(location=location) for location in self._locations)
        own = ServerEntry(
            location=self._server.location, parts=self._dataset.parts, path=self._dataset.folder.resolve()
        )
        settings = replace(self._meeting.settings or StoreSettings(), timeout_s=self._meeting.timeout_s)
        return open_cluster(Cluster(dataset_id=None, servers=entries), settings, own=own)
