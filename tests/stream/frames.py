"""Encode and decode frames as the transport does, without a connection."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from hopstream.errors import FormatError
from hopstream.transport.calls import Call
from hopstream.transport.limits import Account
from hopstream.transport.messages import REQUEST, Frame, empty_arrays
from hopstream.transport.receiver import Receiver
from tests.transport.peer import message_bytes


class _Said:
    """A stream with all bytes available, followed by its end."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def fileno(self) -> int:
        return -1

    def recv_into(self, target: memoryview) -> int:
        read = min(len(target), len(self._left))
        target[:read] = self._left[:read]
        self._left = self._left[read:]
        return read

    def send(self, buffers: deque[memoryview]) -> bool:
        raise AssertionError("nothing is sent")

    def has_pending(self) -> bool:
        return False

    def shut_down(self) -> None:
        pass

    def close(self) -> None:
        pass


def frame_of(data: bytes) -> Frame:
    """The frame that the first message of some bytes holds.

    Raises:
        FormatError: They begin with no whole message that holds one.
    """
    receiver = Receiver(_Said(data), lambda _: True, lambda _, __, specs: empty_arrays(specs))
    message = receiver.next()
    if message is None or message[1] is None:
        raise FormatError("the bytes end before the message does")
    return message[1]


def sent(frame: Frame) -> Frame:
    """A frame as it comes out at the other end."""
    return frame_of(message_bytes(REQUEST, 1, frame))


def call_of(frame: Frame) -> Call:
    """The call that a listener makes of a request; its client has all rights and no deadline."""
    return Call(cast(Any, SimpleNamespace(identity=None)), 1, frame, math.inf, 0, Account(1 << 62))
