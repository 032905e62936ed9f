"""Adds nodes and edges to a dataset atomically.

New nodes become a part of their own. Old nodes that get edges get complete new rows, which are written beside the old
rows as overlays. All of this is written in the work folder beside the dataset, then moved to places that no manifest
names yet. It becomes part of the dataset when the new manifest replaces the old one. No existing file is changed, so
processes that have the dataset open keep working with its old state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Column, FileRecord, IntArray
from hopstream.dataset.balance import EdgeCut, PartitionReport, StageCost
from hopstream.dataset.book import PartitionBook, number_dtype
from hopstream.dataset.dataset_folder import dataset_to_change, remove_halos, remove_unnamed
from hopstream.dataset.layout import Dataset
from hopstream.dataset.manifest import Manifest, graph_id_of, graph_schema, read_manifest
from hopstream.dataset.paths import edge_key_dtype, part_folder
from hopstream.dataset.rows import DatasetRows
from hopstream.dataset.settings import MAX_PARTS, Progress
from hopstream.engine.atomic_folder import WorkFolder, errors_named, sync, sync_tree
from hopstream.engine.machine import peak_bytes, watched
from hopstream.errors import ChecksumError, FormatError, SettingsError
from hopstream.graph.graph import ByteSum, Graph, GraphChecksums, appended_sums, array_sum, join_sums
from hopstream.ingest.chunked import is_chunked, open_chunked
from hopstream.ingest.user_columns import ColumnLike
from hopstream.preparation.append.addition import NewEdges, NewNodes, RawEnds, addition_of_arrays, arguments_of_chunks
from hopstream.preparation.append.write import AddedEnds, DeltaWriter, NodesAfterAppend
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.ingest.transforms.saved import Transforms


def grown_manifest(
    manifest: Manifest, writer: DeltaWriter, ends: Mapping[EdgeType, AddedEnds], started: float
) -> Manifest:
    """Return the manifest of a dataset after an append.

    Args:
        manifest: Manifest before the append.
        writer: Writer that has written all files.
        ends: Ids of the ends of new edges.
        started: ``time.perf_counter`` at the start of the append.
    """
    added, old = writer.added, manifest.book
    book = PartitionBook(
        num_parts=old.num_parts + 1,
        node_offsets={t: np.append(o, o[-1] + added.nodes[t].num_nodes) for t, o in old.node_offsets.items()},
        edge_offsets={t: np.append(o, o[-1] + writer.new_edges[t]) for t, o in old.edge_offsets.items()},
        deltas=(*old.deltas, writer.delta),
    )
    checksums = grown_checksums(manifest, added)
    cost = StageCost(name="append", seconds=time.perf_counter() - started, peak_bytes=peak_bytes())
    return replace(
        manifest,
        book=book,
        halo=None,  # the halo was built for the old parts
        files=dict(sorted({**manifest.files, **writer.files}.items())),
        checksums=checksums,
        graph_id=graph_id_of(checksums.fingerprint(graph_schema(manifest.schema)), manifest.time_attr),
        report=replace(
            _grown_report(manifest, book, added, ends, writer.files), stages=(*manifest.report.stages, cost)
        ),
    )


def digest_of_addition(manifest: Manifest, added: Graph) -> str:
    """Return the digest of added rows, 32 hexadecimal digits; the same rows give the same digest.

    Splits count by rows and not by keys.

    Args:
        manifest: Manifest before the append.
        added: The new rows.
    """
    book = manifest.book
    splits = {t: {name: keys - book.num_ids(t) for name, keys in of.items()} for t, of in added.splits.items()}
    edge_splits = {
        t: {name: keys - book.num_edges(t) for name, keys in of.items()} for t, of in added.edge_splits.items()
    }
    sums = replace(added, splits=splits, edge_splits=edge_splits).checksums()
    return sums.fingerprint(graph_schema(manifest.schema))


def grown_checksums(manifest: Manifest, added: Graph) -> GraphChecksums:
    """Return the checksums that form the fingerprint of the graph with its new rows."""
    old = manifest.checksums
    num_rows, columns = dict(old.num_rows), dict(old.columns)
    tables: dict[str, tuple[int, list[Column]]] = {
        t: (nodes.num_nodes, list(nodes.features.values())) for t, nodes in added.nodes.items()
    }
    for t, edges in added.edges.items():
        tables[type_label(t)] = (edges.num_edges, [edges.src_keys, edges.dst_keys, *edges.features.values()])
    for label, (more, new) in tables.items():
        num_rows[label] += more
        columns[label] = tuple(
            appended_sums(sums, column) for sums, column in zip(old.columns[label], new, strict=True)
        )
    return GraphChecksums(
        num_rows=num_rows,
        columns=columns,
        splits=_grown_splits(old.splits, added.splits),
        edge_splits=_grown_splits(old.edge_splits, {type_label(t): of for t, of in added.edge_splits.items()}),
    )


def _grown_splits(
    old: Mapping[str, Mapping[str, ByteSum]], added: Mapping[str, Mapping[str, IntArray]]
) -> dict[str, dict[str, ByteSum]]:
    return {
        label: {name: join_sums(total, array_sum(added[label][name])) for name, total in of.items()}
        for label, of in old.items()
    }


def _grown_report(
    manifest: Manifest, book: PartitionBook, added: Graph, ends: Mapping[EdgeType, AddedEnds],
    files: Mapping[str, FileRecord],
) -> PartitionReport:  # fmt: skip
    """Update cut and balance with the new part; bytes of overlays count for the part of their rows."""
    report, num_parts = manifest.report, book.num_parts
    between = np.zeros((num_parts, num_parts), np.int64)
    between[:-1, :-1] = np.array(report.edges_between, np.int64) if report.edges_between else 0
    cuts = dict(report.cuts)
    num_bytes = [*report.bytes, 0]
    for path, record in files.items():
        num_bytes[int(path.partition("/")[0].removeprefix("part-"))] += record.num_bytes
    for edge_type, of_type in ends.items():
        src, dst = book.parts_of(edge_type[0], of_type.src_ids), book.parts_of(edge_type[2], of_type.dst_ids)
        num_cut = int(np.count_nonzero(src != dst))
        before = report.cuts[edge_type]
        cuts[edge_type] = EdgeCut(num_edges=before.num_edges + len(src), num_cut=before.num_cut + num_cut)
        if report.edges_between:
            between += np.bincount(src * num_parts + dst, minlength=num_parts**2).reshape(num_parts, num_parts)
    held = dict(manifest.report.seeds)
    for (entity, name), counts in report.seeds.items():
        more = _added_seeds(manifest, book, added, ends, (entity, name))
        held[entity, name] = tuple((np.array([*counts, 0]) + more).tolist())
    num_nodes = sum(nodes.num_nodes for nodes in added.nodes.values())
    num_edges = sum((book.edges_of_parts(entity) for entity in book.edge_offsets), np.zeros(num_parts, np.int64))
    return replace(
        report, cuts=cuts, nodes=(*report.nodes, num_nodes), edges=tuple(num_edges.tolist()), bytes=tuple(num_bytes),
        seeds=held, edges_between=tuple(map(tuple, between.tolist())) if report.edges_between else (),
    )  # fmt: skip


def _added_seeds(
    manifest: Manifest, book: PartitionBook, added: Graph, ends: Mapping[EdgeType, AddedEnds],
    split: tuple[str | EdgeType, str],
) -> IntArray:  # fmt: skip
    """Return int64[num_parts], the number of new nodes or edges of a split in each part."""
    entity, name = split
    if isinstance(entity, str):
        keys, node_type = added.splits[entity][name], entity  # ids of new nodes are their keys
        return np.bincount(book.parts_of(node_type, keys), minlength=book.num_parts)
    is_in = manifest.directions[0] == "in"
    own = ends[entity].dst_ids if is_in else ends[entity].src_ids
    chosen = own[added.edge_splits[entity][name] - manifest.book.num_edges(entity)]
    return np.bincount(book.parts_of(entity[2] if is_in else entity[0], chosen), minlength=book.num_parts)


def append(  # noqa: PLR0913  one argument for each kind of rows
    dataset: str | Path, *, nodes: Mapping[str, NewNodes] | NewNodes | None = None,
    edges: Mapping[EdgeType | str, NewEdges] | NewEdges | None = None,
    splits: Mapping[str, Mapping[str, ColumnLike]] | Mapping[str, ColumnLike] | None = None,
    edge_splits: Mapping[EdgeType | str, Mapping[str, ColumnLike]] | Mapping[str, ColumnLike] | None = None,
    ids: Mapping[str, str] | None = None, transforms: Transforms | None = None, progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Add nodes and edges to a dataset.

    New nodes get the next keys (and ids) of their type, and new edges the next edge keys. Old nodes and edges keep
    their numbers. A process that opens the dataset afterwards samples as if the graph had been written with the
    additions. A process that has it open keeps the old state.

    Args:
        dataset: The folder of the dataset.
        nodes: Node type to columns of its new nodes by feature, or to their number if the type has no features.
        edges: Edge type, or its label, to ``(src_keys, dst_keys)`` or ``(src_keys, dst_keys, {feature: column})``;
            integer[n] keys of old and new nodes.
        splits: Node type to split to a mask of its new nodes, or to their keys.
        edge_splits: Edge type to split to a mask of its new edges, or to their edge keys. If the dataset has one node
            type or one edge type, all of these may omit the type.
        ids: Node type to a feature with its raw ids. New edges then name old and new nodes of the type by raw id, and
            a new node must not have the raw id of another node.
        transforms: ``read_transforms`` of the dataset: columns are named as in its tables, and features are made of
            them. None: columns are features.
        progress: Called as ``progress("append", done, total)``.

    Returns:
        The new manifest of the dataset.

    Raises:
        FormatError: The folder is no dataset, or one of its files is missing or truncated.
        ChecksumError: The manifest does not match its checksum.
        StateError: Another process changes the dataset now.
        SettingsError: Nothing is to be added, or the dataset cannot grow without being rewritten. Or a feature cannot
            hold raw ids, or two nodes have the same.
        UnknownNameError: The dataset has no such type, feature or split; an append adds none.
        SchemaError: A column is missing, has the wrong dtype or length, or ``write_parts`` would refuse its times or
            weights.
        IdRangeError: An edge names a key or raw id that no old or new node has, or a split names an item that is not
            new.
    """
    given: tuple[Any, Any, Any, Any] = (nodes or {}, edges or {}, splits or {}, edge_splits or {})

    def read(manifest: Manifest, _: Path) -> Graph:
        return addition_of_arrays(manifest, *given, raw=_raw_ends(dataset, manifest, ids), transforms=transforms)

    return _append(Path(dataset), read, progress)


