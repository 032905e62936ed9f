"""Checks the stored columns of each edge: ranges, order, times, weights, keys of neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.dataset.book import ends_of, entity_label
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.paths import piece_folders
from hopstream.dataset.stored_columns import EdgeTimes, row_aliases, row_order, row_sums
from hopstream.preparation.audit.nodes import NOT_HERE, CheckedNodes, check_ascends, check_range
from hopstream.preparation.audit.report import Files, Kind
from hopstream.schema import Direction, EdgeType, timed_edge_types

OF_EDGES: tuple[Kind, ...] = ("ranges", "order", "edges", "ownership", "neighbors", "times", "weights", "links")
"""Kinds of checks that are made edge by edge."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredEdgeBlock:
    """Consecutive edges of one piece, a part or an overlay.

    Attributes:
        part: Number of the piece.
        first: Position of the first edge in the piece.
        offsets: int64[rows + 1], the offsets of the rows, from 0.
        own_keys: int64[n], the key of the end that owns each edge.
        ids: integer[n], ids of the other ends.
        keys: int64[n] edge keys, or None.
        is_newest: bool[n], whether no newer row replaces the edge's row.
    """

    part: int
    first: int
    offsets: IntArray
    own_keys: IntArray
    ids: Array
    keys: IntArray | None
    is_newest: Array

    @property
    def stop(self) -> int:
        """Position of the last edge in the piece, plus 1."""
        return self.first + len(self.ids)


class StoredEdges:
    """Edges of one type in one direction, in all parts."""

    def __init__(
        self, files: Files, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, CheckedNodes]
    ) -> None:
        """Open the arrays of the edges."""
        self.files, self.edge_type, self.direction = files, edge_type, direction
        self.label = entity_label((edge_type, direction))
        book = files.manifest.book
        self.offsets, self.num_edges = book.offsets((edge_type, direction)), book.num_edges(edge_type)
        self.parts = book.piece_parts((edge_type, direction))
        own_type, other_type = ends_of(edge_type, direction)
        self.own_type, self.own, self.other = own_type, nodes[own_type], nodes[other_type]
        self.folders = piece_folders(book, edge_type, direction)
        self.columns = files.columns(self.folders, files.manifest.schema.edges[edge_type])
        self._indptr = files.arrays([folder / "indptr.npy" for folder in self.folders])
        self._indices = files.arrays([folder / "indices.npy" for folder in self.folders])
        has_keys = files.manifest.has_edge_keys
        self._keys = files.arrays([folder / "key.npy" for folder in self.folders]) if has_keys else None
        self._rows = files.arrays([folder / "row.npy" for folder in self.folders[book.num_parts :]])

    @property
    def indptr(self) -> Sequence[IntArray]:
        """Row offsets of each piece."""
        return self._indptr or ()

    def set_keys(self, keys: Sequence[IntArray]) -> None:
        """Set the edge keys of each piece, if the dataset does not store them."""
        self._keys = list(keys)

    @property
    def has_keys(self) -> bool:
        """Whether the edge keys can be read."""
        return self._keys is not None

    @property
    def knows_times(self) -> bool:
        """Whether the columns that determine times can be read."""
        schema, name = self.files.manifest.schema, self.files.manifest.time_attr or ""
        other_type = ends_of(self.edge_type, self.direction)[1]
        has_own, has_other = name in schema.edges[self.edge_type], name in schema.nodes[other_type]
        return (not has_own or name in self.columns) and (not has_other or self.other.times is not None)

    @property
    def takes_times_of_others(self) -> bool:
        """Whether the neighbours of the edges have times."""
        other_type = ends_of(self.edge_type, self.direction)[1]
        return (self.files.manifest.time_attr or "") in self.files.manifest.schema.nodes[other_type]

    @cached_property
    def row_ids(self) -> Sequence[IntArray]:
        """Ids of the nodes of each piece's rows, int64[rows]; overlays store the numbers of their rows."""
        offsets = self.files.manifest.book.node_offsets[self.own_type]
        of_parts = [np.arange(first, stop) for first, stop in itertools.pairwise(offsets.tolist())]
        of_overlays = zip(self._rows or (), self.parts[len(of_parts) :], strict=True)
        return [*of_parts, *(offsets[part] + rows for rows, part in of_overlays)]

    @cached_property
    def is_newest(self) -> Sequence[Array]:
        """Rows of each piece that no newer overlay replaces, bool[rows]."""
        is_seen, found = np.zeros(len(self.own.keys), np.bool_), []
        for ids in reversed(self.row_ids):
            found.append(~is_seen[ids])
            is_seen[ids] = True
        return found[::-1]

    def piece_text(self, piece: int) -> str:
        """Name a piece for findings: by its part, and by its delta if it is an overlay."""
        folder = self.folders[piece]
        return f"part {self.parts[piece]}" + (f", {folder.parts[1]}" if piece >= self._num_parts else "")

    @property
    def _num_parts(self) -> int:
        return self.files.manifest.book.num_parts

    def _check_overlays(self) -> bool:
        """Check the row numbers of overlays, and their node keys; return whether the row numbers are valid."""
        if self._rows is None:
            self.files.findings.skip(OF_EDGES, f"{self.label}: the rows that an overlay replaces cannot be read")
            return False
        findings, offsets = self.files.findings, self.files.manifest.book.node_offsets[self.own_type]
        is_good, folders = True, self.folders[self._num_parts :]
        for folder, rows, part in zip(folders, self._rows, self.parts[self._num_parts :].tolist(), strict=True):
            where, num_rows = f"{folder}/row.npy", int(offsets[part + 1] - offsets[part])
            is_row = check_range(findings, where, "rows", rows, num_rows)
            findings.checked("order", len(rows))
            is_good = check_ascends(findings, "order", where, "rows", rows) and is_good and bool(is_row.all())
            keys = self.files.array(folder / "node_key.npy")
            if keys is not None and is_row.all():
                wrong = np.flatnonzero(keys != self.own.keys[offsets[part] + rows])
                findings.checked("book", len(rows))
                places = (f"row {row}" for row in wrong)
                findings.add("book", f"{folder}/node_key.npy", "keys are not those of the nodes", len(wrong), places)
        return is_good

    @cached_property
    def is_usable(self) -> bool:
        """Whether all rows have valid offsets; reports those that do not."""
        if not self._check_overlays():
            return False
        if self._indptr is None or self._indices is None:
            self.files.findings.skip(OF_EDGES, f"{self.label}: a file of it cannot be used")
            return False
        is_good = True
        for folder, indptr, indices in zip(self.folders, self._indptr, self._indices, strict=True):
            descends = np.flatnonzero(indptr[1:] < indptr[:-1])
            where = f"{folder}/indptr.npy"
            self.files.findings.checked("ranges", len(indptr))
            rows = (f"row {row}" for row in descends)
            self.files.findings.add("ranges", where, "does not ascend", len(descends), rows)
            if indptr[0] != 0 or indptr[-1] != len(indices):
                self.files.findings.add("ranges", where, f"does not begin at 0 and end at {len(indices)}")
                is_good = False
            is_good = is_good and not len(descends)
        if not is_good:
            self.files.findings.skip(OF_EDGES, f"{self.label}: indptr cannot be followed")
        return is_good

    def blocks(self) -> Iterator[StoredEdgeBlock]:
        """Yield all edges in blocks of rows of one piece, including rows that newer rows replace."""
        for piece, (indptr, indices) in enumerate(zip(self._indptr or (), self._indices or (), strict=True)):
            own_keys, is_newest = self.own.keys[self.row_ids[piece]], self.is_newest[piece]
            for first, last, start, stop in row_chunks(indptr):
                degrees = np.diff(indptr[first : last + 1])
                yield StoredEdgeBlock(
                    part=piece,
                    first=start,
                    offsets=indptr[first : last + 1] - start,
                    own_keys=np.repeat(own_keys[first:last], degrees),
                    ids=indices[start:stop],
                    keys=self._keys[piece][start:stop] if self._keys is not None else None,
                    is_newest=np.repeat(is_newest[first:last], degrees),
                )


