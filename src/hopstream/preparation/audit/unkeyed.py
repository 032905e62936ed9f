"""Finds the key of each stored edge of a dataset that does not keep the keys of edges.

Edges are stored node by node in the order of times, then keys. So whoever knows the edges in the order of their keys,
the source or the links, knows the key of each that is stored, as long as a node has as many edges as it should have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.times import EdgeTimes
from hopstream.preparation.audit.edges import Links
from hopstream.preparation.audit.reference import Reference
from hopstream.preparation.audit.stored_edges import StoredEdges
from hopstream.schema import timed_edge_types

LINK_BLOCK = 1 << 20

ToldEdges = Callable[[], Iterator[tuple[int, IntArray, IntArray, Array | None]]]
"""All edges in blocks, in the order of keys: first key, sources, destinations, and the edges' own times or None."""


def derive_keys(edges: StoredEdges, told_edges: ToldEdges, max_edges: int) -> list[IntArray]:
    """int64[edges] of each part, the keys of its edges, -1 where that is not known; they lie in a temporary file.

    Args:
        edges: The stored edges; tells of nodes that have more or fewer than they should.
        told_edges: Who knows the edges. It is read once for every ``max_edges`` stored edges.
        max_edges: How many edges to put in order at a time.
    """
    num_ids = int(edges.offsets[-1])
    keys = _scratch(num_ids)
    for piece, indptr in enumerate(edges.indptr):
        row_ids, is_newest = edges.row_ids[piece], edges.is_newest[piece]
        for first, last, start, stop in row_chunks(indptr, max_edges):
            ids = row_ids[first:last]
            found, own_ids = _edges_of(edges, told_edges, ids)
            degrees = np.diff(indptr[first : last + 1])
            wanted = np.bincount(np.searchsorted(ids, own_ids), minlength=last - first)
            is_same = (degrees == wanted) & is_newest[first:last]
            wrong = np.flatnonzero(~is_same & is_newest[first:last])
            places = (
                f"node {edges.own.keys[ids[row]]} has {degrees[row]} edges and should have {wanted[row]}"
                for row in wrong
            )
            what = "nodes have more or fewer edges than they should"
            edges.files.findings.add("edges", edges.label, what, len(wrong), places)
            stored = np.full(stop - start, -1, np.int64)
            stored[np.repeat(is_same, degrees)] = found[np.repeat(is_same, wanted)]
            at = int(edges.offsets[piece])
            keys[at + start : at + stop] = stored
    return [keys[edges.offsets[p] : edges.offsets[p + 1]] for p in range(len(edges.offsets) - 1)]


def told_by_source(edges: StoredEdges, reference: Reference) -> ToldEdges:
    """The edges as the source has them."""
    name = edges.files.manifest.time_attr
    has_times = name is not None and name in edges.files.manifest.schema.edges[edges.edge_type]

    def told() -> Iterator[tuple[int, IntArray, IntArray, Array | None]]:
        for first, src, dst in reference.ends(edges.edge_type, 0, edges.num_edges):
            times = reference.rows(edges.edge_type, str(name), first, first + len(src)) if has_times else None
            yield first, src, dst, times if isinstance(times, np.ndarray) else None

    return told


def told_by_links(edges: StoredEdges, links: Links) -> ToldEdges:
    """The edges as the links have them."""

    def told() -> Iterator[tuple[int, IntArray, IntArray, Array | None]]:
        for first in range(0, edges.num_edges, LINK_BLOCK):
            stop = min(first + LINK_BLOCK, edges.num_edges)
            yield first, *links.ends(first, stop), links.times(first, stop)

    return told


def _edges_of(edges: StoredEdges, told_edges: ToldEdges, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Keys and owning ids of the edges that some nodes own, by ascending id, in the order in which they are stored."""
    is_wanted = np.zeros(len(edges.own.keys) + 1, np.bool_)  # one more, for those that are no nodes
    is_wanted[ids] = True
    is_timed = edges.edge_type in timed_edge_types(
        edges.files.manifest.schema, edges.files.manifest.time_attr, edges.direction
    )
    blocks: list[tuple[IntArray, IntArray, IntArray]] = []
    for first, src, dst, times in told_edges():
        own, other = (dst, src) if edges.direction == "in" else (src, dst)
        is_node = (own >= 0) & (own < len(edges.own.ids)) & (other >= 0) & (other < len(edges.other.ids))
        own_ids = np.where(is_node, edges.own.ids[np.where(is_node, own, 0)], -1)
        found = np.flatnonzero(is_wanted[own_ids])
        order_by = np.zeros(len(found), np.int64)
        if is_timed:
            source = EdgeTimes(own=times, neighbor=edges.other.times, neighbor_keys=None)
            order_by = source.of(found, np.maximum(edges.other.ids[other[found]], 0))
        blocks.append((first + found, own_ids[found], order_by))
    if not blocks:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys, own_ids, times_of = (np.concatenate(column) for column in zip(*blocks, strict=True))
    order = np.lexsort((keys, times_of, own_ids))
    return keys[order], own_ids[order]


def _scratch(num_items: int) -> IntArray:
    """int64[num_items] in a file that is gone when nobody holds it."""
    if not num_items:
        return np.empty(0, np.int64)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.int64, "w+", shape=(num_items,))
