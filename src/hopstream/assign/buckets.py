"""Groups edges by node in memory, with work that threads share piece by piece."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.kernels.adjacency import DIGIT_BITS, count_buckets, deal_ends, group_rows, take_ends

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(num_threads: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Do some work for each item; hand over results in the order of the items.

    Args:
        num_threads: How many items are worked on at once. With one, the caller's own thread works.
        work: Called once for each item, in any thread.
        items: Taken by the caller's thread; two more than there are threads are held at most.

    Raises:
        Exception: What ``work`` raised, for the first item for which it did; items not begun by then are left.
    """
    if num_threads == 1:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads, "hopstream-assign") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


CELL_BITS = 14
"""Nodes are cut into so many cells, as a power of two: their counts stay in a processor's cache."""
BUCKET_ENDS = 1 << 17
"""How many ends of edges a bucket has, unless one cell has more."""
BLOCK_EDGES = 1 << 18
"""How many edges are dealt out to buckets at once."""


class EdgeBuckets:
    """Takes edges in any order and groups them by node, in memory: see ``kernels/adjacency.py``.

    [Cost] Memory: 24 bytes per edge, 8 per node, and for each thread 8 per edge end of the largest bucket.
    """

    BYTES_PER_EDGE = 24

    def __init__(self, num_nodes: int, num_edges: int, num_threads: int = 1) -> None:
        """Get ready.

        Args:
            num_nodes: Nodes of all types, fewer than 2**32.
            num_edges: Edges of all types; more must not be added.
            num_threads: How many threads group the edges; the result does not depend on it.
        """
        self._num_nodes = num_nodes
        self._num_threads = num_threads
        self._num_taken = 0
        self._ends = np.empty((2, num_edges), np.uint32)
        self._shift = max(0, max(0, num_nodes - 1).bit_length() - CELL_BITS)
        self._counts = np.zeros((num_nodes >> self._shift) + 1, np.int64)

    def add(self, src_keys: IntArray, dst_keys: IntArray, src_first: int, dst_first: int) -> None:
        """As ``AdjacencyBuilder.add``."""
        ends = self._ends[:, self._num_taken : self._num_taken + len(src_keys)]
        self._num_taken += int(take_ends(src_keys, dst_keys, src_first, dst_first, self._shift, ends, self._counts))

    def group(self) -> tuple[IntArray, NDArray[np.uint32]]:
        """Group what was added; nothing can be added any more.

        Returns:
            indptr: int64[num_nodes + 1], where each node's neighbours stand.
            neighbors: uint32[indptr[-1]], ascending per node, each once.
        """
        starts = offsets_of(self._counts)
        cells = np.array(list(stretches(starts, BUCKET_ENDS)), np.int64).reshape(-1, 2)
        bounds = np.append(starts[cells[:, 0]], starts[-1])
        pairs = self._deal(cells, bounds)
        self._ends = np.empty((2, 0), np.uint32)
        indptr, neighbors = np.zeros(self._num_nodes + 1, np.int64), np.empty(len(pairs), np.uint32)
        degrees = indptr[1:]
        of_thread = threading.local()
        most = int(np.diff(bounds).max(initial=0))

        def group_bucket(bucket: int) -> int:
            if not hasattr(of_thread, "scratch"):
                of_thread.scratch = np.empty(most, np.uint64)
            begin, end = bounds[bucket : bucket + 2].tolist()
            first, stop = (cells[bucket] << self._shift).tolist()
            low_bits = max(1, (self._num_nodes - 1).bit_length())
            num_bits = low_bits + (stop - first - 1).bit_length()
            num_passes = -(-num_bits // DIGIT_BITS)
            digit_bits = -(-num_bits // num_passes)
            counts = np.empty((num_passes, 1 << digit_bits), np.int64)
            num_distinct = group_rows(
                pairs[begin:end], first, low_bits, digit_bits, counts, of_thread.scratch[: end - begin],
                degrees[first:], neighbors[begin:end],
            )  # fmt: skip
            return int(num_distinct)

        num_ends = 0
        for bucket, num_distinct in enumerate(in_threads(self._num_threads, group_bucket, range(len(cells)))):
            begin = int(bounds[bucket])
            neighbors[num_ends : num_ends + num_distinct] = neighbors[begin : begin + num_distinct]
            num_ends += num_distinct
        neighbors.resize(num_ends, refcheck=False)  # gives the memory of duplicates back
        return np.cumsum(indptr, out=indptr), neighbors

    def _deal(self, cells: IntArray, bounds: IntArray) -> NDArray[np.uint64]:
        """uint64[num_ends], both directions of every edge, bucket after bucket."""
        bucket_of = np.repeat(np.arange(len(cells), dtype=np.uint32), cells[:, 1] - cells[:, 0])
        pairs, cursor, lock = np.empty(2 * self._num_taken, np.uint64), bounds[:-1].copy(), threading.Lock()

        def deal_block(start: int) -> None:
            ends = self._ends[:, start : min(start + BLOCK_EDGES, self._num_taken)]
            counts = np.zeros(len(cells), np.int64)
            count_buckets(ends, self._shift, bucket_of, counts)
            with lock:
                own_cursor = cursor.copy()
                cursor[:] += counts
            deal_ends(ends, self._shift, bucket_of, own_cursor, pairs)

        for _ in in_threads(self._num_threads, deal_block, range(0, self._num_taken, BLOCK_EDGES)):
            pass
        return pairs


def stretches(indptr: IntArray, max_ends: int) -> Iterator[tuple[int, int]]:
    """Stretches of nodes that cover all, with at most so many neighbours each unless one node has more."""
    first, num_nodes = 0, len(indptr) - 1
    while first < num_nodes:
        stop = int(np.searchsorted(indptr, indptr[first] + max_ends, side="right")) - 1
        stop = min(num_nodes, max(stop, first + 1))
        yield first, stop
        first = stop