def _raw_ends(dataset: str | Path, manifest: Manifest, ids: Mapping[str, str] | None) -> RawEnds:
    return RawEnds(rows=DatasetRows(local_path(dataset), manifest, takes_sums=False), ids=ids or {})


def folder_rows(
    delta: str | Path, metadata_filename: str, ids: Mapping[str, str]
) -> Callable[[Manifest, Path], tuple[Any, Any, Any, Any, Mapping[str, str]]]:
    """Return a function that reads a folder's new rows as arguments of ``append``.

    The function takes the manifest of the dataset, and a folder for files that must exist as long as the rows.

    Args:
        delta: The folder of a chunked graph, or of described tables.
        metadata_filename: Name of the metadata or the description in it.
        ids: Node type to the feature with its raw ids.
    """
    folder = local_path(delta)
    metadata = folder / metadata_filename

    def read(manifest: Manifest, scratch: Path) -> tuple[Any, Any, Any, Any, Mapping[str, str]]:
        if metadata.is_file() and not is_chunked(metadata):
            from hopstream.ingest.new_rows import read_new_rows  # loads Arrow

            rows = read_new_rows(metadata, manifest.schema, manifest.transforms, ids)
            return rows.nodes, rows.edges, rows.splits, rows.edge_splits, rows.ids
        first_keys = {t: manifest.book.num_ids(t) for t in manifest.schema.nodes}
        graph = open_chunked(folder, metadata_filename, first_keys, raw_types=ids)
        return (*arguments_of_chunks(manifest, graph, scratch), {}, ids)

    return read


