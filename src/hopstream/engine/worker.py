"""Worker process: runs the tasks that come in, one after the other.

    python -m hopstream.engine.worker NUM_THREADS

Each line of stdin is a task and each line of stdout is what came of one, or a sign of life. The process ends when stdin
does, also in the midst of a task, so it never outlives the process that started it.
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
"""Where memory runs out the system ends a worker, whose task is tried again, and not who waits for it."""


def main() -> None:
    """Run tasks until stdin ends."""
    num_threads = sys.argv[1] if len(sys.argv) > 1 else "1"
    for variable in THREAD_VARIABLES:  # read by libraries that tasks import later
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
    """Stdin and stdout for this module alone: what a task reads is nothing, what it prints goes to stderr."""
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
                except OSError:  # nobody reads any more
                    os._exit(1)

    return send


def _watch(descriptor: int, lines: SimpleQueue[str], is_busy: threading.Event, send: Callable[[str], None]) -> None:
    """Take lines from stdin as they come, give signs of life, and end the process when stdin or its parent does.

    A worker at rest gives none: nobody may read what it says until it has a task again.
    """
    parent = os.getppid()
    partial = bytearray()
    while True:
        readable, _, _ = select.select([descriptor], [], [], BEAT_S)
        if os.getppid() != parent:  # another child of the parent may hold the other end of stdin
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
    """Leave the task, so that it removes what it had begun to write."""
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
