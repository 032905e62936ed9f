"""Byte streams that never wait: a socket, and a socket with TLS, both read into and written from given buffers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

MAX_BUFFERS = 256
"""Buffers that are given to the system in one call."""
RECORD_BYTES = 16 << 10
"""What TLS encrypts at a time."""


class ByteStream(Protocol):
    """A connection's bytes. One thread may read while another writes."""

    def fileno(self) -> int:
        """The descriptor to be polled."""
        ...

    def recv_into(self, target: memoryview) -> int | None:
        """Read what is there: bytes that were read, 0 at the end of the stream, None where there is nothing now.

        Raises:
            OSError: The connection is lost.
        """
        ...

    def send(self, buffers: deque[memoryview]) -> bool:
        """Write as much as the system takes, and take it from ``buffers``; whether all was written.

        Raises:
            OSError: The connection is lost.
        """
        ...

    def has_pending(self) -> bool:
        """Whether bytes can be read that polling the descriptor does not tell of."""
        ...

    def shut_down(self) -> None:
        """End the connection at once; a thread that polls or reads is woken. The descriptor stays."""
        ...

    def close(self) -> None:
        """Free the descriptor; no other thread may use the stream any more."""
        ...


class PlainStream:
    """A socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected socket over."""
        _prepare(sock)
        self._socket = sock

    def fileno(self) -> int:
        """See ``ByteStream``."""
        return self._socket.fileno()

    def recv_into(self, target: memoryview) -> int | None:
        """See ``ByteStream``."""
        try:
            return self._socket.recv_into(target)
        except BlockingIOError:
            return None

    def send(self, buffers: deque[memoryview]) -> bool:
        """See ``ByteStream``."""
        while buffers:
            try:
                some = buffers if len(buffers) <= MAX_BUFFERS else [buffers[i] for i in range(MAX_BUFFERS)]
                sent = self._socket.sendmsg(some)
            except BlockingIOError:
                return False
            _advance(buffers, sent)
        return True

    def has_pending(self) -> bool:
        """See ``ByteStream``."""
        return False

    def shut_down(self) -> None:
        """See ``ByteStream``."""
        _shut_down(self._socket)

    def close(self) -> None:
        """See ``ByteStream``."""
        _close(self._socket)


class TlsStream:
    """A socket with TLS. OpenSSL takes one thread at a time, so calls, which do not wait, take turns."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """Take a socket over, before or after its handshake."""
        _prepare(sock)
        self._socket = sock
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """See ``ByteStream``."""
        return self._socket.fileno()

    def handshake(self) -> bool | None:
        """Go on with the handshake: True when it is done, None where bytes are to be read first, False for written.

        Raises:
            OSError: The peers do not come to terms.
        """
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            return False
        return True

    def recv_into(self, target: memoryview) -> int | None:
        """See ``ByteStream``."""
        with self._lock:
            try:
                return self._socket.recv_into(target)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0

    def send(self, buffers: deque[memoryview]) -> bool:
        """See ``ByteStream``."""
        while buffers:
            _join_small(buffers)
            with self._lock:
                try:
                    sent = self._socket.send(buffers[0][:RECORD_BYTES])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return False
            _advance(buffers, sent)
        return True

    def has_pending(self) -> bool:
        """See ``ByteStream``."""
        with self._lock:
            return self._socket.pending() > 0

    def shut_down(self) -> None:
        """See ``ByteStream``."""
        _shut_down(super(ssl.SSLSocket, self._socket))

    def close(self) -> None:
        """See ``ByteStream``."""
        with self._lock:
            _close(self._socket)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _shut_down(sock: Any) -> None:
    with suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)


def _close(sock: socket.socket) -> None:
    with suppress(OSError):  # it has ended already
        sock.close()


def _advance(buffers: deque[memoryview], sent: int) -> None:
    """Take what was sent from the buffers."""
    while sent:
        first = buffers[0]
        if sent < len(first):
            buffers[0] = first[sent:]
            return
        sent -= len(first)
        buffers.popleft()


def _join_small(buffers: deque[memoryview]) -> None:
    """Put small buffers together, because each would be a record of its own."""
    if len(buffers) == 1 or len(buffers[0]) + len(buffers[1]) > RECORD_BYTES:
        return
    small: list[memoryview] = []
    num_bytes = 0
    while buffers and num_bytes + len(buffers[0]) <= RECORD_BYTES:
        num_bytes += len(buffers[0])
        small.append(buffers.popleft())
    buffers.appendleft(memoryview(b"".join(small)))
