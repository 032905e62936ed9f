"""Where are numbers of every node of the graph kept while halos are made?"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Chances = NDArray[np.float64]


class Tables:
    """Makes arrays with a number for each node: in memory as long as they fit, then in files.

    Such a file has no name, so nothing is left of it however the process ends, and its pages are the system's, which
    takes them back when it wants to.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        """Keep files on the disk of a folder."""
        self._folder, self._left = folder, memory_bytes

    def new(self, num_nodes: int) -> Chances:
        """float64[num_nodes], zeros.

        Raises:
            OSError: The disk has no room.
        """
        num_bytes = num_nodes * 8
        if num_bytes <= self._left:
            self._left -= num_bytes
            return np.zeros(num_nodes)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            # Reserved, because a disk that is full when a mapped page is written ends the process.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return np.frombuffer(mmap.mmap(file.fileno(), num_bytes), np.float64)
