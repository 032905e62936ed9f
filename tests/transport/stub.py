"""Server that only accepts connections; tests choose what it sends."""

from __future__ import annotations

import socket
from types import TracebackType

from hopstream.transport.location import Location
from tests.transport.peer import TIMEOUT_S, Peer


class Stub:
    """Listen, and accept a connection on request."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(TIMEOUT_S)
        self.where = Location("127.0.0.1", self._socket.getsockname()[1])

    def accept(self) -> Peer:
        """The server's end of the next connection."""
        peer = object.__new__(Peer)
        peer.socket, _ = self._socket.accept()
        peer.socket.settimeout(TIMEOUT_S)
        return peer

    def __enter__(self) -> Stub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
