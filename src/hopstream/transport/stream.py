"""Byte streams: non-blocking sockets with or without TLS, which read and write given buffers."""

from __future__ import annotations

import socket
import ssl
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Protocol, cast

MAX_BUFFERS = 256
"""Largest number of buffers passed to the system in one call."""
RECORD_BYTES = 16 << 10
"""Bytes of a TLS record."""
RECORD_OVERHEAD = 512
"""Upper bound of the bytes that TLS adds to a record."""

TCP_CORK = getattr(socket, "TCP_CORK", None)
MIN_LOW_WATER = 64 << 10
MAX_LOW_WATER = 256 << 10
"""Range of the low-water mark: waking a reader costs as much as copying some ten thousand bytes."""


class ByteStream(Protocol):
    """A connection's bytes. One thread may read while another writes."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        ...

    def recv_into(self, target: memoryview) -> int | None:
        """Read available bytes; return their number, 0 at the end of the stream, None if there are none now.

        Raises:
            OSError: The connection is lost.
        """
        ...

    def send(self, buffers: deque[memoryview]) -> bool:
        """Write as much as the system accepts, remove it from ``buffers``; return whether all was written.

        Raises:
            OSError: The connection is lost.
        """
        ...

    def has_pending(self) -> bool:
        """Return whether bytes are readable that polling the descriptor does not report."""
        ...

    def expect(self, num_bytes: int) -> None:
        """Report the stream as readable only when ``num_bytes``, or the largest low-water mark, are there."""
        ...

    def shut_down(self) -> None:
        """End the connection at once, and wake a thread that polls or reads. The descriptor stays open."""
        ...

    def close(self) -> None:
        """Free the descriptor; no other thread may use the stream."""
        ...


class _LowWater:
    """Low-water mark of a socket (``SO_RCVLOWAT``), if the system supports it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._set = 1
        self._is_known = sock.family != socket.AF_UNIX

    def expect(self, num_bytes: int) -> None:
        wanted = min(num_bytes, MAX_LOW_WATER) if num_bytes >= MIN_LOW_WATER else 1
        if wanted != self._set and self._is_known:
            self._set = wanted
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)


class PlainStream:
    """A socket without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket; it is closed with the stream, or when the stream is garbage-collected."""
        _prepare(sock)
        self._socket = sock
        weakref.finalize(self, _close, sock).atexit = False
        self._low_water = _LowWater(sock)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def recv_into(self, target: memoryview) -> int | None:
        """Read the available bytes of the socket without blocking."""
        try:
            return self._socket.recv_into(target)
        except BlockingIOError:
            return None

    def send(self, buffers: deque[memoryview]) -> bool:
        """Write bytes to the socket without blocking."""
        while buffers:
            try:
                some = buffers if len(buffers) <= MAX_BUFFERS else [buffers[i] for i in range(MAX_BUFFERS)]
                sent = self._socket.sendmsg(some)
            except BlockingIOError:
                return False
            _advance(buffers, sent)
        return True

    def has_pending(self) -> bool:
        """Return False: polling reports all readable bytes."""
        return False

    def expect(self, num_bytes: int) -> None:
        """Set the low-water mark of the socket."""
        self._low_water.expect(num_bytes)

    def shut_down(self) -> None:
        """Shut the socket down in both directions."""
        shut_down(self._socket)

    def close(self) -> None:
        """Close the socket."""
        _close(self._socket)


class TlsStream:
    """A socket with TLS. A lock guards every call, because OpenSSL allows one thread at a time.

    No call blocks.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """Take over a socket, before or after its handshake; see ``PlainStream``."""
        _prepare(sock)
        self._socket = sock
        weakref.finalize(self, _close, sock).atexit = False
        self._low_water = _LowWater(sock)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def handshake(self) -> bool | None:
        """Continue the handshake: True when done, None if it needs bytes to read, False if it needs to write.

        Raises:
            OSError: The handshake failed.
        """
        with self._lock:
            try:
                self._socket.do_handshake()
            except ssl.SSLWantReadError:
                return None
            except ssl.SSLWantWriteError:
                return False
            return True

    def recv_into(self, target: memoryview) -> int | None:
        """Decrypt available bytes without blocking."""
        done, size = 0, len(target)
        with self._lock:
            try:
                while done < size:
                    read = cast(int, self._socket.read(size - done, target[done:]))
                    if read == 0:
                        break
                    done += read
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return done or None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                pass
        return done

    def send(self, buffers: deque[memoryview]) -> bool:
        """Encrypt and write bytes without blocking."""
        with self._lock:
            self._cork(1)
            try:
                while buffers:
                    _join_small(buffers)
                    first, done = buffers[0], 0
                    try:
                        while done < len(first):
                            done += self._socket.send(first[done : done + RECORD_BYTES])
                    finally:
                        _advance(buffers, done)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            finally:
                self._cork(0)
        return True

    def _cork(self, is_on: int) -> None:
        """Send records together, if the system supports it (``TCP_CORK``)."""
        if TCP_CORK is not None and self._socket.family != socket.AF_UNIX:
            with suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, TCP_CORK, is_on)

    def has_pending(self) -> bool:
        """Return whether OpenSSL holds decrypted bytes."""
        with self._lock:
            return self._socket.pending() > 0

    def expect(self, num_bytes: int) -> None:
        """Set the low-water mark, less one record, which OpenSSL may have read from the socket already."""
        self._low_water.expect(num_bytes - RECORD_BYTES - RECORD_OVERHEAD)

    def shut_down(self) -> None:
        """Shut the socket down in both directions."""
        shut_down(super(ssl.SSLSocket, self._socket))

    def close(self) -> None:
        """Close the socket."""
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


def shut_down(sock: Any) -> None:
    """End a socket's connection, and wake a thread that polls or reads it. The descriptor stays open."""
    with suppress(OSError):  # the connection has ended already
        sock.shutdown(socket.SHUT_RDWR)


def _close(sock: socket.socket) -> None:
    with suppress(OSError):  # the connection has ended already
        sock.close()


def _advance(buffers: deque[memoryview], sent: int) -> None:
    """Remove sent bytes from the buffers."""
    while sent:
        first = buffers[0]
        if sent < len(first):
            buffers[0] = first[sent:]
            return
        sent -= len(first)
        buffers.popleft()


def _join_small(buffers: deque[memoryview]) -> None:
    """Join small buffers, because each would be a separate TLS record."""
    if len(buffers) == 1 or len(buffers[0]) + len(buffers[1]) > RECORD_BYTES:
        return
    small: list[memoryview] = []
    num_bytes = 0
    while buffers and num_bytes + len(buffers[0]) <= RECORD_BYTES:
        num_bytes += len(buffers[0])
        small.append(buffers.popleft())
    buffers.appendleft(memoryview(b"".join(small)))
