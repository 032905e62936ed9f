"""Samples an op in one pass where all parts are mapped on this machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.kernels.fused import draw_and_relabel
from hopstream.sample.slots import EdgeBuffer, SlotMap
from hopstream.store.contract import SampleRequest
from hopstream.store.drawing import DrawBuffers, is_plain, replaces, trees_of
from hopstream.store.local import LocalStore
from hopstream.store.strategies import check_strategy

INT64 = np.dtype(np.int64)


class FusedSampler:
    """Draws and relabels in one pass over a local store, with the same result as its ``sample`` and a relabelling."""

    def __init__(self, store: LocalStore) -> None:
        """Use a store that holds all parts. One thread uses one sampler."""
        self._store = store
        self._buffers = DrawBuffers()
        self._neighbors: IntArray = np.empty(0, np.int64)

    def sample(self, request: SampleRequest, neighbors: SlotMap, edges: EdgeBuffer, row: int) -> NDArray[np.int32]:
        """Draw neighbours, add them to a slot map and their slots and edge ids to an edge buffer.

        Args:
            request: What to draw; ids are checked.
            neighbors: Slots of the neighbours' type; with trees, of pairs ``tree << TREE_SHIFT | id``.
            edges: Buffer of the edge type; the frontier's own slots are left to the caller.
            row: Which row of ``edges.slots`` the neighbours are: 0 sources, 1 destinations.

        Returns:
            int32[n], neighbours drawn for each id, valid until the next call.
        """
        tables = self._store.tables(request.edge_type, request.direction)
        check_strategy(self._store, request)
        ids = tables.newest(self._store.check_ids(tables.node_type, request.ids))
        ranges = self._buffers.find_ranges(tables, request, ids)
        is_drawn = not is_plain(request)
        if is_drawn:
            ranges, positions = self._buffers.choose(tables, request, ids, ranges)
        edges.reserve(ranges.total)
        first, last = edges.num_edges, edges.num_edges + ranges.total
        if is_drawn:
            edges.edge_ids[first:last] = positions
        neighbor_ids = self._reserve_neighbors(ranges.total, tables.item.dtype if request.trees is None else INT64)
        slots = edges.slots[row, first:last]
        done, neighbors.num_nodes = draw_and_relabel(
            ids, trees_of(request), tables.offsets, tables.keys, tables.indices, np.uint64(request.rng_seed),
            replaces(request), is_drawn, ranges.parts, ranges.starts, ranges.degrees, ranges.counts,
            tables.edge_offsets, tables.item, neighbor_ids, edges.edge_ids[first:last], neighbors.table,
            neighbors.shift, neighbors.generation, neighbors.node_ids, neighbors.num_nodes, slots,
        )  # fmt: skip
        if done < ranges.total:
            neighbors.assign(neighbor_ids, slots, done)
        edges.num_edges = last
        return ranges.counts

    def _reserve_neighbors(self, num_edges: int, dtype: np.dtype[np.generic]) -> Array:
        if num_edges > len(self._neighbors):
            self._neighbors = np.empty(max(num_edges, 2 * len(self._neighbors)), np.int64)
        return self._neighbors.view(dtype)[:num_edges]
