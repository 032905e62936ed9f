"""Exceptions of Hopstream, and the quoting of values in their messages.

Most exceptions also derive from a builtin exception, so code that does not know this package can catch them with
``except ValueError`` or ``except TimeoutError``.
"""

from __future__ import annotations


class HopstreamError(Exception):
    """Base class of all exceptions of this package."""


class SchemaError(HopstreamError, ValueError):
    """A graph, table or column contradicts its schema, or cannot be represented."""


class SettingsError(HopstreamError, ValueError):
    """A setting is unknown, out of range, or contradicts another setting."""


class NoRoomError(SettingsError):
    """The disk or the memory has no room for the work; finished work is kept for the next call."""


class NoDiskRoomError(NoRoomError):
    """The disk has no room for the work; the check is made before the work starts."""


class FormatError(HopstreamError, ValueError):
    """A file or message is missing, incomplete, damaged, or of a format that this version does not read."""


class ChecksumError(FormatError):
    """A file's bytes do not match the checksum in its manifest."""


class UnknownNameError(HopstreamError, KeyError):
    """A node type, edge type, feature, split or part does not exist in the dataset."""

    def __str__(self) -> str:
        """Return the message; ``KeyError`` would return its ``repr``."""
        return str(self.args[0]) if self.args else ""


class IdRangeError(HopstreamError, IndexError):
    """A key or id lies outside the range of its node or edge type."""


class StateError(HopstreamError, ValueError):
    """A saved state, job, loader, store or connection is used in the wrong place, or after it was closed."""


class MissingDependencyError(HopstreamError, ImportError):
    """An optional library is needed and not installed; the message says what to install."""


class EngineError(HopstreamError, RuntimeError):
    """A task failed with an error that this module has no class for, or an engine could not run the task."""


class WorkerLost(EngineError):
    """The process or machine that ran a task ended before the task did."""


class TaskTimeout(EngineError, TimeoutError):
    """A task missed its deadline."""


class StoreError(HopstreamError):
    """A store could not answer."""


class StoreTimeout(StoreError, TimeoutError):
    """A store gave no answer within its deadline."""


class StoreUnavailable(StoreError, ConnectionError):
    """No replica of a part can be reached."""


class ServerBusy(StoreUnavailable):
    """A server has no room for another connection, request or answer at the moment; retry later."""


class ChannelLost(StoreError, LookupError):
    """A sampling channel no longer exists: it was destroyed, its lease expired, or the server restarted."""


class RemoteError(StoreError, RuntimeError):
    """A server failed while answering; ``remote_traceback`` is the server's traceback, unchanged."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        """Keep the server's traceback beside the message."""
        super().__init__(message)
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        """Return the message, followed by the server's traceback."""
        message = str(self.args[0])
        return f"{message}\n--- server traceback ---\n{self.remote_traceback}" if self.remote_traceback else message


class AccessDenied(StoreError, PermissionError):
    """A server refused a token or certificate, or TLS or a token is missing where one is required."""


class VersionMismatch(StoreError, RuntimeError):
    """Client and server speak different versions of the wire protocol, or serve different datasets."""


MAX_QUOTED = 200


def quoted(value: object) -> str:
    """Quote a value for a message: its ``repr``; for a long value, its beginning and length."""
    if isinstance(value, str | bytes) and len(value) > MAX_QUOTED:
        kind = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:MAX_QUOTED]!r}… ({len(value):,} {kind})"
    text = repr(value)
    return text if len(text) <= 2 * MAX_QUOTED else f"{text[:MAX_QUOTED]}… ({len(text):,} characters)"
