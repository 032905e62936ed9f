"""States how many processors this process may use, and how much memory is free for it.

Control groups count, in both of their versions, and so does the affinity of the process: a container of 4 GB on a
machine of 512 GB has 4 GB. Groups are nested, and the smallest of their limits holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
USED = ("memory.current", "memory.usage_in_bytes")
CACHED = ("inactive_file", "active_file", "total_inactive_file", "total_active_file")
"""Lines of ``memory.stat``: pages of files, which the system takes back when it wants to; version 1 sums over nested
groups in those that begin with ``total_``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process may use.

    Attributes:
        num_processors: At least 1.
        free_bytes: Memory that can be taken without pushing another process out.
    """

    num_processors: int
    free_bytes: int


def this_machine(root: Path = ROOT) -> Machine:
    """The machine as it is now; ``root`` is the folder that holds ``proc`` and ``sys``."""
    return Machine(num_processors=num_processors(root), free_bytes=_free_bytes(root))


def num_processors(root: Path = ROOT) -> int:
    """How many processors this process may use, at least 1; a quota of 1.5 processors counts as 2."""
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if hasattr(os, "process_cpu_count"):  # what -X cpu_count and PYTHON_CPU_COUNT say
        counts.append(os.process_cpu_count() or 1)
    for group in _groups(root, "cpu"):
        words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and all(map(str.isdecimal, words)):  # no quota is "max" or -1
            quota, period = map(int, words)
            counts.append(-(-quota // max(1, period)))
    return max(1, min(counts))


def _free_bytes(root: Path) -> int:
    """Memory of the machine that is free or holds files, and no more than any control group leaves."""
    left = [int(line.split()[1]) << 10 for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    left = left or [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]  # other systems tell how much there is
    for group in _groups(root, "memory"):
        limits = [int(word) for name in LIMITS for word in _words(group / name) if word.isdecimal()]
        if limits:
            used = sum(int(word) for name in USED for word in _words(group / name))
            lines = [line.split() for line in _lines(group / "memory.stat")]
            stat = {words[0]: int(words[1]) for words in lines if len(words) == 2}
            names = CACHED[2:] if CACHED[2] in stat else CACHED[:2]
            left.append(max(0, min(limits) - max(0, used - sum(stat.get(name, 0) for name in names))))
    return min(left)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that hold this process, from its own to the outermost that it sees.

    In a container the path may be that of the host, which the container does not see; then the mounted folder is the
    container's own group.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.rstrip("\n").split(":", 2)
        mounts = ("", "unified") if not names else (controller,) if controller in names.split(",") else ()
        below = PurePosixPath(path.lstrip("/"))
        inside = (below, *below.parents) if ".." not in below.parts else (PurePosixPath(),)
        yield from (root / "sys/fs/cgroup" / mount / one for mount in mounts for one in inside)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:  # no such system, controller or limit
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
