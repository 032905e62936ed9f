"""Writes a dataset again without some nodes and edges, and with other values in some rows of nodes.

Nodes stay in their parts, and everything keeps its order, so rows are copied block by block. Files that stay as they
are become hard links. If rows of edges change, overlays of appends are merged into their parts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from hopstream.arrays import (
    Array,
    Column,
    FileRecord,
    IntArray,
    RaggedArray,
    join_columns,
    offsets_of,
    open_array,
    take_column,
    write_blocks,
)
from hopstream.dataset.balance import EdgeCut, PartitionReport
from hopstream.dataset.book import EdgeEntity, PartitionBook, ends_of, number_dtype
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays
from hopstream.dataset.manifest import Manifest, graph_id_of, graph_schema
from hopstream.dataset.overlays import RowReader
from hopstream.dataset.paths import (
    edge_folder,
    edge_key_dtype,
    expected_edges,
    expected_files,
    expected_nodes,
    expected_overlay,
    feature_paths,
    link_folder,
    node_folder,
    split_path,
)
from hopstream.dataset.read_back import neighbors_of
from hopstream.dataset.rows import EDGE_KEYS, DatasetRows, rows_of_ids
from hopstream.dataset.stored_columns import (
    EdgeRun,
    EdgeTimes,
    StoredColumn,
    check_weight_total,
    edge_columns,
    feature_columns,
    integers,
    sort_edges,
    weights_of,
)
from hopstream.errors import FormatError
from hopstream.graph.graph import GraphChecksums, array_sum
from hopstream.preparation.append.write import BLOCK_BYTES, BlockFiles, edge_blocks, settings_of
from hopstream.preparation.dataset_job_folder import empty_matrix
from hopstream.preparation.revise.removal import EdgeFilter, Pairs, Removed, RemovedEdges
from hopstream.preparation.revise.sums import sums_of_edges, sums_of_nodes
from hopstream.schema import EdgeType, type_label

BLOCK_KEYS = 1 << 20
BLOCK_EDGES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewRows:
    """Other values of some nodes of one type.

    Attributes:
        keys: int64[n], the nodes, ascending, each once.
        features: Feature name to column of n rows.
        splits: Split name to bool[n], whether each node is in the split now.
    """

    keys: IntArray
    features: Mapping[str, Column]
    splits: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgePick:
    """Edges of one type to remove.

    Attributes:
        src_keys: int64[n], the sources of pairs of ends; all edges of a pair are removed.
        dst_keys: int64[n], the destinations.
        keys: Edge keys.
    """

    src_keys: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    dst_keys: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    keys: Removed = field(default_factory=Removed)


@dataclass(frozen=True, slots=True, eq=False)
class _KeysOfNewIds:
    """Lookup of the new keys of one type's new ids; see ``KeysOfIds``."""

    book: KeyBook
    node_type: str
    keys: Removed
    ids: Removed

    def __getitem__(self, ids: Array, /) -> Array:
        return self.keys.after(self.book.keys_of(self.node_type, self.ids.before(ids.astype(np.int64))))


