"""Proxy that cuts the connections between a loader and a server."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time

CHUNK = 1 << 16
TURN_S = 0.02
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time, so that closing a connection resets it."""


class Proxy:
    """Pass bytes on between clients and a server, and cut all connections again and again.

    It cuts in mid-answer, when ``cut_after`` bytes of answers have passed since the last cut, and then refuses
    connections for ``refuse_s``.
    """

    def __init__(self, port: int, server: tuple[str, int], *, cut_after: int, refuse_s: float) -> None:
        self._address, self._server = ("127.0.0.1", port), server
        self._cut_after, self._refuse_s = cut_after, refuse_s
        self._passed = 0
        self._peers: dict[socket.socket, socket.socket] = {}
        self._from_server: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._refuses_until = 0.0
        self._is_closed = threading.Event()
        self.num_cuts = 0
        self.num_passed = 0
        self.location = f"tcp://127.0.0.1:{port}"
        self._listen()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            for key, _ in self._selector.select(TURN_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._pass_on(key.fileobj)
            if self._listener is None and time.monotonic() >= self._refuses_until:
                self._listen()
        self._end_all()
        self._selector.close()

    def _listen(self) -> None:
        self._listener = socket.create_server(self._address)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        assert self._listener is not None
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server, timeout=5.0)
        except OSError:
            client.close()
            return
        self._peers |= {client: server, server: client}
        self._from_server.add(server)
        for one in (client, server):
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(CHUNK)
            if source in self._from_server and self._passed + len(data) > self._cut_after:
                self._peers[source].sendall(data[: self._cut_after - self._passed])
                self._cut()
                return
            if data:
                self._peers[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._end(source)
        elif source in self._from_server:
            self._passed += len(data)
            self.num_passed += len(data)

    def _cut(self) -> None:
        self.num_cuts += 1
        self._passed = 0
        self._refuses_until = time.monotonic() + self._refuse_s
        self._end_all()

    def _end(self, one: socket.socket) -> None:
        for each in (one, self._peers.pop(one)):
            self._peers.pop(each, None)
            self._from_server.discard(each)
            self._selector.unregister(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.close()

    def _end_all(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        while self._peers:
            self._end(next(iter(self._peers)))
