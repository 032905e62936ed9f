"""Cuts a dispatch job so that it fits the memory, and gives its tasks the chunked graph and their files.

[Memory] Each process is taken to need ``REST_BYTES`` before it does anything. What is left is shared out evenly among
    the workers, and no piece, run or block of columns is larger than its worker's share allows. Tables of ids are
    mapped, not read: they count for the processes that look ids up in them.
[Disk] The dataset itself; the spilled edges of one edge type at a time; four bytes per node for its id; little else.
    Halos are made when spilled edges are gone; see ``halo.costs``.
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
from hopstream.dataset.book import PartitionBook, ends_of, neighbor_dtype
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
"""Entries of the table that tells an id's bucket by its high bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """Between which sizes work is cut, where the memory allows; least and most of each.

    Attributes:
        piece_edges: Of edges that are spilled, or put in order, at a time.
        bucket_edges: Of edges of a bucket, on average.
        column_bytes: Of a feature that are read at a time.
    """

    piece_edges: tuple[int, int] = (1 << 18, 1 << 24)
    bucket_edges: tuple[int, int] = (1 << 16, 1 << 20)
    column_bytes: tuple[int, int] = (4 << 20, 64 << 20)


LIMITS = DispatchLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSpec(DatasetJobSpec):
    """All that decides over what the tasks of a dispatch job do; ``source`` is the folder of the chunked graph.

    Attributes:
        metadata_filename: Its metadata, in that folder.
        limits: Between which sizes the work is cut.
    """

    limits_type = DispatchLimits
    metadata_filename: str
    limits: DispatchLimits = field(default_factory=lambda: LIMITS)

    def piece_edges(self, edges: ChunkedEdges) -> int:
        """How many edges are spilled at a time: ids of both ends, their buckets, and the grouped columns."""
        widest = max((column.row_bytes for column in edges.features.values()), default=0)
        most = self.budget_bytes // (44 + 3 * widest)
        return _within(self.share(edges.num_edges), self.limits.piece_edges, most)

    def run_edges(self, edges: ChunkedEdges) -> int:
        """How many edges are put in order at a time: what is stored of each, and where its features are."""
        most = self.budget_bytes // (40 + sum(column.row_bytes for column in edges.features.values()))
        return _within(self.share(edges.num_edges), self.limits.piece_edges, most)

    def column_rows(self, num_rows: int, row_bytes: int) -> int:
        """How many rows of a feature are read at a time."""
        most = self.budget_bytes // 4
        num_bytes = _within(self.share(num_rows * row_bytes), self.limits.column_bytes, most)
        return max(1, num_bytes // max(1, row_bytes))

    @property
    def ragged_bytes(self) -> int:
        """Bytes of ragged rows that are put in order at a time."""
        return max(1, min(self.limits.column_bytes[1], self.budget_bytes // 4))

    @property
    def longest_row_bytes(self) -> int:
        """The most bytes that one ragged row may have: it is there as it was read, decoded, and in order."""
        return max(1, self.budget_bytes // 4)

    def bucket_edges(self, edges: ChunkedEdges) -> int:
        """How many edges a bucket has on average: a quarter of a run, so that runs are filled well."""
        low, high = self.limits.bucket_edges
        return min(max(self.run_edges(edges) // 4, low), high)


def _within(value: int, bounds: tuple[int, int], most: int) -> int:
    """The value between two bounds, but never above ``most``, and at least 1."""
    return max(1, min(max(value, bounds[0]), bounds[1], most))


def mapped_bytes(graph: ChunkedGraph, settings: PartitionSettings) -> int:
    """The most bytes of tables of nodes that one task maps."""
    num_tables = 1 + settings.neighbor_keys
    most = 0
    for edge_type in graph.edges:
        types = {edge_type[0], edge_type[2]}
        most = max(most, sum(graph.nodes[t].num_nodes for t in types))
    return most * (4 * num_tables + 8 * (settings.time_attr is not None))


def reads_ragged(graph: ChunkedGraph) -> bool:
    """Whether a graph has strings, or lists of any length."""
    tables = [of.features for of in graph.nodes.values()] + [of.features for of in graph.edges.values()]
    return any(map(ragged_features, tables))


def dispatch_needs(graph: ChunkedGraph, settings: PartitionSettings, halo: HaloSettings | None) -> tuple[Needs, ...]:
    """What dispatching a graph needs; while halos are made its workers are idle, but still there."""
    work = work_needs(mapped_bytes(graph, settings), reads_ragged=reads_ragged(graph))
    if halo is None or halo.is_nothing or settings.num_parts == 1:
        return (work,)
    num_nodes = sum(nodes.num_nodes for nodes in graph.nodes.values())
    least = rounded_up(least_memory_bytes(num_nodes))  # what is left for halos is compared with it once more
    return work, Needs(alone_bytes=least, parent_bytes=least, worker_bytes=REST_BYTES, what=halos_text(num_nodes))


def memory_for_halos(work: Allotment) -> str:
    """What is left of the memory of a job when halos are made."""
    return str(work.memory_bytes - work.num_workers * REST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdStretches:
    """Stretches of ids of one node type; none reaches over the end of a part, and each part has at least one.

    Attributes:
        starts: int64[num_buckets + 1], bucket ``b`` has the ids ``[starts[b], starts[b + 1])``.
        parts: int64[num_buckets], the part of each bucket.
        guesses: int64[m], see ``find_buckets``.
        shift: Likewise.
    """

    starts: IntArray
    parts: IntArray
    guesses: IntArray
    shift: int

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.parts)

    def part_firsts(self) -> IntArray:
        """int64[num_parts + 1], the first bucket of each part."""
        return np.searchsorted(self.parts, np.arange(int(self.parts[-1]) + 2))


def make_buckets(node_offsets: IntArray, num_buckets: int) -> IdStretches:
    """Cut the ids of a node type into about so many buckets of even width."""
    num_nodes, sizes = int(node_offsets[-1]), np.diff(node_offsets)
    wanted = -(-sizes * num_buckets // max(1, num_nodes))
    counts = np.maximum(1, np.minimum(wanted, sizes))
    parts = np.repeat(np.arange(len(sizes), dtype=np.int64), counts)
    places = np.arange(len(parts)) - offsets_of(counts)[parts]
    starts = np.append(node_offsets[parts] + sizes[parts] * places // counts[parts], num_nodes).astype(np.int64)
    shift = max(0, int(num_nodes - 1).bit_length() - GUESSES.bit_length() + 1) if num_nodes else 0
    firsts = np.arange((max(0, num_nodes - 1) >> shift) + 1, dtype=np.int64) << shift
    # Of several buckets that begin at one id all but the last are empty, and ids after the first step over them.
    guesses = np.searchsorted(starts, firsts, side="right") - 1
    return IdStretches(starts=starts, parts=parts, guesses=np.minimum(guesses, len(parts) - 1), shift=shift)


def estimate(
    graph: ChunkedGraph, schema: GraphSchema, settings: PartitionSettings, halo: HaloSettings | None = None
) -> DatasetEstimate:
    """What a job will take."""
    dataset = scratch = spill = read = 0
    for node_type, nodes in graph.nodes.items():
        features = sum(column.row_bytes for column in nodes.features.values())
        masks = len(nodes.masks)
        dataset += nodes.num_nodes * (16 + features + 8 * masks)
        read += nodes.num_nodes * (4 + features + masks)
        tables = 1 + settings.neighbor_keys
        has_times = settings.time_attr in schema.nodes[node_type]
        scratch += nodes.num_nodes * (tables * neighbor_dtype(nodes.num_nodes).itemsize + 8 * has_times)
    for edge_type, edges in graph.edges.items():
        features = sum(column.row_bytes for column in edges.features.values())
        read += edges.num_edges * (16 + features)
        spilled = sum(spill_row_bytes(graph, edge_type, d) for d in settings.directions) * edges.num_edges
        spilled += 8 * edges.num_edges * len(ragged_features(edges.features))  # their lengths
        spill = max(spill, spilled)
        for direction in settings.directions:
            own_type, other_type = ends_of(edge_type, direction)
            ids = neighbor_dtype(graph.nodes[other_type].num_nodes).itemsize
            per_edge = ids * (1 + settings.neighbor_keys) + 8 * settings.keep_edge_keys + features
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
    """What halos take of parts whose sizes are not known yet: all is counted for the last one."""

    def in_last(total: int) -> IntArray:
        return np.append(np.zeros(settings.num_parts, np.int64), total)

    edges = {(t, d): in_last(graph.edges[t].num_edges) for t in graph.edges for d in settings.directions}
    book = PartitionBook(
        num_parts=settings.num_parts, node_offsets={t: in_last(n.num_nodes) for t, n in graph.nodes.items()},
        edge_offsets=edges,
    )  # fmt: skip
    feature_bytes = {
        t: graph.nodes[t].num_nodes * sum(graph.nodes[t].features[name].row_bytes for name in names)
        for t, names in halo.choose(schema).items()
    }
    return halo_costs(DatasetContents.of(schema, settings, book), halo, feature_bytes)


def spill_row_bytes(graph: ChunkedGraph, edge_type: EdgeType, direction: Direction) -> int:
    """Bytes of one spilled edge."""
    own_type, other_type = ends_of(edge_type, direction)
    ids = sum(neighbor_dtype(graph.nodes[t].num_nodes).itemsize for t in (own_type, other_type))
    return ids + 4 + sum(column.row_bytes for column in graph.edges[edge_type].features.values())


class DispatchFolder(DatasetJobFolder[DispatchSpec]):
    """The folder of a job, seen by a task. Tables: ``ids`` (by key), ``keys`` and ``times`` (by id)."""

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
        """Node types, whose places stand for them in names of files."""
        return list(self.graph.nodes)

    def num_nodes(self, node_type: str) -> int:
        """Nodes of a type."""
        return self.graph.nodes[node_type].num_nodes

    def split_names(self, node_type: str) -> Sequence[str]:
        """Splits of the nodes of a type."""
        return list(self.graph.nodes[node_type].masks)

    def split_keys(self, node_type: str, name: str) -> Iterator[IntArray]:
        """The keys of a split of nodes, ascending, in blocks."""
        mask = self.graph.nodes[node_type].masks[name]
        for first in range(0, mask.num_rows, BLOCK_ROWS):
            yield first + np.flatnonzero(mask.read(first, min(first + BLOCK_ROWS, mask.num_rows)))

    def tables(self, node_type: str) -> Iterator[tuple[str, np.dtype[Any]]]:
        """Name and dtype of the tables that are kept of a node type."""
        yield IDS, self.id_dtype(node_type)
        if self.spec.settings.neighbor_keys:
            yield "keys", self.id_dtype(node_type)
        if self.spec.settings.time_attr in self.schema.nodes[node_type]:
            yield "times", np.dtype(np.int64)

    def keep_ids(self, tables: RegionWriter, node_type: str, first_key: int, ids: Array, places: Places) -> None:
        """Keep keys by id, where they are stored with edges."""
        name, dtype = self.table_name("keys", node_type), self.id_dtype(node_type)
        for _, of_part in places if self.spec.settings.neighbor_keys else ():
            tables.write_blocks(name, dtype, int(ids[of_part[0]]) * dtype.itemsize, [first_key + of_part])

    @property
    def block_rows(self) -> int:
        """How many rows of nodes are looked at together."""
        return BLOCK_ROWS

    def edges(self, edge_type: EdgeType) -> ChunkedEdges:
        """Edges of the source."""
        return self.graph.edges[edge_type]

    def number_of(self, edge_type: EdgeType) -> int:
        """The place of an edge type in the schema, which stands for it in names of files."""
        return list(self.graph.edges).index(edge_type)

    def buckets(self, edge_type: EdgeType, direction: Direction) -> IdStretches:
        """Stretches of ids by which edges of a type and direction are spilled."""
        edges = self.edges(edge_type)
        num_buckets = -(-edges.num_edges // self.spec.bucket_edges(edges))
        return make_buckets(self.node_offsets(ends_of(edge_type, direction)[0]), num_buckets)

    def spill_path(self, edge_type: EdgeType, direction: Direction, number: int) -> Path:
        """The file of one piece's edges."""
        return self.spill_folder(edge_type) / f"{direction}-{number:06d}.spill"

    def spill_folder(self, edge_type: EdgeType) -> Path:
        """The folder of an edge type's spilled edges."""
        return self.scratch / "spill" / str(self.number_of(edge_type))

    def totals_path(self, edge_type: EdgeType, direction: Direction, feature: str | None = None) -> Path:
        """The running number of edges by bucket, over all pieces; or of the elements of a ragged feature."""
        suffix = "" if feature is None else f"-{list(self.edges(edge_type).features).index(feature)}"
        return self.scratch / "totals" / f"{self.number_of(edge_type)}-{direction}{suffix}.npy"

    def lengths_name(self, edge_type: EdgeType, feature: str) -> PurePosixPath:
        """The elements of each edge's row of a ragged feature: int64[num_edges], in the scratch folder."""
        number = list(self.edges(edge_type).features).index(feature)
        return PurePosixPath("spill", str(self.number_of(edge_type)), f"lengths-{number}.npy")

    def firsts_path(self, node_type: str, feature: str) -> Path:
        """Where tasks' elements of a ragged feature begin: int64[num_tasks, num_parts]."""
        number = list(self.graph.nodes[node_type].features).index(feature)
        return self.scratch / "firsts" / f"{self.node_types.index(node_type)}-{number}.npy"


def open_source(spec: DispatchSpec) -> ChunkedGraph:
    """The chunked graph that a job reads."""
    return open_chunked(spec.source, spec.metadata_filename)
