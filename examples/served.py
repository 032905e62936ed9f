"""Servers for the parts of a dataset, for the time that an example trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hopstream

UP = [sys.executable, "-m", "hopstream.cli", "up"]
START_S, STOP_S = 240.0, 30.0  # the first start on a machine compiles kernels
FROM_SERVERS = hopstream.StoreSettings(prefer_local=False)
"""Use the servers, although the parts' files are on this machine; by default a loader would map them."""


@contextmanager
def served(parts: Path) -> Iterator[Path]:
    """Run one server per part on loopback inside the context; yield the cluster file.

    SIGTERM also ends the servers.

    Raises:
        RuntimeError: The servers did not start in time, or failed.
    """
    cluster = parts.with_name(parts.name + "-cluster.json")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*UP, str(parts), "--cluster-file", str(cluster)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment,
    ) as process:  # fmt: skip
        try:
            ends = time.monotonic() + START_S
            while not cluster.exists():
                if process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError(f"hopstream up {parts} did not start; its own words are above")
                time.sleep(0.02)
            yield cluster
        finally:
            process.terminate()
            try:
                status = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    if status:
        raise RuntimeError(f"hopstream up {parts} ended with status {status}")
