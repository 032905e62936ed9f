"""Checks that every edge is stored once per direction, at its owner, between the right nodes.

Edges are compared by key, one window of keys at a time. One scan of the parts' edges collects the edges of a window. So
memory grows with the window, and the number of scans with the number of windows.

Edges are stored node by node, by time, then by key. The source or the links give the edges in the order of keys. So
they also give the key of each stored edge, as long as each node has the right number of edges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, IntArray, extend_checksum
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import link_folder
from hopstream.dataset.rows import rows_of_ids
from hopstream.dataset.stored_columns import EdgeTimes
from hopstream.preparation.audit.nodes import NOT_HERE, CheckedNodes, Features, check_range, keys_text
from hopstream.preparation.audit.reference import Reference
from hopstream.preparation.audit.report import Files
from hopstream.preparation.audit.stored_edges import StoredEdges
from hopstream.schema import EdgeType, timed_edge_types, type_label

EDGE_BYTES = 96
"""Memory per edge of a window, in two directions and during the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Edges of one direction in a range of edge keys.

    Attributes:
        first: The first key.
        ids: int64[n], the edge id of each key, -1 for none.
        src_keys: int64[n], the source of each edge, -1 if it is no node, ``NOT_HERE`` if it is unknown.
        dst_keys: int64[n], the destination of each edge, with the same marks.
    """

    first: int
    ids: IntArray
    src_keys: IntArray
    dst_keys: IntArray


def read_window(edges: StoredEdges, first: int, stop: int) -> Window:
    """Collect the edges of a range of keys; report keys that are stored more than once, or not at all."""
    findings, num_edges, is_whole = edges.files.findings, stop - first, edges.files.is_whole
    ids = np.full(num_edges, -1, np.int64)
    own_keys, other_keys = (np.full(num_edges, -1 if is_whole else NOT_HERE, np.int64) for _ in range(2))
    for block in edges.blocks():
        if block.keys is None:
            continue
        found = np.flatnonzero((block.keys >= first) & (block.keys < stop) & block.is_newest)
        at = block.keys[found] - first
        edge_ids = found + block.first + int(edges.offsets[block.part])
        before = ids[at]
        ids[at] = edge_ids
        own_keys[at] = block.own_keys[found]
        others = block.ids[found].astype(np.int64)
        is_id = (others >= 0) & (others < len(edges.other.keys))
        other_keys[at[is_id]] = edges.other.keys[others[is_id]]
        doubled = np.flatnonzero((before >= 0) | (ids[at] != edge_ids))
        piece = edges.piece_text(block.part)
        places = (f"edge key {first + at[e]} ({piece}, edge {block.first + found[e]})" for e in doubled)
        findings.add("edges", edges.label, "is held more than once", len(doubled), places)
    missing = np.flatnonzero(ids < 0) if is_whole else np.empty(0, np.int64)
    findings.checked("edges", num_edges if is_whole else int(np.count_nonzero(ids >= 0)))
    findings.add("edges", edges.label, "is held by no part", len(missing), keys_text("edge key", first + missing))
    src_keys, dst_keys = (other_keys, own_keys) if edges.direction == "in" else (own_keys, other_keys)
    return Window(first=first, ids=ids, src_keys=src_keys, dst_keys=dst_keys)


def compare_ends(edges: StoredEdges, window: Window, first: int, src: Array, dst: Array, told_by: str) -> None:
    """Compare the ends of some edges of a window, from key ``first`` on, with those of a witness."""
    findings, at = edges.files.findings, slice(first - window.first, first - window.first + len(src))
    ids, got_src, got_dst = window.ids[at], window.src_keys[at], window.dst_keys[at]
    differs = _differs(got_src, src) | _differs(got_dst, dst)
    if not edges.files.is_whole:  # the witness names a node here, but the edge leads to another part
        got, told = (got_src, src) if edges.direction == "in" else (got_dst, dst)
        is_key = (told >= 0) & (told < len(edges.other.ids))
        differs |= (got == NOT_HERE) & is_key & (edges.other.ids[np.where(is_key, told, 0)] >= 0)
    wrong = np.flatnonzero((ids >= 0) & differs)
    places = (f"edge key {first + e} is {got_src[e]} to {got_dst[e]}, not {src[e]} to {dst[e]}" for e in wrong)
    findings.add("edges", edges.label, f"joins other nodes than {told_by}", len(wrong), places)
    book = edges.files.manifest.book
    own = np.asarray(dst if edges.direction == "in" else src)
    is_known = (ids >= 0) & (own >= 0) & (own < len(edges.own.ids))
    own_ids = np.full(len(own), -1, np.int64)
    own_ids[is_known] = edges.own.ids[own[is_known]]
    is_known &= own_ids >= 0
    owners = book.parts_of(edges.own_type, own_ids)
    holders = book.parts_of((edges.edge_type, edges.direction), ids)
    wrong = np.flatnonzero(is_known & (owners != holders))
    findings.checked("ownership", int(np.count_nonzero(is_known)))
    places = (f"edge key {first + e} is in part {holders[e]}, node {own[e]} in part {owners[e]}" for e in wrong)
    findings.add("ownership", edges.label, "is not held by the part of its end", len(wrong), places)


def _differs(got: Array, told: Array) -> Array:
    """Return bool[n], whether two keys of the same node are known and different."""
    differs: Array = (got != told) & (got != NOT_HERE) & (told != NOT_HERE)
    return differs


def check_by_key(
    all_edges: Sequence[StoredEdges], links: LinkColumns | None, reference: Reference | None, max_edges: int
) -> list[int] | None:
    """Check the edges of one type in all directions, one window of keys at a time.

    Returns:
        The number of edges and the checksums of ends and features in the order of keys, or None if an edge is missing.
    """
    edges = all_edges[0]
    edge_type, num_edges = edges.edge_type, edges.num_edges
    features = [Features(e.files, edge_type, e.columns, e.offsets, reference) for e in all_edges]
    ends, is_complete = [0, 0], True
    for first in range(0, max(num_edges, 1), max_edges):
        stop = min(first + max_edges, num_edges)
        windows = [read_window(e, first, stop) for e in all_edges]
        for e, window in zip(all_edges, windows, strict=True):
            for start, src, dst, told_by in _told_ends(e, windows[0], stop, links, reference):
                compare_ends(e, window, start, src, dst, told_by)
        if links is not None:
            links.compare(edges, windows[0], stop)
        for of_direction, window in zip(features, windows, strict=True):
            of_direction.check(first, window.ids)
        is_complete = is_complete and bool(np.all(windows[0].ids >= 0))
        ends = [extend_checksum(ends[0], windows[0].src_keys), extend_checksum(ends[1], windows[0].dst_keys)]
    _compare_directions(all_edges, features)
    if reference is None and links is None and len(all_edges) == 1:
        why = "neither a source nor links nor the other direction give the ends of edges"
        edges.files.findings.skip("ownership", f"{edges.label}: {why}")
    names, found = edges.files.manifest.schema.edges[edge_type], features[0].checksums
    if not edges.files.is_whole or not is_complete or len(found) < len(names):
        return None
    return [num_edges, *ends, *(found[name] for name in names)]


def _told_ends(
    edges: StoredEdges, other: Window, stop: int, links: LinkColumns | None, reference: Reference | None
) -> Iterator[tuple[int, IntArray, IntArray, str]]:
    """Yield blocks of first key, sources, destinations and witness of a window, from the best witness."""
    first = other.first
    if reference is not None:
        for start, src, dst in reference.ends(edges.edge_type, first, stop):
            yield start, src, dst, "the source says"
    elif links is not None:
        yield first, *links.ends(first, stop), "its link says"
    elif edges.direction != edges.files.manifest.directions[0]:
        yield first, other.src_keys, other.dst_keys, f"{edges.files.manifest.directions[0]}/ says"


def _compare_directions(all_edges: Sequence[StoredEdges], features: Sequence[Features]) -> None:
    if not all_edges[0].files.is_whole:
        return
    for edges, of_direction in zip(all_edges[1:], features[1:], strict=True):
        for name, crc32c in of_direction.checksums.items():
            if features[0].checksums.get(name, crc32c) != crc32c:
                what = f"is not what {all_edges[0].direction}/ has"
                edges.files.findings.add("features", f"{edges.label}.{name}", what)
            edges.files.findings.checked("features", edges.num_edges)


class LinkColumns:
    """Links of one edge type, in the order of edge keys."""

    def __init__(self, files: Files, edge_type: EdgeType, nodes: Mapping[str, CheckedNodes]) -> None:
        """Open the links; ``is_usable`` tells whether that succeeded."""
        self._files, self._edge_type = files, edge_type
        manifest = files.manifest
        self._folders = [link_folder(part, edge_type) for part in range(manifest.book.num_parts)]
        self._offsets = manifest.book.link_offsets(edge_type)
        names = ["src_key.npy", "dst_key.npy"] + ["time.npy"] * (manifest.time_attr in manifest.schema.edges[edge_type])
        self._arrays = [files.arrays([folder / name for folder in self._folders]) for name in names]
        self.is_usable = all(arrays is not None for arrays in self._arrays)
        for arrays, name, node_type in zip(self._arrays, names, (edge_type[0], edge_type[2]), strict=False):
            for folder, array in zip(self._folders, arrays or (), strict=False):
                check_range(files.findings, f"{folder}/{name}", "keys", array, len(nodes[node_type].keys))
        if not self.is_usable:
            files.findings.skip("links", f"{type_label(edge_type)}: a file of them cannot be used")

    def ends(self, first: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the ends of the edge keys ``[first, stop)``, ``NOT_HERE`` in parts that are not audited."""
        return self._read(0, first, stop), self._read(1, first, stop)

    def times(self, first: int, stop: int) -> IntArray | None:
        """Return the times of the edge keys ``[first, stop)``, or None if edges have no own times."""
        return self._read(2, first, stop) if len(self._arrays) > 2 else None

    def _read(self, column: int, first: int, stop: int) -> IntArray:
        found = np.full(stop - first, NOT_HERE, np.int64)
        for array, begin in zip(self._arrays[column] or (), self._offsets.tolist(), strict=False):
            piece = array[max(first - begin, 0) : max(stop - begin, 0)]
            at = max(begin - first, 0)
            found[at : at + len(piece)] = piece
        return found

    def compare(self, edges: StoredEdges, window: Window, stop: int) -> None:
        """Report links that contradict the edges of a window."""
        findings, first = self._files.findings, window.first
        src, dst = self.ends(first, stop)
        is_here = src != NOT_HERE
        differs = (window.ids >= 0) & (_differs(window.src_keys, src) | _differs(window.dst_keys, dst))
        times = edges.columns.get(edges.files.manifest.time_attr or "")
        of_links = self.times(first, stop)
        if of_links is not None and times is not None:
            known = np.flatnonzero((window.ids >= 0) & is_here)
            differs[known] |= of_links[known] != rows_of_ids(times, edges.offsets, window.ids[known])
        wrong = np.flatnonzero(differs)
        findings.checked("links", int(np.count_nonzero(is_here)))
        keepers = np.searchsorted(self._offsets, first + wrong, side="right") - 1
        places = (f"edge key {first + e} (kept by part {p})" for e, p in zip(wrong, keepers, strict=True))
        label = type_label(self._edge_type)
        findings.add("links", f"links of {label}", "are not the edges of their keys", len(wrong), places)


