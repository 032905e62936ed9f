"""Writes the files of an append: the new part, and new rows of existing nodes and edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import (
    Array,
    Column,
    FileRecord,
    IntArray,
    join_columns,
    offsets_of,
    take_column,
    with_blocks,
    write_blocks,
)
from hopstream.dataset.book import Delta, EdgeEntity, Overlay, ends_of, number_dtype
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.overlays import RowReader
from hopstream.dataset.paths import edge_folder, edge_key_dtype, link_folder, node_folder, overlay_folder, split_path
from hopstream.dataset.regions import RegionWriter, file_record, make_file
from hopstream.dataset.settings import PartitionSettings
from hopstream.dataset.stored_columns import (
    INT64,
    MAX_SUM,
    EdgeRun,
    EdgeTimes,
    KeysOfIds,
    StoredColumn,
    edge_columns,
    feature_columns,
    integers,
    large_sum,
    row_sums,
    sort_edges,
    weights_of,
)
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.schema import Direction, EdgeType, type_label


@dataclass(frozen=True, slots=True, eq=False)
class NodesAfterAppend:
    """Lookup of old nodes in parts mapped on first use, and of new nodes, whose ids are their keys.

    Attributes:
        dataset: The dataset before the append.
        added: The additions.
    """

    dataset: Dataset
    added: Graph
    _parts: dict[int, PartArrays] = field(default_factory=dict)
    _books: list[KeyBook] = field(default_factory=list)

    def part(self, number: int) -> PartArrays:
        """Return one of the old parts."""
        if number not in self._parts:
            self._parts[number] = self.dataset.open_part(number)
        return self._parts[number]

    def num_old(self, node_type: str) -> int:
        """Return the number of old nodes."""
        return self.dataset.manifest.book.num_ids(node_type)

    def ids_of(self, node_type: str, keys: IntArray) -> IntArray:
        """Return int64[n], the ids of keys; the keys must be valid."""
        return self._old_or_same(node_type, keys, "ids_of")

    def keys_of(self, node_type: str, ids: Array) -> IntArray:
        """Return int64[n], the keys of ids; the ids must be valid."""
        return self._old_or_same(node_type, ids.astype(np.int64, copy=False), "keys_of")

    def _old_or_same(self, node_type: str, numbers: IntArray, method: str) -> IntArray:
        if not self._books:
            self._books.append(KeyBook(self.dataset))
        found = np.array(numbers, np.int64)
        old = np.flatnonzero(found < self.num_old(node_type))
        if len(old) and not self.dataset.manifest.book.ids_are_keys:
            found[old] = getattr(self._books[0], method)(node_type, found[old])
        return found

    def times_of(self, node_type: str, ids: IntArray) -> IntArray | None:
        """Return int64[n], the times of nodes, or None if their type has no times."""
        name = self.dataset.manifest.time_attr
        if name is None or name not in self.dataset.manifest.schema.nodes[node_type]:
            return None
        times, offsets = np.empty(len(ids), np.int64), self.dataset.manifest.book.node_offsets[node_type]
        is_new = ids >= self.num_old(node_type)
        times[is_new] = np.asarray(self.added.nodes[node_type].features[name])[ids[is_new] - self.num_old(node_type)]
        parts = np.where(is_new, -1, np.searchsorted(offsets, ids, side="right") - 1)
        for number in np.unique(parts[~is_new]).tolist():
            here = parts == number
            times[here] = np.asarray(self.part(number).node_features[node_type][name])[ids[here] - offsets[number]]
        return times


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Lookup of the keys of one node type's ids, with the indexing of an array; see ``KeysOfIds``."""

    nodes: NodesAfterAppend
    node_type: str

    def __getitem__(self, ids: Array, /) -> Array:
        """Return int64[n], the key of each id."""
        return self.nodes.keys_of(self.node_type, ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedEdges:
    """New edges of one type and direction.

    Attributes:
        own_ids: int64[n], ids of the ends that own the edges.
        other_ids: int64[n], ids of the other ends.
        first_key: Key of the first edge; the keys are consecutive.
        times: int64[n], or None if the edges have no times in this direction.
        features: Feature name to column of n rows.
        order: int64[n], the edges sorted by ``own_ids``, then by key.
        dtype: dtype in which ids of the other ends are stored.
        keys_of_others: Lookup of the key of each id of the other end.
    """

    own_ids: IntArray
    other_ids: IntArray
    first_key: int
    times: IntArray | None
    features: Mapping[str, Column]
    order: IntArray
    dtype: np.dtype[np.generic]
    key_dtype: np.dtype[np.generic]
    keys_of_others: KeysOfIds


def merged_rows(
    old: EdgeArrays | None, added: AddedEdges, places: IntArray, num_added: IntArray, weight_attr: str | None
) -> EdgeRun:
    """Merge old and new edges of rows, in stored order.

    Args:
        old: The old edges of the rows, or None for new rows.
        added: New edges.
        places: int64[m], the indices in ``added`` of the rows' new edges, row after row, in the order of keys.
        num_added: int64[num_rows], the number of new edges of each row.
        weight_attr: The feature that holds weights, if any.
    """
    num_old = np.zeros_like(num_added) if old is None else np.diff(old.indptr)
    indptr, old_indptr, added_indptr = offsets_of(num_old + num_added), offsets_of(num_old), offsets_of(num_added)
    total_old, total = int(old_indptr[-1]), int(indptr[-1])
    of_old = np.arange(total_old, dtype=np.int64) + np.repeat(indptr[:-1] - old_indptr[:-1], num_old)
    of_added = np.arange(len(places), dtype=np.int64) + np.repeat(indptr[:-1] + num_old - added_indptr[:-1], num_added)
    indices, keys, at = np.empty(total, added.dtype), np.zeros(total, np.int64), np.empty(total, np.int64)
    indices[of_added], keys[of_added] = added.other_ids[places], added.first_key + places
    at[of_old], at[of_added] = np.arange(total_old), np.arange(total_old, total)
    features = {name: take_column(column, places) for name, column in added.features.items()}
    times = None if added.times is None else added.times[places]
    if old is not None:
        indices[of_old] = old.indices
        if old.keys is not None:
            keys[of_old] = old.keys
        features = {name: join_columns([old.features[name], column]) for name, column in features.items()}
        times = times if times is None or old.times is None else np.concatenate([old.times, times])
    edge_times = None if times is None else EdgeTimes(own=times, neighbor=None, neighbor_keys=None)
    if edge_times is not None:
        sort_edges(indptr, at, indices, edge_times, keys)
    return EdgeRun(
        indptr=indptr, indices=indices, keys=keys.astype(added.key_dtype), places=at, times=edge_times,
        neighbor_keys=added.keys_of_others,
        weights=weights_of(features, weight_attr), features=features,
    )  # fmt: skip


class BlockFiles:
    """Files of one folder that grow by blocks of rows."""

    def __init__(self, root: Path) -> None:
        """Set the root folder. Nothing is written yet."""
        self._root = root
        self._writer = RegionWriter(root)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._ends: dict[str, int] = {}

    def add(self, columns: Iterable[StoredColumn]) -> None:
        """Append the rows of a block. Offsets start at 0 in each block and are shifted to continue the file."""
        for column in columns:
            is_feature = column.path.parent.name == "features"
            if column.path.name.endswith(".offsets.npy") if is_feature else column.path.name == "indptr.npy":
                self._add_offsets(column)
            else:
                self._add(column)

    def _add_offsets(self, column: StoredColumn) -> None:
        name = str(column.path)
        offsets: IntArray = np.concatenate([np.asarray(block, np.int64) for block in column.blocks])
        offsets = offsets + self._ends.get(name, 0)
        rows = offsets[1:] if name in self._ends else offsets
        self._ends[name] = int(offsets[-1])
        self._add(StoredColumn(path=column.path, dtype=INT64, shape=rows.shape, blocks=[rows]))

    def _add(self, column: StoredColumn) -> None:
        name, tail = str(column.path), column.shape[1:]
        if name not in self._shapes:
            make_file(self._root / column.path, column.dtype, (0, *tail))
            self._shapes[name], self._dtypes[name] = (0, *tail), column.dtype
        num_rows = self._shapes[name][0]
        self._writer.write(column, num_rows)
        self._shapes[name] = (num_rows + column.shape[0], *tail)

    def finish(self) -> dict[str, FileRecord]:
        """Write the final header of each file; return the records by path."""
        records: dict[str, FileRecord] = {}
        for name, shape in self._shapes.items():
            make_file(self._root / name, self._dtypes[name], shape)
            record = file_record(name, self._dtypes[name], shape, self._writer.stretches.get(name, []))
            records[name] = with_blocks(record, self._root / name)
        return records


BLOCK_BYTES = 64 << 20
EDGE_BYTES = 64
"""Memory per edge while it is written, without its features."""


def settings_of(manifest: Manifest) -> PartitionSettings:
    """Return settings by which ``edge_columns`` writes the columns that a dataset has."""
    return PartitionSettings(
        num_parts=manifest.book.num_parts, keep_edge_keys=manifest.has_edge_keys,
        neighbor_keys=manifest.has_neighbor_keys,
    )  # fmt: skip


def edge_blocks(manifest: Manifest, entity: EdgeEntity, indptr: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose edges fit into memory; without rows, one empty range."""
    features = manifest.schema.edges[entity[0]].values()
    num_edges = max(1, BLOCK_BYTES // (EDGE_BYTES + sum(feature.row_bytes for feature in features)))
    if len(indptr) == 1:
        yield 0, 0
    for begin, end, _, _ in row_chunks(indptr, num_edges):
        yield begin, end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedEnds:
    """Ids of the ends of new edges of one type, int64[n] each."""

    src_ids: IntArray
    dst_ids: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows that are written together.

    Attributes:
        rows: int64[n], row numbers in the part, ascending.
        counts: int64[n], the number of new edges of each row.
        starts: int64[n + 1], the offsets of the rows' edges in ``AddedEdges.order``.
    """

    rows: IntArray
    counts: IntArray
    starts: IntArray


@dataclass(slots=True, kw_only=True)
class DeltaWriter:
    """Writer of the additions of an append to a separate folder, under their paths in the dataset.

    Attributes:
        root: The folder.
        dataset: The dataset before the append.
        added: The additions.
        nodes: Lookup of old and new nodes.
        digest: Digest of the additions.
        on_step: Called after each table.
        files: Path to record of each written file.
        overlays: (edge type, direction) to the written overlays.
        new_edges: (edge type, direction) to the number of edges of the new part.
    """

    root: Path
    dataset: Dataset
    added: Graph
    nodes: NodesAfterAppend
    digest: str
    on_step: Callable[[], None]
    files: dict[str, FileRecord] = field(default_factory=dict)
    overlays: dict[EdgeEntity, tuple[Overlay, ...]] = field(default_factory=dict)
    new_edges: dict[EdgeEntity, int] = field(default_factory=dict)

    @property
    def part(self) -> int:
        """The number of the new part."""
        return self.dataset.manifest.book.num_parts

    @property
    def number(self) -> int:
        """The number of the delta."""
        return len(self.dataset.manifest.book.deltas) + 1

    @property
    def delta(self) -> Delta:
        """The delta; complete when everything is written."""
        return Delta(
            num_edges={t: edges.num_edges for t, edges in self.added.edges.items()}, overlays=self.overlays,
            digest=self.digest,
        )  # fmt: skip

    def write_nodes(self, node_type: str) -> None:
        """Write the new part's nodes of one type; their ids are their keys."""
        folder, table = node_folder(self.part, node_type), self.added.nodes[node_type]
        rows = np.arange(table.num_nodes, dtype=np.int64)
        keys = rows + self.nodes.num_old(node_type)
        self._write(integers(folder / "key.npy", keys))
        self._write(integers(folder / "id_of_key.npy", keys))
        for name, split in self.added.splits.get(node_type, {}).items():
            self._write(integers(split_path(folder, name), split))
        for column in feature_columns(folder, table.features, rows):
            self._write(column)
        self.on_step()

    def write_links(self, edge_type: EdgeType) -> None:
        """Write the links of the new edges of one type."""
        folder, edges = link_folder(self.part, edge_type), self.added.edges[edge_type]
        self._write(integers(folder / "src_key.npy", edges.src_keys))
        self._write(integers(folder / "dst_key.npy", edges.dst_keys))
        times = edges.features.get(self.dataset.manifest.time_attr or "")
        if isinstance(times, np.ndarray):
            self._write(integers(folder / "time.npy", times))
        for name, split in self.added.edge_splits.get(edge_type, {}).items():
            self._write(integers(split_path(folder, name), split))

    def write_edges(self, edge_type: EdgeType, direction: Direction, ends: AddedEnds) -> None:
        """Write the new part's rows of one type and direction, and overlays for old nodes that get edges."""
        entity, book = (edge_type, direction), self.dataset.manifest.book
        own_type = ends_of(*entity)[0]
        added = self._added_edges(entity, self.added.edges[edge_type], ends)
        own_ids = added.own_ids[added.order]
        offsets = book.node_offsets[own_type]
        bounds = np.searchsorted(own_ids, offsets).tolist()
        overlays: list[Overlay] = []
        for part in range(book.num_parts):
            first, stop = bounds[part], bounds[part + 1]
            if first < stop:
                rows, counts = np.unique(own_ids[first:stop] - offsets[part], return_counts=True)
                overlays.append(
                    self._write_overlay(entity, part, _Rows(rows, counts, first + offsets_of(counts)), added)
                )
        if overlays:
            self.overlays[entity] = tuple(overlays)
        num_new = self.added.nodes[own_type].num_nodes
        counts = np.bincount(own_ids[bounds[-1] :] - offsets[-1], minlength=num_new)
        new = _Rows(np.arange(num_new), counts, bounds[-1] + offsets_of(counts))
        self.new_edges[entity] = self._write_rows(entity, edge_folder(self.part, *entity), None, new, added)
        self.on_step()

    def _added_edges(self, entity: EdgeEntity, edges: EdgeTable, ends: AddedEnds) -> AddedEdges:
        other_type, manifest = ends_of(*entity)[1], self.dataset.manifest
        own, other = (ends.dst_ids, ends.src_ids) if entity[1] == "in" else (ends.src_ids, ends.dst_ids)
        own_times = edges.features.get(self.dataset.manifest.time_attr or "")
        times = own_times.astype(np.int64) if isinstance(own_times, np.ndarray) else None
        of_others = self.nodes.times_of(other_type, other)
        if of_others is not None:
            times = of_others if times is None else np.maximum(times, of_others)
        return AddedEdges(
            own_ids=own,
            other_ids=other,
            first_key=self.dataset.manifest.book.num_edges(entity[0]),
            times=times,
            features=edges.features,
            order=np.argsort(own, kind="stable"),
            dtype=number_dtype(self.nodes.num_old(other_type) + self.added.nodes[other_type].num_nodes),
            key_dtype=edge_key_dtype(manifest, manifest.book.num_edges(entity[0]) + edges.num_edges),
            keys_of_others=KeyTable(self.nodes, other_type),
        )

    def _write_overlay(self, entity: EdgeEntity, part: int, rows: _Rows, added: AddedEdges) -> Overlay:
        arrays, folder = self.nodes.part(part), overlay_folder(part, self.number, *entity)
        self._write(integers(folder / "row.npy", rows.rows))
        self._write(integers(folder / "node_key.npy", arrays.node_keys[ends_of(*entity)[0]][rows.rows]))
        num_edges = self._write_rows(entity, folder, RowReader.of(arrays, entity), rows, added)
        return Overlay(
            delta=self.number, part=part, num_rows=len(rows.rows), num_edges=num_edges, num_new=int(rows.counts.sum())
        )

    def _write_rows(
        self, entity: EdgeEntity, folder: PurePosixPath, reader: RowReader | None, rows: _Rows, added: AddedEdges
    ) -> int:
        """Write rows with their new edges and, with a reader, their old edges; return the number of edges."""
        manifest = self.dataset.manifest
        settings = settings_of(manifest)
        old_degrees = reader.spans(rows.rows).counts if reader is not None else np.zeros_like(rows.counts)
        indptr, files = offsets_of(old_degrees + rows.counts), BlockFiles(self.root)
        for begin, end in edge_blocks(manifest, entity, indptr):
            old = reader.read(rows.rows[begin:end]) if reader is not None else None
            places = added.order[rows.starts[begin] : rows.starts[end]]
            run = merged_rows(old, added, places, rows.counts[begin:end], manifest.weight_attr)
            self._check_sums(entity, run, rows.starts[begin : end + 1], added)
            files.add([integers(folder / "indptr.npy", run.indptr), *edge_columns(folder, run, settings)])
        self.files |= files.finish()
        return int(indptr[-1])

    def _check_sums(self, entity: EdgeEntity, run: EdgeRun, starts: IntArray, added: AddedEdges) -> None:
        """Refuse nodes whose weights add up to more than ``write_parts`` allows."""
        if run.weights is None or not len(run.indices):
            return
        with np.errstate(over="ignore"):
            sums = row_sums(run.indptr, run.weights[run.places].astype(np.float64))
        ends = run.indptr[1:][np.diff(run.indptr) > 0] - 1
        if len(ends) and not float(sums[ends].max()) <= MAX_SUM:
            row = int(np.flatnonzero(np.diff(run.indptr))[np.argmax(sums[ends])])
            own_id = added.own_ids[added.order[starts[row] : starts[row] + 1]]
            key = int(self.nodes.keys_of(ends_of(*entity)[0], own_id)[0])
            where = f"{type_label(entity[0])}.{self.dataset.manifest.weight_attr}"
            raise large_sum(where, entity[1], key, float(sums[ends].max()))

    def _write(self, column: StoredColumn) -> None:
        self.files[str(column.path)] = write_blocks(self.root / column.path, column.dtype, column.shape, column.blocks)
