"""Tests that messages are read whole however bytes arrive, and that other bytes do no harm."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import Array
from hopstream.errors import FormatError
from hopstream.transport.messages import ANSWER, PING, REQUEST, ArraySpec, Frame, Prefix, empty_arrays
from hopstream.transport.receiver import INPUT_BYTES, Receiver
from tests.transport.peer import message_bytes


class Bytes:
    """A stream that returns bytes in the pieces that were put in, with a pause after each."""

    def __init__(self, *pieces: bytes, has_end: bool = False) -> None:
        self._pieces = deque(filter(None, pieces))
        self._is_pause = False
        self._has_end = has_end

    def recv_into(self, target: memoryview) -> int | None:
        if self._is_pause or not self._pieces:
            self._is_pause = False
            return 0 if self._has_end and not self._pieces else None
        piece = self._pieces.popleft()
        taken = min(len(piece), len(target))
        target[:taken] = piece[:taken]
        if taken < len(piece):
            self._pieces.appendleft(piece[taken:])
        else:
            self._is_pause = True
        return taken


def place(prefix: Prefix, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
    return empty_arrays(specs)


def receiver_of(
    *pieces: bytes, has_end: bool = False, check: Any = lambda prefix: True, place: Any = place
) -> Receiver:
    return Receiver(Bytes(*pieces, has_end=has_end), check, place)  # type: ignore[arg-type]


def read_all(receiver: Receiver, num_waits: int) -> list[tuple[Prefix, Frame | None]]:
    """All messages; the receiver may report a few times that there is nothing to read."""
    found = []
    while num_waits:
        message = receiver.next()
        if message is None:
            num_waits -= 1
        else:
            found.append(message)
    return found


def shown(messages: Sequence[tuple[Prefix, Frame | None]]) -> list[object]:
    return [
        (prefix, None if frame is None else (frame.header, [array.tolist() for array in frame.arrays], frame.is_last))
        for prefix, frame in messages
    ]


FRAMES = [
    Frame({"op": "one"}, [np.arange(3, dtype=np.uint8), np.arange(2.0)]),
    Frame({}, [np.empty((0, 3)), np.array(7, np.int16)], is_last=True),
    Frame({"text": "é" * 20}),
]
STREAM = b"".join([
    message_bytes(REQUEST, 1, FRAMES[0]), message_bytes(PING, 2), message_bytes(ANSWER, 3, FRAMES[1]),
    message_bytes(REQUEST, 4, FRAMES[2]),
])  # fmt: skip
WANTED = [
    (1, ({"op": "one"}, [[0, 1, 2], [0.0, 1.0]], False)),
    (2, ({}, [], False)),
    (3, ({}, [[], 7], True)),
    (4, ({"text": "é" * 20}, [], False)),
]


def test_messages_that_are_cut_at_any_byte() -> None:
    for cut in range(len(STREAM) + 1):
        receiver = receiver_of(STREAM[:cut], STREAM[cut:])
        assert [(prefix.number, frame) for prefix, frame in shown(read_all(receiver, 3))] == WANTED, cut  # type: ignore[misc]
        assert not receiver.has_buffered


def test_messages_that_arrive_byte_by_byte() -> None:
    receiver = receiver_of(*(STREAM[i : i + 1] for i in range(len(STREAM))))
    assert [(prefix.number, frame) for prefix, frame in shown(read_all(receiver, len(STREAM)))] == WANTED  # type: ignore[misc]


def test_has_buffered_reports_further_messages_of_one_read() -> None:
    receiver = receiver_of(STREAM)
    for number in (1, 2, 3, 4):
        message = receiver.next()
        assert message is not None and message[0].number == number
        assert receiver.has_buffered is (number < 4)
    assert receiver.next() is None


def test_large_arrays_and_headers_are_read_in_place(rng: np.random.Generator) -> None:
    sizes = [INPUT_BYTES - 1, INPUT_BYTES, 5 * INPUT_BYTES + 3, 1, 0]
    arrays = [rng.integers(0, 256, size).astype(np.uint8) for size in sizes]
    header = {"text": "x" * (3 * INPUT_BYTES)}
    stream = message_bytes(ANSWER, 1, Frame(header, arrays)) + message_bytes(PING, 2)
    targets = [np.empty(size, np.uint8) for size in sizes]
    cuts = sorted(rng.integers(0, len(stream), 40).tolist())
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if b > a]
    receiver = receiver_of(*pieces, place=lambda prefix, header, specs: targets)
    (prefix, frame), (ping, _) = read_all(receiver, len(pieces) + 1)
    assert frame is not None and frame.header == header
    assert all(got is target for got, target in zip(frame.arrays, targets, strict=True))
    assert all(np.array_equal(target, array) for target, array in zip(targets, arrays, strict=True))
    assert (prefix.number, ping.number) == (1, 2)


@pytest.mark.parametrize("is_told_of_header", [False, True])
def test_unwanted_messages_are_discarded(is_told_of_header: bool) -> None:
    stream = message_bytes(REQUEST, 1, Frame({"a": 1}, [np.zeros(9 * INPUT_BYTES, np.uint8)])) + STREAM

    def takes(prefix: Prefix) -> bool:
        return is_told_of_header or prefix.number != 1 or prefix.body_bytes < INPUT_BYTES

    def place_some(prefix: Prefix, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array] | None:
        return None if "a" in header else empty_arrays(specs)

    receiver = receiver_of(stream[:100], stream[100:], check=takes, place=place_some)
    messages = shown(read_all(receiver, 3))
    assert messages[0][1] is None  # type: ignore[index]
    assert [(prefix.number, frame) for prefix, frame in messages[1:]] == WANTED  # type: ignore[misc]


def test_the_end_of_a_stream_is_reported() -> None:
    for length in (len(STREAM), len(STREAM) - 1):
        receiver = receiver_of(STREAM[:length], has_end=True)
        read_all(receiver, 2)
        assert receiver.is_at_end


def test_arrays_without_a_header_are_refused() -> None:
    data = bytearray(message_bytes(PING, 1) + bytes(8))
    data[16] = 8
    with pytest.raises(FormatError, match="no header that describes them"):
        receiver_of(bytes(data)).next()


def test_nothing_can_be_read_after_an_error() -> None:
    receiver = receiver_of(bytes(32) + STREAM)
    with pytest.raises(FormatError):
        receiver.next()
    assert receiver.next() is None


def test_mutated_bytes_raise_known_errors_and_take_bounded_memory() -> None:
    rng = random.Random(20)
    limit = 1 << 20

    def check(prefix: Prefix) -> bool:
        if prefix.body_bytes > limit:
            raise FormatError("too large")
        return rng.random() < 0.9

    def place_checked(prefix: Prefix, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        arrays = empty_arrays(specs)
        assert sum(array.nbytes for array in arrays) <= prefix.body_bytes <= limit
        return arrays

    num_refused = 0
    for _ in range(4000):
        data = bytearray(STREAM)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        cut = rng.randrange(len(data) + 1)
        receiver = receiver_of(bytes(data[:cut]), bytes(data[cut:]), has_end=True, check=check, place=place_checked)
        try:
            read_all(receiver, 4)
        except FormatError:
            num_refused += 1
    assert 1000 < num_refused < 4000


@pytest.mark.parametrize("size", [100, 3_000, 5 * INPUT_BYTES])
@pytest.mark.parametrize("piece", [64, 1_000, 10 * INPUT_BYTES])
def test_arrays_of_a_cancelled_message_are_not_written(size: int, piece: int) -> None:
    arrays = [np.full(size, 1, np.uint8), np.full(size, 2, np.uint8)]
    data = message_bytes(ANSWER, 1, Frame({}, arrays)) + message_bytes(ANSWER, 2, Frame({"b": 2}, [arrays[0]]))
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
    for num_asked in range(6):
        placed = [np.zeros(size, np.uint8) for _ in arrays]
        asked: list[bytes] = []

        def is_wanted(prefix: Prefix, num_asked: int = num_asked, placed: Any = placed, asked: Any = asked) -> bool:
            if prefix.number == 2:
                return True
            asked.append(b"".join(array.tobytes() for array in placed))
            return len(asked) <= num_asked

        def place_given(prefix: Prefix, header: dict[str, Any], specs: Any, placed: Any = placed) -> Sequence[Array]:
            return placed if prefix.number == 1 else empty_arrays(specs)

        receiver = Receiver(Bytes(*pieces), lambda _: True, place_given, is_wanted)  # type: ignore[arg-type]
        (_, first), (prefix, second) = read_all(receiver, len(pieces) + 1)
        assert (first is None) is (len(asked) > num_asked)
        if first is None:
            assert b"".join(array.tobytes() for array in placed) == asked[-1]
        assert prefix.number == 2 and second is not None and np.array_equal(second.arrays[0], arrays[0])
        assert receiver.wanted == 1
