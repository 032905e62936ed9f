"""Gives each node of a dataset a part when what was appended is folded in.

[Algorithm] Nodes that were there keep their parts. Of the bytes of new nodes each part gets what it lacks of an even
    share of all bytes, as a stretch of their keys, in the order of parts. A node's bytes are those of its row and its
    edges.
[Cost] One look at the ids of nodes, and two at the offsets of new rows, ``BLOCK_KEYS`` at a time.
[Not chosen] To cut by edges again: that moves old nodes too, and is what ``reshard`` is for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.assign.folder import OwnerBlocks
from hopstream.dataset.book import Owner, ends_of
from hopstream.dataset.rows import DatasetRows, owners_of

BLOCK_KEYS = 1 << 18
ROW_BYTES, EDGE_BYTES = 24, 16
"""What a node and an edge take beside their features, roughly: keys, offsets, ids."""


def kept_owners(rows: DatasetRows) -> dict[str, OwnerBlocks]:
    """Node type to the part of each node by key, among the parts that were written first; made while it is read."""
    book = rows.book
    totals = {t: sum(float(block.sum()) for block in _new_bytes(rows, t)) for t in rows.contents.schema.nodes}
    loads = _loads(rows)[: book.num_base_parts]
    even = (loads.sum() + sum(totals.values())) / book.num_base_parts
    lacking = np.maximum(even - loads, 0)
    # No part lacks anything where nothing is new, or where all of it is empty.
    shares = lacking / lacking.sum() if lacking.sum() > 0 else np.full(len(loads), 1 / len(loads))
    bounds = np.cumsum(shares)[:-1]
    return {
        t: OwnerBlocks(book.num_ids(t), itertools.chain(_old_parts(rows, t), _new_parts(rows, t, total, bounds)))
        for t, total in totals.items()
    }


def _old_parts(rows: DatasetRows, node_type: str) -> Iterator[NDArray[np.int32]]:
    """The parts of the nodes that were written first."""
    num_nodes = int(rows.book.node_offsets[node_type][rows.book.num_base_parts])
    for first in range(0, num_nodes, BLOCK_KEYS):
        ids = rows.ids_of_keys(node_type, first, min(first + BLOCK_KEYS, num_nodes))
        yield rows.book.parts_of(node_type, ids).astype(np.int32)


def _new_parts(
    rows: DatasetRows, node_type: str, total: float, bounds: NDArray[np.float64]
) -> Iterator[NDArray[np.int32]]:
    """The parts of appended nodes; ``bounds`` are the shares of their bytes up to each part but the last."""
    before = 0.0
    for num_bytes in _new_bytes(rows, node_type):
        ends = before + np.cumsum(num_bytes)
        middles = (ends - num_bytes / 2) / max(1.0, total)
        yield np.searchsorted(bounds, middles, side="right").astype(np.int32)
        before = float(ends[-1])


def _new_bytes(rows: DatasetRows, node_type: str) -> Iterator[NDArray[np.float64]]:
    """The bytes of each appended node of a type, in the order of keys."""
    book = rows.book
    owners = [o for o in owners_of(rows.contents) if not isinstance(o, str) and ends_of(*o)[0] == node_type]
    for part in range(book.num_base_parts, book.num_parts):
        num_rows = int(np.diff(book.node_offsets[node_type])[part])
        for first in range(0, num_rows, BLOCK_KEYS):
            stop = min(first + BLOCK_KEYS, num_rows)
            num_bytes = np.full(stop - first, _item_bytes(rows, node_type))
            for owner in owners:
                num_bytes += rows.spans(owner, part, first, stop).counts * _item_bytes(rows, owner)
            yield num_bytes


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
