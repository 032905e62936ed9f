"""Undirected graph that METIS, KaMinPar and the streaming methods read, grouped by node.

The node types are laid out one after the other. Every edge is stored in both directions, without self loops and
duplicates, and grouped by node. If the edges fit into the given memory, they are grouped there. Otherwise they are
sorted externally, one range of nodes at a time, into an unlinked temporary file.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.errors import SettingsError
from hopstream.kernels.adjacency import DIGIT_BITS, count_buckets, deal_ends, group_rows, take_ends
from hopstream.kernels.placement import count_keys

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(num_threads: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply a function to each item in threads, and yield the results in the order of the items.

    Args:
        num_threads: Number of threads. With one, the caller's own thread does the work.
        work: Called once for each item, in any thread.
        items: Iterated in the caller's thread, at most two items more than there are threads ahead of the results.

    Raises:
        Exception: The error that ``work`` raised for the first failing item. Items that have not started are cancelled.
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
"""Nodes are cut into 2**14 cells at most, so that the counts of all cells stay in a processor's cache."""
BUCKET_ENDS = 1 << 17
"""Edge ends per bucket, unless one cell has more."""
BLOCK_EDGES = 1 << 18
"""Edges that one call distributes to buckets."""


class EdgeBuckets:
    """Grouping of edges by node in memory; see ``kernels/adjacency.py``. Edges may come in any order.

    [Cost] Memory: 24 bytes per edge, 8 per node, and for each thread 8 per edge end of the largest bucket.
    """

    BYTES_PER_EDGE = 24

    def __init__(self, num_nodes: int, num_edges: int, num_threads: int = 1) -> None:
        """Allocate the arrays.

        Args:
            num_nodes: Nodes of all types, fewer than 2**32.
            num_edges: Edges of all types, the most that may be added.
            num_threads: Number of threads that group the edges. The result does not depend on it.
        """
        self._num_nodes = num_nodes
        self._num_threads = num_threads
        self._num_taken = 0
        self._ends = np.empty((2, num_edges), np.uint32)
        self._shift = max(0, max(0, num_nodes - 1).bit_length() - CELL_BITS)
        self._counts = np.zeros((num_nodes >> self._shift) + 1, np.int64)

    def add(self, src_keys: IntArray, dst_keys: IntArray, src_first: int, dst_first: int) -> None:
        """Add edges; arguments as of ``AdjacencyBuilder.add``."""
        ends = self._ends[:, self._num_taken : self._num_taken + len(src_keys)]
        self._num_taken += int(take_ends(src_keys, dst_keys, src_first, dst_first, self._shift, ends, self._counts))

    def group(self) -> tuple[IntArray, NDArray[np.uint32]]:
        """Group the added edges. No edge can be added afterwards.

        Returns:
            indptr: int64[num_nodes + 1], the offset of each node's neighbours.
            neighbors: uint32[indptr[-1]], ascending per node, without duplicates.
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
        neighbors.resize(num_ends, refcheck=False)  # returns the memory of duplicates
        return np.cumsum(indptr, out=indptr), neighbors

    def _deal(self, cells: IntArray, bounds: IntArray) -> NDArray[np.uint64]:
        """Return uint64[num_ends], both directions of every edge, bucket after bucket."""
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
    """Split all nodes into ranges of at most ``max_ends`` neighbours, or of one node that has more."""
    first, num_nodes = 0, len(indptr) - 1
    while first < num_nodes:
        stop = int(np.searchsorted(indptr, indptr[first] + max_ends, side="right")) - 1
        stop = min(num_nodes, max(stop, first + 1))
        yield first, stop
        first = stop


CHUNK_ENDS = 1 << 22
"""Neighbours per block, unless one node has more."""
PAIR_BYTES = 8
LOW_BITS = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

Pairs = np.ndarray[tuple[int], np.dtype[np.uint64]]
"""Edges in one direction, each as ``position << 32 | neighbour``."""


class SymmetricGraph:
    """Symmetric graph without self loops and duplicates, in memory or in a file.

    Attributes:
        indptr: int64[num_nodes + 1], the offset of each node's neighbours in the neighbours of all nodes.
    """

    def __init__(
        self, indptr: IntArray, neighbors: NDArray[np.uint32] | IO[bytes], *, max_ends: int | None = None
    ) -> None:
        """Take the result of a builder.

        ``close`` closes a file. ``max_ends`` is the number of neighbours that ``blocks`` yields at a time.
        """
        self.indptr = indptr
        self._max_ends = max_ends
        self._neighbors = neighbors

    @classmethod
    def empty(cls, num_nodes: int) -> SymmetricGraph:
        """Make a graph without edges."""
        return cls(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.uint32))

    @property
    def num_ends(self) -> int:
        """Total number of neighbours of all nodes."""
        return int(self.indptr[-1])

    def connected(self) -> IntArray:
        """Return int64[num_connected], the positions of nodes with neighbours."""
        return np.flatnonzero(self.indptr[1:] != self.indptr[:-1])

    def blocks(self, max_ends: int | None = None) -> Iterator[tuple[int, int, NDArray[np.uint32]]]:
        """Yield ranges of nodes in order, as ``(first, stop, neighbours)``; neighbours ascend per node.

        Args:
            max_ends: Most neighbours per range, unless one node has more; None for the graph's own default.
        """
        for first, stop in stretches(self.indptr, max_ends or self._max_ends or CHUNK_ENDS):
            begin, end = int(self.indptr[first]), int(self.indptr[stop])
            if isinstance(self._neighbors, np.ndarray):
                yield first, stop, self._neighbors[begin:end]
            else:
                self._neighbors.seek(begin * 4)
                yield first, stop, np.fromfile(self._neighbors, np.uint32, end - begin)

    def close(self) -> None:
        """Release the memory or the file."""
        if not isinstance(self._neighbors, np.ndarray):
            self._neighbors.close()
        self._neighbors = np.empty(0, np.uint32)

    def __enter__(self) -> SymmetricGraph:
        """Return the graph."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the graph."""
        self.close()


