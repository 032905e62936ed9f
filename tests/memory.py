"""Measure how much private memory a program and its children take."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

INTERVAL_S = 0.01


def peak_private_bytes(program: str, *arguments: str) -> int:
    """Peak of anonymous memory, in bytes, of a Python program with all of its children.

    It is sampled while the program runs. Pages of mapped files do not count: the page cache takes them back under
    pressure. Memory that processes share, such as libraries, is file-backed as well.
    """
    with subprocess.Popen([sys.executable, "-c", program, *arguments]) as process:
        root, peak = psutil.Process(process.pid), 0
        while process.poll() is None:
            peak = max(peak, sum(_private_bytes(pid) for pid in _family(root)))
            time.sleep(INTERVAL_S)
    assert process.returncode == 0
    return peak


def _family(root: psutil.Process) -> list[int]:
    try:
        return [root.pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
