"""Sockets that listen: at a host's port, or at a path that this user alone can reach."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path

from hopstream.errors import StoreUnavailable
from hopstream.transport.location import Location

BACKLOG = 512


def listen_at(location: Location) -> socket.socket:
    """A socket that listens without waiting."""
    try:
        if location.path:
            return _listen_at_path(location.path)
        family, kind, protocol, _, address = socket.getaddrinfo(
            location.host, location.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(BACKLOG)
            found.setblocking(False)
        except BaseException:
            found.close()
            raise
        return found
    except StoreUnavailable:
        raise
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise StoreUnavailable(f"cannot listen at {location}: {_reason(error, location)}") from error


def _listen_at_path(path: str) -> socket.socket:
    """Listen at a Unix socket that this user alone can reach; one that was left by a dead process is replaced."""
    with suppress(FileNotFoundError):
        if not Path(path).is_socket() and Path(path).exists():
            raise StoreUnavailable(f"cannot listen at unix://{path}: it is there and is no socket; choose another path")
        if Path(path).is_socket() and not _is_answered(path):
            Path(path).unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
        Path(path).chmod(0o600)  # nobody can connect before it listens
        found.listen(BACKLOG)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


def _reason(error: Exception, location: Location) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        if location.path:
            return "another server listens there; choose another path"
        return f"port {location.port} is in use; choose another, or port 0 to let the system choose"
    return str(error)
