"""Worker process: runs tasks from stdin, one after the other.

    python -m hopstream.engine.worker NUM_THREADS

Each line of stdin is a task, and each line of stdout is an outcome or a heartbeat. The process ends when stdin closes,
even inside a task, so it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

BEAT_S = 1.0
READ_BYTES = 1 << 16
BEAT = json.dumps({"beat": True})
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
TERMINATED = 128 + signal.SIGTERM
FIRST_TO_GO = "500"
"""Under memory pressure the OOM killer picks a worker, whose task is retried, and not its parent."""


def main() -> None:
    """Run tasks until stdin ends."""
    num_threads = sys.argv[1] if len(sys.argv) > 1 else "1"
    for variable in THREAD_VARIABLES:  # before tasks import the libraries that read them
        os.environ.setdefault(variable, num_threads)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    tasks_in, lines_out = _own_pipes()
    send = _sender(lines_out)
    lines: SimpleQueue[str] = SimpleQueue()
    is_busy = threading.Event()
    threading.Thread(target=_watch, args=(tasks_in, lines, is_busy, send), name="stdin", daemon=True).start()

    from hopstream.engine.machine import keep_few_pages
    from hopstream.engine.tasks import run_line

    threading.Thread(target=keep_few_pages, name="pages of files", daemon=True).start()

    while True:
        line = lines.get()
        is_busy.set()
        answer = run_line(line)
        is_busy.clear()
        send(answer)


def _own_pipes() -> tuple[int, int]:
    """Duplicate stdin and stdout for this module; tasks read nothing, and their prints go to stderr."""
    pipes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipes


def _sender(descriptor: int) -> Callable[[str], None]:
    lock = threading.Lock()

    def send(line: str) -> None:
        left = memoryview(line.encode() + b"\n")
        with lock:
            while left:
                try:
                    left = left[os.write(descriptor, left) :]
                except OSError:  # the reader is gone
                    os._exit(1)

    return send


def _watch(descriptor: int, lines: SimpleQueue[str], is_busy: threading.Event, send: Callable[[str], None]) -> None:
    """Read lines from stdin, send heartbeats, and end the process with stdin or the parent.

    An idle worker sends no heartbeats, because the parent may not read its output until its next task.
    """
    parent = os.getppid()
    partial = bytearray()
    while True:
        readable, _, _ = select.select([descriptor], [], [], BEAT_S)
        if os.getppid() != parent:  # a sibling process may hold the other end of stdin open
            os._exit(1)
        if not readable:
            if is_busy.is_set():
                send(BEAT)
            continue
        data = os.read(descriptor, READ_BYTES)
        if not data:
            os._exit(0)
        *whole, rest = data.split(b"\n")
        for line in whole:
            lines.put((bytes(partial) + line).decode())
            partial.clear()
        partial += rest


def _end(number: int, frame: FrameType | None) -> None:
    """Unwind the task, so that it removes its unfinished files."""
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
