"""Divides a dispatch job so that it fits the memory, and opens the graph and the files for tasks.

[Memory] Each process needs ``REST_BYTES`` before it does anything. The workers share the rest evenly, and no piece, run
    or block of columns is larger than a worker's share allows. Tables of ids are mapped, not read; they count for the
    processes that look ids up in them.
[Disk] The dataset itself; the spilled edges of one edge type at a time; four bytes per node for its id; little else.
    Halos are made after spilled edges are removed; see ``halo.costs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.assign.owners import BLOCK_ROWS
from hopstream.dataset.book import Entity, PartitionBook, ends_of, number_dtype
from hopstream.dataset.regions import RegionWriter
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import Allotment, Needs, rounded_up
from hopstream.ingest.chunked import ChunkedEdges, ChunkedGraph, open_chunked, ragged_features
from hopstream.preparation.dataset_job import DatasetContents, DatasetEstimate
from hopstream.preparation.dataset_job_folder import (
    IDS,
    REST_BYTES,
    DatasetJobFolder,
    DatasetJobSpec,
    Places,
    work_needs,
)
from hopstream.preparation.halo.costs import HaloCosts, halo_costs, halos_text, least_memory_bytes
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.write import schema_with_links
from hopstream.schema import Direction, EdgeType, GraphSchema, timed_edge_types

GUESSES = 1 << 12
"""Entries of the table that maps the high bits of an id to a guess of its bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """Bounds of task sizes, if the memory allows; least and most of each.

    Attributes:
        piece_edges: Edges that are spilled, or sorted, at a time.
        bucket_edges: Edges of a bucket, on average.
        column_bytes: Bytes of a feature that are read at a time.
    """

    piece_edges: tuple[int, int] = (1 << 18, 1 << 24)
    bucket_edges: tuple[int, int] = (1 << 16, 1 << 20)
    column_bytes: tuple[int, int] = (4 << 20, 64 << 20)


