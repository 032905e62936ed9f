"""Remote calls of a server's methods by name; arguments and answers are JSON and arrays, not pickles.

Values are None, numbers, strings, lists, tuples, dicts, tensors and records of ``stream.messages``.

The first frame of an answer has its arrays, with an empty array in place of each that would make the frame too large.
Chunks of these arrays follow in further frames. ``"pieces": [[number, shape], …]`` announces them in their order. Each
further frame, ``{"piece": number}``, has the next chunk of one flattened array.
"""

from __future__ import annotations

import math
import reprlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np
import torch

from hopstream.arrays import Array
from hopstream.errors import FormatError, HopstreamError, RemoteError, SettingsError
from hopstream.store.settings import ServerLimits
from hopstream.stream.messages import decode_options, encode_options
from hopstream.transport.connection import Connection
from hopstream.transport.messages import ArraySpec, Frame, empty_arrays

OPERATION = "call_method"
"""Operation that is added to a store server."""
RAISED = {
    error.__name__: error for error in (KeyError, RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
}
"""Errors of methods that the caller gets with their class; the wire protocol transfers hopstream's own errors."""
CALLER: ContextVar[str | None] = ContextVar("CALLER", default=None)
"""Within a method: name of the calling client; None for a caller in this process."""
WAIT_S: ContextVar[float] = ContextVar("WAIT_S", default=math.inf)
"""Within a method: the caller's deadline in seconds; infinite for a caller in this process."""
WAIT_SHARE = 0.8
"""Share of the caller's deadline for which a method may wait, so that the answer is not late."""

PIECE_BYTES = 8 << 20
"""Limit of bytes of arrays in one frame of an answer."""
MAX_ANSWER_BYTES = 16 << 30
"""Limit of bytes of all arrays of one answer: two billion ids."""
MAX_REQUEST_BYTES = ServerLimits().max_request_bytes
"""Limit of bytes of all arguments of one call, which is one frame."""


def answering(methods: Mapping[str, Callable[..., Any]]) -> Callable[[Frame], Iterator[Frame]]:
    """Return the operation that calls methods by name."""

    def operation(frame: Frame) -> Iterator[Frame]:
        name = frame.text("method")
        if name not in methods:
            raise SettingsError(
                f"{name[:100]!r} is not a method of DistServer that clients may call; these are {', '.join(methods)}"
            )
        given = decode_options(frame.header.get("options"), frame.arrays)
        try:
            answer = _call_for(frame, methods[name], given)
        except HopstreamError:
            raise
        except tuple(RAISED.values()) as error:
            kind = next(kind for kind, one in RAISED.items() if isinstance(error, one))
            text = str(error.args[0]) if error.args else ""
            lines = "".join(traceback.format_exception(error))
            yield Frame({"raised": kind, "message": text, "traceback": lines})
        else:
            yield from _frames(name, *encode_options({"answer": answer}))

    return operation


def _call_for(frame: Frame, method: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    wait_s = frame.header.get("wait_s")
    if not isinstance(wait_s, int | float) or not 0 < wait_s < math.inf:
        raise FormatError(f"header field 'wait_s' is {reprlib.repr(wait_s)}; it must be a number of seconds above 0")

    def called() -> Any:
        CALLER.set(frame.text("client"))
        WAIT_S.set(float(wait_s))
        return method(*given["args"], **given["kwargs"])

    return copy_context().run(called)


def call(connection: Connection, timeout_s: float, client: str, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a server on behalf of a client.

    Raises:
        SettingsError: The arguments exceed the limit of one call.
        KeyError, RuntimeError, ValueError, IndexError, TypeError, NotImplementedError: The method raised it.
        FormatError: The answer is invalid.
        HopstreamError: The method raised it, or the server cannot be reached or did not answer in time.
    """
    header, arrays = encode_options({"args": list(args), "kwargs": kwargs})
    if (num_bytes := _num_bytes(arrays)) > MAX_REQUEST_BYTES:
        raise SettingsError(
            f"the arguments of {method} have {num_bytes} bytes; one call may have {MAX_REQUEST_BYTES}, which is "
            f"{MAX_REQUEST_BYTES // 8} ids: give fewer to one call, for example the input of more ranks"
        )
    asked = {"op": OPERATION, "client": client, "wait_s": timeout_s, "method": method, "options": header}
    request = Frame(asked, arrays)
    reader = AnswerReader()
    connection.call(request, timeout_s, f"{OPERATION} {method}", reader)
    told, found = reader.result()
    if (kind := told.get("raised")) is not None:
        error = RAISED.get(str(kind), RemoteError)(str(told.get("message")))
        error.add_note(f"raised by {connection.location} in {method}:\n{told.get('traceback')}")
        raise error
    return _as_tensors(decode_options(told.get("options"), found)["answer"])


def _as_tensors(value: Any) -> Any:
    """Replace arrays by tensors in lists, tuples and dicts."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _as_tensors(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_as_tensors, value))
    return value


def _frames(method: str, options: dict[str, Any], arrays: Sequence[Array]) -> Iterator[Frame]:
    """Yield the frames of an answer; arrays that are too large for the first frame follow in chunks."""
    if (num_bytes := _num_bytes(arrays)) > MAX_ANSWER_BYTES:
        raise SettingsError(
            f"the answer of {method} has {num_bytes} bytes; one answer may have {MAX_ANSWER_BYTES}: request "
            "less at once"
        )
    left = PIECE_BYTES
    inline: list[Array] = []
    pieces: dict[int, list[int]] = {}
    for number, array in enumerate(arrays):
        if array.nbytes <= left:
            left -= array.nbytes
            inline.append(array)
        else:
            inline.append(array.reshape(-1)[:0])
            pieces[number] = list(array.shape)
    yield Frame({"options": options, "pieces": list(pieces.items())}, inline)
    for number in pieces:
        flat = arrays[number].reshape(-1)
        step = max(1, PIECE_BYTES // flat.itemsize)
        for start in range(0, len(flat), step):
            yield Frame({"piece": number}, [flat[start : start + step]])


class AnswerReader:
    """Reader that joins the frames of an answer."""

    def __init__(self) -> None:
        """Start before the first frame."""
        self._header: dict[str, Any] | None = None
        self._arrays: list[Array] = []
        self._unfilled: dict[int, Array] = {}

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Return new arrays for a frame's data."""
        return empty_arrays(specs)

    def take(self, frame: Frame) -> None:
        """Store the first frame, or the next chunk of an array that the first frame announced."""
        if self._header is None:
            self._header, self._arrays = frame.header, list(frame.arrays)
            self._announce(frame.header.get("pieces", []))
            return
        if not self._unfilled:
            raise FormatError(f"an answer continues after its end: {reprlib.repr(frame.header)}")
        number, rest = next(iter(self._unfilled.items()))
        piece = frame.array(0, (rest.dtype.name,))
        if frame.header.get("piece") != number or not 0 < len(piece) <= len(rest):
            raise FormatError(
                f"a frame brings {len(piece)} numbers of array {reprlib.repr(frame.header.get('piece'))} of an answer; "
                f"{len(rest)} of array {number} are to come"
            )
        rest[: len(piece)] = piece
        if len(piece) < len(rest):
            self._unfilled[number] = rest[len(piece) :]
        else:
            del self._unfilled[number]

    def result(self) -> tuple[dict[str, Any], list[Array]]:
        """Return the header and all arrays.

        Raises:
            FormatError: Some arrays are incomplete.
        """
        if self._header is None or self._unfilled:
            raise FormatError(f"an answer ended before its arrays {list(self._unfilled)} were complete")
        return self._header, self._arrays

    def _announce(self, pieces: object) -> None:
        """Allocate the arrays that arrive in chunks."""
        shapes = _shapes(pieces, len(self._arrays))
        num_bytes = sum(math.prod(shape) * self._arrays[number].itemsize for number, shape in shapes.items())
        if num_bytes > MAX_ANSWER_BYTES:
            raise FormatError(f"an answer announces {num_bytes} bytes of arrays; it may have {MAX_ANSWER_BYTES}")
        for number, shape in shapes.items():
            self._arrays[number] = np.empty(shape, self._arrays[number].dtype)
            self._unfilled[number] = self._arrays[number].reshape(-1)


def _shapes(pieces: object, num_arrays: int) -> dict[int, list[int]]:
    """Map the number of each chunked array to its announced shape."""
    shapes: dict[int, list[int]] = {}
    for one in pieces if isinstance(pieces, list) else [pieces]:
        number, shape = one if isinstance(one, list) and len(one) == 2 else (None, [])
        is_shape = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and n > 0 for n in shape)
        if not is_shape or type(number) is not int or not 0 <= number < num_arrays or number in shapes:
            raise FormatError(
                f"an answer announces {reprlib.repr(one)}; it must be [number, shape] of one of its {num_arrays} "
                "arrays, each once"
            )
        shapes[number] = shape
    return shapes


def _num_bytes(arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)
