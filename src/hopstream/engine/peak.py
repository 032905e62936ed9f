"""Measures the most memory that this process and all that it started have had at the same time.

Memory is resident memory that no file stands behind (``RssAnon`` and ``RssShmem`` of Linux): pages of mapped files are
the page cache's, which the system takes back when it wants to. The sum over all processes is sampled by a thread, so
workers count that have ended meanwhile. Processes of other machines, which a Ray or Beam cluster runs, do not count.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROC = Path("/proc")
INTERVAL_S = 0.02
COST_SHARE = 50
"""A sample of many processes takes long; the thread rests so many times longer than it worked."""
OWN, FILES = ("RssAnon:", "RssShmem:"), ("RssFile:",)
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
