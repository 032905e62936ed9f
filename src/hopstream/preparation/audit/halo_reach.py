"""Finds the nodes that the halo of a part must have, by a slow walk over all edges.

It shares no code with what writes halos, which marks the neighbours of the nodes of each hop in bitmaps: here all rows
of all parts are walked once per hop, a stretch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import ends_of, owner_label
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import edge_folder
from hopstream.errors import FormatError
from hopstream.preparation.audit.files import Files
from hopstream.schema import Direction, EdgeType

BLOCK_EDGES = 1 << 20
Marks = dict[str, Array]


def is_within(files: Files, part: int, hops: int) -> Marks:
    """Node type to bool[num_nodes], which nodes of other parts lie within so many hops of what a part owns.

    Takes three bytes per node of the graph.

    Raises:
        FormatError: Edges of a part cannot be used.
    """
    book = files.manifest.book
    is_own = {t: np.zeros(int(offsets[-1]), np.bool_) for t, offsets in book.node_offsets.items()}
    for node_type, offsets in book.node_offsets.items():
        is_own[node_type][offsets[part] : offsets[part + 1]] = True
    is_near = {t: marks.copy() for t, marks in is_own.items()}
    for _ in range(hops):
        is_next = {t: marks.copy() for t, marks in is_near.items()}
        for owner in book.edge_offsets:
            near, far = ends_of(*owner)
            for ids in _neighbors(files, owner, is_near[near]):
                is_next[far][ids] = True
        has_grown = any(np.count_nonzero(is_next[t]) > np.count_nonzero(is_near[t]) for t in is_near)
        is_near = is_next
        if not has_grown:
            break
    for node_type, marks in is_near.items():
        marks[is_own[node_type]] = False
    return is_near


def _neighbors(files: Files, owner: tuple[EdgeType, Direction], is_near: Array) -> Iterator[IntArray]:
    """The other ends of the edges of some nodes, in stretches."""
    book = files.manifest.book
    near, far = ends_of(*owner)
    offsets, num_others = book.offsets(near), book.num_ids(far)
    for part in range(book.num_parts):
        folder = edge_folder(part, *owner)
        indptr, indices = (files.array(folder / name) for name in ("indptr.npy", "indices.npy"))
        if indptr is None or indices is None or not _is_of(indptr, len(indices)):
            raise FormatError(f"{folder}: the rows of {owner_label(owner)} cannot be used")
        of_part = is_near[offsets[part] : offsets[part + 1]]
        for first, stop, start, end in row_chunks(indptr, BLOCK_EDGES):
            if not of_part[first:stop].any():
                continue
            ids = indices[start:end][np.repeat(of_part[first:stop], np.diff(indptr[first : stop + 1]))]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_others:
                raise FormatError(f"{folder}: an edge names a node that is not there")
            yield ids


def _is_of(indptr: Array, num_edges: int) -> bool:
    """Whether rows begin at 0, ascend, and end with the edges."""
    for start in range(0, len(indptr) - 1, BLOCK_EDGES):
        ends = indptr[start : start + BLOCK_EDGES + 1]
        if bool(np.any(ends[1:] < ends[:-1])):
            return False
    return int(indptr[0]) == 0 and int(indptr[-1]) == num_edges