def append_folder(
    dataset: str | Path, delta: str | Path, *, metadata_filename: str = "metadata.json", again: bool = False,
    ids: Mapping[str, str] | None = None, progress: Progress | None = None,
) -> Manifest:  # fmt: skip
    """Add a chunked graph, or described tables, to a dataset; see ``append`` for the rest.

    Refuses rows that a delta of the dataset has already added, so the same rows are not added twice by mistake.

    Args:
        dataset: The folder of the dataset.
        delta: The folder of a chunked graph: its counts are of new rows, and its edges name keys, or integer raw ids,
            of old and new nodes. Or the folder of tables with their description, as ``prepare`` reads them: their edges
            name old and new nodes by raw id, and the dataset's transforms are applied.
        metadata_filename: Name of the chunked graph's metadata, or of the description.
        again: Add the rows as further nodes and edges even if a delta has added the same rows.
        ids: As of ``append``. Without it, edges of a chunked graph name keys, and raw ids of tables are in the feature
            named as their column.
        progress: As of ``append``.

    Raises:
        SettingsError: A delta has added the same rows and ``again`` is False, or raw ids of tables are no column.
    """
    rows_of = folder_rows(delta, metadata_filename, ids or {})

    def read(manifest: Manifest, scratch: Path) -> Graph:
        *given, found = rows_of(manifest, scratch)
        return addition_of_arrays(manifest, *given, raw=_raw_ends(dataset, manifest, found))

    def check(manifest: Manifest, digest: str) -> None:
        known = [number for number, known in enumerate(manifest.book.deltas, 1) if known.digest == digest]
        if known and not again:
            raise SettingsError(
                f"the rows of {delta} were already added to {dataset} as delta {known[-1]}; give again=True (--again) "
                "to add them a second time, as further nodes and edges"
            )

    return _append(Path(dataset), read, progress, check)


