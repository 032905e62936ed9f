"""Processes of the course: servers for a ``with`` block, and ranks that run to their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

START_S, RUN_S, STOP_S = 240.0, 240.0, 30.0  # the first start on a machine compiles kernels


@contextmanager
def up(parts: Path) -> Iterator[Path]:
    """Run one server per part; yield the cluster file, and end the servers with the block."""
    cluster = parts.with_name("cluster.json")
    words = [sys.executable, "-m", "hopstream.cli", "up", str(parts), "--cluster-file", str(cluster)]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the servers, too
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # leaves cores to the trainers
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            deadline = time.monotonic() + START_S
            while not cluster.exists():  # the command writes it when all servers are ready
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"hopstream up {parts} did not start; its messages are above")
                time.sleep(0.02)
            yield cluster
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def run_ranks(run_rank: Callable[..., None], num_ranks: int, *arguments: object) -> None:
    """Call ``run_rank(rank, *arguments)`` in one new process per rank; end all ranks if one fails."""
    context = get_context("spawn")  # the threads and connections of a loader do not survive a fork
    ranks = [context.Process(target=run_rank, args=(rank, *arguments), daemon=True) for rank in range(num_ranks)]
    try:
        for process in ranks:
            process.start()
        deadline = time.monotonic() + RUN_S
        while codes := [process.exitcode for process in ranks if process.exitcode != 0]:
            if any(codes):
                raise RuntimeError(f"a rank ended with status {max(filter(None, codes))}; its messages are above")
            if time.monotonic() > deadline:
                raise RuntimeError(f"ranks took more than {RUN_S:g} s")
            time.sleep(0.02)
    finally:
        for process in ranks:
            if process.pid is not None:  # it was started
                process.kill()
                process.join()
