"""Client of storage servers: finds them, calls their methods by name, and leaves with other clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from hopstream.compat.glt.distributed.calls import call
from hopstream.compat.glt.distributed.dist_context import DistContext, DistRole, check_rank, get_context, set_context
from hopstream.compat.glt.distributed.roster import Meeting, Member
from hopstream.errors import HopstreamError, SettingsError, StateError, StoreError, StoreUnavailable
from hopstream.store.settings import StoreSettings
from hopstream.stream.client import RemoteGraph
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location

LOG = logging.getLogger(__name__)
MAX_CALLS = 16
"""Limit of concurrent calls."""

_SESSION: Session | None = None


class Session:
    """Connections of one client to all servers, until it leaves."""

    def __init__(self, meeting: Meeting, rank: int, num_clients: int) -> None:
        """Find the servers, and wait until all are present.

        Args:
            meeting: The rendezvous of the session.
            rank: Rank of this client.
            num_clients: Number of clients that leave together; 0 if clients are not counted.

        Raises:
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: Server 0 cannot be reached.
        """
        self._meeting, self._rank, self._num_clients = meeting, rank, num_clients
        self._member = Member(meeting.connection(), "client", rank)
        try:
            self.locations: Sequence[str] = self._member.join(meeting.timeout_s)
        except BaseException:
            self._member.close()
            raise
        self._connections: list[Connection] = [
            meeting.connection(Location.parse(location)) for location in self.locations
        ]
        self.graph = RemoteGraph(",".join(self.locations), settings=meeting.settings, timeout_s=meeting.timeout_s)
        """Servers as a source for loaders; closed with the session."""
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="hopstream-call")
        self.is_open = True
        self._member.stay_present()

    @property
    def num_servers(self) -> int:
        """Number of servers."""
        return len(self._connections)

    def submit(self, server_rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a server in a thread; return a ``concurrent.futures.Future``."""
        return self._pool.submit(self.request, server_rank, method, *args, **kwargs)

    def request(self, server_rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a server, and wait for its answer.

        Raises:
            SettingsError: There is no such server.
            HopstreamError: The server cannot be reached, or did not answer in time.
            Exception: The method raised it.
        """
        if not isinstance(server_rank, int) or not 0 <= server_rank < self.num_servers:
            raise SettingsError(f"server_rank is {server_rank!r}; servers are numbered 0..{self.num_servers - 1}")
        timeout_s = self._meeting.timeout_s
        return call(self._connections[server_rank], timeout_s, self._member.name, method, *args, **kwargs)

    def leave(self, timeout_s: float | None = None) -> None:
        """Wait until the other clients leave or are gone; then the first live client stops all servers.

        Args:
            timeout_s: Deadline in seconds for live clients, and for clients that have not joined yet; None for the
                deadline of the meeting. A client that has not joined by then counts as gone.

        Raises:
            StoreTimeout: Some live clients did not leave in time. Client 0 has stopped the servers.
            StoreError: A server could not be stopped.
        """
        failures: list[HopstreamError] = []
        tells = self._rank == 0
        try:
            tells = self._member.leave(timeout_s or self._meeting.timeout_s, num_clients=self._num_clients)
        except StoreError as error:
            failures.append(error)
        try:
            if tells:
                # Server 0 keeps the record of clients that have left, so it is stopped last.
                for server in reversed(range(self.num_servers)):
                    try:
                        self.request(server, "exit")
                    except StoreError as error:
                        failures.append(error)
        finally:
            self.close()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Disconnect without leaving; a second call does nothing."""
        self.is_open = False
        self._member.close()
        self.graph.close()
        for connection in self._connections:
            connection.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def session() -> Session:
    """Return the session of this process.

    Raises:
        RuntimeError: There is no session.
    """
    if _SESSION is None:
        raise RuntimeError(
            "this process has no session with storage servers; call init_client first, or with GiGL's names call "
            "init_compute_process first"
        )
    return _SESSION


def check_no_session(leave: str) -> None:
    """Check that this process has no session.

    Raises:
        StateError: There is a session, which ``leave`` ends.
    """
    if has_session():
        raise StateError(f"this process has a session already; call {leave} first")


def has_session() -> bool:
    """Return whether this process has a session."""
    return _SESSION is not None


def set_session(found: Session | None) -> None:
    """Set or clear the session of this process."""
    global _SESSION
    _SESSION = found


def init_client(  # noqa: PLR0913, PLR0917 - the arguments of GLT, in its order
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    request_timeout: float = 180,
    store_settings: StoreSettings | None = None,
) -> None:
    """Find the servers, and wait until all are present.

    Args:
        num_servers: Number of servers.
        num_clients: Number of clients that leave together.
        client_rank: Rank of this client. The first live client stops the servers after all have left.
        master_addr: A host name or IP address of the machine of server 0.
        master_port: The port at which server 0 listens.
        num_rpc_threads: No effect.
        client_group_name: Name of the group of clients.
        is_dynamic: Do not count clients: they join and leave at any time without waiting. ``num_clients`` then has no
            effect.
        request_timeout: Deadline in seconds for servers, for their answers, and for other clients to join and leave.
        store_settings: Token and roots for servers that require them.

    Raises:
        ValueError: This process has a session, ``client_rank`` is out of range, or the number of servers differs.
        StoreTimeout: Some servers did not come in time.
        StoreUnavailable: Server 0 cannot be reached.
    """
    check_no_session("shutdown_client")
    num_counted = 0 if is_dynamic else num_clients
    check_rank("client_rank", client_rank, num_counted or client_rank + 1)
    meeting = Meeting(
        master_addr=master_addr, master_port=master_port, timeout_s=request_timeout, settings=store_settings
    )
    found = Session(meeting, client_rank, num_counted)
    if found.num_servers != num_servers:
        found.close()
        raise SettingsError(f"num_servers is {num_servers}; {found.num_servers} servers meet at {meeting.location}")
    name = client_group_name or "_default_client"
    num_all = num_servers + num_counted
    set_context(DistContext(DistRole.CLIENT, name, num_counted, client_rank, num_all, num_servers + client_rank))
    set_session(found)


def shutdown_client() -> None:
    """Leave with the other clients, after shutdown of all loaders; the first live one stops the servers.

    It waits for all clients, at most ``request_timeout`` seconds, including clients that have not joined yet. Clients
    that have not joined by then, and clients without a heartbeat for 20 s, count as gone.

    Raises:
        RuntimeError: This process is no client.
        StoreTimeout: Some live clients did not leave in time. Client 0 has stopped the servers.
    """
    context = get_context()
    if context is None:
        LOG.warning("this process is not a client; nothing to shut down")
        return
    if not context.is_client():
        raise RuntimeError(f"this process is a {context.role.name.lower()}; shutdown_client is for clients")
    leaving = session()
    set_session(None)
    set_context(None)
    leaving.leave()


def async_request_server(
    server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any
) -> torch.futures.Future[Any]:
    """Call a method of a server by name, in a thread; return a future of its answer.

    Args:
        server_rank: The server.
        func: A method of ``DistServer`` that clients may call, or its name.
        *args: Arguments of the method, without the server object.
        **kwargs: Keyword arguments of the method.

    Raises:
        ValueError: ``func`` is no method of ``DistServer``; other functions cannot be sent without pickle. The future
            raises it if clients may not call the method.
    """
    future: torch.futures.Future[Any] = torch.futures.Future()
    asked = session().submit(server_rank, _method_name(func), *args, **kwargs)

    def tell(done: Any) -> None:
        if done.cancelled():
            future.set_exception(
                StoreUnavailable(f"the session ended before server {server_rank} received the request")
            )
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    asked.add_done_callback(tell)
    return future


def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a server by name and wait; see ``async_request_server``."""
    return session().request(server_rank, _method_name(func), *args, **kwargs)


def _method_name(func: Callable[..., Any] | str) -> str:
    """Return the name of a method of ``DistServer``; the server checks whether clients may call it.

    Raises:
        SettingsError: ``func`` is another function.
    """
    if isinstance(func, str):
        return func
    owner, _, name = getattr(func, "__qualname__", "").rpartition(".")
    if owner != "DistServer":
        raise SettingsError(
            f"{func!r} is not a method of DistServer; give one, or its name (sending other functions would need pickle)"
        )
    return str(name)
