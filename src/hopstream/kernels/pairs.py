"""Finds the edge that leads from one node to another.

[Algorithm] A scan of the node's row for the first edge to the neighbour. The start of every row is asked for
    ``RANGE_AHEAD`` pairs ahead.
[Cost] O(position of the edge), O(degree) where there is none; rows stream at the speed of memory.
[Not chosen] Rows sorted by neighbour, or a hash table of all edges: stored order is the order of time, and the table
    would be as large as the graph.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.draw_records import RANGE_AHEAD, Nodes, Tables
from hopstream.kernels.memory import array_at, prefetch_address


@kernel
def find_edges(tables: Tables, nodes: Nodes, neighbor_ids: np.ndarray, edge_ids: np.ndarray) -> None:
    """Find the first edge in stored order between each node and its neighbour.

    Args:
        tables: The parts.
        nodes: The nodes, with ranges of ``edge_ranges``.
        neighbor_ids: int64[n].
        edge_ids: int64[n], out: the edge's id, or -1 where there is none.
    """
    indices, edge_offsets = tables.indices, tables.edge_offsets
    parts, starts, degrees = nodes.parts, nodes.starts, nodes.degrees
    item_bytes = tables.item.itemsize
    num_ids = len(neighbor_ids)
    for i in range(num_ids + RANGE_AHEAD):
        if i < num_ids:
            prefetch_address(indices[np.int64(parts[i]), 0] + starts[i] * item_bytes)
        j = i - RANGE_AHEAD
        if j >= 0:
            part = np.int64(parts[j])
            part_indices = array_at(indices[part, 0], indices[part, 1], tables.item.dtype)
            wanted = neighbor_ids[j]
            edge_ids[j] = -1
            for position in range(starts[j], starts[j] + degrees[j]):
                if np.int64(part_indices[np.uint64(position)]) == wanted:
                    edge_ids[j] = position + edge_offsets[part]
                    break
