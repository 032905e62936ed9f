"""Pool of memory for large arrays.

Allocating a fresh 36 MB array costs more than filling it, because Linux maps and clears its pages one by one. So
``BufferPool`` reuses blocks of memory. It lends a block as an array; views and tensors of the array keep it alive. The
block returns to the pool when the last of them is gone.
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
from hopstream.errors import NoRoomError

SMALL_BYTES = 1 << 16
"""Smaller arrays are allocated without the pool."""
MAX_SLACK = 2
"""A block is at most this many times as large as the array it is lent for."""


class Buffers(Protocol):
    """Allocator of the arrays of batches."""

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array with undefined content and without other references."""
        ...


class BufferPool:
    """Pool of memory blocks, lent as arrays; a block returns when its array is collected. Thread-safe."""

    def __init__(self, capacity_bytes: int, limit_bytes: int | None = None) -> None:
        """Set the limits; blocks are allocated when they are needed.

        Args:
            capacity_bytes: Most bytes of idle blocks that are kept; lent blocks do not count.
            limit_bytes: Most bytes of all blocks, idle or lent; None for no limit.
        """
        self._capacity_bytes, self._limit_bytes = capacity_bytes, limit_bytes
        self._lock = threading.Lock()
        self._idle: list[NDArray[np.uint8]] = []  # the block that came back last is at the end
        self._idle_bytes = self._lent_bytes = 0
        self._lent: dict[int, weakref.ref[Array]] = {}
        self._returned: deque[tuple[int, int, NDArray[np.uint8] | None]] = deque()  # None: too large to be kept
        self._num_lent = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array with undefined content; its memory returns to the pool when the array is collected.

        Raises:
            NoRoomError: The lent blocks leave no room for it below ``limit_bytes``.
        """
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
        """Bytes of idle blocks."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    def collect(self) -> None:
        """Take in returned blocks, and free idle blocks above the capacity; ``take`` does this as well."""
        with self._lock:
            self._collect()

    def _pick(self, num_bytes: int) -> NDArray[np.uint8]:
        """Take the smallest idle block that fits, or allocate one that is an eighth larger."""
        fitting = [b for b in self._idle if num_bytes <= b.nbytes <= MAX_SLACK * num_bytes]
        if not fitting:
            size = num_bytes + num_bytes // 8
            self._make_room(size)
            return np.empty(size, np.uint8)
        block = min(fitting, key=len)
        self._lent_bytes += block.nbytes
        self._idle = [b for b in self._idle if b is not block]
        self._idle_bytes -= block.nbytes
        return block

    def _make_room(self, num_bytes: int) -> None:
        """Free idle blocks until a new block fits the limit, and count it as lent; the caller holds the lock."""
        if self._limit_bytes is not None:
            while self._idle and self._lent_bytes + self._idle_bytes + num_bytes > self._limit_bytes:
                self._idle_bytes -= self._idle.pop(0).nbytes
            if self._lent_bytes + num_bytes > self._limit_bytes:
                raise NoRoomError(
                    f"an array of {num_bytes} bytes is needed; arrays of {self._lent_bytes} bytes are in use, and "
                    f"the limit is {self._limit_bytes}"
                )
        self._lent_bytes += num_bytes

    def _lend(self, block: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        # numpy sets a view's base to the array that owns the memory. An array over a memoryview counts as the owner, so
        # it is the base of all its views and lives as long as any of them.
        loan = np.frombuffer(block.data, np.uint8, num_bytes)
        number, returned = self._num_lent, self._returned
        self._num_lent += 1
        size, kept = len(block), block if len(block) <= self._capacity_bytes else None
        # The callback runs in the thread that drops the last reference, perhaps inside take(): it must take no lock.
        self._lent[number] = weakref.ref(loan, lambda _: returned.append((number, size, kept)))
        return loan

    def _collect(self) -> None:
        """Move returned blocks to the idle ones; free the oldest above the capacity."""
        while self._returned:
            number, size, block = self._returned.popleft()
            del self._lent[number]
            self._lent_bytes -= size
            if block is not None:
                self._idle.append(block)
                self._idle_bytes += size
        while self._idle_bytes > self._capacity_bytes:
            self._idle_bytes -= self._idle.pop(0).nbytes
