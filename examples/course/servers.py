"""Servers of the course: runs ``hopstream up`` for the time of a ``with`` block."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S, STOP_S = 240.0, 30.0  # the first start on a machine compiles kernels


@contextmanager
def up(parts: Path) -> Iterator[Path]:
    """Run one server per part; yield the cluster file, and end the servers with the block."""
    cluster = parts.with_name("cluster.json")
    words = [sys.executable, "-m", "hopstream.cli", "up", str(parts), "--cluster-file", str(cluster)]
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
