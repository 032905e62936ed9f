"""Samples an op in one pass where all parts are mapped on this machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.kernels.neighbors import draw_neighbors
from hopstream.sample.slots import EdgeBuffer, SlotMap
from hopstream.store.contract import SampleRequest
from hopstream.store.drawing import DrawBuffers, draws_of, is_plain
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
        draws, positions = draws_of(request) if is_plain(request) else None, None
        if draws is None:
            ranges, positions = self._buffers.choose(tables, request, ranges)
        edges.reserve(ranges.total)
        first, last = edges.num_edges, edges.num_edges + ranges.total
        if positions is not None:
            edges.edge_ids[first:last] = positions
        item = tables.addresses.item
        neighbor_ids = self._reserve_neighbors(ranges.total, item.dtype if request.trees is None else INT64)
        slots = edges.slots[row, first:last]
        done, neighbors.num_nodes = draw_neighbors(
            tables.addresses, draws, ranges.nodes, neighbors.slot_table(slots), neighbor_ids, edges.edge_ids[first:last]
        )
        if done < ranges.total:
            neighbors.assign(neighbor_ids, slots, done)
        edges.num_edges = last
        return ranges.nodes.counts

    def _reserve_neighbors(self, num_edges: int, dtype: np.dtype[np.generic]) -> Array:
        if num_edges > len(self._neighbors):
            self._neighbors = np.empty(max(num_edges, 2 * len(self._neighbors)), np.int64)
        return self._neighbors.view(dtype)[:num_edges]
