"""The exceptions of Hopstream, and how their messages quote values.

Every exception is also a builtin, so ``except ValueError`` and ``except TimeoutError`` keep working in code that knows
nothing of this package.
"""

from __future__ import annotations


class HopstreamError(Exception):
    """The root of every error that this package raises on purpose."""


class SchemaError(HopstreamError, ValueError):
    """A graph, table or column is not what its schema says."""


class SettingsError(HopstreamError, ValueError):
    """A setting is outside what its stage accepts."""


class NoRoomError(SettingsError):
    """The disk or the memory has no room for the work; what was done before is kept for the next call."""


class NoDiskRoomError(NoRoomError):
    """The disk has no room for the work, which is known before it begins."""


class FormatError(HopstreamError, ValueError):
    """A file or message is missing a piece, truncated, or of a format this version does not read."""


class ChecksumError(FormatError):
    """A file's bytes do not match the checksum in its manifest."""


class UnknownNameError(HopstreamError, KeyError):
    """A node type, edge type, feature, split or part that the dataset does not have."""

    def __str__(self) -> str:
        """Show the message as it was written; ``KeyError`` would show its ``repr``."""
        return str(self.args[0]) if self.args else ""


class IdRangeError(HopstreamError, IndexError):
    """A key or id lies outside the range of its node or edge type."""


class StateError(HopstreamError, ValueError):
    """A saved state, a job, a loader, a store or a connection is used where it does not belong, or after its end."""


class MissingDependencyError(HopstreamError, ImportError):
    """An optional library is needed and not installed; the message names the extra to install."""


class EngineError(HopstreamError, RuntimeError):
    """A task failed in a way that has no class of its own here, or an engine could not run it."""


class WorkerLost(EngineError):
    """The process or machine that ran a task ended before the task did."""


class TaskTimeout(EngineError, TimeoutError):
    """A task was not done within its deadline."""


class StoreError(HopstreamError):
    """A store could not answer."""


class StoreTimeout(StoreError, TimeoutError):
    """A store gave no answer within its deadline."""


class StoreUnavailable(StoreError, ConnectionError):
    """No replica of a part can be reached."""


class ServerBusy(StoreUnavailable):
    """A server has no room for another connection, request or answer; it may have when others have ended."""


class ChannelLost(StoreError, LookupError):
    """A server has no such sampling channel: it was destroyed, its lease ran out, or the server was started again."""


class RemoteError(StoreError, RuntimeError):
    """A server failed while it answered; ``remote_traceback`` is the server's, unchanged."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        """Keep the server's traceback beside the message."""
        super().__init__(message)
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        """Show the message, then the server's traceback."""
        message = str(self.args[0])
        return f"{message}\n--- server traceback ---\n{self.remote_traceback}" if self.remote_traceback else message


class AccessDenied(StoreError, PermissionError):
    """A server refused the token or certificate, or a server was asked to listen where it must not."""


class VersionMismatch(StoreError, RuntimeError):
    """Client and server speak different versions of the wire protocol, or serve different datasets."""


MAX_QUOTED = 200


def quoted(value: object) -> str:
    """A value as messages quote it: its ``repr``, or the beginning and the length of what is long."""
    if isinstance(value, str | bytes) and len(value) > MAX_QUOTED:
        kind = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:MAX_QUOTED]!r}… ({len(value):,} {kind})"
    text = repr(value)
    return text if len(text) <= 2 * MAX_QUOTED else f"{text[:MAX_QUOTED]}… ({len(text):,} characters)"
