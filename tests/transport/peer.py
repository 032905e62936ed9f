"""A client that sends given bytes, and returns frames as they are after the wire."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from types import TracebackType

import numpy as np

from hopstream.transport.location import Location
from hopstream.transport.messages import (
    ANSWER,
    LAST,
    PREFIX,
    REQUEST,
    WELCOME,
    Frame,
    Prefix,
    Status,
    encode_hello,
    encode_message,
    padded,
    read_header,
    read_prefix,
)

TIMEOUT_S = 20.0


def message_bytes(kind: int, number: int, frame: Frame | None = None, timeout_ms: int = 20_000) -> bytes:
    """Bytes of a message; the frame of an answer says whether it is the last one."""
    is_last = frame is not None and frame.is_last
    ms = timeout_ms if kind == REQUEST else 0
    return b"".join(encode_message(kind, number, frame, timeout_ms=ms, is_last=is_last))


def read_message(data: bytes) -> tuple[Prefix, Frame]:
    """Decode a message in the plainest way."""
    prefix = read_prefix(memoryview(data)[: PREFIX.size])
    text = data[PREFIX.size : PREFIX.size + prefix.header_bytes]
    start = PREFIX.size + padded(prefix.header_bytes)
    assert len(data) == start + prefix.body_bytes
    if not text:
        return prefix, Frame({}, [], prefix.flags == LAST)
    header, specs = read_header(text, prefix.body_bytes)
    arrays = []
    for dtype, shape in specs:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(np.frombuffer(data, np.uint8, size, start).view(dtype).reshape(shape))
        start += padded(size)
    return prefix, Frame(header, arrays, prefix.flags == LAST)


def carried(frame: Frame) -> Frame:
    """A frame after encoding and decoding."""
    return read_message(message_bytes(ANSWER, 1, frame))[1]


class Peer:
    """One connection to a server."""

    def __init__(
        self, location: str, token: str | None = None, *, says_hello: bool = True, context: ssl.SSLContext | None = None
    ) -> None:
        where = Location.parse(location)
        if where.path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            try:
                self.socket.connect(where.path)
            except OSError:
                self.socket.close()
                raise
        else:
            self.socket = socket.create_connection((where.host, where.port), TIMEOUT_S)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._number = 0
        if says_hello:
            try:
                status, text = self.say_hello(token)
                assert status == Status.OK, text
            except BaseException:
                self.socket.close()
                raise

    def say_hello(self, token: str | None = None) -> tuple[Status, str]:
        """Send a hello; return the server's answer."""
        self.send(encode_hello(token))
        return self.read_welcome()

    def read_welcome(self) -> tuple[Status, str]:
        _, _, status, _, _, num_bytes = WELCOME.unpack(self.read(WELCOME.size))
        return Status(status), self.read(num_bytes).decode()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, num_bytes: int) -> bytes:
        """Read the given number of bytes; raise ``EOFError`` if the connection ends before."""
        found = bytearray()
        while len(found) < num_bytes:
            some = self.socket.recv(num_bytes - len(found))
            if not some:
                raise EOFError
            found += some
        return bytes(found)

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the server ends the connection in time without sending more."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def start(self, frame: Frame, timeout_ms: int = 20_000) -> int:
        """Send a request; return its number."""
        self._number += 1
        self.send(message_bytes(REQUEST, self._number, frame, timeout_ms))
        return self._number

    def next(self) -> tuple[Prefix, Frame]:
        """The next message."""
        head = self.read(PREFIX.size)
        prefix = read_prefix(memoryview(head))
        return read_message(head + self.read(padded(prefix.header_bytes) + prefix.body_bytes))

    def frames(self, number: int) -> Iterator[Frame]:
        """The frames of an answer; fails if anything else comes."""
        while True:
            prefix, frame = self.next()
            assert (prefix.kind, prefix.number) == (ANSWER, number)
            if prefix.header_bytes:
                yield frame
            if frame.is_last:
                return

    def ask(self, frame: Frame) -> list[Frame]:
        """Send a request and read its answer."""
        return list(self.frames(self.start(frame)))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
