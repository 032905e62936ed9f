"""Calls of a server's methods by name, with arguments and answers as JSON and arrays; nothing is pickled.

What can travel is None, numbers, strings, lists, tuples, dicts, tensors and records that ``stream.recipes`` knows.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hopstream.errors import HopstreamError, RemoteError
from hopstream.store.channel import Channel
from hopstream.store.wire import Bytes, Frame, encode_frame
from hopstream.stream.recipes import decode_options, encode_options

OPERATION = "call_method"
"""The operation of a store server that a door adds."""
RAISED = {error.__name__: error for error in (KeyError, RuntimeError, ValueError, IndexError, NotImplementedError)}
"""Errors of methods that the caller gets as they were raised; hopstream's own errors are told by the wire protocol."""


def answering(methods: Mapping[str, Callable[..., Any]]) -> Callable[[Frame], Iterator[Bytes]]:
    """The operation that calls some methods by name."""

    def operation(frame: Frame) -> Iterator[Bytes]:
        name = frame.text("method")
        if name not in methods:
            raise ValueError(f"the server has no method {name[:100]!r}; it has {', '.join(methods)}")
        given = decode_options(frame.header.get("options"), frame.arrays)
        try:
            answer = methods[name](*given["args"], **given["kwargs"])
        except HopstreamError:
            raise
        except tuple(RAISED.values()) as error:
            kind = next(kind for kind, one in RAISED.items() if isinstance(error, one))
            text = str(error.args[0]) if error.args else ""
            lines = "".join(traceback.format_exception(error))
            yield encode_frame({"raised": kind, "message": text, "traceback": lines})
        else:
            header, arrays = encode_options({"answer": answer})
            yield encode_frame({"options": header}, arrays)

    return operation


def call(channel: Channel, timeout_s: float, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a server.

    Raises:
        KeyError, RuntimeError, ValueError, IndexError, NotImplementedError: What the method raised.
        HopstreamError: What the method raised, or the server cannot be reached or gave no answer in time.
    """
    header, arrays = encode_options({"args": list(args), "kwargs": kwargs})
    request = encode_frame({"op": OPERATION, "method": method, "options": header}, arrays)
    taken = _Taken()
    channel.call(request, timeout_s, f"{OPERATION} {method}", taken)
    assert taken.frame is not None  # noqa: S101 - a call without a frame fails
    told = taken.frame.header
    if (kind := told.get("raised")) is not None:
        error = RAISED.get(str(kind), RemoteError)(str(told.get("message")))
        error.add_note(f"raised by {channel.location} in {method}:\n{told.get('traceback')}")
        raise error
    return _as_tensors(decode_options(told.get("options"), taken.frame.arrays)["answer"])


def _as_tensors(value: Any) -> Any:
    """A value with tensors in place of arrays, in lists, tuples and dicts."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _as_tensors(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_as_tensors, value))
    return value


class _Taken:
    """Keeps the only frame of an answer."""

    def __init__(self) -> None:
        self.frame: Frame | None = None

    def take(self, frame: Frame) -> None:
        """Keep a frame."""
        self.frame = frame
