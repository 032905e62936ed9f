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
"""Bytes read in one call at the start of a message; the rest of a large one is read into its destination."""

Check = Callable[[Prefix], bool]
"""Returns whether to read a message with this prefix; False discards it."""
Place = Callable[[Prefix, dict[str, Any], Sequence[ArraySpec]], "Sequence[Array] | None"]
"""Returns C-contiguous arrays of these dtypes and shapes to receive in; None discards the message."""
Message = tuple[Prefix, "Frame | None"]


class Receiver:
    """Reads the messages of one stream; used by one thread at a time."""

    def __init__(self, stream: ByteStream, check: Check, place: Place, is_wanted: Check | None = None) -> None:
        """Begin with the first message.

        Args:
            stream: Where they come from.
            check: Told of every prefix before anything else of the message is read.
            place: Told of every header before any array is read.
            is_wanted: Asked before anything is written into arrays of ``place``; once it says False they are left
                alone, and the rest of the message is thrown away. None where every message is wanted.
        """
        self._stream, self._check, self._place = stream, check, place
        self._is_wanted = is_wanted or (lambda prefix: True)
        self._buffer = memoryview(bytearray(INPUT_BYTES))
        self._start = self._stop = 0
        self._messages = self._read_messages()
        self.is_at_end = False
        """The peer has closed the stream."""
        self.wanted = 1
        """Bytes that must arrive before the receiver can continue."""

    @property
    def has_buffered(self) -> bool:
        """Bytes of the next message are already buffered."""
        return self._start < self._stop

    def next(self) -> Message | None:
        """The next message, with None for a discarded frame; None if its bytes have not arrived.

        Raises:
            FormatError: The bytes are no message; nothing more can be read.
            OSError: The connection is lost.
            Exception: Whatever ``check`` and ``place`` raise; nothing more can be read either.
        """
        return next(self._messages, None)

    def _read_messages(self) -> Iterator[Message | None]:
        """Yield messages, and None whenever there is nothing to read."""
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
                arrays = self._place(prefix, header, specs)
                if arrays is None:
                    yield from self._skip(prefix.body_bytes)
                    yield prefix, None
                else:
                    left = yield from self._fill_arrays(prefix, arrays)
                    yield from self._skip(left)
                    yield prefix, None if left else Frame(header, arrays, prefix.flags == LAST)

    def _fill_arrays(self, prefix: Prefix, arrays: Sequence[Array]) -> Generator[None, None, int]:
        """Read arrays with their padding; return the number of bytes left of a message that is not wanted any more."""
        left = prefix.body_bytes
        if self._stop - self._start >= left and self._is_wanted(prefix):  # as that of most requests is
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
        """Read until the buffer holds so many bytes."""
        left = self._stop - self._start
        if left and self._start:
            self._buffer[:left] = self._buffer[self._start : self._stop].tobytes()
        self._start, self._stop = 0, left
        while self._stop < num_bytes:
            self._stop += yield from self._receive(self._buffer[self._stop :] if self._stop else self._buffer)

    def _fill(self, target: memoryview, prefix: Prefix | None = None) -> Generator[None, None, int]:
        """Fill the target, or stop if the message is not wanted any more; return the number of bytes."""
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
            else:  # what follows may come in the same call
                self._start, self._stop = 0, (yield from self._receive(self._buffer))
        return done

    def _skip(self, num_bytes: int) -> Iterator[None]:
        """Throw bytes away."""
        while num_bytes:
            there = min(self._stop - self._start, num_bytes)
            self._start += there
            num_bytes -= there
            if num_bytes:
                self._start, self._stop = 0, (yield from self._receive(self._buffer))

    def _receive(self, target: memoryview, prefix: Prefix | None = None) -> Generator[None, None, int]:
        """Read at least one byte; return their number, or 0 if the message is not wanted any more."""
        while prefix is None or self._is_wanted(prefix):
            read = None if self.is_at_end else self._stream.recv_into(target)
            if read:
                return read
            self.is_at_end = self.is_at_end or read == 0
            yield None
        return 0
