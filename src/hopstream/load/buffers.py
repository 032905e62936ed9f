"""Memory of past batches that new batches use, once nobody holds the old ones.

A fresh 36 MB array costs more than filling it, because the system maps and clears its pages one by one. So blocks of
memory go round: a block is lent as an array, everything made of that array (views, tensors) keeps the array alive, and
when the last of them is gone the block comes back.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopstream.arrays import Array

SMALL_BYTES = 1 << 16
"""Arrays below this size are not worth a block."""
MAX_SLACK = 2
"""A block is lent for arrays of no less than this fraction of its size."""


class Buffers(Protocol):
    """Where the arrays of a batch come from."""

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array whose content is undefined and which nobody else holds."""
        ...


class BufferPool:
    """Blocks of memory that come back when nobody holds an array made of them. Safe to use from many threads."""

    def __init__(self, capacity_bytes: int) -> None:
        """Keep at most ``capacity_bytes`` of idle blocks; blocks that are lent do not count."""
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._idle: list[NDArray[np.uint8]] = []  # the block that came back last is at the end
        self._idle_bytes = 0
        self._lent: dict[int, weakref.ref[Array]] = {}
        self._returned: deque[tuple[int, NDArray[np.uint8]]] = deque()
        self._num_lent = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array whose content is undefined; its memory comes back to the pool when nobody holds it any more."""
        dtype = np.dtype(dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            self._collect()
            block = self._pick(num_bytes)
            return self._lend(block, num_bytes).view(dtype).reshape(shape)

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait for the next batch."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    def _pick(self, num_bytes: int) -> NDArray[np.uint8]:
        """The smallest idle block that fits, or a new one with room for a somewhat larger batch."""
        fitting = [b for b in self._idle if num_bytes <= b.nbytes <= MAX_SLACK * num_bytes]
        if not fitting:
            return np.empty(num_bytes + num_bytes // 8, np.uint8)
        block = min(fitting, key=len)
        self._idle = [b for b in self._idle if b is not block]
        self._idle_bytes -= block.nbytes
        return block

    def _lend(self, block: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        # numpy makes a view's base the array that owns the memory, except across types: an array over a memoryview is
        # the base of every view of it, so its end is the end of all of them.
        loan = np.frombuffer(block.data, np.uint8, num_bytes)
        number, returned = self._num_lent, self._returned
        self._num_lent += 1
        # The callback runs in whichever thread lets go of the array, perhaps inside take(): it takes no lock.
        self._lent[number] = weakref.ref(loan, lambda _: returned.append((number, block)))
        return loan

    def _collect(self) -> None:
        """Move the blocks that came back to the idle ones; forget the oldest where they are too many."""
        while self._returned:
            number, block = self._returned.popleft()
            del self._lent[number]
            self._idle.append(block)
            self._idle_bytes += block.nbytes
        while self._idle_bytes > self._capacity_bytes:
            self._idle_bytes -= self._idle.pop(0).nbytes
