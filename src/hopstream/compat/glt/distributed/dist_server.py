"""Server process: answers requests for its parts of a dataset, and samples for loaders.

A server waits in ``wait_and_shutdown_server`` until the clients leave, and then for the other servers. Loaders make
their own channels on servers, without a method of this module.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hopstream.arrays import IntArray
from hopstream.compat.glt.distributed.calls import OPERATION, answering
from hopstream.compat.glt.distributed.dist_client import has_session
from hopstream.compat.glt.distributed.dist_context import DistContext, DistRole, get_context, set_context
from hopstream.compat.glt.distributed.dist_dataset import DistDataset, width_and_dtype
from hopstream.compat.glt.distributed.graph_facts import to_torch
from hopstream.compat.glt.distributed.roster import Meeting, Member, Roster
from hopstream.errors import SettingsError, StoreError, StoreTimeout
from hopstream.schema import EdgeType
from hopstream.store.cluster import Cluster, ServerEntry, open_cluster
from hopstream.store.contract import Store
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits, StoreSettings
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.security import ServerSecurity

LOG = logging.getLogger(__name__)
SERVER_EXIT_STATUS_CHECK_INTERVAL = 5.0
"""Interval in seconds at which a waiting server checks whether it should end."""
METHODS = (
    "exit", "get_dataset_meta", "get_node_partition_id", "get_node_feature", "get_tensor_size", "get_node_label",
    "get_edge_index", "get_edge_size",
)  # fmt: skip
"""Methods for clients."""
LEAVE_S = 180.0
"""Deadline in seconds for the other servers when a server ends."""
GRACE_S = 10.0
"""Deadline in seconds for running requests when a server ends."""
_SERVER: DistServer | None = None
_STORAGE: StorageServer | None = None


class StorageServer:
    """Server of one part of the dataset, which ``init_server`` starts in a storage process."""

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
            dataset: The parts. Its ``partition_idx`` is this server's rank; the server waits for all ``num_partitions``
                servers.
            methods: Methods for clients, by name.
            meeting: The rendezvous of the session.
            num_clients: Expected number of clients; 0 if clients join and leave at any time.
            limits: Limits of sampling for loaders; None for ``SamplingLimits()``.

        Raises:
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: The server cannot listen at its address, or server 0 cannot be reached.
            AccessDenied: Other machines could reach the server, and TLS or a token is missing.
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
                str(meeting.location if dataset.partition_idx == 0 else meeting.location.towards()),
                security=meeting.security,
                path=dataset.folder,
                limits=ServerLimits(max_request_bytes=limits.max_request_bytes),
                operations={**self._service.operations, OPERATION: answering(methods), **roster},
            )
        except BaseException:
            self._service.close()
            raise
        self._member = Member(meeting.connection(), "server", dataset.partition_idx)
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
        """Addresses of the servers, in the order of ranks."""
        return list(self._locations)

    @property
    def clients(self) -> frozenset[str]:
        """Names of the live clients."""
        return self._member.clients

    @property
    def trouble(self) -> str | None:
        """Reason why no client can stop this server; None while a client may."""
        return self._member.trouble

    def leave(self, timeout_s: float) -> None:
        """Wait until all servers leave or are gone.

        Raises:
            StoreTimeout: Some servers did not leave in time.
        """
        self._member.leave(timeout_s)

    def close(self) -> list[dict[str, object]]:
        """Stop sampling and serving; return the state of channels that clients did not close."""
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
        if not self._joined.wait(self._meeting.timeout_s):  # a client may call before this server knows the others
            raise StoreTimeout(f"the other servers did not join within {self._meeting.timeout_s:g} s")
        entries = tuple(ServerEntry(location=location) for location in self._locations)
        own = ServerEntry(
            location=self._server.location, parts=self._dataset.parts, path=self._dataset.folder.resolve()
        )
        settings = replace(self._meeting.settings or StoreSettings(), timeout_s=self._meeting.timeout_s)
        return open_cluster(Cluster(dataset_id=None, servers=entries), settings, own=own)


class DistServer:
    """Methods for the parts of one server. Thread-safe."""

    def __init__(self, dataset: DistDataset) -> None:
        """Serve ``dataset``."""
        self.dataset = dataset
        self._exit = threading.Event()

    @classmethod
    def init_server(  # noqa: PLR0913, PLR0917 - the arguments of GLT and GiGL, in their order
        cls,
        num_servers: int,
        server_rank: int,
        dataset: DistDataset,
        master_addr: str,
        master_port: int,
        num_clients: int = 0,
        num_rpc_threads: int = 16,
        request_timeout: int = 180,
        server_group_name: str | None = None,
        is_dynamic: bool = False,
        *,
        security: ServerSecurity | None = None,
        store_settings: StoreSettings | None = None,
        limits: SamplingLimits | None = None,
    ) -> None:
        """Serve a dataset's parts from this process, and wait until all servers do.

        Clients may join and leave later.

        Args:
            num_servers: Number of servers.
            server_rank: Rank of this server.
            dataset: The parts of this server.
            master_addr: A host name or IP address of the machine of server 0.
            master_port: A free port there, at which server 0 listens.
            num_clients: Expected number of clients. The server also ends, with an error, when all clients that joined
                are gone without leaving. With 0, clients join and leave at any time, and only a call of ``exit`` ends
                the server.
            num_rpc_threads: No effect: the transport has its own threads.
            request_timeout: Deadline in seconds for the other servers, and for their answers.
            server_group_name: Name of the group of servers.
            is_dynamic: Clients join and leave at any time; ``num_clients`` has no effect.
            security: TLS and token of this server; required unless ``master_addr`` is loopback.
            store_settings: Credentials of this server for other servers, and its trusted roots.
            limits: Limits of this server's sampling for loaders; None for ``SamplingLimits()``.

        Raises:
            RuntimeError: This process has a server already.
            ValueError: ``num_servers`` or ``server_rank`` differs from the dataset's partitions.
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: The server cannot listen at its address, or server 0 cannot be reached.
            AccessDenied: Other machines could reach the server, and TLS or a token is missing.
        """
        global _SERVER, _STORAGE
        if _SERVER is not None:
            raise RuntimeError("this process has a server already; call wait_and_shutdown_server first")
        if (num_servers, server_rank) != (dataset.num_partitions, dataset.partition_idx):
            raise SettingsError(
                f"server {server_rank} of {num_servers} has partition {dataset.partition_idx} of "
                f"{dataset.num_partitions}; build the dataset with the same rank and number"
            )
        server = cls(dataset)
        meeting = Meeting(
            master_addr=master_addr, master_port=master_port, timeout_s=request_timeout, security=security,
            settings=store_settings,
        )  # fmt: skip
        _STORAGE = StorageServer(dataset, server.methods(), meeting, 0 if is_dynamic else num_clients, limits)
        _SERVER = server
        name, num_all = server_group_name or "_default_server", num_servers + (0 if is_dynamic else num_clients)
        set_context(DistContext(DistRole.SERVER, name, num_servers, server_rank, num_all, server_rank))

    def shutdown(self) -> None:
        """Release resources of clients; a subclass may have some."""

    def give_up_abandoned(self, present: Collection[str]) -> None:
        """Release resources of absent clients; none here, because channels of loaders have leases."""

    @property
    def left(self) -> list[int]:
        """Numbers of resources that clients did not release."""
        return []

    def wait_for_exit(self) -> None:
        """Wait without a deadline until ``exit`` is called, because a session may take any time."""
        while not self.has_ended():
            LOG.debug("waiting for exit")

    def has_ended(self) -> bool:
        """Wait for ``exit`` for one interval, and return whether it was called."""
        return self._exit.wait(SERVER_EXIT_STATUS_CHECK_INTERVAL)

    def exit(self) -> bool:
        """Make ``wait_for_exit`` return."""
        self._exit.set()
        return True

    def get_dataset_meta(self) -> tuple[int, int, Any, Any]:
        """Return the number of partitions, this partition, node types and edge types; see ``get_node_types``."""
        return self.dataset.num_partitions, self.dataset.partition_idx, self.get_node_types(), self.get_edge_types()

    def get_node_types(self) -> Any:
        """Return node types; None for a homogeneous dataset."""
        return self.dataset.facts.node_types()

    def get_edge_types(self) -> Any:
        """Return edge types; None for a homogeneous dataset."""
        return self.dataset.facts.edge_types()

    def get_node_partition_id(self, node_type: str | None, index: torch.Tensor) -> torch.Tensor | None:
        """Return int64[n], the partition of each node.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one.
        """
        name = self.dataset.facts.node_type(node_type)
        return to_torch(self.dataset.partition_of(name, ids_of(index)))

    def get_node_feature(self, node_type: str | None, index: torch.Tensor) -> torch.Tensor:
        """Return [n, dim], features of nodes given by id, of any partition.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one, or the type has no
                features.
        """
        return self.dataset.node_tensor(self.dataset.facts.node_type(node_type), ids_of(index))

    def get_tensor_size(self, node_type: str | None) -> torch.Size:
        """Return the number of nodes of this partition, and the width of their features.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one, or the type has no
                features.
        """
        facts = self.dataset.facts
        name = facts.node_type(node_type)
        info = width_and_dtype(dict(facts.schema.nodes[name]), facts.node_columns(name))
        if info is None:
            raise SettingsError(f"node type {name!r} has no features")
        return torch.Size([self.dataset.num_own(name), info[0]])

    def get_node_label(self, node_type: str | None, index: torch.Tensor) -> torch.Tensor:
        """Return [n], labels of nodes given by id, of any partition.

        Raises:
            ValueError: A type is given for a homogeneous dataset, or is missing for another one, or the type has no
                labels.
        """
        return self.dataset.label_tensor(self.dataset.facts.node_type(node_type), ids_of(index))

    def get_edge_index(self, edge_type: EdgeType | None, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64[n] sources and destinations of the edges of this partition.

        Raises:
            ValueError: The layout is not ``coo``, or the type is missing, or is given for a homogeneous dataset.
        """
        _check_layout(layout)
        src, dst = self.dataset.own_edges(self.dataset.facts.edge_type(edge_type))
        return to_torch(src), to_torch(dst)

    def get_edge_size(self, edge_type: EdgeType | None, layout: str) -> tuple[int, int]:
        """Return the numbers of nodes of the type's ends: the shape of its adjacency matrix.

        Raises:
            ValueError: The layout is not ``coo``, or the type is missing, or is given for a homogeneous dataset.
        """
        _check_layout(layout)
        src, _, dst = self.dataset.facts.edge_type(edge_type)
        book = self.dataset.store.book
        return book.num_ids(src), book.num_ids(dst)

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods for clients, by name."""
        return {name: getattr(self, name) for name in METHODS}


def get_server() -> Any:
    """Return the server of this process.

    Raises:
        RuntimeError: ``init_server`` was not called.
    """
    if _SERVER is None:
        raise RuntimeError("DistServer not initialized! Call init_server() first.")
    return _SERVER


init_server = DistServer.init_server


def wait_and_shutdown_server() -> None:
    """Wait until ``exit`` is called, end the server, and leave with the other servers.

    There is no deadline, because a session may take any time. The server also ends when nothing can call ``exit``:
    server 0 is gone, all expected clients are gone, or the parent process has ended. While it waits, it gives up
    channels of absent clients.

    Raises:
        RuntimeError: This process is no server. Or loaders left channels, or nothing could call ``exit``; this is
            raised after the other servers could end.
    """
    global _SERVER, _STORAGE
    if _SERVER is None or _STORAGE is None:
        context = get_context()
        if context is not None or has_session():
            role = "client" if context is None else context.role.name.lower()
            raise RuntimeError(f"this process is a {role}; wait_and_shutdown_server is for servers")
        LOG.warning("there is no server in this process; nothing to shut down")
        return
    server, storage = _SERVER, _STORAGE
    failures: list[Exception] = []
    trouble = _wait_for_end(server, storage)
    if trouble is not None:
        failures.append(RuntimeError(trouble))
    left = server.left
    for step in (server.shutdown, lambda: storage.leave(LEAVE_S)):
        try:
            step()
        except Exception as error:  # the other servers must be able to end after any error here
            failures.append(error)
    abandoned = storage.close()
    _SERVER = _STORAGE = None
    set_context(None)
    if left or abandoned:
        keys = [str(number) for number in left] + [str(one["worker"]) for one in abandoned]
        told = RuntimeError(
            f"loaders that were not shut down left channels: {', '.join(keys)}; call shutdown() of every loader before "
            "the client leaves, or see what ended their processes"
        )
        failures.append(told)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and then: {other}")
        raise failures[0]


def _wait_for_end(server: DistServer, storage: StorageServer) -> str | None:
    """Wait for the end; return None after a call of ``exit``, or the reason why nothing can call it."""
    parent = multiprocessing.parent_process()
    while not server.has_ended():
        try:
            server.give_up_abandoned(storage.clients)
        except Exception:  # must not end the session
            LOG.exception("the channels that a client left could not be closed")
        if storage.trouble is not None:
            return storage.trouble
        if parent is not None and not parent.is_alive():
            return "the process that started this server has ended"
    return None


def ids_of(index: torch.Tensor) -> IntArray:
    """Convert ids from a tensor to int64[n]."""
    return np.asarray(torch.as_tensor(index).cpu().numpy(), np.int64).reshape(-1)


def _check_layout(layout: str) -> None:
    if layout != "coo":
        raise SettingsError(f"layout is {layout!r}; only 'coo' is known")