def check_stored(edges: StoredEdges) -> None:
    """Check ranges, order, times, weights and neighbours of each edge against what they follow from."""
    files = edges.files
    manifest, findings = files.manifest, files.findings
    is_timed = edges.edge_type in timed_edge_types(manifest.schema, manifest.time_attr, edges.direction)
    own_times, other_times = edges.columns.get(manifest.time_attr or ""), edges.other.times
    if is_timed and not edges.knows_times:
        findings.skip("times", f"{edges.label}: a file of times cannot be used")
        is_timed = False
    times = files.arrays([folder / "time.npy" for folder in edges.folders]) if is_timed else None
    neighbors = (
        files.arrays([folder / "neighbor_key.npy" for folder in edges.folders]) if manifest.has_neighbor_keys else None
    )
    weights = _WeightFiles.of(edges)
    for block in edges.blocks():
        folder = edges.folders[block.part]
        is_id = check_range(findings, f"{folder}/indices.npy", "ids", block.ids, len(edges.other.keys))
        ids = np.where(is_id, block.ids, 0).astype(np.int64) if len(edges.other.keys) else np.zeros(0, np.int64)
        if block.keys is not None:
            check_range(findings, f"{folder}/key.npy", "edge keys", block.keys, edges.num_edges)
        if neighbors is not None and len(ids):
            stored, wanted = neighbors[block.part][block.first : block.stop], edges.other.keys[ids]
            wrong = np.flatnonzero((stored != wanted) & is_id & (wanted >= 0))
            _count_known(edges, "neighbors", wanted != NOT_HERE)
            places = (f"edge {block.first + e} says {stored[e]}, its neighbour is {wanted[e]}" for e in wrong)
            findings.add("neighbors", f"{folder}/neighbor_key.npy", "keys are not the neighbours'", len(wrong), places)
        stored_times = times[block.part][block.first : block.stop] if times is not None else None
        if stored_times is not None and len(ids):
            own = own_times[block.part] if own_times else None
            source = EdgeTimes(
                own=own if isinstance(own, np.ndarray) else None, neighbor=other_times, neighbor_keys=None
            )
            wanted = source.of(np.arange(block.first, block.stop), ids)
            is_known = is_id if other_times is None else is_id & (edges.other.keys[ids] != NOT_HERE)
            wrong = np.flatnonzero((stored_times != wanted) & is_known) if len(wanted) else np.empty(0, np.int64)
            _count_known(edges, "times", is_known | ~is_id)
            places = (f"edge {block.first + e} says {stored_times[e]}, it is {wanted[e]}" for e in wrong)
            what = "times are not those of edges and neighbours"
            findings.add("times", f"{folder}/time.npy", what, len(wrong), places)
        _check_order(edges, block, stored_times)
        weights.check(edges, block)


