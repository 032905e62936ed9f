"""Binding: opens listening sockets at a host's port, or at a path that only this user can reach."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

from hopstream.errors import StoreUnavailable
from hopstream.transport.location import Location

BACKLOG = 512
ADDRESS_REMEDY = "give a name or address of this machine"


def listen_at(location: Location) -> socket.socket:
    """Open a non-blocking listening socket.

    Raises:
        StoreUnavailable: The address is in use or is not this machine's, or a file that is no socket has its path.
    """
    try:
        if location.path:
            return _listen_at_path(location.path)
        family, _, _, _, address = socket.getaddrinfo(
            location.host, location.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _listen(family, address)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise StoreUnavailable(f"cannot listen at {location}: {_reason(error, location)}") from error


def _listen_at_path(path: str) -> socket.socket:
    """Listen at a Unix socket that only this user can reach; a socket of a dead process is replaced."""
    if Path(path).is_socket():
        if not _is_answered(path):
            Path(path).unlink(missing_ok=True)
    elif Path(path).exists():
        raise FileExistsError("the path exists and is not a socket; choose another path")
    return _listen(socket.AF_UNIX, path)


def _listen(family: int, address: Any) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        if family == socket.AF_UNIX:
            Path(address).chmod(0o600)  # before listen(), so no client connects earlier
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
    return f"{error}; {ADDRESS_REMEDY}" if is_of_elsewhere(error) else str(error)


def is_of_elsewhere(error: Exception) -> bool:
    """Return whether listening failed because the host is unknown or its address is not this machine's."""
    is_unknown = isinstance(error, socket.gaierror | UnicodeError)
    return is_unknown or (isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL)