def type_offsets(num_nodes: Mapping[str, int]) -> dict[str, int]:
    """Map node types to the positions of their first nodes in the layout of all types."""
    offsets = offsets_of(np.array(list(num_nodes.values()), np.int64))
    return dict(zip(num_nodes, offsets.tolist(), strict=False))


class AdjacencyBuilder:
    """Grouping of edges by node, in memory or in files. Edges may come in any order.

    [Algorithm] If ``EdgeBuckets`` fit into the memory, the builder uses them. Otherwise it sorts externally. It writes
        sorted runs of a quarter of the memory to a file. Then it takes ranges of nodes whose edges fill a quarter of
        the memory, reads each range from every run, sorts it, and appends it to the file of neighbours.
    [Cost] Memory in addition to ``memory_bytes``: 24 bytes per node, and 16 per edge of the node with the most edges.
        Disk: 24 bytes per edge.
    """

    def __init__(
        self, num_nodes: int, num_edges: int, *, memory_bytes: int, num_threads: int = 1, scratch: Path | None = None
    ) -> None:
        """Allocate buffers, and a temporary file if the edges do not fit into memory.

        Args:
            num_nodes: Nodes of all types.
            num_edges: Edges of all types, the most that may be added.
            memory_bytes: Most memory for edges.
            num_threads: Number of threads that group edges in memory.
            scratch: Folder on whose disk temporary files are made; None for the system's temporary folder.

        Raises:
            SettingsError: The graph has 2**32 nodes or more.
        """
        if num_nodes >= 1 << 32:
            raise SettingsError(f"this method supports fewer than 2**32 nodes, got {num_nodes}; use hash")
        self._num_nodes = num_nodes
        self._scratch = scratch
        self._files = ExitStack()
        self._buckets: EdgeBuckets | None = None
        if num_edges * EdgeBuckets.BYTES_PER_EDGE <= memory_bytes:
            self._buckets = EdgeBuckets(num_nodes, num_edges, num_threads)
            return
        self._starts = np.zeros(num_nodes + 1, np.int64)
        self._degrees = self._starts[1:]
        self._end = 0
        self._capacity = max(1, memory_bytes // (4 * PAIR_BYTES))
        self._pairs: Pairs = np.empty(self._capacity, np.uint64)
        self._runs: list[tuple[int, int]] = []
        self._spill = self._temporary_file()

    def add(self, src_keys: IntArray, dst_keys: IntArray, src_first: int = 0, dst_first: int = 0) -> None:
        """Add edges, by the keys of their ends and the positions of the first nodes of their types."""
        if self._buckets is not None:
            self._buckets.add(src_keys, dst_keys, src_first, dst_first)
            return
        src, dst = src_keys + src_first, dst_keys + dst_first
        is_proper = src != dst
        if not is_proper.all():
            src, dst = src[is_proper], dst[is_proper]
        count_keys(src, self._degrees)
        count_keys(dst, self._degrees)
        step = max(1, self._capacity // 2)
        for start in range(0, len(src), step):
            self._add_pairs(src[start : start + step].astype(np.uint64), dst[start : start + step].astype(np.uint64))

    def _add_pairs(self, src: Pairs, dst: Pairs) -> None:
        if self._end + 2 * len(src) > self._capacity:
            self._spill_run()
        self._capacity = max(self._capacity, 2 * len(src))
        if len(self._pairs) < self._capacity:
            self._pairs = np.empty(self._capacity, np.uint64)
        middle, end = self._end + len(src), self._end + 2 * len(src)
        np.bitwise_or(src << HALF, dst, out=self._pairs[self._end : middle])
        np.bitwise_or(dst << HALF, src, out=self._pairs[middle:end])
        self._end = end

    def finish(self) -> SymmetricGraph:
        """Return the graph. No edge can be added afterwards."""
        if self._buckets is not None:
            grouped, self._buckets = self._buckets.group(), None
            return SymmetricGraph(*grouped)
        indptr = np.zeros(self._num_nodes + 1, np.int64)
        self._spill_run()
        capacity, self._pairs = self._capacity, np.empty(0, np.uint64)
        out = self._temporary_file()
        starts = np.cumsum(self._starts, out=self._starts)
        del self._starts, self._degrees
        for first, stop in stretches(starts, capacity):
            pairs = _distinct_pairs(self._cut_out(first, stop, int(starts[stop] - starts[first])))
            bounds = np.arange(first, stop + 1, dtype=np.uint64) << HALF
            indptr[first + 1 : stop + 1] = indptr[first] + np.searchsorted(pairs, bounds)[1:]
            out.write((pairs & LOW_BITS).astype(np.uint32).data)
        self._spill.close()
        out.flush()
        self._files.pop_all()  # the result owns the files that are still open
        return SymmetricGraph(indptr, out, max_ends=min(CHUNK_ENDS, capacity))

    def close(self) -> None:
        """Close the temporary files if the graph was not finished."""
        self._files.close()

    def __enter__(self) -> AdjacencyBuilder:
        """Return the builder."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the builder."""
        self.close()

    def _temporary_file(self) -> IO[bytes]:
        return self._files.enter_context(tempfile.TemporaryFile(dir=self._scratch))

    def _spill_run(self) -> None:
        """Sort the buffered pairs and write them to the file as a run."""
        run = self._pairs[: self._end]
        run.sort()
        begin = self._runs[-1][1] if self._runs else 0
        self._spill.write(run.data)
        self._runs.append((begin, begin + len(run)))
        self._spill.flush()
        self._end = 0

    def _cut_out(self, first: int, stop: int, num_pairs: int) -> Pairs:
        """Read the pairs of a range of nodes from all runs."""
        pairs = np.empty(num_pairs, np.uint64)
        end = 0
        for begin, run_end in self._runs:
            if begin == run_end:
                continue
            run = np.memmap(self._spill, np.uint64, "r", offset=begin * PAIR_BYTES, shape=(run_end - begin,))
            low, high = np.searchsorted(run, np.array([first << 32, stop << 32], np.uint64)).tolist()
            del run
            self._spill.seek((begin + low) * PAIR_BYTES)
            pairs[end : end + high - low] = np.fromfile(self._spill, np.uint64, high - low)
            end += high - low
        return pairs


def _distinct_pairs(pairs: Pairs) -> Pairs:
    """Return the distinct values, ascending. Sorts in place; the result is the beginning of the array."""
    pairs.sort()
    end = 0
    previous = np.uint64(np.iinfo(np.uint64).max)  # greater than any pair of two nodes below 2**32 - 1
    for start in range(0, len(pairs), CHUNK_ENDS):
        block = pairs[start : start + CHUNK_ENDS]
        is_first = np.empty(len(block), np.bool_)
        is_first[0] = block[0] != previous
        np.not_equal(block[1:], block[:-1], out=is_first[1:])
        previous = block[-1]
        distinct = block[is_first]
        pairs[end : end + len(distinct)] = distinct
        end += len(distinct)
    return pairs[:end]
