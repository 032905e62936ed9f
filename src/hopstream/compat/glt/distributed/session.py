"""Client of storage servers: what one compute process knows of its session."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopstream.compat.glt.distributed.calls import call
from hopstream.compat.glt.distributed.roster import Member
from hopstream.compat.glt.distributed.storage import Meeting
from hopstream.errors import HopstreamError, SettingsError, StoreError
from hopstream.store.channel import Channel
from hopstream.store.security import Location
from hopstream.stream.client import RemoteGraph

MAX_CALLS = 16
"""Calls that are under way at once."""


class Session:
    """One client's connections to all servers, from when it has found them until it leaves."""

    def __init__(self, meeting: Meeting, rank: int, num_clients: int) -> None:
        """Find the servers, and wait until all are there.

        Args:
            meeting: Where the session meets.
            rank: Which client this is.
            num_clients: How many clients leave together; 0 where they are not counted.

        Raises:
            StoreTimeout: Some servers did not come in time.
            StoreUnavailable: Server 0 cannot be reached.
        """
        self._meeting, self._rank, self._num_clients = meeting, rank, num_clients
        self._member = Member(meeting.channel(), "client", rank)
        try:
            self.locations: Sequence[str] = self._member.join(meeting.timeout_s)
        except BaseException:
            self._member.close()
            raise
        self._channels: list[Channel] = [meeting.channel(Location.parse(location)) for location in self.locations]
        self.graph = RemoteGraph(",".join(self.locations), settings=meeting.settings, timeout_s=meeting.timeout_s)
        """The servers as a source for loaders; closed with the session."""
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="hopstream-call")
        self.is_open = True
        self._member.stay_present()

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return len(self._channels)

    def submit(self, server_rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a server in a thread; a ``concurrent.futures.Future``."""
        return self._pool.submit(self.request, server_rank, method, *args, **kwargs)

    def request(self, server_rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a server, and wait for its answer.

        Raises:
            SettingsError: There is no such server.
            HopstreamError: The server cannot be reached, or gave no answer in time.
            Exception: What the method raised.
        """
        if not isinstance(server_rank, int) or not 0 <= server_rank < self.num_servers:
            raise SettingsError(f"server_rank is {server_rank!r}; servers are numbered 0..{self.num_servers - 1}")
        timeout_s = self._meeting.timeout_s
        return call(self._channels[server_rank], timeout_s, self._member.name, method, *args, **kwargs)

    def leave(self, timeout_s: float | None = None) -> None:
        """Wait until the other clients leave or are gone; then the first that is there tells all servers to end.

        Args:
            timeout_s: How long to wait for clients that are here, and for those that have not come yet; None for the
                timeout of the meeting. A client that has not come by then counts as gone.

        Raises:
            StoreTimeout: Some clients are here and did not leave in time; client 0 tells servers to end all the same.
            StoreError: A server could not be told.
        """
        failures: list[HopstreamError] = []
        tells = self._rank == 0
        try:
            tells = self._member.leave(timeout_s or self._meeting.timeout_s, num_clients=self._num_clients)
        except StoreError as error:
            failures.append(error)
        try:
            if tells:
                # Server 0 knows who has left, so it is told last.
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
        """Disconnect without a word; a second call does nothing."""
        self.is_open = False
        self._member.close()
        self.graph.close()
        for channel in self._channels:
            channel.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
