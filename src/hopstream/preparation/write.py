"""Writes a graph as a folder of parts, which appears atomically.

The steps are: assign nodes, write nodes, write edges, write links. Edges are written one edge type and direction at a
time, so the largest of these determines the peak memory. Columns are gathered in blocks while they are written. The
manifest is written last; then the folder is renamed to its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

import hopstream
from hopstream.arrays import FileRecord, IntArray, write_blocks
from hopstream.assign.run import OwnersSource, assign_owners, count_parts, owners_by_type
from hopstream.checks import known_names
from hopstream.dataset.balance import EdgeCut, PartitionReport, StageCost, count_seeds, measure_cut
from hopstream.dataset.book import PartitionBook
from hopstream.dataset.copying.remote_target import write_at
from hopstream.dataset.dataset_folder import replaced_folder
from hopstream.dataset.manifest import Manifest, graph_id_of
from hopstream.dataset.paths import part_folder
from hopstream.dataset.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.dataset.stored_columns import (
    StoredColumn,
    check_time_schema,
    check_times,
    check_weight_schema,
    check_weights,
)
from hopstream.engine.machine import peak_bytes, watched
from hopstream.engine.settings import no_progress
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import Graph, GraphChecksums
from hopstream.ingest.source_paths import check_apart
from hopstream.places.paths import AnyPath, path_of
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.part_columns import PartColumns
from hopstream.schema import EdgeType, GraphSchema, type_label


def write_parts(  # noqa: PLR0913  a graph, a folder, and what either of them is made with
    graph: Graph, out: str | AnyPath, *, settings: PartitionSettings | None = None, owners: OwnersSource | None = None,
    halo: HaloSettings | None = None, overwrite: bool = False, progress: Progress | None = None,
    **options: Unpack[PartitionOptions],
) -> Manifest:  # fmt: skip
    """Partition a graph, and write the parts as a dataset.

    Args:
        graph: The graph; it is checked first.
        out: The folder to write, created if it is missing; or a URI, as of ``prepare``.
        settings: How to partition the graph; None for the defaults.
        owners: For ``method="file"``: a folder with ``<node type>.npy`` or ``<node type>.txt``, or a mapping of node
            type to integer[num_nodes], the part of each node. For a single node type a plain array is enough.
            ``owners`` implies the method. If neither ``settings`` nor ``num_parts`` is given, it also implies the
            number of parts.
        halo: Copies that parts keep, made as by ``add_halo``; None for no halo.
        overwrite: Replace a dataset in ``out`` when the new one is complete; until then the old one stays unchanged.
        progress: Called as ``progress(stage, done, total)``.
        **options: Fields of ``PartitionSettings``; they override ``settings``.

    Returns:
        The new manifest.

    Raises:
        SettingsError: A setting is out of range, or ``graph`` is no ``Graph``. Or ``out`` holds a dataset that must not
            be overwritten, or other files, or one of ``out`` and the folder of owners lies in the other.
        SchemaError: The graph's columns contradict each other, hold invalid times or weights, or ``owners`` does not
            fit the graph.
        IdRangeError: An edge names a node, or ``owners`` a part, that does not exist.
        UnknownNameError: No type has the feature ``time_attr`` or ``weight_attr``, or ``links`` or ``halo`` names
            something that does not exist.
    """
    out = path_of(out)
    if not isinstance(out, Path):
        return write_at(
            out,
            lambda here: write_parts(
                graph, here, settings=settings, owners=owners, halo=halo, progress=progress, **options
            ),
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    given: object = graph
    if not isinstance(given, Graph):
        got = type(given).__name__
        raise SettingsError(
            f"graph is a {got}; wanted a Graph: convert it with hopstream.read_graph or graph_from_data"
        )
    if owners is not None:
        owners = owners_by_type(owners, graph.nodes)
        if isinstance(owners, Path):
            check_apart(out, {"the folder of owners": owners})
        options = {"method": "file", **options}
        if settings is None and "num_parts" not in options:
            num_nodes = {t: table.num_nodes for t, table in graph.nodes.items()}
            options = {**options, "num_parts": count_parts(owners, num_nodes)}
    settings = replace(settings or PartitionSettings(), **options)
    schema = check_graph(graph, settings)
    if halo is not None:
        halo.choose(schema)
    with watched(), replaced_folder(out, overwrite=overwrite) as root:
        manifest = _Writer(root, graph, schema, settings, progress or no_progress).run(owners)
        return manifest if halo is None else with_halo(root, halo, progress)


def check_graph(graph: Graph, settings: PartitionSettings) -> GraphSchema:
    """Check a graph's arrays against the settings; return the schema of its dataset.

    Raises:
        SchemaError: The graph's columns contradict each other, or hold invalid times or weights.
        IdRangeError: An edge names a node that does not exist.
        UnknownNameError: No type has the feature ``time_attr`` or ``weight_attr``, or ``links`` names an unknown type.
    """
    graph.check()
    schema = schema_with_links(graph.schema, settings)
    if settings.time_attr is not None:
        check_times(graph, settings.time_attr)
    if settings.weight_attr is not None:
        check_weights(graph, settings.weight_attr, settings.directions)
    return schema


def with_halo(root: Path, halo: HaloSettings, progress: Progress | None, memory: str | None = None) -> Manifest:
    """Add a halo to a dataset that was just written, within a memory; return the new manifest."""
    from hopstream.preparation.halo.run import add_halo  # avoids a circular import

    return add_halo(root, settings=halo, memory=memory, with_savings=False, progress=progress).manifest


@dataclass(slots=True)
class _Writer:
    """Run of one write, with the records of the written files and the costs of the stages."""

    root: Path
    graph: Graph
    schema: GraphSchema
    settings: PartitionSettings
    progress: Progress
    files: dict[str, FileRecord] = field(default_factory=dict)
    stages: list[StageCost] = field(default_factory=list)

    def run(self, owners_source: OwnersSource | None) -> Manifest:
        num_parts = self.settings.num_parts
        with self._stage("assign"):
            self.progress("assign", 0, 1)
            owners = assign_owners(self.graph, self.settings, owners_source, scratch=self.root)
            self.progress("assign", 1, 1)
        with self._stage("measure"):
            self.progress("measure", 0, 1)
            cuts, edges_between = measure_cut(self.graph, owners, num_parts)
            seeds = count_seeds(self.graph, owners, num_parts, self.settings.directions[0])
            checksums = self.graph.checksums()
            graph_id = graph_id_of(checksums.fingerprint(self.graph.schema), self.settings.time_attr)
            self.progress("measure", 1, 1)
        with self._stage("write"):
            columns = PartColumns(self.graph, self.schema, self.settings, self._write_column, self.progress)
            book = columns.store(owners)
        written = Written(
            schema=self.schema, book=book, graph_id=graph_id, checksums=checksums, files=self.files, cuts=cuts,
            edges_between=edges_between, seeds=seeds, stages=tuple(self.stages), transforms=self.graph.transforms,
        )  # fmt: skip
        manifest = manifest_of(written, self.settings)
        manifest.write(self.root)
        return manifest

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.stages.append(StageCost(name=name, seconds=time.perf_counter() - start, peak_bytes=peak_bytes()))

    def _write_column(self, column: StoredColumn) -> None:
        record = write_blocks(self.root / column.path, column.dtype, column.shape, column.blocks)
        self.files[str(column.path)] = record


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Written:
    """Description of a completely written dataset.

    Attributes:
        schema: Types, features, splits, and the edge types with links.
        book: Ranges of ids.
        graph_id: See ``graph_id_of``.
        checksums: Checksums that the graph's fingerprint is built from.
        files: Path to record.
        cuts: Edge type to its cut.
        edges_between: int64[num_parts, num_parts], or without rows; see ``measure_cut``.
        seeds: See ``count_seeds``.
        stages: Cost of each stage.
        transforms: See ``Graph``.
    """

    schema: GraphSchema
    book: PartitionBook
    graph_id: str
    checksums: GraphChecksums
    files: Mapping[str, FileRecord]
    cuts: Mapping[EdgeType, EdgeCut]
    edges_between: IntArray
    seeds: Mapping[tuple[str | EdgeType, str], tuple[int, ...]]
    stages: tuple[StageCost, ...]
    transforms: Mapping[str, Any] = field(default_factory=dict)


def manifest_of(written: Written, settings: PartitionSettings) -> Manifest:
    """Build the manifest of a written dataset."""
    num_parts = written.book.num_parts
    report = PartitionReport(
        cuts=written.cuts,
        nodes=_part_sizes(written.book.node_offsets.values(), num_parts),
        edges=_part_sizes(written.book.edge_offsets.values(), num_parts),
        bytes=_part_bytes(written.files, num_parts),
        seeds=written.seeds,
        edges_between=tuple(map(tuple, written.edges_between.tolist())),
        stages=written.stages,
    )
    return Manifest(
        schema=written.schema,
        directions=settings.directions,
        book=written.book,
        has_edge_keys=settings.keep_edge_keys,
        files=dict(sorted(written.files.items())),
        made_by={"version": hopstream.__version__, **settings.to_json()},
        report=report,
        graph_id=written.graph_id,
        checksums=written.checksums,
        time_attr=settings.time_attr,
        time_unit=settings.time_unit,
        weight_attr=settings.weight_attr,
        has_neighbor_keys=settings.neighbor_keys,
        has_narrow_keys=True,
        transforms=written.transforms,
    )


def _part_bytes(files: Mapping[str, FileRecord], num_parts: int) -> tuple[int, ...]:
    totals = dict.fromkeys((str(part_folder(p)) for p in range(num_parts)), 0)
    for name, record in files.items():
        totals[name.partition("/")[0]] += record.num_bytes
    return tuple(totals.values())


def schema_with_links(schema: GraphSchema, settings: PartitionSettings) -> GraphSchema:
    """Return a graph's schema, with every edge type whose links are stored among ``edge_splits``.

    Raises:
        UnknownNameError: ``settings.links`` names an edge type that does not exist.
    """
    by_label = {type_label(edge_type): edge_type for edge_type in schema.edges}
    asked = {by_label.get(link) if isinstance(link, str) else link: link for link in settings.links}
    unknown = [link for edge_type, link in asked.items() if edge_type not in schema.edges]
    if unknown:
        raise UnknownNameError(f"links name edge type {unknown[0]!r}; {known_names(unknown[0], by_label)}")
    linked = {t: schema.edge_splits.get(t, ()) for t in schema.edges if t in asked or t in schema.edge_splits}
    return replace(schema, edge_splits=linked)


def checked_schema(schema: GraphSchema, settings: PartitionSettings, halo: HaloSettings | None) -> GraphSchema:
    """Return the schema of a graph's dataset, after checking the names in the settings; no value is read.

    Raises:
        UnknownNameError: A setting names an edge type or a feature that does not exist.
        SchemaError: A feature cannot be times or weights.
    """
    written = schema_with_links(schema, settings)
    if settings.time_attr is not None:
        check_time_schema(written, settings.time_attr)
    if settings.weight_attr is not None:
        check_weight_schema(written, settings.weight_attr)
    if halo is not None:
        halo.choose(written)
    return written


def _part_sizes(ranges: Any, num_parts: int) -> tuple[int, ...]:
    sizes = np.zeros(num_parts, np.int64)
    for offsets in ranges:
        sizes += np.diff(offsets)
    return tuple(sizes.tolist())
