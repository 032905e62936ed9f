"""Receiver: reads messages from a byte stream, each array directly into its destination."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import FormatError
from hopstream.transport.messages import (
    ALIGNMENT,
    LAST,
    PREFIX,
    ArraySpec,
    Frame,
    Prefix,
    padded,
    read_header,
    read_prefix,
)
from hopstream.transport.stream import ByteStream

INPUT_BYTES = 16 << 10
"""Bytes read in one call at the start of a message; large arrays are read into their destination."""

Check = Callable[[Prefix], bool]
"""Returns whether to read a message with this prefix; False discards it."""
Place = Callable[[Prefix, dict[str, Any], Sequence[ArraySpec]], "Sequence[Array] | None"]
"""Returns C-contiguous arrays of these dtypes and shapes to receive in; None discards the message."""
Message = tuple[Prefix, "Frame | None"]


class Receiver:
    """Reader of the messages of one stream, used by one thread at a time."""

    def __init__(self, stream: ByteStream, check: Check, place: Place, is_wanted: Check | None = None) -> None:
        """Start before the first message.

        Args:
            stream: The stream.
            check: Called with every prefix before the rest of its message is read.
            place: Called with every header before the arrays are read.
            is_wanted: Called before every write into arrays of ``place``. After it returns False, no more is written
                and the rest of the message is discarded. None means that every message is wanted.
        """
        self._stream, self._check, self._place = stream, check, place
        self._is_wanted = is_wanted or (lambda prefix: True)
        self._buffer = memoryview(bytearray(INPUT_BYTES))
        self._start = self._stop = 0
        self._arrays: Sequence[Array] | None = None
        self._messages = self._read_messages()
        self.is_at_end = False
        """Whether the peer has closed the stream."""
        self.wanted = 1
        """Bytes that must arrive before the receiver can continue."""

    @property
    def has_buffered(self) -> bool:
        """Whether bytes of the next message are already buffered."""
        return self._start < self._stop

    def next(self) -> Message | None:
        """Return the next message, with None for a discarded frame; None if its bytes have not arrived.

        Raises:
            FormatError: The bytes are no message; the receiver cannot be used any more.
            OSError: The connection is lost.
            Exception: Any error of ``check`` and ``place``; the receiver cannot be used any more.
        """
        return next(self._messages, None)

    def _read_messages(self) -> Iterator[Message | None]:
        """Yield messages, and None whenever no bytes are available."""
        size = PREFIX.size
        while True:
            if self._stop - self._start < size:
                yield from self._gather(size)
            prefix = read_prefix(self._buffer[self._start : self._start + size])
            self._start += size
            text_bytes = prefix.header_bytes + -prefix.header_bytes % ALIGNMENT
            if not self._check(prefix):
                yield from self._skip(text_bytes + prefix.body_bytes)
                yield prefix, None
            elif not text_bytes:
                if prefix.body_bytes:
                    raise FormatError("a message has arrays and no header that describes them")
                yield prefix, Frame({}, [], prefix.flags == LAST)
            else:
                if self._stop - self._start < text_bytes <= INPUT_BYTES:
                    yield from self._gather(text_bytes)
                text = self._buffer[self._start : self._start + text_bytes]
                if text_bytes > INPUT_BYTES:
                    text = memoryview(bytearray(text_bytes))
                    yield from self._fill(text)
                else:
                    self._start += text_bytes
                header, specs = read_header(text[: prefix.header_bytes].tobytes(), prefix.body_bytes)
                self._arrays = self._place(prefix, header, specs)
                if self._arrays is None:
                    yield from self._skip(prefix.body_bytes)
                    yield prefix, None
                else:
                    left = yield from self._fill_arrays(prefix, self._arrays)
                    yield from self._skip(left)
                    yield prefix, None if left else Frame(header, self._filled(), prefix.flags == LAST)

    def _filled(self) -> Sequence[Array]:
        """Return the filled arrays without keeping them: this object waits for the next message for any time."""
        arrays, self._arrays = self._arrays or [], None
        return arrays

    def _fill_arrays(self, prefix: Prefix, arrays: Sequence[Array]) -> Generator[None, None, int]:
        """Read arrays with their padding; return the number of unread bytes if they become unwanted, else 0."""
        left = prefix.body_bytes
        if self._stop - self._start >= left and self._is_wanted(prefix):  # the usual case for requests
            self._copy_arrays(arrays)
            return 0
        for array in arrays:
            num_bytes = array.nbytes
            if not num_bytes:
                continue
            done = yield from self._fill(array.reshape(-1).view(np.uint8).data, prefix)
            if done < num_bytes:
                return left - done
            if num_bytes % ALIGNMENT:
                yield from self._skip(-num_bytes % ALIGNMENT)
            left -= padded(num_bytes)
        return 0

    def _copy_arrays(self, arrays: Sequence[Array]) -> None:
        """Copy arrays from the buffer, which holds all of them with their padding."""
        start = self._start
        for array in arrays:
            num_bytes = array.nbytes
            if num_bytes:
                array.reshape(-1).view(np.uint8).data[:] = self._buffer[start : start + num_bytes]
                start += padded(num_bytes)
        self._start = start

    def _gather(self, num_bytes: int) -> Iterator[None]:
        """Read until the buffer holds ``num_bytes``."""
        left = self._stop - self._start
        if left and self._start:
            self._buffer[:left] = self._buffer[self._start : self._stop].tobytes()
        self._start, self._stop = 0, left
        while self._stop < num_bytes:
            self._stop += yield from self._receive(self._buffer[self._stop :] if self._stop else self._buffer)

    def _fill(self, target: memoryview, prefix: Prefix | None = None) -> Generator[None, None, int]:
        """Fill the target, or stop once the message is unwanted; return the number of bytes."""
        done, size = 0, len(target)
        while prefix is None or self._is_wanted(prefix):
            there = min(self._stop - self._start, size - done)
            if there:
                target[done : done + there] = self._buffer[self._start : self._start + there]
                self._start += there
                done += there
            if done == size:
                break
            if size - done >= INPUT_BYTES:
                self.wanted = size - done
                done += yield from self._receive(target[done:], prefix)
                self.wanted = 1
            else:  # one call may also read the bytes that follow
                self._start, self._stop = 0, (yield from self._receive(self._buffer))
        return done

    def _skip(self, num_bytes: int) -> Iterator[None]:
        """Discard bytes."""
        while num_bytes:
            there = min(self._stop - self._start, num_bytes)
            self._start += there
            num_bytes -= there
            if num_bytes:
                self._start, self._stop = 0, (yield from self._receive(self._buffer))

    def _receive(self, target: memoryview, prefix: Prefix | None = None) -> Generator[None, None, int]:
        """Read at least one byte; return the number of bytes, or 0 once the message is unwanted."""
        while prefix is None or self._is_wanted(prefix):
            read = None if self.is_at_end else self._stream.recv_into(target)
            if read:
                return read
            self.is_at_end = self.is_at_end or read == 0
            yield None
        return 0
