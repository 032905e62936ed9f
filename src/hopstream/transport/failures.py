"""Failures: encodes a server's errors as frames, and raises them again at the client."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection

from hopstream import errors
from hopstream.errors import FormatError, HopstreamError, RemoteError, ServerBusy, StoreUnavailable
from hopstream.transport.messages import Frame

SHARED_ERRORS = (
    "IdRangeError", "UnknownNameError", "SettingsError", "FormatError", "SchemaError", "VersionMismatch", "StateError",
    "ChannelLost", "StoreTimeout", "AccessDenied",
)  # fmt: skip
"""Errors that the client raises as the same class, because the caller can act on them; most others become a
``RemoteError``."""
TRACEBACK_TITLE = "--- server traceback ---"
ANSWERED = "answered by "
"""Start of the note that names the server of an error."""
_ADDRESS = re.compile(r"\b(unix|file)://[^\s,;'\"()\[\]]+")
_PATH = re.compile(r"(?<![\w/:.…])/[\w.@%+~-]+(?:/[\w.@%+~-]*)*")


def error_frame(kind: str, message: str, lines: str = "") -> Frame:
    """Make the frame of an error: the name of its class, its message and the server's traceback."""
    return Frame({"error": {"kind": kind, "message": message, "traceback": lines}}, (), is_last=True)


def encode_error(error: BaseException) -> Frame:
    """Encode an error with the server's traceback; ``without_paths`` removes what a client must not see.

    If another server raised the error, the message names it; a ``RemoteError`` carries its traceback, too.
    """
    message = str(error.args[0] if isinstance(error, RemoteError) else error) or type(error).__name__
    if not isinstance(error, HopstreamError):
        message = f"{type(error).__name__}: {message}"
    origin = [note for note in getattr(error, "__notes__", []) if note.startswith(ANSWERED)]
    message = "; ".join([message, *origin])
    return error_frame(type(error).__name__, message, "".join(traceback.format_exception(error)))


def without_paths(frame: Frame, folders: Collection[str], operation: str) -> Frame:
    """Remove paths, Unix sockets and the traceback from an error frame, for clients without admin rights.

    Other errors than ``SHARED_ERRORS``, ``ServerBusy`` and ``StoreUnavailable`` keep only the name of their class,
    because their messages may contain anything.

    Args:
        frame: Any frame of an answer; a frame without an error is returned unchanged.
        folders: Names of the dataset's folder, to be removed from messages like other paths.
        operation: Name of the operation.
    """
    told = frame.header.get("error")
    if not isinstance(told, dict):
        return frame
    kind, message = str(told.get("kind")), str(told.get("message"))
    if kind not in (*SHARED_ERRORS, "ServerBusy", "StoreUnavailable"):
        return error_frame(kind, f"{kind} in {operation}; the server's log says more, at level info")
    message = message.partition(f"\n{TRACEBACK_TITLE}")[0]
    for folder in sorted(folders, key=len, reverse=True):
        message = message.replace(folder, "…")
    return error_frame(kind, _PATH.sub("…", _ADDRESS.sub(r"\1://…", message)))


def is_askers_fault(error: BaseException) -> bool:
    """Return whether a request failed because of its content, and not because of the server or a timeout."""
    return type(error).__name__ in SHARED_ERRORS and not isinstance(error, TimeoutError)


def raise_error(frame: Frame, where: str, what: str) -> None:
    """Raise the error in a frame, if there is one.

    Args:
        frame: Any frame of an answer.
        where: Name of the server in messages.
        what: Name of the operation in messages.

    Raises:
        HopstreamError: The server's error: of the same class if it is one of ``SHARED_ERRORS``, ``ServerBusy`` or
            ``StoreUnavailable``, else ``RemoteError``. The server's traceback comes unchanged, in the message of a
            ``RemoteError`` or as a note.
    """
    told = frame.header.get("error")
    if told is None:
        return
    if not isinstance(told, dict):
        raise FormatError(
            f"{where} sent an error in an unknown form: {str(told)[:200]}; client and server may have different "
            "versions"
        )
    kind, message, lines = str(told.get("kind")), str(told.get("message")), str(told.get("traceback", ""))
    if kind in SHARED_ERRORS:
        error: HopstreamError = getattr(errors, kind)(message)
        error.add_note(f"{ANSWERED}{where} to {what}")
    elif kind == "ServerBusy":
        error = ServerBusy(f"{where} is too busy for {what}: {message}")
    elif kind == "StoreUnavailable":
        error = StoreUnavailable(f"{where} cannot answer {what}: {message}")
    else:
        raise RemoteError(f"{where} failed in {what}: {message}", lines)
    if lines:
        error.add_note(f"{TRACEBACK_TITLE}\n{lines}")
    raise error
