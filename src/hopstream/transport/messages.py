"""Messages of protocol 2, byte for byte: hello, welcome, requests and frames of answers.

A client opens a connection with a *hello* (version, limit, token), which the server answers with a *welcome* (version,
status, limits). Then each side sends *messages*: a prefix of 32 bytes, a JSON header, and raw little-endian arrays that
the header describes, each at a multiple of 8 bytes from the message's start. A request, and each frame of an answer, is
one message. Nothing on the wire is executable.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, cast

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import FormatError
from hopstream.schema import NUMERIC_DTYPES

MAGIC = b"HOPS"
VERSION = 2
HELLO = struct.Struct("<4sHHI4x")
"""Magic, version, bytes of the token that follows, largest message that the client accepts in MiB."""
WELCOME = struct.Struct("<4sHHQII")
"""Magic, version, status, largest request in bytes, most requests under way, bytes of the text that follows."""
MAX_WELCOME_TEXT = 1000
PREFIX = struct.Struct("<BBHIQQII")
"""Kind, flags, zero, bytes of the header, number, bytes after the header and its padding, milliseconds, zero."""
LAST = 1
"""Flag: the last frame of an answer, or a goodbye for good."""
ALIGNMENT = 8
MAX_HEADER_BYTES = 16 << 20
MAX_ARRAYS = 1 << 16
MAX_MESSAGE_BYTES = 1 << 30
"""Largest frame of an answer in bytes."""

SMALL_BYTES = 4 << 10
"""Arrays up to this size are copied, because a separate buffer costs more."""
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_DTYPES = {name: np.dtype(name) for name in NUMERIC_DTYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

ArraySpec = tuple[np.dtype[Any], tuple[int, ...]]
Buffers = list[memoryview]


REQUEST, ANSWER, CANCEL, PING, PONG, GOODBYE = range(1, 7)
"""Kinds of messages."""


class Status(IntEnum):
    """Status of a welcome."""

    OK = 0
    OTHER_VERSION = 1
    REFUSED = 2
    BUSY = 3
    LEAVING = 4
    """The server may come back."""
    GONE = 5
    """The server leaves for good."""


class Prefix(NamedTuple):
    """The first 32 bytes of a message.

    Attributes:
        kind: One of ``REQUEST`` to ``GOODBYE``.
        flags: ``LAST`` or 0.
        header_bytes: Bytes of the JSON header.
        number: Number of the request that the message belongs to.
        body_bytes: Bytes of the arrays with their padding.
        timeout_ms: For a request, its timeout in milliseconds.
    """

    kind: int
    flags: int
    header_bytes: int
    number: int
    body_bytes: int
    timeout_ms: int


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype; ``dtype.name`` takes ten times as long."""
    return _NAMES.get(dtype) or dtype.name