def _append(
    root: Path, read: Callable[[Manifest, Path], Graph], progress: Progress | None,
    check: Callable[[Manifest, str], None] | None = None,
) -> Manifest:  # fmt: skip
    root = Path(os.path.realpath(local_path(root)))
    with watched(), errors_named(root), dataset_to_change(root) as work:
        dataset = Dataset(root, read_manifest(root))
        check_whole(dataset)
        check_one_disk(dataset, work)
        return add_rows(dataset, work, read, progress, check)


def add_rows(
    dataset: Dataset, work: WorkFolder, read: Callable[[Manifest, Path], Graph], progress: Progress | None = None,
    check: Callable[[Manifest, str], None] | None = None,
) -> Manifest:  # fmt: skip
    """Add nodes and edges to a locked dataset; return the new manifest.

    Args:
        dataset: The dataset, which is whole.
        work: Folder to write in; it is cleared before and after.
        read: Returns the additions, given the manifest and a folder for files that must exist until the end.
        progress: As of ``append``.
        check: Called with the manifest and the digest of the additions; may refuse them.
    """
    root, started = dataset.root, time.perf_counter()
    with _scratch(work) as scratch:
        added = read(dataset.manifest, scratch)
        _check_room(dataset, added)
        digest = digest_of_addition(dataset.manifest, added)
        if check is not None:
            check(dataset.manifest, digest)
        tell = teller(dataset.manifest, progress, "append")
        writer = DeltaWriter(
            root=scratch / "dataset", dataset=dataset, added=added, nodes=NodesAfterAppend(dataset, added),
            digest=digest, on_step=tell,
        )  # fmt: skip
        ends = _write(writer)
        manifest = grown_manifest(dataset.manifest, writer, ends, started)
        sync_tree(writer.root)  # a manifest without its files would make the whole dataset unusable
        try:
            _place(writer, root)
            manifest.write(root)
            sync(root)
        except BaseException:
            remove_unnamed(root, read_manifest(root))
            raise
        remove_halos(root, dataset.manifest, None)
    return manifest


def _write(writer: DeltaWriter) -> dict[EdgeType, AddedEnds]:
    """Write all files; return the ids of the ends of new edges."""
    manifest = writer.dataset.manifest
    for node_type in manifest.schema.nodes:
        writer.write_nodes(node_type)
    ends: dict[EdgeType, AddedEnds] = {}
    for edge_type in manifest.schema.edges:
        edges = writer.added.edges[edge_type]
        ends[edge_type] = AddedEnds(
            src_ids=writer.nodes.ids_of(edge_type[0], edges.src_keys),
            dst_ids=writer.nodes.ids_of(edge_type[2], edges.dst_keys),
        )
        for direction in manifest.directions:
            writer.write_edges(edge_type, direction, ends[edge_type])
        if edge_type in manifest.schema.edge_splits:
            writer.write_links(edge_type)
    return ends


