"""How much memory of their own do a program and its children take?"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

INTERVAL_S = 0.01


def peak_private_bytes(program: str, *arguments: str) -> int:
    """The most memory, at any time, that no file stands behind, of a Python program and all of its children.

    Pages of mapped files are the page cache's, which takes them back when it wants to; what processes share, such as
    libraries, is file-backed as well.
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