LINK_BLOCK = 1 << 20

ToldEdges = Callable[[], Iterator[tuple[int, IntArray, IntArray, Array | None]]]
"""Function that yields all edges in blocks by key: first key, sources, destinations, and own times or None."""


def derive_keys(edges: StoredEdges, told_edges: ToldEdges, max_edges: int) -> list[IntArray]:
    """Return the keys of each part's edges, int64[edges], -1 for unknown ones, in a temporary file.

    Args:
        edges: The stored edges. Nodes with a wrong number of edges are reported.
        told_edges: Function that yields the expected edges. It is called once for every ``max_edges`` stored edges.
        max_edges: Number of edges to sort at a time.
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
    """Make a function that yields the edges of the source."""
    name = edges.files.manifest.time_attr
    has_times = name is not None and name in edges.files.manifest.schema.edges[edges.edge_type]

    def told() -> Iterator[tuple[int, IntArray, IntArray, Array | None]]:
        for first, src, dst in reference.ends(edges.edge_type, 0, edges.num_edges):
            times = reference.rows(edges.edge_type, str(name), first, first + len(src)) if has_times else None
            yield first, src, dst, times if isinstance(times, np.ndarray) else None

    return told


def told_by_links(edges: StoredEdges, links: LinkColumns) -> ToldEdges:
    """Make a function that yields the edges of the links."""

    def told() -> Iterator[tuple[int, IntArray, IntArray, Array | None]]:
        for first in range(0, edges.num_edges, LINK_BLOCK):
            stop = min(first + LINK_BLOCK, edges.num_edges)
            yield first, *links.ends(first, stop), links.times(first, stop)

    return told


def _edges_of(edges: StoredEdges, told_edges: ToldEdges, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Return keys and owning ids of the edges of some nodes, by ascending id and in stored order."""
    is_wanted = np.zeros(len(edges.own.keys) + 1, np.bool_)  # one more, for ids of -1
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
    """Allocate int64[num_items] in an unlinked file."""
    if not num_items:
        return np.empty(0, np.int64)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.int64, "w+", shape=(num_items,))
