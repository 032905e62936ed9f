"""Failures as frames: an error that a server tells of, raised again at the client."""

from __future__ import annotations

import traceback
from collections.abc import Collection

from hopstream import errors
from hopstream.errors import FormatError, HopstreamError, RemoteError, ServerBusy, StoreUnavailable
from hopstream.transport.messages import Frame

SHARED_ERRORS = (
    "IdRangeError", "UnknownNameError", "SettingsError", "FormatError", "SchemaError", "VersionMismatch", "StateError",
    "ChannelLost", "StoreTimeout", "AccessDenied",
)  # fmt: skip
"""Errors that are raised again as the same class, because the asker can do something; most others become a
``RemoteError``."""
TRACEBACK_TITLE = "--- server traceback ---"


def error_frame(kind: str, message: str, lines: str = "") -> Frame:
    """The frame that tells of an error: the name of its class, its message and the server's traceback."""
    return Frame({"error": {"kind": kind, "message": message, "traceback": lines}}, (), is_last=True)


def encode_error(error: BaseException) -> Frame:
    """The frame that tells a client of a failure, with the server's traceback; see ``without_paths``."""
    message = str(error) or type(error).__name__
    if not isinstance(error, HopstreamError):
        message = f"{type(error).__name__}: {message}"
    return error_frame(type(error).__name__, message, "".join(traceback.format_exception(error)))


def without_paths(frame: Frame, folders: Collection[str]) -> Frame:
    """A frame as those may see it who are told no paths of the server.

    Args:
        frame: Any frame of an answer; one that tells of no error is given back.
        folders: Names of the dataset's folder, which are left out of messages.
    """
    told = frame.header.get("error")
    if not isinstance(told, dict):
        return frame
    message = str(told.get("message"))
    for folder in folders:
        message = message.replace(folder, "…")
    return error_frame(str(told.get("kind")), message)


def is_askers_fault(error: BaseException) -> bool:
    """Whether a request failed because of what it asked for, and not because of the server or of the time it took."""
    return type(error).__name__ in SHARED_ERRORS and not isinstance(error, TimeoutError)


def raise_error(frame: Frame, where: str, what: str) -> None:
    """Raise the failure that a frame tells of, if it tells of one.

    Args:
        frame: Any frame of an answer.
        where: The server, as messages name it.
        what: The operation, as messages name it.

    Raises:
        HopstreamError: The server's error, of the same class where the asker was wrong, else ``RemoteError``. The
            server's traceback is with it unchanged: in the message of a ``RemoteError``, else as a note.
    """
    told = frame.header.get("error")
    if told is None:
        return
    if not isinstance(told, dict):
        raise FormatError(f"{where} told of an error in an unknown form: {str(told)[:200]}")
    kind, message, lines = str(told.get("kind")), str(told.get("message")), str(told.get("traceback", ""))
    if kind in SHARED_ERRORS:
        error: HopstreamError = getattr(errors, kind)(message)
        error.add_note(f"answered by {where} to {what}")
    elif kind == "ServerBusy":
        error = ServerBusy(f"{where} is too busy for {what}: {message}")
    elif kind == "StoreUnavailable":
        error = StoreUnavailable(f"{where} cannot answer {what}: {message}")
    else:
        raise RemoteError(f"{where} failed in {what}: {message}", lines)
    if lines:
        error.add_note(f"{TRACEBACK_TITLE}\n{lines}")
    raise error
