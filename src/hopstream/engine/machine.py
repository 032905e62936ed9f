"""States how many processors and how much memory this process may use, and measures the most that a job used.

Control groups count, in both of their versions, and so does the affinity of the process: a container of 4 GB on a
machine of 512 GB has 4 GB. Groups are nested, and the smallest of their limits holds.

Memory is resident memory that no file stands behind (``RssAnon`` and ``RssShmem`` of Linux): pages of mapped files are
the page cache's, which the system takes back when it wants to. The sum over all processes is sampled by a thread, so
workers count that have ended meanwhile. Processes of other machines, which a Ray or Beam cluster runs, do not count.
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
"""A sample of many processes takes long; the thread rests so many times longer than it worked."""
OWN, FILES = ("RssAnon:", "RssShmem:"), ("RssFile:",)
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 2 << 20
"""A parameter of glibc, and the smallest arrays that are given back: more than a frame of an answer has."""
MAPPED_BYTES = 128 << 20
"""Pages of files that a process keeps resident, mostly those of its libraries. A page that was let go of costs a page
fault when it is read again, not a read of the disk, as long as the page cache has it."""


class _Watch:
    """Samples memory in a thread as long as anybody is inside ``watched``."""

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
        """The peak so far, this moment included."""
        found = own_bytes()
        with self._lock:
            if not self._num_inside:
                return found
            self._peak = max(self._peak, found)
            return self._peak

    def _run(self, stop: threading.Event) -> None:
        rest = 0.0
        while not stop.wait(rest):
            started = time.thread_time()  # waiting for the interpreter's lock is no work
            self.sample()
            let_go_of_pages()
            rest = max(INTERVAL_S, COST_SHARE * (time.thread_time() - started))


_WATCH = _Watch()


@contextmanager
def watched() -> Iterator[None]:
    """Sample the memory of this process and of all that it starts while inside; calls may be nested."""
    _WATCH.enter()
    try:
        yield
    finally:
        _WATCH.leave()


def let_go_of_pages() -> None:
    """Let go of the pages of mapped arrays where this process has ``MAPPED_BYTES`` of files resident."""
    arrays = sys.modules.get("hopstream.arrays")  # a worker at rest does not load it
    if arrays is not None and _bytes_of(os.getpid(), FILES) > MAPPED_BYTES:
        arrays.release_pages()


def keep_few_pages() -> None:
    """Call ``let_go_of_pages`` again and again: the life of a thread of a worker process."""
    while True:
        time.sleep(INTERVAL_S)
        let_go_of_pages()


def peak_bytes() -> int:
    """The most memory since the outermost ``watched`` began, or the memory of this moment where nobody watches."""
    return _WATCH.sample()


def own_bytes() -> int:
    """The memory of this process and of all that it started, at this moment."""
    if not (PROC / "self/status").exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(_bytes_of(pid, OWN) for pid in _family(os.getpid()))


def _family(pid: int) -> Iterator[int]:
    """A process, and all that it and its children started."""
    yield pid
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
    except OSError:  # it has ended
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


def give_back_large_blocks() -> bool:
    """Have this process give memory of ``LARGE_BYTES`` and more back to the system as soon as it is freed.

    Without it glibc keeps what arrays of many sizes took and left as gaps that the next ones may not fit into: a server
    that has 150 MB of arrays was seen to take 300 MB. A fresh array costs page faults then, which pools of memory save.

    Returns:
        Whether the C library can; others than glibc do it anyway, or not at all.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES))