@dataclass(slots=True)
class Frame:
    """The content of one message.

    Attributes:
        header: The JSON header without the description of the arrays.
        arrays: The arrays; in a received message those that ``Place`` returned.
        is_last: Whether this is the last frame of the answer.
        is_counted: Whether its maker accounts for its bytes until it is sent, instead of the transport.
    """

    header: dict[str, Any]
    arrays: Sequence[Array] = ()
    is_last: bool = False
    is_counted: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def text(self, name: str) -> str:
        """Return a string of the header.

        Raises:
            FormatError: The field is missing or not a string.
        """
        value = self.header.get(name)
        if not isinstance(value, str):
            raise FormatError(f"header field {name!r} is {reprlib.repr(value)}; it must be a string")
        return value

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return a list of JSON objects of the header.

        Raises:
            FormatError: The field is missing or has another type.
        """
        value = self.header.get(name)
        if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
            raise FormatError(f"header field {name!r} must be a list of objects, got {reprlib.repr(value)}")
        return value

    def array(self, index: object, dtypes: Sequence[str], ndim: int = 1) -> Array:
        """Return one of the arrays after a check of its dtype and rank.

        Raises:
            FormatError: There is no such array, or it has another dtype or rank.
        """
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.arrays):
            raise FormatError(f"the header names array {index!r}; the frame has {len(self.arrays)} arrays")
        array = self.arrays[index]
        if dtype_name(array.dtype) not in dtypes or array.ndim != ndim:
            wanted = f"{'|'.join(dtypes)}[{', '.join(['n'] * ndim)}]"
            raise FormatError(f"array {index} is {array.dtype}{list(array.shape)}; it must be {wanted}")
        return array


def encode_hello(token: str | None) -> bytes:
    """Encode the first message of a client."""
    secret = (token or "").encode()
    return HELLO.pack(MAGIC, VERSION, len(secret), MAX_MESSAGE_BYTES >> 20) + secret


def encode_welcome(status: Status, text: str = "", max_request_bytes: int = 0, max_calls: int = 0) -> bytes:
    """Encode the answer to a hello; ``text`` is the reason of a refusal."""
    told = text.encode(errors="backslashreplace")[:MAX_WELCOME_TEXT]
    return WELCOME.pack(MAGIC, VERSION, status, max_request_bytes, max_calls, len(told)) + told


def encode_message(
    kind: int, number: int, frame: Frame | None = None, *, timeout_ms: int = 0, is_last: bool = False
) -> Buffers:
    """Encode a message as buffers; large arrays are not copied.

    Args:
        kind: Kind of message.
        number: Number of the request that it belongs to; 0 for none.
        frame: Header and arrays; None for a message without either.
        timeout_ms: See ``Prefix``.
        is_last: Whether this is the last frame of the answer.
    """
    flags = LAST if is_last else 0
    if frame is None:
        return [memoryview(PREFIX.pack(kind, flags, 0, 0, number, 0, timeout_ms, 0))]
    arrays = frame.arrays
    text = _ENCODE({**frame.header, "arrays": [[_NAMES[array.dtype], array.shape] for array in arrays]}).encode()
    small = [b"", text, _PADDING[-len(text) % ALIGNMENT]]
    buffers: Buffers = []
    body_bytes = 0
    for array in arrays:
        size = array.nbytes
        body_bytes += size + -size % ALIGNMENT
        if size <= SMALL_BYTES:
            small.append(array.tobytes())
        else:
            whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            buffers += [memoryview(b"".join(small)), memoryview(cast(Any, whole))]
            small = []
        small.append(_PADDING[-size % ALIGNMENT])
    prefix = PREFIX.pack(kind, flags, 0, len(text), number, body_bytes, timeout_ms, 0)
    if not buffers:
        small[0] = prefix
        return [memoryview(b"".join(small))]
    buffers[0] = memoryview(prefix + buffers[0].tobytes())
    if any(small):
        buffers.append(memoryview(b"".join(small)))
    return [buffer for buffer in buffers if len(buffer)]


def read_prefix(data: memoryview) -> Prefix:
    """Decode the first 32 bytes of a message.

    Raises:
        FormatError: The bytes are no prefix.
    """
    kind, flags, zero, header_bytes, number, body_bytes, timeout_ms, also_zero = PREFIX.unpack(data)
    if not REQUEST <= kind <= GOODBYE or flags > LAST or zero or also_zero:
        raise FormatError(f"a message begins with {data[:8].hex(' ')}, which is not a prefix; the connection is broken")
    if header_bytes > MAX_HEADER_BYTES:
        raise FormatError(
            f"a message declares a header of {header_bytes} bytes; it may have at most {MAX_HEADER_BYTES}"
        )
    return Prefix(kind, flags, header_bytes, number, body_bytes, timeout_ms)


def read_header(text: bytes, body_bytes: int) -> tuple[dict[str, Any], list[ArraySpec]]:
    """Decode a message's JSON header.

    Args:
        text: The header.
        body_bytes: Bytes of the arrays according to the prefix.

    Returns:
        header: The header without the description of the arrays.
        specs: dtype and shape of each array; together they have ``body_bytes``.

    Raises:
        FormatError: The text is no JSON object, or describes other sizes of arrays.
    """
    try:
        header = _DECODE(text.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the frame's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError(f"the frame's header is a {type(header).__name__}; it must be an object")
    described = header.pop("arrays", None)
    if not isinstance(described, list) or len(described) > MAX_ARRAYS:
        raise FormatError(f"the frame's header describes no arrays, or more than {MAX_ARRAYS}")
    specs = [_read_spec(spec) for spec in described]
    wanted = 0
    for dtype, shape in specs:
        size = math.prod(shape) * dtype.itemsize
        wanted += size + -size % ALIGNMENT
    if wanted != body_bytes:
        raise FormatError(f"the frame has {body_bytes} bytes of arrays; its header describes {wanted}")
    return header, specs


def padded(num_bytes: int) -> int:
    """Return the number of bytes with padding."""
    return num_bytes + -num_bytes % ALIGNMENT


def empty_arrays(specs: Sequence[ArraySpec]) -> list[Array]:
    """Make new arrays of some dtypes and shapes.

    Raises:
        FormatError: A shape is too large for an array.
    """
    try:
        return [np.empty(shape, dtype) for dtype, shape in specs]
    except ValueError as error:  # such as no bytes, but more rows than an array may have
        raise FormatError(f"an array of a frame is too large: {error}") from error


def _refuse_constant(name: str) -> None:
    """Refuse NaN, which is not JSON: a wait of NaN seconds would never end."""
    raise ValueError(f"{name} is not a number in JSON")


def _read_spec(value: object) -> ArraySpec:
    dtype = _DTYPES.get(value[0]) if type(value) is list and len(value) == 2 and type(value[0]) is str else None
    if dtype is None:
        raise FormatError(f"array {str(value)[:100]} is not [dtype, shape]")
    shape = value[1]  # type: ignore[index]
    if type(shape) is not list or len(shape) > 32 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise FormatError(f"array shape {str(shape)[:100]} must be at most 32 sizes from 0 up")
    return dtype, tuple(shape)


_DECODE = json.JSONDecoder(parse_constant=_refuse_constant).decode
_PADDING = [bytes(size) for size in range(ALIGNMENT)]