def _count_known(edges: StoredEdges, kind: Kind, is_known: Array) -> None:
    """Count edges to audited nodes, and record that others are skipped."""
    num_known = int(np.count_nonzero(is_known))
    edges.files.findings.checked(kind, num_known)
    if num_known < len(is_known):
        edges.files.findings.skip(kind, f"{edges.label}: edges to nodes of parts that are not checked")


def _check_order(edges: StoredEdges, block: StoredEdgeBlock, times: Array | None) -> None:
    """Check that the edges of a row are sorted by time, then by key."""
    num_edges = len(block.ids)
    if num_edges < 2 or (times is None and block.keys is None):
        return
    findings, folder = edges.files.findings, edges.folders[block.part]
    is_inside = np.ones(num_edges - 1, np.bool_)
    starts = block.offsets[1:-1]
    is_inside[starts[(starts > 0) & (starts < num_edges)] - 1] = False
    findings.checked("order", num_edges)
    is_tie = is_inside
    if times is not None:
        descends = np.flatnonzero(is_inside & (times[1:] < times[:-1])) + 1
        what = "times of one node do not ascend"
        places = (f"edge {block.first + e}" for e in descends)
        findings.add("order", f"{folder}/time.npy", what, len(descends), places)
        is_tie = is_inside & (times[1:] == times[:-1])
    if block.keys is not None:
        descends = np.flatnonzero(is_tie & (block.keys[1:] <= block.keys[:-1])) + 1
        places = (f"edge {block.first + e} (key {block.keys[e]})" for e in descends)
        findings.add("order", f"{folder}/key.npy", "edge keys of one node do not ascend", len(descends), places)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WeightFiles:
    """Weights of all pieces and the columns derived from them, or None without weights."""

    values: Sequence[Column] | None
    stored: Mapping[str, Sequence[Array]]

    @classmethod
    def of(cls, edges: StoredEdges) -> _WeightFiles:
        values = edges.columns.get(edges.files.manifest.weight_attr or "")
        names = ("weight_sums", "weight_order", "weight_alias") if values else ()
        opened = {name: edges.files.arrays([f / f"{name}.npy" for f in edges.folders]) for name in names}
        return cls(values=values, stored={name: arrays for name, arrays in opened.items() if arrays is not None})

    def check(self, edges: StoredEdges, block: StoredEdgeBlock) -> None:
        values = self.values[block.part] if self.values else None
        if not isinstance(values, np.ndarray) or not len(block.ids):
            return
        findings = edges.files.findings
        weights = values[block.first : block.stop].reshape(-1).astype(np.float64)
        if not bool(np.all(np.isfinite(weights) & (weights >= 0))):
            wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
            places = (f"edge {block.first + e} is {weights[e]}" for e in wrong)
            findings.add("weights", f"{edges.folders[block.part]}", "weights are negative or not numbers", len(wrong),
                         places)  # fmt: skip
            return
        for name, arrays in self.stored.items():
            if name == "weight_sums":
                wanted: Array = row_sums(block.offsets, weights)
            elif name == "weight_order":
                wanted = row_order(block.offsets, weights, is_descending=True)
            else:
                wanted = row_aliases(block.offsets, weights)
            wrong = np.flatnonzero(arrays[block.part][block.first : block.stop] != wanted)
            findings.checked("weights", len(wanted))
            where = f"{edges.folders[block.part]}/{name}.npy"
            places = (f"edge {block.first + e}" for e in wrong)
            findings.add("weights", where, "is not what follows from the weights", len(wrong), places)