LIMITS = DispatchLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSpec(DatasetJobSpec):
    """Everything that determines a dispatch job's tasks; ``source`` is the chunked graph's folder.

    Attributes:
        metadata_filename: Name of the metadata file in that folder.
        limits: Bounds of task sizes.
    """

    limits_type = DispatchLimits
    metadata_filename: str
    limits: DispatchLimits = field(default_factory=lambda: LIMITS)

    def piece_edges(self, edges: ChunkedEdges) -> int:
        """Return the number of edges per spill task: ids of both ends, their buckets, and the grouped columns."""
        widest = max((column.row_bytes for column in edges.features.values()), default=0)
        most = self.budget_bytes // (44 + 3 * widest)
        return _within(self.share(edges.num_edges), self.limits.piece_edges, most)

    def run_edges(self, edges: ChunkedEdges) -> int:
        """Return the number of edges that are sorted at a time, with their stored columns and features."""
        most = self.budget_bytes // (40 + sum(column.row_bytes for column in edges.features.values()))
        return _within(self.share(edges.num_edges), self.limits.piece_edges, most)

    def column_rows(self, num_rows: int, row_bytes: int) -> int:
        """Return the number of rows of a feature that are read at a time."""
        most = self.budget_bytes // 4
        num_bytes = _within(self.share(num_rows * row_bytes), self.limits.column_bytes, most)
        return max(1, num_bytes // max(1, row_bytes))

    @property
    def ragged_bytes(self) -> int:
        """Bytes of ragged rows that are reordered at a time."""
        return max(1, min(self.limits.column_bytes[1], self.budget_bytes // 4))

    @property
    def longest_row_bytes(self) -> int:
        """Most bytes of one ragged row, which is in memory encoded, decoded, and reordered."""
        return max(1, self.budget_bytes // 4)

    def bucket_edges(self, edges: ChunkedEdges) -> int:
        """Return the average number of edges per bucket: a quarter of a run, so that runs are well filled."""
        low, high = self.limits.bucket_edges
        return min(max(self.run_edges(edges) // 4, low), high)


def _within(value: int, bounds: tuple[int, int], most: int) -> int:
    """Return the value between two bounds, but never above ``most``, and at least 1."""
    return max(1, min(max(value, bounds[0]), bounds[1], most))


def mapped_bytes(graph: ChunkedGraph, settings: PartitionSettings) -> int:
    """Return the most bytes of tables of nodes that one task maps."""
    num_tables = 1 + settings.neighbor_keys
    most = 0
    for edge_type in graph.edges:
        types = {edge_type[0], edge_type[2]}
        most = max(most, sum(graph.nodes[t].num_nodes for t in types))
    return most * (4 * num_tables + 8 * (settings.time_attr is not None))


def reads_ragged(graph: ChunkedGraph) -> bool:
    """Return whether a graph has strings, or lists of varying length."""
    tables = [of.features for of in graph.nodes.values()] + [of.features for of in graph.edges.values()]
    return any(map(ragged_features, tables))


def dispatch_needs(graph: ChunkedGraph, settings: PartitionSettings, halo: HaloSettings | None) -> tuple[Needs, ...]:
    """Return the memory that dispatching needs; workers are idle, but alive, while halos are made."""
    work = work_needs(mapped_bytes(graph, settings), reads_ragged=reads_ragged(graph))
    if halo is None or halo.is_nothing or settings.num_parts == 1:
        return (work,)
    num_nodes = sum(nodes.num_nodes for nodes in graph.nodes.values())
    least = rounded_up(least_memory_bytes(num_nodes))  # ``halo_allotment`` checks the remaining memory again
    return work, Needs(alone_bytes=least, parent_bytes=least, worker_bytes=REST_BYTES, what=halos_text(num_nodes))


def memory_for_halos(work: Allotment) -> str:
    """Return the memory of a job that remains for halos."""
    return str(work.memory_bytes - work.num_workers * REST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdStretches:
    """Ranges of ids (buckets) of one node type; each lies in one part, and each part has at least one.

    Attributes:
        starts: int64[num_buckets + 1], bucket ``b`` has the ids ``[starts[b], starts[b + 1])``.
        parts: int64[num_buckets], the part of each bucket.
        guesses: int64[m], see ``find_buckets``.
        shift: See ``find_buckets``.
    """

    starts: IntArray
    parts: IntArray
    guesses: IntArray
    shift: int

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self.parts)

    def part_firsts(self) -> IntArray:
        """Return int64[num_parts + 1], the first bucket of each part."""
        return np.searchsorted(self.parts, np.arange(int(self.parts[-1]) + 2))


def make_buckets(node_offsets: IntArray, num_buckets: int) -> IdStretches:
    """Cut the ids of a node type into about ``num_buckets`` buckets of even width."""
    num_nodes, sizes = int(node_offsets[-1]), np.diff(node_offsets)
    wanted = -(-sizes * num_buckets // max(1, num_nodes))
    counts = np.maximum(1, np.minimum(wanted, sizes))
    parts = np.repeat(np.arange(len(sizes), dtype=np.int64), counts)
    places = np.arange(len(parts)) - offsets_of(counts)[parts]
    starts = np.append(node_offsets[parts] + sizes[parts] * places // counts[parts], num_nodes).astype(np.int64)
    shift = max(0, int(num_nodes - 1).bit_length() - GUESSES.bit_length() + 1) if num_nodes else 0
    firsts = np.arange((max(0, num_nodes - 1) >> shift) + 1, dtype=np.int64) << shift
    # If several buckets begin at one id, all but the last are empty, and the lookup of later ids steps over them.
    guesses = np.searchsorted(starts, firsts, side="right") - 1
    return IdStretches(starts=starts, parts=parts, guesses=np.minimum(guesses, len(parts) - 1), shift=shift)


def estimate(
    graph: ChunkedGraph, schema: GraphSchema, settings: PartitionSettings, halo: HaloSettings | None = None
) -> DatasetEstimate:
    """Estimate the costs of a job."""
    dataset = scratch = spill = read = 0
    for node_type, nodes in graph.nodes.items():
        features = sum(column.row_bytes for column in nodes.features.values())
        masks = len(nodes.masks)
        dataset += nodes.num_nodes * (16 + features + 8 * masks)
        read += nodes.num_nodes * (4 + features + masks)
        tables = 1 + settings.neighbor_keys
        has_times = settings.time_attr in schema.nodes[node_type]
        scratch += nodes.num_nodes * (tables * number_dtype(nodes.num_nodes).itemsize + 8 * has_times)
    for edge_type, edges in graph.edges.items():
        features = sum(column.row_bytes for column in edges.features.values())
        read += edges.num_edges * (16 + features)
        spilled = sum(spill_row_bytes(graph, edge_type, d) for d in settings.directions) * edges.num_edges
        spilled += 8 * edges.num_edges * len(ragged_features(edges.features))  # their lengths
        spill = max(spill, spilled)
        for direction in settings.directions:
            own_type, other_type = ends_of(edge_type, direction)
            ids = number_dtype(graph.nodes[other_type].num_nodes).itemsize
            per_edge = ids * (1 + settings.neighbor_keys) + features
            per_edge += number_dtype(edges.num_edges).itemsize * settings.keep_edge_keys
            per_edge += 8 * (edge_type in timed_edge_types(schema, settings.time_attr, direction))
            per_edge += 20 * (settings.weight_attr in edges.features)
            dataset += edges.num_edges * per_edge + 8 * graph.nodes[own_type].num_nodes
        if edge_type in schema.edge_splits:
            dataset += edges.num_edges * (16 + 8 * (settings.time_attr in edges.features))
    of_halos = HaloCosts() if halo is None else _halo_costs(graph, schema, settings, halo)
    return DatasetEstimate(
        dataset_bytes=dataset, spill_bytes=spill, scratch_bytes=scratch, input_bytes=read, halo=of_halos
    )  # fmt: skip


def _halo_costs(graph: ChunkedGraph, schema: GraphSchema, settings: PartitionSettings, halo: HaloSettings) -> HaloCosts:
    """Estimate the costs of halos before part sizes are known: all rows count for the last part."""

    def in_last(total: int) -> IntArray:
        return np.append(np.zeros(settings.num_parts, np.int64), total)

    edges = {(t, d): in_last(graph.edges[t].num_edges) for t in graph.edges for d in settings.directions}
    book = PartitionBook(
        num_parts=settings.num_parts, node_offsets={t: in_last(n.num_nodes) for t, n in graph.nodes.items()},
        edge_offsets=edges,
    )  # fmt: skip
    features = halo.choose(schema)
    feature_bytes: dict[Entity, int] = {
        t: graph.nodes[t].num_nodes * sum(graph.nodes[t].features[name].row_bytes for name in names)
        for t, names in features.nodes.items()
    }
    for t, names in features.edges.items():
        num_bytes = graph.edges[t].num_edges * sum(graph.edges[t].features[name].row_bytes for name in names)
        feature_bytes |= {(t, d): num_bytes for d in settings.directions}
    return halo_costs(DatasetContents.of(schema, settings, book), halo, feature_bytes)


def spill_row_bytes(graph: ChunkedGraph, edge_type: EdgeType, direction: Direction) -> int:
    """Return the bytes of one spilled edge."""
    own_type, other_type = ends_of(edge_type, direction)
    ids = sum(number_dtype(graph.nodes[t].num_nodes).itemsize for t in (own_type, other_type))
    return ids + 4 + sum(column.row_bytes for column in graph.edges[edge_type].features.values())


class DispatchFolder(DatasetJobFolder[DispatchSpec]):
    """Folder of a job, seen by a task. Tables: ``ids`` (by key), ``keys`` and ``times`` (by id)."""

    spec_type = DispatchSpec

    @cached_property
    def graph(self) -> ChunkedGraph:
        """The source."""
        return open_source(self.spec)

    @cached_property
    def schema(self) -> GraphSchema:
        """The dataset's schema."""
        return schema_with_links(self.graph.schema, self.spec.settings)

    @cached_property
    def node_types(self) -> list[str]:
        """Node types; file names contain the position of a type in this list."""
        return list(self.graph.nodes)

    def num_nodes(self, node_type: str) -> int:
        """Return the number of nodes of a type."""
        return self.graph.nodes[node_type].num_nodes

    def split_names(self, node_type: str) -> Sequence[str]:
        """Return the names of the splits of a node type."""
        return list(self.graph.nodes[node_type].masks)

    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """Yield the keys of a split of nodes, ascending, in blocks."""
        mask = self.graph.nodes[node_type].masks[name]
        for first in range(0, mask.num_rows, BLOCK_ROWS):
            yield first + np.flatnonzero(mask.read(first, min(first + BLOCK_ROWS, mask.num_rows)))

    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Yield name and dtype of the tables of a node type."""
        yield IDS, self.id_dtype(node_type)
        if self.spec.settings.neighbor_keys:
            yield "keys", self.id_dtype(node_type)
        if self.spec.settings.time_attr in self.schema.nodes[node_type]:
            yield "times", np.dtype(np.int64)

    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Store keys by id, if they are stored with edges."""
        name, dtype = self.table_name("keys", node_type), self.id_dtype(node_type)
        for _, of_part in places if self.spec.settings.neighbor_keys else ():
            tables.write_blocks(name, dtype, int(ids[of_part[0]]) * dtype.itemsize, [first_key + of_part])

    @property
    def block_rows(self) -> int:
        """Number of node rows that are processed together."""
        return BLOCK_ROWS

    def edges(self, edge_type: EdgeType) -> ChunkedEdges:
        """Return the source's edges of a type."""
        return self.graph.edges[edge_type]

    def number_of(self, edge_type: EdgeType) -> int:
        """Return the position of an edge type in the schema, which file names contain."""
        return list(self.graph.edges).index(edge_type)

    def buckets(self, edge_type: EdgeType, direction: Direction) -> IdStretches:
        """Return the ranges of ids that edges of a type and direction are spilled by."""
        edges = self.edges(edge_type)
        num_buckets = -(-edges.num_edges // self.spec.bucket_edges(edges))
        return make_buckets(self.node_offsets(ends_of(edge_type, direction)[0]), num_buckets)

    def spill_path(self, edge_type: EdgeType, direction: Direction, number: int) -> Path:
        """Return the file of one piece's edges."""
        return self.spill_folder(edge_type) / f"{direction}-{number:06d}.spill"

    def spill_folder(self, edge_type: EdgeType) -> Path:
        """Return the folder of an edge type's spilled edges."""
        return self.scratch / "spill" / str(self.number_of(edge_type))

    def totals_path(self, edge_type: EdgeType, direction: Direction, feature: str | None = None) -> Path:
        """Return the file of running totals by bucket: of edges, or of the elements of a ragged feature."""
        suffix = "" if feature is None else f"-{list(self.edges(edge_type).features).index(feature)}"
        return self.scratch / "totals" / f"{self.number_of(edge_type)}-{direction}{suffix}.npy"

    def lengths_name(self, edge_type: EdgeType, feature: str) -> PurePosixPath:
        """Return the scratch file with each edge's length of a ragged feature, int64[num_edges]."""
        number = list(self.edges(edge_type).features).index(feature)
        return PurePosixPath("spill", str(self.number_of(edge_type)), f"lengths-{number}.npy")

    def firsts_path(self, node_type: str, feature: str) -> Path:
        """Return the file of each task's first elements of a ragged feature, int64[num_tasks, num_parts]."""
        number = list(self.graph.nodes[node_type].features).index(feature)
        return self.scratch / "firsts" / f"{self.node_types.index(node_type)}-{number}.npy"


def open_source(spec: DispatchSpec) -> ChunkedGraph:
    """Open the chunked graph that a job reads."""
    return open_chunked(spec.source, spec.metadata_filename)
