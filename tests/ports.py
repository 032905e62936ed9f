"""Free ports for tests that must name a port before anything listens there.

They lie below the range of ports that the system hands out, as a server or connection of another test could get one of
those meanwhile. Each worker of a run has its own range, and no port is given twice.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

FIRST = 20_000
PER_WORKER = 1_200
NUM_WORKERS = 10
"""The last port is below 32768, where the ports begin that Linux gives; Ray's workers have those below 20000."""


def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % NUM_WORKERS
    begin = secrets.randbelow(PER_WORKER)
    for number in range(PER_WORKER):
        yield FIRST + worker * PER_WORKER + (begin + number) % PER_WORKER


_PORTS = _ports()


def _is_free(port: int) -> bool:
    """Whether no process listens at a port of this machine, at any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Free ports, consecutive unless one between them is taken."""
    return [next(filter(_is_free, _PORTS)) for _ in range(count)]
