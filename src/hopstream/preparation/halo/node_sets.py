"""Sets of nodes as bitmaps, read in order in stretches, and tables of a number per node in temporary files."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.kernels.halo import count_marks, list_marks, mark_range

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


CHUNK_ROWS = 1 << 18
"""Nodes that are looked at, or whose rows of one width are copied, at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSet:
    """Nodes of one type.

    Attributes:
        marks: uint64[ceil(num_nodes / 64)], a bit per node, by id.
    """

    marks: NDArray[np.uint64]

    @classmethod
    def empty(cls, num_nodes: int) -> NodeSet:
        """None of so many nodes."""
        return cls(np.zeros(-(-num_nodes // 64), np.uint64))

    @classmethod
    def of_range(cls, num_nodes: int, first: int, stop: int) -> NodeSet:
        """Of so many nodes those with ids ``[first, stop)``."""
        found = cls.empty(num_nodes)
        mark_range(found.marks, first, stop)
        return found

    def __len__(self) -> int:
        """How many nodes there are in it."""
        return int(count_marks(self.marks))

    def chunks(self) -> Iterator[IntArray]:
        """Their ids, ascending, in stretches."""
        word = 0
        while word < len(self.marks):
            ids = np.empty(CHUNK_ROWS, np.int64)
            word, count = list_marks(self.marks, word, ids)
            if count:
                yield ids[:count]

    def ids(self) -> IntArray:
        """int64[n], all of them, ascending."""
        return np.concatenate([np.empty(0, np.int64), *self.chunks()])


def chunks_of(nodes: NodeSet | IntArray) -> Iterator[IntArray]:
    """Stretches of ids."""
    if isinstance(nodes, NodeSet):
        yield from nodes.chunks()
        return
    for start in range(0, len(nodes), CHUNK_ROWS):
        yield nodes[start : start + CHUNK_ROWS]
