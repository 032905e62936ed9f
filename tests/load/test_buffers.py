"""Checks that memory is reused, but never while an array still holds it."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
import torch

from hopstream.buffers import SMALL_BYTES, BufferPool
from hopstream.errors import NoRoomError

SHAPE = (1000, 100)


def address(array) -> int:
    return array.ctypes.data


def test_memory_is_reused_after_the_last_reference():
    pool = BufferPool(1 << 30)
    array = pool.take(SHAPE, np.float32)
    assert array.shape == SHAPE
    assert array.dtype == np.float32
    assert array.flags.writeable
    assert array.flags.c_contiguous
    first = address(array)
    del array
    assert address(pool.take(SHAPE, np.float32)) == first


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a,
        lambda a: a[5:],
        lambda a: a[3:7].T[1:],
        lambda a: a.view(np.int32).reshape(-1)[::7],
        np.asarray,
        memoryview,
        torch.from_numpy,
        lambda a: torch.from_numpy(a)[10:].view(-1)[3:],
        lambda a: torch.from_numpy(a).t().numpy(),
        lambda a: torch.from_numpy(a).detach()[0, 0],
    ],
    ids=[
        "array",
        "slice",
        "transpose",
        "view",
        "asarray",
        "memoryview",
        "tensor",
        "tensor view",
        "round trip",
        "scalar",
    ],
)
def test_memory_is_not_reused_while_a_view_is_held(hold):
    pool = BufferPool(1 << 30)
    array = pool.take(SHAPE, np.float32)
    first = address(array)
    held = hold(array)
    del array
    assert address(pool.take(SHAPE, np.float32)) != first
    del held
    assert first in {address(a) for a in [pool.take(SHAPE, np.float32) for _ in range(2)]}


def test_blocks_are_reused_for_arrays_of_similar_size_only():
    pool = BufferPool(1 << 30)
    first = address(pool.take((100_000,), np.int64))
    assert address(pool.take((105_000,), np.int64)) == first
    assert address(pool.take((20_000,), np.int64)) != first


def test_idle_memory_is_bounded():
    pool = BufferPool(3 * SMALL_BYTES)
    held = [pool.take((SMALL_BYTES,), np.uint8) for _ in range(10)]
    assert pool.idle_bytes == 0
    held.clear()
    assert 0 < pool.idle_bytes <= 3 * SMALL_BYTES


def test_a_block_above_the_capacity_is_freed_at_once() -> None:
    pool = BufferPool(capacity_bytes=SMALL_BYTES)
    tracemalloc.start()
    held = pool.take((100 * SMALL_BYTES,), np.uint8)
    before = tracemalloc.get_traced_memory()[0]
    del held
    assert before - tracemalloc.get_traced_memory()[0] > 99 * SMALL_BYTES
    tracemalloc.stop()
    assert pool.idle_bytes == 0


def test_collect_frees_returned_memory():
    pool = BufferPool(capacity_bytes=4 * SHAPE[0] * SHAPE[1])
    held = [pool.take(SHAPE, np.float64) for _ in range(4)]
    held.clear()
    assert len(pool._returned) == 4
    pool.collect()
    assert len(pool._returned) == 0 and pool.idle_bytes <= 4 * SHAPE[0] * SHAPE[1]


def test_memory_stays_flat_over_many_batches():
    pool = BufferPool(1 << 30)
    addresses = set()
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch = [pool.take((int(rng.integers(9_000, 10_000)), 10), np.float64) for _ in range(3)]
        addresses |= {address(a) for a in batch}
    assert len(addresses) <= 6  # at most three of this batch while the three before are still held


def test_small_arrays_and_empty_arrays_are_not_pooled():
    pool = BufferPool(1 << 30)
    assert pool.take((0, 7), np.float32).shape == (0, 7)
    small = pool.take((3,), np.int64)
    del small
    assert pool.idle_bytes == 0


def test_threads_never_share_memory():
    pool = BufferPool(1 << 30)
    failures = []

    def work(number: int) -> None:
        for turn in range(300):
            array = pool.take((SMALL_BYTES,), np.uint8)
            mark = (number * 50 + turn) % 251
            array[:] = mark
            kept = array[::1000]
            del array
            if not np.all(kept == mark):
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_arrays_outlive_their_pool():
    pool = BufferPool(1 << 30)
    array = pool.take(SHAPE, np.float32)
    array[:] = 7
    del pool
    assert np.all(array == 7)


class TestLimit:
    """Blocks are an eighth larger than requested: 36 units hold four blocks of eight units."""

    unit = SMALL_BYTES
    limit = 36 * SMALL_BYTES

    def take(self, pool: BufferPool, units: int = 8) -> np.ndarray:
        return pool.take((units * self.unit,), np.uint8)

    def test_lent_bytes_stay_within_the_limit(self):
        pool = BufferPool(1 << 30, self.limit)
        held = [self.take(pool) for _ in range(4)]
        with pytest.raises(
            NoRoomError, match=rf"{9 * self.unit} bytes is needed; .*{self.limit} bytes are in use, and"
        ):
            self.take(pool)
        held.pop()
        assert len(self.take(pool)) == 8 * self.unit

    def test_a_refused_request_takes_no_memory(self):
        pool = BufferPool(1 << 30, self.limit)
        for _ in range(3):
            with pytest.raises(NoRoomError):
                self.take(pool, 33)
        assert pool._lent_bytes == 0
        assert len(self.take(pool, 32)) == 32 * self.unit

    def test_idle_blocks_are_freed_for_new_requests(self):
        pool = BufferPool(1 << 30, self.limit)
        held = [self.take(pool) for _ in range(3)]
        held.clear()
        assert pool.idle_bytes == 27 * self.unit
        large = self.take(pool, 24)  # 27 units, which fit beside one of the idle blocks
        assert len(large) == 24 * self.unit
        assert pool.idle_bytes == 9 * self.unit
        assert pool._lent_bytes + pool.idle_bytes <= self.limit

    def test_a_block_that_is_lent_again_counts_as_a_whole(self):
        pool = BufferPool(1 << 30, self.limit)
        first = self.take(pool, 16)
        del first
        again = self.take(pool, 9)
        assert pool._lent_bytes == 18 * self.unit
        with pytest.raises(NoRoomError):
            self.take(pool, 17)
        del again
        assert pool.idle_bytes == 18 * self.unit and pool._lent_bytes == 0

    def test_small_arrays_are_exempt_from_the_limit(self):
        pool = BufferPool(1 << 30, self.limit)
        held = [self.take(pool) for _ in range(4)]
        assert len(pool.take((10,), np.uint8)) == 10
        assert len(held) == 4