class RevisionWriter:
    """Writer of a changed dataset to an empty folder.

    Attributes:
        files: Path to record of each written or linked file.
    """

    def __init__(
        self, root: Path, dataset: Dataset, *, nodes: Mapping[str, Removed], edges: Mapping[EdgeType, EdgePick],
        rows: Mapping[str, NewRows],
    ) -> None:  # fmt: skip
        """Take the changes; nothing is written yet.

        Args:
            root: The folder.
            dataset: The dataset before.
            nodes: Node type to the keys of removed nodes, for all types.
            edges: Edge type to removed edges, for all types.
            rows: Node type to new values of kept nodes.
        """
        self.files: dict[str, FileRecord] = {}
        self._root, self._dataset, self._new_rows = root, dataset, rows
        self._manifest, self._book = dataset.manifest, dataset.manifest.book
        self._rows, self._keys = DatasetRows(dataset.root, dataset.manifest, takes_sums=False), KeyBook(dataset)
        self._parts: dict[int, PartArrays] = {}
        self._gone_keys = nodes
        self._gone_ids = {t: Removed(np.sort(self._keys.ids_of(t, gone.numbers))) for t, gone in nodes.items()}
        self._filters = {t: self._filter(t, pick) for t, pick in edges.items()}
        self._gone_edges: dict[EdgeType, RemovedEdges] = {}
        self._splits: dict[str | EdgeType, dict[str, IntArray]] = {}
        self._edge_offsets = dict(self._book.edge_offsets)
        entities = self._book.edge_offsets
        self._keeps_rows = not any(self._gets_times(e) or not self._filters[e[0]].is_empty for e in entities)
        self._is_merged = bool(self._book.deltas) and not self._keeps_rows

    def _filter(self, edge_type: EdgeType, pick: EdgePick) -> EdgeFilter:
        src_ids = self._keys.ids_of(edge_type[0], pick.src_keys)
        return EdgeFilter(
            sources=self._gone_ids[edge_type[0]], destinations=self._gone_ids[edge_type[2]],
            pairs=Pairs(src_ids, self._keys.ids_of(edge_type[2], pick.dst_keys)), keys=pick.keys,
        )  # fmt: skip

    def _gets_times(self, entity: EdgeEntity) -> bool:
        """Return whether neighbours of a type and direction get new times."""
        new = self._new_rows.get(ends_of(*entity)[1])
        return new is not None and self._manifest.time_attr in new.features

    def find_edges(self, edge_type: EdgeType) -> int | None:
        """Find the removed edges of a type; return the position of the first pair that has no edge, or None."""
        gone, num_parts = self._filters[edge_type], self._book.num_parts
        keys, own_parts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        num_edges, num_cut, between = 0, 0, empty_matrix(num_parts)
        for src_ids, dst_ids, of_edges in self._ends(edge_type) if not gone.is_empty else ():
            is_gone = gone.removes(src_ids, dst_ids, of_edges)
            src = self._book.parts_of(edge_type[0], src_ids[is_gone])
            dst = self._book.parts_of(edge_type[2], dst_ids[is_gone])
            num_edges, num_cut = num_edges + len(src), num_cut + int(np.count_nonzero(src != dst))
            if len(between):
                between += np.bincount(src * num_parts + dst, minlength=num_parts**2).reshape(between.shape)
            if of_edges is not None:
                keys.append(of_edges[is_gone])
                own_parts.append(dst if self._manifest.directions[0] == "in" else src)
        found = np.concatenate(keys)
        order = np.argsort(found)
        self._gone_edges[edge_type] = RemovedEdges(
            keys=Removed(found[order]), own_parts=np.concatenate(own_parts)[order], num_edges=num_edges,
            num_cut=num_cut, between=between,
        )  # fmt: skip
        return gone.pairs.missing()

    def _ends(self, edge_type: EdgeType) -> Iterator[tuple[IntArray, IntArray, IntArray | None]]:
        """Yield the ids of the sources and destinations of all edges, and their keys if known, in blocks."""
        if edge_type in self._manifest.schema.edge_splits:
            for first, stop in _steps(self._book.num_edges(edge_type), BLOCK_EDGES):
                src, dst = (self._rows.links(edge_type, name, first, stop) for name in ("src_key", "dst_key"))
                ids = self._keys.ids_of(edge_type[0], src), self._keys.ids_of(edge_type[2], dst)
                yield *ids, np.arange(first, stop, dtype=np.int64)
            return
        entity: EdgeEntity = (edge_type, self._manifest.directions[0])
        for block in self._rows.blocks(entity, BLOCK_EDGES):
            own, other = np.repeat(block.row_ids, block.counts), neighbors_of(self._rows, entity, block)
            src, dst = (other, own) if entity[1] == "in" else (own, other)
            keys = None
            if self._manifest.has_edge_keys:
                column = self._rows.columns(entity).named(EDGE_KEYS)
                keys = self._rows.read_spans(entity, column, block.piece, block.starts, block.counts)
            yield src.astype(np.int64), dst.astype(np.int64), keys

    def write(self, scratch: Path, on_step: Callable[[], None]) -> Manifest:
        """Write all files; return the manifest, without the cost of this change.

        Args:
            scratch: An empty folder for temporary files.
            on_step: Called after each table.

        Raises:
            FormatError: A file of the dataset contradicts the others.
            ChecksumError: A file that is written again does not match its checksum.
            SchemaError: All edges of a type that stay have weight 0.
        """
        schema = self._manifest.schema
        for node_type in schema.nodes:
            self._write_nodes(node_type)
            on_step()
        for edge_type in schema.edges:
            for direction in self._manifest.directions:
                if self._rewrites((edge_type, direction)):
                    self._write_edges((edge_type, direction))
                on_step()
            if edge_type in schema.edge_splits:
                self._write_links(edge_type)
        self._link_others()
        manifest = replace(
            self._manifest, book=self._new_book(), halo=None, files=dict(sorted(self.files.items())),
            made_by={**self._manifest.made_by, "num_parts": self._book.num_parts}
        )  # fmt: skip
        checksums = self._checksums(Dataset(self._root, manifest), scratch)
        graph_id = graph_id_of(checksums.fingerprint(graph_schema(schema)), manifest.time_attr)
        return replace(manifest, checksums=checksums, graph_id=graph_id, report=self._report(manifest))

    def _new_book(self) -> PartitionBook:
        book = self._book
        return PartitionBook(
            num_parts=book.num_parts,
            node_offsets={t: self._gone_ids[t].after(offsets) for t, offsets in book.node_offsets.items()},
            edge_offsets=self._edge_offsets, deltas=book.deltas if self._keeps_rows else (),
        )  # fmt: skip

    def _rewrites(self, entity: EdgeEntity) -> bool:
        """Return whether the edges of a type and direction are written again."""
        return self._is_merged or self._gets_times(entity) or not self._filters[entity[0]].is_empty

    def _part(self, number: int) -> PartArrays:
        if number not in self._parts:
            self._parts[number] = self._dataset.open_part(number)
        return self._parts[number]

    def _write_nodes(self, node_type: str) -> None:
        """Write the nodes of a type: all files, or only the changed ones of the parts that have them."""
        new, offsets = self._new_rows.get(node_type), self._book.node_offsets[node_type]
        is_whole = self._is_merged or len(self._gone_keys[node_type]) > 0
        ids, order = np.empty(0, np.int64), np.empty(0, np.int64)
        if new is not None:
            ids = self._keys.ids_of(node_type, new.keys)
            order = np.argsort(ids)
            ids = ids[order]
        for part in range(self._book.num_parts):
            first, stop = int(offsets[part]), int(offsets[part + 1])
            begin, end = np.searchsorted(ids, (first, stop)).tolist()
            rows, folder = self._gone_ids[node_type].kept(first, stop) - first, node_folder(part, node_type)
            if is_whole:
                names = (name for name, _ in expected_nodes(self._manifest.schema, self._book, part))
                self._rows.check_files(name for name in names if name.startswith(f"{folder}/"))
                keys = self._part(part).node_keys[node_type]
                self._write([integers(folder / "key.npy", self._gone_keys[node_type].after(keys[rows]))])
            for name in self._manifest.schema.nodes[node_type]:
                is_changed = new is not None and name in new.features and end > begin
                if is_whole or is_changed:
                    if not is_whole:
                        self._check(feature_paths(folder, name, self._manifest.schema.nodes[node_type][name]))
                    changed = None
                    if new is not None and is_changed:
                        changed = take_column(new.features[name], order[begin:end])
                    places = np.searchsorted(rows, ids[begin:end] - first) if changed is not None else order[:0]
                    old = self._part(part).node_features[node_type][name]
                    self._write_feature(folder, name, old, rows, places, changed)
        if is_whole:
            self._write_ids(node_type)
        self._write_splits(node_type, is_whole=is_whole)

    def _write_feature(
        self, folder: PurePosixPath, name: str, old: Column, rows: IntArray, places: IntArray, new: Column | None
    ) -> None:
        """Write some rows of a feature, where the rows at ``places`` have new values."""
        files = BlockFiles(self._root)
        for begin, end in _column_blocks(old, rows):
            block = take_column(old, rows[begin:end])
            first, stop = np.searchsorted(places, (begin, end)).tolist()
            if new is not None and stop > first:
                order = np.arange(end - begin)
                order[places[first:stop] - begin] = end - begin + np.arange(stop - first)
                block = take_column(join_columns([block, take_column(new, np.arange(first, stop))]), order)
            files.add(feature_columns(folder, {name: block}, np.arange(end - begin)))
        self.files |= files.finish()

    def _write_ids(self, node_type: str) -> None:
        """Write the ids of new keys, in the slices of all parts."""
        slices, gone = self._new_book().key_offsets(node_type), self._gone_keys[node_type]
        for part in range(self._book.num_parts):
            files, path = BlockFiles(self._root), node_folder(part, node_type) / "id_of_key.npy"
            files.add([integers(path, np.empty(0, np.int64))])
            first = int(slices[part])
            for begin, end in _steps(int(slices[part + 1]) - first, BLOCK_KEYS):
                old_keys = gone.before(np.arange(first + begin, first + end, dtype=np.int64))
                ids = self._gone_ids[node_type].after(self._keys.ids_of(node_type, old_keys))
                files.add([integers(path, ids)])
            self.files |= files.finish()

    def _write_splits(self, node_type: str, *, is_whole: bool) -> None:
        new = self._new_rows.get(node_type)
        for name in self._manifest.schema.splits.get(node_type, ()):
            given = None if new is None else new.splits.get(name)
            if not is_whole and given is None:
                continue
            slices = self._new_book().key_offsets(node_type)
            paths = [split_path(node_folder(part, node_type), name) for part in range(len(slices) - 1)]
            self._check(paths)
            keys = np.concatenate([np.empty(0, np.int64), *self._rows.splits(node_type, name, BLOCK_KEYS)])
            if new is not None and given is not None:
                keys = np.sort(np.concatenate([keys[~Removed(new.keys).has(keys)], new.keys[given]]))
            gone = self._gone_keys[node_type]
            keys = gone.after(keys[~gone.has(keys)])
            self._splits.setdefault(node_type, {})[name] = keys
            self._write_slices(keys, slices, paths)

    def _write_slices(self, keys: IntArray, slices: IntArray, paths: Sequence[PurePosixPath]) -> None:
        bounds = np.searchsorted(keys, slices).tolist()
        self._write([integers(path, keys[bounds[part] : bounds[part + 1]]) for part, path in enumerate(paths)])

    def _write_edges(self, entity: EdgeEntity) -> None:
        """Write the edges of a type and direction that stay."""
        settings, totals, weight = settings_of(self._manifest), [0], 0.0
        for part in range(self._book.num_parts):
            self._check_rows(part, entity)
            reader, folder = RowReader.of(self._part(part), entity), edge_folder(part, *entity)
            counts = reader.spans(np.arange(reader.num_rows)).counts
            files, num_edges = BlockFiles(self._root), 0
            for begin, end in edge_blocks(self._manifest, entity, offsets_of(counts)):
                run = self._kept(entity, part, begin, reader.read(np.arange(begin, end)))
                files.add([integers(folder / "indptr.npy", run.indptr), *edge_columns(folder, run, settings)])
                num_edges += len(run.indices)
                if run.weights is not None:
                    with np.errstate(over="ignore"):
                        weight += float(run.weights[run.places].sum(dtype=np.float64))
            self.files |= files.finish()
            totals.append(totals[-1] + num_edges)
        self._edge_offsets[entity] = np.array(totals, np.int64)
        if self._manifest.weight_attr in self._manifest.schema.edges[entity[0]]:
            check_weight_total(f"{type_label(entity[0])}.{self._manifest.weight_attr}", totals[-1], weight)

    def _kept(self, entity: EdgeEntity, part: int, first_row: int, old: EdgeArrays) -> EdgeRun:
        """Return the edges that stay of some rows, in stored order."""
        own_type, other_type = ends_of(*entity)
        num_rows, gone = len(old.indptr) - 1, self._gone_ids[other_type]
        own_ids = int(self._book.node_offsets[own_type][part]) + first_row + np.arange(num_rows)
        row_of_edge = np.repeat(np.arange(num_rows), np.diff(old.indptr))
        own, other = own_ids[row_of_edge], old.indices.astype(np.int64)
        ends = (other, own) if entity[1] == "in" else (own, other)
        places = np.flatnonzero(~self._filters[entity[0]].removes(*ends, old.keys))
        counts = np.bincount(row_of_edge[places], minlength=num_rows)
        indptr = offsets_of(counts[~self._gone_ids[own_type].has(own_ids)])
        dtype = number_dtype(self._book.num_ids(other_type) - len(gone))
        indices = gone.after(other[places]).astype(dtype)
        keys = np.zeros(len(places), np.int64)
        if old.keys is not None:
            keys = self._gone_edges[entity[0]].keys.after(old.keys[places])
        times = self._new_times(other_type, other, old) if self._gets_times(entity) else old.times
        edge_times = None if times is None else EdgeTimes(own=times, neighbor=None, neighbor_keys=None)
        if edge_times is not None and times is not old.times:
            rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            order = np.lexsort((keys, rows))
            indices, keys, places = indices[order], keys[order], places[order]
            sort_edges(indptr, places, indices, edge_times, keys)
        key_dtype = edge_key_dtype(
            self._manifest, self._book.num_edges(entity[0]) - len(self._gone_edges[entity[0]].keys)
        )
        return EdgeRun(
            indptr=indptr, indices=indices, keys=keys.astype(key_dtype), places=places, times=edge_times,
            features=old.features,
            neighbor_keys=_KeysOfNewIds(self._keys, other_type, self._gone_keys[other_type], gone),
            weights=weights_of(old.features, self._manifest.weight_attr),
        )  # fmt: skip

    def _new_times(self, other_type: str, others: IntArray, old: EdgeArrays) -> IntArray:
        """Return int64[n], the times of edges whose neighbours have new times."""
        name = self._manifest.time_attr or ""
        paths = [
            feature_paths(node_folder(p, other_type), name, self._manifest.schema.nodes[other_type][name])[0]
            for p in range(self._book.num_parts)
        ]
        columns = [
            open_array(self._root / path, self.files[str(path)])
            if str(path) in self.files
            else self._part(p).node_features[other_type][name]
            for p, path in enumerate(paths)
        ]
        # Nodes are removed and get new times in different calls, so ids are the same before and after.
        times = np.asarray(rows_of_ids(columns, self._book.node_offsets[other_type], others)).astype(np.int64)
        own = old.features.get(name)
        return np.maximum(times, own.astype(np.int64)) if isinstance(own, np.ndarray) else times

    def _write_links(self, edge_type: EdgeType) -> None:
        """Write the links of the edges of a type that stay, and the splits of its edges."""
        if not self._is_merged and self._filters[edge_type].is_empty:
            return
        gone, slices = self._gone_edges[edge_type].keys, self._new_book().link_offsets(edge_type)
        folders = [link_folder(part, edge_type) for part in range(self._book.num_parts)]
        times = ["time"] * (self._manifest.time_attr in self._manifest.schema.edges[edge_type])
        for name in ("src_key", "dst_key", *times):
            self._check([folder / f"{name}.npy" for folder in folders])
            files, done = BlockFiles(self._root), 0
            files.add(integers(folder / f"{name}.npy", np.empty(0, np.int64)) for folder in folders)
            for first, stop in _steps(self._book.num_edges(edge_type), BLOCK_KEYS):
                values = self._rows.links(edge_type, name, first, stop)[gone.kept(first, stop) - first]
                if name != "time":
                    values = self._gone_keys[edge_type[0 if name == "src_key" else 2]].after(values)
                bounds = np.clip(slices - done, 0, len(values)).tolist()
                files.add(
                    integers(folder / f"{name}.npy", values[bounds[part] : bounds[part + 1]])
                    for part, folder in enumerate(folders)
                    if bounds[part + 1] > bounds[part]
                )
                done += len(values)
            self.files |= files.finish()
        for name in self._manifest.schema.edge_splits[edge_type]:
            self._check([split_path(folder, name) for folder in folders])
            keys = np.concatenate([np.empty(0, np.int64), *self._rows.splits(edge_type, name, BLOCK_KEYS)])
            keys = gone.after(keys[~gone.has(keys)])
            self._splits.setdefault(edge_type, {})[name] = keys
            self._write_slices(keys, slices, [split_path(folder, name) for folder in folders])

    def _write(self, columns: Sequence[StoredColumn]) -> None:
        for column in columns:
            path = self._root / column.path
            self.files[str(column.path)] = write_blocks(path, column.dtype, column.shape, column.blocks)

    def _check(self, paths: Sequence[PurePosixPath]) -> None:
        """Check files before their content is written again under a new checksum."""
        self._rows.check_files(map(str, paths))

    def _check_rows(self, part: int, entity: EdgeEntity) -> None:
        """Check the files of a part's edges, overlays included."""
        files = [expected_edges(self._manifest, part, *entity)]
        overlays = (overlay for overlay in self._book.overlays(entity) if overlay.part == part)
        files += [expected_overlay(self._manifest, overlay, *entity) for overlay in overlays]
        self._rows.check_files(name for of in files for name, _ in of)

    def _link_others(self) -> None:
        """Link the files that stay as they are; copy them where the file system has no hard links."""
        contents = replace(self._manifest, book=self._new_book(), halo=None)
        for part in range(self._book.num_parts):
            for name, _ in expected_files(contents, part):
                if name in self.files:
                    continue
                target = self._root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self._dataset.root / name, target)
                except FileNotFoundError:
                    raise FormatError(f"{self._dataset.root / name} is missing; write the dataset again") from None
                except OSError:
                    shutil.copyfile(self._dataset.root / name, target)
                self.files[name] = self._manifest.files[name]

    def _checksums(self, dataset: Dataset, scratch: Path) -> GraphChecksums:
        """Return the checksums of the graph; those of unchanged columns are known."""
        old, schema, book = self._manifest.checksums, self._manifest.schema, dataset.manifest.book
        columns = dict(old.columns)
        for node_type, features in schema.nodes.items():
            new, names = self._new_rows.get(node_type), list(features)
            if not len(self._gone_keys[node_type]):
                names = [] if new is None else [name for name in names if name in new.features]
            found = sums_of_nodes(dataset, node_type, names)
            columns[node_type] = tuple(
                found.get(name, sums) for name, sums in zip(features, old.columns[node_type], strict=True)
            )
        for edge_type in schema.edges:
            if not self._filters[edge_type].is_empty:
                columns[type_label(edge_type)] = tuple(sums_of_edges(dataset, edge_type, scratch))
        splits = {type_label(t): {name: array_sum(keys) for name, keys in of.items()} for t, of in self._splits.items()}
        return GraphChecksums(
            num_rows={t: book.num_ids(t) for t in schema.nodes}
            | {type_label(t): book.num_edges(t) for t in schema.edges},
            columns=columns,
            splits={t: {**of, **splits.get(t, {})} for t, of in old.splits.items()},
            edge_splits={t: {**of, **splits.get(t, {})} for t, of in old.edge_splits.items()},
        )

    def _report(self, manifest: Manifest) -> PartitionReport:
        """Return the report without what was removed."""
        report, book, num_parts = self._manifest.report, manifest.book, self._book.num_parts
        between = np.array(report.edges_between, np.int64)
        cuts, seeds = dict(report.cuts), dict(report.seeds)
        for t, gone in self._gone_edges.items():
            cuts[t] = EdgeCut(num_edges=cuts[t].num_edges - gone.num_edges, num_cut=cuts[t].num_cut - gone.num_cut)
            between = between - gone.between if len(between) else between
            for name in self._splits.get(t, {}):
                keys = np.concatenate([np.empty(0, np.int64), *self._rows.splits(t, name, BLOCK_KEYS)])
                is_lost = Removed(keys).has(gone.keys.numbers)
                lost = np.bincount(gone.own_parts[is_lost], minlength=num_parts)
                seeds[t, name] = tuple((np.array(seeds[t, name]) - lost).tolist())
        new_keys = KeyBook(Dataset(self._root, manifest))
        for entity, of in self._splits.items():
            for name, keys in of.items() if isinstance(entity, str) else ():
                parts = new_keys.part_of(entity, keys)  # type: ignore[arg-type]
                seeds[entity, name] = tuple(np.bincount(parts, minlength=num_parts).tolist())
        num_bytes = np.zeros(num_parts, np.int64)
        for path, record in manifest.files.items():
            num_bytes[int(path.partition("/")[0].removeprefix("part-"))] += record.num_bytes
        nodes = sum((np.diff(offsets) for offsets in book.node_offsets.values()), np.zeros(num_parts, np.int64))
        edges = sum((book.edges_of_parts(entity) for entity in book.edge_offsets), np.zeros(num_parts, np.int64))
        return replace(
            report, cuts=cuts, nodes=tuple(nodes.tolist()), edges=tuple(edges.tolist()), seeds=seeds,
            bytes=tuple(num_bytes.tolist()), edges_between=tuple(map(tuple, between.tolist())),
        )  # fmt: skip


def _steps(num_rows: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, num_rows)) for first in range(0, num_rows, step))


def _column_blocks(column: Column, rows: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of ``rows`` whose values fit into memory; without rows, one empty range."""
    if not len(rows):
        yield 0, 0
    elif isinstance(column, RaggedArray):
        element_bytes = max(1, column.values.itemsize * int(np.prod(column.values.shape[1:], dtype=np.int64)))
        lengths = offsets_of(column.offsets[rows + 1] - column.offsets[rows])
        for begin, end, _, _ in row_chunks(lengths, max(1, BLOCK_BYTES // max(8, element_bytes))):
            yield begin, end
    else:
        row_bytes = max(1, column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64)))
        yield from _steps(len(rows), max(1, BLOCK_BYTES // row_bytes))
