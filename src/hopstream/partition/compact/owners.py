"""Which part gets each node of a dataset when what was appended is folded in?

[Algorithm] Nodes that were there keep their parts. Of the bytes of new nodes each part gets what it lacks of an even
    share of all bytes, as a stretch of their keys, in the order of parts. A node's bytes are those of its row and its
    edges.
[Cost] 4 bytes per node for its part, and 16 more per new node of one type.
[Not chosen] To cut by edges again: that moves old nodes too, and is what ``reshard`` is for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.partition.book import Owner, ends_of
from hopstream.partition.reshard.rows import DatasetRows, owners_of

BLOCK_KEYS = 1 << 20
ROW_BYTES, EDGE_BYTES = 24, 16
"""What a node and an edge take beside their features, roughly: keys, offsets, ids."""


def kept_owners(rows: DatasetRows) -> dict[str, NDArray[np.int32]]:
    """Node type to int32[num_nodes], the part of each node by key, among the parts that were written first."""
    book = rows.book
    new_bytes = {t: _new_bytes(rows, t) for t in rows.contents.schema.nodes}
    loads = _loads(rows)[: book.num_base_parts]
    even = (loads.sum() + sum(float(of.sum()) for of in new_bytes.values())) / book.num_base_parts
    lacking = np.maximum(even - loads, 0)
    # No part lacks anything where nothing is new, or where all of it is empty.
    shares = lacking / lacking.sum() if lacking.sum() > 0 else np.full(len(loads), 1 / len(loads))
    bounds = np.cumsum(shares)[:-1]
    return {t: np.concatenate([_old_parts(rows, t), _shared_out(new_bytes[t], bounds)]) for t in new_bytes}


def _old_parts(rows: DatasetRows, node_type: str) -> NDArray[np.int32]:
    """int32[n], the parts of the nodes that were written first."""
    offsets = rows.book.node_offsets[node_type]
    parts = np.empty(int(offsets[rows.book.num_base_parts]), np.int32)
    for first in range(0, len(parts), BLOCK_KEYS):
        stop = min(first + BLOCK_KEYS, len(parts))
        parts[first:stop] = rows.book.parts_of(node_type, rows.ids_of_keys(node_type, first, stop))
    return parts


def _shared_out(num_bytes: NDArray[np.float64], bounds: NDArray[np.float64]) -> NDArray[np.int32]:
    """int32[n], the part of each of some nodes; ``bounds`` are the shares up to each part but the last."""
    ends = np.cumsum(num_bytes)
    middles = (ends - num_bytes / 2) / max(1.0, float(num_bytes.sum()))
    return np.searchsorted(bounds, middles, side="right").astype(np.int32)


def _new_bytes(rows: DatasetRows, node_type: str) -> NDArray[np.float64]:
    """float64[n], the bytes of each appended node of a type, in the order of keys."""
    book = rows.book
    offsets = book.node_offsets[node_type]
    first_id = int(offsets[book.num_base_parts])
    num_bytes = np.full(int(offsets[-1]) - first_id, _item_bytes(rows, node_type))
    for owner in owners_of(rows.contents):
        if isinstance(owner, str) or ends_of(*owner)[0] != node_type:
            continue
        for part in range(book.num_base_parts, book.num_parts):
            begin, end = int(offsets[part]), int(offsets[part + 1])
            degrees = np.diff(rows.starts(owner, part, 0, end - begin))
            num_bytes[begin - first_id : end - first_id] += degrees * _item_bytes(rows, owner)
    return num_bytes


def _loads(rows: DatasetRows) -> NDArray[np.float64]:
    """float64[num_parts], the bytes of what each part has now."""
    book = rows.book
    loads = np.zeros(book.num_parts)
    for owner in owners_of(rows.contents):
        counts: IntArray = np.diff(book.node_offsets[owner]) if isinstance(owner, str) else book.edges_of_parts(owner)
        loads += counts * _item_bytes(rows, owner)
    return loads


def _item_bytes(rows: DatasetRows, owner: Owner) -> float:
    """Bytes of a node or an edge; of ragged features one element is counted."""
    columns = rows.columns(owner)
    fixed = sum(column.item_bytes for column in columns.fixed)
    return float(fixed + sum(c.values.item_bytes for c in columns.ragged)) + (
        ROW_BYTES if isinstance(owner, str) else EDGE_BYTES
    )
