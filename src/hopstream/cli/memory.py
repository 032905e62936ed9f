"""Keeps a process from taking more memory than it may."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from hopstream.errors import SettingsError

STATUS = Path("/proc/self/status")


def bound_memory(num_bytes: int) -> None:
    """Let allocations fail, as ``MemoryError``, that would take more than so many bytes beyond what is taken now.

    Memory maps of files do not count; the system drops their pages where it needs room.

    Raises:
        SettingsError: The system has no such bound, or a lower one has been set for the process.
    """
    if not sys.platform.startswith("linux"):
        raise SettingsError("--memory-bytes needs Linux; bound the memory of the container in its place")
    limit = _data_bytes() + num_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY and limit > hard:
        raise SettingsError(f"--memory-bytes {num_bytes} is above what the system allows the process (ulimit -d)")
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _data_bytes() -> int:
    """What counts towards the bound now."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
