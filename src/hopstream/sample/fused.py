"""How is an op sampled where all parts are mapped on this machine?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.kernels.fused import draw_and_relabel
from hopstream.kernels.neighbors import edge_ranges
from hopstream.partition.book import owner_label
from hopstream.sample.slots import EdgeBuffer, SlotMap
from hopstream.store.contract import SampleRequest
from hopstream.store.local import LocalStore, check_range


class FusedSampler:
    """Draws and relabels in one pass over a local store, with the same result as its ``sample`` and a relabelling."""

    def __init__(self, store: LocalStore) -> None:
        """Use a store that holds all parts. One thread uses one sampler."""
        self._store = store
        self._parts: NDArray[np.int32] = np.empty(0, np.int32)
        self._counts: NDArray[np.int32] = np.empty(0, np.int32)
        self._ranges: IntArray = np.empty((2, 0), np.int64)
        self._neighbor_ids: Array = np.empty(0, np.uint32)

    def sample(self, request: SampleRequest, neighbors: SlotMap, edges: EdgeBuffer, row: int) -> NDArray[np.int32]:
        """Draw neighbours, add them to a slot map and their slots and edge ids to an edge buffer.

        Args:
            request: What to draw; ids are checked.
            neighbors: Slots of the neighbours' type.
            edges: Buffer of the edge type; the frontier's own slots are left to the caller.
            row: Which row of ``edges.slots`` the neighbours are: 0 sources, 1 destinations.

        Returns:
            int32[n], neighbours drawn for each id, valid until the next call.
        """
        tables = self._store.tables(request.edge_type, request.direction)
        ids = self._store.check_ids(tables.node_type, request.ids)
        num_ids = len(ids)
        self._reserve_ids(num_ids)
        parts, counts = self._parts[:num_ids], self._counts[:num_ids]
        starts, degrees = self._ranges[0, :num_ids], self._ranges[1, :num_ids]
        total = edge_ranges(
            ids,
            tables.offsets,
            tables.indptrs,
            tables.indices,
            request.count,
            request.is_replacing,
            parts,
            starts,
            degrees,
            counts,
        )
        check_range(total, ids, owner_label((request.edge_type, request.direction)))
        edges.reserve(total)
        first, last = edges.num_edges, edges.num_edges + total
        neighbor_ids = self._reserve_neighbors(total, tables.indices_dtype)
        slots = edges.slots[row, first:last]
        done, neighbors.num_nodes = draw_and_relabel(
            ids, tables.offsets, tables.keys, tables.indices, np.uint64(request.rng_seed),
            request.is_replacing and request.count >= 0, parts, starts, degrees, counts, tables.edge_offsets,
            neighbor_ids, edges.edge_ids[first:last], neighbors.table, neighbors.shift, neighbors.generation,
            neighbors.node_ids, neighbors.num_nodes, slots,
        )  # fmt: skip
        if done < total:
            neighbors.assign(neighbor_ids, slots, done)
        edges.num_edges = last
        return counts

    def _reserve_ids(self, num_ids: int) -> None:
        if num_ids > len(self._parts):
            capacity = max(num_ids, 2 * len(self._parts))
            self._parts, self._counts = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
            self._ranges = np.empty((2, capacity), np.int64)

    def _reserve_neighbors(self, num_edges: int, dtype: np.dtype[np.generic]) -> Array:
        if num_edges > len(self._neighbor_ids) or self._neighbor_ids.dtype != dtype:
            self._neighbor_ids = np.empty(max(num_edges, 2 * len(self._neighbor_ids)), dtype)
        return self._neighbor_ids[:num_edges]