def teller(manifest: Manifest, progress: Progress | None, stage: str) -> Callable[[], None]:
    """Return a function that reports one more table of a dataset as done."""
    total = len(manifest.schema.nodes) + len(manifest.schema.edges) * len(manifest.directions)
    done = iter(range(1, total + 1))
    if progress is None:
        return lambda: None
    progress(stage, 0, total)
    return lambda: progress(stage, next(done), total)


def check_whole(dataset: Dataset) -> None:
    """Refuse a dataset whose graph id does not follow from its checksums, or that lacks parts."""
    manifest = dataset.manifest
    got = graph_id_of(manifest.checksums.fingerprint(graph_schema(manifest.schema)), manifest.time_attr)
    if got != manifest.graph_id:
        raise ChecksumError(
            f"{dataset.root} names graph {manifest.graph_id}; the checksums of its columns are of {got}: verify it"
        )
    missing = [part for part in range(manifest.book.num_parts) if not (dataset.root / part_folder(part)).is_dir()]
    if missing:
        raise FormatError(
            f"{dataset.root} lacks the folders of parts {missing[:20]}; change it in a folder with all parts"
        )


def check_one_disk(dataset: Dataset, work: WorkFolder) -> None:
    """Refuse a dataset on another file system than its work folder, where renames would fail.

    Raises:
        SettingsError: The dataset, or a part, is on another file system than the folder that holds it.
    """
    disk = work.path.stat().st_dev
    for folder in (dataset.root, *(dataset.root / part_folder(p) for p in range(dataset.manifest.book.num_parts))):
        if folder.stat().st_dev != disk:
            raise SettingsError(
                f"{folder} is on another file system than {dataset.root.parent}, where changes are written before "
                "they are moved: mount the folder above the dataset, or change it where both are on one file system"
            )


def _check_room(dataset: Dataset, added: Graph) -> None:
    manifest = dataset.manifest
    book = manifest.book
    if not any(n.num_nodes for n in added.nodes.values()) and not any(e.num_edges for e in added.edges.values()):
        raise SettingsError(f"there is nothing to append to {dataset.root}: give new nodes or new edges")
    if book.num_parts >= MAX_PARTS:
        raise SettingsError(
            f"{dataset.root} has {book.num_parts} parts, the maximum; compact it first: hopstream compact"
        )
    ends = {end for edge_type in manifest.schema.edges for end in (edge_type[0], edge_type[2])}
    for node_type in sorted(ends):
        old, new = book.num_ids(node_type), book.num_ids(node_type) + added.nodes[node_type].num_nodes
        if number_dtype(old) != number_dtype(new):
            raise SettingsError(
                f"{node_type} would grow from {old} to {new} nodes; ids of neighbours are stored in 32 bits, which is "
                "too few: compact first (hopstream compact), or write the grown graph again"
            )
    for edge_type in manifest.schema.edges if manifest.has_edge_keys else ():
        old, new = book.num_edges(edge_type), book.num_edges(edge_type) + added.edges[edge_type].num_edges
        if edge_key_dtype(manifest, old) != edge_key_dtype(manifest, new):
            raise SettingsError(
                f"{type_label(edge_type)} would grow from {old} to {new} edges; keys of edges are stored in 32 bits, "
                "which is too few: write the grown graph again"
            )


@contextmanager
def _scratch(work: WorkFolder) -> Iterator[Path]:
    """Yield an empty folder beside the dataset; clear the work folder before and after."""
    work.clear()
    scratch = work.path / "append"
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        work.clear()


def _place(writer: DeltaWriter, root: Path) -> None:
    """Move the written folders to the places that the new manifest names."""
    delta = f"delta-{writer.number:05d}"
    for folder in sorted(writer.root.iterdir()):
        target = root / folder.name
        if folder.name == str(part_folder(writer.part)):
            folder.rename(target)
        else:
            (folder / delta).rename(target / delta)
