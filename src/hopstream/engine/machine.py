"""Reports the processors and the memory that this process may use, and measures a job's peak memory.

Control groups of both versions count, and so does the CPU affinity: a container of 4 GB on a machine of 512 GB has 4
GB. Groups are nested, and the smallest limit applies.

Memory means resident memory without file backing (``RssAnon`` and ``RssShmem`` of Linux). Pages of mapped files belong
to the page cache, which the kernel reclaims. A thread samples the sum over this process and its descendants, so workers
that have ended count too. Processes on other machines of a Ray or Beam cluster do not count.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
INTERVAL_S = 0.02
COST_SHARE = 50
"""The sampling thread sleeps this many times as long as a sample takes, because many processes make samples slow."""
OWN, FILES = ("RssAnon:", "RssShmem:"), ("RssFile:",)
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 2 << 20
"""A parameter of glibc, and the smallest arrays whose memory is returned: larger than a frame of an answer."""
MAPPED_BYTES = 128 << 20
"""Resident file pages that a process keeps, mostly of its libraries. A released page costs a page fault when it is read
again, but no disk read while it is in the page cache."""


class _Watch:
    """Sampler of memory, in a thread, while a caller is inside ``watched``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._peak = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside == 1:
                self._peak, self._stop = 0, threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name="memory watch", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        with self._lock:
            self._num_inside -= 1
            thread, self._thread = (None, self._thread) if self._num_inside else (self._thread, None)
            if thread is not None:
                self._stop.set()
        if thread is not None:
            thread.join()

    def sample(self) -> int:
        """Take a sample and return the peak so far."""
        found = own_bytes()
        with self._lock:
            if not self._num_inside:
                return found
            self._peak = max(self._peak, found)
            return self._peak

    def _run(self, stop: threading.Event) -> None:
        rest = 0.0
        while not stop.wait(rest):
            started = time.thread_time()  # excludes waiting for the GIL
            self.sample()
            let_go_of_pages()
            rest = max(INTERVAL_S, COST_SHARE * (time.thread_time() - started))


_WATCH = _Watch()


@contextmanager
def watched() -> Iterator[None]:
    """Sample the memory of this process and its descendants inside the context; contexts may be nested."""
    _WATCH.enter()
    try:
        yield
    finally:
        _WATCH.leave()


def let_go_of_pages() -> None:
    """Release the pages of mapped arrays if more than ``MAPPED_BYTES`` of files are resident."""
    arrays = sys.modules.get("hopstream.arrays")  # an idle worker has not loaded it
    if arrays is not None and _bytes_of(os.getpid(), FILES) > MAPPED_BYTES:
        arrays.release_pages()


def keep_few_pages() -> None:
    """Call ``let_go_of_pages`` in an endless loop, in a thread of a worker process."""
    while True:
        time.sleep(INTERVAL_S)
        let_go_of_pages()


def peak_bytes() -> int:
    """Return the peak memory since the outermost ``watched`` began, or the current memory outside of it."""
    return _WATCH.sample()


def own_bytes() -> int:
    """Return the current memory of this process and its descendants."""
    if not (PROC / "self/status").exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(_bytes_of(pid, OWN) for pid in _family(os.getpid()))


def _family(pid: int) -> Iterator[int]:
    """Yield the ids of a process and its descendants."""
    yield pid
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
    except OSError:  # the process has ended
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield from _family(child)


def _bytes_of(pid: int, names: tuple[str, ...]) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))


ROOT = Path("/")
LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
USED = ("memory.current", "memory.usage_in_bytes")
CACHED = ("inactive_file", "active_file", "total_inactive_file", "total_active_file")
"""Lines of ``memory.stat`` for pages of files, which the kernel reclaims.

In version 1 the lines with ``total_`` include nested groups.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processors and memory that this process may use.

    Attributes:
        num_processors: Number of processors, at least 1.
        free_bytes: Memory that can be used without pushing another process out.
    """

    num_processors: int
    free_bytes: int


def this_machine(root: Path = ROOT) -> Machine:
    """Return the current state of the machine; ``root`` is the folder that holds ``proc`` and ``sys``."""
    return Machine(num_processors=num_processors(root), free_bytes=_free_bytes(root))


def num_processors(root: Path = ROOT) -> int:
    """Return the number of usable processors, at least 1; a quota of 1.5 processors counts as 2."""
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if hasattr(os, "process_cpu_count"):  # respects -X cpu_count and PYTHON_CPU_COUNT
        counts.append(os.process_cpu_count() or 1)
    for group in _groups(root, "cpu"):
        words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and all(map(str.isdecimal, words)):  # without a quota it is "max" or -1
            quota, period = map(int, words)
            counts.append(-(-quota // max(1, period)))
    return max(1, min(counts))


def _free_bytes(root: Path) -> int:
    """Return the available memory of the machine, limited by every control group of this process."""
    left = [int(line.split()[1]) << 10 for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    left = left or [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]  # not Linux: only the total is known
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
    """Yield the folders of the control groups of this process, innermost first.

    In a container the path may be that of the host, which the container does not see. Then the mounted folder is the
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
    except OSError:  # the system, controller or limit does not exist
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def give_back_large_blocks() -> bool:
    """Let this process return memory of ``LARGE_BYTES`` and more to the system as soon as it is freed.

    Otherwise glibc keeps the gaps that arrays of many sizes leave, into which later arrays may not fit. A server with
    150 MB of arrays took 300 MB. The cost is page faults in each new array; memory pools avoid them.

    Returns:
        Whether the C library has this setting. Other libraries than glibc always return such memory, or never.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES))
