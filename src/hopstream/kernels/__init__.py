"""What is done to many nodes or edges at once?

numba caches a compiled function under the time stamp of the function's own file, and does not notice a change in
another file from which it inlined something. Trainers and servers must draw alike, so no kernel may be out of date:
before any kernel is loaded, files that are older than one of the shared files take over its time stamp.
"""

import os
from contextlib import suppress
from pathlib import Path

SHARED_FILES = (
    "alias.py",
    "eligible.py",
    "examples.py",
    "filtered.py",
    "hashing.py",
    "heaviest.py",
    "labor.py",
    "memory.py",
    "neighbors.py",
    "placement.py",
    "ppr.py",
    "reals.py",
    "relabel.py",
    "smallest.py",
    "stored_weights.py",
    "weighted.py",
)
"""Files whose functions are inlined into kernels of other files."""


def renew_stamps(folder: Path) -> None:
    """Make every file of a folder of kernels at least as new as the shared ones, where it may be written."""
    newest = max((folder / name).stat().st_mtime_ns for name in SHARED_FILES)
    for path in folder.glob("*.py"):
        if path.stat().st_mtime_ns < newest:
            with suppress(OSError):
                os.utime(path, ns=(newest, newest))


renew_stamps(Path(__file__).parent)

from hopstream.kernels import compiling as compiling  # noqa: E402 - from here on kernels are loaded
