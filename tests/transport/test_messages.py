"""Tests that messages have the documented bytes, and that all other bytes are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream.errors import FormatError
from hopstream.schema import NUMERIC_DTYPES
from hopstream.transport.messages import (
    ANSWER,
    CANCEL,
    GOODBYE,
    PING,
    PONG,
    PREFIX,
    REQUEST,
    Frame,
    Status,
    empty_arrays,
    encode_hello,
    encode_message,
    encode_welcome,
    read_header,
    read_prefix,
)
from tests.transport.peer import message_bytes, read_message

ARRAYS = st.lists(
    st.sampled_from(NUMERIC_DTYPES).flatmap(
        lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)
HEADERS = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "arrays"), st.text() | st.integers(), max_size=3
)


def test_a_hello_has_the_bytes_of_the_protocol() -> None:
    assert encode_hello(None) == b"HOPS\x02\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00"
    assert encode_hello("secret") == b"HOPS\x02\x00\x06\x00\x00\x04\x00\x00\x00\x00\x00\x00secret"


def test_a_welcome_has_the_bytes_of_the_protocol() -> None:
    assert encode_welcome(Status.OK, "", 1 << 28, 64) == (
        b"HOPS\x02\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"
    )
    assert encode_welcome(Status.REFUSED, "né") == (
        b"HOPS\x02\x00\x02\x00" + bytes(8) + bytes(4) + b"\x03\x00\x00\x00" + b"n\xc3\xa9"
    )
    assert len(encode_welcome(Status.BUSY, "x" * 5000)) == 24 + 1000
    assert [int(status) for status in Status] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("kind", "byte"), [(CANCEL, 3), (PING, 4), (PONG, 5), (GOODBYE, 6)])
def test_a_message_without_content(kind: int, byte: int) -> None:
    number = 0x0102030405060708
    wanted = bytes([byte, 0, 0, 0]) + bytes(4) + bytes([8, 7, 6, 5, 4, 3, 2, 1]) + bytes(16)
    assert message_bytes(kind, number) == wanted
    assert read_prefix(memoryview(wanted)) == (kind, 0, 0, number, 0, 0)


def test_a_request_and_the_last_frame_of_an_answer() -> None:
    frame = Frame({"op": "x"}, [np.array([1, 2], np.uint32), np.array([3], np.int64), np.array([5], np.uint8)])
    text = b'{"op":"x","arrays":[["uint32",[2]],["int64",[1]],["uint8",[1]]]}'
    body = b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0"
    prefix = b"\x01\x00\x00\x00\x40\x00\x00\x00\x07" + bytes(7) + b"\x18" + bytes(7) + b"\xe8\x03\0\0\0\0\0\0"
    assert len(text) == 64
    assert message_bytes(REQUEST, 7, frame, 1000) == prefix + text + body
    last = Frame({"op": "xyz"}, frame.arrays, is_last=True)
    text = b'{"op":"xyz","arrays":[["uint32",[2]],["int64",[1]],["uint8",[1]]]}' + bytes(6)
    prefix = b"\x02\x01\x00\x00\x42\x00\x00\x00\x07" + bytes(7) + b"\x18" + bytes(7) + bytes(8)
    assert message_bytes(ANSWER, 7, last) == prefix + text + body


def test_large_arrays_are_not_copied() -> None:
    large, small = np.arange(10_000), np.arange(3, dtype=np.uint16)
    buffers = encode_message(ANSWER, 1, Frame({}, [small, large, small]))
    assert [np.shares_memory(np.frombuffer(buffer, np.uint8), large) for buffer in buffers] == [False, True, False]
    strided = encode_message(ANSWER, 1, Frame({}, [large[::2]]))
    assert read_message(b"".join(strided))[1].arrays[0].tolist() == large[::2].tolist()


@settings(max_examples=40)
@given(HEADERS, ARRAYS, st.booleans())
def test_a_frame_survives_a_round_trip(header: dict[str, object], arrays: list[np.ndarray], is_last: bool) -> None:
    prefix, frame = read_message(message_bytes(ANSWER, 5, Frame(header, arrays, is_last)))
    assert (prefix.kind, prefix.number, frame.is_last) == (ANSWER, 5, is_last)
    assert frame.header == header
    for got, wanted in zip(frame.arrays, arrays, strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@pytest.mark.parametrize(
    "data",
    [
        bytes(32),
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[:32],
        PREFIX.pack(7, 0, 0, 0, 1, 0, 0, 0),
        PREFIX.pack(REQUEST, 2, 0, 0, 1, 0, 0, 0),
        PREFIX.pack(REQUEST, 0, 1, 0, 1, 0, 0, 0),
        PREFIX.pack(REQUEST, 0, 0, 0, 1, 0, 0, 1),
        PREFIX.pack(REQUEST, 0, 0, (16 << 20) + 1, 1, 0, 0, 0),
    ],
)
def test_invalid_prefixes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"a message (begins with|declares a header of)"):
        read_prefix(memoryview(data))


def header_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.parametrize(
    ("header", "body_bytes", "message"),
    [
        (b"{not json", 0, "not JSON"),
        (b"\xff\xfe", 0, "not JSON"),
        (b"[" * 100_000, 0, "not JSON"),
        (b'{"arrays":' + b"9" * 10_000 + b"}", 0, "not JSON"),
        (b'{"arrays":[],"wait_s":NaN}', 0, "not JSON: NaN is not a number"),
        (b'{"arrays":[],"wait_s":-Infinity}', 0, "not JSON: -Infinity is not a number"),
        ([1, 2], 0, "must be an object"),
        ({}, 0, "describes no arrays"),
        ({"arrays": [["uint8", [0]]] * 65_537}, 0, "describes no arrays, or more than 65536"),
        ({"arrays": [["float32"]]}, 0, "dtype, shape"),
        ({"arrays": [["object", [1]]]}, 8, "dtype, shape"),
        ({"arrays": [["O", [1]]]}, 8, "dtype, shape"),
        ({"arrays": [[["int64"], [1]]]}, 8, "dtype, shape"),
        ({"arrays": [["int64", [-1]]]}, 0, "sizes from 0 up"),
        ({"arrays": [["int64", [True]]]}, 8, "sizes from 0 up"),
        ({"arrays": [["int64", [1.5]]]}, 8, "sizes from 0 up"),
        ({"arrays": [["int64", [1] * 33]]}, 8, "at most 32"),
        ({"arrays": [["int64", [1 << 61]]]}, 8, "its header describes"),
        ({"arrays": [["int64", [1 << 61, 1 << 61, 1 << 61]]]}, 8, "its header describes"),
        ({"arrays": [["int64", [1]]]}, 7, "its header describes"),
        ({"arrays": [["int64", [1]]]}, 16, "its header describes"),
        ({"arrays": [["uint8", [1]]]}, 1, "has 1 bytes of arrays; its header describes 8"),
    ],
)  # fmt: skip
def test_invalid_headers_are_refused(header: object, body_bytes: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_header(header_of(header), body_bytes)


def test_arrays_larger_than_memory_are_refused() -> None:
    _, specs = read_header(header_of({"arrays": [["int64", [0, 1 << 61, 1 << 61]]]}), 0)
    with pytest.raises(FormatError, match="too large"):
        empty_arrays(specs)


@given(st.data())
def test_mutated_messages_are_read_or_refused(data: st.DataObject) -> None:
    message = bytearray(
        message_bytes(REQUEST, 1, Frame({"op": "a", "n": [{"ids": 0}]}, [np.arange(5), np.ones((2, 3))]))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        prefix = read_prefix(memoryview(message)[: PREFIX.size])
        text = bytes(message[PREFIX.size : PREFIX.size + prefix.header_bytes])
        _, specs = read_header(text, prefix.body_bytes)
    except FormatError:
        return
    assert sum(int(np.prod(shape, dtype=object)) * dtype.itemsize for dtype, shape in specs) <= prefix.body_bytes
